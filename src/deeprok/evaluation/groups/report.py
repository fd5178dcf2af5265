"""A comparison of groups as a user reads it in the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deeprok.evaluation.comparison.report import number_table, said, say
from deeprok.evaluation.groups.figure import score_name
from deeprok.evaluation.groups.result import Group, GroupComparison, text_of

_MOST_ROWS = 40


def print_groups(found: GroupComparison, out: Console) -> None:
    """Prints what was played, how good each group is, and what its training took."""
    cells = {env: math.prod(len(axis) for axis in grid.values()) for env, grid in found.grids.items()}
    where = " · ".join(f"[bold]{escape(env)}[/bold] {count} cells" for env, count in cells.items())
    say(out, f"{where} · {found.episodes} episodes each · ε {found.epsilon:g}")
    stored = len(found.runs) - found.played
    say(out, f"{len(found.runs)} runs: {stored} from stored evaluations, {found.played} played now")
    for env, (low, high) in found.scales.items():
        say(out, f"normalised return on {escape(env)}: 0 is {low:.4g}, 1 is {high:.4g}")
    scale = 100 if found.measure == "success" else 1
    groups = found.groups[:_MOST_ROWS]
    table = _settings_table(found, "runs", "IQM (95 %)", "mean (95 %)", "worst\nseed", "worst\ncell")
    for number, group in enumerate(groups, 1):
        ends = (f"{scale * value:{_form(scale, value)}}" for value in (group.worst.score, group.worst_cell))
        table.add_row(
            *_names(number, group), str(len(group.runs)), said(group.iqm, scale), said(group.mean, scale), *ends
        )
    out.print(table, highlight=False)
    table = number_table("", "P(better)", "steps", "seconds", "processor\nseconds")
    for number, group in enumerate(groups, 1):
        table.add_row(
            str(number),
            said(group.improvement, form=".2f") if group.improvement else "–",
            f"{group.steps:,.0f}",
            f"{group.seconds:,.1f}",
            "–" if group.processor_seconds is None else f"{group.processor_seconds:,.1f}",
        )
    out.print(table, highlight=False)
    if len(found.groups) > _MOST_ROWS:
        say(out, f"and {len(found.groups) - _MOST_ROWS} more groups; --json and --table have all")
    say(out, f"scores: {score_name(found)}; intervals are of a bootstrap over seeds, tasks are the {found.tasks}")
    if any(group.improvement for group in groups):
        say(out, f"P(better): that a seed is better on a task than one of {escape(found.against)}")
    if any(group.iqm.interval is None for group in groups):
        say(out, "a group with a single seed has no interval")
    for remark in found.remarks:
        say(out, escape(remark))


def _form(scale: float, value: float) -> str:
    return ".1f" if scale != 1 else ".0f" if abs(value) >= 1000 else ".3g"


def _settings_table(found: GroupComparison, *headings: str) -> Table:
    """A table with a number and the settings of each group, and columns of numbers."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("", justify="right", no_wrap=True)
    for name in found.by or ("algorithm",):
        table.add_column(name.replace("_", "\n"), overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=False)
    return table


def _names(number: int, group: Group) -> list[str]:
    values = [escape(text_of(value)) for value in group.settings.values()] or [escape(group.label)]
    return [str(number), *values]
