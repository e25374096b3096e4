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
    """``{placement-table}``: title, name in code and source of each placement; its equation, part by part, and its numbers."""

    def source(self, row: Any) -> str:
        """A citation; the bare key where the bibliography does not have it."""
        known = row.source in self.env.get_domain("cite").bibdata.data.entries  # type: ignore[attr-defined]
        return f"{{cite:t}}`{row.source}`" if known else f"`{row.source}`"

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(MODULE)
        self.env.note_dependency(str(module.__file__))
        lines = ["```{list-table}", ":header-rows: 1", ":widths: 36 64", "", "* - Placement", "  - Block"]
        for row in module.PLACEMENTS.values():
            title = row.title[0].upper() + row.title[1:]
            cell = [f"`{row.name}`", f"{self.source(row)}, {prose(row.where)}"]
            lines += [f"* - **{prose(title)}**", *(f"\n    {text}" for text in cell)]
            first, *more = (f"${part}$" for part in re.split(r",\\(?:quad)? +", row.equation))
            more += [prose(row.constants)] if row.constants != "none" else []
            lines += [f"  - {first}", *(f"\n    {text}" for text in more)]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("placement-table", PlacementTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
