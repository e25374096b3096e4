"""One style for every figure, one colour and line style for every placement, and figures that can be read aloud."""

from __future__ import annotations

import ast
import colorsys
import inspect
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from IPython.display import display
from matplotlib.figure import Figure

from resnorm_lib.figure_data import extract
from resnorm_lib.placements import PLACEMENTS

__all__ = ["figure", "show", "show_source", "style", "table"]

# Okabe and Ito's palette, in pairs whose greyscale values differ, and a dash pattern and a marker for each name:
# a line is told from its neighbour without colour as well.
_STYLES: dict[str, dict[str, Any]] = {
    "residual": {"color": "#000000", "linestyle": (0, (1, 1.2)), "marker": "s"},
    "pre": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "post": {"color": "#D55E00", "linestyle": (0, (5, 1.5)), "marker": "^"},
    "layer_norm": {"color": "#005F73", "linestyle": "-", "marker": "h"},
    "rms_norm": {"color": "#CC79A7", "linestyle": (0, (4, 1.5)), "marker": "D"},
    "dyt": {"color": "#7A5C00", "linestyle": (0, (2, 1)), "marker": "X"},
}
# The other placements take theirs from their place in the table. Markers and dashes are ten and seven, without a
# common divisor: seventy rows pass before a pair comes again. None of the markers is one of the above.
_MARKERS = "v<>p*XPd8H"
_DASHES = ("-", (0, (6, 1.5)), (0, (2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (1, 2)), (0, (3, 1, 3, 3)), (0, (9, 2, 1, 1, 1, 2)))
_LUMINANCES = (0.24, 0.04, 0.14, 0.08)  # on white: contrasts of 3.6, 11.7, 5.5 and 8.1
_GOLDEN = 0.6180339887
_RC: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
_DPI = 140


def style(name: str) -> dict[str, Any]:
    """Colour, line style and marker of a placement or a norm, the same in every chapter and for every order of calls.

    A row added at the end of the table of placements has a style at once, and changes no other's.

    Args:
        name: as in ``resnorm_lib.placements`` or ``resnorm_lib.norms``.

    Returns:
        Keyword arguments for ``Axes.plot``.

    Raises:
        ValueError: the name has no style.
    """
    if name in _STYLES:
        return dict(_STYLES[name])
    if name not in PLACEMENTS:
        names = ", ".join(dict.fromkeys([*_STYLES, *PLACEMENTS]))
        raise ValueError(f"{name!r} has no style; use one of {names}, or give it a row in figures.py")
    place = list(PLACEMENTS).index(name)
    look = {"linestyle": _DASHES[place % len(_DASHES)], "marker": _MARKERS[place % len(_MARKERS)]}
    return {"color": _colour(place)} | look


def _colour(place: int) -> str:
    """A colour of its own for each place: hues by the golden ratio, four luminances in turn (those of WCAG 2)."""

    def parts(lightness: float) -> tuple[float, float, float]:
        return colorsys.hls_to_rgb(place * _GOLDEN % 1, lightness, 0.8)

    def luminance(lightness: float) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts(lightness)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    target = _LUMINANCES[place % len(_LUMINANCES)]
    lightness = next(step / 256 for step in range(257) if luminance(step / 256) >= target)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts(lightness))


def figure(columns: int = 1, rows: int = 1, *, height: float = 3.4, **options: Any) -> tuple[Figure, Any]:
    """A figure of the book's width with a grid of axes.

    It is not one of pyplot's, so that nothing shows it before `show` does.

    Args:
        columns, rows: the grid.
        height: height of one row, in inches; the width is 7.2 inches.
        **options: passed on to ``matplotlib.figure.Figure.subplots``.

    Returns:
        The figure, and one ``Axes`` or an array of them.
    """
    matplotlib.rcParams.update(_RC)  # for the whole session: legends and labels are made after this call
    fig = Figure(figsize=(7.2, height * rows), layout="constrained")
    return fig, fig.subplots(rows, columns, **options)


def show(fig: Figure, *, alt: str, caption: str, name: str = "") -> None:
    """Put a figure on the page with its alternative text and its caption.

    The picture is a PNG on an opaque white ground, so that it reads on a dark page; the alternative text
    travels in the output's metadata under ``image/png``, and the caption follows as Markdown, so that it
    reads the same in HTML, Jupyter and Colab. What the figure shows travels in the caption's metadata, as
    `figure_data.extract` reads it, and the built page offers it as a file.

    Args:
        fig: the figure.
        alt: what the picture shows, in one or two sentences, for those who do not see it.
        caption: what to look at, in Markdown.
        name: target for references in the book's pages, ``[](#fig-name)``.

    Raises:
        ValueError: ``alt`` is too short to say what the picture shows, or ``caption`` is empty.
    """
    if len(alt.split()) < 8:
        raise ValueError(f"alt = {alt!r} is too short: say in at least eight words what the picture shows")
    if not caption.strip():
        raise ValueError("caption is empty: say what the reader should look at")
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    display({"image/png": buffer.getvalue()}, raw=True, metadata={"image/png": {"alt": alt}})
    mark = {"caption": True, "data": extract(fig)} | ({"name": name} if name else {})
    display({"text/markdown": f"*{caption}*", "text/plain": caption}, raw=True, metadata={"resnorm": mark})


def show_source(function: Callable[..., Any]) -> None:
    """Put the code of a library function on the page, without its docstring and comments.

    What the reader sees is the code that runs.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:]
    code = ast.unparse(definition)
    display({"text/markdown": f"```python\n{code}\n```", "text/plain": code}, raw=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> None:
    """Put a table on the page, as Markdown: it reads in HTML, Jupyter, Colab and a terminal.

    Args:
        header: one cell for each column.
        rows: as many cells in each; numbers are shown as ``str`` writes them.
        caption: stands below, in Markdown; none where empty.
    """
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    if caption:
        text += f"\n\n*{caption}*"
    display({"text/markdown": text, "text/plain": text}, raw=True)
