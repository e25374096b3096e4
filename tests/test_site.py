"""The built book as a reader meets it: every page opened from disk, in two widths, in light and in dark.

The checks stand in site_checks.py. The second half of this file shows each of them a page on which it must complain.
"""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO
from pathlib import Path

import nbformat
import page_finish
import pytest
import self_contained
import site_checks as check
import yaml
from filelock import FileLock
from PIL import Image
from playwright.sync_api import Browser
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).resolve().parents[1]


def pages() -> list[str]:
    """The pages that the table of contents lists, and the search page."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    listed = [
        contents["root"],
        *(chapter["file"] for part in contents["parts"] for chapter in part["chapters"]),
        "search",
    ]
    return [f"{Path(page).with_suffix('')}.html" for page in listed]


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book; built here where it is not what today's files ask for."""
    (ROOT / "_build").mkdir(exist_ok=True)
    with FileLock(ROOT / "_build" / "site.lock"):  # two workers of pytest-xdist must not build at once
        command = [sys.executable, ROOT / "book" / "_ext" / "build.py"]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for each worker."""
    if check.chromium() is None:
        message = "no Chromium on this machine, so the pages were not looked at (on Debian: apt-get install chromium)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with check.browser() as started:
        yield started


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[Path], check.Visit]]:
    """Open a page in a browser that remembers nothing."""
    context = browser.new_context()
    yield lambda path: check.Visit(context.new_page(), path.as_uri())
    context.close()


@pytest.mark.parametrize("page", pages())
def test_page_is_sound(page: str, site: Path, visit: Callable[[Path], check.Visit]) -> None:
    opened = visit(site / page)
    problems = check.links(site / page)
    for width in check.WIDTHS:
        for theme in check.THEMES:
            opened.show(width, theme)
            seen = [*opened.theme(theme), *opened.overflow(), *opened.figures(), *opened.accessibility()]
            problems += [f"at {width} px, {theme}: {problem}" for problem in seen]
    opened.show(check.WIDTHS[0], check.THEMES[0])
    problems += [*opened.maths(), *opened.keyboard(), *opened.complaints, *opened.off_site(site)]
    assert not problems, "\n".join(problems)


def test_every_page_is_tested(site: Path) -> None:
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts}
    assert built == {*pages(), "index.html"}


def test_search_finds_a_word_from_disk(site: Path, visit: Callable[[Path], check.Visit]) -> None:
    opened = visit(site / "search.html")
    assert opened.search("residual") == []
    assert opened.complaints + opened.off_site(site) == []


def test_root_page_leads_to_the_book(site: Path, visit: Callable[[Path], check.Visit]) -> None:
    opened = visit(site / "index.html")
    opened.page.wait_for_url((site / pages()[0]).as_uri(), timeout=5000)
    assert opened.complaints + opened.off_site(site) == []
    assert check.links(site / "index.html") == []


@pytest.mark.parametrize("width", check.WIDTHS)
def test_download_menu_has_the_notebook_with_the_library(width: int, site: Path, visit: Callable[[Path], check.Visit]) -> None:
    page = next(page for page in pages() if "/ch_" in page)
    opened = visit(site / page)
    opened.show(width, "light")
    opened.page.locator(".dropdown-download-buttons > button").first.click()
    entry = opened.page.locator(".dropdown-download-buttons li a").first
    entry.wait_for(state="visible", timeout=2000)
    box = entry.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    assert entry.get_attribute("download") is not None
    made = (site / page).parent / str(entry.get_attribute("href"))
    chapter = ROOT / Path(page).with_suffix(".ipynb")
    assert made.read_text("utf-8") == self_contained.carry(chapter.read_text("utf-8"), *self_contained.wheel(ROOT))


def test_every_chapter_offers_the_notebook_with_the_library(site: Path) -> None:
    for page in pages():
        names = [link["href"] for link in check.parsed(site / page).select(".dropdown-download-buttons a[download]")]
        assert [name for name in names if "_with_library" in name] == (
            [f"notebooks/{Path(page).stem}_with_library.ipynb"] if "/ch_" in page else []
        )


def test_a_page_is_light_to_load(site: Path, visit: Callable[[Path], check.Visit]) -> None:
    """What a first page with formulas loads beside its own text and pictures: 2.1 MB, of which MathJax is 1.3; and that text."""
    assert (site / "searchindex.js").stat().st_size < 400_000
    for page in pages():
        # the index of the search grows with the book's text, and is text
        loaded = {check.local_path(url) for url in visit(site / page).requests} - {site / page, site / "searchindex.js"}
        assert sum(file.stat().st_size for file in loaded if file and file.suffix != ".png") < 2_200_000
        # the ledger grows with its rows (over 400, of 2.4 kB each), of which a page that is sent packed takes little notice
        assert (site / page).stat().st_size < (1_200_000 if page == "book/ledger.html" else 600_000)


# From here on: pages on which a check must complain.

WORDS = (
    "<!DOCTYPE html><html lang='en-GB'><head><title>Bad</title></head><body><main><h1>Bad</h1>{}</main></body></html>"
)
BAD = [
    ("off_site", "<img src='https://example.org/x.png' alt='x'>", "asks for https://example.org/x.png"),
    ("off_site", "<script>fetch('https://example.org/data')</script>", "asks for https://example.org/data"),
    ("off_site", "<style>@import url('https://example.org/x.css');</style>", "asks for https://example.org/x.css"),
    ("complaints", "<script>console.error('broken')</script>", "console error: broken"),
    ("complaints", "<script>undefined.call()</script>", "script error"),
    ("complaints", "<img src='missing.png' alt='x'>", "request failed"),
    ("overflow", "<p id='wide' style='width: 2000px'>wide</p>", "2008 px wide in a window of 1280 px: p"),
    ("figures", "<img src='opaque.png'>", "opaque.png has no alt text"),
    ("figures", "<img src='opaque.png' alt='_images/opaque.png'>", "opaque.png has no alt text"),
    ("figures", "<img src='missing.png' alt='x'>", "missing.png does not show"),
    ("figures", "<img src='opaque.png' alt='x' style='display: none'>", "opaque.png does not show"),
    (
        "figures",
        "<figure><svg class='explorer-svg' width='0'></svg><img src='opaque.png' alt='x'></figure>",
        "opaque.png does not show",
    ),
    ("figures", "<img src='clear.png' alt='x'>", "clear.png has a transparent background"),
    ("maths", "<p>the width $d$</p>", "raw TeX shows"),
    ("maths", "<p>the width \\(d\\)</p>", "raw TeX shows"),
    ("maths", "<p><span class='math'>\\(d\\)</span></p>", "a formula is not set"),
    ("maths", "<mjx-merror>Undefined control sequence</mjx-merror>", "a formula has an error"),
    ("accessibility", "<p style='color: #aaa; background: #fff'>faint</p>", "color-contrast"),
    ("accessibility", "<button aria-label='close'></button><div role='list'>no item</div>", "aria-required-children"),
    (
        "accessibility",
        "<pre tabindex='-1' style='width: 9em; overflow: auto'>a line that is too long</pre>",
        "scrollable-region",
    ),
    ("accessibility", "<button aria-label='Toggle'>Show the code</button>", "label-content-name-mismatch"),
    ("theme", "", "is not shown in dark"),
    ("keyboard", "<nav class='bd-links'><a href='#x' tabindex='-1'>there</a></nav>", "do not reach nav.bd-links a"),
    ("search", "<ul class='search'></ul>", "finds nothing for 'residual'"),
]


@pytest.fixture
def pictures(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / "opaque.png")
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")


@pytest.mark.parametrize(("name", "body", "complaint"), BAD)
def test_check_complains(
    name: str, body: str, complaint: str, tmp_path: Path, pictures: None, visit: Callable[[Path], check.Visit]
) -> None:
    page = tmp_path / "bad.html"
    page.write_text(WORDS.format(body), "utf-8")
    opened = visit(page)
    opened.show(1280, "dark")
    arguments = {"off_site": [tmp_path], "theme": ["dark"], "search": ["residual"]}
    found = getattr(opened, name)
    problems = found(*arguments.get(name, [])) if callable(found) else found
    assert any(complaint in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<a href='nowhere.html'>x</a>", "nowhere.html leads to no file"),
        ("<img src='nowhere.png' alt='x'>", "nowhere.png leads to no file"),
        ("<a href='#nowhere'>x</a>", "#nowhere leads to no place"),
        ("<a href='other.html#nowhere'>x</a>", "other.html#nowhere leads to no place"),
    ],
)
def test_broken_links_are_found(body: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(WORDS.format(body + "<a href='other.html#here'>x</a>"), "utf-8")
    (tmp_path / "other.html").write_text(WORDS.format("<p id='here'>here</p>"), "utf-8")
    problems = check.links(tmp_path / "bad.html")
    assert len(problems) == 1 and complaint in problems[0]


# The book's own Sphinx extensions, on a book of one notebook.


def built(
    folder: Path, outputs: list[nbformat.NotebookNode], tags: list[str], **more: object
) -> tuple[str, str]:
    """Build a notebook with one code cell, perhaps with more options; return the page and the warnings."""
    cell = nbformat.v4.new_code_cell("show()", outputs=outputs, execution_count=1, metadata={"tags": tags})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), cell])
    notebook.metadata |= {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, folder / "ch_one.ipynb")
    options = {
        "extensions": ["myst_nb", "notebook_figures", "explorer_pages", "run_status", "page_finish"],
        "root_doc": "ch_one",
        "nb_execution_mode": "off",
        "nb_render_markdown_format": "myst",
        "myst_enable_extensions": ["dollarmath"],
        "numfig": True,
        "html_theme": "basic",
        "html_title": "One",
        **more,
    }
    warnings = StringIO()
    with patch_docutils(), docutils_namespace():
        Sphinx(folder, None, folder / "out", folder / "trees", "html", options, StringIO(), warnings).build()
    return (folder / "out" / "ch_one.html").read_text("utf-8"), warnings.getvalue()


def picture(metadata: dict[str, object]) -> nbformat.NotebookNode:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), "white").save(buffer, "png")
    return nbformat.v4.new_output(
        "display_data", {"image/png": b64encode(buffer.getvalue()).decode()}, metadata=metadata
    )


def caption(text: str, **metadata: object) -> nbformat.NotebookNode:
    return nbformat.v4.new_output(
        "display_data", {"text/markdown": text}, metadata={"resnorm": {"caption": True, **metadata}}
    )


def test_picture_and_caption_become_a_figure(tmp_path: Path) -> None:
    page, warnings = built(
        tmp_path,
        [
            picture({"image/png": {"alt": "A line that falls."}}),
            caption("*Falls like $1/d$.*\n\nMore.", name="fig-one"),
        ],
        [],
    )
    soup = check.BeautifulSoup(page, "html.parser")
    assert warnings == ""
    assert soup.figure["id"] == "fig-one"
    assert soup.select_one("figure .legend").get_text(strip=True) == "More."
    assert soup.figure.img["alt"] == "A line that falls."
    assert soup.figcaption.get_text().strip().startswith("Fig. 1 Falls like")
    assert soup.figcaption.select_one(".math") and not soup.figcaption.select_one("em")


def test_picture_without_alt_text_is_a_warning(tmp_path: Path) -> None:
    _, warnings = built(tmp_path, [picture({})], [])
    assert "has no alt text" in warnings


def test_solution_is_folded(tmp_path: Path) -> None:
    printed = nbformat.v4.new_output("stream", name="stdout", text="62")
    page, _ = built(tmp_path, [printed], ["hide-cell"])
    fold = check.BeautifulSoup(page, "html.parser").details
    assert fold.summary.get_text(" ", strip=True) == "Show the solution Hide the solution"
    assert "show()" in fold.get_text() and "62" in fold.get_text()


def test_chapter_head_and_its_absence(tmp_path: Path) -> None:
    assert "run-line" not in built(tmp_path, [], [])[0]
    (tmp_path / "book" / "_data").mkdir(parents=True)
    (tmp_path / "book" / "_data" / "status.json").write_text(
        '{"chapters": {"ch_one": {"seconds": 125.2, "wall_seconds": 130, "peak_memory_mib": 612.4, "date": "2026-11-09"}},'
        ' "machine": "two cores", "python": "3.11.7", "packages": {"torch": "2.13.0"}}',
        "utf-8",
    )
    page, _ = built(tmp_path, [], [])  # in the same folder: the page is built again although only the status is new
    line = check.BeautifulSoup(page, "html.parser").select_one(".run-line").get_text()
    assert line == "Last run 9 November 2026 · 2 min 5 s of CPU time · 612 MiB at most · Python 3.11.7, torch 2.13.0"


def test_mends_are_made_once() -> None:
    theme = (
        '<div id="pst-primary-sidebar" class="bd-sidebar"></div><div role="list" class="citation-list"></div>'
        '<p role="doc-biblioentry"></p>\n<script defer src="_static/scripts/fontawesome.js?digest=1"></script>'
    )
    mended = page_finish.mend(theme)
    assert 'role="region" aria-label="Sidebar"' in mended
    assert 'role="list"' not in mended and "biblioentry" not in mended
    assert page_finish.mend(mended) == mended
