"""The rows of the ledger: what a claim is, the file that holds them, and the rule that makes a verdict of an interval.

``claims.yml`` is data; `parse` checks every row of it and names row and field where one is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources

import yaml

from resnorm_lib.stats import Interval

__all__ = ["KINDS", "STATES", "Claim", "ClaimError", "load", "overall", "parse", "verdict"]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where PyYAML was built with libyaml

KINDS = ("exact", "statistical", "kernel", "reported")
"""How a claim is tested; see `Claim`."""
STATES = ("planned", "measured")
"""Whether a chapter measures the claim already."""


class ClaimError(ValueError):
    """A row of the ledger or a measurement is not well formed; the message names row and field."""


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes:
        id: permanent name, also the anchor of the line in its chapter and of its row in the ledger's page.
        source: citation key in the book's bibliography.
        where: place in the source.
        statement: what is claimed, in our own words.
        quantity: what is measured.
        prediction: what the source or the theory says that the quantity is.
        low, high: the tolerance; the claim holds where the whole interval lies inside.
        reason: where the tolerance comes from; for kind ``reported``, why it is not tested here.
        kind: ``exact`` (interval: smallest to largest over seeds), ``statistical`` (99 % interval),
            ``kernel`` (a fact about this build's kernels) or ``reported`` (not tested here).
        state: ``planned`` until a chapter measures it, then ``measured``.
        chapter: stem of the notebook that owns the row.
        scope: the settings for which the claim is made, or at which it is tested; empty where the statement says it.
        band: what re-seeding allows the value to be, for regression tests; one for each setting where there are several.
    """

    id: str
    source: str
    where: str
    statement: str
    quantity: str
    prediction: str
    reason: str
    kind: str
    state: str
    chapter: str
    scope: str = ""
    low: float = -math.inf
    high: float = math.inf
    band: Mapping[str, list[float]] = field(default_factory=dict)

    def tolerance(self) -> str:
        """The tolerance in words."""
        if math.isinf(self.low):
            return f"at most {self.high:.12g}"
        if math.isinf(self.high):
            return f"at least {self.low:.12g}"
        return f"exactly {self.low:.12g}" if self.low == self.high else f"{self.low:.12g} to {self.high:.12g}"


def parse(text: str) -> dict[str, Claim]:
    """Rows by id, each checked.

    Raises:
        ClaimError: names the row and the field that is wrong, and what is allowed.
    """
    rows: dict[str, Claim] = {}
    known = {item.name for item in fields(Claim)}
    measured = {"low", "high", "band"}
    for number, row in enumerate(yaml.load(text, _LOADER) or [], start=1):
        where = f"claims.yml, row {number}"
        if not isinstance(row, dict):
            raise ClaimError(f"{where}: write it as a mapping of field to value")
        where += f" ({row.get('id', 'no id')})"
        for name in sorted(row.keys() - known):
            raise ClaimError(f"{where}, field {name}: there is no such field; the fields are {', '.join(sorted(known))}")
        for name in sorted(known - measured - {"scope"} - row.keys()):
            raise ClaimError(f"{where}, field {name}: is missing")
        for name, value in row.items():
            if name == "band":
                _check_band(where, value)
            elif name in ("low", "high"):
                if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                    raise ClaimError(f"{where}, field {name}: {value!r} is not a number (write 1.0e-12, not 1e-12)")
            elif not isinstance(value, str) or not value.strip():
                raise ClaimError(f"{where}, field {name}: {value!r} is not a text")
        claim = Claim(**row)
        if claim.id in rows:
            raise ClaimError(f"{where}, field id: a second row has this id")
        for name, allowed in (("kind", KINDS), ("state", STATES)):
            if row[name] not in allowed:
                raise ClaimError(f"{where}, field {name}: {row[name]!r} is not one of {', '.join(allowed)}")
        if claim.kind == "reported":
            if row.keys() & measured:
                raise ClaimError(f"{where}, field kind: a reported claim has no tolerance and no band")
        elif math.isinf(claim.low) and math.isinf(claim.high) or claim.low > claim.high:
            raise ClaimError(f"{where}, fields low and high: give at least one, with low not above high")
        rows[claim.id] = claim
    return rows


def _check_band(where: str, band: object) -> None:
    pairs = band.values() if isinstance(band, dict) else [None]
    for pair in pairs:
        numbers = isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, int | float) for x in pair)
        if not numbers or not pair[0] <= pair[1]:  # type: ignore[index]
            raise ClaimError(f"{where}, field band: write it as {{setting: [low, high]}}, with numbers")


def load() -> dict[str, Claim]:
    """The rows of the package's own ``claims.yml``."""
    return parse(resources.files("resnorm_lib").joinpath("claims.yml").read_text("utf-8"))


def verdict(interval: Interval, low: float, high: float) -> str:
    """``holds`` where the interval lies inside [low, high], ``fails`` where outside, else ``unresolved``."""
    if low <= interval.low and interval.high <= high:
        return "holds"
    if interval.high < low or interval.low > high:
        return "fails"
    return "unresolved"


def overall(verdicts: Iterable[str]) -> str:
    """One verdict from those at several settings.

    All alike: that one. ``holds in scope`` where it holds at some and fails at others, whether or not further ones are
    open: a claim that fails somewhere is not open. ``unresolved`` otherwise.
    """
    kinds = set(verdicts)
    if len(kinds) == 1:
        return kinds.pop()
    return "holds in scope" if {"holds", "fails"} <= kinds else "unresolved"
