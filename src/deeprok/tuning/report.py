"""A tuning as a user reads it: in the terminal, and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deeprok.core.files import write_atomically
from deeprok.tuning.record import TrialRecord
from deeprok.tuning.result import FIGURE, REPORT, SHOWN, Tuning, said, score_of
from deeprok.tuning.task import value_text

_MOST_ROWS = 10


def print_tuning(found: Tuning, out: Console) -> None:
    """Prints what was tried, which settings matter, the winner, and its score on fresh seeds beside the presets'."""
    metric = found.task.options.metric
    _say(out, _what_was_tried(found))
    names = list(found.task.space)
    best = _best(found)
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for heading in ("setting", "preset", *(f"trial {trial.number}" for trial in best), "importance"):
        table.add_column(heading, justify="left" if heading == "setting" else "right", overflow="fold")
    present, importance = found.task.base.flat(), found.importances
    for name in names:
        share = f"{100 * importance[name]:.0f} %" if importance and name in importance else "–"
        values = [value_text(trial.settings[name]) for trial in best]
        table.add_row(name, value_text(present[name]), *values, share)
    table.add_row("score", "", *(_score(trial, metric) for trial in best), "", style="bold")
    out.print(table)
    for sentence in _problems(found):
        _say(out, sentence)
    table = Table("on fresh seeds", f"{SHOWN[metric][0]} (95 %)", "seeds", "steps", box=None, header_style="bold")
    for name, rerun in _tested(found):
        table.add_row(Text(name), said(score_of(rerun), metric), str(len(rerun.seeds)), f"{rerun.steps:,}")
    out.print(table, highlight=False)
    for sentence in _conclusions(found):
        _say(out, sentence)


def write_report(found: Tuning) -> Path:
    """Writes the page, with all trials."""
    metric, task = found.task.options.metric, found.task
    names = list(task.space)
    lines = [f"# {task.base.algorithm} on {task.base.env}", "", _what_was_tried(found), ""]
    lines += [f"![Scores of the trials, and the importance of each setting]({FIGURE})", ""]
    lines += ["## On fresh seeds", "", f"| | {SHOWN[metric][0]} (95 %) | seeds | steps |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {said(score_of(rerun), metric)} | {len(rerun.seeds)} | {rerun.steps:,} |"
        for name, rerun in _tested(found)
    ]
    lines += ["", *(f"- {sentence}" for sentence in (*_conclusions(found), *_problems(found))), ""]
    lines += ["## All trials", "", "| trial | " + " | ".join(names) + " | rung | score | |"]
    lines += ["|---:|" + "---:|" * len(names) + "---:|---:|---|"]
    for trial in found.record.trials:
        values = " | ".join(value_text(trial.settings[name]) for name in names)
        lines.append(f"| {trial.number} | {values} | {trial.rank[0]} | {_score(trial, metric)} | {trial.state} |")
    path = found.out / REPORT
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def _what_was_tried(found: Tuning) -> str:
    task, record, options = found.task, found.record, found.task.options
    box = task.base.make_box(task.base.make_env())
    models = f"{options.held_out} models drawn from the box" if box else "the nominal model"
    rungs = ", ".join(
        f"{100 * rung.fraction:.3g} % with {rung.seeds} {'seed' if rung.seeds == 1 else 'seeds'}" for rung in task.rungs
    )
    count = len(record.trials)
    finished = sum(trial.state == "finished" for trial in record.trials)
    return (
        f"{task.base.algorithm} on {task.base.env}: {count} {'trial' if count == 1 else 'trials'} in "
        f"{record.seconds / 60:.1f} minutes, {finished} of them with all of their budget (rungs: {rungs}); score: "
        f"{SHOWN[options.metric][0]}, on {models}, {options.episodes} episodes each, ε {options.epsilon:g}"
    )


def _conclusions(found: Tuning) -> list[str]:
    """What the fresh seeds say."""
    metric = found.task.options.metric
    sentences = [one.sentence for one in found.comparisons]
    before = found.score_while_tuning
    if before is not None:
        scale = SHOWN[metric][1]
        sentences.append(
            f"while tuning the winner scored {scale * before:.3g} with few seeds, on the models of the search; the "
            "best of many trials is lucky too, so that the score on fresh seeds is the one to believe"
        )
    return sentences


def _problems(found: Tuning) -> list[str]:
    failed = [trial for trial in found.record.trials if trial.state == "failed"]
    if not failed:
        return []
    many = f"{len(failed)} trials" if len(failed) > 1 else "1 trial"
    return [f"{many} failed, and count as the worst; trial {failed[0].number}: {failed[0].problem}"]


def _tested(found: Tuning) -> list[tuple[str, Any]]:
    winner = found.record.winner
    rows = [(f"preset {preset.name}", preset) for preset in found.record.presets]
    return [(f"winner, {winner.name}", winner), *rows] if winner else rows


def _best(found: Tuning) -> list[TrialRecord]:
    """The winner, and the next best trials that fit into a terminal."""
    ranked = sorted((trial for trial in found.record.trials if trial.rank[0]), key=lambda trial: trial.rank)[::-1]
    chosen = found.record.winner.name if found.record.winner else ""
    return sorted(ranked[:3], key=lambda trial: f"trial {trial.number}" != chosen)


def _score(trial: TrialRecord, metric: Any) -> str:
    return f"{SHOWN[metric][1] * trial.rank[1]:.3g}" if trial.rank[0] else "failed"


def _say(out: Console, sentence: str) -> None:
    out.print(sentence, highlight=False, markup=False, soft_wrap=True)
