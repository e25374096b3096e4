"""The ledger agrees with the notebooks, covers what the book set out to test, and its page can be read, filtered and linked to."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import ledger_page
import nbformat
import pytest
import site_checks as check
from conftest import chapters
from notebook_guard import NOT_PROSE, TYPED_NUMBER
from playwright.sync_api import Browser, Page
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace, patch_docutils
from test_site import browser, site, visit  # noqa: F401

from resnorm_lib import claim_records, claims
from resnorm_lib.parameters import Parameters
from resnorm_lib.stats import Interval

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
STEMS = {path.stem for path in chapters()}
ROWS_OF_THE_BOOK = claims.load()
ENTRIES = {entry["id"]: entry for entry in claims.collect(BOOK)}

# Every measurable line of the two documents that started the book, and the chapter that answers for it.
AUDIT = {
    "ch_why_depth_fails": "s3-product s3-cause",
    "ch_residual_derivation": "s3-expand s3-nokill s3-stream",
    "ch_layernorm_projector": "s0-jac s0-idem s0-ctl-pre s0-ctl-bare s0-ctl-post s0-27 s3-ln-def s3-batchfree s3-bn s3-rms "
    "s3-nothing-changes",
    "ch_pre_vs_post": "s0-L32 s0-gt1 s0-novanish s3-pre-pure s3-post-gone s3-xiong s3-warmup s3-2018 s3-growth s3-60-vs-5 "
    "s3-effdepth",
    "ch_small_branches": "s0-same-fn s0-exp s0-8-64 s0-335 s0-noshrink",
    "ch_deepnorm": "s3-sandwich s3-deepnorm",
    "ch_qk_norm": "s3-qk-fail s3-qk-bound s3-general",
    "ch_measurement_critique": "s0-auc s0-strat s0-noise s0-floor s0-fd",
    "ch_seen_from_outside": "s3-precision s3-temp s3-finetune",
}
LINES = [(line, owner) for owner, text in AUDIT.items() for line in text.split()]


# ---------------------------------------------------------------- rows and notebooks


@pytest.mark.parametrize(("line", "owner"), LINES)
def test_every_line_of_the_audit_has_a_row_in_its_chapter(line: str, owner: str) -> None:
    rows = [row for row in ROWS_OF_THE_BOOK.values() if row.id == line or row.id.startswith(f"{line}-")]
    assert owner in {row.chapter for row in rows}, f"{line}: {owner} has no row of this name"


def test_the_audit_is_whole() -> None:
    assert len(LINES) == len(set(LINES)) == 45


def test_a_row_is_planned_exactly_while_its_chapter_is_not_there() -> None:
    for row in ROWS_OF_THE_BOOK.values():
        assert row.chapter in STEMS or row.state == "planned", f"{row.id} is measured by {row.chapter}, which does not exist"
        assert row.chapter not in STEMS or row.state == "measured", f"{row.id} is planned, but {row.chapter} exists"


def measuring() -> Iterator[tuple[str, str, str]]:
    """Claim, chapter and cell of each output that measures or reports, read without the library."""
    for path in chapters():
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                records = output.get("metadata", {}).get("resnorm", {}).get("records", [])
                yield from {(record["claim"], path.stem, cell["id"]) for record in records if "claim" in record}


def test_every_row_that_is_not_planned_is_measured_by_exactly_one_cell() -> None:
    found = list(measuring())
    assert Counter(claim for claim, *_ in found) == Counter(row.id for row in ROWS_OF_THE_BOOK.values() if row.state == "measured")
    for claim, chapter, cell in found:
        entry = ENTRIES[claim]
        assert (entry["chapter"], entry["cell"]) == (chapter, cell) and entry["verdict"] != "planned"
        assert ROWS_OF_THE_BOOK[claim].chapter == chapter


def test_reported_rows_say_why() -> None:
    reported = [row for row in ROWS_OF_THE_BOOK.values() if row.kind == "reported" and row.state == "measured"]
    assert [row.id for row in reported] == [key for key, entry in ENTRIES.items() if entry["verdict"] == "reported"]
    assert all(len(ENTRIES[row.id]["tolerance"].split()) >= 8 for row in reported)


def test_every_source_is_in_the_bibliography() -> None:
    known = set(re.findall(r"^@\w+\{([^,]+),", (BOOK / "references.bib").read_text("utf-8"), re.MULTILINE))
    assert {row.source for row in ROWS_OF_THE_BOOK.values()} <= known | {ledger_page.OWN}


# ---------------------------------------------------------------- a ledger with every verdict

ROW = """
- id: {name}
  source: somebody2020
  where: eq. 1
  statement: Something is <small>.
  quantity: its size
  prediction: "0"
  reason: the meaning of the word
  kind: {kind}
  state: {state}
  chapter: {chapter}
"""
NAMES = "in out both open told soon".split()
ROWS = "".join(
    ROW.format(
        name=name,
        kind="reported" if name == "told" else "statistical",
        state="planned" if name == "soon" else "measured",
        chapter="ch_two_more" if name == "soon" else "ch_one",
    )
    + ("" if name == "told" else "  low: 0.0\n  high: 1.0\n  scope: at depth 9\n")
    for name in NAMES
)
HERE, THERE = Interval(0.51234, 0.4, 0.6, 7), Interval(5.0, 4.0, 6.0, 7)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book of one chapter that measures the rows above, and whose outputs are those of a real run."""
    outputs: list[nbformat.NotebookNode] = []
    for module in claims, claim_records:
        monkeypatch.setattr(module, "load", lambda: claims.parse(ROWS))
    monkeypatch.setattr(
        "IPython.display.display",
        lambda data, raw, metadata: outputs.append(nbformat.v4.new_output("display_data", data, metadata=metadata)),
    )
    run = claims.Ledger("ch_one", Parameters({"width": 64, "effort": "published"}))
    run.measure("in", HERE)
    run.measure("out", THERE)
    run.measure("both", {"d = 16": HERE, "d = 64": THERE})
    run.measure("open", Interval(0.9, 0.8, 1.2, 7))
    run.report("told")
    cells = [nbformat.v4.new_markdown_cell("# Chapter one", id="title")]
    cells += [nbformat.v4.new_code_cell("run()", id=f"one-{k}", outputs=[o], execution_count=k) for k, o in enumerate(outputs, 1)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata |= {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    folder = tmp_path / "book"
    (folder / "_data").mkdir(parents=True)
    nbformat.write(notebook, folder / "ch_one.ipynb")
    (folder / "references.bib").write_text("@misc{somebody2020, author={Somebody, A.}, title={T}, year={2020}}", "utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n', "utf-8")
    text = (BOOK / "ledger.md").read_text("utf-8") + "\n```{toctree}\nch_one\n```\n```{bibliography}\n```\n"
    (folder / "ledger.md").write_text(text, "utf-8")
    return tmp_path


def build(book: Path, repository: str = "") -> check.BeautifulSoup:
    """The page of its ledger."""
    options: dict[str, Any] = {
        "extensions": ["myst_nb", "sphinxcontrib.bibtex", "ledger_page"],
        "root_doc": "book/ledger",
        "nb_execution_mode": "off",
        "bibtex_bibfiles": ["book/references.bib"],
        "bibtex_reference_style": "author_year",
        "html_theme": "basic",
        "html_theme_options": {"repository_url": repository},
    }
    with patch_docutils(), docutils_namespace():
        Sphinx(book, None, book / "out", book / "trees", "html", options, StringIO(), StringIO(), freshenv=True).build()
    return check.parsed(book / "out" / "book" / "ledger.html")


def test_every_verdict_can_come_out(book: Path) -> None:
    found = [entry["verdict"] for entry in claims.collect(book / "book")]
    assert found == ["holds", "fails", "holds in scope", "unresolved", "reported", "planned"]
    assert set(found) == set(ledger_page.VERDICTS)


def test_the_page_counts_and_shows_every_row(book: Path) -> None:
    page = build(book)
    counts = {row.td.get_text(): row.find_all("td")[1].get_text() for row in page.select(".ledger-counts tbody tr")}
    assert counts == dict.fromkeys(ledger_page.VERDICTS, "1") | {"all": "6"}
    rows = page.select(".ledger-rows tbody tr")
    assert [row["id"] for row in rows] == NAMES
    assert [row["data-verdict"] for row in rows] == [row.td.get_text() for row in rows]
    assert [row["data-claim"] for row in page.select(".ledger-source tbody tr")] == NAMES
    first, both, told, soon = (page.find(id=name).get_text(" ", strip=True) for name in ("in", "both", "told", "soon"))
    assert "≈0.512 [≈0.4, ≈0.6]" in first and "7 seeds, float64, statistical: 99 % interval" in first
    assert "Tolerance: 0 to 1 (the meaning of the word)" in first and "at depth 9" in first and "<small>" in first
    assert "2 settings: holds at 1, fails at 1" in both and "d = 64: ≈5 [≈4, ≈6] fails" in both
    assert "Not tested here: the meaning of the word" in told
    assert "≈" not in soon and "cell" not in soon
    assert [title.get_text(strip=True).rstrip("¶") for title in page.select("section.ledger-group > :is(h2, h3)")] == ["Chapter one", "Two more"]
    assert "This chapter is not written yet." in page.find(id="chapter-ch_two_more").get_text()


def test_a_row_leads_to_its_cell_and_its_source_and_the_box_leads_back(book: Path) -> None:
    page, chapter = build(book), check.parsed(book / "out" / "book" / "ch_one.html")
    assert "ch_one.html#claim-both" in [link["href"] for link in page.find(id="both").select("a")]
    citation = next(link for link in page.find(id="both").select("a") if link.get_text() == "2020")
    assert page.find(id=citation["href"].removeprefix("#")) is not None
    assert chapter.select_one("#claim-both a.claim-row")["href"] == "ledger.html#both"
    assert len(chapter.select("a.claim-row")) == 5
    stored = json.loads((book / "book" / "ch_one.ipynb").read_text("utf-8"))
    assert "ledger.html" not in json.dumps(stored)


def test_downloads_of_a_small_ledger(book: Path) -> None:
    build(book)
    entries = claims.collect(book / "book")
    assert json.loads((book / "out" / "book" / "ledger.json").read_text("utf-8")) == entries
    lines = list(csv.DictReader(io.StringIO((book / "out" / "book" / "ledger.csv").read_text("utf-8"))))
    assert [(line["id"], line["setting"]) for line in lines if line["id"] == "both"] == [("both", "d = 16"), ("both", "d = 64")]
    assert len(lines) == len(entries) + 1


@pytest.mark.parametrize("address", ["https://github.com/some/where", "https://gitlab.com/some/where/"])
def test_a_number_can_be_disputed_where_the_repository_has_an_address(book: Path, address: str) -> None:
    page = build(book, address)
    links = [link for link in page.select("a") if link.get_text() == "dispute this number"]
    assert [link.find_parent("tr")["id"] for link in links] == ["in", "out", "both", "open"]
    target = urlsplit(links[2]["href"])
    assert target.hostname == urlsplit(address).hostname and target.path.startswith("/some/where/")
    title, body = (text for (text,) in parse_qs(target.query).values())
    assert title == "Ledger: both"
    assert all(text in body for text in ("ledger.html#both", "d = 64: ≈5 [≈4, ≈6]", "holds in scope", "1.2.3", "ch_one, cell one-3"))


def test_no_number_can_be_disputed_where_there_is_no_address(book: Path) -> None:
    assert "dispute" not in build(book).find(id="both").get_text()


def test_a_broken_ledger_ends_the_build(book: Path) -> None:
    (book / "book" / "ch_two.ipynb").write_text((book / "book" / "ch_one.ipynb").read_text("utf-8"), "utf-8")
    with pytest.raises(ExtensionError, match="measured by two cells"):
        build(book)


# ---------------------------------------------------------------- stories


def told(book: Path, text: str, claim: str = "both") -> list[str]:
    story = json.dumps([{"claim": claim, "title": "T", "told": text}])
    return [words for _, _, words in ledger_page.stories(story, claims.collect(book / "book"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{in} or {in:v}", "≈0.512 [≈0.4, ≈0.6] or ≈0.512"),
        ("{both[d = 64]} or {both[d = 64]:v}", "≈5 [≈4, ≈6] or ≈5"),
        ("from {both[d = 16].low} to {both[d = 16].high}", "from ≈0.4 to ≈0.6"),
        ("{in.predicted}, {both[d = 64].setting_verdict}, {in.seeds}", "0, fails, 7"),
        ("no number", "no number"),
    ],
)
def test_a_story_takes_its_numbers_from_the_records(book: Path, text: str, expected: str) -> None:
    assert told(book, text) == [expected]


@pytest.mark.parametrize("text", ["{gone}", "{both[d = 32]}", "{both.sizes}", "{both}", "{in[d = 16]}", "{told}", "{", "{0}"])
def test_a_story_that_names_what_is_not_there_ends_the_build(book: Path, text: str) -> None:
    with pytest.raises(ExtensionError, match="disagreements.yml, story 1: there is no "):
        told(book, text)


def test_a_story_about_no_row_ends_the_build(book: Path) -> None:
    with pytest.raises(ExtensionError, match="there is no 'gone'"):
        told(book, "x", claim="gone")


def test_a_story_waits_for_its_rows(book: Path) -> None:
    assert told(book, "{soon} and {in}") == told(book, "{in}", claim="soon") == []


def test_the_books_stories_type_no_number_and_tell_of_disagreements() -> None:
    text = (ROOT / ledger_page.STORIES).read_text("utf-8")
    found = list(ledger_page.stories(text, list(ENTRIES.values())))
    assert len(found) >= 4
    assert not [entry["id"] for entry, *_ in found if entry["verdict"] == "holds"]
    assert not TYPED_NUMBER.findall(NOT_PROSE.sub(" ", re.sub(r"\{[^}]*\}", "", re.sub(r"^#.*", "", text, flags=re.MULTILINE))))
    for _, _, words in found:
        assert 2 <= len(re.findall(r"[.:;](?=\s|$)", words)) and len(words) < 700


# ---------------------------------------------------------------- the page of the book


@pytest.fixture
def ledger(site: Path) -> Path:  # noqa: F811
    return site / "book" / "ledger.html"


def test_every_claim_has_its_anchor_once_and_leads_to_its_cell(ledger: Path) -> None:
    page = check.parsed(ledger)
    ids = Counter(element["id"] for element in page.select("[id]"))
    assert [name for name, count in ids.items() if count > 1] == []
    for name, entry in ENTRIES.items():
        row = page.find(id=name)
        assert (row.name, row["data-verdict"], row["data-chapter"]) == ("tr", entry["verdict"], entry["chapter"])
        links = [link["href"] for link in row.select("a")]
        assert f"#{name}" in links
        assert entry["source"] == ledger_page.OWN or any(re.fullmatch(r"intro\.html#.+", link) for link in links)
        if entry["cell"]:
            assert f"{entry['chapter']}.html#claim-{name}" in links
            assert f"claim-{name}" in check.anchors(ledger.with_name(f"{entry['chapter']}.html"))
    assert {row["data-claim"] for row in page.select("[data-claim]")} == set(ENTRIES)


def test_every_box_leads_to_its_row(ledger: Path) -> None:
    for stem in STEMS:
        chapter = check.parsed(ledger.with_name(f"{stem}.html"))
        for box in chapter.select(".claim"):
            assert box.select_one("a.claim-row")["href"] == f"ledger.html#{box['id'].removeprefix('claim-')}"


def test_counts_are_those_of_the_rows(ledger: Path) -> None:
    counted = Counter(entry["verdict"] for entry in ENTRIES.values())
    rows = [[cell.get_text() for cell in row.select("td")] for row in check.parsed(ledger).select(".ledger-counts tbody tr")]
    assert {row[0]: int(row[1]) for row in rows} == {word: counted[word] for word in ledger_page.VERDICTS} | {"all": len(ENTRIES)}
    assert all(row[3] for row in rows)


def test_downloads_are_the_ledger(ledger: Path) -> None:
    entries = list(ENTRIES.values())
    assert ledger.with_suffix(".json").read_text("utf-8") == claim_records.as_json(entries)
    assert ledger.with_suffix(".csv").read_text("utf-8") == claim_records.as_csv(entries)
    assert {"ledger.json", "ledger.csv"} <= {link["href"] for link in check.parsed(ledger).select("a[href]")}


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_every_figure_offers_its_data(path: Path, ledger: Path) -> None:
    page = check.parsed(ledger.with_name(f"{path.stem}.html"))
    marks = [
        output["metadata"]["resnorm"]
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for output in cell.get("outputs", ())
        if output.get("metadata", {}).get("resnorm", {}).get("data")
    ]
    links = [figure.select_one(".figure-data a")["href"] for figure in page.select("figure:has(.figure-data)")]
    assert len(links) == len(set(links)) == len(marks) > 0
    for mark, link in zip(marks, links, strict=True):
        assert "name" not in mark or link == f"figures/{mark['name']}.csv"
        lines = list(csv.DictReader(io.StringIO((ledger.parent / link).read_text("utf-8"))))
        assert lines and ({"x", "y"} & lines[0].keys() or len(lines[0]) > 2)  # with sliders: a column for each of these


@pytest.fixture
def opened(ledger: Path, visit: Callable[[Path], check.Visit]) -> check.Visit:  # noqa: F811
    return visit(ledger)


def shown(page: Page) -> set[str]:
    """The rows that the reader sees in the tables by chapter; those by source must be the same."""
    chapters_, sources = (
        set(page.locator(selector).evaluate_all("rows => rows.filter(r => r.offsetParent).map(r => r.id || r.dataset.claim)"))
        for selector in (".ledger-rows tbody tr", ".ledger-source tbody tr")
    )
    assert chapters_ == sources
    return chapters_


def announced(page: Page, count: int) -> None:
    page.get_by_role("status").filter(has_text=f"{count} of {len(ENTRIES)} rows shown").wait_for()


def test_the_filter_works_by_keyboard_and_its_state_is_an_address(opened: check.Visit) -> None:
    page = opened.page
    everything = set(ENTRIES)
    assert shown(page) == everything
    announced(page, len(everything))
    page.get_by_label("Words").focus()
    page.keyboard.press("Tab")
    page.keyboard.type("fails")
    fails = {name for name, entry in ENTRIES.items() if entry["verdict"] == "fails"}
    assert shown(page) == fails
    announced(page, len(fails))
    assert parse_qs(urlsplit(page.url).query) == {"verdict": ["fails"]}
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("PROJECTOR directions")
    assert shown(page) == {"s3-nothing-changes-rank"}
    announced(page, 1)
    address = page.url
    page.reload()
    assert shown(page) == {"s3-nothing-changes-rank"} and page.url == address
    page.get_by_role("button", name="Show all").focus()
    page.keyboard.press("Enter")
    announced(page, len(everything))
    assert shown(page) == everything and not urlsplit(page.url).query
    assert opened.complaints == []


@pytest.mark.parametrize("field", ["verdict", "source", "chapter", "kind"])
def test_each_field_filters(field: str, opened: check.Visit) -> None:
    page = opened.page
    for value in {entry[field] for entry in ENTRIES.values()}:
        page.locator(f".ledger-filter select[name={field}]").select_option(value)
        assert shown(page) == {name for name, entry in ENTRIES.items() if entry[field] == value}
    for group in page.locator(".ledger-group:visible").all():
        assert group.locator("tbody tr:visible").count()


def test_a_count_leads_to_its_rows(opened: check.Visit) -> None:
    page = opened.page
    page.locator(".ledger-counts a", has_text="unresolved").click()
    assert shown(page) == {name for name, entry in ENTRIES.items() if entry["verdict"] == "unresolved"}
    assert page.evaluate("document.activeElement.name") == "verdict"


def test_an_address_shows_its_row_whatever_the_filter_says(ledger: Path, opened: check.Visit) -> None:
    page = opened.page
    page.goto(f"{ledger.as_uri()}?verdict=fails&chapter=nobodys#ln-jacobian")
    assert page.locator("#ln-jacobian details").get_attribute("open") == ""
    assert shown(page) == set(ENTRIES)
    page.goto(f"{ledger.as_uri()}?verdict=nonsense")
    assert shown(page) == set(ENTRIES)
    page.goto(f"{ledger.as_uri()}?words=nothing-like-this")
    assert shown(page) == set()
    announced(page, 0)


def test_without_scripts_every_row_is_shown(ledger: Path, browser: Browser) -> None:  # noqa: F811
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(ledger.as_uri())
    assert page.locator(".ledger-rows tbody tr:visible").count() == len(ENTRIES)
    assert not page.locator("#ledger-filter").is_visible()
    context.close()
