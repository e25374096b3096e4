"""The pages made from a rerun's data: the tables of parameters, and the figure of a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import parameter_tables
import pytest
import sweep_figure
from conftest import ROOT, chapters

from resnorm_lib import chapters as library_chapters
from resnorm_lib import results

STORE = ROOT / "book" / "_data" / "parameters.json"


def test_what_a_quick_run_makes_of_a_parameter_is_read_from_the_cells() -> None:
    published = {"seeds": 40, "steps": 150, "width": 64, "depth": 8, "effort": "published"}
    sources = [
        "draws = range(3 + (2 + seeds // 10 if P.quick else seeds))\ncount = steps // 20 if P.quick else steps",
        "if P.quick:\n    runs, tall = runs[: max(2, depth // 2)], tall[:2]",
        "seeds = 7 if P.quick else seeds\nwidth if P.quick else width\n__import__('os') if P.quick else width",
        "a = b if P.quick else width\nc = 3 if P.quick else unknown",
    ]
    assert parameter_tables.quick_values(sources, published) == {"seeds": 6, "steps": 7, "depth": 4}


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_every_parameter_has_a_row(path: Path) -> None:
    chapter = library_chapters.read(path)
    text = "\n".join(parameter_tables.ParameterTables.table(chapter, {}, {}))
    for name, parameter in chapter.parameters.items():
        assert f"* - `{name}`\n" in text
        assert f"  - {parameter.specification.published}\n" in text
    assert "not measured yet" in text


def test_cost_and_effect_are_shown() -> None:
    chapter = library_chapters.read(chapters()[0])
    run = {"value": 32, "cpu_seconds": 30.0, "peak_mib": 500, "moved": 12, "claims": 3, "verdicts": {"s0-jac": ["holds", "fails"]}}
    measured = {kind: {"cpu_seconds": seconds, "peak_mib": 900} for kind, seconds in (("start", 4), ("quick", 9), ("published", 60))}
    text = "\n".join(parameter_tables.ParameterTables.table(chapter, {"seeds": 4}, measured | {"records": 200, "parameters": {"width": [run], "depth": []}}))
    assert "As published 60 s, 900 MiB; quick 9.0 s, 900 MiB, of which 4.0 s to start." in text.replace("1 min 0 s", "60 s")
    assert '  - × 0.5 at 32\n  - 12 of 200 records, and the verdicts of <a href="ledger.html#s0-jac">s0-jac</a>' in text
    assert "9.0 s if quick" in text
    assert "not measured: it takes too long" in text


def test_stored_costs_are_of_todays_parameters() -> None:
    stored = json.loads(STORE.read_text("utf-8"))["chapters"] if STORE.exists() else {}
    for stem, measured in stored.items():
        chapter = library_chapters.read(ROOT / "book" / f"{stem}.ipynb")
        missing = chapter.parameters.keys() - {"effort"} ^ measured["parameters"].keys()
        assert not missing, f"{missing} of {stem}: run 'python benchmarks/parameters.py {stem} --work DIR'"
        for name, runs in measured["parameters"].items():
            assert all(chapter.parameters[name].specification.accepts(run["value"]) for run in runs)


def test_the_figure_of_the_sweep_has_what_its_words_say() -> None:
    rows = results.read(ROOT / "book" / "_data" / "sweep.csv")
    chapter = library_chapters.read(ROOT / "book" / f"{rows[0]['chapter']}.ipynb")
    assert set(chapter.parameters) <= set(rows[0])
    assert {(row["claim"], row["at"]) for row in rows} == {(c, a) for c in sweep_figure.PANELS for a in (sweep_figure.ALONE, sweep_figure.WHOLE)}
    fig = sweep_figure.draw(rows)
    for axes, claim in zip(fig.axes, sweep_figure.PANELS, strict=True):
        lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        assert set(lines) == {*sweep_figure.LOOKS, "$W_2$ alone, all three"}
        assert max(lines["$W_2$ alone, all three"]) == pytest.approx(64 if claim.endswith("sgd") else 8, rel=1e-3)
        for activation in sweep_figure.LOOKS:
            assert (lines[activation][1:] > lines[activation][:-1]).all() if len(lines[activation]) > 1 else True
            assert max(lines[activation]) < min(lines["$W_2$ alone, all three"])
    assert sweep_figure.summary(rows).startswith(f"Over {len({row['notebook'] for row in rows})} settings the ratio is, under SGD from")
