"""`python -m studies` and `deeprok reproduce`: runs a study, in a checkout."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from deeprok.cli import streams
from deeprok.cli.options import COUNT, JOBS, PATH
from deeprok.core.errors import DeeprokError
from deeprok.runs.settings import Preset
from studies.kalman import study_filters
from studies.paper import reproduce
from studies.table1 import study_systems


@dataclass(frozen=True)
class Reproduce:
    """Train the paper's agents on the uncertain Cart-Pole with many seeds, and compare them with references.

    Prints a table and writes a page with figures, and results.json. What is already in the folder
    is not done again: an interrupted call goes on where it was, and one with more seeds adds to it.
    """

    seeds: Annotated[int, COUNT] = 5
    """Seeds of each agent, from 0 on."""
    study: Literal["paper", "kalman", "table1"] = "paper"
    """The paper's experiment; the Kalman family: structures, exploration, confidence, calibration; or the systems of
    the paper's Table 1 beside each other. The latter two take an hour or more."""
    preset: Preset = "tuned"
    """The paper's settings, or the best found."""
    full: bool = False
    """Both presets, ablations, tuning, ensembles and stable-baselines3 (needs 'deeprok[bench]'): hours, not minutes."""
    out: Annotated[Path, PATH] = Path("reproduce")
    """Folder for runs, page and figures."""
    resume: bool = False
    """Refuse to begin anew, should the folder not be there."""
    episodes: Annotated[int, COUNT] = 500
    """Test episodes in each cell of the grid."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = tyro.cli(Reproduce, args=words, prog="deeprok reproduce")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    begin: Callable[..., Any] = reproduce
    if (study := arguments.pop("study")) != "paper":
        if arguments.pop("full") or arguments.pop("preset") != "tuned":
            raise DeeprokError(f"study is {study}, which takes neither --full nor --preset paper")
        begin = {"kalman": study_filters, "table1": study_systems}[study]
    try:
        begin(processes=arguments.pop("jobs"), **arguments, console=streams.err, results=streams.out)
    except KeyboardInterrupt:
        streams.err.print("stopped; all is saved, the same command goes on", highlight=False)
        raise


if __name__ == "__main__":
    from deeprok.cli.main import main

    sys.exit(main(["reproduce", *sys.argv[1:]]))
