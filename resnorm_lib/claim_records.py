"""The ledger as the executed notebooks have it: records are read back, joined to their rows, and written as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resnorm_lib.claim_rows import Claim, ClaimError, load

__all__ = ["as_csv", "as_json", "collect"]

# The columns of the CSV; each setting of a claim has a line of its own.
_COLUMNS = (
    *("id", "source", "where", "scope", "statement", "quantity", "kind", "state", "chapter", "cell", "predicted"),
    *("tolerance", "verdict", "setting", "measured", "low", "high", "seeds", "dtype", "setting_verdict"),
)


def collect(book: Path) -> list[dict[str, Any]]:
    """The ledger: every row of ``claims.yml`` with what the executed notebooks in ``book`` measured.

    Returns:
        One mapping for each row, in the file's order: ``id``, ``source``, ``where``, ``statement``, ``quantity``,
        ``scope``, ``predicted``, ``tolerance``, ``measured``, ``low``, ``high``, ``seeds``, ``dtype``, ``digits`` (those
        printed; none for an exact number), ``verdict``, ``chapter``, ``cell`` (the cell's id), ``kind``, ``state`` and
        ``settings`` (one mapping for each setting measured; the row's own numbers are then those of the first).

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
    entry |= {"measured": first.get("value")} | {key: first.get(key) for key in ("low", "high", "seeds", "dtype", "digits")}
    entry |= {"verdict": first.get("verdict") or "planned", "chapter": chapter, "cell": cell}
    keys = ("setting", "value", "low", "high", "seeds", "digits", "setting_verdict")
    entry["settings"] = [{key: r.get(key) for key in keys} for r in records if r.get("setting")]
    return entry


def as_json(entries: Sequence[dict[str, Any]]) -> str:
    """The ledger that `collect` returns, as JSON; JSON has no infinite numbers: they are texts, ``"Infinity"``."""
    return json.dumps(_finite(entries), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def as_csv(entries: Sequence[dict[str, Any]]) -> str:
    """The ledger that `collect` returns, as CSV: one line for each row, or for each setting of it where there are several."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        for part in entry["settings"] or [{"value": entry["measured"]}]:
            writer.writerow(entry | part | {"measured": part["value"]})
    return text.getvalue()
