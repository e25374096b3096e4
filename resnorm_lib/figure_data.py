"""The numbers behind a figure, read from its axes, so that the page can offer them as a file.

What is drawn in data coordinates is read: lines, points, error bars, bands, bars, steps and images. Guides that span the
axes, such as those of ``axhline``, are not data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from matplotlib.category import StrCategoryLocator
from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import FixedLocator, LogFormatter, ScalarFormatter

__all__ = ["extract"]

_DIGITS = 6  # significant ones: more than a picture shows, fewer than two machines may differ in


def extract(fig: Figure) -> list[dict[str, Any]]:
    """The data of each panel of a figure, in the order in which the panels were made.

    Numbers have six significant digits; one that is not finite is ``None``.

    Returns:
        One mapping for each panel that shows data: ``title``, ``x`` and ``y`` (the labels of its axes) and ``series``. A
        series has ``name`` (of the legend, or that of a named series of its colour; else empty), ``kind``, and columns of
        equal length: ``x``, ``y``, ``low`` and ``high`` (of y), ``x_low``, ``x_high`` and ``category`` (the words at a tick
        of an axis of categories).
        An ``image`` has ``x``, ``y`` and ``value``, one row of values for each y.
    """
    drawn = [(axes, list(_series(axes))) for axes in fig.axes if axes.get_label() != "<colorbar>"]
    everywhere = _names(part for _, series in drawn for part in series)
    panels = []
    for axes, series in drawn:
        names = _names(series) or everywhere  # one legend may serve all panels
        found = []
        for artist, kind, columns in series:
            name = _name(artist) or ("" if kind == "image" else names.get(_colour(artist), ""))
            found.append({"name": name, "kind": kind} | _words(axes, columns) | {key: _rounded(column) for key, column in columns.items()})
        if found:
            panels.append({"title": axes.get_title(), "x": axes.get_xlabel(), "y": axes.get_ylabel(), "series": found})
    return panels


def _names(series: Iterable[tuple[Any, str, dict[str, Any]]]) -> dict[str, str]:
    """Names of the legend by colour."""
    found = {_colour(artist): _name(artist) for artist, *_ in series if _name(artist)}
    return {colour: name for colour, name in found.items() if colour}


def _name(artist: Any) -> str:
    """What the legend calls it; matplotlib begins the labels that it makes itself with an underscore."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _colour(artist: Any) -> str:
    """Its colour without the transparency: the band around a line has that of the line."""
    if isinstance(artist, ErrorbarContainer | BarContainer):
        artist = next((part for part in artist.get_children() if part is not None), None)
    for getter in ("get_color", "get_facecolor"):
        if hasattr(artist, getter):
            colour = getattr(artist, getter)()
            if isinstance(colour, np.ndarray) and colour.ndim == 2:
                colour = colour[0] if len(colour) == 1 else None
            return to_hex(colour) if colour is not None else ""
    return ""


def _series(axes: Any) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """All that is drawn: the artist, its kind and its columns."""
    inside: set[Any] = set()  # what belongs to an error bar is no line of its own
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, caps, bars = container.lines
            inside |= {line, *caps, *bars}
            yield container, "error bars", _error_bars(container)
        elif isinstance(container, BarContainer):
            yield container, "bars", _bars(container)
    for line in axes.lines:
        if line not in inside and line.get_transform() is axes.transData:
            yield line, "line", _places(line.get_data())
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            yield patch, "steps", {"x_low": edges[:-1], "x_high": edges[1:], "y": values}
    for drawn in axes.collections:
        if drawn in inside:
            continue
        if isinstance(drawn, PathCollection) and drawn.get_offset_transform() is axes.transData:
            yield drawn, "points", _places(np.ma.asarray(drawn.get_offsets()).T)
        elif isinstance(drawn, LineCollection) and drawn.get_transform() is axes.transData:
            yield from ((drawn, "line", _places(part.T)) for part in drawn.get_segments())
        elif isinstance(drawn, QuadMesh):
            yield drawn, "image", _mesh(drawn)
        elif isinstance(drawn, PolyCollection):
            yield from ((drawn, "band", band) for path in drawn.get_paths() if (band := _band(path.vertices)))
    for image in axes.images:
        if np.ndim(image.get_array()) == 2:
            yield image, "image", _image(image)


def _places(data: Any) -> dict[str, Any]:
    """x and y, with NaN where they are masked."""
    return {key: np.ma.filled(np.ma.asarray(part, float), np.nan) for key, part in zip("xy", data, strict=True)}


def _error_bars(container: Any) -> dict[str, Any]:
    line, _, bars = container.lines
    columns: dict[str, Any] = {}
    for bar, along in zip(bars, [0] * container.has_xerr + [1] * container.has_yerr, strict=True):
        ends = np.array(bar.get_segments(), float).reshape(-1, 2, 2)
        low, high = ("x_low", "x_high") if along == 0 else ("low", "high")
        columns |= {"x": ends[:, 0, 0], "y": ends[:, 0, 1], low: ends[:, 0, along], high: ends[:, 1, along]}
    return columns | (_places(line.get_data()) if line is not None else {})


def _bars(container: Any) -> dict[str, Any]:
    boxes = np.array([bar.get_bbox().get_points().ravel() for bar in container.patches], float).reshape(-1, 4)
    if container.orientation == "horizontal":
        return {"x": boxes[:, 2], "y": boxes[:, [1, 3]].mean(1)}
    return {"x": boxes[:, [0, 2]].mean(1), "y": boxes[:, 3]}


def _mesh(drawn: Any) -> dict[str, Any]:
    corners = drawn.get_coordinates()
    middle = (corners[1:, 1:] + corners[:-1, :-1]) / 2
    return {"x": middle[0, :, 0], "y": middle[:, 0, 1], "value": np.ma.filled(drawn.get_array(), np.nan).reshape(middle.shape[:2])}


def _image(image: Any) -> dict[str, Any]:
    pixels: Any = np.ma.filled(np.ma.asarray(image.get_array(), float), np.nan)
    left, right, bottom, top = image.get_extent()
    first, last = (bottom, top) if image.origin == "lower" else (top, bottom)
    down, across = ((np.arange(n) + 0.5) / n for n in pixels.shape)
    return {"x": left + (right - left) * across, "y": first + (last - first) * down, "value": pixels}


def _band(corners: Any) -> dict[str, Any]:
    """What ``fill_between`` was given: its outline runs along one edge and back along the other; empty for another shape."""
    count = (len(corners) - 3) // 2
    out, back = corners[1 : count + 1], corners[count + 2 : -1][::-1]
    for at, low, high, across in ((0, "low", "high", "x"), (1, "x_low", "x_high", "y")):
        if count > 0 and len(corners) == 2 * count + 3 and np.array_equal(out[:, at], back[:, at]):
            return {across: out[:, at], low: out[:, 1 - at], high: back[:, 1 - at]}
    return {}


def _words(axes: Any, columns: dict[str, Any]) -> dict[str, list[str]]:
    """The column of words of a series on an axis of categories; it may stand a bit beside its tick."""
    for axis, key in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        words = _categories(axis)
        if words and key in columns:
            places = np.clip(np.rint(np.nan_to_num(columns[key])).astype(int), 0, len(words) - 1)
            return {"category": [words[place] for place in places]}
    return {}


def _categories(axis: Any) -> list[str]:
    """The words at 0, 1, 2 and so on, where an axis has words there and nothing else."""
    locator, formatter = axis.get_major_locator(), axis.get_major_formatter()
    if not isinstance(locator, FixedLocator | StrCategoryLocator) or isinstance(formatter, ScalarFormatter | LogFormatter):
        return []
    places = [float(place) for place in locator()]
    words = formatter.format_ticks(places)
    return words if places == list(range(len(places))) and all(words) else []


def _rounded(values: Any) -> Any:
    if np.ndim(values) > 1:
        return [_rounded(row) for row in values]
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in map(float, values)]
