"""Sphinx extension: what each chapter cost when it was last run, from ``book/_data/status.json``.

``make run`` writes that file. A line under the title of each chapter that the file knows gives its run time, peak memory and
date, and the directive ``{run-status}`` writes the tables of the status page. Without the file there is nothing to say, and
nothing is said. ``{ensemble-speed}`` writes what ``benchmarks/ensemble.py`` measured, from ``book/_data/ensemble.json``.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

STATUS = Path("book/_data/status.json")
SPEED = Path("book/_data/ensemble.json")
METHODS = {
    "eager": "one model after another, Adam of torch",
    "eager_fused": "the same, fused Adam",
    "vmap": "`torch.vmap`, a batch for each depth",
    "compile": "`torch.compile` of the ensemble",
    "jax": "jitted, with scans over blocks, JAX",
    "ensemble": "the library's ensemble",
}


def read(env: BuildEnvironment) -> dict[str, Any]:
    """The parsed status file; empty where there is none."""
    path = Path(env.srcdir, STATUS)
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def duration(seconds: float) -> str:
    """Seconds as a reader wants them: ``0.8 s``, ``47 s``, ``2 min 5 s``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def day(iso: str) -> str:
    """``2026-11-29`` as ``29 November 2026``."""
    when = date.fromisoformat(iso)
    return f"{when.day} {when:%B %Y}"


def head_line(run: dict[str, Any], status: dict[str, Any]) -> str:
    """The line under a chapter's title."""
    versions = [f"Python {status['python']}"] if status.get("python") else []
    versions += [
        f"{name} {status['packages'][name]}" for name in ("torch", "numpy") if name in status.get("packages", {})
    ]
    facts = [
        f"Last run {day(run['date'])}",
        f"{duration(run['seconds'])} of CPU time",
        f"{run['peak_memory_mib']:.0f} MiB at most",
        ", ".join(versions),
    ]
    return " · ".join(fact for fact in facts if fact)


class ChapterHead(SphinxTransform):
    """Put the head line after the title of each chapter that has been run."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        status = read(self.env)
        run = status.get("chapters", {}).get(Path(self.env.docname).name)
        title = self.document.next_node(nodes.title)
        if run and title is not None:
            line = nodes.paragraph("", head_line(run, status), classes=["run-line"])
            title.parent.insert(title.parent.index(title) + 1, line)


class RunStatus(SphinxDirective):
    """``{run-status}``: the chapters with their run times, then the machine and the versions."""

    def run(self) -> list[nodes.Node]:
        status = read(self.env)
        if not status.get("chapters"):
            return self.parse_text_to_nodes(
                "No run has been recorded yet: `make run` executes every chapter and fills this page."
            )
        rows = ["| Chapter | CPU time | Elapsed | Peak memory | Last run |", "| :-- | --: | --: | --: | :-- |"]
        total = 0.0
        for stem, run in status["chapters"].items():
            docname = f"book/{stem}"
            name = f"[](/{docname}.ipynb)" if docname in self.env.found_docs else f"`{stem}`"
            total += run["seconds"]
            rows.append(
                f"| {name} | {duration(run['seconds'])} | {duration(run['wall_seconds'])} "
                f"| {run['peak_memory_mib']:.0f} MiB | {day(run['date'])} |"
            )
        rows += ["", f"All chapters together: {duration(total)} of CPU time.", ""]
        rows += [f"Machine: {status['machine']}.", ""] if status.get("machine") else []
        versions = {"Python": status.get("python"), **status.get("packages", {})}
        rows += ["| Package | Version |", "| :-- | :-- |"]
        rows += [f"| {name} | {version} |" for name, version in versions.items() if version]
        return self.parse_text_to_nodes("\n".join(rows))


class EnsembleSpeed(SphinxDirective):
    """``{ensemble-speed}``: the stored run of ``benchmarks/ensemble.py`` as tables."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir, SPEED)
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(speed_lines(json.loads(path.read_text("utf-8")))))


def speed_lines(stored: dict[str, Any]) -> list[str]:
    """Markdown of the stored benchmark."""
    work: dict[str, list[dict[str, Any]]] = {}
    for row in stored["rows"]:
        work.setdefault(row["work"], []).append(row)
    lines = [f"Machine: {stored['machine']}; {stored['peak_gflops']:g} billion operations a second in a large matrix product.", ""]
    lines += ["**Ninety perceptrons** (three placements, three learning rates, depths 2 to 32, two multipliers), Adam, float64, one thread:", ""]
    lines += ["| Width, batch | Method | Milliseconds a step | Against fused one by one | Share of the peak |", "| :-- | :-- | --: | --: | --: |"]
    fused = {row["width"]: row["ms_per_step"] for row in work["grid"] if row["method"] == "eager_fused"}
    for row in work["grid"]:
        gain = fused[row["width"]] / row["ms_per_step"]
        lines.append(
            f"| {row['width']}, {row['batch']} | {METHODS[row['method']]} {row.get('version', '')} | {row['ms_per_step']:.0f} "
            f"| {gain:.1f} times | {100 * row['share_of_peak']:.1f} % |"
        )
    lines += ["", "**The three placements as independent groups**, elapsed time:", ""]
    lines += ["| Width, batch | Workers | Milliseconds a step |", "| :-- | --: | --: |"]
    lines += [f"| {r['width']}, {r['batch']} | {r['workers']} | {r['wall_ms_per_step']:.0f} |" for r in work["groups"]]
    lines += ["", "**Eight seeds of a transformer** of six layers, float32:", ""]
    lines += ["| Width, sequences | Method | Milliseconds a step |", "| :-- | :-- | --: |"]
    lines += [f"| {r['width']}, {r['batch']} | {METHODS[r['method']]} | {r['ms_per_step']:.0f} |" for r in work["transformer"]]
    lines += ["", "**One deep perceptron**, width 32, batch 64, float64:", "", "| Blocks | Milliseconds a step | Memory |", "| --: | --: | --: |"]
    lines += [f"| {r['depth']} | {r['ms_per_step']:.0f} | {r['mib']} MiB |" for r in work["depth"]]
    slopes = stored["exponents"]
    return [*lines, "", f"Time grows as depth to the power {slopes['time']:.2f}, memory as depth to the power {slopes['memory']:.2f}."]


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Have every page read again when the status file has changed, appeared or gone."""
    status = read(env)
    if getattr(env, "resnorm_status", None) == status:
        return []
    env.resnorm_status = status  # type: ignore[attr-defined]
    return sorted(env.found_docs)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("run-status", RunStatus)
    app.add_directive("ensemble-speed", EnsembleSpeed)
    app.add_transform(ChapterHead)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
