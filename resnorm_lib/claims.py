"""Compare measurements with claims, print one line each, and leave an exact record.

A claim is a row of ``claims.yml``: who says what, what is measured, the tolerance that decides the verdict
(committed before the measurement), and the band that a regression test allows (from re-seeding; it never
touches a verdict). A chapter opens a `Ledger`, measures, and prints; the record travels in the output's
metadata, and ``python -m resnorm_lib.claims`` reads all of them back from the committed notebooks.
Rows are checked in `claim_rows`, and collected in `claim_records`; this module has the names of both.
"""

from __future__ import annotations

import argparse
import html
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnorm_lib.claim_records import as_csv, as_json, collect
from resnorm_lib.claim_rows import Claim, ClaimError, load, overall, parse, verdict
from resnorm_lib.parameters import Parameters
from resnorm_lib.stats import Interval

__all__ = ["Claim", "ClaimError", "Ledger", "Number", "collect", "figure", "load", "overall", "parse", "verdict"]


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


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger: ``python -m resnorm_lib.claims --format csv|json|table``."""
    parser = argparse.ArgumentParser(prog="python -m resnorm_lib.claims", description="Print the ledger of claims.")
    parser.add_argument("--format", choices=("csv", "json", "table"), default="table")
    parser.add_argument("--book", type=Path, default=_book(), help="folder of the executed chapters")
    options = parser.parse_args(arguments)
    try:
        ledger = collect(options.book)
    except ClaimError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show ≤ still shows the rest
    if options.format != "table":
        print({"csv": as_csv, "json": as_json}[options.format](ledger), end="")
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
