"""Sphinx extension: the page of the ledger, from the records in the executed notebooks and the rows of ``claims.yml``.

The directive ``{ledger}`` writes one part of that page: ``counts``, ``downloads``, ``filter``, ``disagreements``, ``chapters`` or ``sources``.
What it shows is what ``resnorm_lib.claims.collect`` returns, so that the page cannot disagree with the notebooks. The build
also writes the ledger as JSON and CSV beside the page, and lets each claim's box in a chapter lead to its row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

from resnorm_lib import claim_records, claims

PAGE = "book/ledger"
STORIES = Path("book/_data/disagreements.yml")
VERDICTS = {
    "holds": "the whole interval lies inside the tolerance, at every setting",
    "holds in scope": "it holds at some of the settings tested and fails at others",
    "fails": "the whole interval lies outside the tolerance, at every setting",
    "unresolved": "the interval crosses an edge of the tolerance, at some setting at least, and the rest does not decide",
    "reported": "not tested here, with the reason",
    "planned": "its chapter, or its measurement, is still to come",
}
CLASSES = {"holds in scope": "scope", "planned": "none"}
KINDS = {
    "exact": "exact: smallest to largest over seeds",
    "statistical": "statistical: 99 % interval",
    "kernel": "kernel: true of each CPU path",
    "reported": "reported: not tested here",
}
OWN = "thisbook"  # the source of the statements that the book makes itself
SEEDS = {"seedmeasured": "The measured page", "seedfolklore": "The folklore page"}  # as the introduction calls them


# ---------------------------------------------------------------- elements


class Tag(nodes.General, nodes.TextElement):
    """An element of HTML for which docutils has no node; ``tag`` and ``attributes`` say which."""


def tag(name: str, *content: nodes.Node | str, classes: str = "", ids: str = "", **attributes: str) -> Tag:
    """A `Tag` with texts and nodes in it; an underscore in the name of an attribute is a hyphen."""
    inside = [nodes.Text(item) if isinstance(item, str) else item for item in content]
    node = Tag("", "", *inside, tag=name, classes=classes.split(), ids=[ids] if ids else [])
    node["attributes"] = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    return node


def visit_tag(self: Any, node: Tag) -> None:
    self.body.append(self.starttag(node, node["tag"], "", **node["attributes"]))


def depart_tag(self: Any, node: Tag) -> None:
    self.body.append(f"</{node['tag']}>")


def link(text: str | nodes.Node, address: str, classes: str = "") -> nodes.reference:
    """A link to a place in the book or outside."""
    child = nodes.Text(text) if isinstance(text, str) else text
    return nodes.reference("", "", child, refuri=address, internal="//" not in address, classes=classes.split())


def code(text: str) -> Tag:
    return tag("code", text)


def html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


# ---------------------------------------------------------------- what is shown


def number(part: dict[str, Any], value: str = "value") -> str:
    """A measured number with its interval, as the chapter prints it."""
    low, high = (None, None) if part["low"] == part["high"] else (part["low"], part["high"])
    return f"{claims.Number(part[value], None, low, high, part['seeds'], part['digits'])}"


def tally(verdicts: list[str], settings: bool = False) -> str:
    """How often each verdict comes: ``holds 4, fails 2``, and of settings ``holds at 4, fails at 2``."""
    counted = Counter(verdicts)
    if settings and len(counted) == 1:
        return f"{verdicts[0]} at all"
    return ", ".join(f"{verdict} {'at ' * settings}{counted[verdict]}" for verdict in VERDICTS if counted[verdict])


def word(verdict: str) -> Tag:
    """A verdict, in words and colour."""
    return tag("span", verdict, classes=f"claim-verdict verdict-{CLASSES.get(verdict, verdict)}")


def chapter_title(folder: Path, stem: str) -> str:
    """The title of a chapter; of one that is not there yet, its name in words."""
    path = folder / f"{stem}.ipynb"
    if path.exists():
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if found := re.match(r"# (.+)", "".join(cell["source"])):
                return found[1].strip()
    words = stem.removeprefix("ch_").replace("_", " ")
    return words[:1].upper() + words[1:]


def dispute(repository: str, entry: dict[str, Any], version: str) -> str:
    """The address of a new issue about a row, with title and body filled in; empty where the repository has no address."""
    if not repository:
        return ""
    title = f"Ledger: {entry['id']}"
    parts = entry["settings"] or [{"setting": "", **entry, "value": entry["measured"]}]
    measured = [f"{part['setting']}: {number(part)}".removeprefix(": ") for part in parts if part["value"] is not None]
    body = [
        f"Row: {PAGE}.html#{entry['id']} ({entry['chapter']}, cell {entry['cell'] or 'none yet'})",
        f"Measured: {'; '.join(measured) or 'nothing'} ({entry['verdict']})",
        f"Version: {version}",
        "What should it be, and why?",
    ]
    names = ("issue[title]", "issue[description]") if "gitlab" in (urlsplit(repository).hostname or "") else ("title", "body")
    path = "/-/issues/new?" if names[0] != "title" else "/issues/new?"
    return repository.rstrip("/") + path + urlencode(dict(zip(names, (title, "\n\n".join(body)), strict=True)))


class Told:
    """A row as a story names it: ``{id}`` its number, ``{id[setting]}`` that of a setting, ``{id.predicted}`` a field.

    ``{id[setting].low}`` and ``.high`` are the ends of its interval. With ``:v`` behind it, a number is printed without its interval.
    """

    def __init__(self, entry: dict[str, Any], part: dict[str, Any] | None = None) -> None:
        self._entry, self._part = entry, part

    def __getitem__(self, setting: str) -> Told:
        return Told(self._entry, {part["setting"]: part for part in self._entry["settings"]}[setting])

    def __getattr__(self, name: str) -> Any:
        if name in ("low", "high"):
            part = self._part or self._entry
            return claims.figure(part[name], part["digits"])
        return (self._entry | (self._part or {}))[name]

    def __format__(self, specification: str) -> str:
        part = self._part or {**self._entry, "value": self._entry["measured"]}
        if part["value"] is None or self._entry["settings"] and not self._part:
            raise KeyError(f"single number of {self._entry['id']}")
        return number(part | {"low": None, "high": None} if specification == "v" else part)


def stories(text: str, entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield, for each story in the file: the entry it is about, its title, and its text with the numbers filled in.

    A story is skipped while a row that it names is not measured.

    Raises:
        ExtensionError: it names a row, a setting or a field that does not exist, or lacks one of its own.
    """
    rows = {entry["id"]: entry for entry in entries}
    for place, story in enumerate(yaml.safe_load(text) or [], 1):
        try:
            about, title, told = (story[key] for key in ("claim", "title", "told"))
            named = {about, *re.findall(r"\{([\w-]+)", told)}
            if any(rows[name]["verdict"] == "planned" for name in sorted(named)):
                continue
            yield rows[about], title, told.format_map({name: Told(rows[name]) for name in named})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ExtensionError(
                f"{STORIES.name}, story {place}: there is no {error}; name rows of claims.yml, their settings and their fields"
            ) from error


# ---------------------------------------------------------------- the directive


class LedgerPart(SphinxDirective):
    """``{ledger} PART``: one part of the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        part = directives.choice(self.arguments[0], ("counts", "downloads", "filter", "disagreements", "chapters", "sources"))
        self.env.metadata[self.env.docname]["ledger"] = True
        self.book = Path(self.env.srcdir, "book")
        try:
            self.entries = claims.collect(self.book)
        except claims.ClaimError as error:
            raise ExtensionError(f"The ledger cannot be shown: {error}") from error
        for path in [*self.book.glob("ch_*.ipynb"), Path(self.env.srcdir, STORIES), Path(self.env.srcdir, "resnorm_lib/claims.yml")]:
            self.env.note_dependency(str(path))
        toc = [Path(name).name for name in self.env.external_site_map] if hasattr(self.env, "external_site_map") else []
        stems = dict.fromkeys(entry["chapter"] for entry in self.entries)
        self.chapters = sorted(stems, key=lambda stem: toc.index(stem) if stem in toc else len(toc))
        self.sources = sorted({entry["source"] for entry in self.entries}, key=self.source_key)
        found = getattr(self, f"part_{part}")()
        return list(found)

    # ------------------------------------------------------------ counts, filter, stories

    def part_counts(self) -> Iterator[nodes.Node]:
        counted, total = Counter(entry["verdict"] for entry in self.entries), len(self.entries)
        shares = [
            tag("span", classes=f"verdict-{CLASSES.get(verdict, verdict)}", style=f"flex-grow: {counted[verdict]}")
            for verdict in VERDICTS
            if counted[verdict]
        ]
        yield tag("div", *shares, classes="ledger-bar", aria_hidden="true")
        rows = []
        for verdict, meaning in VERDICTS.items():
            part = 100 * counted[verdict] / total
            share = "under 1 %" if 0 < part < 0.5 else f"{part:.0f} %"
            address = f"{Path(PAGE).name}.html?{urlencode({'verdict': verdict})}"
            rows.append([link(word(verdict), address, "ledger-query"), str(counted[verdict]), share, meaning])
        rows.append(["all", str(total), "", "the rows of the ledger"])
        yield self.table("Rows by verdict", ["Verdict", "Rows", "Share", "Meaning"], rows, "ledger-counts")

    def part_downloads(self) -> Iterator[nodes.Node]:
        name = Path(PAGE).name
        one, other = link("JSON", f"{name}.json"), link("CSV", f"{name}.csv")
        words = "The whole ledger is one file: ", one, ", with all settings of a row inside it, or ", other, ", with a line for each setting. "
        command = "python -m resnorm_lib.claims --format json"
        yield tag("p", *words, nodes.literal(command, command), " prints the same in a clone.")

    def part_filter(self) -> Iterator[nodes.Node]:
        choices = {
            "verdict": {verdict: verdict for verdict in VERDICTS},
            "chapter": {stem: chapter_title(self.book, stem) for stem in self.chapters},
            "source": {source: self.source_name(source) for source in self.sources},
            "kind": {kind: kind for kind in KINDS},
        }
        fields = '<label>Words <input type="search" name="words" autocomplete="off"></label>'
        for field, names in choices.items():
            counted = Counter(entry[field] for entry in self.entries)
            options = "".join(
                f'<option value="{escape(value)}">{escape(name)} ({counted[value]})</option>'
                for value, name in names.items()
                if counted[value]
            )
            fields += f'<label>{field.capitalize()} <select name="{field}"><option value="">all</option>{options}</select></label>'
        yield html(
            '<form class="ledger-filter" id="ledger-filter" role="search" aria-label="Filter the ledger" hidden>'
            f'{fields}<button type="reset">Show all</button><p role="status" aria-live="polite"></p></form>'
        )

    def part_disagreements(self) -> Iterator[nodes.Node]:
        path = Path(self.env.srcdir, STORIES)
        for entry, title, told in stories(path.read_text("utf-8"), self.entries) if path.exists() else ():
            row = link(code(entry["id"]), f"#{entry['id']}")
            head = nodes.paragraph("", "", nodes.strong("", title), nodes.Text(" "), word(entry["verdict"]), row)
            yield tag("div", head, *self.parse_text_to_nodes(told), classes="ledger-story")

    # ------------------------------------------------------------ tables

    def table(self, label: str, heads: list[str], rows: list[Any], classes: str) -> Tag:
        """A table whose parts keep their roles where the style sheet stacks them; a row is a `Tag` or a list of cells."""
        head = tag("tr", *(tag("th", name, scope="col", role="columnheader") for name in heads), role="row")
        body = [row if isinstance(row, Tag) else tag("tr", *(tag("td", cell, role="cell") for cell in row), role="row") for row in rows]
        inside = tag("thead", head, role="rowgroup"), tag("tbody", *body, role="rowgroup")
        return tag("table", *inside, classes=f"ledger-table {classes}", role="table", aria_label=label)

    def part_chapters(self) -> Iterator[nodes.Node]:
        if len(self.chapters) > 1:
            names = [link(chapter_title(self.book, stem), f"#chapter-{stem}") for stem in self.chapters]
            yield tag("ul", *(tag("li", name) for name in names), classes="ledger-jump")
        for stem in self.chapters:
            entries = [entry for entry in self.entries if entry["chapter"] == stem]
            title = chapter_title(self.book, stem)
            section = nodes.section("", nodes.title("", title), ids=[f"chapter-{stem}"], classes=["ledger-group"])
            where = self.address(stem)
            says = tally([entry["verdict"] for entry in entries])
            line = [link("Open the chapter", where), ". "] if where else ["This chapter is not written yet. "]
            line.append(f"{len(entries)} {'row' if len(entries) == 1 else 'rows'}: {says}.")
            section += tag("p", *line, classes="ledger-line")
            section += self.table(title, ["Verdict", "Claim", "Predicted", "Measured"], [self.row(e) for e in entries], "ledger-rows")
            self.state.document.note_explicit_target(section, section)
            yield section

    def part_sources(self) -> Iterator[nodes.Node]:
        names = [link(self.source_name(source), f"#source-{source}") for source in self.sources]
        yield tag("ul", *(tag("li", name) for name in names), classes="ledger-jump")
        for source in self.sources:
            entries = [entry for entry in self.entries if entry["source"] == source]
            rows = []
            for entry in entries:
                name = link(code(entry["id"]), f"#{entry['id']}")
                cells = [tag("td", item, role="cell") for item in (word(entry["verdict"]), name, entry["statement"])]
                rows.append(tag("tr", *cells, role="row", data_claim=entry["id"]))
            says = tally([entry["verdict"] for entry in entries])
            head = tag("h3", *self.citation(source))
            line = tag("p", f"{len(entries)} {'row' if len(entries) == 1 else 'rows'}: {says}.", classes="ledger-line")
            table = self.table(self.source_name(source), ["Verdict", "Row", "Claim"], rows, "ledger-source")
            yield tag("div", head, line, table, classes="ledger-group", ids=f"source-{source}")

    def row(self, entry: dict[str, Any]) -> Tag:
        """A row of a chapter's table."""
        name = link(code(entry["id"]), f"#{entry['id']}", "ledger-id")
        where = re.sub(r"ch_\w+", lambda found: chapter_title(self.book, found[0]), entry["where"])
        said = tag("div", *self.citation(entry["source"]), f", {where}", classes="ledger-small")
        claim = [tag("div", name), tag("div", entry["statement"]), said]
        if entry["scope"]:
            claim.append(tag("div", f"Scope: {entry['scope']}", classes="ledger-small"))
        limit = "Not tested here: " if entry["kind"] == "reported" else "Tolerance: "
        predicted = [tag("div", entry["predicted"]), tag("div", limit + entry["tolerance"], classes="ledger-small")]
        cells = [
            tag("td", word(entry["verdict"]), role="cell"),
            tag("th", *claim, scope="row", role="rowheader"),
            tag("td", *predicted, role="cell"),
            tag("td", *self.measured(entry), role="cell"),
        ]
        data = {f"data_{key}": entry[key] for key in ("verdict", "source", "chapter", "kind")}
        return tag("tr", *cells, ids=entry["id"], role="row", **data)

    def measured(self, entry: dict[str, Any]) -> Iterator[nodes.Node]:
        """What was measured, how, and where."""
        small, where = "ledger-small", self.address(entry["chapter"])
        yield tag("div", entry["quantity"], classes=small)
        if entry["settings"]:
            items = []
            for part in entry["settings"]:
                items.append(tag("li", f"{part['setting']}: {number(part)} ", word(part["setting_verdict"])))
            says = tally([part["setting_verdict"] for part in entry["settings"]], settings=True)
            summary = tag("summary", f"{len(items)} settings: {says}" if len(items) > 1 else "1 setting")
            yield tag("details", summary, tag("ul", *items))
        elif entry["measured"] is not None:
            yield tag("div", number(entry, "measured"))
        facts = []
        if entry["measured"] is not None:
            seeds = sorted({part["seeds"] for part in entry["settings"] or [entry]})
            count = "–".join(map(str, seeds))
            facts += ["no random draw" if seeds == [0] else f"{count} {'seed' if seeds == [1] else 'seeds'}", entry["dtype"]]
        line: list[nodes.Node | str] = [", ".join([*facts, KINDS[entry["kind"]]])]
        if entry["cell"] and where:
            line += [" · ", link(f"cell {entry['cell']}", f"{where}#claim-{entry['id']}")]
        address = dispute(self.config.html_theme_options.get("repository_url", ""), entry, self.version())
        if address and entry["measured"] is not None:
            line += [" · ", link("dispute this number", address)]
        yield tag("div", *line, classes=small)

    # ------------------------------------------------------------ names and places

    def version(self) -> str:
        """The version of the project, for an issue."""
        found = re.search(r'^version = "(.+)"', Path(self.env.srcdir, "pyproject.toml").read_text("utf-8"), re.MULTILINE)
        return found[1] if found else "unknown"

    def address(self, stem: str) -> str:
        """The address of a chapter, from this page; empty where it is not in the book."""
        docname = f"book/{stem}"
        known = docname in self.env.found_docs
        return self.env.app.builder.get_relative_uri(self.env.docname, docname) if known else ""

    def bibliography(self, source: str) -> Any:
        return self.env.get_domain("cite").bibdata.data.entries[source]  # type: ignore[attr-defined]

    def citation(self, source: str) -> list[nodes.Node]:
        """A source by author and year, with a link to the bibliography."""
        if source == OWN:
            return [nodes.Text("This book")]
        (paragraph,) = self.parse_text_to_nodes(f"{{cite:t}}`{source}`")
        cited = list(paragraph.children)
        return [nodes.Text(f"{SEEDS[source]} ("), *cited, nodes.Text(")")] if source in SEEDS else cited

    def source_name(self, source: str) -> str:
        """A source in plain text."""
        if source == OWN or source in SEEDS:
            return SEEDS.get(source, "This book")
        entry = self.bibliography(source)
        people = entry.persons.get("author", [])
        names = [re.sub(r"[{}]", "", " ".join(person.prelast_names + person.last_names)) for person in people]
        shown = names[0] + " et al." if len(names) > 2 else " and ".join(names)
        return " ".join(filter(None, [shown, entry.fields.get("year", "")]))

    def source_key(self, source: str) -> tuple[int, str]:
        """The two documents that started the book come first, its own statements last."""
        return (2 if source == OWN else int(source not in SEEDS), self.source_name(source).lower())


# ---------------------------------------------------------------- elsewhere


class ClaimBoxes(SphinxTransform):
    """Let the name of a claim in its box lead to its row in the ledger."""

    default_priority = 430

    def apply(self, **kwargs: Any) -> None:
        if PAGE not in self.env.found_docs or self.env.docname == PAGE:
            return
        page = self.env.app.builder.get_relative_uri(self.env.docname, PAGE)
        box = r'(<div class="claim [^>]* id="claim-([\w-]+)">.*?)<code>\2</code>'
        row = rf'\1<a class="claim-row" href="{page}#\2" aria-label="\2 in the ledger"><code>\2</code></a>'
        for raw in self.document.findall(nodes.raw):
            if raw.get("format") == "html" and 'id="claim-' in raw.astext():
                text = re.sub(box, row, raw.astext(), flags=re.DOTALL)
                raw.replace_self(nodes.raw("", text, format="html"))


def lighten(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Take the full reference, which pops up over a citation, from the rows: there are hundreds, and each source's table has it."""
    for row in doctree.findall(Tag) if app.env.metadata.get(docname, {}).get("ledger") else ():
        for citation in row.findall(nodes.reference) if row["tag"] == "tr" else ():
            citation.attributes.pop("reftitle", None)


def scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The ledger's style and script, on its page alone."""
    if app.env.metadata.get(page, {}).get("ledger"):
        app.add_css_file("ledger.css")
        app.add_js_file("ledger.js", loading_method="defer")


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the ledger as JSON and CSV beside its page."""
    if error is not None or app.builder.name != "html" or PAGE not in app.env.found_docs:
        return
    entries = claims.collect(Path(app.srcdir, "book"))
    for suffix, text in ((".json", claim_records.as_json(entries)), (".csv", claim_records.as_csv(entries))):
        Path(app.outdir, PAGE).with_suffix(suffix).write_text(text, "utf-8", newline="\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(Tag, html=(visit_tag, depart_tag))
    app.add_directive("ledger", LedgerPart)
    app.add_transform(ClaimBoxes)
    app.connect("doctree-resolved", lighten)
    app.connect("html-page-context", scripts)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
