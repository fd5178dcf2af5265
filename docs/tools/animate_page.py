"""The picture that opens the README, `docs/report/live.gif`: the page of live agents while a slider moves.

    python docs/tools/animate_page.py

It needs what `make test-page` needs. Between two frames the page makes a step, so that a slow machine draws the same.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from tests.browser.chromium import Browser, start  # noqa: E402

PAGE, PICTURE = ROOT / "docs" / "live.html", ROOT / "docs" / "report" / "live.gif"
#: Of the window, and of the picture.
_SIZE, _WIDTH = (1340, 560), 920
#: Milliseconds of a frame and of the last one, and colours of the picture.
_FRAME, _LAST, _COLOURS = 90, 2000, 96

_SLIPPERY = 0.3
_STEPS = "for (let i = 0; i < 2 && !stage.over(); i++) stage.single();"
_SLIDE = """
const input = document.querySelector(`input[data-name="${arguments[0]}"]`);
input.value = arguments[1];
input.dispatchEvent(new Event("input"));
"""


def frames(browser: Browser) -> Iterator[Image.Image]:
    """On the road all agents drive at the nominal friction; then it becomes slippery, and they start anew."""
    browser.open(PAGE, *_SIZE, prefers_color_scheme="light", prefers_reduced_motion="reduce")
    browser.wait("return stage && stage.live")
    browser.run("document.documentElement.style.scrollbarWidth = 'none'; stage.move(stage.nominal()); stage.restart()")
    browser.run("document.querySelector('.columns').scrollIntoView(); window.scrollBy(0, -12)")
    for _ in range(24):
        browser.run(_STEPS)
        yield picture(browser)
    nominal = browser.run("return stage.nominal()")["friction"]
    for i in range(1, 11):
        browser.run(_SLIDE, "friction", nominal + (_SLIPPERY - nominal) * i / 10)
        yield picture(browser)
    browser.run("stage.next()")
    while not browser.run("return stage.over()"):
        browser.run(_STEPS)
        yield picture(browser)


def picture(browser: Browser) -> Image.Image:
    """What the window shows."""
    shown = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    return shown.resize((_WIDTH, round(shown.height * _WIDTH / shown.width)), Image.Resampling.LANCZOS)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        browser = start(Path(folder))
        try:
            taken = list(frames(browser))
        finally:
            browser.driver.quit()
    palette = taken[-1].quantize(_COLOURS)  # the same for all frames, so that what stands still is left out
    first, *others = [frame.quantize(_COLOURS, palette=palette, dither=Image.Dither.NONE) for frame in taken]
    durations = [_FRAME] * len(others) + [_LAST]
    first.save(PICTURE, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    main()
