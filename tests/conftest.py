"""What all tests share: the book's own modules can be imported, and a warning from them is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
OURS = (
    *("resnorm_lib", "freshness", "execute", "build", "notebook_figures", "page_finish", "run_status"),
    *("api_pages", "docstrings", "explorer_pages", "placement_table", "figure_downloads", "ledger_page"),
    *("parameter_tables", "sweep_figure"),
    *("repository", "self_contained"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``make portability`` runs every chapter on every path; ``make test`` each on one other than this machine's own."""
    parser.addoption("--every-path", action="store_true", help="each chapter on every CPU path, not on one in turn")


def pytest_configure(config: pytest.Config) -> None:
    """Deprecations reach our readers first; they must stop here. One thread, as in the chapters."""
    torch.set_num_threads(1)
    # the same examples on every machine, and no failure for being slow on a busy one
    settings.register_profile("book", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("book")
    for module in OURS:
        config.addinivalue_line("filterwarnings", rf"error:::{module}(\..*)?$")


def chapters() -> list[Path]:
    """The book's executed chapters."""
    return sorted((ROOT / "book").glob("ch_*.ipynb"))
