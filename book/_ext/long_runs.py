"""Runs that take too long for a chapter's cells: ``python book/_ext/long_runs.py [CHAPTER …]``, or ``make long``.

Each is a chapter run once more with other parameters, on seeds that the chapter never uses. What it measured is stored
as package data with its recipe, and a cell of the chapter reads it back. A grid of arms that no chapter holds has a
module of its own in place of parameters, see SCRIPTS.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import long_deepnorm
import papermill

from resnorm_lib import claim_rows

ROOT = Path(__file__).resolve().parents[2]
RUNS: dict[str, tuple[dict[str, int | float | str], tuple[str, ...]]] = {
    "ch_why_depth_fails": (
        {"steps": 1000, "train_width": 32, "train_seeds": 12, "first_seed": 3000},
        ("he-degradation", "he-residual", "s3-cause"),
    ),
    "ch_layernorm_projector": ({"train_seeds": 16, "first_seed": 2000}, ("s3-rms-quality", "zhang-comparable")),
    "ch_measurement_critique": (
        {"designs": "all", "steps": 300, "seeds": 8, "first_seed": 3000},
        (
            *("s0-auc", "s0-auc-coin", "s0-auc-alpha", "s0-auc-loss", "s0-auc-deeper-coin"),
            *("s0-auc-order-step", "s0-auc-order-loss", "s0-auc-order-alpha"),
            *("s0-strat", "s0-strat-lift", "s0-strat-arbitrates", "x-strat-same-depth", "x-reused-labels"),
        ),
    ),
    "ch_pre_vs_post": (
        {"arms": "all", "train_seeds": 12, "seeds": 4, "first_seed": 4000},
        (
            *("s3-warmup-post", "s3-warmup-post-with", "s3-warmup-pre", "s3-warmup-length", "xiong-warmup-pre"),
            *("x-stall-kept", "x-stall-rescued", "deepnet-rebuttal-trains"),
            *("s3-effdepth", "s3-effdepth-joint", "x-effdepth-control", "curse-post"),
        ),
    ),
    "ch_qk_norm": (
        {"arms": "all", "train_seeds": 12, "head_seeds": 18, "first_seed": 3000},
        (
            *("wortsman-sensitivity", "wortsman-range", "s3-qk-fail-stop", "x-stop-scores", "x-stop-rows"),
            *("s3-qk-fail-trained", "x-stop-cause", "x-stop-moves", "s3-qk-fail-stay"),
            *("softcap-sensitivity", "qk-clip-sensitivity", "sigma-reparam", "x-alternatives-best"),
        ),
    ),
    "ch_seen_from_outside": (
        {"seeds": 20, "first_seed": 4000, "tuned": "all widths"},
        (
            *("s3-precision-sigma", "norm-rounding-stream", "s3-precision", "x-norms-kept", "kovaleva-gains"),
            *("s3-finetune", "s3-finetune-warmup", "s3-finetune-rate", "s3-finetune-placement"),
            *("x-finetune-relative", "s3-finetune-reason", "x-finetune-gradient-size", "mosbach", "mosbach-warmup"),
        ),
    ),
}
SCRIPTS: dict[str, ModuleType] = {"ch_deepnorm": long_deepnorm}  # each with PUBLISHED, QUICK and measure
KEPT = ("setting", "value", "low", "high", "seeds", "dtype")


def records(notebook: Any, claims: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """The records of these claims in an executed notebook, by claim; a claim without a row of its own has a long one alone."""
    rows = claim_rows.load()
    names = {claim if claim in rows or f"{claim}-long" not in rows else f"{claim}-long": claim for claim in claims}
    found: dict[str, list[dict[str, Any]]] = {claim: [] for claim in claims}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for record in output.get("metadata", {}).get("resnorm", {}).get("records", ()):
                if record.get("claim") in names:
                    found[names[record["claim"]]].append({key: record[key] for key in KEPT})
    empty = [claim for claim, kept in found.items() if not kept]
    if empty:
        raise SystemExit(f"the run measured nothing for {', '.join(empty)}: check RUNS in {Path(__file__).name}")
    return found


def run(chapter: str, folder: Path, **overrides: float | str) -> Path:
    """Run the chapter with its long parameters, or its script, and write what it measured into ``folder``."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    target = folder / f"long_{chapter.removeprefix('ch_')}.json"
    if chapter in SCRIPTS:
        script = SCRIPTS[chapter]
        parameters = script.QUICK if overrides.get("effort") == "quick" else script.PUBLISHED
        found = script.measure(parameters, target.with_suffix(".part.json"))
    else:
        parameters, found = _rerun(chapter, overrides)
    stored = {
        "recipe": f"make long, which is: python book/_ext/long_runs.py {chapter}",
        "commit": git.stdout.strip() or "not under version control",
        "packages": {name: metadata.version(name) for name in ("numpy", "torch")},
        "parameters": parameters,
    } | found
    indent = None if chapter in SCRIPTS else 1  # curves are long lists of numbers
    target.write_text(json.dumps(stored, indent=indent, ensure_ascii=False) + "\n", "utf-8")
    return target


def _rerun(chapter: str, overrides: dict[str, float | str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The chapter once more: its parameters, and the records of its claims."""
    parameters, claims = RUNS[chapter]
    parameters = parameters | overrides
    with tempfile.TemporaryDirectory() as scratch:
        source = ROOT / "book" / f"{chapter}.ipynb"
        notebook = papermill.execute_notebook(source, Path(scratch) / "out.ipynb", parameters, progress_bar=True)
    return parameters, {"claims": records(notebook, claims)}


def main() -> int:
    """Command line."""
    known = [*RUNS, *SCRIPTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help=f"one of {', '.join(known)}; all where none is named")
    parser.add_argument("--out", type=Path, default=ROOT / "resnorm_lib" / "data", help="folder to write to")
    options = parser.parse_args()
    for chapter in options.chapters or known:
        if chapter not in known:
            parser.error(f"{chapter} has no long run; those that have are {', '.join(known)}")
        print(run(chapter, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
