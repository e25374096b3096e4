"""Rerun a chapter with other parameters: ``python -m resnorm_lib.rerun CHAPTER -p NAME VALUE[,VALUE...] --out DIR``.

One setting, or a grid of them in parallel on dask.distributed. The folder gets one executed notebook for each setting,
``results.csv`` (and ``results.parquet`` where pyarrow is installed) with a row for each recorded value, and ``runs.csv``
with a row for each setting. A second start runs only what is missing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from resnorm_lib import chapters, costs, settings, sweeps
from resnorm_lib.chapters import Chapter, ChapterError
from resnorm_lib.parameters import ParameterError
from resnorm_lib.settings import Setting
from resnorm_lib.sweeps import Run, SweepError

__all__ = ["main"]

_LIMIT_HOURS = 1.0
_SHARE_OF_MEMORY = 0.8  # of what is free now


class _Progress:
    """A bar on a terminal, a line for each setting elsewhere."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._tqdm, self._total, self._done = tqdm, total, 0
        self._bar = tqdm(total=total, unit="setting", disable=not sys.stderr.isatty(), dynamic_ncols=True)

    def tell(self, run: Run) -> None:
        self._done += 1
        if run.state == "failed":
            self._tqdm.write(f"{run.setting.label}: failed with {run.error} (see {run.notebook})", file=sys.stderr)
        elif self._bar.disable and run.state == "done":
            print(f"{self._done}/{self._total} {run.setting.label}: done in {run.seconds:.0f} s", file=sys.stderr, flush=True)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        arguments: those after the command's name; by default those of this process.

    Returns:
        0: every setting is done. 1: some failed, or the folder or the scheduler did. 2: what was asked for is not
        possible, and nothing was started. 130: interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        chapter = chapters.read(chapters.find(options.chapter, options.book))
        grid = settings.read_grid(options.grid) if options.grid else {}
        given: dict[str, list[object]] = {}
        for name, values in options.parameter:
            if name in given:
                raise ParameterError(f"{name} is given twice: write -p {name} with its values separated by commas")
            given[name] = values.split(",")
        wanted = settings.expand(chapter, given, grid)
        workers = _plan(chapter, wanted, options)
    except (ParameterError, ChapterError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.dry_run:
        return 0
    progress = _Progress(len(wanted))
    try:
        runs = sweeps.run_sweep(
            chapter,
            wanted,
            options.out.resolve(),
            workers=workers,
            scheduler=options.scheduler,
            tell=progress.tell,
            say=lambda text: print(text, file=sys.stderr),
        )
    except SweepError as error:
        progress.close()
        print(error, file=sys.stderr)
        return 1
    progress.close()
    return _summary(runs, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m resnorm_lib.rerun", description="Rerun a chapter with other parameters, one setting or many in parallel."
    )
    parser.add_argument("chapter", help="a chapter's name, or enough of it: layernorm for ch_layernorm_projector")
    parser.add_argument(
        *("-p", "--parameter"), nargs=2, action="append", default=[], metavar=("NAME", "VALUE[,VALUE...]"),
        help="a parameter and its values; several such options are multiplied out",
    )  # fmt: skip
    parser.add_argument("--grid", type=Path, metavar="FILE", help="YAML: a list of values for each parameter; those below 'zip' side by side")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for notebooks and tables")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="how many settings at a time on this machine (default: one for each core)")
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="a running dask scheduler, as tcp://127.0.0.1:8786")
    parser.add_argument("--limit", type=float, default=_LIMIT_HOURS, metavar="HOURS", help="refuse what is estimated to take longer (default: %(default)g)")
    parser.add_argument("--force", action="store_true", help="start whatever time and memory are estimated")
    parser.add_argument("--dry-run", action="store_true", help="print the settings' number and the estimate, and start nothing")
    parser.add_argument("--book", type=Path, default=chapters.book_folder(), metavar="DIR", help="folder of the chapters")
    return parser


def _plan(chapter: Chapter, wanted: Sequence[Setting], options: argparse.Namespace) -> int:
    """Print what the run will cost, and return the number of workers.

    Raises:
        ParameterError: the run is above a limit; the message says which, and how to start it all the same.
    """
    if options.workers < 0 or not options.limit > 0:
        raise ParameterError("--workers and --limit must be above 0: leave them out for their defaults")
    import psutil

    missing = [setting for setting in wanted if not (options.out / setting.file_name).exists()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(options.workers or cores, max(len(missing), 1))
    told = f"{len(wanted)} {'setting' if len(wanted) == 1 else 'settings'} of {chapter.stem}"
    told += f", {len(wanted) - len(missing)} of them finished" if len(missing) < len(wanted) else ""
    stored = costs.stored_costs(options.book, chapter)
    if not stored or not missing:
        print(f"{told}; {'nothing is left to run' if not missing else 'no run of this chapter is known, so nothing is estimated'}.")
        return workers
    estimates = costs.estimate(chapter, missing, stored)
    total, longest = sum(item.cpu_seconds for item in estimates), max(item.cpu_seconds for item in estimates)
    largest = max(item.peak_mib for item in estimates)
    free = psutil.virtual_memory().available / 2**20 * _SHARE_OF_MEMORY
    fitting = max(int(free // max(largest, 1.0)), 1)
    if not options.workers and not options.scheduler:
        workers = min(workers, fitting)
    elapsed = max(total / workers, longest)
    told += f": about {_time(total)} of CPU time, {_time(elapsed)} with {workers} {'worker' if workers == 1 else 'workers'}"
    if options.scheduler:
        told += " (the scheduler's may be more)"
    basis = "earlier runs" if stored["parameters"] else "one earlier run, in proportion"
    print(f"{told}, at most {_memory(largest)} in each (estimated from {basis}; a slow or busy machine takes longer).")
    if options.force or options.dry_run:
        return workers
    if elapsed > 3600 * options.limit:
        raise ParameterError(
            f"this is above the limit of {options.limit:g} h: ask for fewer or smaller settings, or raise it with "
            f"--limit {math.ceil(elapsed / 3600)}"
        )
    if not options.scheduler and workers > fitting or largest > free:
        raise ParameterError(
            f"{workers} of these at a time need {_memory(workers * largest)} and {_memory(free)} may be used: "
            f"give --workers {fitting}, smaller settings, or --force"
        )
    return workers


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _memory(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def _summary(runs: Sequence[Run], out: Path) -> int:
    count = {state: sum(run.state == state for run in runs) for state in ("done", "found", "failed", "missing")}
    told = f"{count['done'] + count['found']} of {len(runs)} done"
    told += f" ({count['found']} of them by an earlier start)" if count["found"] else ""
    told += f", {count['failed']} failed" if count["failed"] else ""
    told += f", {count['missing']} missing" if count["missing"] else ""
    print(f"{told}: {out / 'results.csv'}, and {out / 'runs.csv'} with the state of each setting.")
    if count["missing"]:
        print("Interrupted: what is finished is kept, and the same command runs what is missing.", file=sys.stderr)
        return 130
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
