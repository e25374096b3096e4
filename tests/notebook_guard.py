"""What a committed notebook must be, beyond what nbval compares: `violations` lists what it is not."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from resnorm_lib.claims import Claim, figure, load, overall, verdict
from resnorm_lib.stats import Interval

LONGEST_CELL = 20
SHORTEST_ALT = 8  # words
FIGURE = re.compile(r"≈[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|inf|nan)")
ABSOLUTE_PATH = re.compile(
    r"file://"
    r"|(?<![\w.~/<>)\]}*:])/(?!dev/null)[A-Za-z_][\w.-]*/[\w.-]+"  # two folders at least: one may be a division
    r"|(?<![\w.~/<>)\]}*:])/(?:home|root|tmp|Users)(?![\w-])"
    r"|(?<!\w)[C-Z]:\\+(?:[A-Z]|users|tmp|temp)\w*"
)
FILE_NAME = re.compile(r"\w\.(?:png|svg|jpe?g|gif|pdf|ipynb)\b", re.IGNORECASE)
# What a chapter may import: what it stands on is in sight, and a reader on Colab has all of it.
IMPORTS = sys.stdlib_module_names | {"numpy", "torch", "matplotlib", "IPython", "resnorm_lib"}
TIMING = {"ExecuteTime", "execution", "papermill"}
# What may hold a decimal number without being a measurement: code, mathematics, links, attributes, identifiers.
NOT_PROSE = re.compile(
    r"(?P<tick>`+).*?(?P=tick)|\$\$.*?\$\$|(?<!\\)\$[^$]+\$"
    r"|\\begin\{(?P<env>[a-z*]+)\}.*?\\end\{(?P=env)\}|\\\(.*?\\\)|\\\[.*?\\\]|<!--.*?-->|<[A-Za-z/][^>]*>|\]\([^)]*\)"
    r"|https?://\S+|(?:arXiv|doi):\s?\S+",
    re.DOTALL | re.IGNORECASE,
)
TYPED_NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.]*\d)", re.IGNORECASE)


def violations(notebook: Path | dict[str, Any]) -> list[str]:
    """Everything that is wrong with an executed chapter, one line each; cells are counted from 1."""
    if isinstance(notebook, Path):
        chapter = notebook.stem
        notebook = json.loads(notebook.read_text("utf-8"))
    else:
        chapter = None
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        return [f"it is not a notebook ({str(error).splitlines()[0]})"]
    found = list(_notebook(notebook)) + list(_parameters(notebook["cells"]))
    for number, cell in enumerate(notebook["cells"], 1):
        found += [f"cell {number}: {line}" for line in _cell(cell)]
        for output in cell.get("outputs", []):
            found += [f"cell {number}: {line}" for line in (*_output(output), *_records(output, chapter))]
    return found


def _notebook(notebook: dict[str, Any]) -> Iterator[str]:
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        yield "its format is not 4.5, the one with cell ids"
    metadata = notebook["metadata"]
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernelspec is not python3"
    if metadata.keys() & TIMING:
        yield "its metadata holds the timing of a run"
    if ABSOLUTE_PATH.search(_strings(metadata)):
        yield "its metadata holds an absolute path"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if any(cell["execution_count"] is None for cell in code):
        yield "a code cell is unrun"
    elif [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "its code cells were not run once each, from top to bottom, in a fresh kernel"


def _parameters(cells: list[dict[str, Any]]) -> Iterator[str]:
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    tagged = [k for k, cell in enumerate(code) if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        yield f"it has {len(tagged)} cells tagged parameters; it must have one"
        return
    source = _text(code[tagged[0]]["source"])
    if source.lstrip().startswith("# Parameters"):
        yield "the parameters cell begins as papermill's injected cell does"
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    names = set()
    for statement in ast.parse(source).body:
        try:
            (target,) = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names.add(target.id)
            literal = isinstance(ast.literal_eval(statement.value), int | float | str)
        except (AttributeError, ValueError):
            literal = False
        if not literal:
            yield f"the parameters cell does more than name = literal: {ast.unparse(statement)}"
        elif statement.lineno not in commented:
            yield f"the parameter has no comment: {ast.unparse(statement)}"
    if "effort" not in names:
        yield "effort is not among its parameters"
    after = code[tagged[0] + 1]["source"] if tagged[0] + 1 < len(code) else ""
    checked = [
        {keyword.arg for keyword in call.keywords}
        for call in ast.walk(ast.parse(_text(after)))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "parameters.check"
    ]
    if not checked:
        yield "no code cell after the parameters cell calls parameters.check"
    elif checked[0] != names:
        yield f"parameters.check is not told of the parameters there are: {sorted(checked[0] ^ names)}"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = _text(cell["source"])
    length = sum(bool(line.strip()) for line in source.splitlines())
    if length > LONGEST_CELL:
        yield f"it has {length} lines; split it, {LONGEST_CELL} are the most"
    if cell["metadata"].keys() & TIMING:
        yield "its metadata holds the timing of a run"
    if match := ABSOLUTE_PATH.search(source + "\n" + _strings(cell["metadata"])):
        yield f"it holds an absolute path: {match[0]}"
    if cell["cell_type"] == "code":
        if "≈" in source:
            yield "it writes ≈, which only resnorm_lib.claims may write"
        if source.rstrip().endswith(";"):
            yield "it ends with ';', which hides a value from the page and not from nbval: end with a statement"
        yield from _imports(source)
        return
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]*)", source):
        yield from _alt(alt, target)
    if cell["cell_type"] == "markdown" and not cell["metadata"].get("typed-numbers"):
        numbers = TYPED_NUMBER.findall(NOT_PROSE.sub(" ", source))
        if numbers:
            yield (
                f"it types numbers in prose ({', '.join(numbers)}): let a cell print what is measured, write what is "
                "given as mathematics, or give the reason in the cell's metadata as typed-numbers"
            )


def _imports(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield f"it is not Python: {error.msg}"
        return
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        else:
            continue
        for name in names:
            if name.split(".")[0] not in IMPORTS:
                yield f"it imports {name}: chapters use the standard library, numpy, torch, matplotlib and resnorm_lib"


def _output(output: dict[str, Any]) -> Iterator[str]:
    if output["output_type"] == "error":
        yield f"it holds an error: {output['ename']}"
    if output.get("name") == "stderr":
        yield "it writes to stderr"
    text = _shown(output)
    if match := ABSOLUTE_PATH.search(text + "\n" + _strings(output.get("metadata", {}))):
        yield f"its output holds an absolute path: {match[0]}"
    if "<Figure size" in text:
        yield "it leaves <Figure size …> text behind"
    if re.search(r"\bat 0x[0-9a-f]{6,}", text):
        yield "its output holds a memory address, which is another one in each run"
    for kind in output.get("data", {}):
        if kind.startswith("image/"):
            yield from _alt(output["metadata"].get(kind, {}).get("alt", ""), "the figure")


def _alt(alt: str, what: str) -> Iterator[str]:
    if not alt.strip():
        yield f"{what} has no alt text"
    elif FILE_NAME.search(alt):
        yield f"the alt text of {what} is a file's name: {alt}"
    elif len(alt.split()) < SHORTEST_ALT:
        yield f"the alt text of {what} is too short to say what it shows: {alt}"


def _records(output: dict[str, Any], chapter: str | None) -> Iterator[str]:
    records = output.get("metadata", {}).get("resnorm", {}).get("records", [])
    text, printed = _shown(output), set()
    for record in records:
        name = record["name"]
        for kind, key in (("value", "printed"), ("low", "printed_low"), ("high", "printed_high")):
            if record.get(kind) is None:
                continue
            printed.add(record.get(key))
            if record.get(key) != figure(record[kind], record["digits"]):
                yield f"{name}: {key} is {record.get(key)}, but the record's {kind} is {record[kind]}"
        if record.get("value") is not None and str(record.get("printed")) not in text:
            yield f"{name}: the text does not say {record.get('printed')}, as its record does"
        low, high = record.get("band") or (float("-inf"), float("inf"))
        if record.get("value") is not None and not low <= record["value"] <= high:
            yield f"{name}: {record['value']} lies outside its band, {low} to {high}"
        if record.get("published") is not True:
            yield f"{name}: it was measured with other parameters than the published ones"
        if chapter is not None and record.get("chapter") != chapter:
            yield f"{name}: its record says that it belongs to {record.get('chapter')}"
    yield from _verdicts(records, output)
    for shown in sorted(set(FIGURE.findall(text)) - printed):
        yield f"{shown} is printed without a record that says so"
    if "≈" in FIGURE.sub("", text):
        yield "it prints ≈ without a figure"


@functools.cache
def _rows() -> dict[str, Claim]:
    """The rows of claims.yml, read once: they are many, and each output with a claim asks for one."""
    return load()


def _verdicts(records: list[dict[str, Any]], output: dict[str, Any]) -> Iterator[str]:
    """Whether verdicts, bands and the order of figures are those that the rows of claims.yml make of the records."""
    claimed = [record for record in records if "claim" in record]
    if not claimed:
        return
    name, plain = claimed[0]["claim"], _text(output.get("data", {}).get("text/plain", ""))
    row = _rows().get(name)
    if row is None:
        yield f"{name}: claims.yml has no such row"
        return
    if row.kind == "reported":
        result = "reported"
    else:
        each = [verdict(Interval(*(r[key] for key in ("value", "low", "high", "seeds"))), row.low, row.high) for r in claimed]
        result = overall(each)
        if not all(record["low"] <= record["value"] <= record["high"] for record in claimed):
            yield f"{name}: a value is not between its bounds"
        if [record.get("setting_verdict") for record in claimed] != each:
            yield f"{name}: the verdicts of its settings are not those of its tolerance, {', '.join(each)}"
        if any((record.get("band") or None) != (row.band.get(record["setting"]) or None) for record in claimed):
            yield f"{name}: a band is not the one of claims.yml"
        if row.band and row.band.keys() != {record["setting"] for record in claimed}:
            yield f"{name}: claims.yml has bands for other settings than those measured"
        keys = ("printed", "printed_low", "printed_high")
        expected = [r[k] for r in claimed for k in (keys if r["low"] != r["high"] else keys[:1]) if r[k].startswith("≈")]
        if FIGURE.findall(plain) != expected:
            yield f"{name}: its figures do not stand in the order of its records"
    if any(record.get("verdict") != result for record in claimed) or not plain.startswith(f"[{result}] {name}:"):
        yield f"{name}: its verdict is not that of its tolerance, {result}"


def _shown(output: dict[str, Any]) -> str:
    """All text of an output, whatever its form; not its pictures."""
    texts = [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(map(_text, [*texts, output.get("text", ""), output.get("evalue", "")]))


def _strings(value: Any) -> str:
    """All strings in nested data, one a line."""
    if isinstance(value, dict):
        return "\n".join(map(_strings, value.values()))
    if isinstance(value, list):
        return "\n".join(map(_strings, value))
    return value if isinstance(value, str) else ""


def _text(source: str | list[str]) -> str:
    return "".join(source)
