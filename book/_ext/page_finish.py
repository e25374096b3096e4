"""Sphinx extension: the last touch on the built pages, where the theme leaves something to mend and has no option for it.

The mends are few, and made on the finished HTML, so that no template of the theme is copied and left to age. Each one says
why it is there; tests/test_site.py shows what happens without it.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

MENDS = [
    # A sidebar that is no landmark leaves the logo and the search button outside of all of them.
    (r'<div id="pst-primary-sidebar" (?!role)', '<div id="pst-primary-sidebar" role="region" aria-label="Sidebar" '),
    # docutils gives a list of references roles that contradict each other (and one that ARIA has withdrawn).
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
    (r' role="doc-biblioentry"', ""),
    # The visible words are "Search" and the keys; the theme spells as Americans do.
    (r'(<button class="btn search-button-field[^>]*?) aria-label="Search"', r"\1"),
    (r'"Color mode"', '"Colour mode"'),
    # A notebook is there to be kept, and a browser would show its text; a launch button leads off the site and stays as it is.
    (r'<a href="(?!https?:)([^"]+\.ipynb)" target="_blank"', r'<a href="\1" download'),
    # MyST-NB's fold is an admonition whose label differs from its visible words, which hides them from speech input.
    (r'<details class="admonition hide', '<details class="hide'),
    (
        r'<summary aria-label="[^"]*">\s*<p class="collapsed admonition-title">(.*?)</p>',
        r'<summary><span class="collapsed">\1</span>',
    ),
    (r'<p class="expanded admonition-title">(.*?)</p>', r'<span class="expanded">\1</span>'),
    # MyST-NB's style of cells, with a second palette of its own; book.css has the whole style of them.
    (r'\s*<link rel="stylesheet" type="text/css" href="[^"]*mystnb\.[^"]*" />', ""),
    # 1.5 MB of icons as script; the icon font that the style sheet loads has every icon that is used.
    (r'\s*<!-- So that users can add custom icons -->\s*<script defer src="[^"]*fontawesome\.js[^"]*"></script>', ""),
]
UNUSED = ["scripts/fontawesome.js*", "mystnb.*.css", "**/*.map", "**/*.ttf"]

REDIRECT = """<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="0; url={target}">
<title>{title}</title>
</head>
<body><main><h1>{title}</h1><p><a href="{target}">Open the book</a></p></main></body>
</html>
"""


def mend(html: str) -> str:
    """The page with every mend made; a page that has them all comes back as it is."""
    for pattern, replacement in MENDS:
        html = re.sub(pattern, replacement, html)
    return html


def finish(app: Sphinx, error: Exception | None) -> None:
    """Mend every page, drop the files that no page loads, and make the root page a whole document."""
    if error is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    for pattern in UNUSED:
        for file in (site / "_static").glob(pattern):
            file.unlink()
    for page in site.rglob("*.html"):
        before = page.read_text("utf-8")
        after = mend(before)
        if after != before:
            page.write_text(after, "utf-8")
    target = app.builder.get_target_uri(app.config.root_doc)
    (site / "index.html").write_text(REDIRECT.format(title=escape(app.config.html_title), target=target), "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
