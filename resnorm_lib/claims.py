"""Compare measurements with claims, print one line each, and leave an exact record.

A claim is a row of ``claims.yml``: who says what, what is measured, the tolerance that decides the verdict
(committed before the measurement), and the band that a regression test allows (from re-seeding; it never
touches a verdict). A chapter opens a `Ledger`, measures, and prints; the record travels in the output's
metadata, and ``python -m resnorm_lib.claims`` reads all of them back from the committed notebooks.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from resnorm_lib.parameters import Parameters
from resnorm_lib.stats import Interval

__all__ = ["Claim", "ClaimError", "Ledger", "Number", "collect", "figure", "load", "overall", "parse", "verdict"]

KINDS = ("exact", "statistical", "kernel", "reported")
STATES = ("planned", "measured")


class ClaimError(ValueError):
    """A row of the ledger or a measurement is not well formed; the message names row and field."""


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes:
        id: permanent name, also the anchor of the line in its chapter.
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
    low: float = -math.inf
    high: float = math.inf
    band: Mapping[str, list[float]] = field(default_factory=dict)

    def tolerance(self) -> str:
        """The tolerance in words."""
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        return f"exactly {self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


def parse(text: str) -> dict[str, Claim]:
    """Rows by id, each checked.

    Raises:
        ClaimError: names the row and the field that is wrong, and what is allowed.
    """
    rows: dict[str, Claim] = {}
    known = {item.name for item in fields(Claim)}
    optional = {"low", "high", "band"}
    for number, row in enumerate(yaml.safe_load(text) or [], start=1):
        where = f"claims.yml, row {number}"
        if not isinstance(row, dict):
            raise ClaimError(f"{where}: write it as a mapping of field to value")
        where += f" ({row.get('id', 'no id')})"
        for name in sorted(row.keys() - known):
            raise ClaimError(f"{where}, field {name}: there is no such field; the fields are {', '.join(sorted(known))}")
        for name in sorted(known - optional - row.keys()):
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
            if row.keys() & optional:
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


def figure(value: float, digits: int | None = 3) -> str:
    """A measured number as it is printed: ``≈`` and so many significant digits; ``digits=None`` for an exact one.

    Only this module writes ``≈``: the guard test compares every such figure on a page with its record.
    """
    value += 0.0  # no minus in front of a zero
    if digits is None:
        return f"{value:g}"
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"≈{mantissa}e{int(exponent)}"
    return f"≈{text}"


@dataclass(frozen=True)
class Number:
    """A measured number that is not a claim, for a sentence of `Ledger.say`."""

    value: float
    band: Sequence[float] | None
    low: float | None = None
    high: float | None = None
    seeds: int | None = None
    digits: int | None = 3

    @classmethod
    def of(cls, interval: Interval, band: Sequence[float], digits: int | None = 3) -> Number:
        """The number of an interval of `resnorm_lib.stats`."""
        return cls(interval.value, band, interval.low, interval.high, interval.seeds, digits)

    def __format__(self, specification: str) -> str:
        """``{x}`` prints value and, where it has one, interval; ``{x:v}`` prints the value alone."""
        text = figure(self.value, self.digits)
        if specification != "v" and self.low is not None and self.high is not None:
            text += f" [{figure(self.low, self.digits)}, {figure(self.high, self.digits)}]"
        return text


class Ledger:
    """What one run of one chapter measures.

    Introduced in ``ch_layernorm_projector``; every chapter opens one after its parameters are checked.
    """

    def __init__(self, chapter: str, parameters: Parameters) -> None:
        """Open the ledger of ``chapter`` (the notebook's stem) for a run with these parameters."""
        self._chapter, self._parameters = chapter, parameters
        self._rows = load()
        if not any(row.chapter == chapter for row in self._rows.values()):
            raise ClaimError(f"chapter = {chapter!r} owns no row of claims.yml: give the notebook's name without .ipynb")

    def measure(
        self,
        claim_id: str,
        measured: Interval | Mapping[str, Interval],
        *,
        dtype: str = "float64",
        digits: int | None = 3,
    ) -> None:
        """Compare a measurement with its claim, print the line, leave the record.

        A quick run prints no verdict. Nothing is returned, so that the call may end a cell.

        Args:
            claim_id: a row that this chapter owns.
            measured: value, bounds and seeds (0 where nothing is drawn); or one of these for each setting.
            dtype: the precision of the run.
            digits: significant digits in print; ``None`` for numbers that are exact on every CPU path.

        Raises:
            ClaimError: no such row, a row of another chapter, or a measurement that is not a number.
        """
        claim = self._claim(claim_id)
        if claim.kind == "reported":
            raise ClaimError(f"{claim_id} is of kind reported: print it with Ledger.report")
        settings = dict(measured) if isinstance(measured, Mapping) else {"": measured}
        if not settings or not all(isinstance(interval, Interval) for interval in settings.values()):
            raise ClaimError(f"{claim_id}: give an Interval, or a mapping of setting to Interval, as stats.span makes them")
        verdicts = {}
        for name, interval in settings.items():
            if any(math.isnan(x) for x in interval[:3]) or not interval.low <= interval.value <= interval.high:
                raise ClaimError(f"{claim_id}: {interval} is not a value between its bounds")
            verdicts[name] = verdict(interval, claim.low, claim.high)
        result = "" if self._parameters.quick else overall(verdicts.values())
        records, lines = [], []
        for name, interval in settings.items():
            band = claim.band.get(name)
            exact = claim.low == claim.high == 0 and interval.low == interval.high == 0
            shown = Number(interval.value, band, interval.low, interval.high, interval.seeds, None if exact else digits)
            text = (f"{shown:v}" if interval.low == interval.high else f"{shown}") + self._outside(interval.value, band)
            lines.append((name, text, verdicts[name] if result and len(settings) > 1 else ""))
            record = self._record(f"{claim_id}/{name}" if name else claim_id, shown, dtype)
            record |= {"claim": claim_id, "setting": name, "kind": claim.kind}
            records.append(record | {"verdict": result or None, "setting_verdict": verdicts[name]})
        seeds = "–".join(str(n) for n in sorted({interval.seeds for interval in settings.values()}))
        how = "no random draw" if seeds == "0" else f"{seeds} {'seed' if seeds == '1' else 'seeds'}, {dtype}"
        how += {"statistical": ", 99 % interval", "kernel": f", {_cpu_path()}"}.get(claim.kind, "")
        self._print(claim, result, lines, f"{how}; predicted {claim.prediction}; tolerance {claim.tolerance()}", records)

    def report(self, claim_id: str) -> None:
        """Print a claim that is not tested here, with the reason."""
        claim = self._claim(claim_id)
        if claim.kind != "reported":
            raise ClaimError(f"{claim_id} is of kind {claim.kind}: measure it")
        shown = "" if self._parameters.quick else "reported"
        record: dict[str, Any] = {"name": claim_id, "claim": claim_id, "verdict": shown or None, "setting": ""}
        record |= {"kind": "reported", "value": None, "band": None, "chapter": self._chapter, "published": self._parameters.published}
        self._print(claim, shown, [("", claim.prediction, "")], f"not tested here: {claim.reason}", [record])

    def say(self, template: str, **measured: Number) -> None:
        """Print a Markdown sentence with measured numbers in it, and leave their records.

        Args:
            template: Markdown with ``{name}`` or ``{name:v}`` where a figure goes (see `Number`).
            **measured: the figures. Each has a band, except those printed exactly (``digits=None``).

        Raises:
            ClaimError: a rounded figure without a band: nothing would notice if it changed.
        """
        from IPython.display import display

        for name, item in measured.items():
            if item.band is None and item.digits is not None:
                raise ClaimError(f"{name}: give a band (from re-seeding), or digits=None for an exact number")
        text = template.format(**measured)
        text += "".join(self._outside(item.value, item.band) for item in measured.values())
        records = [self._record(name, item, "float64") for name, item in measured.items()]
        data = {"text/markdown": text, "text/plain": text}
        display(data, raw=True, metadata={"resnorm": {"records": records}})

    def _claim(self, claim_id: str) -> Claim:
        if claim_id not in self._rows:
            raise ClaimError(f"{claim_id!r} is no row of claims.yml: add it there, with its tolerance, before measuring")
        claim = self._rows[claim_id]
        if claim.chapter != self._chapter:
            raise ClaimError(f"{claim_id} belongs to {claim.chapter}, not to {self._chapter}")
        return claim

    def _outside(self, value: float, band: Any) -> str:
        if band is None or not self._parameters.published or band[0] <= value <= band[1]:
            return ""
        return f" (outside its regression band {band[0]:g} to {band[1]:g})"

    def _record(self, name: str, shown: Number, dtype: str) -> dict[str, Any]:
        record: dict[str, Any] = {"name": name, "value": shown.value, "low": shown.low, "high": shown.high}
        record |= {"printed": figure(shown.value, shown.digits), "digits": shown.digits, "seeds": shown.seeds}
        for bound in ("low", "high"):
            if record[bound] is not None:
                record[f"printed_{bound}"] = figure(record[bound], shown.digits)
        record |= {"band": None if shown.band is None else list(shown.band), "dtype": dtype, "chapter": self._chapter}
        record |= {"published": self._parameters.published, "parameters": dict(self._parameters.values)}
        return record

    def _print(
        self, claim: Claim, result: str, lines: list[tuple[str, str, str]], how: str, records: list[dict[str, Any]]
    ) -> None:
        """One line in a terminal (one more for each of several settings); a box in HTML."""
        from IPython.display import display

        label = result or "quick run, no verdict"
        if not self._parameters.published and result:
            changed = ", ".join(f"{name} = {value}" for name, value in self._parameters.changed.items())
            label += f" (with {changed}; published otherwise)"
        css = {"holds in scope": "scope", "": "none"}.get(result, result)
        one = len(lines) == 1 and not lines[0][0]
        plain = f"[{label}] {claim.id}: {claim.statement} {claim.quantity}: "
        rich = (
            f'<div class="claim verdict-{css}" id="claim-{claim.id}"><strong class="claim-verdict">{html.escape(label)}'
            f'</strong> <code>{claim.id}</code> <span class="claim-statement">{html.escape(claim.statement)}</span>'
        )
        if one:
            plain += f"{lines[0][1]} — {how}"
            rich += f' <span class="claim-measured">{html.escape(claim.quantity)}: {html.escape(lines[0][1])}</span>'
        else:
            plain += how + "".join(f"\n    {name}: {text}{verdict and f' ({verdict})'}" for name, text, verdict in lines)
            rows = "".join(
                f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td>"
                f'<td class="claim-verdict verdict-{verdict or "none"}">{verdict}</td></tr>'
                for name, text, verdict in lines
            )
            head = f"<tr><th>setting</th><th>{html.escape(claim.quantity)}</th><th>verdict</th></tr>"
            rich += f'<table class="claim-settings"><thead>{head}</thead><tbody>{rows}</tbody></table>'
        rich += f' <span class="claim-how">{html.escape(how)}</span></div>'
        display({"text/html": rich, "text/plain": plain}, raw=True, metadata={"resnorm": {"records": records}})


def _cpu_path() -> str:
    import torch

    return f"CPU path {torch.backends.cpu.get_cpu_capability()}"


def collect(book: Path) -> list[dict[str, Any]]:
    """The ledger: every row of ``claims.yml`` with what the executed notebooks in ``book`` measured.

    Returns:
        One mapping for each row, in the file's order: ``id``, ``source``, ``where``, ``statement``, ``quantity``,
        ``predicted``, ``tolerance``, ``measured``, ``low``, ``high``, ``seeds``, ``dtype``, ``verdict``, ``chapter``,
        ``cell`` (the cell's id), ``kind``, ``state`` and ``settings`` (one mapping for each setting measured).

    Raises:
        ClaimError: ``book`` is not a folder, a notebook cannot be read, a claim is measured by two cells, or a record has no row.
    """
    if not book.is_dir():
        raise ClaimError(f"{book} is not a folder: give the folder of the chapters with --book")
    rows = load()
    found: dict[str, tuple[str, str, list[dict[str, Any]]]] = {}
    for path in sorted(book.glob("ch_*.ipynb")):
        try:
            measured = list(_measured(json.loads(path.read_text("utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClaimError(f"{path.name} cannot be read ({type(error).__name__}: {error}): run `make run`") from error
        for cell, records in measured:
            claim_id = records[0]["claim"]
            if claim_id not in rows:
                raise ClaimError(f"{path.name} measures {claim_id}, which is no row of claims.yml: execute the chapter again")
            if claim_id in found:
                raise ClaimError(f"{claim_id} is measured by two cells, of {found[claim_id][0]} and {path.stem}")
            found[claim_id] = (path.stem, cell, records)
    return [_entry(claim, *found.get(claim.id, (claim.chapter, None, [{}]))) for claim in rows.values()]


def _measured(notebook: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            records = [r for r in output.get("metadata", {}).get("resnorm", {}).get("records", ()) if "claim" in r]
            if records:
                yield cell.get("id", ""), records


def _entry(claim: Claim, chapter: str, cell: str | None, records: list[dict[str, Any]]) -> dict[str, Any]:
    first = records[0]
    entry = {key: value for key, value in asdict(claim).items() if key not in ("low", "high", "band", "prediction", "reason")}
    entry["predicted"] = claim.prediction
    entry["tolerance"] = claim.reason if claim.kind == "reported" else f"{claim.tolerance()} ({claim.reason})"
    entry |= {"measured": first.get("value")} | {key: first.get(key) for key in ("low", "high", "seeds", "dtype")}
    entry |= {"verdict": first.get("verdict") or "planned", "chapter": chapter, "cell": cell}
    keys = ("setting", "value", "low", "high", "seeds", "setting_verdict")
    entry["settings"] = [{key: r.get(key) for key in keys} for r in records if r.get("setting")]
    return entry


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger: ``python -m resnorm_lib.claims --format json|table``."""
    parser = argparse.ArgumentParser(prog="python -m resnorm_lib.claims", description="Print the ledger of claims.")
    parser.add_argument("--format", choices=("json", "table"), default="table")
    parser.add_argument("--book", type=Path, default=_book(), help="folder of the executed chapters")
    options = parser.parse_args(arguments)
    try:
        ledger = collect(options.book)
    except ClaimError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show ≤ still shows the rest
    if options.format == "json":
        print(json.dumps(ledger, indent=1, ensure_ascii=False))
        return 0
    width = max(len(entry["id"]) for entry in ledger)
    for entry in ledger:
        value = "" if entry["low"] is None or entry["high"] is None else f"{entry['measured']:.3g} [{entry['low']:.3g}, {entry['high']:.3g}]"
        print(f"{entry['id']:{width}}  {entry['verdict']:14}  {value:32}  {entry['statement']}")
    return 0


def _book() -> Path:
    beside = Path(__file__).resolve().parent.parent / "book"
    return beside if beside.is_dir() else Path("book")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stderr.close()
