"""Estimate what a rerun costs before it starts, from runs that were measured one parameter at a time.

The seconds beyond the start of the kernel scale as ``Π (value / published)^e`` over the parameters, and so does the memory,
with exponents e from ``book/_data/parameters.json`` (``benchmarks/parameters.py`` measures them). Products of powers are
crude: expect the right size, not the right figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnorm_lib.chapters import Chapter
from resnorm_lib.parameters import Choice
from resnorm_lib.settings import Setting

__all__ = ["Estimate", "estimate", "exponent", "stored_costs"]

_STEEPEST = 4.0


@dataclass(frozen=True)
class Estimate:
    """What one run may cost.

    Attributes:
        cpu_seconds: of its kernel, which computes on one thread.
        peak_mib: largest resident memory of its kernel.
    """

    cpu_seconds: float
    peak_mib: float


def stored_costs(book: Path, chapter: Chapter) -> dict[str, Any]:
    """What was measured of a chapter.

    Args:
        book: folder of the chapters.
        chapter: the chapter; where only its last run is known (``book/_data/status.json``), nothing is known of its
            parameters.

    Returns:
        ``start``, ``published`` and, where it was measured, ``quick``: mappings with ``cpu_seconds`` and ``peak_mib``;
        ``parameters``: by name a list of such mappings, each with its ``value``. Empty where nothing is known.
    """
    measured = _read(book / "_data" / "parameters.json").get("chapters", {}).get(chapter.stem)
    if measured:
        return dict(measured)
    last = _read(book / "_data" / "status.json").get("chapters", {}).get(chapter.stem)
    if not last:
        return {}
    published = {"cpu_seconds": last["seconds"], "peak_mib": last["peak_memory_mib"]}
    return {"start": {"cpu_seconds": 0.0, "peak_mib": 0.0}, "published": published, "parameters": {}}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def exponent(stored: Mapping[str, Any], name: str, published: object, what: str) -> float:
    """The power of a parameter in the cost, from 0 to 4; the mean over the values that were measured.

    Where none was, the time is taken to be proportional to a whole number, and nothing else to depend on anything.

    Args:
        stored: what `stored_costs` returns.
        name: the parameter.
        published: its published value.
        what: ``cpu_seconds`` or ``peak_mib``.
    """
    if isinstance(published, str) or not published:
        return 0.0
    start, whole = stored["start"][what], stored["published"][what]
    found = []
    for run in stored["parameters"].get(name, ()):
        ratio = max(run[what] - start, 1e-3) / max(whole - start, 1e-3)
        if run["value"] > 0 and run["value"] != published:
            found.append(math.log(ratio) / math.log(run["value"] / float(published)))  # type: ignore[arg-type]
    if not found:
        return 1.0 if isinstance(published, int) and what == "cpu_seconds" else 0.0
    return min(max(sum(found) / len(found), 0.0), _STEEPEST)


def estimate(chapter: Chapter, settings: Sequence[Setting], stored: Mapping[str, Any]) -> list[Estimate]:
    """The estimate for each setting.

    Args:
        chapter: whose settings they are.
        settings: what is to be run.
        stored: what `stored_costs` returns, and not empty.
    """
    powers = {
        what: {name: exponent(stored, name, value, what) for name, value in chapter.published.items()}
        for what in ("cpu_seconds", "peak_mib")
    }
    return [Estimate(**{what: _cost(chapter, setting, stored, what, powers[what]) for what in powers}) for setting in settings]


def _cost(chapter: Chapter, setting: Setting, stored: Mapping[str, Any], what: str, powers: Mapping[str, float]) -> float:
    start = stored["start"][what]
    base = stored.get("quick", stored["published"]) if setting.every.get("effort") == "quick" else stored["published"]
    factor = 1.0
    for name, value in setting.every.items():
        specification = chapter.parameters[name].specification
        if isinstance(specification, Choice):
            for run in stored["parameters"].get(name, ()) if name != "effort" else ():
                if run["value"] == value:
                    factor *= max(run[what] - start, 1e-3) / max(stored["published"][what] - start, 1e-3)
        elif powers[name]:
            factor *= (float(value) / float(specification.published)) ** powers[name]
    return float(start + max(base[what] - start, 0.0) * factor)
