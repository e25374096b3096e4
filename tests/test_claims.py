"""The ledger: its rows are well formed, each verdict can come out, and records are what is printed."""

import csv
import io
import json
import math
import subprocess
import sys

import pytest

from resnorm_lib import claim_records, claims
from resnorm_lib.claims import ClaimError, Ledger, Number
from resnorm_lib.parameters import Parameters
from resnorm_lib.stats import Interval

ROW = """
- id: a-claim
  source: somebody2020
  where: eq. 1
  statement: Something is small.
  quantity: its size
  prediction: "0"
  high: 1.0
  reason: the meaning of the word
  kind: exact
  state: measured
  chapter: ch_one
"""
REPORTED = ROW.replace("a-claim", "a-report").replace("kind: exact", "kind: reported").replace("  high: 1.0\n", "")
STATISTICAL = ROW.replace("a-claim", "a-mean").replace("kind: exact", "kind: statistical") + "  band: {'': [0, 2]}\n"
KERNEL = ROW.replace("a-claim", "a-kernel").replace("kind: exact", "kind: kernel")
ZERO = ROW.replace("a-claim", "a-zero").replace("  high: 1.0\n", "  low: 0\n  high: 0\n")
PUBLISHED = Parameters({"width": 64, "effort": "published"})


@pytest.fixture
def shown(monkeypatch):
    """What a run displays; the ledger holds the rows above."""
    outputs = []
    for module in claims, claim_records:
        monkeypatch.setattr(module, "load", lambda: claims.parse(ROW + REPORTED + STATISTICAL + KERNEL + ZERO))
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata: outputs.append((data, metadata["resnorm"])))
    return outputs


# ---------------------------------------------------------------- rows


def test_the_books_own_rows():
    rows = claims.load()
    assert len(rows) >= 36
    assert all(row.chapter.startswith("ch_") for row in rows.values())


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("kind: exact", "kind: wishful", r"row 1 \(a-claim\), field kind: 'wishful' is not one of exact"),
        ("state: measured", "state: done", "field state: 'done' is not one of planned, measured"),
        ("  high: 1.0\n", "", "fields low and high: give at least one"),
        ("high: 1.0", "high: 1e-12", "field high: '1e-12' is not a number"),
        ("high: 1.0", "high: true", "field high: True is not a number"),
        ("high: 1.0", "high: 1.0\n  low: 2.0", "low not above high"),
        ("  where: eq. 1\n", "", "field where: is missing"),
        ("where: eq. 1", "wehre: eq. 1", "field wehre: there is no such field"),
        ("prediction: \"0\"", "prediction: 0", "field prediction: 0 is not a text"),
        ("kind: exact", "kind: reported", "a reported claim has no tolerance"),
        ("chapter: ch_one", "chapter: ch_one\n  scope: 3", "field scope: 3 is not a text"),
        ("chapter: ch_one", "chapter: ch_one\n  band: [0, 1]", "field band: write it as"),
        ("chapter: ch_one", "chapter: ch_one\n  band: {'': [1, 0]}", "field band: write it as"),
        ("chapter: ch_one", "chapter: ch_one\n  band: {'': [1]}", "field band: write it as"),
    ],
)
def test_bad_row(old, new, message):
    assert old in ROW
    with pytest.raises(ClaimError, match=message):
        claims.parse(ROW.replace(old, new))


def test_two_rows_with_one_id():
    with pytest.raises(ClaimError, match=r"row 2 \(a-claim\), field id: a second row"):
        claims.parse(ROW + ROW)


def test_a_row_that_is_no_mapping():
    with pytest.raises(ClaimError, match="row 1: write it as a mapping"):
        claims.parse("- just a text")


@pytest.mark.parametrize(
    "low, high, words",
    [(-math.inf, 2, "at most 2"), (0.5, math.inf, "at least 0.5"), (1, 1, "exactly 1"), (0, 1e-12, "0 to 1e-12")],
)
def test_tolerance_in_words(low, high, words):
    row = claims.parse(ROW)["a-claim"]
    assert claims.Claim(**(row.__dict__ | {"low": low, "high": high})).tolerance() == words


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0.0, 1.0, "holds"),
        (1.0, 1.0, "holds"),
        (0.9, 1.1, "unresolved"),
        (-0.1, 0.5, "unresolved"),
        (1.1, 2.0, "fails"),
        (1.0, 1.5, "unresolved"),
        (-1.0, 0.0, "unresolved"),
        (-2.0, -0.1, "fails"),
        (-1.0, 2.0, "unresolved"),
    ],
)
def test_verdict(low, high, expected):
    assert claims.verdict(Interval((low + high) / 2, low, high, 5), 0.0, 1.0) == expected


@pytest.mark.parametrize(
    "parts, expected",
    [
        (["holds", "holds"], "holds"),
        (["fails", "fails"], "fails"),
        (["holds", "fails"], "holds in scope"),
        (["holds", "unresolved"], "unresolved"),
        (["fails", "unresolved"], "unresolved"),
        (["holds", "fails", "unresolved"], "holds in scope"),
    ],
)
def test_overall(parts, expected):
    assert claims.overall(parts) == expected


# ---------------------------------------------------------------- printing


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (0.66761, 3, "≈0.668"),
        (0.66761, 4, "≈0.6676"),
        (2.2e-16, 3, "≈2.2e-16"),
        (-1234567.0, 3, "≈-1.23e6"),
        (0.0, 3, "≈0"),
        (-0.0, 3, "≈0"),
        (2.0, None, "2"),
        (math.inf, 3, "≈inf"),
    ],
)
def test_figure(value, digits, text):
    assert claims.figure(value, digits) == text


def test_measure_leaves_the_record_that_it_prints(shown):
    Ledger("ch_one", PUBLISHED).measure("a-claim", Interval(0.51234, 0.4, 0.6, 7))
    ((data, mark),) = shown
    (record,) = mark["records"]
    assert data["text/plain"].startswith("[holds] a-claim: Something is small. its size: ≈0.512 [≈0.4, ≈0.6] — 7 seeds, float64")
    assert "\n" not in data["text/plain"]
    assert 'id="claim-a-claim"' in data["text/html"] and "verdict-holds" in data["text/html"]
    assert record["value"] == 0.51234 and record["printed"] == "≈0.512"
    assert (record["printed_low"], record["printed_high"]) == ("≈0.4", "≈0.6")
    assert record["verdict"] == "holds" and record["claim"] == record["name"] == "a-claim"
    assert record["published"] is True and record["parameters"] == {"width": 64, "effort": "published"}
    assert record["seeds"] == 7 and record["dtype"] == "float64" and record["chapter"] == "ch_one"
    json.dumps(mark)


def test_settings(shown):
    ledger = Ledger("ch_one", PUBLISHED)
    ledger.measure("a-claim", {"here": Interval(0.5, 0.5, 0.5, 3), "there": Interval(5, 4, 6, 4)})
    ((data, mark),) = shown
    assert [r["verdict"] for r in mark["records"]] == ["holds in scope"] * 2
    assert [r["setting_verdict"] for r in mark["records"]] == ["holds", "fails"]
    assert [r["name"] for r in mark["records"]] == ["a-claim/here", "a-claim/there"]
    assert "\n    there: ≈5 [≈4, ≈6] (fails)" in data["text/plain"] and "3–4 seeds" in data["text/plain"]
    assert '<td>there</td><td>≈5 [≈4, ≈6]</td><td class="claim-verdict verdict-fails">fails</td>' in data["text/html"]
    assert "verdict-scope" in data["text/html"]


def test_a_count_has_no_seeds(shown):
    Ledger("ch_one", PUBLISHED).measure("a-claim", Interval(0.5, 0.5, 0.5, 0))
    assert "its size: ≈0.5 — no random draw; predicted" in shown[0][0]["text/plain"]


def test_an_exact_zero_is_printed_as_zero(shown):
    Ledger("ch_one", PUBLISHED).measure("a-zero", {"a": Interval(0.0, 0.0, 0.0, 3), "b": Interval(0.2, 0.1, 0.2, 3)})
    data, mark = shown[0]
    assert "a: 0 (holds)" in data["text/plain"] and "b: ≈0.2 [≈0.1, ≈0.2] (fails)" in data["text/plain"]
    assert mark["records"][0]["printed"] == "0"


def test_a_statistical_claim_names_its_interval_and_a_kernel_claim_its_path(shown):
    ledger = Ledger("ch_one", PUBLISHED)
    ledger.measure("a-mean", Interval(0.5, 0.4, 0.6, 7))
    ledger.measure("a-kernel", Interval(0.5, 0.4, 0.6, 7))
    assert "7 seeds, float64, 99 % interval;" in shown[0][0]["text/plain"]
    assert "CPU path " in shown[1][0]["text/plain"]


def test_leaving_the_band_changes_the_text_and_not_the_verdict(shown):
    ledger = Ledger("ch_one", PUBLISHED)
    ledger.measure("a-mean", Interval(-3, -4, -2, 7))
    assert shown[0][1]["records"][0]["verdict"] == "holds"
    assert "outside its regression band 0 to 2" in shown[0][0]["text/plain"]
    assert shown[0][1]["records"][0]["band"] == [0, 2]
    ledger.measure("a-mean", Interval(1, 0.9, 1, 7))
    assert "band" not in shown[1][0]["text/plain"]


def test_other_parameters_are_named_and_the_verdict_is_still_computed(shown):
    ledger = Ledger("ch_one", Parameters({"width": 96, "effort": "published"}, {"width": 96}))
    ledger.measure("a-mean", Interval(-3, -4, -2, 7))
    assert shown[0][1]["records"][0]["verdict"] == "holds"
    assert "[holds (with width = 96; published otherwise)]" in shown[0][0]["text/plain"]
    assert "band" not in shown[0][0]["text/plain"]
    assert shown[0][1]["records"][0]["published"] is False


def test_a_quick_run_records_and_gives_no_verdict(shown):
    quick = {"effort": "quick"}
    ledger = Ledger("ch_one", Parameters(quick, quick))
    ledger.measure("a-claim", {"a": Interval(5, 4, 6, 2), "b": Interval(0, 0, 0, 2)})
    ledger.report("a-report")
    for data, mark in shown:
        assert data["text/plain"].startswith("[quick run, no verdict]") and "(fails)" not in data["text/plain"]
        assert "verdict-none" in data["text/html"]
        assert all(record["verdict"] is None for record in mark["records"])
    assert shown[0][1]["records"][0]["value"] == 5


def test_report(shown):
    Ledger("ch_one", PUBLISHED).report("a-report")
    data, mark = shown[0]
    assert data["text/plain"].startswith("[reported] a-report") and "not tested here: the meaning" in data["text/plain"]
    assert mark["records"][0]["verdict"] == "reported" and mark["records"][0]["value"] is None


def test_say(shown):
    Ledger("ch_one", PUBLISHED).say(
        "{a} and {a:v}, {n:v} of them.",
        a=Number.of(Interval(0.51234, 0.4, 0.6, 7), (0, 1)),
        n=Number(3, None, digits=None),
    )
    data, mark = shown[0]
    assert data["text/markdown"] == data["text/plain"] == "≈0.512 [≈0.4, ≈0.6] and ≈0.512, 3 of them."
    assert [r["printed"] for r in mark["records"]] == ["≈0.512", "3"]


def test_say_outside_its_band(shown):
    Ledger("ch_one", PUBLISHED).say("{a:v}", a=Number(2.0, (0, 1)))
    assert "outside its regression band 0 to 1" in shown[0][0]["text/plain"]


def test_say_needs_a_band(shown):
    with pytest.raises(ClaimError, match="a: give a band"):
        Ledger("ch_one", PUBLISHED).say("{a}", a=Number(1.0, None))
    assert not shown


@pytest.mark.parametrize(
    "claim, interval, message",
    [
        ("nobodys", Interval(0, 0, 0, 1), "'nobodys' is no row of claims.yml"),
        ("a-report", Interval(0, 0, 0, 1), "print it with Ledger.report"),
        ("a-claim", {}, "give an Interval"),
        ("a-claim", 2.0, "give an Interval"),
        ("a-claim", {"here": 2.0}, "give an Interval"),
        ("a-claim", Interval(math.nan, 0, 0, 1), "not a value between its bounds"),
        ("a-claim", Interval(2, 0, 1, 1), "not a value between its bounds"),
    ],
)
def test_bad_measurement(shown, claim, interval, message):
    with pytest.raises(ClaimError, match=message):
        Ledger("ch_one", PUBLISHED).measure(claim, interval)
    assert not shown


def test_a_measured_claim_cannot_be_reported(shown):
    with pytest.raises(ClaimError, match="of kind exact: measure it"):
        Ledger("ch_one", PUBLISHED).report("a-claim")


def test_another_chapters_claim(shown, monkeypatch):
    rows = claims.parse(ROW + ROW.replace("a-claim", "b-claim").replace("ch_one", "ch_two"))
    monkeypatch.setattr(claims, "load", lambda: rows)
    with pytest.raises(ClaimError, match="b-claim belongs to ch_two, not to ch_one"):
        Ledger("ch_one", PUBLISHED).measure("b-claim", Interval(0, 0, 0, 1))
    with pytest.raises(ClaimError, match="chapter = 'ch_three' owns no row"):
        Ledger("ch_three", PUBLISHED)


# ---------------------------------------------------------------- collecting


def notebook(*records):
    outputs = [{"output_type": "display_data", "data": {}, "metadata": {"resnorm": {"records": [r]}}} for r in records]
    return {"cells": [{"cell_type": "code", "id": "one-01", "outputs": outputs}]}


def write(folder, name, *records):
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook(*records)), "utf-8")


RECORD = {"claim": "a-claim", "value": 0.5, "low": 0.4, "high": 0.6, "seeds": 7, "verdict": "holds", "dtype": "float64"}


def test_collect(shown, tmp_path):
    write(tmp_path, "ch_one", RECORD, {"name": "a sentence", "value": 1.0})
    entries = {entry["id"]: entry for entry in claims.collect(tmp_path)}
    found = entries["a-claim"]
    assert (found["measured"], found["low"], found["high"], found["seeds"]) == (0.5, 0.4, 0.6, 7)
    assert (found["verdict"], found["chapter"], found["cell"], found["predicted"]) == ("holds", "ch_one", "one-01", "0")
    assert entries["a-mean"]["verdict"] == "planned" and entries["a-mean"]["measured"] is None


def test_a_claim_measured_twice(shown, tmp_path):
    write(tmp_path, "ch_one", RECORD, RECORD)
    with pytest.raises(ClaimError, match="a-claim is measured by two cells"):
        claims.collect(tmp_path)


def test_a_record_without_a_row(shown, tmp_path):
    write(tmp_path, "ch_one", RECORD | {"claim": "gone"})
    with pytest.raises(ClaimError, match="ch_one.ipynb measures gone, which is no row"):
        claims.collect(tmp_path)


def test_json_and_csv_say_the_same(shown, tmp_path, capsys):
    parts = [RECORD | {"setting": "d = 16", "setting_verdict": "holds"}]
    parts += [RECORD | {"setting": "d = 64", "value": math.inf, "high": math.inf, "setting_verdict": "unresolved"}]
    outputs = [{"output_type": "display_data", "data": {}, "metadata": {"resnorm": {"records": parts}}}]
    cells = {"cells": [{"cell_type": "code", "id": "one-01", "outputs": outputs}]}
    (tmp_path / "ch_one.ipynb").write_text(json.dumps(cells), "utf-8")
    assert claims.main(["--book", str(tmp_path), "--format", "json"]) == 0
    entries = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert claims.main(["--book", str(tmp_path), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert entries[0]["settings"][1]["value"] == "Infinity" and lines[1]["measured"] == "inf"
    assert [line["setting"] for line in lines if line["id"] == "a-claim"] == ["d = 16", "d = 64"]
    assert [line["setting_verdict"] for line in lines[:2]] == ["holds", "unresolved"]
    assert [line["id"] for line in lines[2:]] == [entry["id"] for entry in entries[1:]]
    assert all(line["measured"] == "" and line["verdict"] == "planned" for line in lines[2:])
    assert all(str(entry[key]) == line[key] for entry, line in zip(entries[1:], lines[2:]) for key in ("statement", "tolerance", "scope"))


def test_command_line_on_the_book():
    done = subprocess.run(
        [sys.executable, "-m", "resnorm_lib.claims", "--format", "json"], capture_output=True, text=True, check=True
    )
    keys = {"id", "source", "statement", "predicted", "measured", "low", "high", "seeds", "verdict", "chapter", "cell"}
    ledger = json.loads(done.stdout)
    assert ledger and all(keys <= entry.keys() for entry in ledger)


def test_table(shown, tmp_path, capsys):
    write(tmp_path, "ch_one", RECORD)
    assert claims.main(["--book", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:4] == ["a-claim", "holds", "0.5", "[0.4,"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"cells": [{}]}', '{"cells": 3}'])
def test_a_broken_notebook(shown, tmp_path, text):
    (tmp_path / "ch_one.ipynb").write_text(text, "utf-8")
    if text == '{"cells": [{}]}':
        assert claims.collect(tmp_path)
    else:
        with pytest.raises(ClaimError, match="ch_one.ipynb cannot be read"):
            claims.collect(tmp_path)


def test_html_is_escaped(shown, monkeypatch):
    rows = claims.parse(ROW.replace("Something is small", "a < b & c").replace("its size", "<size>"))
    monkeypatch.setattr(claims, "load", lambda: rows)
    Ledger("ch_one", Parameters({"width": 1}, {"width": "<1>"})).measure("a-claim", {"x<y": Interval(0, 0, 0, 1)})
    rich = shown[0][0]["text/html"]
    assert all(text in rich for text in ("a &lt; b &amp; c", "&lt;size&gt;", "x&lt;y", "&lt;1&gt;"))


def test_no_book(capsys, tmp_path):
    assert claims.main(["--book", str(tmp_path / "none")]) == 1
    assert "is not a folder: give the folder of the chapters with --book" in capsys.readouterr().err
