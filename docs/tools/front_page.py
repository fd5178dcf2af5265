"""The live agents on the documentation's first page, `docs/live.html`.

    python docs/tools/front_page.py        # puts the present modules around the data that the page has
    python docs/tools/front_page.py OUT    # trains what is missing in OUT, and writes the page anew (half an hour)

The agents are the first three seeds of the study `defaults`, where they move in a browser.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from deeprok.core.files import write_atomically  # noqa: E402
from deeprok.report import write_report  # noqa: E402
from deeprok.report.page import data_of, make_page  # noqa: E402
from deeprok.training.progress import work_bar  # noqa: E402
from studies import defaults  # noqa: E402
from studies.engine import Options  # noqa: E402

PAGE = ROOT / "docs" / "live.html"
_SEEDS = 3
_EPISODES = 100  # in each cell of a map


def rebuilt(page: str) -> str:
    """A page with the present modules and style around its own data."""
    return make_page(data_of(page))


def train(out: Path) -> None:
    """Trains and examines what is missing, and writes the page."""
    page = PAGE.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)  # the page says where its runs are
    options = Options(seeds=_SEEDS, out=Path())
    work, folders = defaults.work(options, defaults.LIVE), defaults.live_folders(options)
    maps = 0.1 * work
    with work_bar(Console(stderr=True), work + maps) as done:
        defaults.measure(options, Path("defaults.json"), done, defaults.LIVE)
        own = Path(page.name)
        write_report(folders, own, keep="last", episodes=_EPISODES, advance=lambda part: done("maps", maps * part))
    write_atomically(page, own.read_bytes())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        write_atomically(PAGE, rebuilt(PAGE.read_text("utf-8")).encode())
