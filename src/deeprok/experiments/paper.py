"""The paper's experiment: three agents on a Cart-Pole whose physics is not known exactly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from deeprok import jobs, runs
from deeprok.checkpoint import write_atomically
from deeprok.config import make_config
from deeprok.errors import DeeprokError
from deeprok.evaluation import PAPER_GRID, Evaluation, evaluate
from deeprok.progress import fraction_bar, training_line
from deeprok.report import figures
from deeprok.trainer import progress_of

AGENTS = ("ddqn", "rtd_dqn", "deep_rok")
#: Figures (a) to (c): pole length at the nominal cart mass.
_LENGTHS = "pole_length=0.2:1.4:13"


def reproduce(
    seeds: int = 3,
    preset: str = "tuned",
    out: Path = Path("reproduce"),
    episodes: int = 500,
    processes: int | None = None,
    console: Console | None = None,
    results: Console | None = None,
) -> dict[str, Evaluation]:
    """Trains the paper's three agents, evaluates them on its grid, and draws its figures.

    Runs that are in the folder already are gone on with, not done again.

    Args:
      seeds: seeds of each agent, from 0 on.
      preset: `tuned` or `paper`.
      out: folder for runs, table and figures.
      episodes: test episodes in each cell.
      processes: training processes at once; by default one for each core.
      console: where progress goes.
      results: where the table goes.

    Returns:
      Algorithm -> its evaluation on the grid, with the last weights.
    """
    console = console or Console(stderr=True)
    results = results or Console()
    for name, value in (("seeds", seeds), ("episodes", episodes)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    out = Path(out)
    folders = {name: _prepare(out / preset / name, name, preset, seeds) for name in AGENTS}
    _train([folder for group in folders.values() for folder in group], processes, console)

    maps: dict[str, Evaluation] = {}
    lengths: dict[str, Evaluation] = {}
    best: dict[str, Evaluation] = {}
    for name in AGENTS:
        with fraction_bar(console, f"evaluating {name}") as advance:
            lengths[name] = evaluate(
                folders[name], _LENGTHS, episodes, keep="last", advance=lambda part: advance(part / 3)
            )
            best[name] = evaluate(
                folders[name], PAPER_GRID, episodes, keep="best", advance=lambda part: advance(part / 3)
            )
            # Last, so that its numbers are the ones that stay in each run's evaluation.json.
            maps[name] = evaluate(
                folders[name], PAPER_GRID, episodes, keep="last", advance=lambda part: advance(part / 3)
            )
    world = make_config(AGENTS[0], preset).make_world()
    figures.save(figures.return_curves(lengths, world), out / preset / "returns")
    figures.save(figures.success_maps(maps, world), out / preset / "success")
    summary = {name: maps[name].to_dict() for name in AGENTS}
    write_atomically(out / preset / "results.json", (json.dumps(summary) + "\n").encode())
    _print(maps, best, results, preset)
    results.print(f"figures: {out / preset / 'returns.png'}, {out / preset / 'success.png'}", highlight=False)
    return maps


def _prepare(folder: Path, name: str, preset: str, seeds: int) -> list[Path]:
    """Run folders for an agent's seeds, made where they are missing, checked where they are not."""
    folders = []
    for seed in range(seeds):
        config = make_config(name, preset, seed=seed)
        run = folder / f"seed-{seed}"
        if not (run / runs.CONFIG).exists():
            runs.create(run, config)
        elif runs.read_config(run) != config:
            raise DeeprokError(f"{run} was trained with other settings; choose another --out or remove it")
        folders.append(run)
    return folders


def _train(folders: list[Path], count: int | None, console: Console) -> None:
    configs = {folder: runs.read_config(folder) for folder in folders}
    done = {folder: progress_of(folder)[1] for folder in folders}
    if any(done[folder] < config.episodes for folder, config in configs.items()):
        with training_line(console, configs, done) as report:
            jobs.resume(folders, count, report)


def _print(maps: dict[str, Evaluation], best: dict[str, Evaluation], results: Console, preset: str) -> None:
    first = next(iter(maps.values()))
    seeds = f"{len(first.per_seed)} seed{'s' if len(first.per_seed) > 1 else ''}"
    title = f"preset {preset}, {seeds}, 7 × 7 grid, ε = {first.epsilon:g}, {first.episodes} episodes a cell"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("agent", "success %", "over seeds", "return", "nominal return", "best weights: success %"):
        table.add_column(column, justify="left" if column == "agent" else "right")
    for name, result in maps.items():
        successes = np.array([seed.overall.success for seed in result.per_seed]) * 100
        table.add_row(
            name,
            f"{100 * result.overall.success:.1f}",
            f"{successes.min():.1f} – {successes.max():.1f}",
            f"{result.overall.mean_return:.1f}",
            f"{result.nominal.mean_return:.1f}",
            f"{100 * best[name].overall.success:.1f}",
        )
    results.print(table)
