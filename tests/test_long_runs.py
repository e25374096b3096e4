"""Stored long runs: made by the recipe they name, for claims that exist; and the recipe works, in its quick form."""

import json
import re

import long_runs
import nbformat
import pytest

from resnorm_lib import claims

DATA = long_runs.ROOT / "resnorm_lib" / "data"


@pytest.mark.parametrize("chapter", long_runs.RUNS)
def test_what_is_stored_is_what_the_recipe_makes(chapter):
    parameters, measured = long_runs.RUNS[chapter]
    stored = json.loads((DATA / f"long_{chapter.removeprefix('ch_')}.json").read_text("utf-8"))
    assert stored["parameters"] == parameters
    assert tuple(stored["claims"]) == measured
    assert len(stored["commit"]) == 40
    rows = claims.load()
    for claim, records in stored["claims"].items():
        assert rows[f"{claim}-long"].chapter == chapter
        for record in records:
            assert record["low"] <= record["value"] <= record["high"] and record["seeds"] >= 12


def without_numbers(setting: str) -> str:
    """A quick form has other depths and widths in the names of its settings."""
    return re.sub(r"\d+", "#", setting)


@pytest.mark.parametrize("chapter", long_runs.RUNS)
def test_quick_form(chapter, tmp_path):
    target = long_runs.run(chapter, tmp_path, effort="quick")
    fresh = json.loads(target.read_text("utf-8"))
    stored = json.loads((DATA / target.name).read_text("utf-8"))
    assert fresh.keys() == stored.keys()
    for claim, records in fresh["claims"].items():
        settings = [[without_numbers(r["setting"]) for r in one] for one in (records, stored["claims"][claim])]
        assert settings[0] == settings[1]
        assert [r["value"] for r in records] != [r["value"] for r in stored["claims"][claim]]


def test_a_run_that_measured_nothing():
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(SystemExit, match="measured nothing for a-claim"):
        long_runs.records(empty, ("a-claim",))
