"""Sphinx extension: ``{parameter-tables}``, a table of each chapter's parameters, read from the notebooks and from what was measured.

Name, meaning, range and published value come from the parameters cell and its validation, the value in a quick run from the
cells that ask ``P.quick``, cost and effect from ``book/_data/parameters.json`` (``benchmarks/parameters.py``).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from run_status import duration
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from resnorm_lib import chapters
from resnorm_lib.chapters import Chapter

STORE = Path("book/_data/parameters.json")
HEAD = ("Parameter", "What it is", "Allowed", "Published", "Quick", "CPU time", "What it moves")
Numbers = Mapping[str, Any]


def quick_values(sources: list[str], published: Numbers) -> dict[str, int | float]:
    """What a quick run makes of a parameter, where the cells say it as ``… if P.quick else name``, or cut a range by it."""
    found: dict[str, int | float] = {}
    for tree in map(ast.parse, sources):
        for name, expression in _shrunk(tree):
            value = _arithmetic(expression, published)
            if name in published and value is not None and value != published[name]:
                found.setdefault(name, value)
    return found


def _shrunk(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Name and quick expression of each parameter that is shrunk."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and ast.unparse(node.test) == "P.quick" and isinstance(node.orelse, ast.Name):
            yield node.orelse.id, node.body
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "P.quick":
            for part in (part for statement in node.body for part in ast.walk(statement)):
                if isinstance(part, ast.Slice) and part.upper is not None:
                    names = {item.id for item in ast.walk(part.upper) if isinstance(item, ast.Name)} - {"max", "min"}
                    if len(names) == 1:
                        yield names.pop(), part.upper


def _arithmetic(node: ast.expr, published: Numbers) -> int | float | None:
    """The value of an expression of parameters, numbers, + - * // / and max, min; else nothing."""
    allowed = (ast.Expression, ast.BinOp, ast.operator, ast.Name, ast.Load, ast.Constant, ast.Call)
    names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    if not all(isinstance(item, allowed) for item in ast.walk(node)) or names - published.keys() - {"max", "min"}:
        return None
    code = compile(ast.Expression(node), "quick", "eval")
    value = eval(code, {"__builtins__": {"max": max, "min": min}}, dict(published))
    return value if isinstance(value, int | float) else None


def plain(text: str) -> str:
    """A text as Markdown in which nothing is markup, for a cell of a table."""
    return re.sub(r"([\\`*_$<>\[\]|{}])", r"\\\1", text)


def rows(chapter: Chapter, quick: Numbers, measured: Numbers) -> list[list[str]]:
    """The cells of the table, as Markdown."""
    found = []
    for name, parameter in chapter.parameters.items():
        allowed = parameter.specification.allowed().replace("'", "")
        tried = measured.get("parameters", {}).get(name, [])
        shown = [f"`{name}`", plain(parameter.meaning), plain(allowed), f"{parameter.specification.published}"]
        if name == "effort":
            cost = f"{duration(measured['quick']['cpu_seconds'])} if quick" if "quick" in measured else ""
            found.append([*shown, "", cost, "the verdicts: a quick run gives none"])
            continue
        if measured and not tried:
            found.append([*shown, str(quick.get(name, "")), "not measured: it takes too long", ""])
            continue
        cost = "; ".join(f"× {run['cpu_seconds'] / measured['published']['cpu_seconds']:.2g} at {run['value']}" for run in tried)
        found.append([*shown, str(quick.get(name, "")), cost, "; ".join(effect(run, measured["records"]) for run in tried)])
    return found


def effect(run: Numbers, records: int) -> str:
    """How much of what the chapter records another value changes."""
    told = f"{run['moved']} of {records} records"
    changed = [f'<a href="ledger.html#{claim}">{claim}</a>' for claim in run["verdicts"]]
    return told + (f", and the verdicts of {', '.join(changed)}" if changed else ", no verdict")


class ParameterTables(SphinxDirective):
    """``{parameter-tables}``: a section of text and a table for each chapter."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / STORE))
        stored = json.loads((root / STORE).read_text("utf-8"))["chapters"] if (root / STORE).exists() else {}
        lines: list[str] = []
        for path in sorted((root / "book").glob("ch_*.ipynb")):
            self.env.note_dependency(str(path))
            if f"book/{path.stem}" not in self.env.found_docs:
                continue
            cells = json.loads(path.read_text("utf-8"))["cells"]
            chapter = chapters.read(path)
            sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            lines += self.table(chapter, quick_values(sources, chapter.published), stored.get(path.stem, {}))
        return self.parse_text_to_nodes("\n".join(lines))

    @staticmethod
    def table(chapter: Chapter, quick: Numbers, measured: Numbers) -> list[str]:
        """Markdown of one chapter."""
        lines = ["", f"**[](/book/{chapter.stem}.ipynb)** (`{chapter.stem}`)", ""]
        if measured:
            cost = {kind: f"{duration(measured[kind]['cpu_seconds'])}, {measured[kind]['peak_mib']} MiB" for kind in ("published", "quick")}
            lines += [f"As published {cost['published']}; quick {cost['quick']}, of which {duration(measured['start']['cpu_seconds'])} to start.", ""]
        else:
            lines += ["Cost and effect of these parameters are not measured yet.", ""]
        lines += ["```{list-table}", ":header-rows: 1", ":class: parameters", ""]
        for row in ([*cells] if measured else cells[:5] for cells in [list(HEAD), *rows(chapter, quick, measured)]):
            lines += [f"{'* -' if k == 0 else '  -'} {cell}".rstrip() for k, cell in enumerate(row)]
        return [*lines, "```", ""]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("parameter-tables", ParameterTables)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
