"""The sweep that the book's page on sweeps shows: ``python benchmarks/sweep.py --work DIR [--workers N]``.

Reruns the chapter on small branches over ``benchmarks/sweep.yml`` with the rerun command, and keeps of its ``results.csv``
what the page plots, in ``book/_data/sweep.csv``. DIR keeps the notebooks; a second start goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from resnorm_lib import rerun, results

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = "ch_small_branches"
KEPT = {
    (claim, f"{scope}; logits, d = 32")
    for claim in ("s0-8-64-sgd", "s0-8-64-adam")
    for scope in ("W₂", "everything")
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder that keeps the runs")
    parser.add_argument("--workers", default="1")
    options = parser.parse_args()
    words = [CHAPTER, "--grid", str(Path(__file__).with_suffix(".yml")), "--out", str(options.work)]
    if code := rerun.main([*words, "--workers", options.workers, "--force"]):
        return code
    rows = [row for row in results.read(options.work / "results.csv") if (row["claim"], row["at"]) in KEPT]
    results.write_whole(ROOT / "book" / "_data" / "sweep.csv", results.as_csv(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
