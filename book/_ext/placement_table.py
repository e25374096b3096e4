"""Sphinx extension: the directive ``{placement-table}`` writes the library's table of placements.

It is the table from which the models are built, so that a new row is on the page without a word being typed.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MODULE = "resnorm_lib.placements"


def prose(text: str) -> str:
    """Words of the table as Markdown: nothing in them is markup, and R^(-1/2) has a true exponent."""
    text = re.sub(r"([\\`*_$<\[\]])", r"\\\1", text)
    return re.sub(r"\^\(([^)]+)\)", lambda found: f"{{sup}}`{found[1].replace('-', '−')}`", text)


class PlacementTable(SphinxDirective):
    """``{placement-table}``: name, equation and numbers, and source of each placement."""

    def source(self, row: Any) -> str:
        """A citation; the bare key where the bibliography does not have it."""
        known = row.source in self.env.get_domain("cite").bibdata.data.entries  # type: ignore[attr-defined]
        return f"{{cite:t}}`{row.source}`" if known else f"`{row.source}`"

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(MODULE)
        self.env.note_dependency(str(module.__file__))
        lines = ["```{list-table}", ":header-rows: 1", ":widths: 24 52 24", "", "* - Placement", "  - Block", "  - Source"]
        for row in module.PLACEMENTS.values():
            lines += [f"* - {prose(row.title[0].upper() + row.title[1:])}", "", f"    `{row.name}`"]
            lines += [f"  - ${row.equation}$", ""]
            lines += [f"    {prose(row.constants)}"] if row.constants != "none" else []
            lines += [f"  - {self.source(row)}, {prose(row.where)}"]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("placement-table", PlacementTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
