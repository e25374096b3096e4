"""Build the book: ``make book``, or ``python book/_ext/build.py``; ``--dist`` also makes one zip of it.

Executes what is stale, then builds the pages, unless those that lie there were made from today's files.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import execute
import freshness

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "_build" / "html"
STAMP = ROOT / "_build" / "built-from"


def inputs() -> list[Path]:
    """Everything that a build may read: the book, the library and the files beside them."""
    found = [path for folder in ("book", freshness.PACKAGE) for path in (ROOT / folder).rglob("*")]
    found += ROOT.glob("*")
    return [path for path in found if not any(hidden(part) for part in path.relative_to(ROOT).parts)]


def hidden(part: str) -> bool:
    """Whether a name is that of a file or folder that no build reads."""
    return part.startswith(".") or part == "__pycache__"


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of names and contents: a changed, a missing and an additional file all change it."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        if path.is_file():
            name = path.relative_to(ROOT).as_posix()
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def stamp(made_from: str) -> str:
    """What the stamp of a good build says: what it was made from, and what it made."""
    return f"{made_from} {fingerprint(PAGES.rglob('*'))}\n"


def build() -> int:
    """Make the pages what today's files ask for; returns the exit code."""
    if code := execute.main(["--stale"]):
        return code
    made_from = fingerprint(inputs())
    if STAMP.exists() and STAMP.read_text("utf-8") == stamp(made_from):
        return 0
    STAMP.unlink(missing_ok=True)
    # or pages of chapters that are no more would stay, and go into the zip
    shutil.rmtree(PAGES, ignore_errors=True)
    call = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    options = ["build", str(ROOT), "-W", "-n", "--keep-going", "--all"]
    if subprocess.run([sys.executable, "-c", call, *options], cwd=ROOT, check=False).returncode:
        print("The book was not built: mend what the warnings above name, then build again.", file=sys.stderr)
        return 1
    STAMP.write_text(stamp(made_from), "utf-8")
    return 0


def pack() -> Path:
    """Make one zip of the pages, the same bytes from the same pages, and return its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    top = f"{project['name']}-book-{project['version']}"
    target = ROOT / "dist" / f"{top}.zip"
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in PAGES.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(f"{top}/{path.relative_to(PAGES).as_posix()}", (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return unfinished.replace(target)


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the book's pages.")
    parser.add_argument("--dist", action="store_true", help="also make a zip of them in dist/")
    options = parser.parse_args()
    try:
        code = build()
        if code:
            return code
        if options.dist:
            print(f"Zipped: {pack()}")
    except KeyboardInterrupt:
        print("\nInterrupted: the book was not built.", file=sys.stderr)
        return 130
    print(PAGES / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
