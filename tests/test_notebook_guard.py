"""Every chapter is what a published chapter must be, and the guard sees each way in which one can fail to be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import freshness
import pytest
from notebook_guard import FIGURE, _records, violations

ROOT = Path(__file__).resolve().parents[1]
GOOD = json.loads((ROOT / "tests" / "fixtures" / "good.ipynb").read_text("utf-8"))
NOTEBOOKS = freshness.notebooks(ROOT)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter_keeps_every_rule(path: Path) -> None:
    assert violations(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter_is_fresh(path: Path) -> None:
    assert freshness.problems(path, ROOT) == []


def test_good_notebook_breaks_no_rule() -> None:
    assert violations(GOOD) == []
    assert violations(ROOT / "tests" / "fixtures" / "good.ipynb") == []


Notebook = dict[str, Any]
BAD: list[tuple[str, str, Callable[[Notebook], object]]] = []


def bad(name: str, expected: str) -> Callable[[Callable[[Notebook], object]], Callable[[Notebook], object]]:
    """Register a mutation that breaks one rule, and what the guard must say of it."""

    def register(mutate: Callable[[Notebook], object]) -> Callable[[Notebook], object]:
        BAD.append((name, expected, mutate))
        return mutate

    return register


def cell(notebook: Notebook, name: str) -> Notebook:
    return next(cell for cell in notebook["cells"] if cell["id"] == name)


def source(name: str, text: str) -> Callable[[Notebook], object]:
    return lambda notebook: cell(notebook, name).update(source=text)


def prose(text: str) -> Callable[[Notebook], object]:
    return source("title", text)


def printed(text: str) -> Callable[[Notebook], object]:
    return lambda notebook: cell(notebook, "print")["outputs"][0].update(text=text)


def alt(text: str) -> Callable[[Notebook], object]:
    return lambda notebook: cell(notebook, "figure")["outputs"][0]["metadata"].update({"image/png": {"alt": text}})


def record(**changes: Any) -> Callable[[Notebook], object]:
    return lambda notebook: cell(notebook, "claim")["outputs"][0]["metadata"]["resnorm"]["records"][0].update(changes)


def claim_text(old: str, new: str) -> Callable[[Notebook], object]:
    def mutate(notebook: Notebook) -> None:
        data = cell(notebook, "claim")["outputs"][0]["data"]
        for kind, text in data.items():
            assert old in "".join(text)
            data[kind] = "".join(text).replace(old, new)

    return mutate


bad("unrun", "unrun")(lambda n: cell(n, "claim").update(execution_count=None, outputs=[]))
bad("empty cell", "unrun")(lambda n: cell(n, "print").update(source="", execution_count=None, outputs=[]))
bad("out of order", "from top to bottom")(lambda n: cell(n, "claim").update(execution_count=9))
bad("swapped", "from top to bottom")(lambda n: n["cells"].append(n["cells"].pop(1)))
bad("error", "error: ValueError")(
    lambda n: cell(n, "print")["outputs"].append(
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    )
)
bad("stderr", "stderr")(lambda n: cell(n, "print")["outputs"][0].update(name="stderr"))
bad("another kernel", "kernelspec")(lambda n: n["metadata"]["kernelspec"].update(name="book-venv"))
bad("no kernel", "kernelspec")(lambda n: n["metadata"].pop("kernelspec"))
bad("old format", "4.5")(lambda n: (n.update(nbformat_minor=4), [c.pop("id") for c in n["cells"]]))
bad("no notebook", "not a notebook")(lambda n: n["cells"][1].pop("outputs"))
bad("timing", "timing")(lambda n: cell(n, "print")["metadata"].update(execution={"iopub.status.busy": "2020"}))
bad("papermill", "timing")(lambda n: n["metadata"].update(papermill={"duration": 1.5}))

for place in "/home/me/book", "/root/x", "/workspace/main", "/tmp/x.png", "C:\\Users\\me", "file:///etc/hosts", "/tmp":
    bad(f"source {place}", "absolute path")(source("print", f'print("{place}")'))
    bad(f"prose {place}", "absolute path")(prose(f"See {place} for more."))
    bad(f"output {place}", "absolute path")(printed(f"wrote {place}\n"))
bad("hidden value", "hides a value from the page and not from nbval")(source("print", 'print("a");'))
for line, name in [
    ("import scipy", "scipy"),
    ("from scipy import stats as s", "scipy"),
    ("import os, pandas.plotting", "pandas.plotting"),
    ("def f():\n    import sklearn", "sklearn"),
]:
    bad(f"another package: {line}", f"it imports {name}:")(source("print", line))
bad("path in cell metadata", "absolute path")(lambda n: cell(n, "print")["metadata"].update(mine="/home/me/x"))
bad("path in output metadata", "absolute path")(alt("One sees here a curve that falls, from /home/me/x to y"))
bad("path in notebook metadata", "absolute path")(lambda n: n["metadata"].update(mine={"x": ["/home/me/x"]}))

bad("no alt text", "no alt text")(lambda n: cell(n, "figure")["outputs"][0]["metadata"].clear())
bad("empty alt text", "no alt text")(alt("  "))
bad("path as alt text", "file's name")(alt("../_images/a_figure with many more words behind it.png"))
bad("file as alt text", "file's name")(alt("a figure in the file gradient.png is to be seen"))
bad("short alt text", "too short")(alt("A figure of gradients."))
bad("markdown image without alt text", "no alt text")(prose("# T\n\n![](figure.png)"))
bad("markdown image with a file as alt text", "file's name")(prose("# T\n\n![figure.png](figure.png)"))
bad("size text", "Figure size")(printed("<Figure size 640x480 with 1 Axes>\n"))
bad("memory address", "memory address")(printed("<object object at 0x7f3a5c1e2d30>\n"))

bad("no parameters cell", "0 cells tagged parameters")(lambda n: cell(n, "parameters")["metadata"].clear())
bad("two parameters cells", "2 cells tagged parameters")(
    lambda n: cell(n, "print")["metadata"].update(tags=["parameters"])
)
bad("begins as papermill's", "papermill")(
    source("parameters", '# Parameters\nwidth = 64  # w\neffort = "published"  # e')
)
bad("no comment", "no comment: width = 64")(source("parameters", 'width = 64\neffort = "published"  # e'))
bad("no literal", "name = literal: width = 8 * 8")(
    source("parameters", 'width = 8 * 8  # w\neffort = "published"  # e')
)
bad("a list", "name = literal: width = [1]")(source("parameters", 'width = [1]  # w\neffort = "published"  # e'))
bad("an import", "name = literal: import os")(
    source("parameters", 'import os\nwidth = 1  # w\neffort = "published"  # e')
)
bad("no effort", "effort is not among")(source("parameters", "width = 64  # w"))
bad("not validated", "parameters.check")(source("validation", "width"))
bad("validated too late", "parameters.check")(lambda n: n["cells"].insert(4, n["cells"].pop(3)))
bad("last cell", "parameters.check")(lambda n: n.update(cells=n["cells"][:3]))
bad("one parameter forgotten", "['width']")(source("validation", "parameters.check(globals(), effort=1)"))

bad("edited figure", "≈99.9 is printed without a record")(claim_text("≈0.668", "≈99.9"))
bad("edited bound", "≈0.684 is printed without a record")(claim_text("≈0.683", "≈0.684"))
bad("edited figure, record says otherwise", "the text does not say ≈0.668")(claim_text("≈0.668", "≈99.9"))
bad("edited record", "printed is ≈0.668, but")(record(value=0.6694))
bad("edited record and text", "printed is ≈99.9, but")(
    lambda n: (record(printed="≈99.9")(n), claim_text("≈0.668", "≈99.9")(n))
)
bad("edited low", "printed_low is ≈0.651, but")(record(low=0.5))
bad("edited high", "printed_high is ≈0.683, but")(record(high=0.7))
bad("no record", "≈0.668 is printed without a record")(lambda n: cell(n, "claim")["outputs"][0]["metadata"].clear())
bad("figure in a stream", "≈3 is printed without a record")(printed("≈3\n"))
bad("≈ without figure", "without a figure")(printed("≈ 3\n"))
bad("≈ in the source", "writes ≈")(source("print", 'print("≈3")'))
bad("below its band", "outside its band")(record(band=[0.67, 0.7]))
bad("above its band", "outside its band")(record(band=[0.6, 0.66]))
bad("not published", "other parameters")(record(published=False))
bad("published is not said", "other parameters")(record(published=None))

bad("long code cell", "21 lines")(source("print", "\n\n".join("x = 1" for _ in range(21))))
bad("long prose cell", "21 lines")(prose("\n\n".join("Words." for _ in range(21))))
for number in "0.335", "1e-12", "1.5e-3", "12.5 %":
    bad(f"typed {number}", "types numbers in prose")(
        prose(f"# T\n\nThe ratio falls to {number} of it, $x = 1$ and $y$.")
    )


@pytest.mark.parametrize(("expected", "mutate"), [pytest.param(e, m, id=name) for name, e, m in BAD])
def test_guard_reports(expected: str, mutate: Callable[[Notebook], object]) -> None:
    notebook = copy.deepcopy(GOOD)
    mutate(notebook)
    assert any(expected in line for line in violations(notebook)), violations(notebook)


def test_guard_reports_a_record_of_another_chapter(tmp_path: Path) -> None:
    (tmp_path / "ch_other.ipynb").write_text(json.dumps(GOOD), "utf-8")
    assert any("belongs to good" in line for line in violations(tmp_path / "ch_other.ipynb"))


@pytest.mark.parametrize(
    "text",
    [
        "$$\nx = 0.5\n$$",
        "A half, $0.5$, and `1e-3`.",
        "```python\nx = 0.5\n```",
        "[Section](https://example.org/1.5) and [another](ch_x.html#eq-2.5), <https://example.org/2.5>",
        "arXiv:1607.06450, 3 seeds, 99 %, 1/2, and/or, pages 3–5, https://example.org/home/x/y/1.5",
        r"\begin{align*} x &= 0.5 \end{align*}",
    ],
)
def test_guard_allows_in_prose(text: str) -> None:
    notebook = copy.deepcopy(GOOD)
    prose(text)(notebook)
    assert violations(notebook) == []


@pytest.mark.parametrize(("value", "printed"), [(1.234e-16, "≈1.23e-16"), (-4.0, "≈-4"), (1e5, "≈1e5"), (0.5, "≈0.5")])
def test_guard_reads_a_figure_whole(value: float, printed: str) -> None:
    notebook = copy.deepcopy(GOOD)
    record(value=value, printed=printed, band=[value, value])(notebook)
    claim_text("≈0.668", f"{printed}. It is so, ≈0.651 to")(notebook)
    assert violations(notebook) == []


def test_guard_allows_a_typed_number_with_a_reason() -> None:
    notebook = copy.deepcopy(GOOD)
    prose("Xiong et al. report 34.2 there.")(notebook)
    assert violations(notebook)
    cell(notebook, "title")["metadata"]["typed-numbers"] = "reported by the paper, not measured here"
    assert violations(notebook) == []


# ---------------------------------------------------------------- claims, against the rows of claims.yml

CHAPTER = ROOT / "book" / "ch_layernorm_projector.ipynb"


def claim_output(name: str) -> dict[str, Any]:
    """The output of a claim in the first chapter."""
    for chapter_cell in json.loads(CHAPTER.read_text("utf-8"))["cells"]:
        for output in chapter_cell.get("outputs", []):
            records = output.get("metadata", {}).get("resnorm", {}).get("records", [])
            if records and records[0].get("claim") == name:
                return output
    raise AssertionError(f"the chapter does not measure {name}")


def said(output: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> str:
    """What the guard says of the output after a change."""
    change(output)
    return "\n".join(_records(output, "ch_layernorm_projector"))


def first(output: dict[str, Any]) -> dict[str, Any]:
    return output["metadata"]["resnorm"]["records"][0]


def every(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda output: [record.update(changes) for record in output["metadata"]["resnorm"]["records"]]


def plain_text(change: Callable[[str], str]) -> Callable[[dict[str, Any]], object]:
    return lambda output: output["data"].update({"text/plain": change("".join(output["data"]["text/plain"]))})


def swap_figures(text: str) -> str:
    one, two = (FIGURE.findall(text)[k] for k in (0, 3))
    return text.replace(one, "@").replace(two, one).replace("@", two)


@pytest.mark.parametrize(
    "change, expected",
    [
        (every(verdict="holds"), "its verdict is not that of its tolerance, holds in scope"),
        (every(verdict="nonsense"), "its verdict is not that of its tolerance"),
        (plain_text(lambda text: text.replace("[holds in scope]", "[holds]")), "its verdict is not that"),
        (lambda output: first(output).update(setting_verdict="fails"), "the verdicts of its settings are not those"),
        (lambda output: first(output).update(band=[0, 100]), "a band is not the one of claims.yml"),
        (lambda output: first(output).update(band=None), "a band is not the one of claims.yml"),
        (lambda output: output["metadata"]["resnorm"]["records"].pop(0), "claims.yml has bands for other settings"),
        (plain_text(swap_figures), "its figures do not stand in the order of its records"),
        (every(claim="nobodys"), "nobodys: claims.yml has no such row"),
        (lambda output: first(output).update(low=0.9, printed_low="≈0.9"), "a value is not between its bounds"),
    ],
)
def test_edited_claim(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    assert said(claim_output("s0-jac"), lambda output: None) == ""
    assert expected in said(claim_output("s0-jac"), change)


def test_edited_report() -> None:
    assert said(claim_output("zhang-speed"), lambda output: None) == ""
    assert "not that of its tolerance, reported" in said(claim_output("zhang-speed"), every(verdict="holds"))
