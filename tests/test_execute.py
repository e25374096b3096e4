"""``make run`` and ``make book`` on a tiny book: whole or nothing, the same bytes twice, one sentence on failure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest
import tiny_book

BUSY = "import time\nprint('busy')\ntime.sleep(60)"


def files(root: Path) -> set[str]:
    """Every file of the book, hidden ones included, without what Python or a build leaves."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name and not name.startswith("_build")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny book in a folder with a space in its name."""
    root = tmp_path / "my book"
    tiny_book.make(root)
    return root


def test_twice_the_same_bytes_and_a_status_entry(root: Path) -> None:
    # pieces of a stream arrive in other cuts in each run; a figure would hold its own date
    chatter = "for k in range(2000):\n    print(k, flush=k % 7 == 0)"
    plot = "from matplotlib import pyplot\npyplot.plot([1, 2])\npyplot.show()"
    path = tiny_book.write(root, "ch_tiny", chatter, plot, "import os\nsorted(os.listdir())")
    (root / "book" / "ch_tiny.ipynb").chmod(0o664)
    first = tiny_book.execute(root, MPLBACKEND="svg", PYTHONWARNINGS="error", MKL_CBWR="COMPATIBLE")
    assert first.returncode == 0, first.stdout
    once = path.read_bytes()
    assert tiny_book.execute(root).returncode == 0
    assert path.read_bytes() == once
    assert path.stat().st_mode & 0o777 == 0o664
    notebook = json.loads(once)
    assert [cell.get("execution_count") for cell in notebook["cells"]] == [None, 1, 2, 3]
    assert [cell["id"] for cell in notebook["cells"]] == ["title", "cell-0", "cell-1", "cell-2"]
    assert len(notebook["cells"][1]["outputs"]) == 1
    assert [list(output["data"]) for output in notebook["cells"][2]["outputs"]] == [["image/png", "text/plain"]]
    # the kernel's folder holds nothing of the book's and nothing of the user's
    assert "'matplotlibrc'" in "".join(notebook["cells"][3]["outputs"][0]["data"]["text/plain"])
    assert "'book'" not in "".join(notebook["cells"][3]["outputs"][0]["data"]["text/plain"])
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    status = json.loads((root / "book" / "_data" / "status.json").read_text("utf-8"))
    assert set(status) == {"chapters", "machine", "python", "packages"}
    entry = status["chapters"]["ch_tiny"]
    assert 0.1 < entry["seconds"] < 100
    assert 0 < entry["wall_seconds"] < 100
    assert 30 < entry["peak_memory_mib"] < 3000


def test_old_outputs_and_volatile_metadata_go(root: Path) -> None:
    path = root / "book" / "ch_tiny.ipynb"
    tiny_book.execute(root)
    clean = path.read_bytes()
    notebook = json.loads(clean)
    notebook["metadata"] |= {
        "widgets": {},
        "papermill": {"duration": 1},
        "kernelspec": {"name": "mine", "display_name": "M"},
    }
    notebook["metadata"]["language_info"]["version"] = "3.99"
    notebook["cells"][2]["metadata"] |= {"execution": {"iopub.status.busy": "2020"}, "scrolled": True}
    notebook["cells"][2]["outputs"] *= 2
    path.write_text(json.dumps(notebook), "utf-8")
    assert tiny_book.execute(root).returncode == 0
    assert path.read_bytes() == clean


def test_a_failing_cell_leaves_its_notebook_and_spares_the_others(root: Path) -> None:
    bad = tiny_book.write(root, "ch_bad", "x = 1", "# comment\nraise ValueError('first line\\nlast line')", "y = 2")
    dead = tiny_book.write(root, "ch_dead", "import os\nos._exit(1)")
    before, dead_before = bad.read_bytes(), dead.read_bytes()
    result = tiny_book.execute(root)
    assert result.returncode == 1
    sentences = [line for line in result.stdout.splitlines() if line.startswith("book/")]
    assert len(sentences) == 2
    assert any(line.startswith("book/ch_bad.ipynb failed in code cell 2 of 3 with last line") for line in sentences)
    assert any(line.startswith("book/ch_dead.ipynb lost its kernel in code cell 1 of 1") for line in sentences)
    assert "Traceback" not in result.stdout
    assert (bad.read_bytes(), dead.read_bytes()) == (before, dead_before)
    assert '"execution_count": 2' in (root / "book" / "ch_tiny.ipynb").read_text("utf-8")
    assert list(json.loads((root / "book" / "_data" / "status.json").read_text("utf-8"))["chapters"]) == ["ch_tiny"]


def test_an_error_that_a_tag_allows_is_still_a_failure(root: Path) -> None:
    path = root / "book" / "ch_tiny.ipynb"
    notebook = json.loads(path.read_text("utf-8"))
    notebook["cells"][1] |= {"source": "1 / 0", "metadata": {"tags": ["raises-exception"]}}
    path.write_text(json.dumps(notebook), "utf-8")
    result = tiny_book.execute(root)
    assert result.returncode == 1
    assert "failed in code cell 1 of 2 with ZeroDivisionError: division by zero" in result.stdout


def test_stale_and_named_notebooks(root: Path) -> None:
    other = tiny_book.write(root, "ch_other", "print('other')")
    assert tiny_book.execute(root, other).returncode == 0
    assert "null" in (root / "book" / "ch_tiny.ipynb").read_text("utf-8")
    result = tiny_book.execute(root, "--stale")
    assert result.returncode == 0
    assert "ch_tiny: done" in result.stdout
    assert "ch_other" not in result.stdout
    assert tiny_book.execute(root, "--stale").stdout == "All chapters are up to date.\n"
    nowhere = tiny_book.execute(root, "book/ch_nowhere.ipynb")
    assert nowhere.returncode == 2
    assert "ch_nowhere.ipynb is not a notebook of this book" in nowhere.stdout


def test_the_longest_chapter_starts_first(root: Path) -> None:
    for stem in "ch_long", "ch_new":
        tiny_book.write(root, stem, "1")
    seconds = {"ch_tiny": {"wall_seconds": 5.0}, "ch_long": {"wall_seconds": 50.0}, "ch_gone": {"wall_seconds": 500.0}}
    (root / "book" / "_data").mkdir()
    (root / "book" / "_data" / "status.json").write_text(json.dumps({"chapters": seconds}), "utf-8")
    lines = tiny_book.execute(root, "--jobs", "1").stdout.splitlines()
    assert [line.split(":")[0] for line in lines if "started" in line] == ["ch_new", "ch_long", "ch_tiny"]
    status = json.loads((root / "book" / "_data" / "status.json").read_text("utf-8"))
    assert list(status["chapters"]) == ["ch_long", "ch_new", "ch_tiny"]


def test_other_packages_than_the_pins_are_refused(root: Path) -> None:
    before = (root / "book" / "ch_tiny.ipynb").read_bytes()
    (root / "requirements.txt").write_text("pyyaml==5.0\nno-such-package==1.0  # comment\npsutil>=1\n", "utf-8")
    result = tiny_book.execute(root)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 1
    assert "No chapter was executed because pyyaml is " in result.stdout
    assert " instead of ==5.0, no-such-package is missing: install" in result.stdout
    assert (root / "book" / "ch_tiny.ipynb").read_bytes() == before


def test_the_library_beside_the_book_is_the_one_that_runs(root: Path) -> None:
    tiny_book.write(
        root, "ch_tiny", "import resnorm_lib\nfrom pathlib import Path\nPath(resnorm_lib.__file__).parts[-3]"
    )
    assert tiny_book.execute(root).returncode == 0
    assert "'my book'" in (root / "book" / "ch_tiny.ipynb").read_text("utf-8")


def test_an_edit_during_the_run_is_not_lost(root: Path) -> None:
    # the notebook edits itself, as its author might meanwhile
    path = root / "book" / "ch_tiny.ipynb"
    tiny_book.write(root, "ch_tiny", f"from pathlib import Path\nn = Path({str(path)!r}).write_text('edited')")
    result = tiny_book.execute(root)
    assert result.returncode == 1
    assert "book/ch_tiny.ipynb was edited while it was executed" in result.stdout
    assert path.read_text("utf-8") == "edited"


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize("wait_for", ["started", "busy"])
def test_an_interrupt_leaves_nothing_half_done(root: Path, wait_for: str) -> None:
    path = tiny_book.write(
        root, "ch_tiny", BUSY if wait_for == "started" else f"open({str(root / 'flag')!r}, 'w')\n{BUSY}"
    )
    for stem in "ch_second", "ch_waits":
        tiny_book.write(root, stem, BUSY)
    before, bytes_before = files(root), path.read_bytes()
    command = [sys.executable, "book/_ext/execute.py", "--jobs", "2", path, root / "book" / "ch_second.ipynb"]
    process = subprocess.Popen(
        [*command, root / "book" / "ch_waits.ipynb"],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    assert "started" in process.stdout.readline()
    deadline = time.monotonic() + 60
    while wait_for == "busy" and not (root / "flag").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert kernels or wait_for == "started"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "Interrupted: the chapters that were running are as they were."
    assert "Traceback" not in output
    assert path.read_bytes() == bytes_before
    assert files(root) - {"flag"} == before
    assert not psutil.wait_procs(kernels, timeout=10)[1]


def test_build_is_stamped_only_when_good_and_packs_the_same_zip_twice(root: Path) -> None:
    def book(*options: str) -> tuple[int, list[str]]:
        result = tiny_book.call(root, "book/_ext/build.py", *options)
        return result.returncode, result.stdout.splitlines()

    index, page = str(root / "_build" / "html" / "index.html"), root / "_build" / "html" / "book" / "ch_tiny.html"
    code, lines = book("--dist")
    assert (code, lines[-1]) == (0, index)
    zipped = (root / "dist" / "tiny-book-1.2.3.zip").read_bytes()
    assert book() == (0, ["All chapters are up to date.", index])

    # each input leads to a build: changed, added, deleted; so does a page that is not what the build left
    for change in (
        lambda: (root / "_config.yml").write_text(
            (root / "_config.yml").read_text("utf-8") + "copyright: ''\n", "utf-8"
        ),
        lambda: (root / "book" / "new.css").write_text("", "utf-8"),
        lambda: (root / "book" / "new.css").unlink(),
        lambda: page.write_text("edited", "utf-8"),
    ):
        change()
        code, lines = book()
        assert (code, lines[-1]) == (0, index)
        assert len(lines) > 5
    (root / "_config.yml").write_text((root / "_config.yml").read_text("utf-8").replace("copyright: ''\n", ""), "utf-8")
    stray = root / "_build" / "html" / "book" / "gone.html"
    stray.write_text("a page of a chapter that is no more", "utf-8")
    assert book("--dist")[0] == 0
    assert not stray.exists()
    assert (root / "dist" / "tiny-book-1.2.3.zip").read_bytes() == zipped
    with zipfile.ZipFile(root / "dist" / "tiny-book-1.2.3.zip") as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"tiny-book-1.2.3"}
        assert "tiny-book-1.2.3/index.html" in archive.namelist()

    # a warning fails the build, this time and the next
    good = (root / "book" / "ch_tiny.ipynb").read_text("utf-8")
    (root / "book" / "ch_tiny.ipynb").write_text(good.replace("# The page", "[no](nowhere.md) # The page"), "utf-8")
    for _ in range(2):
        code, lines = book()
        assert (code, lines[-1][:22]) == (1, "The book was not built")
        assert not (root / "_build" / "built-from").exists()
    # a failing cell as well, before anything is built
    shutil.rmtree(root / "_build")
    (root / "resnorm_lib" / "base.py").write_text("TWO = 1 / 0\n", "utf-8")
    code, lines = book()
    assert code == 1
    assert "failed in code cell 1 of 2 with ZeroDivisionError" in lines[-1]
    assert not (root / "_build").exists()
