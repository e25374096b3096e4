"""Sphinx extension: the figures with sliders that ``resnorm_lib.explorer`` leaves in a notebook.

``explore`` shows a picture and its caption, which notebook_figures.py makes a figure, and then a line of text that carries the
curves in its metadata, under ``resnorm.explorer``. Here the line of text gives way to those curves, which go into the figure as
JSON; explorer.js draws them and takes the picture's place. On paper and without scripts the picture stays.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

log = logging.getLogger(__name__)


def explorers(notebook: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield, for each figure with sliders: the name of its picture's file in the build, the line of text, and the data."""
    for cell in notebook["cells"]:
        picture = ""
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = sha256(b64decode("".join(data["image/png"]))).hexdigest()  # as myst_nb.core.render names it
            found = output.get("metadata", {}).get("resnorm", {}).get("explorer")
            if found is not None:
                yield picture, "".join(data.get("text/plain", "")), found


def script(data: dict[str, Any]) -> str:
    """The data as an element of a page that shows nothing; no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<div class="explorer" hidden><script type="application/json">{text}</script></div>'


class ExplorerFigures(SphinxTransform):
    """Put the curves into the figure of their picture, and take the line of text away."""

    default_priority = 410  # after notebook_figures.py has made the figures

    def apply(self, **kwargs: Any) -> None:
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return
        figures = defaultdict(list)
        for figure in self.document.findall(nodes.figure):
            image = next(figure.findall(nodes.image), None)
            if image is not None:
                figures[PurePosixPath(image["uri"]).stem].append(figure)
        for picture, line, data in explorers(json.loads(path.read_text("utf-8"))):
            if not figures[picture]:
                log.warning(
                    "a figure with sliders has no picture of its own: show it with explorer.explore(…)",
                    location=self.env.docname,
                    type="resnorm",
                    subtype="explorer",
                )
                continue
            figure = figures[picture].pop(0)
            figure["classes"].append("explored")
            figure.insert(0, nodes.raw("", script(data), format="html"))
            text = figure.next_node(descend=False, siblings=True)
            if text is not None and text.astext().strip() == line.strip():
                text.parent.remove(text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(ExplorerFigures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
