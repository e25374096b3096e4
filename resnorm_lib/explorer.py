"""A figure whose parameters the reader can move: sliders in the built pages, a still picture everywhere else."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from IPython.display import display
from matplotlib.cbook import normalize_kwargs
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from numpy.typing import ArrayLike, NDArray

from resnorm_lib import figures

__all__ = ["explore"]

# Dark enough on white, and told apart by their dashes where colour does not help; six and seven have no common divisor.
_COLOURS = ("#0072B2", "#D55E00", "#000000", "#A3457E", "#00795A", "#7A5C00")
_DASHES: tuple[Any, ...] = (
    *("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (2.5, 1.2)), (0, (9, 2)), (0, (3, 1, 3, 3))),
)
_NAMED_DASHES: dict[str, tuple[float, ...]] = {
    "-": (), "solid": (), "--": (3.7, 1.6), "dashed": (3.7, 1.6), ":": (1, 1.65), "dotted": (1, 1.65),
    "-.": (6.4, 1.6, 1, 1.6), "dashdot": (6.4, 1.6, 1, 1.6),
}  # fmt: skip
_LOGS = ("", "x", "y", "xy")
_MOST = 30_000  # numbers in one figure: the page carries all of them, and stays light to load
_DIGITS = 4
_FAINT = 0.22  # how opaque the lines of the slider's other values are
_FAINT_LINES, _FAINT_CURVES = 5, 3  # how many of them a curve has, and up to how many curves have them
_MARKED = 12  # about so many markers on a line

_Range = tuple[float, float]


def explore(
    controls: Mapping[str, Sequence[float]],
    x: tuple[str, ArrayLike],
    curves: Mapping[str, ArrayLike],
    y_label: str,
    *,
    start: Sequence[int] | None = None,
    log: str = "",
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    alt: str,
    caption: str,
    name: str = "",
) -> None:
    """Show curves that depend on one or two parameters which the reader can move.

    In a notebook, on paper and without scripts it is a picture at ``start``, shown by `figures.show`, with faint lines for
    other values of the first control. The curves travel in the metadata of a line of text below it, under
    ``resnorm.explorer``, with four significant digits and ``null`` for a gap; from them the built page draws the same
    figure with a slider for each control. The range of the axes is that of all values, so that a motion means something.
    Labels are plain text, also in the picture: σ², not TeX.

    Used in ``ch_why_depth_fails`` and ``ch_residual_derivation``.

    Args:
        controls: one or two sliders, from their labels to the values that they take.
        x: the label of the horizontal axis, and its values (points).
        curves: from the name of each curve to its values, (values of control 1, [values of control 2,] points); what is
            not finite is a gap.
        y_label: the label of the vertical axis.
        start: the place of each control's value in the picture, counted from 0; the middle where not given.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        styles: from names of curves to keyword arguments of ``Axes.plot``, as `figures.style` returns them; the other
            curves differ by colour and by dashes.
        alt: as in `figures.show`: what the picture shows, in one or two sentences.
        caption: as in `figures.show`: what to look at, in Markdown; it should be true of all positions of the sliders.
        name: as in `figures.show`: target for references, ``fig-…``.

    Raises:
        ValueError: an argument is not as described, or there are more than 30,000 values of curves, or none that is finite.
    """
    _check_controls(controls)
    axis = _check_x(x)
    arrays = _check_curves(controls, axis, curves)
    _check_labels(*controls, x[0], *curves, y_label)
    at = _check_start(controls, start)
    if log not in _LOGS:
        raise ValueError(f"log = {log!r} is not allowed: use \"\", \"x\", \"y\" or \"xy\"")
    _check_log(log, x[0], axis, arrays)
    looks = _looks(arrays, styles or {}, len(axis))
    x_range, y_range = _range(axis, "x" in log, 0.02), _range(np.stack([*arrays.values()]), "y" in log, 0.05)
    first = len(next(iter(controls.values())))
    others = _others(first, at[0]) if len(curves) <= _FAINT_CURVES else []
    setting = ", ".join(f"{label} = {_text(values[k])}" for (label, values), k in zip(controls.items(), at, strict=True))

    fig, axes = figures.figure(height=3.6)
    for curve, array in arrays.items():
        lines = array if len(at) == 1 else array[:, at[1]]
        for k in others:
            axes.plot(axis, lines[k], **looks[curve] | {"alpha": _FAINT, "linewidth": 1.2, "marker": None})
        axes.plot(axis, lines[at[0]], **looks[curve])
    handles, labels = [Line2D([], [], **looks[curve]) for curve in arrays], list(arrays)
    if others:
        handles.append(Line2D([], [], color="black", alpha=_FAINT, linewidth=1.2))
        labels.append(f"other values of {next(iter(controls))}")
    columns = max(1, min(len(labels), int(7 / (0.65 + 0.068 * max(map(len, labels))))))
    fig.legend(handles, labels, loc="outside upper left", title=setting, alignment="left", ncols=columns)
    axes.set(xlabel=x[0], ylabel=textwrap.fill(y_label, 42), xlim=x_range, ylim=y_range)
    axes.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    figures.show(fig, alt=alt, caption=caption, name=name)

    data = {
        "controls": [
            {"label": label, "values": [_short(v, 6) for v in values], "start": k}
            for (label, values), k in zip(controls.items(), at, strict=True)
        ],
        "x": _axis(x[0], "x" in log, x_range) | {"values": [_short(v, 6) for v in axis]},
        "y": _axis(y_label, "y" in log, y_range),
        "curves": [{"name": curve, "values": _rounded(a)} | _drawn(looks[curve]) for curve, a in arrays.items()],
        "faint": [*others, at[0]] if others else [],
    }
    moves = " and ".join(controls)
    text = f"The picture shows {setting}. In the built book, {'a slider moves' if len(at) == 1 else 'sliders move'} {moves}."
    display({"text/plain": text}, raw=True, metadata={"resnorm": {"explorer": data}})


def _check_controls(controls: Mapping[str, Sequence[float]]) -> None:
    if not 1 <= len(controls) <= 2:
        raise ValueError(f"controls has {len(controls)} entries ({', '.join(controls)}): give one or two sliders")
    for label, values in controls.items():
        array = np.asarray(values, float)
        if array.ndim != 1 or not array.size:
            raise ValueError(f"controls[{label!r}] has shape {array.shape}: give a list of at least one number")
        if not np.isfinite(array).all():
            raise ValueError(f"controls[{label!r}] holds {array[~np.isfinite(array)][0]}: give finite numbers")


def _check_x(x: tuple[str, ArrayLike]) -> NDArray[np.float64]:
    if not isinstance(x, tuple | list) or len(x) != 2 or not isinstance(x[0], str):
        raise ValueError(f"x is of type {type(x).__name__}: give a pair of a label and values")
    axis = np.array(x[1], float)
    if axis.ndim != 1 or len(axis) < 2 or not np.isfinite(axis).all() or axis.min() == axis.max():
        raise ValueError(f"the values of x, {x[0]!r}, have shape {axis.shape}: give a list of finite numbers that differ")
    return axis


def _check_curves(
    controls: Mapping[str, Sequence[float]], axis: NDArray[np.float64], curves: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.float64]]:
    if not curves:
        raise ValueError("curves is empty: give at least one curve")
    arrays = {curve: np.array(values, float) for curve, values in curves.items()}
    shape = (*(len(values) for values in controls.values()), len(axis))
    for curve, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"curves[{curve!r}] has shape {array.shape}: it must be {shape}, the controls and then x")
        array[~np.isfinite(array)] = np.nan
    total = len(arrays) * math.prod(shape)
    if total > _MOST:
        raise ValueError(f"the curves have {total} values: give at most {_MOST}, with fewer positions or points")
    if all(np.isnan(array).all() for array in arrays.values()):
        raise ValueError(f"no curve ({', '.join(arrays)}) has a finite value: give at least one")
    return arrays


def _check_labels(*labels: str) -> None:
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise ValueError(f"the label {label!r} is empty: say in words what it stands for")
        if "$" in label or "\\" in label:
            raise ValueError(f"the label {label!r} holds TeX, which a page does not set in a figure: write σ² and the like")


def _check_start(controls: Mapping[str, Sequence[float]], start: Sequence[int] | None) -> tuple[int, ...]:
    if start is None:
        return tuple(len(values) // 2 for values in controls.values())
    if isinstance(start, Mapping) or np.ndim(start) != 1 or len(start) != len(controls):
        raise ValueError(f"start = {start!r}: give one index for each control ({', '.join(controls)})")
    for (label, values), k in zip(controls.items(), start, strict=True):
        if int(k) != k or not 0 <= k < len(values):
            raise ValueError(f"start = {start!r} is out of range: the index of {label!r} runs from 0 to {len(values) - 1}")
    return tuple(int(k) for k in start)


def _check_log(log: str, label: str, axis: NDArray[np.float64], arrays: Mapping[str, NDArray[np.float64]]) -> None:
    if "x" in log and axis.min() <= 0:
        raise ValueError(f"x, {label!r}, holds {axis.min():g}, which a logarithmic axis cannot show: give positive values")
    for curve, array in arrays.items() if "y" in log else ():
        if (array <= 0).any():
            raise ValueError(
                f"curves[{curve!r}] holds {np.nanmin(array):g}, which a logarithmic axis cannot show: "
                "give positive values, and NaN for a gap"
            )


def _range(values: NDArray[np.float64], log: bool, margin: float) -> _Range:
    """The limits of an axis: those of all values, and a margin, a fraction of the length."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if log:
        low, high = math.log10(low), math.log10(high)
    room = margin * (high - low) if high > low else 0.5 if log else abs(low) / 2 or 0.5
    low, high = low - room, high + room
    return (10**low, 10**high) if log else (low, high)


def _others(count: int, at: int) -> list[int]:
    """Places of a few other values of a control, with its first and its last."""
    spread = {round(k) for k in np.linspace(0, count - 1, min(count, _FAINT_LINES + 1))}
    return sorted(spread - {at})


def _looks(
    arrays: Mapping[str, NDArray[np.float64]], styles: Mapping[str, Mapping[str, Any]], points: int
) -> dict[str, dict[str, Any]]:
    """Keyword arguments of ``Line2D`` for each curve: its style, or one of the cycle's that is its own."""
    for curve in styles:
        if curve not in arrays:
            raise ValueError(f"styles[{curve!r}] is the style of no curve: the curves are {', '.join(arrays)}")
    cycle = ({"color": _COLOURS[k % len(_COLOURS)], "linestyle": _DASHES[k % len(_DASHES)]} for k in range(10_000))
    looks = {}
    for curve in arrays:
        look = normalize_kwargs(dict(styles[curve]), Line2D) if curve in styles else next(cycle)
        look = {"color": _COLOURS[0], "linestyle": "-", "linewidth": 1.8, "markersize": 4.5} | look
        looks[curve] = {key: value for key, value in look.items() if key != "label"}
        looks[curve].setdefault("markevery", max(1, round(points / _MARKED)))
    return looks


def _axis(label: str, log: bool, limits: _Range) -> dict[str, Any]:
    return {"label": label, "log": log, "low": _short(limits[0], 6), "high": _short(limits[1], 6)}


def _drawn(look: Mapping[str, Any]) -> dict[str, Any]:
    """What a page needs to draw a line: dashes in units of its width, and its marker as the path of an SVG."""
    line = look["linestyle"]
    dash = line[1] or () if isinstance(line, tuple) else _NAMED_DASHES.get(line)
    marker = "" if look.get("marker") in (None, "", " ", "None", "none") else _marker_path(look["marker"], look["markersize"])
    return {
        "color": to_hex(look["color"]),
        "width": look["linewidth"],
        "dash": None if dash is None else list(dash),  # null for markers without a line
        "marker": marker,
        "every": look["markevery"],
    }


def _marker_path(marker: Any, size: float) -> str:
    """One of matplotlib's markers as the path of an SVG, in points, the y axis downwards."""
    shape = MarkerStyle(marker)
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    pieces = []
    for points, code in shape.get_path().transformed(shape.get_transform()).iter_segments():
        numbers = [] if code == Path.CLOSEPOLY else [f"{v:.2f}".rstrip("0").rstrip(".") for v in points * size * _flip(points)]
        pieces.append(letters[code] + " ".join(numbers))
    return "".join(pieces).replace("-0 ", "0 ")


def _flip(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.tile([1.0, -1.0], len(points) // 2)


def _rounded(values: NDArray[np.float64]) -> list[Any]:
    """Nested lists of the numbers with `_DIGITS` significant digits, None for a gap."""
    return [_rounded(row) if row.ndim else None if np.isnan(row) else _short(float(row), _DIGITS) for row in values]


def _short(value: float, digits: int) -> float:
    """A number with so many significant digits, whole ones without a point: as JSON it is short."""
    rounded = float(f"{value:.{digits}g}")
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return rounded


def _text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"
