"""`python -m studies` and `deeprok reproduce`: runs a study, in a checkout.

`python -m studies list` names the studies. `python -m studies pages` writes the pages of docs/ and their figures again,
from the numbers stored beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from deeprok.cli import streams
from studies import (
    actor_critics,
    calibration,
    critic,
    deep_sea,
    defaults,
    filters,
    kalman,
    logs,
    paper,
    robustness,
    screening,
    simulators,
    table1,
)
from studies.engine import Options, Study, numbers_file, run_study, write_page

STUDIES: dict[str, Study] = {
    "paper": paper.STUDY,
    "kalman": kalman.STUDY,
    "table1": table1.STUDY,
    "environments": screening.STUDY,
    "defaults": defaults.STUDY,
    "robustness": robustness.STUDY,
    "logs": logs.STUDY,
    "simulators": simulators.STUDY,
    "actor_critics": actor_critics.STUDY,
    "critic": critic.STUDY,
    "deep_sea": deep_sea.STUDY,
    "filters": filters.STUDY,
    "calibration": calibration.STUDY,
}
DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Reproduce(Options):
    """Train the paper's agents on the uncertain Cart-Pole with many seeds, and compare them with references.

    Prints a table and writes a page with figures, and results.json. What is already in the folder
    is not done again: an interrupted call goes on where it was, and one with more seeds adds to it.
    """

    study: Literal[
        "paper",
        "kalman",
        "table1",
        "environments",
        "defaults",
        "robustness",
        "logs",
        "simulators",
        "actor_critics",
        "critic",
        "deep_sea",
        "filters",
        "calibration",
    ] = "paper"
    """The paper's experiment; the Kalman agents: structures, exploration, robustness level, calibration; the systems of
    the paper's Table 1 beside each other; which environments can tell robust agents from others, where nothing is
    trained; the preset default on every environment; where the worst case beats domain randomisation; what a log of the
    true system is worth; the agents in Gymnasium's and MuJoCo's simulators; TD3 against TD3 and SAC of
    stable-baselines3; critics of policy gradients; deep exploration; the filter against Adam; or intervals for Q.
    Most take an hour or more."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = tyro.cli(Reproduce, args=words, prog="deeprok reproduce")
    try:
        run_study(STUDIES[options.study], options, streams.err, streams.out)
    except KeyboardInterrupt:
        streams.err.print("stopped; all is saved, the same command goes on", highlight=False)
        raise


def listed() -> str:
    """The studies with a line each."""
    return "\n".join(f"  {name:<13}  {study.about}" for name, study in STUDIES.items())


if __name__ == "__main__":
    if sys.argv[1:] == ["list"]:
        print(listed())
        sys.exit()
    if sys.argv[1:] == ["pages"]:
        for study in STUDIES.values():
            if numbers_file(study, DOCS).exists():  # one that is not measured yet has no page
                write_page(study, DOCS)
                print(DOCS / f"{study.name}.md")
        sys.exit()
    from deeprok.cli.main import main

    sys.exit(main(["reproduce", *sys.argv[1:]]))
