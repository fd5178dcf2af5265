"""The page of `deeprok watch`, in a real browser."""

from __future__ import annotations

import threading
from pathlib import Path

from deeprok.report import Watch
from deeprok.runs import folder as runs
from tests.browser.chromium import Browser
from tests.finished_runs import write_run


def test_newer_data_leave_the_sliders_alone(browser: Browser, tmp_path: Path) -> None:
    """A second run appears, the first one's curve grows, and what the reader has set stays."""
    run = write_run(tmp_path / "runs" / "a")
    server = Watch(tmp_path / "runs")
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        browser.open(server.address)
        browser.wait("return stage.playing && stage.steps() > 2")
        browser.run("stage.move({ cart_mass: 3.25 }); stage.settings.epsilon = 0.2; deeprok.page.ask()")
        browser.driver.execute_script("document.querySelector('.notes').open = true")
        browser.driver.execute_script("document.querySelector('input[value=\"2\"]').click()")
        write_run(tmp_path / "runs" / "b")
        runs.append_metrics(run, {"steps": 90, "episodes": 4, "returns": [30.0], "seconds": 1.0})
        browser.wait("return deeprok.page.scene.agents.length === 2")
        assert browser.run("return deeprok.page.scene.agents[0].curves[0].steps") == [60, 90]
        assert browser.run("return [stage.settings.params.cart_mass, stage.settings.epsilon]") == [3.25, 0.2]
        assert browser.run("return [stage.speed, stage.playing]") == [2, True]
        assert browser.run("return document.querySelector('.notes').open")
        assert browser.run("return document.querySelector('input[value=\"2\"]').checked")
        assert browser.texts(".pane h3") == ["a", "b"]
        browser.wait("return stage.steps() > 2")
        assert browser.complaints == []
    finally:
        server.close()
        thread.join()
    browser.run("return deeprok.page.ask()")
    assert browser.run("return deeprok.page.scene.agents.length") == 2
