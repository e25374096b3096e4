"""What a built page must be: each function returns what is wrong, one sentence each, and an empty list when nothing is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit
from urllib.request import url2pathname

from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, TimeoutError, sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WIDTHS = (1280, 375)
THEMES = ("light", "dark")

# Preloading style sheets is refused from disk; the rule is one that axe-core holds back as an experiment.
AXE_OPTIONS = {
    "preload": False,
    "resultTypes": ["violations"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
}

# A chapter has thousands of coloured words of code, and the contrast of each takes time: one of each kind stays coloured.
ONE_OF_EACH = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('pre span:not(:has(*))')) {
        const kind = word.className + ' in ' + (word.closest('.cell_input, .cell_output')?.className ?? '');
        if (seen.has(kind)) word.replaceWith(word.textContent);
        seen.add(kind);
    }
    // So has the page of the library: names and signatures, each word of which Sphinx wraps. Innermost first.
    for (const word of [...document.querySelectorAll('main :is(code, em, span, p, a.headerlink)')].reverse()) {
        const kind = word.tagName + word.className + ' in ' + word.parentElement.tagName;
        if (!word.closest('dl.py') || word.children.length) continue;
        if (seen.has(kind)) word.replaceWith(word.textContent);
        seen.add(kind);
    }
    document.querySelectorAll('dl.py').forEach(box => box.normalize());
    document.querySelectorAll('pre').forEach(box => box.normalize());
}"""

# Rules that axe-core applies and this book does not meet, each with its reason. None.
AXE_ALLOWED: dict[str, str] = {}


def chromium() -> str | None:
    """The browser's path, or None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


class Visit:
    """A page, opened, with what it asked for and complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.route(re.compile("^(https?|wss?):"), lambda route: route.abort())  # seen below, and never sent
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", self._failed)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.goto(url, wait_until="load")
        page.wait_for_function("() => !window.MathJax?.startup || MathJax.startup.promise.then(() => true)")

    def _failed(self, request: Request) -> None:
        self.complaints.append(f"request failed: {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"console error: {message.text}")

    def off_site(self, site: Path) -> list[str]:
        """Requests that leave the folder of the built book."""
        inside = (site.as_uri() + "/", "data:", "blob:")
        return [f"asks for {url}, which is not part of the book" for url in self.requests if not url.startswith(inside)]

    def show(self, width: int, theme: str) -> None:
        """Set the window's width and the colour scheme that the reader's system asks for."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def theme(self, wanted: str) -> list[str]:
        """Whether the page followed the reader's system."""
        shown = self.page.evaluate("getComputedStyle(document.documentElement).colorScheme")
        return [] if shown == wanted else [f"is not shown in {wanted}"]

    def overflow(self) -> list[str]:
        """Whether the page scrolls sideways, and because of what."""
        return self.page.evaluate("""() => {
            const page = document.documentElement, room = page.clientWidth;
            if (page.scrollWidth <= room) return [];
            const wide = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > room + 1);
            const name = e => e.tagName.toLowerCase() + (e.className && e.className.baseVal === undefined
                              ? '.' + e.className.trim().split(/\\s+/).join('.') : '');
            return [`is ${page.scrollWidth} px wide in a window of ${room} px: ${wide.slice(-3).map(name).join(', ')}`];
        }""")

    def figures(self) -> list[str]:
        """Pictures that are not to be seen: empty, hidden, without alt text, or with a background that shows through.

        One whose place a drawing with sliders has taken need not show, but the drawing must.
        """
        problems = []
        for image in self.page.locator("main img").all():
            source, alt, shown = image.evaluate("""e => [e.currentSrc || e.src, e.alt,
                e.naturalWidth > 0 && (e.closest('details:not([open])') || (e.closest('figure')?.querySelector('.explorer-svg') ?? e)
                .getBoundingClientRect().width > 0)]""")
            name = source.rsplit("/", 1)[-1]
            if not shown:
                problems.append(f"picture {name} does not show")
            if not alt.strip() or Path(alt).suffix in {".png", ".svg", ".jpg"}:
                problems.append(f"picture {name} has no alt text")
            path = local_path(source)
            if shown and path is not None and path.suffix == ".png" and not opaque(path):
                problems.append(f"picture {name} has a transparent background")
        return problems

    def maths(self) -> list[str]:
        """Formulas that MathJax did not set."""
        return self.page.evaluate("""() => {
            const found = [];
            for (const e of document.querySelectorAll('mjx-merror, [data-mjx-error], merror'))
                found.push('a formula has an error: ' + e.textContent);
            for (const e of document.querySelectorAll('main .math'))
                if (!e.querySelector('mjx-container')) found.push('a formula is not set: ' + e.textContent.trim().slice(0, 80));
            const text = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
            for (let n; n = text.nextNode();)
                if (!n.parentElement.closest('pre, code, script, style, mjx-container, .math') && /\\$|\\\\[([]/.test(n.data))
                    found.push('raw TeX shows: ' + n.data.trim().slice(0, 80));
            return found;
        }""")

    def accessibility(self) -> list[str]:
        """What axe-core finds."""
        self.page.evaluate(ONE_OF_EACH)
        violations = Axe().run(self.page, options=AXE_OPTIONS).response["violations"]
        return [
            f"{v['id']} ({v['impact']}): {v['help']}: {node['html'][:160]}"
            for v in violations
            if v["id"] not in AXE_ALLOWED
            for node in v["nodes"]
        ]

    def keyboard(self, target: str = "nav.bd-links a") -> list[str]:
        """Whether the Tab key comes to the book's navigation."""
        for _ in range(25):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("selector => document.activeElement.matches(selector)", target):
                return []
        return [f"25 presses of Tab do not reach {target}"]

    def search(self, word: str) -> list[str]:
        """Whether the search page, asked for a word, lists a page of the book."""
        self.page.goto(f"{self.page.url.split('?')[0]}?q={word}")
        try:
            self.page.locator("ul.search li a").first.wait_for(timeout=5000)
        except TimeoutError:
            return [f"finds nothing for {word!r}"]
        return []


def local_path(url: str) -> Path | None:
    """The file that a file: address names."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def opaque(path: Path) -> bool:
    """Whether no pixel of the picture lets the page show through."""
    with Image.open(path) as image:
        return image.convert("RGBA").getextrema()[3][0] == 255


def links(path: Path) -> list[str]:
    """Links and sources within the book that lead nowhere."""
    problems = []
    for element in parsed(path).select("[href], [src]"):
        address = element.get("href") or element.get("src")
        target, fragment = urldefrag(address)
        if urlsplit(address).scheme or address.startswith("//"):
            continue
        file = (path.parent / unquote(urlsplit(target).path)).resolve() if target else path
        if not file.is_file():
            problems.append(f"{address} leads to no file")
        elif fragment and file.suffix == ".html" and unquote(fragment) not in anchors(file):
            problems.append(f"{address} leads to no place on that page")
    return problems


def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


@cache
def anchors(path: Path) -> set[str]:
    """The names within a page that a link can lead to."""
    return {element.get("id") or element.get("name") for element in parsed(path).select("[id], a[name]")}
