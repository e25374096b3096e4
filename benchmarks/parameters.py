"""What each parameter of a chapter costs and moves: ``python benchmarks/parameters.py [CHAPTER …] --work DIR``.

Runs the chapter as published, quick, up to its parameters alone, and with one parameter after the other at about half its
value (where it has no half, above; a choice at each other option), all else as published. ``book/_data/parameters.json``
gets CPU seconds and memory of each run, how many records differ from the published run, and the verdicts that do. The page
of the parameters shows them, and ``resnorm_lib.rerun`` estimates from them. DIR keeps the runs: a second start goes on. A chapter takes as long as some six runs of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from resnorm_lib import chapters, engine, results, settings
from resnorm_lib.chapters import Chapter, Parameter, Value
from resnorm_lib.parameters import Choice, Integer
from resnorm_lib.sweeps import Run, run_sweep

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "book" / "_data" / "parameters.json"
Measured = dict[str, Any]


def others(parameter: Parameter) -> list[Value]:
    """The values at which a parameter is tried."""
    allowed = parameter.specification
    if isinstance(allowed, Choice):
        return list(allowed.options[1:])
    if isinstance(allowed, Integer):
        half = allowed.published // 2 // allowed.multiple * allowed.multiple
        tried = [half, allowed.low, 2 * allowed.published, allowed.published + 1000 * allowed.multiple]
    else:
        tried = [allowed.published / 2, 2 * allowed.published]
    return [next(value for value in tried if allowed.accepts(value) and value != allowed.published)]


def plan(chapter: Chapter, without: Container[str] = ()) -> dict[tuple[str, Value], settings.Setting]:
    """The runs: by parameter and value; those of the chapter as it is are ("", "published") and ("effort", "quick")."""
    runs = {("", "published"): settings.expand(chapter, {})[0]}
    for name, parameter in chapter.parameters.items():
        for value in others(parameter) if name not in without else ():
            runs[name, value] = settings.expand(chapter, {name: [value]})[0]
    return runs


def start_cost(chapter: Chapter) -> Measured:
    """What a run costs that ends with the validation of its parameters."""
    notebook = json.loads(chapter.path.read_text("utf-8"))
    cells = notebook["cells"]
    tagged = next(k for k, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", ()))
    source = engine.strip(notebook | {"cells": cells[: tagged + 2]})
    return cost(engine.run(source, {}, engine.code_digest(source)))


def cost(run: Run | engine.Outcome) -> Measured:
    """CPU seconds and memory."""
    return {"cpu_seconds": round(run.cpu_seconds, 1), "peak_mib": round(run.peak_mib)}


def values(run: Run) -> dict[str, tuple[float, float, float]]:
    """The recorded numbers by record; what a stored long run measured is the same each time."""
    return {row["record"]: (row["value"], row["low"], row["high"]) for row in run.rows if not row["claim"].endswith("-long")}


def verdicts(run: Run) -> dict[str, str]:
    """The verdict of each claim."""
    return {row["claim"]: row["verdict"] for row in run.rows if row["claim"] and row["verdict"]}


def measure(chapter: Chapter, work: Path, workers: int, without: Container[str] = ()) -> Measured:
    """All that is stored of a chapter."""
    runs = plan(chapter, without)
    tell = lambda run: print(chapter.stem, run.setting.label, run.state, round(run.seconds), "s", flush=True)
    done = run_sweep(chapter, list(runs.values()), work / chapter.stem, workers=workers, tell=tell)
    by_key = {run.setting.key: run for run in done}
    failed = [run for run in done if run.state not in ("done", "found")]
    if failed:
        sys.exit(f"{chapter.stem} with {failed[0].setting.label} is {failed[0].state} ({failed[0].error}): start again")
    published = by_key[runs["", "published"].key]
    before, claims = values(published), verdicts(published)
    found: Measured = {"start": start_cost(chapter), "published": cost(published)}
    found |= {"quick": cost(by_key[runs["effort", "quick"].key]), "records": len(before)}
    found["parameters"] = {name: [] for name in chapter.parameters if name in without}
    for (name, value), setting in runs.items():
        if name in ("", "effort"):
            continue
        run = by_key[setting.key]
        after = values(run)
        moved = [record for record in before.keys() | after.keys() if _differ(before.get(record), after.get(record))]
        changed = {claim: [claims.get(claim, ""), verdict] for claim, verdict in verdicts(run).items() if claims.get(claim) != verdict}
        entry = {"value": value} | cost(run) | {"moved": len(moved), "claims": len({record.split("/")[0] for record in moved})}
        found["parameters"].setdefault(name, []).append(entry | {"verdicts": changed})
    return found


def _differ(one: tuple[float, ...] | None, other: tuple[float, ...] | None) -> bool:
    if one is None or other is None:
        return True
    return any(a != b and not (a is not None and b is not None and math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="stems of notebooks (default: all)")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder that keeps the runs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="parameters that take too long")
    options = parser.parse_args()
    for name in options.chapters or [path.stem for path in sorted((ROOT / "book").glob("ch_*.ipynb"))]:
        chapter = chapters.read(chapters.find(name, ROOT / "book"))
        found = measure(chapter, options.work, options.workers, options.without)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
        stored = json.loads(STORE.read_text("utf-8")) if STORE.exists() else {"chapters": {}}
        stored["chapters"][chapter.stem] = found | {"load": round(load, 1)}
        stored["chapters"] = dict(sorted(stored["chapters"].items()))
        results.write_whole(STORE, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
