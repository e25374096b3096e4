"""The repository's address: set in one place, ``repository`` in ``_config.yml``, and written from there into the set-up cells.

``python book/_ext/repository.py`` takes the address that ``_config.yml`` has, or, where it has none, that of a GitHub
``origin``; ``python book/_ext/repository.py URL --ref main`` sets another. It writes the address into ``_config.yml`` and into
the set-up cell of each chapter, which then installs the library from there on a machine without it. A chapter is not stale
for it: ``freshness.py`` reads that one literal as empty, since a run that has the library never uses it.

As a Sphinx extension this module leaves the launch buttons out while there is no address, and ends the build where a set-up
cell names another one than ``_config.yml``, so that no button leads to a notebook that cannot find its library.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import freshness
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = re.compile(r"(?:https://|ssh://git@|git@)github\.com[/:](?P<owner>[\w.-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")
REF = re.compile(r"(?!.*\.\.)[\w][\w./-]*")
SECTION = re.compile(r'(?m)^repository:\n  url: ".*"\n  branch: .*\n')
# The same slot as in freshness.py, as JSON writes it.
SLOT = re.compile(freshness.ADDRESS.pattern.replace('"', r"\\\""))


def github(url: str) -> str:
    """The address of a GitHub repository as a browser knows it.

    Raises:
        ValueError: it is the address of something else.
    """
    match = GITHUB.fullmatch(url.strip())
    if match is None:
        raise ValueError(f"{url} is no address of a GitHub repository: give one like https://github.com/OWNER/NAME")
    return f"https://github.com/{match['owner']}/{match['name']}"


def origin(root: Path) -> str | None:
    """The address of the remote ``origin``, if it is on GitHub."""
    try:
        call = ["git", "-C", str(root), "remote", "get-url", "origin"]
        return github(subprocess.run(call, check=True, capture_output=True, text=True, encoding="utf-8").stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def settings(root: Path) -> tuple[str, str]:
    """The address and the branch or tag that ``_config.yml`` has; the address is empty where none is settled."""
    section = (yaml.safe_load((root / "_config.yml").read_text("utf-8")) or {}).get("repository", {})
    return section.get("url", ""), section.get("branch", "main")


def source(url: str, ref: str) -> str:
    """What ``pip install`` takes; empty where no address is settled."""
    return f"git+{url}@{ref}" if url else ""


def stamp(text: str, address: str) -> str:
    """The text of a notebook's file with ``address`` in its set-up cell; nothing else changes, not a byte."""
    return SLOT.sub(lambda match: f'{match[1]}\\"{address}\\"', text)


def stamped(root: Path) -> dict[Path, str]:
    """The address in the set-up cell of each notebook that has one."""
    found = ((path, SLOT.search(path.read_text("utf-8"))) for path in freshness.notebooks(root))
    return {path: match[2] for path, match in found if match}


def write(root: Path, url: str, ref: str) -> None:
    """Set the address in ``_config.yml`` and in every set-up cell."""
    config = root / "_config.yml"
    before = config.read_text("utf-8")
    if len(SECTION.findall(before)) != 1:
        raise ValueError('_config.yml has no section "repository" of two lines, url: "…" and branch: …: put them back')
    texts = {config: SECTION.sub(f'repository:\n  url: "{url}"\n  branch: {ref}\n', before)}
    texts |= {path: stamp(path.read_text("utf-8"), source(url, ref)) for path in stamped(root)}
    for path, text in texts.items():
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8", newline="\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the repository's address into _config.yml and the set-up cells.")
    parser.add_argument("url", nargs="?", help="default: that of _config.yml, or else of the remote origin on GitHub")
    parser.add_argument("--ref", help="branch or tag from which the set-up cells install (default: that of _config.yml)")
    parser.add_argument("--none", action="store_true", help="take the address out")
    options = parser.parse_args(arguments)
    url, ref = settings(ROOT)
    ref = options.ref or ref
    try:
        url = "" if options.none else github(options.url or url or origin(ROOT) or "")
        if not REF.fullmatch(ref):
            raise ValueError(f"{ref} is no name of a branch or tag")
        write(ROOT, url, ref)
    except ValueError as error:
        given = options.url or settings(ROOT)[0]
        print(error if given or options.none else "There is no address yet, and no origin on GitHub: give one", file=sys.stderr)
        return 1
    print(f"The set-up cells of {len(stamped(ROOT))} chapters install from {source(url, ref) or 'RESNORM_SOURCE alone'}.")
    return 0


def launch(app: Any, config: Any) -> None:
    """Let buttons lead only where they lead somewhere."""
    from sphinx.errors import ExtensionError

    url, ref = settings(root := Path(app.srcdir))
    names = [path.name for path, address in stamped(root).items() if address != source(url, ref)]
    if names:
        raise ExtensionError(
            f"The set-up cells of {', '.join(names)} do not name the address of _config.yml ({source(url, ref) or 'none'}): "
            "run `python book/_ext/repository.py`, or with --none."
        )
    if not url:
        config.html_theme_options.pop("launch_buttons", None)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.connect("config-inited", launch)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.exit(main())
