"""Sphinx extension: figures and solutions of notebooks, as the chapters mark them.

``resnorm_lib.figures.show`` writes a picture and then its caption, as two outputs of one cell: the alt text stands in the
metadata of the picture, and the caption carries the metadata ``{"resnorm": {"caption": true}}``. MyST-NB ignores both, so
here the pair becomes one numbered figure with alt text and a caption; with ``"name": "fig-…"`` beside ``caption``, the text can
refer to it as ``[](#fig-…)``. A picture without alt text is a warning, which ends a build
that runs with ``-W``.

A code cell tagged ``hide-cell`` holds the solution of an exercise: it is folded away behind the words "Show the solution".
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

log = logging.getLogger(__name__)


def pictures(notebook: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield, for each PNG output: the name of its file in the build, its alt text, and what the next output says of itself."""
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", [])
        for output, following in zip(outputs, [*outputs[1:], {}]):
            png = output.get("data", {}).get("image/png")
            if png is not None:
                name = sha256(b64decode("".join(png))).hexdigest()  # as myst_nb.core.render names it
                alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
                yield name, alt.strip(), following.get("metadata", {}).get("resnorm", {})


class NotebookFigures(SphinxTransform):
    """Turn each picture output, and the caption output after it, into a figure."""

    default_priority = 400  # after parsing, before Sphinx collects targets and images

    def apply(self, **kwargs: Any) -> None:
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return
        known = {name: (alt, mark) for name, alt, mark in pictures(json.loads(path.read_text("utf-8")))}
        count = 0
        for bundle in list(self.document.findall(is_mime_bundle)):
            image = next(bundle.findall(nodes.image), None)
            if image is None:
                continue
            image["alt"], mark = known.get(PurePosixPath(image["uri"]).stem, ("", {}))
            if not image["alt"]:
                log.warning(
                    "a picture made by this cell has no alt text: show it with figures.show(fig, alt=…, caption=…)",
                    location=bundle,
                    type="resnorm",
                    subtype="alt",
                )
            if mark.get("caption"):
                count += 1
                caption = bundle.next_node(descend=False, siblings=True)
                text, *more = caption.findall(nodes.paragraph)
                if len(text) == 1 and isinstance(text[0], nodes.emphasis):  # set off so for Jupyter and Colab
                    text = text[0]
                figure = nodes.figure("", image, nodes.caption("", "", *text.children))
                figure += [nodes.legend("", *more)] if more else []
                if "name" in mark:  # a target for [](#name), numbered
                    figure["names"] = [mark["name"]]
                    self.document.note_explicit_target(figure, figure)
                else:
                    figure["ids"] = [f"figure-{count}"]
                caption.parent.remove(caption)
                bundle.replace_self(figure)


class Solutions(SphinxTransform):
    """Name what is folded away in the cells tagged ``hide-cell``."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for cell in self.document.findall(nodes.container):
            if "tag_hide-cell" in cell["classes"]:
                cell["prompt_show"], cell["prompt_hide"] = "Show the solution", "Hide the solution"


def is_mime_bundle(node: nodes.Node) -> bool:
    """Whether the node holds the renderings of one notebook output."""
    return isinstance(node, nodes.container) and node.get("nb_element") == "mime_bundle"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(NotebookFigures)
    app.add_transform(Solutions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
