"""A chapter runs where only Colab's packages are, by its address and with the library inside; the other homes are described.

Here one environment, made of this one's packages, and one chapter; `make colab` has the rest. The second half shows the check
notebooks and wheels of which it must complain.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import colab
import freshness
import nbformat
import pytest
import self_contained
import yaml
from conftest import chapters
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "book" / "ch_layernorm_projector.ipynb"
SET_UP = (
    'import importlib.util\nimport os\n\nif importlib.util.find_spec("resnorm_lib") is None:\n'
    '    source = os.environ.get("RESNORM_SOURCE", "")\n    raise ModuleNotFoundError(source)'
)

INTRUDE = """import pathlib, resnorm_lib, sysconfig
about = pathlib.Path(sysconfig.get_path("purelib"), "intruder-1.0.dist-info")
about.mkdir()
(about / "METADATA").write_text("Metadata-Version: 2.1\\nName: intruder\\nVersion: 1.0\\n")
(about / "RECORD").touch()"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with Colab's packages, at the versions that are here."""
    environment = tmp_path_factory.mktemp("bare") / "environment"
    colab.make(environment, None)
    return environment


def test_bare_environment_is_bare(bare: Path) -> None:
    names = {line.split("==")[0].split(" @")[0].lower() for line in colab.freeze(bare)}
    assert {"torch", "numpy", "matplotlib", "scipy", "ipykernel"} <= names
    assert not names & {"papermill", "nbval", "pytest", "jupyter-book", "sphinx", "resnorm_lib", "resnorm-lib"}


@pytest.mark.parametrize("way", colab.WAYS)
def test_chapter_runs_as_on_colab(way: str, bare: Path, tmp_path: Path) -> None:
    address = colab.publish(tmp_path / "repository") if way == "address" else ""
    colab.check(CHAPTER, way, bare, "quick", address)


def test_lists_of_make_colab() -> None:
    named = colab.environments()
    assert list(named) == ["shipped", "newest", "oldest"]
    assert not [need for need in named["newest"] if "=" in need]
    needs = set(colab.lowest())
    for name in "shipped", "oldest":
        assert needs - {"torch"} <= {need.split("==")[0] for need in named[name] if "==" in need}


# The wheel


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_has_the_bytes_of_the_files_alone(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    for path in sorted((ROOT / "resnorm_lib").rglob("*"), reverse=True):  # another order, other times, other rights
        if path.is_file() and "__pycache__" not in path.parts:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            os.utime(copy, (1e9, 1e9))
            copy.chmod(0o600)
    wheel = self_contained.wheel(tmp_path)
    assert wheel == self_contained.wheel(ROOT)
    assert self_contained.carry(CHAPTER.read_text("utf-8"), *wheel) == self_contained.carry(
        CHAPTER.read_text("utf-8"), *self_contained.wheel(ROOT)
    )


def test_wheel_holds_what_pip_would_install(tmp_path: Path) -> None:
    name, data = self_contained.wheel(ROOT)
    made = colab.publish(tmp_path / "repository").removesuffix("@main")
    colab.call([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, made])
    theirs = (tmp_path / name).read_bytes()
    assert contents(data) == contents(theirs)
    assert {"resnorm_lib/claims.yml", "resnorm_lib/py.typed"} <= contents(data).keys()
    assert {f"resnorm_lib/data/{path.name}" for path in (ROOT / "resnorm_lib" / "data").glob("long_*.json")} <= contents(data).keys()
    about = {}
    for wheel in (data, theirs):
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            text = archive.read(f"{'-'.join(name.split('-')[:2])}.dist-info/METADATA").decode().split("\n\n")[0]
            about[wheel] = {line for line in text.splitlines() if not line.startswith(("Description", "Dynamic"))}
    assert about[data] == about[theirs]


def test_pip_installs_the_wheel(tmp_path: Path) -> None:
    name, data = self_contained.wheel(ROOT)
    (tmp_path / name).write_bytes(data)
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "there", tmp_path / name]
    colab.call([sys.executable, *words])
    assert (tmp_path / "there" / "resnorm_lib" / "claims.yml").read_bytes() == (ROOT / "resnorm_lib" / "claims.yml").read_bytes()


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_self_contained_notebook_is_the_chapter(path: Path) -> None:
    before = path.read_text("utf-8")
    after = self_contained.carry(before, *self_contained.wheel(ROOT))
    assert after is not None and len(after.encode()) - len(before.encode()) < 250_000
    old, new = json.loads(before), json.loads(after)
    nbformat.validate(new)
    changed = [(a, b) for a, b in zip(old["cells"], new["cells"], strict=True) if a != b]
    assert len(changed) == 1
    was, cell = changed[0]
    assert "RESNORM_SOURCE" in "".join(was["source"]) and "RESNORM_SOURCE" not in "".join(cell["source"])
    assert {**cell, "source": was["source"], "metadata": was["metadata"]} == was
    assert cell["source"][0].startswith("# @title ")
    assert cell["metadata"]["cellView"] == "form" and cell["metadata"]["jupyter"] == {"source_hidden": True}
    # no cell before it needs the library
    first = next(c for c in new["cells"] if c["cell_type"] == "code")
    assert first is cell


def test_a_page_without_set_up_cell_has_no_such_notebook() -> None:
    text = nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")]))
    assert self_contained.carry(text, *self_contained.wheel(ROOT)) is None


# Runs of which the check must complain


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import os\nos.fork", "has no attribute 'fork'"),
        ("open('left.txt', 'w').close()", "it left files in its folder: left.txt"),
        ("import sys\nprint('Deprecated', file=sys.stderr)", "code cell 2 writes to stderr: Deprecated"),
        (INTRUDE, "the environment has changed: intruder"),
        ("import papermill", "No module named 'papermill'"),
    ],
)
def test_complains_of_a_run(source: str, complaint: str, bare: Path, tmp_path: Path) -> None:
    chapter = tmp_path / "ch_tiny.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(SET_UP), new_code_cell(source)]), chapter)
    try:
        with pytest.raises(colab.Failure) as failure:
            colab.check(chapter, "self-contained", bare, "quick", "")
        assert complaint in str(failure.value)
    finally:
        shutil.rmtree(colab.site_packages(bare) / "intruder-1.0.dist-info", ignore_errors=True)


def test_complains_of_a_wheel_without_its_data(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = tmp_path / "ch_tiny.ipynb"
    load = "from resnorm_lib import claim_rows\nassert claim_rows.load()"
    nbformat.write(new_notebook(cells=[new_code_cell(SET_UP), new_code_cell(load)]), chapter)
    colab.check(chapter, "self-contained", bare, "quick", "")
    name, data = self_contained.wheel(ROOT)
    smaller = io.BytesIO()
    with zipfile.ZipFile(smaller, "w") as archive:
        for file, text in contents(data).items():
            if not file.endswith(".yml"):
                archive.writestr(file, text)
    monkeypatch.setattr(self_contained, "wheel", lambda root: (name, smaller.getvalue()))
    with pytest.raises(colab.Failure, match=r"claims\.yml"):
        colab.check(chapter, "self-contained", bare, "quick", "")


def test_complains_of_other_numbers() -> None:
    def holding(**record: Any) -> dict[str, Any]:
        output = {"output_type": "display_data", "data": {}, "metadata": {"resnorm": {"records": [{"name": "a", **record}]}}}
        return nbformat.from_dict({"cells": [{"cell_type": "code", "source": "", "outputs": [output]}]})

    committed = holding(value=1.0, band=[0.5, 1.5], verdict="holds")
    assert list(colab.faults(holding(value=1.2, verdict="holds"), committed, "published")) == []
    assert list(colab.faults(holding(value=2.0), committed, "quick")) == []
    said = list(colab.faults(holding(value=2.0, verdict="fails"), committed, "published"))
    assert len(said) == 2 and "outside its band of 0.5 to 1.5" in said[0] and "fails, but in the committed chapter it holds" in said[1]


# Other homes: what can be checked of them without Docker and Binder


def test_no_chapter_depends_on_fork() -> None:
    cells = {path.name: freshness.code_cells(json.loads(path.read_text("utf-8"))) for path in chapters()}
    sources = {name: "\n".join("".join(cell["source"]) for cell in found) for name, found in cells.items()}
    used = {file for source in sources.values() for file in freshness._library(source, ROOT)}
    sources |= {file: (ROOT / file).read_text("utf-8") for file in used if file.endswith(".py")}
    processes = r"\b(os\.fork|forkserver|multiprocessing|ProcessPoolExecutor|num_workers|joblib|n_jobs)\b"
    assert not [name for name, source in sources.items() if re.search(processes, source)]


def test_every_home_has_the_pins_of_the_book() -> None:
    binder = (ROOT / ".binder" / "requirements.txt").read_text("utf-8").splitlines()
    needs = [line for line in binder if line and not line.startswith("#")]
    assert needs == ["-r ../requirements.txt", "-e ."]
    docker = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    copied = re.search(r"(?m)^COPY (.+) \./$", docker)
    installed = re.search(r"(?m)^RUN python -m pip install ((?:-r \S+ ?)+)$", docker)
    assert copied and installed
    assert copied[1].split() == [name for name in installed[1].split() if name != "-r"]
    assert all((ROOT / name).is_file() for name in copied[1].split()) and copied[1].split()[0] == "requirements.txt"
    versions = {
        re.search(r"(?m)^FROM python:(\d+\.\d+)-slim$", docker)[1],
        (ROOT / ".binder" / "runtime.txt").read_text("utf-8").strip().removeprefix("python-"),
    }
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text("utf-8"))
    versions |= {step["with"]["python-version"] for step in workflow["jobs"]["build"]["steps"] if "setup-python" in step.get("uses", "")}
    assert len(versions) == 1
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    build = {key: (ROOT / ".devcontainer" / value).resolve() for key, value in container["build"].items()}
    assert build == {"dockerfile": ROOT / "Dockerfile", "context": ROOT}


def test_command_line_names_the_chapters_there_are() -> None:
    done = subprocess.run([sys.executable, ROOT / "tests" / "colab.py", "ch_nothing"], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "ch_nothing: there are ch_" in done.stderr
