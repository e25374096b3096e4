"""The repository's address is set in one place, makes nothing stale, and no launch button is dead."""

from __future__ import annotations

import json
import shutil
import subprocess
from io import StringIO
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import freshness
import nbformat
import pytest
import repository
import tiny_book
from bs4 import BeautifulSoup
from conftest import chapters
from jupyter_book.config import get_final_config
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace, patch_docutils
from test_freshness import settle

ROOT = Path(__file__).resolve().parents[1]
URL = "https://github.com/someone/a.book"
SET_UP = (
    'import importlib.util\nimport os\n\nif importlib.util.find_spec("resnorm_lib") is None:\n'
    '    source = os.environ.get("RESNORM_SOURCE", "")\n    print(source)'
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny book with an address to set; its chapter is as if executed."""
    tiny_book.make(tmp_path)
    shutil.copy(ROOT / "book" / "_ext" / "repository.py", tmp_path / "book" / "_ext")
    with (tmp_path / "_config.yml").open("a", encoding="utf-8") as file:
        file.write('# where\nrepository:\n  url: ""\n  branch: main\nhtml: {}\n')
    settle(tiny_book.write(tmp_path, "ch_tiny", SET_UP))
    return tmp_path


@pytest.mark.parametrize(
    "given", [URL, URL + ".git", URL + "/", "git@github.com:someone/a.book.git", "ssh://git@github.com/someone/a.book"]
)
def test_addresses_of_github(given: str) -> None:
    assert repository.github(given) == URL


@pytest.mark.parametrize(
    "given", ["", "/srv/book.git", "https://gitlab.com/someone/book", "https://github.com/someone", 'https://github.com/a/b"c']
)
def test_other_addresses_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is no address of a GitHub repository: give one like"):
        repository.github(given)


def test_every_chapter_names_the_address_of_the_configuration() -> None:
    url, ref = repository.settings(ROOT)
    assert repository.stamped(ROOT) == dict.fromkeys(chapters(), repository.source(url, ref))
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True).stdout
    releases = [tag for tag in tags.split() if tag.startswith("v")]
    assert not url or not releases or ref in releases, "in a release the set-up cells install from its tag"


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_stamp_changes_one_literal_and_no_digest(path: Path, root: Path) -> None:
    before = path.read_text("utf-8")
    after = repository.stamp(before, repository.source(URL, "v1.2.0"))
    cells = [cell for cell in json.loads(after)["cells"] if "RESNORM_SOURCE" in "".join(cell["source"])]
    assert f'os.environ.get("RESNORM_SOURCE", "git+{URL}@v1.2.0")' in "".join(cells[0]["source"])
    assert repository.stamp(after, "") == repository.stamp(before, "")
    old, new = (freshness.record(json.loads(text), path.stem, root) for text in (before, after))
    assert old == new


def test_only_the_address_is_left_out_of_the_digest(root: Path) -> None:
    cell = {"cell_type": "code", "metadata": {}, "outputs": []}

    def digest(source: str) -> str:
        return freshness.record({"cells": [cell | {"source": source}]}, "ch_x", root)["cells"]

    stamped = SET_UP.replace('", "")', '", "git+https://github.com/a/b@main")')
    assert stamped != SET_UP and digest(stamped) == digest(SET_UP)
    for other in (
        SET_UP.replace("RESNORM_SOURCE", "RESNORM_SOURCES"),
        SET_UP.replace('", "")', '", "" or "x")'),
        SET_UP.replace('", "")', '", address)'),
        stamped + "\nx = 1",
        SET_UP.replace("is None", "is not None"),
    ):
        assert digest(other) != digest(SET_UP), other


def stamp(root: Path, *words: str) -> tuple[int, str]:
    done = tiny_book.call(root, "book/_ext/repository.py", *words)
    return done.returncode, done.stdout.strip()


def files(root: Path) -> list[str]:
    return [(root / name).read_text("utf-8") for name in ("_config.yml", "book/ch_tiny.ipynb")]


def test_one_command_sets_the_address_everywhere(root: Path) -> None:
    before = files(root)
    code, said = stamp(root, URL + ".git", "--ref", "v2.0")
    assert (code, said) == (0, f"The set-up cells of 1 chapters install from git+{URL}@v2.0.")
    assert repository.settings(root) == (URL, "v2.0")
    assert list(repository.stamped(root).values()) == [f"git+{URL}@v2.0"]
    assert freshness.problems(root / "book" / "ch_tiny.ipynb", root) == []
    assert "# where\n" in files(root)[0] and "html: {}" in files(root)[0]
    assert stamp(root, "--ref", "main")[0] == 0
    assert repository.settings(root) == (URL, "main")
    assert list(repository.stamped(root).values()) == [f"git+{URL}@main"]
    assert stamp(root, "--none") == (0, "The set-up cells of 1 chapters install from RESNORM_SOURCE alone.")
    assert files(root) == before


def test_origin_is_taken_where_it_is_on_github(root: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    assert stamp(root) == (1, "There is no address yet, and no origin on GitHub: give one")
    subprocess.run(["git", "remote", "add", "origin", "/srv/book.git"], cwd=root, check=True)
    assert stamp(root) == (1, "There is no address yet, and no origin on GitHub: give one")
    subprocess.run(["git", "remote", "set-url", "origin", "git@github.com:someone/a.book.git"], cwd=root, check=True)
    assert stamp(root)[0] == 0
    assert repository.settings(root) == (URL, "main")


@pytest.mark.parametrize("words", [["https://gitlab.com/a/b"], [URL, "--ref", "a b"], [URL, "--ref", 'x"']])
def test_bad_address_changes_nothing(root: Path, words: list[str]) -> None:
    before = files(root)
    code, said = stamp(root, *words)
    assert code == 1 and len(said.splitlines()) == 1 and " is no " in said
    assert files(root) == before


# What a reader sees: this book's own configuration, on chapters cut down to their set-up cell.


def launches(folder: Path, url: str, ref: str, address: str) -> dict[str, list[str]]:
    """Build; return the links of each chapter's page that lead to a service."""
    (folder / "book").mkdir()
    for path in chapters():
        cells = [new_markdown_cell("# Title"), new_code_cell(SET_UP.replace('", "")', f'", "{address}")'))]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = new_notebook(cells=cells, metadata=kernel | {"language_info": {"name": "python", "pygments_lexer": "ipython3"}})
        nbformat.write(notebook, folder / "book" / path.name)
    for name in ("_config.yml", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "resnorm_lib").mkdir()
    (folder / "resnorm_lib" / "__init__.py").write_text("", "utf-8")
    config = folder / "_config.yml"
    config.write_text(repository.SECTION.sub(f'repository:\n  url: "{url}"\n  branch: {ref}\n', config.read_text("utf-8")), "utf-8")
    stems = [path.stem for path in chapters()]
    (folder / "book" / "index.md").write_text("# Index\n\n```{toctree}\n" + "\n".join(stems) + "\n```\n", "utf-8")
    options, _ = get_final_config(user_yaml=config, sourcedir=folder, validate=False, cli_config={"latex_individualpages": False})
    theme = {key: options[key] for key in ("html_theme", "html_theme_options")}
    theme |= {"extensions": ["myst_nb", "sphinx_book_theme", "repository", "self_contained"], "nb_execution_mode": "off"}
    with patch_docutils(), docutils_namespace():
        warnings = StringIO()
        Sphinx(
            folder, None, folder / "out", folder / "trees", "html", theme | {"root_doc": "book/index"}, StringIO(), warnings
        ).build()
    assert warnings.getvalue() == ""
    pages = {path.stem: BeautifulSoup((folder / "out/book" / f"{path.stem}.html").read_text("utf-8"), "html.parser") for path in chapters()}
    for page in pages.values():
        menu = [a["href"] for a in page.select(".dropdown-download-buttons a")]
        assert menu[0].endswith("_with_library.ipynb") and (folder / "out" / "book" / menu[0]).is_file()
    return {stem: sorted({a["href"] for a in page.select(".dropdown-launch-buttons a")}) for stem, page in pages.items()}


def test_without_an_address_there_is_no_launch_button(tmp_path: Path) -> None:
    assert launches(tmp_path, "", "main", "") == {path.stem: [] for path in chapters()}


def test_launch_buttons_lead_to_files_of_the_tree(tmp_path: Path) -> None:
    found = launches(tmp_path, URL, "v2.0", f"git+{URL}@v2.0")
    for path in chapters():
        colab, binder = map(urlsplit, found[path.stem])
        assert colab.netloc == "colab.research.google.com"
        assert colab.path.startswith("/github/someone/a.book/blob/v2.0/")
        assert binder.netloc == "mybinder.org" and binder.path == "/v2/gh/someone/a.book/v2.0"
        for within in (colab.path.split("/v2.0/")[1], parse_qs(binder.query)["urlpath"][0].removeprefix("lab/tree/")):
            assert ROOT / unquote(within) == path


@pytest.mark.parametrize(("url", "address"), [(URL, ""), ("", f"git+{URL}@main"), (URL, f"git+{URL}@other")])
def test_a_cell_with_another_address_ends_the_build(url: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(ExtensionError, match="do not name the address of _config.yml"):
        launches(tmp_path, url, "main", address)
