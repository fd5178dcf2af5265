"""`deeprok report`: one page on which anyone can see where policies break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.evaluate import note_unfinished
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.report.report import check, write_report
from deeprok.report.scenes import find_agents
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar

_RUNS = tyro.conf.arg(metavar="RUN|DIR|FILE [RUN|DIR|FILE ...]", help_behavior_hint="(required)")
_EPISODES = tyro.conf.arg(metavar="N", help_behavior_hint="(default: those of the newest that is stored, else 100)")


@dataclass(frozen=True)
class Report:
    """Write a page on which anyone can see where policies break: one file, for any browser, without network.

    Agents of one environment run side by side, with sliders for its parameters, above maps, learning curves and
    results.

    deeprok report runs/rok

    deeprok report runs/ddqn runs/rtd_dqn --out road.html

    deeprok report runs

    deeprok report runs/ddqn runs/rtd_dqn screening.json solved.json
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders, folders of seeds, of which the one that did best on held-out models acts, or a folder of those; and
    files of 'deeprok solve --out', which are shown, and of 'deeprok screen --out', which maps are compared with."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("report.html")
    """HTML file."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    episodes: Annotated[int | None, _EPISODES] = None
    """Episodes in each cell of the maps; what all agents have stored is shown, or else played and stored."""
    maps: bool = True
    """Play maps that are not stored; --no-maps leaves them out."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Report, words, "report")
    if not options.runs:
        raise DeeprokError("RUN or DIR must be given; 'deeprok report --help' tells more")
    check(options.out, options.keep, options.episodes)
    folders = [path for path in options.runs if not path.is_file()]
    found = find_agents(folders) if folders else []
    with fraction_bar(streams.err, "the page") as advance:
        write_report(
            options.runs,
            options.out,
            keep=options.keep,
            episodes=options.episodes,
            play=options.maps,
            advance=advance,
        )
    for folder in found:
        note_unfinished(folder)
    size = options.out.stat().st_size / 1e6
    agents = f"{len(found)} agent{'' if len(found) == 1 else 's'}"
    streams.out.print(
        f"page: {options.out}, {agents}, {size:.1f} MB; open it in a browser",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def options() -> set[str]:
    """The names of its options."""
    return option_names(Report) | {"--no-maps"}
