"""The page on the front of the documentation, in a real browser."""

from __future__ import annotations

from pathlib import Path

from tests.browser.chromium import Browser
from tests.browser.test_page import STILL, tried

FRONT = Path(__file__).parents[2] / "docs" / "live.html"


def test_agents_of_every_environment_act(browser: Browser) -> None:
    browser.open(FRONT, **STILL)
    count = browser.run("return deeprok.page.data.scenes.length")
    assert len(browser.texts("header.page .switch label")) == count > 1
    for i in range(count):
        browser.run("deeprok.page.open(arguments[0])", i)
        assert browser.run("return stage.panes.map((pane) => Boolean(pane.player))") == [True] * 4
        browser.press("sss")
        assert browser.run("return stage.steps()") == 3
        assert len(browser.texts(".pane .map")) == 4
    assert browser.complaints == []


def test_begins_where_the_nominal_agent_fails_and_the_robust_one_does_not(browser: Browser) -> None:
    browser.open(FRONT, **STILL)
    names = browser.run("return stage.panes.map((pane) => pane.agent.algorithm)")
    succeed = dict(zip(names, tried(browser), strict=True))
    assert succeed["ddqn"] <= 5
    assert succeed["rtd_dqn"] >= 15
    browser.press("0")
    succeed = dict(zip(names, tried(browser), strict=True))
    assert succeed["ddqn"] >= 15


def test_fits_a_phone(browser: Browser) -> None:
    browser.open(FRONT, 390, 844, **STILL)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
