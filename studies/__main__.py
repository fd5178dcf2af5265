"""`python -m studies` and `deeprok reproduce`: runs a study, in a checkout.

`python -m studies list` names the studies. `python -m studies pages` writes the pages of docs/ and their figures again,
from the numbers stored beside them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deeprok.cli import streams
from deeprok.cli.options import parse_options
from studies import (
    actor_critics,
    calibration,
    claims_page,
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
    is not done again: an interrupted call continues where it stopped, and one with more seeds adds to it.
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
    """What is measured: one of the studies above. Most take an hour or more."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    description = f"{inspect.getdoc(Reproduce)}\n\nStudies:\n\n{listed()}"
    options = parse_options(Reproduce, words, "reproduce", description=description)
    try:
        run_study(STUDIES[options.study], options, streams.err, streams.out)
    except KeyboardInterrupt:
        streams.err.print("stopped; all is saved, the same command continues", highlight=False)
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
        print(claims_page.write(DOCS))
        sys.exit()
    from deeprok.cli.main import main

    sys.exit(main(["reproduce", *sys.argv[1:]]))
