"""What a reader does with the page, in a real browser."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import axe_core_python
import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.by import By

from deeprok.cli.main import main
from deeprok.report import write_report
from deeprok.runs.settings import make_config
from tests.browser.chromium import Browser
from tests.finished_runs import GOOD, LEFT, write_run

STILL = {"prefers_reduced_motion": "reduce"}
#: Settings of a tiny network for the put, in place of those for Cart-Pole.
PUT: dict[str, Any] = {"input_scale": (), "hidden": (1,), "episodes": 3}
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()


def tried(browser: Browser) -> list[int]:
    """How many of 20 starts succeed, of each agent."""
    browser.run("stage.tryStarts()")
    browser.wait("return stage.panes.every((pane) => !pane.player || pane.tried !== null)")
    return browser.run("return stage.panes.map((pane) => pane.tried)")


def values(browser: Browser) -> dict[str, float]:
    return browser.run("return stage.settings.params")


def test_starts_by_itself_where_the_agents_differ_most(browser: Browser, pole: Path) -> None:
    browser.open(pole)
    assert "succeeds in" in browser.texts(".headline")[0]
    assert "falling in 0 %" in browser.texts(".headline")[0]
    browser.wait("return stage.panes.some((pane) => pane.tally[1] > 0)")
    assert browser.texts(".pane[data-state=failed] h3") == ["falling"]
    assert browser.complaints == []


def test_asks_no_network(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    assert browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    text = pole.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert len(text) < 1_000_000


def test_moves_only_when_asked_where_motion_is_reduced(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    assert browser.run("return [stage.playing, stage.steps()]") == [False, 0]
    browser.press("s")
    assert browser.run("return stage.steps()") == 1


def test_keys(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.press("sss")
    assert browser.run("return stage.steps()") == 3
    before = browser.run("return stage.panes[0].player.state")
    browser.press("p")
    assert browser.run("return stage.panes[0].player.state")[3] != before[3]
    browser.press("n")
    assert browser.run("return [stage.steps(), stage.episode]") == [0, 1]
    browser.press("0")
    assert values(browser)["cart_mass"] == 1.5
    browser.press("g")
    assert values(browser)["cart_mass"] != 1.5
    browser.press(" ")
    browser.wait("return stage.playing && stage.steps() > 3")
    browser.press(" ")
    assert browser.run("return stage.playing") is False
    browser.press("t")
    browser.wait("return stage.panes[0].tried !== null")
    assert browser.complaints == []


def test_every_agent_has_the_same_start(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    starts = browser.run(
        "return [0, 1, 2].map((i) => { stage.episode = i; stage.restart(); "
        "return stage.panes.map((pane) => pane.player.state); })"
    )
    assert all(first == second for first, second in starts)
    assert starts[0] != starts[1]


def test_sliders_change_what_happens(browser: Browser, pole: Path) -> None:
    """The steady policy fails where the push is a twentieth of what it learned with."""
    browser.open(pole, **STILL)
    browser.press("0")
    assert tried(browser) == [0, 20]
    browser.run("const details = document.querySelector('.sliders details'); details.open = true")
    slider = browser.driver.find_element(By.CSS_SELECTOR, "input[data-name=initial_range]")
    browser.run(
        "arguments[0].max = 0.3; arguments[0].value = 0.3; arguments[0].dispatchEvent(new Event('input'))", slider
    )
    assert values(browser)["initial_range"] == pytest.approx(0.3, abs=0.01)
    worse = tried(browser)
    assert worse[0] == 0
    assert worse[1] < 15
    slider = browser.driver.find_element(By.CSS_SELECTOR, "input[data-name=cart_mass]")
    before = values(browser)["cart_mass"]
    slider.send_keys("\ue014")  # arrow to the right
    assert values(browser)["cart_mass"] > before
    assert slider.get_attribute("aria-valuetext") in browser.texts(".sliders output")


def test_epsilon(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.press("0")
    assert tried(browser)[1] == 20
    slider = browser.driver.find_element(By.CSS_SELECTOR, "input[data-name=epsilon]")
    browser.run("arguments[0].value = 1; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert tried(browser) == [0, 0]


def test_a_click_on_a_cell_sets_the_sliders(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, ".pane:last-child .map rect")) == 49
    for i, j in ((0, 0), (6, 6), (1, 1), (3, 5)):
        browser.driver.find_element(By.CSS_SELECTOR, f".pane:last-child .map rect[data-cell='{i},{j}']").click()
        now = values(browser)
        assert now["pole_length"] == pytest.approx(0.2 + 0.2 * i)
        assert now["cart_mass"] == pytest.approx(0.1 + 1.15 * j)
        dot = browser.run(
            "const dot = document.querySelector('.pane:last-child .map circle');"
            "return ['cx', 'cy'].map((name) => dot.getAttribute(name))"
        )
        assert [float(x) for x in dot] == pytest.approx([4 + 192 / 7 * (i + 0.5), 4 + 140 / 7 * (6.5 - j)])


def test_arrow_keys_on_a_map(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.run("stage.move({ pole_length: 0.2, cart_mass: 0.1 })")
    browser.driver.find_element(By.CSS_SELECTOR, ".pane .map").send_keys("\ue014\ue014\ue013")
    assert values(browser)["pole_length"] == pytest.approx(0.6)
    assert values(browser)["cart_mass"] == pytest.approx(1.25)
    label = browser.driver.switch_to.active_element.get_attribute("aria-label")
    assert "pole length 0.6, cart mass 1.25: success" in label


def test_maps_are_the_stored_evaluations(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    for name in ("falling", "steady"):
        (file,) = (pole.parent / "runs" / name).glob("evaluation*.json")
        stored = json.loads(file.read_text())
        shown = browser.run("return stage.scene.agents.find((agent) => agent.name === arguments[0]).map", name)
        for ours, theirs in (("success", "success"), ("low", "success_low"), ("mean_return", "mean_return")):
            assert shown[ours] == stored[theirs]
        command = shown["command"].split()
        assert command[:2] == ["deeprok", "evaluate"]
        assert "20" in command


def test_a_map_claims_nothing_of_models_that_it_has_not(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.press("0")
    assert all(" in this cell (" in text for text in browser.texts(".here"))
    assert "with the others nominal" not in browser.texts(".map-figure figcaption")[0]
    browser.run("stage.move({ gravity: 20 })")
    assert "with the others nominal" in browser.texts(".map-figure figcaption")[0]
    browser.run("stage.move({ pole_length: 5 })")
    assert browser.texts(".here") == ["beyond the map"] * 2


def test_what_was_tried_is_forgotten_when_a_slider_moves(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    tried(browser)
    assert "of 20 starts succeeded" in browser.texts(".status")[0]
    browser.run("stage.move({ cart_mass: 1 })")
    assert browser.texts(".status") == [""]


def test_hover_tells_the_numbers(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.run(
        "document.querySelector('.pane .map rect').dispatchEvent(new PointerEvent('pointermove', "
        "{ clientX: 300, clientY: 300, bubbles: true }))"
    )
    assert "pole length 0.2, cart mass 0.1: success 0 % (0 % to" in browser.texts(".tip")[0]


def test_measures(browser: Browser, pole: Path) -> None:
    """Regret is 0 for the best agent in a cell, which is the steady one everywhere."""
    browser.open(pole, **STILL)
    good = browser.run("return stage.theme.good")
    browser.driver.execute_script("document.querySelector('input[value=regret]').click()")
    colours = browser.run(
        "return [...document.querySelectorAll('.pane:last-child .map rect')].map((cell) => cell.getAttribute('fill'))"
    )
    assert set(colours) == {f"rgb({' '.join(f'{x:.0f}' for x in good)})"}
    browser.driver.execute_script("document.querySelector('input[value=return]').click()")
    assert browser.texts(".scale")[0] != "0 %100 %"


def test_largest_gap(browser: Browser, tmp_path: Path) -> None:
    """Trained agents: where the maps show the largest gap the nominal one fails, and the robust one does not."""
    runs = tmp_path / "runs"
    # The nominal agent is tried near the nominal friction only, or its best weights may be those of a careful driver.
    for algorithm, box in (("ddqn", ["--box", "friction=0.75:0.85"]), ("rtd_dqn", [])):
        words = ["train", algorithm, "--env", "road", "--steps", "60000", "--out", str(runs / algorithm)]
        assert main([*words, *box]) == 0
    assert main(["report", str(runs), "--episodes", "20", "--out", str(tmp_path / "report.html")]) == 0
    browser.open(tmp_path / "report.html", **STILL)
    assert values(browser)["friction"] < 0.4
    nominal, robust = tried(browser)
    assert nominal <= 5
    assert robust >= 15
    browser.press("0")
    assert tried(browser)[0] >= 15
    assert browser.complaints == []


def test_saves_figures_and_numbers(browser: Browser, pole: Path) -> None:
    browser.open(pole, **STILL)
    browser.run(
        "window.saved = []; const make = URL.createObjectURL; "
        "URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved.push(text)); return make(blob); }"
    )
    for button in browser.driver.find_elements(By.CSS_SELECTOR, ".behind button"):
        browser.driver.execute_script("arguments[0].click()", button)
    browser.wait("return window.saved.length === document.querySelectorAll('.behind button').length")
    saved = browser.run("return window.saved")
    pictures = [text for text in saved if text.startswith("<svg")]
    assert len(pictures) == 2  # maps and curves
    assert any("pole length 0.2 – 1.4 m" in picture for picture in pictures)
    assert all('xmlns="http://www.w3.org/2000/svg"' in picture for picture in pictures)
    assert {*json.loads(next(text for text in saved if text.startswith("{")))} == {"falling", "steady"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_accessible_and_fits(browser: Browser, pole: Path, scheme: str, width: int) -> None:
    """axe-core finds nothing serious, and nothing is wider than the screen."""
    browser.open(pole, width, prefers_color_scheme=scheme, **STILL)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    browser.driver.execute_script(AXE)
    found = browser.driver.execute_async_script(
        "axe.run().then((found) => arguments[0](found.violations.map("
        "({ id, impact, nodes }) => [impact, id, nodes.map(({ html }) => html.slice(0, 120))])))"
    )
    assert [each for each in found if each[0] in ("serious", "critical")] == []


def test_narrow_screens_show_agents_side_by_side(browser: Browser, pole: Path) -> None:
    browser.open(pole, 390, 800, **STILL)
    places = browser.run("return stage.panes.map((pane) => pane.element.getBoundingClientRect().toJSON())")
    assert places[0]["top"] == places[1]["top"]
    assert places[1]["right"] <= 390
    sizes = browser.run(
        "return [...document.querySelectorAll('button, .pane .map rect')].filter((e) => e.checkVisibility())"
        ".map((e) => e.getBoundingClientRect()).map((box) => Math.min(box.width, box.height))"
    )
    assert min(sizes) >= 13


def test_hostile_names_are_words(browser: Browser, tmp_path: Path) -> None:
    names = [
        "<script>window.harmed = 1<",
        "<img src=x onerror='window.harmed = 1'>",
        "&lt;b&gt;\u2028",
        "'\"--><svg onload=x>",
    ]
    for i, name in enumerate(names):
        write_run(tmp_path / "runs" / name, best=(GOOD, LEFT)[i % 2])
    page = write_report(tmp_path / "runs", tmp_path / "report.html", episodes=2)
    browser.open(page, **STILL)
    assert browser.texts(".pane h3") == sorted(names)
    assert browser.run("return window.harmed") is None
    assert browser.run("return document.querySelectorAll('img, script').length") == 2
    assert browser.complaints == []


def test_draws_what_happens(browser: Browser, pole: Path) -> None:
    """Each canvas has more than one colour, and changes with the steps."""
    browser.open(pole, **STILL)

    def picture() -> bytes:
        return browser.driver.find_element(By.CSS_SELECTOR, ".pane canvas.picture").screenshot_as_png

    first = picture()
    with Image.open(io.BytesIO(first)) as image:
        colours = image.convert("RGB").getcolors(100_000)
        assert colours
        assert len(colours) > 5
    browser.press("s" * 8)
    assert picture() != first


def test_several_environments(browser: Browser, tmp_path: Path) -> None:
    """One that the browser does not have shows curves, and why nothing runs."""
    nothing = np.zeros(make_config("rtd_dqn", "tuned", env="market", **PUT).task().network.num_weights, np.float32)
    write_run(tmp_path / "runs" / "a" / "pole", best=GOOD)
    write_run(tmp_path / "runs" / "b" / "put", env="market", best=nothing, last=nothing, **PUT)
    browser.open(write_report(tmp_path / "runs", tmp_path / "report.html", play=False), **STILL)
    assert browser.texts("h1")[0].startswith("cartpole")
    browser.driver.execute_script("document.querySelectorAll('header.page input')[1].click()")
    assert browser.texts("h1")[0].startswith("market")
    assert browser.texts(".unseen") == ["this environment does not run in the browser"]
    assert browser.complaints == []
