"""A real browser, and a page of runs whose weights are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeprok.report import write_report
from tests.browser.chromium import Browser, start
from tests.finished_runs import GOOD, LEFT, write_run


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    started = start(tmp_path_factory.mktemp("profile"))
    yield started
    started.driver.quit()


@pytest.fixture(scope="session")
def pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two agents on Cart-Pole, one that works nearly everywhere and one that works nowhere."""
    folder = tmp_path_factory.mktemp("pole")
    write_run(folder / "runs" / "steady", best=GOOD)
    write_run(folder / "runs" / "falling", best=LEFT)
    return write_report(folder / "runs", folder / "report.html", episodes=20)
