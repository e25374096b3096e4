"""What is read from a figure is what was drawn in it."""

from __future__ import annotations

import csv
import io
from typing import Any

import figure_downloads
import numpy as np
import pytest

from resnorm_lib import figures
from resnorm_lib.figure_data import extract


def panel(draw: Any) -> dict[str, Any]:
    """The data of a figure of one panel."""
    fig, axes = figures.figure()
    draw(axes)
    (found,) = extract(fig)
    return found


def series(draw: Any) -> dict[str, Any]:
    """The one series that ``draw`` leaves."""
    (found,) = panel(draw)["series"]
    return found


def test_a_line_with_gaps_has_six_digits_and_no_number_in_the_gaps() -> None:
    found = series(lambda axes: axes.plot([1, 2, 3], [1.23456789, np.nan, np.inf], label="one"))
    assert found == {"name": "one", "kind": "line", "x": [1, 2, 3], "y": [1.23457, None, None]}


def test_labels_of_the_axes() -> None:
    def draw(axes: Any) -> None:
        axes.set(title="t", xlabel="depth", ylabel="ratio")
        axes.loglog([1, 10], [3, 4])

    found = panel(draw)
    assert (found["title"], found["x"], found["y"]) == ("t", "depth", "ratio")
    assert found["series"][0]["name"] == "" and found["series"][0]["x"] == [1, 10]


def test_guides_and_empty_panels_are_no_data() -> None:
    fig, (left, right) = figures.figure(2)
    left.axhline(1)
    left.axvspan(0, 1)
    right.plot([0], [1])
    assert [len(found["series"]) for found in extract(fig)] == [1]


def test_points() -> None:
    found = series(lambda axes: axes.scatter([1, 2], [3, 4], label="dots"))
    assert found == {"name": "dots", "kind": "points", "x": [1, 2], "y": [3, 4]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"yerr": [[1, 2], [3, 4]], "capsize": 3}, {"low": [9, 18], "high": [13, 24]}),
        ({"xerr": 0.5}, {"x_low": [0.5, 1.5], "x_high": [1.5, 2.5]}),
        ({"xerr": 0.5, "yerr": 1}, {"x_low": [0.5, 1.5], "x_high": [1.5, 2.5], "low": [9, 19], "high": [11, 21]}),
        ({}, {}),
    ],
)
def test_error_bars(options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = series(lambda axes: axes.errorbar([1, 2], [10, 20], label="e", **options))
    assert found == {"name": "e", "kind": "error bars", "x": [1, 2], "y": [10, 20]} | expected


def test_error_bars_without_a_line() -> None:
    found = series(lambda axes: axes.errorbar([1, 2], [10, 20], yerr=1, fmt="none", label="e"))
    assert (found["x"], found["low"], found["high"]) == ([1, 2], [9, 19], [11, 21])


def test_a_band_has_the_name_of_the_line_of_its_colour() -> None:
    def draw(axes: Any) -> None:
        axes.plot([1, 2, 3], [1, 2, 3], color="#0072B2", label="pre-norm")
        axes.plot([1, 2, 3], [1, 2, 3], color="#D55E00", label="post-norm")
        axes.fill_between([1, 2, 3], [0, 1, 2], [2, 3, 4], color="#D55E00", alpha=0.2)

    found = panel(draw)["series"][2]
    assert found == {"name": "post-norm", "kind": "band", "x": [1, 2, 3], "low": [0, 1, 2], "high": [2, 3, 4]}


def test_a_panel_without_a_legend_takes_the_names_of_the_others() -> None:
    fig, (left, right) = figures.figure(2)
    left.plot([0], [1], color="#0072B2", label="pre-norm")
    right.plot([0], [1], color="#0072B2")
    assert [found["series"][0]["name"] for found in extract(fig)] == ["pre-norm", "pre-norm"]


def test_a_band_across() -> None:
    found = series(lambda axes: axes.fill_betweenx([1, 2], [0, 0], [3, 4]))
    assert (found["y"], found["x_low"], found["x_high"]) == ([1, 2], [0, 0], [3, 4])


def test_another_polygon_is_no_band() -> None:
    fig, axes = figures.figure()
    axes.hexbin([1, 2, 3], [1, 2, 3], gridsize=3)
    assert extract(fig) == []


def test_bars_by_category() -> None:
    found = series(lambda axes: axes.bar(["a", "b"], [3, 4], label="n"))
    assert found == {"name": "n", "kind": "bars", "category": ["a", "b"], "x": [0, 1], "y": [3, 4]}
    flat = series(lambda axes: axes.barh([1, 2], [5, 6]))
    assert (flat["x"], flat["y"]) == ([5, 6], [1, 2])


def test_points_beside_the_ticks_of_an_axis_of_words() -> None:
    def draw(axes: Any) -> None:
        axes.set_yticks([0, 1], ["low", "high"])
        axes.plot([7, 8, 9], [0.1, 1.1, -0.2])

    assert series(draw)["category"] == ["low", "high", "low"]


def test_words_at_numbers_are_no_categories() -> None:
    def draw(axes: Any) -> None:
        axes.set_xticks([0, 28], ["bottom", "top"])
        axes.plot([0, 14, 28], [1, 2, 3])

    assert "category" not in series(draw)


@pytest.mark.parametrize("origin", ["lower", "upper"])
def test_an_image(origin: str) -> None:
    found = series(lambda axes: axes.imshow([[1, 2, 3], [4, 5, 6]], origin=origin))
    assert found["value"] == [[1, 2, 3], [4, 5, 6]]
    assert (found["x"], found["y"]) == ([0, 1, 2], [0, 1])


def test_a_mesh_and_its_colour_bar() -> None:
    fig, axes = figures.figure()
    fig.colorbar(axes.pcolormesh([0, 2, 4], [0, 1, 2], [[1, 2], [3, 4]]))
    (found,) = extract(fig)
    assert found["series"] == [{"name": "", "kind": "image", "x": [1, 3], "y": [0.5, 1.5], "value": [[1, 2], [3, 4]]}]


def test_steps() -> None:
    found = series(lambda axes: axes.stairs([5, 6], [0, 1, 2]))
    assert (found["x_low"], found["x_high"], found["y"]) == ([0, 1], [1, 2], [5, 6])


# ---------------------------------------------------------------- the file


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_file_of_a_figure() -> None:
    fig, (left, right) = figures.figure(2)
    left.plot([1, 2], [3, np.nan], label="a, b")
    right.imshow([[1, 2]])
    found = lines(figure_downloads.drawn(extract(fig)))
    assert [line["panel"] for line in found] == ["1", "1", "2", "2"]
    assert [(line["x"], line["y"], line["series"]) for line in found[:2]] == [("1.0", "3.0", "a, b"), ("2.0", "", "a, b")]
    assert [(line["x"], line["y"], line["value"]) for line in found[2:]] == [("0.0", "0.0", "1.0"), ("1.0", "0.0", "2.0")]
    assert "low" not in found[0] and "category" not in found[0]


def test_the_file_of_a_figure_with_sliders() -> None:
    data = {
        "controls": [{"label": "width", "values": [16, 64]}, {"label": "gain", "values": [1, 2]}],
        "x": {"label": "depth", "values": [0, 1]},
        "curves": [{"name": "norm", "values": [[[1, 2], [3, 4]], [[5, 6], [7, None]]]}],
    }
    found = lines(figure_downloads.moved(data))
    assert list(found[0]) == ["width", "gain", "depth", "norm"]
    assert [line["norm"] for line in found] == ["1", "2", "3", "4", "5", "6", "7", ""]
    assert list(found[5].values()) == ["64", "1", "1", "6"]
    data["controls"], data["curves"] = data["controls"][:1], [{"name": "norm", "values": [[1, 2], [3, 4]]}]
    assert [line["norm"] for line in lines(figure_downloads.moved(data))] == ["1", "2", "3", "4"]


def test_sliders_come_before_the_still_picture() -> None:
    fig, axes = figures.figure()
    axes.plot([0], [1])
    explorer = {"controls": [{"label": "d", "values": [1]}], "x": {"label": "t", "values": [0]}}
    explorer["curves"] = [{"name": "c", "values": [[9]]}]
    marks: list[dict[str, Any]] = [{"caption": True, "data": extract(fig), "name": "fig-one"}, {"explorer": explorer}]
    marks += [{"caption": True, "data": extract(fig)}, {}]
    notebook = {"cells": [{"outputs": [{"metadata": {"resnorm": mark}} for mark in marks]}, {"cell_type": "markdown"}]}
    first, second = figure_downloads.data_of(notebook, "ch_one")
    assert first[:2] == ("fig-one", "fig-one") and lines(first[2]) == [{"d": "1", "t": "0", "c": "9"}]
    assert second[:2] == ("figure-2", "ch_one-figure-2") and lines(second[2])[0]["kind"] == "line"
