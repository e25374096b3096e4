"""Sphinx extension for the page of a sweep: ``{sweep-figure}`` draws its table, ``book/_data/sweep.csv``, when the page is built.

The table was made by ``benchmarks/sweep.py``. The picture stands in the page itself, in the style of the chapters' figures.
``{rerun-speed}`` tells what ``benchmarks/rerun.py`` measured, from ``book/_data/rerun.json``.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from docutils import nodes
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from resnorm_lib import figures, results

STORE = Path("book/_data/sweep.csv")
SPEED = Path("book/_data/rerun.json")
LOOKS = {
    "tanh": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "relu": {"color": "#D55E00", "linestyle": (0, (5, 1.5)), "marker": "^"},
    "gelu": {"color": "#000000", "linestyle": (0, (1, 1.2)), "marker": "s"},
}
PANELS = {"s0-8-64-sgd": "under SGD", "s0-8-64-adam": "under Adam"}
ALONE, WHOLE = "W₂; logits, d = 32", "everything; logits, d = 32"


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Two panels: ratio of first steps over depth, a line for each activation; grey: the output matrices alone."""
    fig, panels = figures.figure(2)
    for axes, (claim, title) in zip(panels, PANELS.items(), strict=True):
        for activation, look in LOOKS.items():
            line = sorted(
                (row["depth"], row["value"], row["low"], row["high"])
                for row in rows
                if (row["claim"], row["at"], row["activation"]) == (claim, WHOLE, activation)
            )
            if not line:
                continue
            depths, value, low, high = zip(*line, strict=True)
            axes.fill_between(depths, low, high, color=look["color"], alpha=0.15, linewidth=0)
            axes.plot(depths, value, **look, label=activation)
        alone = [(row["depth"], row["value"]) for row in rows if (row["claim"], row["at"]) == (claim, ALONE)]
        axes.plot(*zip(*sorted(alone), strict=True), color="0.6", linewidth=3, zorder=1.5, label="$W_2$ alone, all three")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        depths = sorted({row["depth"] for row in rows})
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.set_yticks([2**k for k in range(7)], [str(2**k) for k in range(7)])
        axes.set(xlabel=f"depth $L$, {title}", ylabel="small start over multiplier", ylim=(1, 100))
    panels[0].legend(fontsize=8)
    fig.align_labels()
    return fig


def summary(rows: list[dict[str, Any]]) -> str:
    """The smallest and the largest ratio of whole networks, from the table."""
    told = []
    for claim, title in PANELS.items():
        values = [row["value"] for row in rows if (row["claim"], row["at"]) == (claim, WHOLE)]
        alone = [row["value"] for row in rows if (row["claim"], row["at"]) == (claim, ALONE)]
        told.append(
            f"{title} from {min(values):.3g} to {max(values):.3g} for whole networks, "
            f"and within {max(abs(x / alone[0] - 1) for x in alone):.0e} of {alone[0]:.3g} where the output matrices train alone"
        )
    runs = len({row["notebook"] for row in rows})
    return f"Over {runs} settings the ratio is, {'; '.join(told)}."


class SweepFigure(SphinxDirective):
    """``{sweep-figure}``: the figure, its caption, and a sentence with the extremes."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir, STORE)
        self.env.note_dependency(str(path))
        rows = results.read(path)
        buffer = io.BytesIO()
        draw(rows).savefig(buffer, format="png", dpi=140)
        image = nodes.image(uri=f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}", alt=ALT)
        figure = nodes.figure("", image, nodes.caption("", CAPTION), ids=["fig-sweep"])
        return [figure, nodes.paragraph("", summary(rows))]


def speed_lines(stored: dict[str, Any]) -> list[str]:
    """Markdown of what ``benchmarks/rerun.py`` measured; each part says how busy the machine was."""
    lines = []
    if "start" in stored:
        start, quick = (stored["start"][kind]["cpu_seconds"] for kind in ("start", "quick"))
        lines.append(
            f"Starting a kernel and importing took {start:.1f} s of CPU time, of {quick:.1f} s for a whole quick run of the chapter on LayerNorm"
        )
    for row in stored.get("stub", {}).get("rows", []):
        lines.append(
            f"A sweep of {row['settings']:,} settings over {row['workers']} worker{'s' * (row['workers'] > 1)}, with an engine that "
            f"computes nothing, took {row['cpu_ms_per_setting']:.0f} ms of CPU time for each setting; the last quarter took "
            f"{row['last_over_first_quarter']:.2f} times as long as the first. "
            + (f"A worker held {row['worker_mib']} MiB, the command" if row["workers"] > 1 else "The command held")
            + f" {row['command_mib']} MiB at the end"
        )
    if "scaling" in stored:
        row = stored["scaling"]
        lines.append(
            f"{row['reruns']} quick reruns took {row['seconds']['1']:.0f} s with one worker and {row['seconds']['2']:.0f} s with two: "
            f"{row['times_one']:.2f} times as fast"
        )
    kinds = [kind for kind in ("start", "stub", "scaling") if kind in stored]
    loads = ", ".join(f"{stored[kind]['load_before']:g} ({kind})" for kind in kinds)
    return [*(f"- {line}." for line in lines), "", f"Load of the two-core machine before each part: {loads}." if kinds else ""]


class RerunSpeed(SphinxDirective):
    """``{rerun-speed}``: what the stored benchmark of the rerun command says; nothing where there is none."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir, SPEED)
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(speed_lines(json.loads(path.read_text("utf-8"))))) if path.exists() else []


ALT = (
    "Two panels, SGD and Adam, on logarithmic axes: the ratio of the first steps against depth. A wide grey line, for the "
    "output matrices alone, is flat, at 64 and at 8. Three lines for tanh, relu and gelu, with everything in training, start "
    "near 2 at two blocks, close to one another, and rise with the depth, below the grey line."
)
CAPTION = (
    "First-step change of the logits with a small start over that with a multiplier, at c = 1/8, width 32. Coloured: everything "
    "trains (line: the largest of three seeds, which is what the chapter reports; shade: down to the smallest). Grey: the output "
    "matrices train alone."
)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("sweep-figure", SweepFigure)
    app.add_directive("rerun-speed", RerunSpeed)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
