"""Sphinx extension: each chapter once more, as a notebook that carries the library and runs wherever it is put.

The copy lies in ``notebooks`` beside the pages and is the first entry of a chapter's download menu. It is the committed,
executed notebook, but for its set-up cell, which holds a wheel of the library of that very version and unpacks it into a
temporary folder: no address, no network, no installation, and whatever is installed stays as it is. The cell is folded in
Colab, JupyterLab and VS Code. The same files make the same bytes.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import io
import json
import tomllib
import zipfile
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import freshness
from sphinx.application import Sphinx

FOLDER = "notebooks"
SUFFIX = "_with_library"
LINE = 4000  # characters; few lines, should a program not fold the cell
CELL = '''\
# @title The library of this book ({name} {version}) travels in this cell: run it first
import base64, bz2, io, sys, tempfile, zipfile

if "{name}" not in sys.modules:
    _library = tempfile.TemporaryDirectory(prefix="{name}-")
    zipfile.ZipFile(io.BytesIO(bz2.decompress(base64.b64decode("""
{payload}
""")))).extractall(_library.name)
    sys.path.insert(0, _library.name)
'''


def wheel(root: Path) -> tuple[str, bytes]:
    """The library as a wheel: the name of its file, and its bytes, which hang on nothing but the library's files.

    Nothing in it is packed: what Python's zlib makes of the same bytes is not the same everywhere.
    """
    config = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    project, tool = config["project"], config["tool"]["setuptools"]
    files: dict[str, bytes] = {}
    for package in tool["packages"]:
        for pattern in ("*.py", *tool["package-data"].get(package, [])):
            for path in (root / package).glob(pattern):
                files[path.relative_to(root).as_posix()] = path.read_bytes()
    about = f"{project['name']}-{project['version']}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in project["license-files"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {need}" for need in project["dependencies"]),
        *(
            line
            for extra, needs in project.get("optional-dependencies", {}).items()
            for line in (f"Provides-Extra: {extra}", *(f'Requires-Dist: {need}; extra == "{extra}"' for need in needs))
        ),
    ]
    files[f"{about}/METADATA"] = "".join(f"{line}\n" for line in metadata).encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: self_contained\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for name in project["license-files"]:
        files[f"{about}/licenses/{name}"] = (root / name).read_bytes()
    listed = io.StringIO()
    lines = csv.writer(listed, lineterminator="\n")
    for name in sorted(files):
        digest = urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
        lines.writerow([name, f"sha256={digest}", len(files[name])])
    lines.writerow([f"{about}/RECORD", "", ""])
    files[f"{about}/RECORD"] = listed.getvalue().encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, files[name])
    return f"{project['name']}-{project['version']}-py3-none-any.whl", packed.getvalue()


def set_up_cell(notebook: dict[str, Any]) -> dict[str, Any] | None:
    """The cell that installs the library where it is missing, if the notebook has one."""
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return next((cell for cell in cells if freshness.ADDRESS.search("".join(cell["source"]))), None)


def carry(text: str, name: str, data: bytes) -> str | None:
    """The text of a notebook's file with the wheel in its set-up cell, or None where it has no such cell.

    Args:
        text: the text of the notebook's file.
        name: the file name of the wheel.
        data: the wheel.
    """
    notebook = json.loads(text)
    cell = set_up_cell(notebook)
    if cell is None:
        return None
    library, version, *_ = name.split("-")
    # bzip2 has made the same bytes of the same bytes for decades
    payload = b64encode(bz2.compress(data)).decode()
    lines = "\n".join(payload[k : k + LINE] for k in range(0, len(payload), LINE))
    source = CELL.format(name=library, version=version, payload=lines).rstrip("\n")
    cell["source"] = source.splitlines(keepends=True)
    cell["metadata"] |= {"cellView": "form", "jupyter": {"source_hidden": True}}
    notebook["metadata"].pop("resnorm", None)  # the digests are those of the other cell
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error is not None or app.builder.name != "html":
        return
    name, data = wheel(Path(app.srcdir))
    for docname in sorted(app.env.found_docs):
        path = Path(app.env.doc2path(docname))
        text = carry(path.read_text("utf-8"), name, data) if path.suffix == ".ipynb" else None
        if text is not None:
            target = Path(app.outdir, docname).parent / FOLDER / f"{path.stem}{SUFFIX}.ipynb"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8", newline="\n")


def offer(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Put the notebook into the theme's download menu."""
    path = Path(app.env.doc2path(pagename)) if pagename in app.env.found_docs else Path()
    if path.suffix != ".ipynb" or set_up_cell(json.loads(path.read_text("utf-8"))) is None:
        return
    menu = next((button for button in context.get("header_buttons", []) if button.get("label") == "download-buttons"), None)
    if menu is not None:
        page = Path(pagename)
        button = {
            "type": "link",
            "url": context["pathto"](f"{page.parent.as_posix()}/{FOLDER}/{page.name}{SUFFIX}.ipynb", 1),
            "text": ".ipynb, with the library",
            "tooltip": "Download a notebook that runs anywhere, for instance in Colab",
            "icon": "fas fa-suitcase",
            "label": "download-with-library-button",
        }
        menu["buttons"].insert(0, button)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", offer, priority=502)  # the theme makes its menu at 501
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
