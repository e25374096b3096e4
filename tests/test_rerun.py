"""The rerun command on a tiny book: settings, sweeps on dask, resuming, failures, Ctrl-C, tables, and the estimate before."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from conftest import ROOT, chapters
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from resnorm_lib import chapters as library_chapters
from resnorm_lib import costs, engine, rerun, results, settings, sweeps
from resnorm_lib.chapters import ChapterError
from resnorm_lib.engine import Outcome
from resnorm_lib.parameters import Choice, Integer, ParameterError

DECLARATION = """size = 4  # how many, of # things; a multiple of 2 from 2 to 100
slope = 1.0  # per step; from 0 to 10
kind = "a"  # which of two; "a" or "b"
effort = "published"  # "quick" takes seconds"""
VALIDATION = """import os, time
from resnorm_lib import parameters
P = parameters.check(
    globals(), size=parameters.Integer(4, 2, 100, multiple=2), slope=parameters.Real(1.0, 0, 10),
    kind=parameters.Choice("a", "b"), effort=parameters.Choice("published", "quick"),
)"""
# 12: fails; 14: ends its kernel; 16: waits, until the file whose name is in this variable is there
BODY = """from IPython.display import display
if size == 12:
    raise ValueError("a dozen\\nis too many")
if size == 14:
    os._exit(1)
if size == 16:
    open(os.environ["RERUN_FLAG"], "a").close()
    time.sleep(120)
claim = dict(claim="s", kind="exact", low=0.1 + 0.2, high=1e300, seeds=3, dtype="float64", verdict="holds")
records = [dict(claim, name=f"s/{x}", setting=x, value=size * slope, setting_verdict="holds") for x in "xy"]
records += [dict(name="environment", value=float(sum(n in os.environ for n in ("MALLOC_TRIM_THRESHOLD_",))))]
records += [dict(name="r", claim="r", setting="", value=None, verdict="reported")]
display({"text/plain": "x"}, raw=True, metadata={"resnorm": {"records": records}})
print(os.listdir())"""


def write(book: Path, stem: str = "ch_tiny", declaration: str = DECLARATION, validation: str = VALIDATION) -> Path:
    cells = [new_markdown_cell("# Tiny"), new_code_cell(declaration, metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(source) for source in (validation, BODY)]
    book.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata={"resnorm": {"digest": "of another run"}}), book / f"{stem}.ipynb")
    return book / f"{stem}.ipynb"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    write(tmp_path / "book")
    return tmp_path / "book"


@pytest.fixture
def tiny(book: Path) -> library_chapters.Chapter:
    return library_chapters.read(book / "ch_tiny.ipynb")


def stub(source: str, values: Any, expected: str, owner: str = "") -> Outcome:
    """An engine without a kernel."""
    if values.get("size") == 12:
        raise RuntimeError("no kernel\nfor a dozen")
    notebook = json.loads(source)
    record = {"name": "n", "value": float(values.get("size", 4))}
    output = {"output_type": "display_data", "data": {}, "metadata": {"resnorm": {"records": [record]}}}
    notebook["cells"][-1]["outputs"] = [output]
    return Outcome(json.dumps(notebook), seconds=0.5)


def wanted(tiny: library_chapters.Chapter, *sizes: int, **others: list[Any]) -> list[settings.Setting]:
    return settings.expand(tiny, {"size": list(sizes)} | others)


# ---------------------------------------------------------------- chapters and settings


def test_parameters_are_read_without_running_anything(tiny: library_chapters.Chapter) -> None:
    assert tiny.published == {"size": 4, "slope": 1.0, "kind": "a", "effort": "published"}
    assert tiny.parameters["size"].specification == Integer(4, 2, 100, multiple=2)
    assert tiny.parameters["kind"].specification == Choice("a", "b")
    assert tiny.parameters["size"].comment == "how many, of # things; a multiple of 2 from 2 to 100"
    assert tiny.parameters["size"].meaning == "how many, of # things"
    assert tiny.parameters["slope"].meaning == "per step"


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_every_chapter_can_be_read(path: Path) -> None:
    chapter = library_chapters.read(path)
    declared: dict[str, Any] = {}
    source = next(c.source for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", []))
    exec(source, declared)  # noqa: S102
    declared.pop("__builtins__")
    assert chapter.published == declared
    for name, parameter in chapter.parameters.items():
        assert parameter.comment, f"{name} of {path.stem} has no comment"
        assert not {"chapter", *results.COLUMNS} & {name}
        assert not any(word in parameter.meaning for word in ("from ", "multiple")), parameter.meaning


def test_names_of_chapters_complete_or_are_listed(book: Path) -> None:
    for stem in "ch_layer_one", "ch_layer_two", "ch_layer":
        write(book, stem)
    for name in "ch_tiny", "tiny", "book/ch_tiny.ipynb", "ti", "iny":
        assert library_chapters.find(name, book).stem == "ch_tiny"
    assert library_chapters.find("layer", book).stem == "ch_layer"
    with pytest.raises(ChapterError, match="layer_ could be ch_layer_one or ch_layer_two: write more"):
        library_chapters.find("layer_", book)
    with pytest.raises(ChapterError, match=r"did you mean ch_tiny\?\); the chapters are: ch_layer, ch_layer_one, ch_layer_two, ch_tiny"):
        library_chapters.find("ch_tinny", book)
    with pytest.raises(ChapterError, match="the chapters are"):
        library_chapters.find("", book)
    with pytest.raises(ChapterError, match="--book"):
        library_chapters.find("ch_tiny", book.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c[1]["metadata"].clear(), "no cell with the tag"),
        (lambda c: c[2].update(source="check = 1"), "no parameters.check"),
        (lambda c: c[2].update(source="P = ("), "cannot be read .SyntaxError"),
        (lambda c: c.clear(), "no cell with the tag"),
    ],
)
def test_a_chapter_without_parameters_is_refused(book: Path, change: Any, said: str) -> None:
    notebook = json.loads((book / "ch_tiny.ipynb").read_text("utf-8"))
    change(notebook["cells"])
    (book / "ch_tiny.ipynb").write_text(json.dumps(notebook), "utf-8")
    with pytest.raises(ChapterError, match=said):
        library_chapters.read(book / "ch_tiny.ipynb")


def test_settings_multiply_out_or_go_side_by_side(tiny: library_chapters.Chapter, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yml"
    grid.write_text("kind: [a, b]\nzip:\n  size: [2, 6]\n  slope: [1e-3, 2]\n", "utf-8")
    found = settings.expand(tiny, {"effort": ["quick"]}, settings.read_grid(grid))
    values = [tuple(setting.values.values()) for setting in found]
    assert values == [(s, x, k, "quick") for k in "ab" for s, x in ((2, 1e-3), (6, 2.0))]  # YAML reads 1e-3 as a text
    assert all(isinstance(setting.values["slope"], float) for setting in found)
    assert found[0].file_name.startswith("ch_tiny-size=2-slope=0.001-kind=a-effort=quick-")
    assert len({setting.file_name for setting in found}) == 4
    # the same run is one setting, however it is written; what is not given has its published value
    same = settings.expand(tiny, {"slope": ["1", "1.0", 1]}) + settings.expand(tiny, {})
    assert len({setting.key for setting in same}) == len(settings.expand(tiny, {"slope": ["1", "1.0", 1]})) == 1
    assert same[0].every == tiny.published
    assert settings.expand(tiny, {})[0].label == "as published"


@pytest.mark.parametrize(
    ("given", "grid", "said"),
    [
        ({"sise": [4]}, {}, r"sise is not a parameter of ch_tiny \(did you mean size\?\); allowed are: size, slope, kind, effort"),
        ({"size": ["many"]}, {}, "size = many is not allowed; it must be a multiple of 2 from 2 to 100"),
        ({"size": ["4.0"]}, {}, "size = 4.0 is not allowed"),
        ({"size": ["True"]}, {}, "size = True is not allowed"),
        ({"size": ["__import__('os')"]}, {}, "is not allowed"),
        ({"slope": ["nan"]}, {}, "slope = nan is not allowed"),
        ({"kind": ["c"]}, {}, "it must be one of 'a', 'b'"),
        ({"size": []}, {}, "size has no value"),
        ({"size": [2]}, {"size": [4]}, "size is given twice"),
        ({"size": [2]}, {"zip": {"size": [4]}}, "size is given twice"),
        ({}, {"size": [2], "zip": {"size": [4]}}, "size is given twice"),
        ({}, {"zip": {"size": [2, 4], "kind": ["a"]}}, "unlike lengths .size has 2, kind has 1."),
        ({}, {"zip": [1]}, "zip in the grid is not a mapping"),
        ({}, {"size": [102]}, "size = 102 is not allowed"),
    ],
)
def test_a_bad_setting_is_one_sentence(tiny: library_chapters.Chapter, given: Any, grid: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        settings.expand(tiny, given, grid)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["size: [", "- size", "", "4: [1]", None])
def test_a_grid_that_cannot_be_read_says_what_to_write(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "grid.yml").write_text(text, "utf-8")
    with pytest.raises(ParameterError, match="write a list of values for each parameter") as caught:
        settings.read_grid(tmp_path / "grid.yml")
    assert "\n" not in str(caught.value)


def test_long_and_odd_values_make_short_plain_names(tiny: library_chapters.Chapter) -> None:
    setting = settings.Setting("ch_tiny", {"kind": "a/../b c" * 40}, {"kind": "x"})
    assert len(setting.file_name) < 110
    assert "/" not in setting.file_name
    assert " " not in setting.file_name


# ---------------------------------------------------------------- tables


def test_the_table_comes_back_as_it_was(tmp_path: Path) -> None:
    names = ["chapter", "size", "kind", *results.COLUMNS]
    row = dict.fromkeys(names) | {"chapter": "ch_tiny", "size": 4, "kind": "7a", "notebook": "n", "record": "s/x", "claim": "s"}
    rows = [row | {"at": "1", "value": 0.1 + 0.2, "low": -math.inf, "high": 1e-320, "replicates": 3}, row | {"at": "", "value": 1.0}]
    results.write_whole(tmp_path / "results.csv", results.as_csv(rows, names))
    assert results.read(tmp_path / "results.csv") == rows
    frame = results.frame(tmp_path / "results.csv")
    assert frame["value"].tolist() == [0.1 + 0.2, 1.0]
    assert frame["size"].tolist() == [4, 4]
    assert results.write_parquet(tmp_path / "results.parquet", rows, names)
    other = results.frame(tmp_path / "results.parquet")
    assert list(other.columns) == names
    same = (other == frame) | (other.isna() & frame.isna())
    assert same.all(axis=None), same
    assert results.read(tmp_path / "results.csv")[0]["at"] == "1"
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(ValueError, match="is no table of a sweep, chapter, notebook, record"):
        results.read(tmp_path / "other.csv")


def test_without_pyarrow_or_pandas_the_csv_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "pyarrow", "pandas":
        monkeypatch.setitem(sys.modules, name, None)
    assert not results.write_parquet(tmp_path / "results.parquet", [], [])
    with pytest.raises(ImportError, match="pip install pandas"):
        results.frame(tmp_path / "results.csv")


# ---------------------------------------------------------------- sweeps


def test_a_sweep_on_dask_keeps_what_is_good_and_resumes(tiny: library_chapters.Chapter, tmp_path: Path) -> None:
    """Two workers, kernels of papermill; a failing cell, a dying kernel, and a second start."""
    out, told = tmp_path / "a folder" / "out", []
    sizes = wanted(tiny, 2, 12, 14, 6)
    runs = sweeps.run_sweep(tiny, sizes, out, workers=2, tell=told.append)
    assert [run.state for run in runs] == ["done", "failed", "failed", "done"]
    assert {run.setting.key for run in told} == {setting.key for setting in sizes}
    assert runs[1].error == "ValueError: a dozen is too many"
    assert "the kernel died" in runs[2].error
    assert "a dozen" in (out / runs[1].notebook).read_text("utf-8")
    assert "size = 14" in (out / runs[2].notebook).read_text("utf-8")
    notebook = json.loads((out / runs[0].notebook).read_text("utf-8"))
    assert "".join(notebook["cells"][2]["source"]) == "# Parameters\nsize = 2\n"
    assert notebook["metadata"]["papermill"]["parameters"] == {"size": 2}
    assert "resnorm" not in notebook["metadata"]
    assert str(tmp_path) not in json.dumps(notebook)
    assert "[]" in "".join(notebook["cells"][-1]["outputs"][-1]["text"])  # the kernel's folder is empty
    assert runs[0].cpu_seconds > 0.1
    assert 20 < runs[0].peak_mib < 2000
    rows = results.read(out / "results.csv")
    assert [(row["size"], row["record"], row["value"]) for row in rows] == [
        (size, name, value) for size in (2, 6) for name, value in (("s/x", size), ("s/y", size), ("environment", 0.0))
    ]
    assert rows[0] == {
        "chapter": "ch_tiny", "size": 2, "slope": 1, "kind": "a", "effort": "published", "notebook": runs[0].notebook,
        "record": "s/x", "claim": "s", "at": "x", "value": 2.0, "low": 0.1 + 0.2, "high": 1e300, "replicates": 3,
        "dtype": "float64", "setting_verdict": "holds", "verdict": "holds",
    }
    states = (out / "runs.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[5] for line in states] == ["state", "done", "failed", "failed", "done"]
    before = {path.name: path.read_bytes() for path in out.glob("ch_tiny*.ipynb")}
    # only what is missing runs; a folder's table keeps the settings of earlier starts
    told.clear()
    runs = sweeps.run_sweep(tiny, wanted(tiny, 6, 12, 8), out, execute=stub, tell=told.append)
    assert [run.state for run in runs] == ["found", "failed", "done"]
    assert runs[1].error == "RuntimeError: no kernel for a dozen"
    assert {name: (out / name).read_bytes() for name in before} == before
    assert sorted({row["size"] for row in results.read(out / "results.csv")}) == [2, 6, 8]
    # a failed setting that is done later leaves no failed notebook
    assert (out / f"failed-{sizes[2].file_name}").exists()
    assert sweeps.run_sweep(tiny, wanted(tiny, 14), out, execute=stub)[0].state == "done"
    assert not (out / f"failed-{sizes[2].file_name}").exists()
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_other_code_is_run_again_and_other_chapters_are_refused(tiny: library_chapters.Chapter, book: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", []
    sweeps.run_sweep(tiny, wanted(tiny, 2, 4), out, execute=stub)
    (out / "notes.ipynb").write_text("{}", "utf-8")
    (out / "half.ipynb").write_text("{", "utf-8")
    path = write(book, validation=VALIDATION + "\nmore = 1")
    runs = sweeps.run_sweep(library_chapters.read(path), wanted(tiny, 2), out, execute=stub, say=said.append)
    assert runs[0].state == "done"
    assert len(said) == 1
    assert said[0].startswith("2 notebooks in ")
    assert {row["size"] for row in results.read(out / "results.csv")} == {2}
    other = library_chapters.read(write(book, "ch_other"))
    with pytest.raises(sweeps.SweepError, match="holds reruns of ch_tiny: give another folder with --out"):
        sweeps.run_sweep(other, settings.expand(other, {}), out, execute=stub)


def test_a_worker_with_another_library_is_refused(tiny: library_chapters.Chapter) -> None:
    source = engine.strip(json.loads(tiny.path.read_text("utf-8")))
    outcome = engine.run(source, {}, "another digest")
    assert "another version of resnorm_lib" in outcome.error
    assert outcome.seconds == 0


def test_a_parameter_named_like_a_column_is_refused(book: Path, tmp_path: Path) -> None:
    path = write(book, "ch_bad", 'value = 1  # x; from 0 to 2', "P = parameters.check(globals(), value=parameters.Integer(1, 0, 2))")
    chapter = library_chapters.read(path)
    with pytest.raises(sweeps.SweepError, match="a parameter value, which is a column"):
        sweeps.run_sweep(chapter, settings.expand(chapter, {}), tmp_path / "out", execute=stub)


def test_a_full_disk_is_one_sentence_and_keeps_what_is_finished(
    tiny: library_chapters.Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole, written = results.write_whole, []

    def full(path: Path, content: Any) -> None:
        written.append(path)
        if len([p for p in written if p.suffix == ".ipynb"]) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, content)

    monkeypatch.setattr(results, "write_whole", full)
    with pytest.raises(sweeps.SweepError, match=r"cannot be written \(No space left on device\): make room there or give another") as caught:
        sweeps.run_sweep(tiny, wanted(tiny, 2, 4, 6), tmp_path / "out", execute=stub)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    runs = sweeps.run_sweep(tiny, wanted(tiny, 2, 4, 6), tmp_path / "out", execute=stub)
    assert [run.state for run in runs] == ["found", "done", "done"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tiny: library_chapters.Chapter, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sweeps.SweepError, match="file/out cannot be written .Not a directory.: make room there or give another folder"):
        sweeps.run_sweep(tiny, wanted(tiny, 2), tmp_path / "file" / "out", execute=stub)


def test_overhead_does_not_grow_with_the_number_of_settings(tiny: library_chapters.Chapter, tmp_path: Path) -> None:
    """Counts, not times: each notebook is read at most once and written once, and the tables seldom."""
    counted = {"read": 0, "write": 0}
    write_whole = results.write_whole
    patch = pytest.MonkeyPatch()
    patch.setattr(results, "write_whole", lambda *a: (counted.update(write=counted["write"] + 1), write_whole(*a)))
    many = settings.expand(tiny, {"size": list(range(20, 102, 2)), "slope": [0.5, 2.0, 3.0]})
    sweeps.run_sweep(tiny, many, tmp_path / "out", execute=stub)
    patch.undo()
    assert counted["write"] < len(many) + 10
    assert len(results.read(tmp_path / "out" / "results.csv")) == len(many)


# ---------------------------------------------------------------- the command


def command(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "resnorm_lib.rerun", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        **options,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing is not a chapter; the chapters are: ch_tiny"),
        (["tiny", "-p", "sise", "4"], "sise is not a parameter of ch_tiny"),
        (["tiny", "-p", "size", "4,5"], "size = 5 is not allowed; it must be a multiple of 2"),
        (["tiny", "-p", "size", "4", "-p", "size", "6"], "size is given twice: write -p size with its values separated by commas"),
        (["tiny", "--grid", "no.yml"], "the grid no.yml cannot be read"),
        (["tiny", "--workers", "-1"], "--workers and --limit must be above 0"),
        (["tiny", "--limit", "0"], "--workers and --limit must be above 0"),
    ],
)
def test_what_is_not_possible_ends_with_2_and_starts_nothing(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert rerun.main([*words, "--book", str(book), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_estimate_is_printed_and_too_much_is_refused(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    words = ["tiny", "--book", str(book), "--out", str(tmp_path / "out"), "--dry-run"]
    assert rerun.main(words) == 0
    assert capsys.readouterr().out == "1 setting of ch_tiny; no run of this chapter is known, so nothing is estimated.\n"
    (book / "_data").mkdir()
    status = {"chapters": {"ch_tiny": {"seconds": 400.0, "peak_memory_mib": 500}}}
    (book / "_data" / "status.json").write_text(json.dumps(status), "utf-8")
    assert rerun.main(words) == 0
    assert "1 setting of ch_tiny: about 7 min of CPU time, 7 min with 1 worker, at most 500 MiB in each (estimated" in capsys.readouterr().out
    base = {"start": {"cpu_seconds": 5.0, "peak_mib": 100}, "published": {"cpu_seconds": 405.0, "peak_mib": 500}}
    base |= {"quick": {"cpu_seconds": 9.0, "peak_mib": 200}}
    base |= {"parameters": {"size": [{"value": 2, "cpu_seconds": 105.0, "peak_mib": 300}], "kind": [{"value": "b", "cpu_seconds": 805.0, "peak_mib": 500}]}}
    (book / "_data" / "parameters.json").write_text(json.dumps({"chapters": {"ch_tiny": base}}), "utf-8")
    tiny = library_chapters.read(book / "ch_tiny.ipynb")
    stored = costs.stored_costs(book, tiny)
    assert costs.exponent(stored, "size", 4, "cpu_seconds") == pytest.approx(2.0)
    assert costs.exponent(stored, "slope", 1.0, "cpu_seconds") == 0.0
    assert costs.exponent(stored, "seeds", 20, "cpu_seconds") == 1.0
    found = costs.estimate(tiny, settings.expand(tiny, {"size": [8], "kind": ["a", "b"]}), stored)
    assert [round(item.cpu_seconds) for item in found] == [1605, 3205]
    assert [round(item.peak_mib) for item in found] == [900, 900]
    quick = costs.estimate(tiny, settings.expand(tiny, {"effort": ["quick"], "size": [8]}), stored)[0]
    assert (quick.cpu_seconds, quick.peak_mib) == (21.0, 300.0)
    # 11 times 405 s with two workers is under an hour, 40 times is not
    few = [*words[:-1], "-p", "slope", ",".join(str(k / 10) for k in range(40))]
    assert rerun.main(few) == 2
    shown = capsys.readouterr()
    assert "40 settings of ch_tiny: about 4.5 h of CPU time, 2.2 h with 2 workers" in shown.out
    assert shown.err == "this is above the limit of 1 h: ask for fewer or smaller settings, or raise it with --limit 3\n"
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sweeps, "run_sweep", lambda *a, **k: [sweeps.Run(s, "done") for s in a[1]])
    for more in (["--limit", "3"], ["--force"]):
        assert rerun.main([*few, *more]) == 0
    free = type("", (), {"available": 600 * 2**20})()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    pair = [*words[:-1], "-p", "slope", "1,2"]
    assert rerun.main(pair) == 2  # 500 MiB, and 480 may be used
    capsys.readouterr()
    free.available = 700 * 2**20
    assert rerun.main(pair) == 0  # one worker fits
    assert "with 1 worker," in capsys.readouterr().out
    assert rerun.main([*pair, "--workers", "2"]) == 2
    assert capsys.readouterr().err == "2 of these at a time need 1.0 GiB and 560 MiB may be used: give --workers 1, smaller settings, or --force\n"


def test_the_command_tells_what_became_of_each(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.run, "__code__", stub.__code__)
    words = ["tiny", "--book", str(book), "--out", str(tmp_path / "out"), "--workers", "1", "-p", "size", "2,12"]
    assert rerun.main(words) == 1
    shown = capsys.readouterr()
    assert f"1 of 2 done, 1 failed: {tmp_path / 'out' / 'results.csv'}, and" in shown.out
    assert "1/2 size=2: done in 0 s" in shown.err
    assert "size=12: failed with RuntimeError: no kernel for a dozen (see failed-ch_tiny-size=12-" in shown.err
    assert rerun.main(words) == 1
    assert "2 settings of ch_tiny, 1 of them finished" in capsys.readouterr().out
    assert rerun.main([*words[:-1], "2"]) == 0
    assert "1 of 1 done (1 of them by an earlier start)" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert rerun.main([*words[:4], str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_keeps_what_is_finished(book: Path, tmp_path: Path, workers: int) -> None:
    """As a terminal does it: the signal goes to every process of the group."""
    out, flag = tmp_path / "out", tmp_path / "flag"
    words = ["tiny", "--book", book, "--out", out, "--workers", str(workers), "-p", "size", "2,16,18"]
    process = command(*words, start_new_session=True, env={"RERUN_FLAG": str(flag)})
    deadline = time.monotonic() + 90
    first = 1 if workers == 1 else 2  # with two workers the third setting ends while the second waits
    while not (flag.exists() and len(list(out.glob("ch_tiny-*.ipynb"))) >= first):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    kernels = [p for p in children if "ipykernel_launcher" in " ".join(p.cmdline())]
    assert kernels
    listening = [c for p in [psutil.Process(process.pid), *children] for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert len(listening) >= (workers > 1)
    assert {c.laddr.ip for c in listening} <= {"127.0.0.1"}  # the scheduler, the workers; kernels have no port at all
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert output.splitlines()[-1] == "Interrupted: what is finished is kept, and the same command runs what is missing."
    assert not psutil.wait_procs(children, timeout=10)[1]
    states = [line.split(",")[5] for line in (out / "runs.csv").read_text("utf-8").splitlines()[1:]]
    assert states == ["done", "missing", "missing" if workers == 1 else "done"]
    assert {row["size"] for row in results.read(out / "results.csv")} == ({2} if workers == 1 else {2, 18})
    assert not list(out.glob("*size=16*"))


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real scheduler and two workers, each a process of its own, started as the README says."""
    pytest.importorskip("distributed")
    place = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    quiet["env"] = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(place)], **quiet)
    ]
    deadline = time.monotonic() + 60
    while not place.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    address = json.loads(place.read_text("utf-8"))["address"]
    worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard"]
    started += [subprocess.Popen([*worker, "--host", "127.0.0.1"], **quiet) for _ in range(2)]
    try:
        yield address, started[0]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def test_a_running_scheduler_with_two_workers(tiny: library_chapters.Chapter, tmp_path: Path, scheduler: Any) -> None:
    import distributed

    address, process = scheduler
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    assert address.startswith("tcp://127.0.0.1:")
    runs = sweeps.run_sweep(tiny, wanted(tiny, 2, 6, 12), tmp_path / "out", scheduler=address)
    assert [run.state for run in runs] == ["done", "done", "failed"]
    assert [row["value"] for row in results.read(tmp_path / "out" / "results.csv") if row["record"] == "environment"] == [0.0, 0.0]
    # it is killed as soon as something is done, and that is kept
    with pytest.raises(sweeps.SweepError, match="the scheduler was lost: start it and this command again; what is finished is kept"):
        sweeps.run_sweep(tiny, wanted(tiny, 8, 18, 20, 22), tmp_path / "lost", scheduler=address, tell=lambda run: process.kill())
    finished = {path.name for path in (tmp_path / "lost").glob("ch_tiny-*.ipynb")}
    assert finished == {row["notebook"] for row in results.read(tmp_path / "lost" / "results.csv")} != set()


def test_a_scheduler_that_does_not_answer_is_one_sentence(
    tiny: library_chapters.Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "_PATIENCE", "1s")
    with pytest.raises(sweeps.SweepError, match=r"no dask scheduler answers at tcp://127.0.0.1:9: start one with"):
        sweeps.run_sweep(tiny, wanted(tiny, 2), tmp_path / "out", scheduler="tcp://127.0.0.1:9")


def test_one_setting_needs_no_dask(tiny: library_chapters.Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, in this process: another one is told to stop only by its owner's name."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    killed: list[str] = []
    kernel = type("", (), {"kill": lambda self: killed.append("somebody")})()
    monkeypatch.setitem(engine._RUNNING, -1, ("somebody", kernel))
    run = sweeps.run_sweep(tiny, wanted(tiny, 6, kind=["b"]), tmp_path / "out", workers=2)[0]
    assert (run.state, run.rows[0]["value"]) == ("done", 6.0)
    assert run.cpu_seconds > 0.1
    assert engine.stop("else") == 0
    assert engine.stop("somebody") == 1
    assert killed == ["somebody"]


def test_without_dask_the_sentence_says_what_to_install(
    tiny: library_chapters.Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(sweeps.SweepError, match=r"run 'pip install resnorm_lib\[rerun\]', or give --workers 1"):
        sweeps.run_sweep(tiny, wanted(tiny, 2, 4), tmp_path / "out", workers=2, execute=stub)
    assert sweeps.run_sweep(tiny, wanted(tiny, 2, 4), tmp_path / "out", workers=1, execute=stub)[0].state == "done"
