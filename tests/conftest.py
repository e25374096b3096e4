"""What all tests share: the book's own modules can be imported, and a warning from them is an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
# what make portability has seen to come out: by chapter and CPU path, a digest of what the numbers depend on
PORTABILITY = ROOT / "book" / "_data" / "portability.json"
SEEN: list[tuple[str, str, str]] = []
OURS = (
    *("resnorm_lib", "freshness", "execute", "build", "notebook_figures", "page_finish", "run_status"),
    *("api_pages", "docstrings", "explorer_pages", "placement_table", "figure_downloads", "ledger_page"),
    *("parameter_tables", "sweep_figure"),
    *("repository", "self_contained"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What ``make portability`` asks for; ``make test`` tries one chapter on one path, and some settings to the end, in turn."""
    parser.addoption("--every-path", action="store_true", help="each chapter on every CPU path; writes the record of it")
    parser.addoption("--every-setting", action="store_true", help="each quick run with another setting to its end")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a passed test of the CPU paths has seen; workers send it to the process that started them."""
    if report.when == "call" and report.passed:
        SEEN.extend(value for name, value in report.user_properties if name == "numbers came out")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it down."""
    if SEEN and not hasattr(session.config, "workerinput"):
        kept = json.loads(PORTABILITY.read_text("utf-8")) if PORTABILITY.exists() else {}
        for chapter, path, digest in SEEN:
            kept.setdefault(chapter, {})[path] = digest
        there = [path.stem for path in chapters()]
        kept = {name: dict(sorted(kept[name].items())) for name in sorted(kept) if name in there}
        PORTABILITY.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


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
