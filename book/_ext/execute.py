"""Execute chapters, in parallel, each in a fresh kernel: ``make run``, or ``python book/_ext/execute.py``.

A notebook is written whole or not at all, and twice the same run gives the same bytes. Run times and
memory go to ``book/_data/status.json``, never into a notebook.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import freshness

ROOT = Path(__file__).resolve().parents[2]
STATUS = ROOT / "book" / "_data" / "status.json"
# They change what is imported, shown or computed; the published numbers are those of a plain environment.
NOT_INHERITED = {"ATEN_CPU_CAPABILITY", "COLUMNS", "FORCE_COLOR", "MATPLOTLIBRC", "MKL_CBWR", "MPLBACKEND"}
NOT_INHERITED |= {"NO_COLOR", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS"}
VOLATILE = {"ExecuteTime", "collapsed", "execution", "papermill", "scrolled", "signature", "trusted", "vscode"}
VOLATILE |= {"widgets"}
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
# Evaluated by the kernel when all cells are done: CPU seconds, and peak memory in MiB (ru_maxrss is in KiB,
# on macOS in bytes; Windows has no such module and counts in psutil).
USAGE = """(sum(__import__("psutil").Process().cpu_times()[:2]),
 __import__("psutil").Process().memory_info().peak_wset / 2**20 if __import__("os").name == "nt" else
 __import__("resource").getrusage(0).ru_maxrss / (2**20 if __import__("sys").platform == "darwin" else 2**10))"""


class Failure(Exception):
    """A notebook could not be executed; the message is one sentence."""


class Progress:
    """One line when a chapter starts or ends; on a terminal also a last line that moves with the cells."""

    def __init__(self) -> None:
        self._at: dict[str, str] = {}
        self._lock = threading.Lock()

    def tell(self, stem: str, line: str) -> None:
        """Print a line about a chapter; it leaves the moving line."""
        with self._lock:
            self._at.pop(stem, None)
            self._clear()
            print(f"{stem}: {line}", flush=True)

    def at(self, stem: str, cell: int, cells: int) -> None:
        """Show how far a chapter has come."""
        with self._lock:
            self._at[stem] = f"{stem} {cell}/{cells}"
            if self._clear():
                print("  ".join(self._at.values())[: shutil.get_terminal_size().columns - 1], end="", flush=True)

    def _clear(self) -> bool:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="")
        return sys.stdout.isatty()


def pins_differ() -> list[str]:
    """How the installed packages differ from requirements.txt, a few words each."""
    from packaging.requirements import Requirement

    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines())
    found = []
    for pin in map(Requirement, filter(None, lines)):
        if pin.marker is None or pin.marker.evaluate():
            try:
                installed = importlib.metadata.version(pin.name)
                if not pin.specifier.contains(installed, prereleases=True):
                    found.append(f"{pin.name} is {installed} instead of {pin.specifier}")
            except importlib.metadata.PackageNotFoundError:
                found.append(f"{pin.name} is missing")
    return found


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, so that it is never seen half-written."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        if path.exists():
            shutil.copymode(path, name)
        else:
            os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def clean(notebook: Any) -> None:
    """Take out old outputs and whatever differs from one run to the next."""
    notebook.metadata = {key: value for key, value in notebook.metadata.items() if key not in VOLATILE | {"resnorm"}}
    notebook.metadata |= {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key not in VOLATILE}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def join_streams(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one output: where a kernel cuts it depends on its timing."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def execute(path: Path, progress: Progress, clients: dict[Path, Any]) -> dict[str, Any]:
    """Execute one notebook and replace it by the result.

    Args:
        path: the notebook.
        progress: told of each cell.
        clients: gets the running client, so that an interrupt can end its kernel.

    Returns:
        The notebook's entry in the status file.

    Raises:
        Failure: a cell raised, the kernel died, or the file was edited meanwhile; the file is left as it was.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    name = path.relative_to(ROOT).as_posix()
    before = path.read_bytes()
    try:
        notebook = nbformat.reads(before.decode("utf-8"), as_version=4)
        record = freshness.record(notebook, path.stem, ROOT)
    except Exception as error:
        raise Failure(f"{name} cannot be read ({' '.join(str(error).split())})") from error
    clean(notebook)
    client: Any = NotebookClient(notebook, kernel_name="python3", record_timing=False, timeout=None)
    clients[path] = client
    client.force_raise_errors, client.shutdown_kernel = True, "immediate"
    client.extra_arguments = ["--log-level=ERROR"]  # or each kernel warns of its connection on the terminal
    started, done, total = time.monotonic(), 0, len(freshness.code_cells(notebook))
    with tempfile.TemporaryDirectory(prefix="book-") as folder:
        # an empty matplotlibrc and IPython profile in an empty working folder: nobody's settings, no relative paths
        Path(folder, "matplotlibrc").touch()
        env = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        env |= {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(Path(folder, ".ipython"))}
        try:
            with client.setup_kernel(cwd=folder, env=env):
                for index, cell in enumerate(notebook.cells):
                    if cell.cell_type == "code" and cell.source.strip():
                        done += 1
                        progress.at(path.stem, done, total)
                        client.execute_cell(cell, index, execution_count=done)
                        cell.outputs = join_streams(cell.outputs)
                query = client.kc.execute("", silent=True, store_history=False, user_expressions={"usage": USAGE})
                usage = client.wait_for_reply(query)["content"]["user_expressions"]["usage"]
        except CellExecutionError as error:
            last = f"{error.ename}: {error.evalue}".strip().splitlines()[-1]
            raise Failure(f"{name} failed in code cell {done} of {total} with {last}") from error
        except RuntimeError as error:
            raise Failure(f"{name} lost its kernel in code cell {done} of {total} ({error})") from error
    text = nbformat.writes(notebook, version=nbformat.NO_CONVERT)
    notebook.metadata["resnorm"] = record | {"outputs": freshness.outputs(json.loads(text))}
    if path.read_bytes() != before:
        raise Failure(f"{name} was edited while it was executed")
    write_whole(path, nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n")
    cpu, memory = ast.literal_eval(usage["data"]["text/plain"])
    return {
        "seconds": round(cpu, 1),
        "wall_seconds": round(time.monotonic() - started, 1),
        "peak_memory_mib": round(memory),
        "date": datetime.date.today().isoformat(),
    }


def execute_all(paths: list[Path], jobs: int) -> int:
    """Execute notebooks, the longest first, ``jobs`` at a time; the exit code is 1 if one of them failed."""
    status = json.loads(STATUS.read_text("utf-8")) if STATUS.exists() else {}
    chapters = status.get("chapters", {})
    paths = sorted(paths, key=lambda path: -chapters.get(path.stem, {}).get("wall_seconds", float("inf")))
    progress, lock, stop = Progress(), threading.Lock(), threading.Event()
    clients: dict[Path, Any] = {}
    failures: list[str] = []

    def run(path: Path) -> None:
        progress.tell(path.stem, "started")
        try:
            entry = execute(path, progress, clients)
        except Failure as failure:
            progress.tell(path.stem, "stopped" if stop.is_set() else "failed")
            failures.append(f"{failure}; the notebook is as it was: mend the cause, then run `make run` again.")
            return
        progress.tell(path.stem, f"done in {entry['wall_seconds']:.0f} s, at most {entry['peak_memory_mib']} MiB")
        with lock:
            chapters[path.stem] = entry
            write_status(chapters)

    # Threads only wait for their kernels, which are processes of their own. Ctrl-C sets a flag and raises nothing:
    # an exception while a thread starts would lose sight of that thread, and of its kernel.
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(run, path) for path in paths]
            while not all(future.done() for future in futures):
                if stop.wait(0.1):
                    pool.shutdown(wait=False, cancel_futures=True)
                    end_kernels(clients)
                    time.sleep(0.2)
    finally:
        signal.signal(signal.SIGINT, before)
    if stop.is_set():
        raise KeyboardInterrupt
    for future in futures:
        future.result()
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def end_kernels(clients: dict[Path, Any]) -> None:
    """Kill every kernel that runs, so that none outlives its reader."""
    for client in list(clients.values()):
        process = getattr(getattr(client.km, "provisioner", None), "process", None)
        if process is not None:
            process.kill()


def write_status(chapters: dict[str, Any]) -> None:
    """Write the status file: one entry for each chapter that exists, the machine, Python and the pinned packages."""
    stems = {path.stem for path in freshness.notebooks(ROOT)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    status = {
        "chapters": {stem: chapters[stem] for stem in sorted(chapters) if stem in stems},
        "machine": f"{'two' if cores == 2 else cores}-core {platform.machine()} machine, {platform.system()}",
        "python": platform.python_version(),
        "packages": {
            name: importlib.metadata.version(name) for name in ("numpy", "torch", "matplotlib", "scipy", "ipykernel")
        },
    }
    STATUS.parent.mkdir(exist_ok=True)
    write_whole(STATUS, json.dumps(status, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Execute the book's notebooks, each in a fresh kernel.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebooks to execute (default: all)")
    parser.add_argument("--stale", action="store_true", help="only those whose outputs are not those of today")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: %(default)s)")
    options = parser.parse_args(arguments)
    everything = freshness.notebooks(ROOT)
    paths = list(dict.fromkeys(path.resolve() for path in options.notebooks)) or everything
    for path in paths:
        if path not in everything:
            parser.error(f"{path} is not a notebook of this book: give one below {ROOT / 'book'}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} is not allowed: give at least 1")
    if options.stale:
        paths = [path for path in paths if freshness.problems(path, ROOT)]
    if not paths:
        print("All chapters are up to date.")
        return 0
    if differences := pins_differ():
        print(
            f"No chapter was executed because {', '.join(differences)}: "
            "install the pins with `pip install -r requirements.txt`, or let `make run` do it.",
            file=sys.stderr,
        )
        return 1
    # the kernel of this environment, not one of the same name that the user has installed
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    try:
        return execute_all(paths, options.jobs)
    except KeyboardInterrupt:
        print("\nInterrupted: the chapters that were running are as they were.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
