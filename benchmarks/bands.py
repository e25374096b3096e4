"""Regression bands from re-seeding: ``python benchmarks/bands.py CHAPTER [--runs N] [--write]``.

Runs the chapter as it is and with other values of ``first_seed``, and prints for each record the band
[least - w, most + w], with w the range over these runs; for rounding errors it is [0, ten times the most]. ``--write`` puts the bands of claims into ``claims.yml``; those of sentences
(``Ledger.say``) stand in the chapter's cells and are printed for its author. A band decides whether a fresh run passes
the tests; it never touches a verdict.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import papermill

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "resnorm_lib" / "claims.yml"
ROUNDING = 1e-9  # an error below this is rounding: it depends on the CPU path more than on the seed
Values = dict[tuple[str | None, str], float]


def values(notebook: Any) -> Values:
    """Value of each record: by (claim, setting), or by (None, name) for a sentence."""
    found: Values = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for record in output.get("metadata", {}).get("resnorm", {}).get("records", ()):
                if record.get("value") is not None:
                    claim = record.get("claim")
                    found[claim, record["setting"] if claim else record["name"]] = record["value"]
    return found


def band(samples: list[float]) -> list[float]:
    """[least - w, most + w], rounded outwards to three digits; [0, 10 most] for rounding errors."""
    least, most = min(samples), max(samples)
    if least >= 0 and most < ROUNDING:
        return [0.0, _outwards(10 * most, 1)]
    low, high = least - (most - least), most + (most - least)
    return [_outwards(low, -1), _outwards(high, 1)]


def _outwards(value: float, sign: int) -> float:
    if value == 0:
        return 0.0
    return float(f"{value + sign * abs(value) * 5e-3:.3g}")


def write(bands: dict[str, dict[str, list[float]]]) -> None:
    """Replace the ``band`` of each of these claims in ``claims.yml``, where it is the row's last field."""
    rows = re.split(r"(?m)^(?=- id: |# -----)", CLAIMS.read_text("utf-8"))
    for index, row in enumerate(rows):
        name = re.match(r"- id: (\S+)", row)
        if name and name[1] in bands:
            body = re.sub(r"(?m)^  band:\n(?:    .*\n)+", "", row).rstrip("\n")
            lines = [f'    "{setting}": [{_yaml(low)}, {_yaml(high)}]' for setting, (low, high) in bands[name[1]].items()]
            rows[index] = "\n".join([body, "  band:", *lines]) + "\n\n"
    CLAIMS.write_text("".join(rows).rstrip("\n") + "\n", "utf-8")


def _yaml(value: float) -> str:
    """YAML 1.1 reads 1e-15 as a text and 1.0e-15 as a number."""
    text = f"{value:g}"
    return text if "e" not in text or "." in text.split("e")[0] else text.replace("e", ".0e")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapter", help="stem of the notebook, as ch_layernorm_projector")
    parser.add_argument("--runs", type=int, default=4, help="how many other first seeds (default 4)")
    parser.add_argument("--write", action="store_true", help="put the bands into claims.yml")
    options = parser.parse_args()
    source = ROOT / "book" / f"{options.chapter}.ipynb"
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        seeds = [0] + [10_000 * (k + 1) for k in range(options.runs)]  # first_seed is 0 as published
        runs = pool.map(
            lambda seed: papermill.execute_notebook(
                source, Path(scratch) / f"{seed}.ipynb", {"first_seed": seed}, progress_bar=False
            ),
            seeds,
        )
        samples: dict[tuple[str | None, str], list[float]] = defaultdict(list)
        for notebook in runs:
            for key, value in values(notebook).items():
                samples[key].append(value)
    bands: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for (claim, name), numbers in samples.items():
        if claim is None:
            print(f"{name}: {band(numbers)}")
        elif not claim.endswith("-long"):  # a long run is stored, and read back the same each time
            bands[claim][name] = band(numbers)
    for claim, settings in bands.items():
        print(claim, settings)
    if options.write:
        write(bands)


if __name__ == "__main__":
    main()
