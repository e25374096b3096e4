"""The committed numbers come out on every CPU path that differs: with vector extensions, without, in MKL's common mode."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, chapters

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


def in_turn(notebook: Path) -> str:
    """The path on which this notebook is tested where not all are asked for: it changes with the notebook's content."""
    return OTHERS[hashlib.sha256(notebook.read_bytes()).digest()[0] % len(OTHERS)]


def test_the_choice_of_a_path_moves_with_the_content(tmp_path: Path) -> None:
    chosen = set()
    for content in "abcdefgh":
        (tmp_path / "ch_x.ipynb").write_text(content)
        chosen.add(in_turn(tmp_path / "ch_x.ipynb"))
    assert chosen == set(OTHERS)


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("chapter", [path.stem for path in chapters()])
def test_the_committed_numbers_come_out(chapter: str, path: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--every-path") and path != in_turn(ROOT / "book" / f"{chapter}.ipynb"):
        pytest.skip("in turn; make portability runs every chapter on every path")
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600", "--nbval-sanitize-with"]
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nbval, "tests/nbval-sanitize.cfg"]
    result = subprocess.run(
        [*call, f"book/{chapter}.ipynb"], check=False, cwd=ROOT, env=environment(path), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-6000:]
