"""Figures with sliders: what they leave in a notebook, and what a reader meets on the built page."""

from __future__ import annotations

import json
import random
import re
import shutil
from base64 import b64encode
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest
import site_checks as check
import torch
from test_site import browser, built, visit  # noqa: F401

from resnorm_lib import explorer, figures

matplotlib.use("agg")
ASSETS = Path(__file__).resolve().parents[1] / "book" / "_assets"
ALT = "Two lines against the depth: one falls steeply, the other stays near one."
DEPTH = np.arange(1, 31)
GAINS, WIDTHS = [0.5, 0.75, 1.0, 1.25], [16, 32, 64]
PLAIN = np.array([[gain**DEPTH * (1 + 1 / width) for width in WIDTHS] for gain in GAINS])
SUM = np.array([[1 + gain * DEPTH / width for width in WIDTHS] for gain in GAINS])
SUM[:, :, 10:15] = np.nan
PLAIN[-1, :, -5:] = SUM[-1, :, -5:] = np.nan  # lines that end early
TWO = {
    "controls": {"gain σ": GAINS, "width d": WIDTHS},
    "x": ("depth (blocks)", DEPTH),
    "curves": {"plain": PLAIN, "residual": SUM},
    "y_label": "gradient norm",
    "log": "y",
    "start": (1, 2),
    "styles": {"residual": figures.style("residual")},
}
SHARE = np.linspace(-1, 1, 21)
ONE = {
    "controls": {"power": [1, 2, 3]},
    "x": ("share", SHARE),
    "curves": {"first <b>": np.array([SHARE**k for k in (1, 2, 3)]), "second": np.array([SHARE - k for k in (1, 2, 3)])},
    "y_label": "output",
}
SAID = {"alt": ALT, "caption": "Look at the lines."}


def shown(**arguments):
    """The outputs of a call: pairs of data and metadata."""
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        for module in figures, explorer:
            patch.setattr(module, "display", lambda data, raw, metadata=None: outputs.append((data, metadata)))
        explorer.explore(**SAID | arguments)
    return outputs


def data_of(**arguments):
    return shown(**arguments)[-1][1]["resnorm"]["explorer"]


def test_outputs():
    (image, metadata), (caption, mark), (line, data) = shown(**TWO, name="fig-two")
    assert metadata == {"image/png": {"alt": ALT}} and image["image/png"][:4] == b"\x89PNG"
    assert caption["text/markdown"] == "*Look at the lines.*" and mark["resnorm"]["name"] == "fig-two"
    text = "The picture shows gain σ = 0.75, width d = 64. In the built book, sliders move gain σ and width d."
    assert line == {"text/plain": text}  # nothing measured, which nbval would compare
    assert list(data) == ["resnorm"] and list(data["resnorm"]) == ["explorer"]


def test_data_are_valid_json_rounded_and_with_gaps():
    curves = {"plain": PLAIN / 3, "residual": SUM.copy()}
    curves["residual"][0, 0, 0] = np.inf
    data = data_of(**TWO | {"curves": curves})
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert curves["residual"][0, 0, 0] == np.inf  # the caller's array is left alone
    for curve, array in zip(data["curves"], curves.values(), strict=True):
        stored = np.array(curve["values"], float)
        assert stored.shape == (4, 3, 30)
        assert (np.isnan(stored) == ~np.isfinite(array)).all()
        np.testing.assert_allclose(stored, np.where(np.isfinite(array), array, np.nan), rtol=5e-4)
    digits = re.findall(r"[1-9]\d*", re.sub(r"e[-+]\d+|\.|\b0\b", "", json.dumps(data["curves"][0]["values"])))
    assert max(map(len, digits)) == 4
    assert data["curves"][1]["values"][0][0][0] is None and data["curves"][1]["values"][0][0][10] is None
    assert [(c["label"], c["values"], c["start"]) for c in data["controls"]] == [("gain σ", GAINS, 1), ("width d", WIDTHS, 2)]
    assert data["x"]["values"] == list(DEPTH) and data["x"]["label"] == "depth (blocks)" and not data["x"]["log"]


def test_axes_hold_all_positions():
    data = data_of(**TWO)
    assert data["y"]["log"] and 0 < data["y"]["low"] < np.nanmin(PLAIN) and data["y"]["high"] > np.nanmax([PLAIN, SUM])
    data = data_of(**ONE)
    assert data["y"]["low"] < -4 and 1 < data["y"]["high"] < 1.5 and not data["y"]["log"]
    flat = data_of(**ONE | {"curves": {"flat": np.full((3, 21), 2.0)}})
    assert flat["y"]["low"] < 2 < flat["y"]["high"]
    flat = data_of(**ONE | {"curves": {"flat": np.full((3, 21), 2.0)}, "log": "y"})
    assert 0 < flat["y"]["low"] < 2 < flat["y"]["high"]


def test_middle_is_the_start_of_one_slider():
    outputs = shown(**ONE)
    assert outputs[-1][1]["resnorm"]["explorer"]["controls"][0]["start"] == 1
    assert outputs[-1][0]["text/plain"] == "The picture shows power = 2. In the built book, a slider moves power."
    assert shown(**ONE, start=[1])[0] == outputs[0]
    assert shown(**ONE, start=[2])[0] != outputs[0]


@pytest.mark.parametrize(("arguments", "place"), [(TWO, (1, 2)), (ONE, (1,))])
def test_picture_shows_the_start_and_faintly_the_others(arguments, place, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "show", lambda fig, **_: drawn.append(fig))
    monkeypatch.setattr(explorer, "display", lambda *_, **__: None)
    explorer.explore(**arguments | SAID)
    (axes,) = drawn[0].axes
    clear = [line for line in axes.lines if line.get_alpha() is None]
    for line, values in zip(clear, arguments["curves"].values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), values[place])
        np.testing.assert_array_equal(line.get_xdata(), arguments["x"][1])
    count = len(next(iter(arguments["controls"].values()))) - 1
    faint = [line.get_ydata() for line in axes.lines if line.get_alpha()]
    first = next(iter(arguments["curves"].values()))
    for line, k in zip(faint[:count], [k for k in range(count + 1) if k != place[0]], strict=True):
        np.testing.assert_array_equal(line, first[(k, *place[1:])])
    assert axes.get_yscale() == ("log" if arguments.get("log") else "linear") and axes.get_xscale() == "linear"
    assert (axes.get_xlabel(), axes.get_ylabel()) == (arguments["x"][0], arguments["y_label"])
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert legend == [*arguments["curves"], f"other values of {next(iter(arguments['controls']))}"]
    assert drawn[0].legends[0].get_title().get_text() == ("gain σ = 0.75, width d = 64" if len(place) == 2 else "power = 2")


def test_looks():
    plain, residual = data_of(**TWO)["curves"]
    style = figures.style("residual")
    assert residual["color"] == style["color"].lower() and residual["dash"] == list(style["linestyle"][1])
    assert residual["marker"].startswith("M") and plain["marker"] == "" and plain["dash"] == []
    curves = {f"curve {k}": PLAIN[:, 0] for k in range(8)}
    many = data_of(**ONE | {"controls": {"power": GAINS}, "x": TWO["x"], "curves": curves})
    assert len({(curve["color"], str(curve["dash"])) for curve in many["curves"]}) == 8
    assert len({str(curve["dash"]) for curve in many["curves"][:6]}) == 6
    assert many["faint"] == [] and data_of(**TWO)["faint"] == [0, 2, 3, 1]
    dots = data_of(**ONE | {"styles": {"second": {"ls": "none", "marker": "o", "c": "k", "label": "not this"}}})["curves"][1]
    assert dots["dash"] is None and dots["color"] == "#000000" and dots["name"] == "second"
    assert "C" in dots["marker"]  # a circle is made of curves
    up = data_of(**TWO | {"styles": {"plain": figures.style("post")}})["curves"][0]
    assert up["marker"].startswith("M0 -")  # the triangle points up, where an SVG's y is negative


def test_same_bytes_and_nothing_touched():
    before = [array.copy() for array in (PLAIN, SUM, DEPTH)]
    states = str(np.random.get_state()), random.getstate(), torch.get_rng_state()
    style = dict(TWO["styles"]["residual"])
    first, second = shown(**TWO), shown(**TWO)
    assert first == second
    for array, copy in zip((PLAIN, SUM, DEPTH), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert str(np.random.get_state()) == states[0] and random.getstate() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2]) and TWO["styles"]["residual"] == style


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"controls": {}}, r"controls has 0 entries .*: give one or two sliders"),
        ({"controls": {"a": [1], "b": [1], "c": [1]}}, r"controls has 3 entries \(a, b, c\): give one or two"),
        ({"controls": {"power": []}}, r"controls\['power'\] has shape \(0,\): give a list of at least one number"),
        ({"controls": {"power": [1, 2, np.nan]}}, r"controls\['power'\] holds nan: give finite numbers"),
        ({"x": SHARE}, "x is of type ndarray: give a pair of a label and values"),
        ({"x": ("share", [1.0])}, r"'share', have shape \(1,\): give a list of finite numbers that differ"),
        ({"x": ("share", [np.nan, *SHARE[1:]])}, "finite numbers"),
        ({"curves": {}}, "curves is empty: give at least one"),
        ({"curves": {"first": np.ones((21, 3))}}, r"curves\['first'\] has shape \(21, 3\): it must be \(3, 21\)"),
        ({"curves": {"first": np.full((3, 21), np.nan)}}, r"no curve \(first\) has a finite value"),
        ({"start": (3,)}, r"start = \(3,\) is out of range: the index of 'power' runs from 0 to 2"),
        ({"start": (-1,)}, "out of range"),
        ({"start": (0, 0)}, r"start = \(0, 0\): give one index for each control \(power\)"),
        ({"log": "z"}, "log = 'z' is not allowed: use"),
        ({"log": "x"}, "x, 'share', holds -1, which a logarithmic axis cannot show"),
        ({"log": "y"}, r"curves\['first <b>'\] holds -1, which a logarithmic axis cannot show: give positive"),
        ({"y_label": r"norm $\sigma$"}, r"holds TeX, which a page does not set in a figure"),
        ({"y_label": " "}, "the label ' ' is empty"),
        ({"styles": {"third": {}}}, r"styles\['third'\] is the style of no curve: the curves are first <b>, second"),
        ({"x": ("share", np.arange(9000)), "curves": {"a": np.ones((3, 9000)), "b": np.ones((3, 9000))}}, "54000 values"),
        ({"caption": ""}, "caption is empty"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message) as error:
        shown(**ONE | change)
    assert str(error.value).count("\n") == 0


# From here on: the built page.


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with both figures, built by the extension; beside it the two pictures and the script."""
    folder = tmp_path_factory.mktemp("explorer")
    (folder / "assets").mkdir()
    for name in "explorer.js", "book.css":
        shutil.copy(ASSETS / name, folder / "assets")
    outputs = []
    for data, metadata in [*shown(**TWO, name="fig-two"), *shown(**ONE)]:
        if "image/png" in data:
            data = {"image/png": b64encode(data["image/png"]).decode()}
        outputs.append(nbformat.v4.new_output("display_data", data, metadata=metadata))
    files = {"html_css_files": ["book.css"], "html_js_files": [["explorer.js", {"defer": "defer"}]]}
    text, warnings = built(folder, outputs, ["hide-input"], html_static_path=["assets"], html_sidebars={"**": []}, **files)
    assert warnings == ""
    assert "The picture shows" not in text and text.count("<figure") == 2
    return folder / "out" / "ch_one.html"


def paths(opened, figure=0):
    """The lines that are drawn, as the paths of the SVG."""
    drawing = opened.page.locator("figure").nth(figure).locator("svg[role=img]")
    return [path.get_attribute("d") for path in drawing.locator(".explorer-curve > path:first-child").all()]


def test_page_before_the_script_runs(page):
    soup = check.parsed(page)
    for figure in soup.select("figure.explored"):
        assert figure.img["alt"] == ALT and figure.select_one(".explorer").has_attr("hidden")
    assert json.loads(soup.select("figure script")[1].string)["curves"][0]["name"] == "first <b>"


def test_keyboard_moves_the_curves(page, visit):  # noqa: F811
    opened = visit(page)
    opened.show(1280, "light")
    figure = opened.page.locator("figure").first
    slider, drawing, read = figure.get_by_role("slider", name="gain σ"), figure.get_by_role("img"), figure.locator("output")
    before, label, ticks = paths(opened), drawing.get_attribute("aria-label"), figure.locator("svg[role=img] text").all_text_contents()
    assert slider.get_attribute("aria-valuetext") == "gain σ: 0.75"
    assert label.startswith("gradient norm against depth (blocks), for gain σ: 0.75 and width d: 64. At depth (blocks) = 30:")
    assert read.get_attribute("aria-live") == "polite"
    slider.focus()
    opened.page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "gain σ: 1"
    assert figure.locator(".explorer-value").first.inner_text() == "1"
    assert read.inner_text() == "At depth (blocks) = 30: plain 1.02; residual 1.47."
    assert read.inner_text() in drawing.get_attribute("aria-label")
    after = paths(opened)
    assert len(after) == 2 and all(one != other for one, other in zip(before, after, strict=True))
    assert figure.locator("svg[role=img] text").all_text_contents() == ticks  # the axes stay
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Home")
    assert figure.get_by_role("slider", name="width d").get_attribute("aria-valuetext") == "width d: 16"
    assert paths(opened)[1] != after[1]
    slider.focus()
    opened.page.keyboard.press("End")
    assert read.inner_text().startswith(f"At depth (blocks) = {DEPTH[-6]:g}: plain ")  # where the lines end
    assert opened.complaints == [] and opened.off_site(page.parent) == []


def test_curves_are_where_the_numbers_are(page, visit):  # noqa: F811
    opened = visit(page)
    plain, residual = (re.findall(r"[ML]([\d.]+) ([\d.]+)", path) for path in paths(opened))
    for points, values, x in ((plain, PLAIN[1, 2], DEPTH), (residual, SUM[1, 2], DEPTH)):
        kept = np.isfinite(values)
        drawn = np.array(points, float)
        assert len(drawn) == kept.sum()
        for column, numbers in ((0, x[kept]), (1, np.log(values[kept]))):
            slope, rest = np.polyfit(numbers, drawn[:, column], 1)
            np.testing.assert_allclose(slope * numbers + rest, drawn[:, column], atol=0.3)
            assert (slope > 0) == (column == 0)
    assert paths(opened)[1].count("M") == 2  # a gap
    first = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", paths(opened, 1)[0]), float)
    assert abs(first[0, 1] - first[-1, 1]) < 0.2 < first[10, 1] - first[0, 1]  # a square, on a linear axis
    ticks = opened.page.locator("figure").first.locator("svg[role=img] text").all_text_contents()
    assert {"10", "30", "10⁰", "10⁻⁶"} <= set(ticks)


@pytest.mark.parametrize("theme", check.THEMES)
def test_narrow_page(page, theme, visit):  # noqa: F811
    opened = visit(page)
    for width in check.WIDTHS:
        opened.show(width, theme)
        opened.page.wait_for_function("room => document.querySelector('svg[role=img]').getBoundingClientRect().right <= room", arg=width)
        assert opened.overflow() == []
        assert opened.figures() == []
        assert not [problem for problem in opened.accessibility() if "explorer" in problem or "<input" in problem or "<output" in problem]
    assert opened.page.locator("svg[role=img]").first.bounding_box()["width"] > 300
    assert opened.complaints == []


def test_picture_on_paper_and_without_scripts(page, visit, browser):  # noqa: F811
    opened = visit(page)
    picture, drawing = opened.page.locator("figure img").first, opened.page.locator("svg[role=img]").first
    assert drawing.is_visible() and not picture.is_visible()
    opened.page.emulate_media(media="print")
    assert picture.is_visible() and not opened.page.locator(".explorer").first.is_visible()
    context = browser.new_context(java_script_enabled=False)
    bare = context.new_page()
    bare.goto(page.as_uri())
    assert bare.locator("figure img").first.is_visible() and not bare.locator(".explorer").first.is_visible()
    context.close()


def test_data_without_a_picture_is_a_warning(tmp_path):
    line, metadata = shown(**ONE)[-1]
    _, warnings = built(tmp_path, [nbformat.v4.new_output("display_data", line, metadata=metadata)], [])
    assert "has no picture of its own" in warnings
