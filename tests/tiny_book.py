"""A book of the smallest kind, with copies of the real extensions, to break on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = {
    "__init__.py": '"""A library."""\n',
    "norms.py": '"""Norms."""\nfrom . import base\n\n\ndef double(x):\n    """Twice."""\n    return base.TWO * x\n',
    "base.py": "TWO = 2\n",
    "unused.py": "NOTHING = 0\n",
    "claims.yml": "- {id: a, chapter: ch_tiny, low: 1.0}\n- {id: b, chapter: ch_other, low: 1.0}\n",
}


def write(root: Path, stem: str, *sources: str) -> Path:
    """Write an unrun notebook with a title and these code cells."""
    cells = [new_code_cell(source, id=f"cell-{k}") for k, source in enumerate(sources)]
    notebook = new_notebook(cells=[new_markdown_cell(f"# The page {stem}", id="title"), *cells])
    path = root / "book" / f"{stem}.ipynb"
    nbformat.write(notebook, path)
    return path


def make(root: Path) -> Path:
    """Make the book in ``root``, with one unrun chapter, and return the chapter's path."""
    extensions = root / "book" / "_ext"
    extensions.mkdir(parents=True)
    for name in "freshness.py", "execute.py", "build.py":
        shutil.copy(ROOT / "book" / "_ext" / name, extensions)
    for name, text in LIBRARY.items():
        (root / "resnorm_lib").mkdir(exist_ok=True)
        (root / "resnorm_lib" / name).write_text(text, "utf-8")
    (root / "requirements.txt").write_text(f"# pins\npyyaml=={metadata.version('pyyaml')}  # reads claims\n", "utf-8")
    (root / "pyproject.toml").write_text('[project]\nname = "tiny"\nversion = "1.2.3"\n', "utf-8")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/ch_tiny\n", "utf-8")
    (root / "_config.yml").write_text(
        "title: Tiny\nauthor: Nobody\nonly_build_toc_files: true\nexecute: {execute_notebooks: 'off'}\n"
        "sphinx: {local_extensions: {freshness: book/_ext}}\n",
        "utf-8",
    )
    return write(root, "ch_tiny", "from resnorm_lib.norms import double", "print(double(21))")


def call(root: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with ``arguments`` in ``root``; its output and errors come together, as on a terminal."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        cwd=root,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def execute(root: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``make run`` does, for the book in ``root``."""
    return call(root, "book/_ext/execute.py", *arguments, **environment)


def jupyter_book(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A build by hand."""
    start = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    return call(root, "-c", start, "build", ".", *options)
