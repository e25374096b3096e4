"""Run one setting of a chapter with papermill, in a kernel of its own; this is what a worker of a sweep does.

Nothing passes from one setting to the next: each has a fresh process for its kernel, an empty working folder and its own
connection, through files of that folder instead of ports where the system has such (ports can be taken by two kernels
that start at once). The executed notebook goes back as text, so that only the one who asked writes files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "code_digest", "one_line", "run", "stop", "strip"]

_RUNNING: dict[int, tuple[str, Any]] = {}  # the kernels of this process, by process id, and whose they are
_LOCK = threading.Lock()
# what dask sets for the processes of its workers, and papermill by itself would not
_DASK = {"MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Outcome:
    """What came of one setting.

    Attributes:
        notebook: the output notebook as text; of a setting that failed, as far as it came.
        error: last line of the traceback, as `one_line` has it; empty where all cells ran.
        seconds: elapsed time, with the start of the kernel.
        cpu_seconds: of the kernel.
        peak_mib: largest resident memory of the kernel.
    """

    notebook: str
    error: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0


def strip(notebook: Mapping[str, Any]) -> str:
    """A chapter without outputs, as text: what is sent to the workers.

    Args:
        notebook: as ``json`` reads it.
    """
    cells = []
    for cell in notebook["cells"]:
        bare = dict(cell)
        if cell["cell_type"] == "code":
            bare |= {"outputs": [], "execution_count": None}
        cells.append(bare)
    kept = {name: value for name, value in notebook["metadata"].items() if name != "resnorm"}  # it tells of another run
    return json.dumps({**notebook, "cells": cells, "metadata": kept}, ensure_ascii=False)


def code_digest(source: str) -> str:
    """A hash of all that decides what a run of this source measures: its code cells, the library, numpy and torch.

    Args:
        source: what `strip` made.
    """
    cells = [cell["source"] for cell in json.loads(source)["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(["".join(cell) for cell in cells] + [_library()]).encode()).hexdigest()[:16]


@functools.cache
def _library() -> str:
    package = Path(__file__).resolve().parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".py", ".yml"):
            found.update(f"{path.relative_to(package).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    for name in ("numpy", "torch"):
        found.update(metadata.version(name).encode())
    return found.hexdigest()


def run(source: str, values: Mapping[str, int | float | str], expected: str, owner: str = "") -> Outcome:
    """Execute a chapter with these parameters, by papermill, in a fresh kernel.

    Args:
        source: what `strip` made of the chapter.
        values: the parameters to inject.
        expected: `code_digest` where the sweep was started; another one here would mix two versions of the library.
        owner: the name by which `stop` finds the kernel.

    Returns:
        The outcome. A cell that raises, or a kernel that dies in one, is an outcome with an error, not an exception.

    Raises:
        RuntimeError: the kernel did not start (a second try may help).
    """
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    if code_digest(source) != expected:
        return Outcome(source, f"this worker ({os.uname().nodename if hasattr(os, 'uname') else os.name}) has another "
                       "version of resnorm_lib, numpy or torch: install the same there")  # fmt: skip
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the outcome says it
    usage: dict[str, float] = {}
    started, error = time.monotonic(), ""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the kernel of this environment, not one that the user has installed
    # a kernel that was just killed may still write into its folder
    with tempfile.TemporaryDirectory(prefix="rerun-", ignore_cleanup_errors=True) as folder:
        target = Path(folder, "out.ipynb")
        options: dict[str, Any] = {"parameters": dict(values), "progress_bar": False, "kernel_name": "python3", "language": "python"}
        try:
            papermill.execute_notebook(
                nbformat.reads(source, as_version=4),
                str(target),
                request_save_on_cell_execute=False,
                kernel_manager_class=_manager(Path(folder), usage, owner),
                shutdown_kernel="immediate",
                **options,
            )
        except PapermillExecutionError as failure:
            error = one_line(failure.ename, failure.evalue)
        except DeadKernelError:
            error = "the kernel died: it was ended from outside, or had no memory left"
            papermill.execute_notebook(nbformat.reads(source, as_version=4), str(target), prepare_only=True, **options)
        notebook = _without_paths(target.read_text("utf-8"))
    return Outcome(notebook, error, time.monotonic() - started, usage.get("cpu", 0.0), usage.get("peak", 0.0))


def one_line(kind: str, message: object) -> str:
    """The last line of a traceback, ``kind: message``, with the lines of a message of several joined, and shortened.

    Args:
        kind: the exception's class.
        message: what it says.
    """
    return textwrap.shorten(f"{kind}: {message}", 300)


def _without_paths(text: str) -> str:
    """The notebook without the whole source and the temporary paths that papermill notes in it."""
    notebook = json.loads(text)
    notebook["metadata"].get("papermill", {}).update(input_path="", output_path="")
    return json.dumps(notebook, ensure_ascii=False)


def stop(owner: str = "") -> int:
    """Kill the kernels that this process runs for ``owner``, or all of them, and return how many there were."""
    with _LOCK:
        kernels = [process for name, process in _RUNNING.values() if owner in ("", name)]
    for process in kernels:
        process.kill()
    return len(kernels)


def _manager(folder: Path, usage: dict[str, float], owner: str) -> type:
    """A kernel manager that knows its folder, can be stopped by `stop`, and leaves in ``usage`` what the kernel used."""
    import psutil
    from jupyter_client.manager import AsyncKernelManager

    work = folder / "work"
    work.mkdir()

    class Manager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            if os.name != "nt":
                self.transport = "ipc"
                self.connection_file = str(folder / "kernel.json")

        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            env = {name: value for name, value in os.environ.items() if _DASK.get(name) != value}
            await super().start_kernel(**options | {"cwd": str(work), "env": env})
            process = getattr(self.provisioner, "process", None)
            if process is not None:
                with _LOCK:
                    _RUNNING[process.pid] = (owner, process)

        async def shutdown_kernel(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]
            process = getattr(self.provisioner, "process", None)
            if process is not None:
                with _LOCK:
                    _RUNNING.pop(process.pid, None)
                try:
                    usage["cpu"] = sum(psutil.Process(process.pid).cpu_times()[:2])
                    usage["peak"] = _peak_mib(psutil.Process(process.pid))
                except psutil.Error:  # it is dead already
                    pass
            await super().shutdown_kernel(*arguments, **options)

    return Manager


def _peak_mib(process: Any) -> float:
    """Largest resident memory so far; where the system does not keep it, that of now."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text("utf-8")
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM"))) / 2**10
    except (OSError, StopIteration):
        used = process.memory_info()
        return float(getattr(used, "peak_wset", used.rss) / 2**20)
