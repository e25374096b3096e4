"""Run chapters as Colab does: `make colab`, or ``python tests/colab.py``.

Each run has a notebook alone in an empty folder, and an environment that holds what Colab preinstalls and no more. Two ways to
the library are tried: the set-up cell installs it from an address, here ``git+file://`` with the working tree; and the built
book's self-contained notebook brings it along. Afterwards the environment must hold what it held before, but for the library
in the first way. `os.fork` is taken away, as on Windows. ``--effort published`` also compares every verdict and band.

torch is taken from the environment that runs this file, by links, so that it is downloaded once for all; the rest is installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "book" / "_ext"), str(ROOT / "tests")]

import freshness
import repository
import self_contained

LIBRARY = freshness.PACKAGE
PREINSTALLED = (
    *("torch", "numpy", "matplotlib", "scipy", "scikit-learn"),
    *("pydantic", "pyyaml", "tqdm", "pandas", "ipykernel", "ipython"),
)
# Colab's runtime 2026.01, from the list that it publishes, but for torch (there 2.9.0) and Python (there 3.12).
SHIPPED = {
    "numpy": "2.0.2",
    "matplotlib": "3.10.0",
    "scipy": "1.16.3",
    "scikit-learn": "1.6.1",
    "pydantic": "2.12.3",
    "pyyaml": "6.0.3",
    "tqdm": "4.67.1",
    "pandas": "2.2.2",
    "ipykernel": "6.17.1",
    "ipython": "7.34.0",
    "traitlets": "5.7.1",
    "jupyter-client": "7.4.9",
    "psutil": "5.9.5",
}
WAYS = ("address", "self-contained")
# Loaded at the start of every Python there: a system that cannot fork.
NO_FORK = "import os\nfor name in ('fork', 'forkpty'):\n    if hasattr(os, name):\n        delattr(os, name)\n"


class Failure(Exception):
    """A run that did not go as on a machine where all is well; the message says what was wrong."""


def lowest() -> dict[str, str]:
    """The oldest versions that pyproject.toml allows."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    pairs = [need.split(">=") for need in needs]
    return {name: version for name, version in pairs}


def environments() -> dict[str, list[str]]:
    """What pip is asked for in each environment, torch left out."""
    rest = [name for name in PREINSTALLED if name != "torch"]
    return {
        "shipped": [f"{name}=={version}" for name, version in SHIPPED.items()],
        "newest": rest,
        "oldest": [f"{n}=={v}" for n, v in lowest().items() if n != "torch"] + ["ipykernel==6.17.1", "traitlets==5.7.1"],
    }


def site_packages(environment: Path) -> Path:
    """Where an environment keeps its packages."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(call([python_of(environment), "-c", where]).strip())


def python_of(environment: Path) -> Path:
    """An environment's interpreter."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def link(names: list[str], environment: Path) -> None:
    """Put packages of this environment into another one, by links where the system has them."""
    target = site_packages(environment)
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in sorted(tops):
            kept, new = Path(str(distribution.locate_file(top))), target / top
            if kept.exists() and not new.exists():
                try:
                    new.symlink_to(kept, target_is_directory=kept.is_dir())
                except OSError:  # Windows, without the right to make links
                    (shutil.copytree if kept.is_dir() else shutil.copy)(kept, new)


def closure(names: tuple[str, ...]) -> list[str]:
    """Those of the packages that are installed here, with all that they need."""
    from packaging.requirements import Requirement

    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found[key] = None
        wanted = [need for need in map(Requirement, needs) if need.marker is None or need.marker.evaluate({"extra": ""})]
        waiting += [need.name for need in wanted]
    return list(found)


def make(environment: Path, wanted: list[str] | None) -> None:
    """Make an environment; with None for the packages, all of them are linked and none is installed."""
    call([sys.executable, "-m", "venv", environment])
    if wanted is None:
        link(closure(PREINSTALLED), environment)
    else:
        link(["torch"], environment)
        torch = importlib.metadata.version("torch")
        call([python_of(environment), "-m", "pip", "install", "-q", f"torch=={torch}", *wanted])
    (site_packages(environment) / "sitecustomize.py").write_text(NO_FORK, "utf-8")


def call(words: list[Any]) -> str:
    """Run a command without this environment's settings, and return what it printed; what it says on failing is raised."""
    settings = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(word) for word in words],
        check=False,
        env=settings | {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise Failure(f"{' '.join(map(str, words[:4]))} … failed: {(done.stdout + done.stderr).strip()[-800:]}")
    return done.stdout


def freeze(environment: Path) -> list[str]:
    """Every package of an environment with its version, the library left out."""
    lines = call([python_of(environment), "-m", "pip", "freeze", "--all"]).splitlines()
    return sorted(line for line in lines if not re.match(f"{LIBRARY}\\b", line))


def publish(folder: Path) -> str:
    """A repository of today's library, and the address from which pip can install it."""
    listed = ["git", "-C", ROOT, "ls-files", "-z", "-co", "--exclude-standard", "--", LIBRARY, "pyproject.toml", "README.md", "LICENSE"]
    for name in filter(None, call(listed).split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    author = ["-c", "user.name=book", "-c", "user.email=book@localhost", "-c", "commit.gpgsign=false"]
    call(["git", "-C", folder, "init", "-q", "-b", "main"])
    call(["git", "-C", folder, "add", "-A"])
    call(["git", "-C", folder, *author, "commit", "-q", "-m", "library"])
    return f"git+{folder.as_uri()}@main"


def prepared(chapter: Path, way: str, effort: str, address: str) -> Any:
    """The notebook as a reader of Colab gets it, parameters changed only in ``effort``."""
    text = chapter.read_text("utf-8")
    if way == "address":
        text = repository.stamp(text, address)
    else:
        text = self_contained.carry(text, *self_contained.wheel(ROOT)) or ""
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = re.sub(r'(?m)^effort = "\w+"', f'effort = "{effort}"', cell.source)
    return notebook


def run(notebook: Any, environment: Path, folder: Path) -> str:
    """Execute a notebook in place, alone in an empty folder, with an environment's own kernel.

    Returns:
        The folder from which it had the library.
    """
    kernels, work = folder / "kernels", folder / "work"
    (kernels / "kernels" / "bare").mkdir(parents=True)
    work.mkdir()
    argv = [str(python_of(environment)), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "bare", "language": "python"}
    (kernels / "kernels" / "bare" / "kernel.json").write_text(json.dumps(spec), "utf-8")
    # renamed, as browsers and people do
    nbformat.write(notebook, work / "copy (1).ipynb")
    kept = {"JUPYTER_PATH": os.environ.get("JUPYTER_PATH"), "PYTHONPATH": os.environ.get("PYTHONPATH")}
    os.environ["JUPYTER_PATH"] = str(kernels)
    os.environ.pop("PYTHONPATH", None)
    settings = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "RESNORM_SOURCE")}
    settings |= {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # or old debuggers warn of Python itself
    settings |= {"PYTHONNOUSERSITE": "1", "IPYTHONDIR": str(folder / "ipython"), "PIP_ROOT_USER_ACTION": "ignore"}
    client: Any = NotebookClient(notebook, kernel_name="bare", timeout=None, record_timing=False)
    ask = f"__import__('{LIBRARY}').__file__"
    try:
        with client.setup_kernel(cwd=str(work), env=settings):
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            query = client.kc.execute("", silent=True, store_history=False, user_expressions={"where": ask})
            where = client.wait_for_reply(query)["content"]["user_expressions"]["where"]
    except CellExecutionError as error:
        raise Failure(f"a cell raised {error.ename}: {error.evalue}") from error
    finally:
        for key, value in kept.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
    left = sorted(path.name for path in work.iterdir() if path.name != "copy (1).ipynb")
    if left:
        raise Failure(f"it left files in its folder: {', '.join(left)}")
    return str(Path(where["data"]["text/plain"].strip("'")).parent)


def faults(notebook: Any, committed: dict[str, Any], effort: str) -> Iterator[str]:
    """What a run that ended well shows of things gone wrong."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        for output in cell.outputs:
            if output.get("name") == "stderr" and number > 1:  # the first one may install, and pip has its say there
                yield f"code cell {number} writes to stderr: {output['text'].strip()[-300:]}"
    before = records(committed)
    after = records(notebook)
    if before and not after:
        yield "it records nothing"
    if effort == "published" and after.keys() != before.keys():
        yield f"it records other measurements than the committed one: {', '.join(sorted(after.keys() ^ before.keys()))}"
    for name in after.keys() & before.keys() if effort == "published" else ():
        low, high = before[name].get("band") or (float("-inf"), float("inf"))
        value = after[name].get("value")
        if value is not None and not low <= value <= high:
            yield f"{name} is {value}, outside its band of {low} to {high}"
        if after[name].get("verdict") != before[name].get("verdict"):
            yield f"{name} {after[name].get('verdict')}, but in the committed chapter it {before[name].get('verdict')}"


def records(notebook: dict[str, Any]) -> dict[str, Any]:
    """The records of a notebook's outputs, by name."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    found = [record for output in outputs for record in output.get("metadata", {}).get("resnorm", {}).get("records", [])]
    return {record["name"]: record for record in found}


def check(chapter: Path, way: str, environment: Path, effort: str, address: str, change: Callable[[Any], None] | None = None) -> None:
    """Run a chapter and raise if anything is not as it must be; ``change`` may break the notebook first, for tests."""
    packages = site_packages(environment)
    if (packages / LIBRARY).exists():
        raise Failure(f"{environment} has the library already")
    before = freeze(environment)
    notebook = prepared(chapter, way, effort, address)
    if change:
        change(notebook)
    with tempfile.TemporaryDirectory(prefix="colab-") as folder:
        try:
            where = run(notebook, environment, Path(folder))
        finally:
            installed = (packages / LIBRARY).exists()
            if installed:
                call([python_of(environment), "-m", "pip", "uninstall", "-qy", LIBRARY])
            after = freeze(environment)
    if after != before:
        raise Failure(f"the environment has changed: {', '.join(sorted(set(after) ^ set(before)))}")
    if installed != (way == "address"):
        raise Failure(f"the library was {'' if installed else 'not '}installed")
    if Path(where).is_relative_to(ROOT):
        raise Failure(f"it had the library from {where}")
    found = list(faults(notebook, json.loads(chapter.read_text("utf-8")), effort))
    if found:
        raise Failure("; ".join(found))


def main() -> int:
    """The command line; returns the exit code."""
    choices = environments()
    parser = argparse.ArgumentParser(description="Run chapters as Colab does, each alone, in bare environments.")
    parser.add_argument("chapters", nargs="*", help="names of chapters (default: all)")
    parser.add_argument("--environment", action="append", choices=list(choices), help="may be given again (default: all)")
    parser.add_argument("--given", type=Path, metavar="FOLDER", help="a ready environment instead, for instance of another Python; it stays as it is")
    parser.add_argument("--effort", choices=("quick", "published"), default="quick", help="default: %(default)s")
    options = parser.parse_args()
    everything = {path.stem: path for path in sorted((ROOT / "book").glob("ch_*.ipynb"))}
    if unknown := sorted(set(options.chapters) - everything.keys()):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(everything)}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="colab-environments-") as made:
        address = publish(Path(made, "repository"))
        names = ["given"] if options.given else options.environment or list(choices)
        for name in names:
            environment = options.given.absolute() if options.given else Path(made, name)
            if not options.given:
                print(f"{name}: installing …", flush=True)
                make(environment, choices[name])
            versions = [line for line in freeze(environment) if re.match(r"(numpy|torch|matplotlib|scipy|ipython)\b", line)]
            print(f"{name}: {call([python_of(environment), '--version']).strip()}, {', '.join(versions)}", flush=True)
            for stem in options.chapters or everything:
                for way in WAYS:
                    started = time.monotonic()
                    try:
                        check(everything[stem], way, environment, options.effort, address)
                        said = f"passed in {time.monotonic() - started:.0f} s"
                    except Failure as failure:
                        failed += 1
                        said = f"FAILED: {failure}"
                    print(f"{name}: {stem}, {way}: {said}", flush=True)
            if not options.given:
                shutil.rmtree(environment, ignore_errors=True)
    print("Every run passed." if not failed else f"{failed} of the runs failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
