"""Plain papermill reruns each chapter from any folder, and a bad parameter ends in one clear sentence."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from conftest import chapters
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from resnorm_lib import parameters

CHAPTERS = chapters()
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


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


def another(allowed: Any) -> int | float | str:
    """A value that is allowed and not the published one."""
    if isinstance(allowed, parameters.Choice):
        return allowed.options[1]
    number = allowed.published
    candidates = number * 2, type(number)(number / 2), number + 1
    return next(value for value in candidates if value != number and allowed.accepts(value))


def refused(allowed: Any) -> list[int | float | str]:
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


@functools.cache
def quick_run(path: Path, folder: Path, **values: Any) -> dict[str, Any]:
    """The recorded values of a quick run, by record's name."""
    result = papermill(path, folder, effort="quick", **values)
    assert result.returncode == 0, result.stdout
    assert [file.name for file in folder.iterdir()] == ["out.ipynb"], "a chapter writes no file"
    code = [cell for cell in nbformat.read(folder / "out.ipynb", as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    records = [r for o in outputs for r in o.get("metadata", {}).get("resnorm", {}).get("records", [])]
    assert records, "a quick run records raw values"
    for record in records:
        assert record["published"] is False
        assert record.get("verdict") is None
        assert record.get("parameters", values).items() >= values.items()
    return {record["name"]: record["value"] for record in records}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The recorded values of a chapter's quick run with all else as published, made once."""
    return functools.cache(lambda path: quick_run(path, tmp_path_factory.mktemp(path.stem)))


@pytest.mark.parametrize(
    ("path", "name"),
    [pytest.param(p, n, id=f"{p.stem}-{n}") for p in CHAPTERS for n in read(p).allowed if n != "effort"],
)
def test_each_parameter_alters_a_recorded_value(path: Path, name: str, plain: Any, tmp_path: Path) -> None:
    before = path.read_bytes()
    assert quick_run(path, tmp_path, **{name: another(read(path).allowed[name])}) != plain(path)
    assert path.read_bytes() == before


@each_chapter
@pytest.mark.parametrize("case", ["misspelt name", "wrong type", "out of range"])
def test_bad_parameter_stops_the_run(path: Path, case: str, tmp_path: Path) -> None:
    name, allowed = next(iter(read(path).allowed.items()))
    if case == "misspelt name":
        name, value, expected = (
            misspelt(name),
            allowed.published,
            f"allowed are: {', '.join(sorted(read(path).allowed))}",
        )
    else:
        value, expected = refused(allowed)[case == "out of range"], f"it must be {allowed.allowed()}"
    result = papermill(path, tmp_path, **{name: value})
    assert result.returncode == 1, result.stdout
    last = [line for line in result.stdout.splitlines() if line.strip()][-1]
    assert "ParameterError: " in last
    assert f"{name} = {value!r} " in last
    assert expected in last


@each_chapter
def test_each_parameter_is_checked(path: Path) -> None:
    chapter = read(path)
    for name, allowed in chapter.allowed.items():
        for value in refused(allowed):
            namespace = {"parameters": parameters}
            exec(chapter.declaration, namespace)  # noqa: S102
            with pytest.raises(parameters.ParameterError, match=f"^{name} = .* it must be "):
                exec(chapter.validation, namespace | {name: value})  # noqa: S102


@each_chapter
def test_validation_again_in_a_live_kernel(path: Path, tmp_path: Path) -> None:
    chapter = read(path)
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


@each_chapter
def test_help_lists_each_parameter_with_its_comment(path: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "papermill", "--help-notebook", str(path)]
    shown = subprocess.run(call, check=True, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for line in read(path).declaration.splitlines():
        if "#" in line:
            comment = line.split("#", 1)[1].strip()
            assert any(comment[:30] in shown_line for shown_line in lines), f"{json.dumps(comment)} is not in the help"
