"""The systems of the paper's Table 1 on one world: every belief with either label, and policy gradients.

Like the paper's experiment it adds up: whatever is finished stays in the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from deeprok.evaluation import calibration
from deeprok.runs.settings import make_config
from deeprok.training.progress import work_bar
from studies import engine, figures, plan, table1_page
from studies.exam import CONDITIONS
from studies.results import Summary, summarise


@engine.in_its_folder
def study_systems(
    seeds: int = 10,
    out: Path = Path("reproduce"),
    resume: bool = False,
    episodes: int = 500,
    processes: int | None = None,
    console: Console | None = None,
    results: Console | None = None,
) -> dict[str, Any]:
    """Trains and examines the systems that the paper compares with.

    Args:
      seeds: seeds of each row, at most 10.
      out: folder for runs, results and figures; what it already holds is not done again.
      resume: refuse to begin anew: `out` must be there.
      episodes: test episodes in each cell; most questions take a fifth of them.
      processes: training processes at once; by default one for each core.
      console: where progress goes.
      results: where the table goes.

    Returns:
      What `table1.json` holds.
    """
    console, results = console or Console(stderr=True), results or Console()
    every = [plan.beliefs(seeds, episodes), plan.policies(seeds, episodes), plan.belief_tuning(episodes)]
    prepared = {study.name: engine.prepare(out, study) for study in every}
    total = sum(engine.work(run) for its in prepared.values() for run in its) + 3 * engine.REFERENCE
    with work_bar(console, total) as done:
        ceiling = engine.references(out, every[0].exam, done)["lqr"]
        tables: dict[str, dict[str, Summary]] = {}
        for study in every:
            engine.train(study.name, prepared[study.name], processes, done, console)
            engine.examine(study.name, prepared[study.name], processes, done)
            tables[study.name] = engine.table(study, prepared[study.name], ceiling)
        found: dict[str, Any] = {
            "format": 1,
            "test_episodes": every[0].exam.grid,
            "grid": engine.paper_grid(),
            "conditions": {name: condition.what for name, condition in CONDITIONS.items()},
            "ceiling": summarise({0: ceiling}, ceiling, ""),
            "tables": tables,
            "calibration": {
                nominal: calibration.calibrate(out / "beliefs" / nominal).to_dict()
                for nominal, _ in plan.PAIRS.values()
                if make_config(nominal).has_posterior
            },
        }
    engine.write_report(out, "table1", found, figures.of_systems(found), table1_page.table1_page(found))
    engine.print_report(out, "table1", table1_page.short_tables(found), results)
    return found
