"""A build fails, each time, of a notebook whose outputs are not those of today's cells, library, claims and pins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import freshness
import pytest
import tiny_book


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny book whose chapter is as if executed: counted, and with today's record."""
    path = tiny_book.make(tmp_path)
    settle(path)
    return tmp_path


def settle(path: Path) -> None:
    """Give a notebook the counts and the record of a run, without a kernel."""
    notebook = json.loads(path.read_text("utf-8"))
    for count, cell in enumerate(freshness.code_cells(notebook), 1):
        cell["execution_count"] = count
    notebook["metadata"]["resnorm"] = freshness.record(notebook, path.stem, path.parents[1])
    path.write_text(json.dumps(notebook), "utf-8")


def problems(root: Path) -> list[str]:
    return freshness.problems(root / "book" / "ch_tiny.ipynb", root)


def notebook(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change of the chapter's file."""

    def apply(root: Path) -> None:
        path = root / "book" / "ch_tiny.ipynb"
        content = json.loads(path.read_text("utf-8"))
        change(content)
        path.write_text(json.dumps(content), "utf-8")

    return apply


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A change of another file."""

    def apply(root: Path) -> None:
        text = (root / name).read_text("utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new), "utf-8")

    return apply


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no\nno", "traceback": []}
STALE = {
    "cell edited": (notebook(lambda n: n["cells"][2].update(source="print(double(22))")), "its cells"),
    "prose edited": (notebook(lambda n: n["cells"][0].update(source="# Another")), "its cells"),
    "cell tagged": (notebook(lambda n: n["cells"][2]["metadata"].update(tags=["hide-input"])), "its cells"),
    "cell of another type": (notebook(lambda n: n["cells"][0].update(cell_type="raw")), "its cells"),
    "cell added": (notebook(lambda n: n["cells"].append(n["cells"][0] | {"id": "more"})), "its cells"),
    "cells moved": (notebook(lambda n: n["cells"].append(n["cells"].pop(0))), "its cells"),
    "module imported": (edit("resnorm_lib/norms.py", "* x", "* x + 0"), "library file resnorm_lib/norms.py"),
    "module imported in turn": (edit("resnorm_lib/base.py", "2", "3"), "library file resnorm_lib/base.py"),
    "package": (edit("resnorm_lib/__init__.py", '"""A library."""', "x = 1"), "library file resnorm_lib/__init__.py"),
    "signature": (edit("resnorm_lib/norms.py", "(x)", "(x, y=1)"), "library file resnorm_lib/norms.py"),
    "claim": (
        edit("resnorm_lib/claims.yml", "ch_tiny, low: 1.0", "ch_tiny, low: 2.0"),
        "its rows in resnorm_lib/claims.yml",
    ),
    "claim given away": (edit("resnorm_lib/claims.yml", "ch_tiny", "ch_other"), "its rows in resnorm_lib/claims.yml"),
    "pin": (edit("requirements.txt", "==", "<="), "requirements.txt"),
    "pin added": (lambda root: edit("requirements.txt", "# pins", "numpy>=1")(root), "requirements.txt"),
    "output edited": (
        notebook(lambda n: n["cells"][2].update(outputs=[{"output_type": "stream", "name": "stdout", "text": "9"}])),
        "its outputs",
    ),
    "record edited": (notebook(lambda n: n["metadata"]["resnorm"].update(digest="0")), "its record"),
}
FRESH = {
    "nothing": lambda root: None,
    "comment": edit("resnorm_lib/norms.py", "from . import base", "# why\nfrom . import base"),
    "docstring of a function": edit("resnorm_lib/norms.py", '"""Twice."""', '"""Two times."""'),
    "docstring of a module": edit("resnorm_lib/norms.py", '"""Norms."""\n', ""),
    "layout": edit("resnorm_lib/norms.py", "return base.TWO * x", "return (\n        base.TWO  *  x\n    )"),
    "module not imported": edit("resnorm_lib/unused.py", "0", "1"),
    "claim of another chapter": edit("resnorm_lib/claims.yml", "ch_other, low: 1.0", "ch_other, low: 2.0"),
    "comment among the pins": edit("requirements.txt", "# reads claims", "# reads yml"),
    "output and unrelated metadata": notebook(lambda n: n["cells"][2]["metadata"].update(mine=1)),
}
BROKEN = {
    "unrun": (
        notebook(lambda n: n["cells"][2].update(execution_count=None)),
        "not wholly executed (unrun code cells: 2)",
    ),
    "out of order": (notebook(lambda n: n["cells"][1].update(execution_count=7)), "not executed from top to bottom"),
    "error": (
        notebook(lambda n: n["cells"][2]["outputs"].append(ERROR)),
        "holds an error in code cell 2 (ValueError: no)",
    ),
    "no record": (notebook(lambda n: n["metadata"].pop("resnorm")), "not executed by this book's own command"),
    "no notebook": (lambda root: (root / "book" / "ch_tiny.ipynb").write_text("{"), "cannot be checked"),
    "no Python": (notebook(lambda n: n["cells"][1].update(source="(")), "cannot be checked (SyntaxError"),
}


@pytest.mark.parametrize("change", FRESH.values(), ids=FRESH)
def test_what_changes_no_number_makes_nothing_stale(root: Path, change: Callable[[Path], None]) -> None:
    change(root)
    assert problems(root) == []


@pytest.mark.parametrize(("change", "what"), STALE.values(), ids=STALE)
def test_stale(root: Path, change: Callable[[Path], None], what: str) -> None:
    change(root)
    expected = f"book/ch_tiny.ipynb is stale ({what} changed since it was executed): run `make run`."
    assert problems(root) == [expected]


@pytest.mark.parametrize(("change", "what"), BROKEN.values(), ids=BROKEN)
def test_broken(root: Path, change: Callable[[Path], None], what: str) -> None:
    change(root)
    (sentence,) = problems(root)
    assert sentence.startswith("book/ch_tiny.ipynb ")
    assert what in sentence
    assert sentence.endswith("run `make run`.")
    assert "\n" not in sentence


def test_every_problem_is_told(root: Path) -> None:
    notebook(lambda n: n["cells"][1].update(execution_count=None))(root)
    notebook(lambda n: n["cells"][2]["outputs"].append(ERROR))(root)
    assert len(problems(root)) == 2


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import resnorm_lib.norms as n", {"norms", "base"}),
        ("from resnorm_lib import norms", {"norms", "base"}),
        ("from resnorm_lib.norms import double as d", {"norms", "base"}),
        ("from resnorm_lib import *", {"norms", "base", "unused", "lazy"}),
        ("def late():\n    from resnorm_lib import unused", {"unused"}),
        ("%matplotlib inline\nif True:\n    !ls\nimport resnorm_lib.base", {"base"}),
        ("%%time\nimport resnorm_lib.base", {"base"}),
        ("%%html\n<p>import resnorm_lib.base</p>", set()),
        ("import resnorm_lib", set()),
        ("import json, resnorm_library", set()),
        ("from resnorm_lib.inner import deep", {"inner/__init__", "inner/deep", "inner/beside", "unused", "base"}),
        ("import resnorm_lib.inner.beside", {"inner/__init__", "inner/beside", "base"}),
        ("from resnorm_lib import lazy", {"lazy", "norms", "base"}),
    ],
)
def test_imports_are_followed(root: Path, source: str, modules: set[str]) -> None:
    inner = root / "resnorm_lib" / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("from resnorm_lib.base import TWO\n", "utf-8")
    (inner / "deep.py").write_text("from .beside import x\nfrom ..unused import NOTHING\n", "utf-8")
    (inner / "beside.py").write_text("x = 1\n", "utf-8")
    (root / "resnorm_lib" / "lazy.py").write_text("def f():\n    from .norms import double\n", "utf-8")
    path = tiny_book.write(root, "ch_tiny", source)
    found = freshness.record(json.loads(path.read_text("utf-8")), path.stem, root)["library"]
    assert set(found) == {f"resnorm_lib/{name}.py" for name in modules | {"__init__"}}


def test_data_that_a_module_names_count(root: Path) -> None:
    data = root / "resnorm_lib" / "data"
    data.mkdir()
    (data / "long_run.json").write_text("[1]", "utf-8")
    edit("resnorm_lib/base.py", "TWO = 2", "TWO = 2\nDATA = 'long_run.json'")(root)
    settle(root / "book" / "ch_tiny.ipynb")
    (data / "other.json").write_text("[1]", "utf-8")
    assert problems(root) == []
    (data / "long_run.json").write_text("[2]", "utf-8")
    assert "library file resnorm_lib/data/long_run.json changed" in problems(root)[0]


def test_no_hidden_or_private_folder_holds_notebooks(root: Path) -> None:
    for folder in ".ipynb_checkpoints", "_build", "more":
        (root / "book" / folder).mkdir()
        tiny_book.write(root, f"{folder}/ch_copy", "1")
    found = [path.relative_to(root).as_posix() for path in freshness.notebooks(root)]
    assert found == ["book/ch_tiny.ipynb", "book/more/ch_copy.ipynb"]


def test_builds_by_hand_fail_every_time(tmp_path: Path) -> None:
    root, first = tmp_path, tiny_book.make(tmp_path)

    def fails(message: str, *options: str) -> None:
        result = tiny_book.jupyter_book(root, *options)
        assert result.returncode not in (0, None), result.stdout
        assert message in result.stdout, result.stdout
        assert "run `make run`." in result.stdout

    fails("book/ch_tiny.ipynb is not wholly executed")
    fails("book/ch_tiny.ipynb is not wholly executed")
    assert tiny_book.execute(root).returncode == 0
    good = first.read_text("utf-8")
    # a good build before each change: its pages and its cache must not save the bad one
    assert tiny_book.jupyter_book(root).returncode == 0
    strict = ["-W", "-n", "--keep-going", "--all"]
    for change, message in (
        (
            notebook(lambda n: n["cells"][2]["outputs"].append(ERROR)),
            "book/ch_tiny.ipynb holds an error in code cell 2",
        ),
        (STALE["cell edited"][0], "book/ch_tiny.ipynb is stale (its cells changed"),
        (STALE["module imported in turn"][0], "book/ch_tiny.ipynb is stale (library file resnorm_lib/base.py changed"),
        (STALE["pin added"][0], "book/ch_tiny.ipynb is stale (requirements.txt changed"),
    ):
        kept = {name: (root / name).read_text("utf-8") for name in ("resnorm_lib/base.py", "requirements.txt")}
        change(root)
        fails(message)
        fails(message)
        fails(message, "--keep-going")
        first.write_text(good, "utf-8")
        for name, text in kept.items():
            (root / name).write_text(text, "utf-8")
    # a notebook that no page lists is checked as well
    tiny_book.write(root, "ch_unlisted", "1")
    fails("book/ch_unlisted.ipynb is not wholly executed", *strict)
    (root / "book" / "ch_unlisted.ipynb").unlink()
    result = tiny_book.jupyter_book(root, *strict)
    assert result.returncode == 0, result.stdout


def test_a_text_may_be_stored_as_lines() -> None:
    def notebook(text: Any) -> dict[str, Any]:
        output = {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}
        return {"cells": [{"cell_type": "code", "source": "x", "metadata": {}, "outputs": [output]}]}

    assert freshness.outputs(notebook("a\nb")) == freshness.outputs(notebook(["a\n", "b"]))
    assert freshness.outputs(notebook("a\nb")) != freshness.outputs(notebook("a\nc"))
