"""Tell whether a notebook's stored outputs are those of today's cells, library, claims and pins.

`record` is what ``execute.py`` writes into a notebook after a run; `problems` compares it with the
files of today. As a Sphinx extension it fails every build of a book with a problem, also a second
identical one. A comment or a docstring in the library makes nothing stale.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PACKAGE = "resnorm_lib"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, ten times as fast, where PyYAML was built with it
# The one literal of a chapter that no output depends on: where to install the library from, where it is missing. A run of the
# book has it, so the address counts as empty, and a fork that writes in its own (repository.py) makes nothing stale.
ADDRESS = re.compile(r'(os\.environ\.get\("RESNORM_SOURCE", )"([^"\\\n]*)"(?=\))')


def notebooks(root: Path) -> list[Path]:
    """The book's notebooks; what lies in hidden or underscored folders is not the book's."""
    found = sorted((root / "book").rglob("*.ipynb"))
    return [path for path in found if not any(part[0] in "._" for part in path.relative_to(root).parts)]


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that a run executes: code cells with a source."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and _source(cell).strip()]


def record(notebook: dict[str, Any], stem: str, root: Path) -> dict[str, Any]:
    """Digests of all that a notebook's outputs depend on.

    Args:
        notebook: the parsed notebook.
        stem: its file name without suffix, which is also its chapter's name in the claims.
        root: the folder that holds ``book/`` and the library.

    Returns:
        ``digest``, which covers all that goes into a run, the partial digests ``cells``, ``library`` (one a
        module or data file), ``claims`` and ``pins``, which tell what has changed, and ``outputs``, of what came out.
    """
    cells = [[cell["cell_type"], _source(cell), cell["metadata"].get("tags", [])] for cell in notebook["cells"]]
    claims_file = root / PACKAGE / "claims.yml"
    claims = (yaml.load(claims_file.read_text("utf-8"), LOADER) or []) if claims_file.exists() else []
    pins = (line.split("#")[0].strip() for line in (root / "requirements.txt").read_text("utf-8").splitlines())
    parts: dict[str, Any] = {
        "cells": _hash(cells),
        "library": _library("\n".join(_python(_source(cell)) for cell in code_cells(notebook)), root),
        "claims": _hash([row for row in claims if row.get("chapter") == stem]),
        "pins": _hash(sorted(filter(None, pins))),
    }
    return {"digest": _hash(parts), "outputs": outputs(notebook), **parts}


def outputs(notebook: dict[str, Any]) -> str:
    """Digest of what a run left: an output, a picture or a record changed by hand is noticed."""
    return _hash([_joined(cell.get("outputs", [])) for cell in code_cells(notebook)])


def _joined(value: Any) -> Any:
    """Nested data with lists of lines joined: nbformat stores a text either way."""
    if isinstance(value, dict):
        return {key: _joined(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return "".join(value)
        return [_joined(item) for item in value]
    return value


def problems(path: Path, root: Path) -> list[str]:
    """What is wrong with a notebook, one sentence a problem; nothing, if its outputs can be published."""
    name = path.relative_to(root).as_posix()
    try:
        notebook = json.loads(path.read_text("utf-8"))
        cells, kept = code_cells(notebook), notebook["metadata"].get("resnorm")
        today = record(notebook, path.stem, root)
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, yaml.YAMLError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [f"{name} cannot be checked ({reason}): mend that, then run `make run`."]
    found = []
    unrun = [str(k) for k, cell in enumerate(cells, 1) if cell.get("execution_count") is None]
    if unrun:
        found.append(f"{name} is not wholly executed (unrun code cells: {', '.join(unrun)}): run `make run`.")
    elif [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)):
        found.append(f"{name} was not executed from top to bottom in a fresh kernel: run `make run`.")
    for k, cell in enumerate(cells, 1):
        for output in cell.get("outputs", []):
            if output.get("output_type") == "error":
                said = f"{output.get('ename')}: {output.get('evalue')}".splitlines()[0]
                found.append(f"{name} holds an error in code cell {k} ({said}): mend it, then run `make run`.")
    if not found and not isinstance(kept, dict):
        found.append(f"{name} was not executed by this book's own command: run `make run`.")
    elif not found and kept != today:
        changed = ", ".join(_changes(kept, today)) or "its record"
        found.append(f"{name} is stale ({changed} changed since it was executed): run `make run`.")
    return found


def _changes(kept: dict[str, Any], today: dict[str, Any]) -> Iterator[str]:
    words = {"cells": "its cells", "outputs": "its outputs", "claims": f"its rows in {PACKAGE}/claims.yml", "pins": "requirements.txt"}
    yield from (word for key, word in words.items() if kept.get(key) != today[key])
    before, now = kept.get("library", {}), today["library"]
    yield from sorted(f"library file {name}" for name in before.keys() | now if before.get(name) != now.get(name))


def _library(source: str, root: Path) -> dict[str, str]:
    """Digest of each library file that ``source`` needs: modules that it imports, in turn, and data that they name."""
    package = root / PACKAGE
    if not package.is_dir():
        return {}
    digests: dict[str, str] = {}
    waiting, texts = {*_imports(ast.parse(source), package, []), package / "__init__.py"}, [source]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(root).as_posix()
        if name not in digests:
            texts.append(file.read_text("utf-8"))
            tree = ast.parse(texts[-1], name)
            digests[name] = _hash(_dump(tree))
            waiting.update(_imports(tree, package, list(file.relative_to(root).parent.parts)))
    # claims.yml is counted by its rows, so that a chapter is not stale for another chapter's claim
    for file in package.rglob("*"):
        counted = file.suffix in {".py", ".pyc"} or file == package / "claims.yml" or not file.is_file()
        if not counted and any(file.name in text for text in texts):
            digests[file.relative_to(root).as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    return digests


def _imports(tree: ast.AST, package: Path, home: list[str]) -> Iterator[Path]:
    """Files of the library's modules that are imported anywhere in ``tree``, a module of the package ``home``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            names = [[*base, alias.name] for alias in node.names]
            if base[:1] == [PACKAGE] and names[0][-1] == "*":
                yield from package.joinpath(*base[1:]).glob("*.py")
        else:
            continue
        for parts in names:
            # importing a.b.c runs a, a.b and a.b.c; the last part may be a name inside a module instead
            for length in range(1, len(parts) + 1) if parts[0] == PACKAGE else ():
                stem = package.joinpath(*parts[1:length])
                yield from (f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f.is_file())


def _dump(node: Any) -> Any:
    """A syntax tree as plain data without docstrings, the same in every Python version (`ast.dump` is not)."""
    if isinstance(node, list):
        return [_dump(item) for item in node if not _is_docstring(item)]
    if isinstance(node, ast.AST):
        fields = {name: _dump(value) for name, value in ast.iter_fields(node) if value is not None}
        if isinstance(node, ast.JoinedStr):  # Python 3.12 leaves empty pieces in some f-strings
            fields["values"] = [piece for piece in fields["values"] if piece != ["Constant", {"value": "''"}]]
        return [type(node).__name__, {name: value for name, value in fields.items() if value != []}]
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _python(source: str) -> str:
    """A cell's source without what only IPython understands."""
    if re.match(r"\s*%%(?!time|capture)", source):  # a cell in another language
        return ""
    return re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.MULTILINE)


def _source(cell: dict[str, Any]) -> str:
    return ADDRESS.sub(r'\1""', "".join(cell["source"]))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry point."""
    from sphinx.errors import ExtensionError

    def check(app: Any) -> None:
        root = Path(app.srcdir)
        found = [problem for path in notebooks(root) for problem in problems(path, root)]
        if found:
            raise ExtensionError("The book cannot be built:\n" + "\n".join(found))

    # runs in every build, before Sphinx asks which pages are outdated
    app.connect("builder-inited", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
