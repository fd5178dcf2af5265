"""A real browser, and a page of runs whose weights are known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from deeprok.report import write_report
from tests.browser.chromium import FLAGS, Browser
from tests.finished_runs import GOOD, LEFT, write_run


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    options = webdriver.ChromeOptions()
    binary = shutil.which("chromium")
    assert binary, "there is no chromium; make test-page says how to get it"
    options.binary_location = binary
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="session")
def pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two agents on Cart-Pole, one that works nearly everywhere and one that works nowhere."""
    folder = tmp_path_factory.mktemp("pole")
    write_run(folder / "runs" / "steady", best=GOOD)
    write_run(folder / "runs" / "falling", best=LEFT)
    return write_report(folder / "runs", folder / "report.html", episodes=20)
