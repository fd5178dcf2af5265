"""A stress test as a user reads it in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from deeprok.evaluation.stress.margin import Margin
from deeprok.evaluation.stress.result import Stress, StressedRun

_HOLDS = "–"  # success holds to the end of the range


def print_stress(found: Stress, out: Console) -> None:
    """Prints where each run breaks, its margins and sensitivities and, of several, which is safer."""
    count = len(found.space.dimensions)
    _say(
        out,
        f"[bold]{found.env}[/bold] · {found.budget} models in {count} parameter{'s' if count > 1 else ''}, "
        f"{found.episodes} episodes each · greedy",
    )
    for run in found.runs:
        _print_run(found, run, out)
    if len(found.runs) > 1:
        _print_side_by_side(found, out)
    _say(out, f"\n{found.verdict.sentence}")


def _say(out: Console, sentence: str) -> None:
    out.print(sentence, highlight=False, soft_wrap=True)


def _print_run(found: Stress, run: StressedRun, out: Console) -> None:
    _say(out, f"\n[bold]{run.folder}[/bold] · {run.algorithm} · {run.keep} weights")
    for name, model in (("nominal", run.nominal), ("worst found", run.worst)):
        _say(out, f"{name:<12} success {model.success}, return {model.mean_return:.4g}")
    _say(out, f"{'fails on':<12} {run.failing} of the models: success below {100 * found.threshold:g} %")
    ranges = {each.name: each for each in found.space.dimensions}
    table = _table("parameter", "nominal", "works\nfrom", "works\nto", "worst\nfound", "box", "searched")
    for name in run.sensitivity:
        ends = (_HOLDS if end is None else f"{end:.3g}" for end in run.margin[name])
        each, nominal, worst = ranges[name], run.nominal.parameters[name], run.worst.parameters[name]
        table.add_row(name, f"{nominal:.3g}", *ends, f"{worst:.3g}", _span(*each.box), _span(each.low, each.high))
    out.print(table, highlight=False)
    _say(out, f"works from, to: the other parameters nominal; {_HOLDS} where success holds to the end")
    table = _table("Sobol indices", "total (95 %)", "first order (95 %)")
    for name, one in run.sensitivity.items():
        total, first = _span(one.low, one.high, ".2f"), _span(one.first_low, one.first_high, ".2f")
        table.add_row(name, f"{one.total:.2f} ({total})", f"{one.first:.2f} ({first})")
    out.print(table, highlight=False)
    if run.sensitivity_of != "success":
        _say(out, "Sobol indices are of the mean return: success is the same on all models that fill the space evenly")
    if beyond := [name for name in run.sensitivity if not _within(run.worst.parameters[name], *ranges[name].box)]:
        _say(out, f"the worst model lies beyond the box in {', '.join(beyond)}")
    if run.direction.fraction == 0:
        _say(out, "the policy fails at the nominal model already")
    elif run.direction.fraction is not None:
        _say(out, f"on the way from nominal to worst, success holds for {100 * run.direction.fraction:.0f} % of it")


def _table(*headings: str) -> Table:
    """A table whose first column is of names and whose others are of numbers."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    return table


def _within(value: float, low: float, high: float) -> bool:
    return low <= value <= high


def _span(low: float, high: float, form: str = ".3g") -> str:
    return f"{low:{form}} – {high:{form}}"


def _print_side_by_side(found: Stress, out: Console) -> None:
    """Where each run works and how it does at its worst, a column for each."""
    table = _table("works from, to", *found.labels)
    for each in found.space.dimensions:
        table.add_row(each.name, *(_works(run.margin[each.name]) for run in found.runs))
    table.add_row("worst success", *(str(run.worst.success) for run in found.runs))
    table.add_row("fails on", *(str(run.failing) for run in found.runs))
    out.print()
    out.print(table, highlight=False)


def _works(margin: Margin) -> str:
    low, high = (_HOLDS if end is None else f"{end:.3g}" for end in margin)
    return f"{low} to {high}"
