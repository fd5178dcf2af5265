"""What was measured and computed, on the page: regret to a reference, stress, coverage, solved tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.by import By

from deeprok.cli.main import main
from deeprok.core.files import write_atomically
from tests.browser.chromium import Browser
from tests.finished_runs import GOOD, LEFT, write_run

STILL = {"prefers_reduced_motion": "reduce"}
SCREENING = {
    "env": "cartpole",
    "policies": ["each", "random"],
    "grid": {"pole_length": [0.5, 1.0], "cart_mass": [1.5, 4.0, 7.0]},
    "parameters": {"pole_length": {"nominal": 0.5}, "cart_mass": {"nominal": 1.5}},
    "success": [[[1.0, 1.0, 1.0]] * 2, [[0.0, 0.0, 0.0]] * 2],
    "mean_return": [[[200.0, 199.0, 198.0], [197.0, 196.0, 195.0]], [[20.0] * 3] * 2],
    "epsilon": 0.05,
    "episodes": 7,
}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything on it."""
    folder = tmp_path_factory.mktemp("rich")
    runs = [
        write_run(folder / "runs" / "falling", best=LEFT),
        write_run(folder / "runs" / "rok", "deep_rok", best=GOOD, last=GOOD, spread=0.04),
    ]
    (folder / "screening.json").write_text(json.dumps(SCREENING))
    words = [str(run) for run in runs]
    assert main(["stress", *words, "--box", "cart_mass=0.1:7,pole_length=0.2:1.4", "--budget", "160"]) == 0
    assert main(["calibrate", words[1], "--states", "10", "--models", "2"]) == 0
    solved = [str(folder / "river.json"), str(folder / "machine.json")]
    assert main(["solve", "river_swim", "--radius", "0:0.4:5", "--out", solved[0], "--json"]) == 0
    assert main(["solve", "machine_replacement", "--radius", "0.3", "--rect", "s", "--out", solved[1], "--json"]) == 0
    files = [str(folder / "screening.json"), *solved]
    assert main(["report", *words, *files, "--episodes", "5", "--out", str(folder / "report.html")]) == 0
    return folder / "report.html"


def section(browser: Browser, heading: str) -> str:
    """The text of the card with a heading."""
    return browser.run(
        "return [...document.querySelectorAll('.card')].find((card) => card.querySelector('h3').textContent === "
        "arguments[0]).textContent",
        heading,
    )


def says(text: str, share: float) -> bool:
    """Whether a text has a share in percent, rounded to a tenth."""
    return any(abs(float(number) - 100 * share) < 0.0501 for number in re.findall(r"([\d.]+) %", text))


def test_regret_to_a_reference(browser: Browser, rich: Path) -> None:
    browser.open(rich, **STILL)
    browser.driver.execute_script("document.querySelector('input[value=reference]').click()")
    stored = browser.run("return stage.scene.agents.map((agent) => agent.map.mean_return)")
    browser.run("stage.move({ pole_length: 1, cart_mass: 4 })")
    for i, shown in enumerate(browser.texts(".pane .here")):
        number = float(shown.replace("−", "-").split()[1])
        assert number == pytest.approx(196.0 - stored[i][1][1], rel=6e-3, abs=6e-3)
    table = section(browser, "Results")
    mean = np.mean(np.array(SCREENING["mean_return"][0]) - np.array(stored[0]))  # type: ignore[index]
    assert f"{mean:.3g}" in table
    assert "better than falling" in table
    assert browser.complaints == []


def test_stress(browser: Browser, rich: Path) -> None:
    browser.open(rich, **STILL)
    found = json.loads((rich.parent / "runs" / "rok" / "stress.json").read_text())["found"]["runs"][0]
    told = section(browser, "Stress test")
    assert says(told, found["worst"]["success"])
    assert says(told, found["failing"]["share"])
    assert "cart mass" in told
    assert f"the share of the variance of {found['sensitivity_of'].replace('_', ' ')}" in told or " or " in told
    assert "tested differently" not in told
    browser.run("deeprok.page.data.scenes[0].agents[0].stress.found.threshold = 0.5;deeprok.page.build();")
    assert "tested differently" in section(browser, "Stress test")
    bars = browser.run(
        "return [...document.querySelectorAll('svg.chart')].filter((chart) => chart.getAttribute('aria-label')"
        ".startsWith('total Sobol')).flatMap((chart) => [...chart.querySelectorAll('g g rect')]"
        ".map((bar) => Number(bar.getAttribute('width'))))"
    )
    assert len(bars) == 4  # two agents, two parameters
    picture = "document.querySelector('svg.chart[aria-label^=\"total Sobol\"] g g')"
    browser.run(
        f"{picture}.dispatchEvent(new PointerEvent('pointermove', {{ clientX: 9, clientY: 300, bubbles: true }}))"
    )
    assert re.search(r"falling, \w+ \w+: [\d.]+ \([−\d.]+ – [\d.]+\) of the variance", browser.texts(".tip")[0])


def test_coverage(browser: Browser, rich: Path) -> None:
    browser.open(rich, **STILL)
    found = json.loads((rich.parent / "runs" / "rok" / "calibrate.json").read_text())["found"]
    told = section(browser, "Intervals for Q")
    for share in found["coverage"]:
        assert says(told, share)
    assert "deeprok calibrate" in told


def test_solved(browser: Browser, rich: Path) -> None:
    """The slider, a click on the figure and the choice of a state show what the file says."""
    browser.open(rich, **STILL)
    content = json.loads((rich.parent / "river.json").read_text())

    def told() -> str:
        return section(browser, "river_swim: the worst case")

    assert browser.texts("#solved-0-radius ~ output") == ["0.2"]
    radius = browser.driver.find_element(By.ID, "solved-0-radius")
    radius.send_keys("\ue014")  # arrow to the right
    assert browser.texts("#solved-0-radius ~ output") == ["0.3"]
    browser.run(
        "const s = document.getElementById('solved-0-state'); s.value = 3; s.dispatchEvent(new Event('change'))"
    )
    move = content["nature"][3]["moves"][3]
    action = content["actions"][move["action"]]
    assert f"In state {content['states'][3]} the policy takes {action}" in told()
    for share in (*move["nominal"], *move["worst"]):
        assert f"{share:.4g}" in told()
    browser.run(
        "const chart = document.querySelector('section[aria-label=\"Solved exactly\"] svg.chart');"
        "const { left, width, top } = chart.getBoundingClientRect();"
        "const at = { clientX: left + 0.12 * width, clientY: top + 20, bubbles: true };"
        "chart.dispatchEvent(new MouseEvent('click', at))"
    )
    assert browser.texts("#solved-0-radius ~ output") == ["0"]
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 1280])
def test_solved_tables_alone(browser: Browser, rich: Path, width: int, tmp_path: Path) -> None:
    page = tmp_path / "solved.html"
    assert main(["report", str(rich.parent / "river.json"), "--out", str(page)]) == 0
    browser.open(page, width, **STILL)
    assert browser.texts("h1") == ["What does nature do?"]
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.press("s")  # a key that has nothing to do here
    assert browser.complaints == []


def test_every_figure_is_saved(browser: Browser, rich: Path) -> None:
    """As SVG that needs no style sheet, with its command and its numbers."""
    browser.open(rich, **STILL)
    browser.run(
        "window.saved = []; const make = URL.createObjectURL; "
        "URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved.push(text)); return make(blob); }"
    )
    figures = browser.run("return document.querySelectorAll('.evidence svg.chart').length")
    assert figures == 7  # learning, margins, sensitivities, coverage, values, nature twice
    for button in browser.driver.find_elements(By.CSS_SELECTOR, ".behind .row button"):
        browser.driver.execute_script("arguments[0].click()", button)
    browser.wait("return window.saved.length === document.querySelectorAll('.behind .row button').length")
    pictures = [text for text in browser.run("return window.saved") if text.startswith("<svg")]
    assert len(pictures) == figures + 1  # and the maps
    assert all("var(--" not in picture and 'stroke="' in picture for picture in pictures)
    commands = browser.texts(".behind code")
    for command in ("evaluate", "screen", "plot", "stress", "calibrate", "solve"):
        assert any(text.startswith(f"deeprok {command} ") for text in commands), command


def test_hostile_names_in_files_are_words(browser: Browser, rich: Path, tmp_path: Path) -> None:
    content = json.loads((rich.parent / "river.json").read_text())
    hostile = "<img src=x onerror='window.harmed = 1'></script><script>window.harmed = 1</script>"
    names = [f"{hostile}{i}" for i in range(len(content["states"]))]
    changed = content | {"name": hostile, "states": names, "actions": [hostile, "b"], "command": hostile}
    write_atomically(tmp_path / "solved.json", json.dumps(changed).encode())
    assert main(["report", str(tmp_path / "solved.json"), "--out", str(tmp_path / "report.html")]) == 0
    browser.open(tmp_path / "report.html", **STILL)
    assert browser.texts("section[aria-label='Solved exactly'] h3") == [f"{hostile}: the worst case"]
    assert browser.run("return [window.harmed ?? null, document.querySelectorAll('img, script').length]") == [None, 2]
    assert browser.complaints == []
