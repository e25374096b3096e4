"""The committed numbers come out on every CPU path that differs: with vector extensions, without, in MKL's common mode."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import freshness
import pytest
import yaml
from conftest import PORTABILITY, ROOT, chapters

PATHS = {
    "as it is": {},
    "no vector extensions": {"ATEN_CPU_CAPABILITY": "default"},
    "matrix products as on any CPU": {"MKL_CBWR": "COMPATIBLE"},
}
OTHERS = [name for name, changes in PATHS.items() if changes]
# Matrix products are MKL's, layer_norm is torch's own: no path changes both. Without a difference, nbval on
# these paths would prove nothing.
CANARY = """
import hashlib, torch
torch.set_num_threads(1)
x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
for y in x @ x, torch.nn.functional.layer_norm(x, (256,)), torch.tanh(x):
    print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


def environment(path: str) -> dict[str, str]:
    """This environment, on another CPU path, and without what would tie a nested pytest to this one."""
    ours = {"ATEN_CPU_CAPABILITY", "MKL_CBWR"}
    kept = {key: value for key, value in os.environ.items() if key not in ours and not key.startswith("PYTEST")}
    return kept | PATHS[path]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these paths are those of x86 processors")
def test_the_paths_differ() -> None:
    def canary(path: str) -> list[str]:
        run = [sys.executable, "-c", CANARY]
        return subprocess.run(run, check=True, env=environment(path), capture_output=True, text=True).stdout.split()

    product, norm, tanh = zip(*map(canary, PATHS), strict=True)
    hashes = list(zip(product, norm, tanh, strict=True))
    assert len(set(hashes)) == len(PATHS), hashes
    assert norm[0] != norm[1], "layer_norm does not see ATEN_CPU_CAPABILITY"
    assert product[0] != product[2], "matrix products do not see MKL_CBWR"
    assert list(hashes[0]) == canary("as it is"), "the canary differs from itself"


def runs_the_same(notebook: Path) -> str:
    """Digest of what a number of this chapter depends on: code, library, pins, tolerances and bands; not of its words."""
    content = json.loads(notebook.read_text("utf-8"))
    parts = freshness.record(content, notebook.stem, ROOT)
    code = ["".join(cell["source"]) for cell in freshness.code_cells(content)]
    words = {"statement", "quantity", "where", "reason", "prediction", "source"}
    rows = yaml.load((ROOT / "resnorm_lib" / "claims.yml").read_text("utf-8"), freshness.LOADER)
    numbers = [{k: v for k, v in row.items() if k not in words} for row in rows if row.get("chapter") == notebook.stem]
    kept = [parts["library"], parts["pins"], code, numbers]
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def in_turn(notebooks: Sequence[Path]) -> tuple[str, str]:
    """The chapter, and the path, that are tried where not all are asked for: they change with the notebooks' content."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in notebooks)).digest()
    return notebooks[digest[0] % len(notebooks)].stem, OTHERS[digest[1] % len(OTHERS)]


def test_the_choice_moves_with_the_content(tmp_path: Path) -> None:
    chosen = set()
    for content in range(40):
        for name in "xy":
            (tmp_path / f"ch_{name}.ipynb").write_text(f"{content}")
        chosen.add(in_turn(sorted(tmp_path.glob("ch_*.ipynb"))))
    assert chosen == {(f"ch_{name}", path) for name in "xy" for path in OTHERS}


def test_words_do_not_count_and_code_does(tmp_path: Path) -> None:
    source = next(iter(chapters()))
    content = json.loads(source.read_text("utf-8"))
    same = tmp_path / source.name
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = "Other words."
    same.write_text(json.dumps(content))
    assert runs_the_same(same) == runs_the_same(source)
    code = next(cell for cell in content["cells"] if cell["cell_type"] == "code")
    code["source"] = [*code["source"], "\n1"]
    same.write_text(json.dumps(content))
    assert runs_the_same(same) != runs_the_same(source)


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("chapter", [path.stem for path in chapters()])
def test_the_committed_numbers_come_out(chapter: str, path: str, request: pytest.FixtureRequest) -> None:
    """Run where all are asked for, which leaves a record; else one chapter on one path, and whatever the record does not know."""
    everything = request.config.getoption("--every-path")
    digest = runs_the_same(ROOT / "book" / f"{chapter}.ipynb")
    seen = json.loads(PORTABILITY.read_text("utf-8")).get(chapter, {}).get(path) == digest
    if everything or not seen or (chapter, path) == in_turn(chapters()):
        run_on(path, chapter)
    if everything:
        request.node.user_properties.append(("numbers came out", [chapter, path, digest]))  # see conftest.py


def run_on(path: str, chapter: str) -> None:
    """Compare every output of the chapter with those that it makes on the path."""
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600", "--nbval-sanitize-with"]
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nbval, "tests/nbval-sanitize.cfg"]
    result = subprocess.run(
        [*call, f"book/{chapter}.ipynb"], check=False, cwd=ROOT, env=environment(path), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-6000:]
