"""Sphinx extension: each figure's data as a CSV file, and a link to it under the caption.

``resnorm_lib.figures.show`` leaves the data in the metadata of the caption, under ``resnorm.data``; a figure with sliders has
those of all positions in an output after it, under ``resnorm.explorer``. The files are written into ``figures`` beside the pages.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

FOLDER = "figures"
COLUMNS = ("category", "x", "x_low", "x_high", "y", "low", "high", "value")


def data_of(notebook: dict[str, Any], stem: str) -> Iterator[tuple[str, str, str]]:
    """Yield, for each figure with data: its id on the page, the name of its file without suffix, and the text of the file."""
    count = 0
    for cell in notebook["cells"]:
        marks = [output.get("metadata", {}).get("resnorm", {}) for output in cell.get("outputs", [])]
        for mark, after in zip(marks, [*marks[1:], {}]):
            count += "caption" in mark
            if mark.get("data"):
                text = moved(after["explorer"]) if "explorer" in after else drawn(mark["data"])
                yield mark.get("name") or f"figure-{count}", mark.get("name") or f"{stem}-figure-{count}", text


def table(columns: list[str], lines: list[dict[str, Any]]) -> str:
    """CSV with those columns that hold something; a number that is missing or not finite is an empty cell."""
    used = [name for name in columns if any(line.get(name) not in (None, "") for line in lines)]
    text = io.StringIO()
    writer = csv.DictWriter(text, used, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def drawn(panels: list[dict[str, Any]]) -> str:
    """The series of a figure, one line for each point; ``x_axis`` and ``y_axis`` are the labels."""
    lines = []
    for number, panel in enumerate(panels, 1):
        labels = {"panel": number, "title": panel["title"], "x_axis": panel["x"], "y_axis": panel["y"]}
        for series in panel["series"]:
            head = labels | {"series": series["name"], "kind": series["kind"]}
            if series["kind"] == "image":
                points = [
                    {"x": x, "y": y, "value": value}
                    for y, row in zip(series["y"], series["value"], strict=True)
                    for x, value in zip(series["x"], row, strict=True)
                ]
            else:
                keys = [key for key in COLUMNS if key in series]
                points = [dict(zip(keys, point, strict=True)) for point in zip(*(series[key] for key in keys), strict=True)]
            lines += [head | point for point in points]
    return table(["panel", "title", "x_axis", "y_axis", "series", "kind", *COLUMNS], lines)


def moved(data: dict[str, Any]) -> str:
    """The curves of a figure with sliders: a column for each slider, for x and for each curve."""
    sliders = [(control["label"], control["values"]) for control in data["controls"]]
    x, curves = data["x"], {curve["name"]: curve["values"] for curve in data["curves"]}
    lines: list[dict[str, Any]] = []

    def walk(at: dict[str, Any], values: dict[str, Any], left: list[tuple[str, list[float]]]) -> None:
        if left:
            (label, steps), *rest = left
            for k, step in enumerate(steps):
                walk(at | {label: step}, {name: curve[k] for name, curve in values.items()}, rest)
        else:
            for k, place in enumerate(x["values"]):
                lines.append(at | {x["label"]: place} | {name: curve[k] for name, curve in values.items()})

    walk({}, curves, sliders)
    return table([*(label for label, _ in sliders), x["label"], *curves], lines)


class FigureData(SphinxTransform):
    """Put the link under each figure that has data."""

    default_priority = 420  # after notebook_figures.py has made the figures

    def apply(self, **kwargs: Any) -> None:
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return
        figures = {name: figure for figure in self.document.findall(nodes.figure) for name in figure["names"] + figure["ids"]}
        for name, file, _ in data_of(json.loads(path.read_text("utf-8")), path.stem):
            if name in figures:
                link = nodes.reference("", "Data (CSV)", refuri=f"{FOLDER}/{file}.csv", internal=True)
                legend = next(iter(figures[name].findall(nodes.legend)), None)
                line = nodes.paragraph("", "", link, classes=["figure-data"])
                if legend is None:
                    figures[name] += nodes.legend("", line)
                else:
                    legend += line


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the files; a name that two figures have ends the build."""
    if error is not None or app.builder.name != "html":
        return
    written: dict[Path, str] = {}
    for docname in sorted(app.env.found_docs):
        path = Path(app.env.doc2path(docname))
        if path.suffix != ".ipynb":
            continue
        for _, name, text in data_of(json.loads(path.read_text("utf-8")), path.stem):
            target = Path(app.outdir, docname).parent / FOLDER / f"{name}.csv"
            if target in written:
                raise ExtensionError(f"{path.name} and {written[target]} both have a figure {name}: rename one of them")
            written[target] = path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8", newline="\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(FigureData)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
