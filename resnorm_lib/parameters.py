"""Validate a chapter's parameters, unknown names included.

papermill injects any name it is given and checks no type. The cell after a chapter's ``parameters``
cell calls `check`, so that a misspelt name, a wrong type or a value out of range stops the run
with one sentence.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Choice", "Integer", "ParameterError", "Parameters", "Real", "check"]



class ParameterError(ValueError):
    """A parameter is unknown, of a wrong type or out of range; the message is one line."""


@dataclass(frozen=True)
class Integer:
    """A whole number from ``low`` to ``high``, both included, and a multiple of ``multiple``."""

    published: int
    low: int
    high: int
    multiple: int = 1

    def allowed(self) -> str:
        """What the parameter may be, in words."""
        kind = "whole number" if self.multiple == 1 else f"multiple of {self.multiple}"
        return f"a {kind} from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a number; ``True`` and ``1.0`` are not."""
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and value % self.multiple == 0


@dataclass(frozen=True)
class Real:
    """A finite number from ``low`` to ``high``, both included."""

    published: float
    low: float
    high: float

    def allowed(self) -> str:
        """What the parameter may be, in words."""
        return f"a number from {self.low:g} to {self.high:g}"

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a number; NaN lies in no range."""
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, init=False)
class Choice:
    """One of a few strings; the first is the published one."""

    published: str
    options: tuple[str, ...]

    def __init__(self, published: str, *others: str) -> None:
        object.__setattr__(self, "published", published)
        object.__setattr__(self, "options", (published, *others))

    def allowed(self) -> str:
        """What the parameter may be, in words."""
        return "one of " + ", ".join(repr(option) for option in self.options)

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is one of the options."""
        return isinstance(value, str) and value in self.options


Specification = Integer | Real | Choice


@dataclass(frozen=True)
class Parameters:
    """The checked parameters of one run.

    Attributes:
        values: name to value.
        changed: those that differ from the published setting.
    """

    values: Mapping[str, int | float | str]
    changed: Mapping[str, int | float | str] = field(default_factory=dict)

    @property
    def published(self) -> bool:
        """Whether every parameter has its published value."""
        return not self.changed

    @property
    def quick(self) -> bool:
        """Whether this is a smoke run: values are recorded, no verdict is given."""
        return self.values.get("effort") == "quick"


def check(namespace: Mapping[str, Any], /, **specifications: Specification) -> Parameters:
    """Compare the names in ``namespace`` with their specifications.

    Unknown names are looked for in the source of the cells that set parameters (the notebook's own
    and the one that papermill injects), never among the variables of the kernel: a second run of the
    same cell, late in a session, finds the same answer.

    Args:
        namespace: ``globals()`` of the notebook.
        **specifications: one `Integer`, `Real` or `Choice` for each parameter.

    Returns:
        The checked values, and which of them differ from the published setting.

    Raises:
        ParameterError: names every offending parameter, the value given and what is allowed.
    """
    problems = []
    for name, value in _assigned(namespace.get("In", ()), specifications).items():
        if name not in specifications:
            near = difflib.get_close_matches(name, specifications, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            names = ", ".join(sorted(specifications))
            problems.append(f"{name} = {value} is not a parameter of this chapter{hint}; allowed are: {names}")
    if not isinstance(namespace.get("In", []), list):
        problems.append(f"In = {namespace['In']!r} is not a parameter of this chapter, and hides the notebook's history")
    for name, specification in specifications.items():
        if name not in namespace:
            problems.append(f"{name} is missing; it must be {specification.allowed()}")
        elif not specification.accepts(namespace[name]):
            given = f"{textwrap.shorten(repr(namespace[name]), 60)} ({type(namespace[name]).__name__})"
            problems.append(f"{name} = {given} is not allowed; it must be {specification.allowed()}")
    if problems:
        raise ParameterError("; ".join(problems))
    values = {name: namespace[name] for name in specifications}
    changed = {name: value for name, value in values.items() if value != specifications[name].published}
    return Parameters(values, changed)


def _assigned(cells: Sequence[str], declared: Mapping[str, Specification]) -> dict[str, str]:
    """Names and sources assigned by the latest parameters cell and by the latest cell injected after it."""
    own: dict[str, str] = {}
    injected: dict[str, str] = {}
    for source in cells if isinstance(cells, list) else ():  # a parameter named In would hide the history
        try:
            names = _assignments(source)
        except SyntaxError:  # a cell with shell or magic commands sets no parameter
            continue
        if source.lstrip().startswith("# Parameters"):  # how papermill begins the cell that it injects
            injected = names
        elif names.keys() >= declared.keys():
            own, injected = names, {}
    return own | injected


def _assignments(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            found |= dict.fromkeys(names, textwrap.shorten(ast.unparse(statement.value), 60))
    return found
