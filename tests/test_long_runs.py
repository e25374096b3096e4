"""Stored long runs: made by the recipe they name, for claims that exist; and the recipe works, in its quick form."""

import json
import re

import long_runs
import nbformat
import pytest

from resnorm_lib import claims, placements

DATA = long_runs.ROOT / "resnorm_lib" / "data"
LEAST = {"ch_measurement_critique": 8}  # nine designs of ninety configurations; elsewhere twelve seeds


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
            assert record["low"] <= record["value"] <= record["high"] and record["seeds"] >= LEAST.get(chapter, 12)


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
        # no run of few and none of many is one value with two intervals
        assert [(r["value"], r["low"], r["high"]) for r in records] != [
            (r["value"], r["low"], r["high"]) for r in stored["claims"][claim]
        ]


def shape(nested) -> tuple[int, ...]:
    """Of nested lists, as of an array; numbers may be missing."""
    return (len(nested), *shape(nested[0])) if isinstance(nested, list) else ()


def check_arms(stored: dict, sizes: dict) -> None:
    for name, arm in stored["arms"].items():
        one = name.startswith(("spread", "stream"))
        rates = sizes["family_rates"] if not name.startswith(("transformer", "perceptron")) else sizes["rates"]
        both = name.startswith(("transformer", "perceptron, relu")) and "tiny" not in name
        grid = (1 if one else len(rates), 2 if both else 1, sizes["seeds"])
        for key, values in arm.items():
            assert shape(values)[:3] == grid, (name, key)
        assert {"kl", "curve", "cosine before", "ratio after"} <= arm.keys()


@pytest.mark.parametrize("chapter", long_runs.SCRIPTS)
def test_what_a_script_has_stored(chapter):
    script = long_runs.SCRIPTS[chapter]
    stored = json.loads((DATA / f"long_{chapter.removeprefix('ch_')}.json").read_text("utf-8"))
    assert stored["parameters"] == script.PUBLISHED
    assert stored["arms"].keys() == script.arms(script.Lab(script.PUBLISHED)).keys()
    assert {f"family, {name}" for name in placements.PLACEMENTS} <= stored["arms"].keys()
    assert len(stored["commit"]) == 40 and chapter in stored["recipe"]
    check_arms(stored, script.PUBLISHED)
    again = stored.get("again", {"arms": [], "commit": stored["commit"]})  # arms that were run once more, at another commit
    assert set(again["arms"]) <= stored["arms"].keys()
    assert len(again["commit"]) == 40


@pytest.mark.parametrize("chapter", long_runs.SCRIPTS)
def test_quick_form_of_a_script(chapter, tmp_path):
    target = long_runs.run(chapter, tmp_path, effort="quick")
    assert list(tmp_path.iterdir()) == [target]
    fresh, stored = (json.loads((folder / target.name).read_text("utf-8")) for folder in (tmp_path, DATA))
    assert fresh.keys() == stored.keys() - {"again"}
    assert [without_numbers(name) for name in fresh["arms"]] == [without_numbers(name) for name in stored["arms"]]
    check_arms(fresh, long_runs.SCRIPTS[chapter].QUICK)
    finite = [arm["kl"][0][0][0] for name, arm in fresh["arms"].items() if name != "family, residual"]
    assert all(0 < value < 10 for value in finite)


def test_a_script_goes_on_where_it_was_cut(tmp_path):
    script, partial = long_runs.SCRIPTS["ch_deepnorm"], tmp_path / "partial.json"
    names = list(script.arms(script.Lab(script.QUICK)))
    done = {name: {"kl": [[[1.0, 1.0]]]} for name in names}
    partial.write_text(json.dumps({"parameters": script.QUICK, "arms": done}), "utf-8")
    assert script.measure(script.QUICK, partial)["arms"] == done
    partial.write_text(json.dumps({"parameters": script.QUICK | {"seeds": 3}, "arms": done}), "utf-8")
    assert script.measure(script.QUICK, partial)["arms"] != done  # those were of other sizes


def test_a_run_that_measured_nothing():
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(SystemExit, match="measured nothing for a-claim"):
        long_runs.records(empty, ("a-claim",))
