"""Run many settings of a chapter, in parallel on dask.distributed, and keep what is finished whatever happens.

A setting is done when its output notebook lies in the folder, made by today's code: a second start runs only what is
missing. Workers send notebooks back, and this process alone writes, so that no two settings write one file and remote
workers need no shared disk. One setting, or one worker, needs no dask.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from resnorm_lib import engine, results
from resnorm_lib.chapters import Chapter
from resnorm_lib.engine import Outcome
from resnorm_lib.settings import Setting

__all__ = ["Run", "SweepError", "run_sweep"]

_PATIENCE = "10s"  # with a scheduler that does not answer
# a worker waits for kernels: dask need not sample its stack a hundred times a second, nor listen to its heart fifty times
_CALM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
}
_STATE = ("state", "notebook", "error", "seconds", "cpu_seconds", "peak_mib")
Engine = Callable[[str, Mapping[str, Any], str, str], Outcome]


class SweepError(RuntimeError):
    """A sweep cannot start or go on; the message is one sentence. What was finished is kept."""


@dataclass(frozen=True)
class Run:
    """What became of one setting.

    Attributes:
        setting: the setting.
        state: ``done``, ``found`` (done by an earlier start), ``failed`` or ``missing``.
        notebook: file name of its output notebook; of a failed one as far as it came, of a missing one empty.
        error: last line of the traceback, where it failed.
        seconds, cpu_seconds, peak_mib: as in `resnorm_lib.engine.Outcome`.
        rows: what it recorded, as `resnorm_lib.results.rows_of` gives it.
    """

    setting: Setting
    state: str = "missing"
    notebook: str = ""
    error: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


def run_sweep(
    chapter: Chapter,
    settings: Sequence[Setting],
    out: Path,
    *,
    workers: int = 1,
    scheduler: str = "",
    execute: Engine = engine.run,
    tell: Callable[[Run], None] = lambda run: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Run]:
    """Run the settings that are missing and write ``results.csv``, ``results.parquet`` and ``runs.csv`` into ``out``.

    Ctrl-C, in the main thread, ends what is running; all tables are written before this returns.

    Args:
        chapter: whose settings they are.
        settings: see `resnorm_lib.settings.expand`.
        out: folder for the notebooks and tables; it is made where it is missing.
        workers: how many run at a time, where there is no ``scheduler``: processes of this machine, one thread each.
        scheduler: address of a running dask scheduler, such as ``tcp://127.0.0.1:8786``; empty for none.
        execute: what runs one setting: a function that workers can import, like `resnorm_lib.engine.run`.
        tell: is given each setting that is done, found or failed, as it comes.
        say: is given a sentence about finished notebooks that are not used.

    Returns:
        A `Run` for each setting, in their order; some are ``missing`` after Ctrl-C.

    Raises:
        SweepError: the folder cannot be written or the disk is full, the scheduler cannot be reached or was lost, dask is
            missing, or a parameter has the name of a column.
    """
    clash = sorted(set(chapter.parameters) & {"chapter", *results.COLUMNS})
    if clash:
        raise SweepError(f"{chapter.stem} has a parameter {clash[0]}, which is a column of the table: rename the parameter")
    source = engine.strip(json.loads(chapter.path.read_text("utf-8")))
    digest = engine.code_digest(source)
    folder = _Folder(out, chapter, digest, say)
    try:
        folder.open()
        runs = {setting.key: folder.look_up(setting) for setting in settings}
        for run in runs.values():
            if run.state == "found":
                tell(run)
        todo = [setting for setting in settings if runs[setting.key].state == "missing"]
        with _interrupts() as stop:
            parallel = scheduler or min(workers, len(todo)) > 1
            arriving = _spread(source, todo, digest, execute, stop, min(workers, len(todo)), scheduler) if parallel else (
                _here(source, todo, digest, execute, stop)
            )  # fmt: skip
            try:
                with contextlib.closing(arriving):
                    for setting, outcome in arriving:
                        runs[setting.key] = folder.keep(setting, outcome)
                        tell(runs[setting.key])
                        folder.write_tables(runs.values(), now=False)
            finally:
                folder.write_tables(runs.values())
    except OSError as error:
        raise SweepError(
            f"{out} cannot be written ({error.strerror or error}): make room there or give another folder with --out, "
            "then start again; what is finished is kept"
        ) from error
    return list(runs.values())


class _Folder:
    """The output folder: what is finished in it, and its tables."""

    def __init__(self, path: Path, chapter: Chapter, digest: str, say: Callable[[str], None]) -> None:
        self._path, self._chapter, self._digest, self._say = path, chapter, digest, say
        self._finished: dict[str, Run] = {}
        self._written, self._cost = time.monotonic(), 0.0

    def open(self) -> None:
        """Make the folder, see that it can be written, and read the finished notebooks in it."""
        self._path.mkdir(parents=True, exist_ok=True)
        probe = self._path / "runs.csv"
        results.write_whole(probe, probe.read_bytes() if probe.exists() else b"")
        old = 0
        for path in sorted(self._path.glob("*.ipynb")):
            try:
                notebook = json.loads(path.read_text("utf-8"))
                stamp = notebook["metadata"]["resnorm_rerun"]
                setting = Setting(stamp["chapter"], stamp["values"], stamp["every"])
                numbers = {name: stamp[name] for name in ("seconds", "cpu_seconds", "peak_mib")}
            except (ValueError, KeyError, TypeError):
                continue  # not made by a rerun
            if stamp["chapter"] != self._chapter.stem:
                raise SweepError(f"{self._path} holds reruns of {stamp['chapter']}: give another folder with --out")
            if stamp["digest"] != self._digest:
                old += 1
            elif not stamp["error"]:
                self._finished[setting.key] = Run(setting, "found", path.name, rows=results.rows_of(notebook), **numbers)
        if old:
            self._say(f"{old} notebooks in {self._path} were made with another version of the chapter, the library, numpy or torch: they are not used")

    def look_up(self, setting: Setting) -> Run:
        return self._finished.get(setting.key, Run(setting))

    def keep(self, setting: Setting, outcome: Outcome) -> Run:
        """Write the output notebook, and forget an earlier failure of this setting."""
        failed = self._path / f"failed-{setting.file_name}"
        path = failed if outcome.error else self._path / setting.file_name
        notebook = json.loads(outcome.notebook)
        numbers = {name: round(getattr(outcome, name), 2) for name in ("seconds", "cpu_seconds", "peak_mib")}
        stamp = {"chapter": setting.chapter, "values": dict(setting.values), "every": dict(setting.every)}
        notebook["metadata"]["resnorm_rerun"] = stamp | {"digest": self._digest, "error": outcome.error} | numbers
        results.write_whole(path, json.dumps(notebook, ensure_ascii=False) + "\n")  # an indent costs ten times the time
        if outcome.error:
            return Run(setting, "failed", path.name, outcome.error, **numbers)
        failed.unlink(missing_ok=True)
        run = Run(setting, "done", path.name, rows=results.rows_of(notebook), **numbers)
        self._finished[setting.key] = run
        return run

    def write_tables(self, runs: Any, now: bool = True) -> None:
        """Write the tables; with ``now`` false only so often that it takes at most a twentieth of the time."""
        if not now and time.monotonic() - self._written < max(2.0, 20 * self._cost):
            return
        started = time.monotonic()
        others = self._finished.keys() - {run.setting.key for run in runs}
        everything = [*runs, *(self._finished[key] for key in sorted(others))]
        names = ["chapter", *self._chapter.parameters]
        rows = [self._whole(run) | {"notebook": run.notebook} | row for run in everything for row in run.rows]
        states = [self._whole(run) | {name: getattr(run, name) for name in _STATE} for run in everything]
        results.write_whole(self._path / "results.csv", results.as_csv(rows, [*names, *results.COLUMNS]))
        results.write_parquet(self._path / "results.parquet", rows, [*names, *results.COLUMNS])
        results.write_whole(self._path / "runs.csv", results.as_csv(states, [*names, *_STATE]))
        self._written, self._cost = time.monotonic(), time.monotonic() - started

    @staticmethod
    def _whole(run: Run) -> dict[str, Any]:
        return {"chapter": run.setting.chapter} | dict(run.setting.every)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; it raises nothing, so that nothing is left half done. It ends this process's kernels."""
    stop = threading.Event()

    def handle(*_: object) -> None:
        stop.set()
        engine.stop()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _here(
    source: str, settings: Sequence[Setting], digest: str, execute: Engine, stop: threading.Event
) -> Generator[tuple[Setting, Outcome], None, None]:
    """One after another in this process."""
    for setting in settings:
        if stop.is_set():
            return
        outcome = _attempt(functools.partial(execute, source, setting.values, digest, ""), source)
        if stop.is_set():
            return
        yield setting, outcome


def _spread(
    source: str, settings: Sequence[Setting], digest: str, execute: Engine, stop: threading.Event, workers: int, scheduler: str
) -> Generator[tuple[Setting, Outcome], None, None]:
    """On a dask cluster, in the order in which they end."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with _client(workers, scheduler) as client:
        shared, owner = client.scatter(source, broadcast=True), uuid.uuid4().hex
        options = {"pure": False, "retries": 1}  # an engine raises only where a second try may help
        pending = {client.submit(execute, shared, dict(s.values), digest, owner, **options): s for s in settings}
        for future in pending:
            future.add_done_callback(ended.put)
        try:
            while pending and not stop.is_set():
                try:
                    future = ended.get(timeout=0.2)
                except queue.Empty:
                    future = None
                if client.status not in ("running", "connecting") or getattr(future, "status", "") in ("cancelled", "lost"):
                    raise SweepError("the scheduler was lost: start it and this command again; what is finished is kept")
                if future is not None:
                    yield pending[future], _attempt(future.result, source)
                    del pending[future]
                    future.release()
        finally:
            if pending:
                with contextlib.suppress(Exception):  # a scheduler or worker that is gone has nothing left to end
                    client.cancel(list(pending), force=True)
                    client.run(engine.stop, owner)


def _attempt(call: Callable[[], Outcome], source: str) -> Outcome:
    """The outcome; what the machinery raised is one as well."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - one setting that fails, however, does not stop the others
        return Outcome(source, engine.one_line(type(error).__name__, error))


@contextlib.contextmanager
def _client(workers: int, scheduler: str) -> Iterator[Any]:
    """A client of a running scheduler, or of one of our own on the loopback interface with so many workers."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise SweepError(
            "settings run in parallel on dask.distributed, which is not installed: "
            "run 'pip install resnorm_lib[rerun]', or give --workers 1"
        ) from error
    with contextlib.ExitStack() as stack:
        address: Any = scheduler
        if not scheduler:
            # a Ctrl-C of the terminal goes to all processes; the workers, which inherit this mask, are not to see it
            with _masked(), dask.config.set(_CALM):
                cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address=None,
                    memory_limit=0,  # what needs memory is the kernels, which dask does not see
                    silence_logs=50,
                )
            address = stack.enter_context(cluster)
        try:
            client = stack.enter_context(distributed.Client(address, timeout=_PATIENCE, set_as_default=False))
        except (OSError, ValueError) as error:
            raise SweepError(f"no dask scheduler answers at {scheduler}: start one with 'dask scheduler --host 127.0.0.1'") from error
        if not client.scheduler_info()["workers"]:
            raise SweepError(f"the scheduler at {scheduler} has no worker: start some with 'dask worker {scheduler} --nthreads 1'")
        yield client


@contextlib.contextmanager
def _masked() -> Iterator[None]:
    """Hold SIGINT back in this thread and in processes and threads that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it would lift the mask of the thread that first starts a process
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    else:
        yield
