"""What a chapter's notebook says of its parameters, read without running it, and values for them checked before a run.

The ``parameters`` cell holds name, published value and comment; the cell after it compares them with their specifications.
Both are parsed, never executed.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnorm_lib import parameters
from resnorm_lib.parameters import Choice, ParameterError, Real, Specification

__all__ = ["Chapter", "ChapterError", "Parameter", "Value", "book_folder", "find", "read"]

Value = int | float | str
"""What a parameter can be."""


class ChapterError(ValueError):
    """A chapter does not exist or cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a chapter.

    Attributes:
        name: as in the ``parameters`` cell.
        comment: the comment behind it: what it is, its unit, its range.
        specification: what it may be; its ``published`` is the value of the ``parameters`` cell.
    """

    name: str
    comment: str
    specification: Specification

    @property
    def meaning(self) -> str:
        """The comment without the range, which the specification has."""
        return re.sub(r"[;,:] *(?:from|an even number|(?:a|an|is a) \w+ of|\"[^\"]*\"[,]).*$", "", self.comment)

    def value(self, given: object) -> Value:
        """``given``, a text of a command line or of a file, as the value that the chapter gets.

        A number may be written as a text, since YAML 1.1 reads ``1e-3`` as one; a `Real` becomes a float.

        Raises:
            ParameterError: the value is not allowed; the message says what is.
        """
        found: Any = given
        if isinstance(given, str) and not isinstance(self.specification, Choice):
            try:
                found = ast.literal_eval(given.strip())
            except (ValueError, SyntaxError):
                found = given
        if not self.specification.accepts(found):
            raise ParameterError(f"{self.name} = {given} is not allowed; it must be {self.specification.allowed()}")
        return float(found) if isinstance(self.specification, Real) else found


@dataclass(frozen=True)
class Chapter:
    """A chapter and its parameters, in the notebook's order.

    Attributes:
        stem: the notebook's name without suffix.
        path: the notebook.
        parameters: by name.
    """

    stem: str
    path: Path
    parameters: Mapping[str, Parameter]

    @property
    def published(self) -> dict[str, Value]:
        """The published setting."""
        return {name: item.specification.published for name, item in self.parameters.items()}

    def parameter(self, name: str) -> Parameter:
        """The parameter of this name.

        Raises:
            ParameterError: there is none; the message has the names.
        """
        if name not in self.parameters:
            near = difflib.get_close_matches(name, self.parameters, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ParameterError(f"{name} is not a parameter of {self.stem}{hint}; allowed are: {', '.join(self.parameters)}")
        return self.parameters[name]


def book_folder() -> Path:
    """The folder of the chapters: ``book`` beside the library where that is there, else in the working folder."""
    beside = Path(__file__).resolve().parent.parent / "book"
    return beside if beside.is_dir() else Path("book")


def find(name: str, book: Path) -> Path:
    """The notebook that ``name`` means: its file name with or without ``ch_`` and suffix, or a beginning or part of that.

    Args:
        name: such as ``ch_layernorm_projector``, ``layernorm_projector.ipynb`` or ``layernorm``.
        book: folder of the chapters.

    Raises:
        ChapterError: no chapter or more than one is meant; the message lists them.
    """
    stems = [path.stem for path in sorted(book.glob("ch_*.ipynb"))]
    if not stems:
        raise ChapterError(f"{book} has no chapter: give the folder of the notebooks with --book")
    word = Path(name).name.removesuffix(".ipynb")
    tests = (
        lambda stem: word in (stem, stem.removeprefix("ch_")),
        lambda stem: stem.startswith(word) or stem.removeprefix("ch_").startswith(word),
        lambda stem: word in stem,
    )
    found: list[str] = []
    for test in tests if word else ():
        found = [stem for stem in stems if test(stem)]
        if len(found) == 1:
            return book / f"{found[0]}.ipynb"
        if found:
            break
    if found:
        raise ChapterError(f"{name} could be {' or '.join(found)}: write more of the name")
    near = difflib.get_close_matches(word, stems, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ChapterError(f"{name} is not a chapter{hint}; the chapters are: {', '.join(stems)}")


def read(path: Path) -> Chapter:
    """The parameters of the chapter in this notebook.

    Raises:
        ChapterError: the notebook cannot be read, or has no ``parameters`` cell with a validation after it.
    """
    try:
        cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        tagged = next(k for k, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", ()))
        declaration, validation = ("".join(cell["source"]) for cell in cells[tagged : tagged + 2])
        comments, specifications = _comments(declaration), _specifications(validation)
    except StopIteration:
        raise ChapterError(f"{path.name} has no cell with the tag 'parameters': add it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ChapterError(f"the parameters of {path.name} cannot be read ({reason}): mend the notebook") from error
    if not specifications:
        raise ChapterError(f"{path.name} has no parameters.check after its parameters cell: add it")
    items = {name: Parameter(name, comments.get(name, ""), item) for name, item in specifications.items()}
    return Chapter(path.stem, path, items)


def _comments(source: str) -> dict[str, str]:
    """The comment on the line of each assignment."""
    names = {node.lineno: node.targets[0].id for node in ast.parse(source).body if _is_assignment(node)}  # type: ignore[attr-defined]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    notes = {token.start[0]: token.string.lstrip("# ").strip() for token in tokens if token.type == tokenize.COMMENT}
    return {name: notes[line] for line, name in names.items() if line in notes}


def _is_assignment(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def _specifications(source: str) -> dict[str, Specification]:
    """The keyword arguments of ``parameters.check``, made from their literals."""
    found: dict[str, Specification] = {}
    for call in _calls(ast.parse(source), ("check",)):
        for keyword in call.keywords:
            for made in _calls(keyword.value, ("Choice", "Integer", "Real")):
                kind = getattr(parameters, _called(made))
                options = {k.arg: ast.literal_eval(k.value) for k in made.keywords if k.arg}
                found[str(keyword.arg)] = kind(*_literals(made.args), **options)
    return found


def _literals(nodes: Sequence[ast.expr]) -> list[Any]:
    return [ast.literal_eval(node) for node in nodes]


def _calls(tree: ast.AST, names: tuple[str, ...]) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in names)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
