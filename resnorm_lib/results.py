"""The table of a sweep: a row for each setting and recorded value, written as CSV and Parquet, and read back.

The first columns are ``chapter``, the chapter's parameters, and ``notebook`` (the file of the run). Then:

- ``record``: the record's name, ``claim/setting`` for a claim measured at several settings of its own; ``claim``, ``at``:
  its two parts, empty for a number that is no claim.
- ``value``, ``low``, ``high``: the measurement and its interval, unrounded; ``replicates``: how many seeds are behind it.
- ``dtype``; ``setting_verdict`` and ``verdict``, of this row and of the claim over all its settings; a quick run gives no
  ``verdict``.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__all__ = ["COLUMNS", "as_csv", "frame", "read", "rows_of", "write_parquet", "write_whole"]

COLUMNS = (
    *("notebook", "record", "claim", "at", "value", "low", "high", "replicates", "dtype", "setting_verdict", "verdict"),
)
"""The columns behind ``chapter`` and the parameters; no parameter may have one of these names."""

_NUMBERS = ("value", "low", "high")
Row = Mapping[str, Any]


def rows_of(notebook: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an executed notebook has recorded, in its order; claims that are only reported have no value and are left out.

    Args:
        notebook: as nbformat or ``json`` reads it.

    Returns:
        A mapping for each record, with the names of `COLUMNS` except ``notebook``.
    """
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            for record in output.get("metadata", {}).get("resnorm", {}).get("records", ()):
                if record.get("value") is None:
                    continue
                row = {"record": record["name"], "claim": record.get("claim", ""), "at": record.get("setting", "")}
                row |= {name: None if record.get(name) is None else float(record[name]) for name in _NUMBERS}
                row |= {"replicates": record.get("seeds"), "dtype": record.get("dtype")}
                found.append(row | {name: record.get(name) for name in ("setting_verdict", "verdict")})
    return found


def as_csv(rows: Iterable[Row], names: Sequence[str]) -> str:
    """Rows as CSV; a number has all its digits, and ``None`` is an empty field.

    Args:
        rows: a mapping for each line.
        names: the head.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: repr(x) if isinstance(x, float) else x for name, x in row.items()} for row in rows)
    return text.getvalue()


def write_parquet(path: Path, rows: Sequence[Row], names: Sequence[str]) -> bool:
    """Write rows as Parquet, where pyarrow is installed.

    Args:
        path: the file; it is replaced in one step.
        rows: a mapping for each line.
        names: the columns.

    Returns:
        Whether it was written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return False
    # a column of nothing but gaps has no type of its own, and a file of another sweep would give it one
    types = dict.fromkeys(_NUMBERS, pyarrow.float64()) | {"replicates": pyarrow.int64()}
    gaps = {name: types.get(name, pyarrow.string()) for name in names}
    columns = {name: [row[name] for row in rows] for name in names}
    arrays = {name: pyarrow.array(column, None if _filled(column) else gaps.get(name)) for name, column in columns.items()}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), buffer)
    write_whole(path, buffer.getvalue())
    return True


def _filled(column: Iterable[Any]) -> bool:
    return any(value is not None for value in column)


def read(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a ``results.csv``, without pandas.

    Returns:
        A mapping for each row. ``value``, ``low`` and ``high`` are floats, ``replicates`` and the parameters numbers where
        they look like numbers, an empty field is ``None``, and the rest is text.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table of a sweep.
    """
    with open(path, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        names = reader.fieldnames or []
        missing = [name for name in ("chapter", *COLUMNS) if name not in names]
        if missing:
            raise ValueError(f"{path} is no table of a sweep, {', '.join(missing)} is missing: give a results.csv of rerun")
        words = {"chapter", *COLUMNS} - {*_NUMBERS, "replicates"}
        return [{name: _parsed(name, text, words) for name, text in row.items()} for row in reader]


def _parsed(name: str, text: str, words: set[str]) -> Any:
    if text == "":
        return "" if name in ("claim", "at") else None
    if name in _NUMBERS:
        return float(text)
    if name not in words:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
    return text


def frame(path: Path | str) -> pandas.DataFrame:
    """The table of a sweep as a pandas DataFrame, from ``results.csv`` or ``results.parquet``, with the same types from both.

    Raises:
        ImportError: pandas is not installed.
        OSError, ValueError: as `read`.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frame needs pandas: run 'pip install pandas', or use resnorm_lib.results.read") from error
    if Path(path).suffix == ".parquet":
        return pandas.DataFrame(pandas.read_parquet(path).to_dict("records")).astype(dict.fromkeys(_NUMBERS, float))
    return pandas.DataFrame(read(path)).astype(dict.fromkeys(_NUMBERS, float))


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace a file in one step, so that it is never seen half-written, and two writers never mix.

    Args:
        path: the file.
        content: a text is written as UTF-8.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the file is as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with open(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
