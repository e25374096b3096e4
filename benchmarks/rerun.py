"""What the rerun command adds to a run: ``python benchmarks/rerun.py --json FILE [--only stub|scaling|start]``.

- stub: a sweep of a thousand settings on a dask cluster of two workers, with an engine that only returns a notebook: elapsed
  and CPU time per setting, CPU time of the last quarter over that of the first, memory of a worker and of the command.
- scaling: sixteen quick reruns of a chapter with one worker and with two.
- start: CPU time of a kernel that starts and imports what the chapter needs, and of a quick run.

Run it on a machine that does nothing else; the load before and after is stored with the figures. Both sweeps are run in
turn, the pair that has the least time of one worker counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from resnorm_lib import chapters, engine, results, settings, sweeps
from resnorm_lib.chapters import Chapter
from resnorm_lib.engine import Outcome
from resnorm_lib.sweeps import Run

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = "ch_layernorm_projector"


def stub(source: str, values: Any, expected: str, owner: str = "") -> Outcome:
    """An engine that computes nothing and returns a notebook of a chapter's size, with its number of records."""
    notebook = json.loads(source)
    record = {"name": "n", "claim": "c", "setting": "", "value": 1.0, "low": 0.0, "high": 2.0, "seeds": 3, "dtype": "float64"}
    data = {"text/plain": "x" * 600_000}
    meta = {"resnorm": {"records": [record | {"name": f"n{k}"} for k in range(200)]}}
    notebook["cells"][-1] |= {"outputs": [{"output_type": "display_data", "data": data, "metadata": meta}]}
    return Outcome(json.dumps(notebook))


def many(chapter: Chapter, count: int, **others: list[Any]) -> list[settings.Setting]:
    """So many settings that differ in their seeds."""
    return settings.expand(chapter, {"first_seed": list(range(count))} | others)


def stub_sweep(chapter: Chapter, count: int, workers: int) -> dict[str, Any]:
    """Seconds per setting of a sweep with the stub engine."""
    ends: list[float] = []
    busy: list[float] = []  # CPU seconds of the command and its workers: the load of the machine does not lengthen them
    memory: dict[str, float] = {}

    def tell(run: Run) -> None:
        ends.append(time.perf_counter())
        if len(ends) in (1, quarter, count - quarter, count - 1):  # while the workers are still there
            me = psutil.Process()
            spawned = [p for p in me.children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
            busy.append(sum(sum(p.cpu_times()[:2]) for p in [me, *spawned]))
            memory["command_mib"] = round(me.memory_info().rss / 2**20)
            memory["worker_mib"] = round(max((p.memory_info().rss / 2**20 for p in spawned), default=0.0))

    quarter = count // 4
    with tempfile.TemporaryDirectory() as folder:
        sweeps.run_sweep(chapter, many(chapter, count), Path(folder), workers=workers, execute=stub, tell=tell)
        closed = time.perf_counter()
        tables = {path.name: round(path.stat().st_size / 2**20, 1) for path in Path(folder).glob("results.*")}
    row = {"settings": count, "workers": workers, "ms_per_setting": round(1000 * (ends[-1] - ends[0]) / (count - 1), 1)}
    row |= {"cpu_ms_per_setting": round(1000 * (busy[-1] - busy[0]) / (count - 2), 1)}
    row |= {"last_over_first_quarter": round((busy[3] - busy[2]) / (busy[1] - busy[0]), 2)}
    row |= {"seconds_to_close": round(closed - ends[-1], 1)}
    return row | memory | {"table_mib": tables}


def scaling(chapter: Chapter, repetitions: int) -> dict[str, Any]:
    """Elapsed time of sixteen quick reruns with one worker and with two."""
    pairs = []
    for _ in range(repetitions):
        pair = {}
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                runs = sweeps.run_sweep(chapter, many(chapter, 16, effort=["quick"]), Path(folder), workers=workers)
                pair[workers] = time.perf_counter() - started
            assert all(run.state == "done" for run in runs), [run.error for run in runs]
            pair[f"cpu {workers}"] = sum(run.cpu_seconds for run in runs)
        pairs.append(pair)
        print(pair, flush=True)
    best = min(pairs, key=lambda pair: pair[1])
    return {
        "chapter": chapter.stem,
        "reruns": 16,
        "seconds": {str(n): round(best[n], 1) for n in (1, 2)},
        "cpu_seconds": {str(n): round(best[f"cpu {n}"], 1) for n in (1, 2)},
        "times_one": round(best[1] / best[2], 2),
        "pairs": repetitions,
    }


def start(chapter: Chapter) -> dict[str, Any]:
    """CPU seconds of a run that ends with the validation of its parameters, and of a quick run."""
    notebook = json.loads(chapter.path.read_text("utf-8"))
    tagged = next(k for k, cell in enumerate(notebook["cells"]) if "parameters" in cell["metadata"].get("tags", ()))
    head, whole = (engine.strip(notebook | {"cells": cells}) for cells in (notebook["cells"][: tagged + 2], notebook["cells"]))
    runs = {"start": engine.run(head, {}, engine.code_digest(head))}
    runs["quick"] = engine.run(whole, {"effort": "quick"}, engine.code_digest(whole))
    return {name: {"cpu_seconds": round(run.cpu_seconds, 2), "seconds": round(run.seconds, 2)} for name, run in runs.items()}


def load() -> float:
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", choices=("stub", "scaling", "start"))
    parser.add_argument("--stub", type=json.loads, default=[[250, 2], [1000, 2], [1000, 1]], help="JSON: pairs of settings and workers")
    parser.add_argument("--repetitions", type=int, default=2, help="pairs of sweeps for the scaling")
    options = parser.parse_args(arguments)
    chapter = chapters.read(ROOT / "book" / f"{CHAPTER}.ipynb")
    found = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    for name in [options.only] if options.only else ["start", "stub", "scaling"]:
        before = load()
        if name == "stub":
            part: Any = {"rows": [stub_sweep(chapter, count, workers) for count, workers in options.stub]}
        else:
            part = scaling(chapter, options.repetitions) if name == "scaling" else start(chapter)
        found[name] = part | {"load_before": before, "load_after": load(), "machine": machine}
        print(json.dumps(found[name]), flush=True)
        results.write_whole(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
