"""Which settings a rerun has: the values given for a chapter's parameters, multiplied out or taken side by side.

A grid file is YAML. Lists are multiplied out with each other, except those below ``zip``, which are taken side by side:

``{width: [64, 96], zip: {depth: [8, 16], steps: [100, 200]}}`` has four settings.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from resnorm_lib.chapters import Chapter, Value
from resnorm_lib.parameters import ParameterError

__all__ = ["Setting", "expand", "read_grid"]

_LONGEST = 80  # of the readable part of a file's name


@dataclass(frozen=True)
class Setting:
    """One rerun of a chapter.

    Attributes:
        chapter: the notebook's name without suffix.
        values: each parameter that was given, by name.
        every: all parameters, those that were not given with their published values.
    """

    chapter: str
    values: Mapping[str, Value]
    every: Mapping[str, Value]

    @cached_property
    def key(self) -> str:
        """Twelve characters that only this setting has: a hash of the chapter and of every parameter's value."""
        text = json.dumps([self.chapter, dict(self.every)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """The values in words, ``width=96 effort=quick``."""
        return " ".join(f"{name}={value}" for name, value in self.values.items()) or "as published"

    @property
    def file_name(self) -> str:
        """Name of the output notebook: readable, and by its key no other setting's."""
        readable = "-".join([self.chapter, *(f"{name}={value}" for name, value in self.values.items())])
        readable = re.sub(r"[^\w.=+-]", "_", readable)
        return f"{readable[:_LONGEST]}-{self.key}.ipynb"


def read_grid(path: Path) -> dict[str, Any]:
    """The grid in a YAML file, as `expand` takes it.

    Raises:
        ParameterError: the file cannot be read, or is not a mapping of names to lists.
    """
    shape = "write a list of values for each parameter, such as 'width: [64, 96]'"
    try:
        grid = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ParameterError(f"the grid {path} cannot be read ({' '.join(str(error).split())}): {shape}") from error
    if not isinstance(grid, dict) or not grid or not all(isinstance(name, str) for name in grid):
        raise ParameterError(f"the grid {path} is not a mapping of names: {shape}")
    return grid


def expand(chapter: Chapter, given: Mapping[str, Sequence[object]], grid: Mapping[str, Any] | None = None) -> list[Setting]:
    """Every setting, in the order of the lists, each once.

    Args:
        chapter: whose parameters they are.
        given: values by name, of a command line; multiplied out.
        grid: lists by name, multiplied out too; lists below ``zip`` are taken side by side.

    Raises:
        ParameterError: an unknown name, a value that is not allowed, a name given twice, or lists of unlike lengths.
    """
    product: dict[str, Any] = dict(grid or {})
    side_by_side = product.pop("zip", None) or {}
    if not isinstance(side_by_side, dict):
        raise ParameterError("zip in the grid is not a mapping: write lists of one length below it, one for each parameter")
    for name in given.keys() & (product.keys() | side_by_side.keys()) | product.keys() & side_by_side.keys():
        raise ParameterError(f"{name} is given twice: give its values in one place, the grid or the command line")
    product |= given
    columns = {name: _values(chapter, name, values) for name, values in (product | side_by_side).items()}
    lengths = {name: len(columns[name]) for name in side_by_side}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ParameterError(f"the lists below zip have unlike lengths ({told}): give one value of each for each setting")
    together: list[tuple[Value, ...]] = list(zip(*(columns[name] for name in side_by_side), strict=True)) if side_by_side else [()]
    found: dict[str, Setting] = {}
    for apart, last in itertools.product(itertools.product(*(columns[name] for name in product)), together):
        values = dict(zip([*product, *side_by_side], [*apart, *last], strict=True))
        ordered = {name: values[name] for name in chapter.parameters if name in values}
        setting = Setting(chapter.stem, ordered, chapter.published | ordered)
        found.setdefault(setting.key, setting)
    return list(found.values())


def _values(chapter: Chapter, name: str, values: object) -> list[Value]:
    parameter = chapter.parameter(name)
    if not isinstance(values, list | tuple):
        values = [values]
    if not values:
        raise ParameterError(f"{name} has no value: give at least one; it must be {parameter.specification.allowed()}")
    return [parameter.value(value) for value in values]
