"""Plain papermill reruns each chapter from any folder, a bad parameter ends in one clear sentence, every parameter matters.

Each chapter has a class of its own, made at the end, so that loadscope spreads the chapters over the workers. Most quick
runs of a chapter share one kernel (see warm.py for what is shared, and the tests here for why nothing else is).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import warm
from conftest import chapters
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from resnorm_lib import parameters

Number = int | float | str
# A quick run takes so few seeds that these values give it as many as the published ones do; they must run all the same.
UNSEEN_IN_QUICK: set[tuple[str, str, Number]] = {
    ("ch_residual_derivation", "seeds", 20),
    ("ch_residual_derivation", "train_seeds", 2),
}


class Chapter(SimpleNamespace):
    """The sources of a chapter's code cells up to its validation, and the specification of each parameter."""

    before: list[str]
    declaration: str
    validation: str
    allowed: dict[str, Any]


class Captured(Exception):
    """Ends the validation cell once it has told its specifications."""


@functools.cache
def read(path: Path) -> Chapter:
    sources = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    tagged = next(k for k, cell in enumerate(sources) if "parameters" in cell.metadata.get("tags", []))
    before, declaration, validation = [c.source for c in sources[:tagged]], *(c.source for c in sources[tagged:][:2])
    allowed: dict[str, Any] = {}

    def check(_namespace: object, **specifications: Any) -> None:
        allowed.update(specifications)
        raise Captured

    with pytest.raises(Captured):
        exec(validation, {"parameters": SimpleNamespace(**vars(parameters) | {"check": check})})  # noqa: S102
    return Chapter(before=before, declaration=declaration, validation=validation, allowed=allowed)


def misspelt(name: str) -> str:
    return name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name + name[-1]


def others(allowed: Any) -> list[Number]:
    """Two values that are allowed and not the published one, of numbers one above and one below where there is one."""
    if isinstance(allowed, parameters.Choice):
        return list(allowed.options[1:3])
    number, step = allowed.published, getattr(allowed, "multiple", 1)
    down = number // 2 // step * step if isinstance(allowed, parameters.Integer) else number / 2
    candidates = [2 * number, down, 4 * number, number + step, number - step, number + 2 * step, allowed.high, allowed.low]
    return [x for x in dict.fromkeys(candidates) if x != number and allowed.accepts(x)][:2]


def refused(allowed: Any) -> list[Number]:
    """A value of a wrong type, and values out of range."""
    if isinstance(allowed, parameters.Choice):
        return [7, "nonsense"]
    return ["many", allowed.low - 1, allowed.high + 1]


def papermill(path: Path, folder: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    """Run the chapter with papermill's own command in ``folder``."""
    options = [word for name, value in values.items() for word in ("-p", name, str(value))]
    return subprocess.run(
        [sys.executable, "-m", "papermill", str(path), "out.ipynb", *options],
        check=False,
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=600,
    )


def fresh_run(path: Path, folder: Path, **values: Any) -> dict[str, Any]:
    """The records of a quick run by papermill's own command, in a fresh kernel."""
    result = papermill(path, folder, effort="quick", **values)
    assert result.returncode == 0, result.stdout
    assert [file.name for file in folder.iterdir()] == ["out.ipynb"], "a chapter writes no file"
    return checked(nbformat.read(folder / "out.ipynb", as_version=4), **values)


def checked(notebook: Any, **values: Any) -> dict[str, Any]:
    """The records of a quick run, which has nothing on stderr and gives no verdict."""
    outputs = outputs_of(notebook.cells)
    assert not [output for output in outputs if output.get("name") == "stderr" or output["output_type"] == "error"]
    records = records_of(notebook.cells)
    assert records, "a quick run records raw values"
    for record in records:
        assert record["published"] is False
        assert record.get("verdict") is None
        assert record.get("parameters", values).items() >= values.items()
    return recorded(notebook.cells)


def outputs_of(cells: Sequence[Any]) -> list[Any]:
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def records_of(cells: Sequence[Any]) -> list[dict[str, Any]]:
    """The records that cells have left in their outputs."""
    return [r for o in outputs_of(cells) for r in o.get("metadata", {}).get("resnorm", {}).get("records", [])]


def recorded(cells: Sequence[Any]) -> dict[str, Any]:
    """What they say, by name."""
    return {r["name"]: (r["value"], r.get("low"), r.get("high")) for r in records_of(cells)}


def in_turn(path: Path, name: str, value: Number) -> bool:
    """Whether this setting is run to its end where not all are asked for: every fourth, others when the notebook changes."""
    return hashlib.sha256(path.read_bytes() + f"{name}={value}".encode()).digest()[0] % 4 == 0


class WarmRuns:
    """Quick runs of one chapter in one kernel."""

    def __init__(self, kernel: warm.Warm, path: Path, folder: Path) -> None:
        self._kernel, self._path, self._folder = kernel, path, folder
        kernel.set_up(path)
        self.at_start = kernel.state()
        self.plain = self.records()
        self.after_first = kernel.state()
        self.last: tuple[dict[str, Number], dict[str, Any]] = ({}, self.plain)

    def differs(self, **values: Number) -> bool:
        """Whether a run with these values records another value than the plain one; it ends with the first that does."""

        def another(cell: Any) -> bool:
            found = recorded([cell])
            return any(self.plain.get(name) != value for name, value in found.items())

        notebook = self._kernel.run(self._path, enough=another, effort="quick", **values)
        found = checked(notebook, **values)
        return any(self.plain.get(name) != value for name, value in found.items())

    def records(self, **values: Number) -> dict[str, Any]:
        notebook = self._kernel.run(self._path, effort="quick", **values)
        assert not list(self._folder.iterdir()), "a chapter writes no file"
        self.last = values, checked(notebook, **values)
        return self.last[1]

    def state(self) -> str:
        return self._kernel.state()


@pytest.fixture(scope="class")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRuns]:
    path = request.cls.path
    folder = tmp_path_factory.mktemp(path.stem)
    with warm.warm(folder) as kernel:
        yield WarmRuns(kernel, path, folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every parameter at two other values."""
    if {"name", "value"} <= set(metafunc.fixturenames):
        allowed = read(metafunc.cls.path).allowed
        cases = [(name, value) for name in allowed if name != "effort" for value in others(allowed[name])]
        metafunc.parametrize(("name", "value"), cases, ids=[f"{name}={value}" for name, value in cases])


class Reruns:
    """The tests of one chapter; the order counts: the kernel that all settings share is judged at the end."""

    path: Path

    def test_each_parameter_alters_a_recorded_value(
        self, name: str, value: Number, runs: WarmRuns, request: pytest.FixtureRequest
    ) -> None:
        """Most runs end with the first value that differs; those in turn, or with ``--every-setting`` all, run to the end."""
        before = self.path.read_bytes()
        if request.config.getoption("--every-setting") or in_turn(self.path, name, value):
            altered = runs.records(**{name: value}) != runs.plain
        else:
            altered = runs.differs(**{name: value})
        assert altered != ((self.path.stem, name, value) in UNSEEN_IN_QUICK)
        assert self.path.read_bytes() == before

    def test_settings_that_share_a_kernel_share_nothing_else(self, runs: WarmRuns, tmp_path: Path) -> None:
        """The process is as it was after set-up, and a fresh one gives the same bits for the last of all settings."""
        assert runs.state() == runs.after_first
        moved = {line.split(",")[0] for line in set(runs.after_first.splitlines()) ^ set(runs.at_start.splitlines())}
        assert moved <= {"('figures'"}, runs.at_start + runs.after_first  # the first figure sets the style for all
        values, records = runs.last
        assert fresh_run(self.path, tmp_path, **values) == records

    def test_bad_parameters_stop_the_run(self, tmp_path: Path) -> None:
        """With plain papermill: a name that does not exist, a wrong type, and a value out of range, in one sentence."""
        allowed = read(self.path).allowed
        first, second, *_ = allowed
        values = {misspelt(first): allowed[first].published, first: refused(allowed[first])[0], second: refused(allowed[second])[1]}
        result = papermill(self.path, tmp_path, **values)
        assert result.returncode == 1, result.stdout
        last = [line for line in result.stdout.splitlines() if line.strip()][-1]
        assert "ParameterError: " in last
        assert f"{misspelt(first)} = {allowed[first].published!r} is not a parameter of this chapter (did you mean {first}?)" in last
        assert f"allowed are: {', '.join(sorted(allowed))}" in last
        for name in first, second:
            assert f"{name} = {values[name]!r} " in last
            assert f"it must be {allowed[name].allowed()}" in last

    def test_each_parameter_is_checked(self) -> None:
        chapter = read(self.path)
        for name, allowed in chapter.allowed.items():
            for value in refused(allowed):
                namespace = {"parameters": parameters}
                exec(chapter.declaration, namespace)  # noqa: S102
                with pytest.raises(parameters.ParameterError, match=f"^{name} = .* it must be "):
                    exec(chapter.validation, namespace | {name: value})  # noqa: S102

    def test_validation_again_in_a_live_kernel(self, tmp_path: Path) -> None:
        chapter = read(self.path)
        name, published = next((name, repr(allowed.published)) for name, allowed in chapter.allowed.items())
        client = NotebookClient(new_notebook(), kernel_name="python3")

        def run(source: str) -> None:
            client.nb.cells.append(new_code_cell(source))
            client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1)

        with client.setup_kernel(cwd=str(tmp_path)):
            for source in (*chapter.before, chapter.declaration, chapter.validation):
                run(source)
            # what a session leaves behind: variables, one of them named almost like a parameter
            run(f"{misspelt(name)} = 3\nresults, x, _y = [], 1.5, None\nfor k in range(3): pass")
            run("%time 1")
            run(chapter.validation)
            # papermill's cell comes after the parameters cell; a person mends it and runs it again
            run(f"# Parameters\n{misspelt(name)} = {published}\n")
            with pytest.raises(CellExecutionError, match=f"{misspelt(name)} = .* is not a parameter"):
                run(chapter.validation)
            run(f"# Parameters\n{name} = {published}\n")
            run(chapter.validation)
            # or goes back to the chapter's own parameters cell
            run(f"# Parameters\n{misspelt(name)} = {published}\n")
            run(chapter.declaration)
            run(chapter.validation)
            run(f"{name} = None")
            with pytest.raises(CellExecutionError, match=f"{name} = None"):
                run(chapter.validation)
            run(chapter.declaration)
            run(chapter.validation)

    def test_help_lists_each_parameter_with_its_comment(self, tmp_path: Path) -> None:
        call = [sys.executable, "-m", "papermill", "--help-notebook", str(self.path)]
        shown = subprocess.run(call, check=True, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8").stdout
        lines = [" ".join(line.split()) for line in shown.splitlines()]
        for line in read(self.path).declaration.splitlines():
            if "#" in line:
                comment = line.split("#", 1)[1].strip()
                assert any(comment[:30] in shown_line for shown_line in lines), f"{json.dumps(comment)} is not in the help"


def _class_of(path: Path) -> type:
    """The class of a chapter; its test ids have the chapter's name."""
    return type(f"Test_{path.stem}", (Reruns,), {"path": path, "__module__": __name__})


globals().update({made.__name__: made for made in map(_class_of, chapters())})
