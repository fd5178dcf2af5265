"""`deeprok solve`: solve a robust MDP exactly."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional, cast

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from deeprok.cli import solve_counts, streams
from deeprok.cli.options import check_output, option_names, parse_options, range_of
from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.tabular import COUNT_SETS, TABULAR_SETS, Solution, Sweep, read_csv, solve, sweep_radii, write_csv
from deeprok.tabular.known import RewardsBy
from deeprok.tabular.literature import Names
from deeprok.tabular.model import Support
from deeprok.tabular.moves import Moves, as_object, moves_of, states_with_room
from deeprok.tabular.problems import Instance, is_name, parse
from deeprok.tabular.setting import Objective, Rect, Setting
from deeprok.tabular.solvers import Method
from deeprok.tabular.validation import SplitBy
from deeprok.training.progress import work_bar

#: Of each radius where the robust policy leads, in the nominal model and in the worst one.
Nature = list[tuple[float | None, list[Moves]]]

_SHOWN = 20  # states printed at most
_FILE_DISCOUNT = 0.99

_SET_HELP = (
    f"Ambiguity set around each transition distribution: {', '.join(TABULAR_SETS)}; with --counts"
    f" {', '.join(COUNT_SETS)}."
)
_WITHOUT_LEVEL = [name for name, family in TABULAR_SETS.items() if not family.has_level]
_RADIUS_HELP = f"Level of the set, or LOW:HIGH:COUNT for a sweep; the sets {' and '.join(_WITHOUT_LEVEL)} have none."


# Of `Optional` tyro knows how to check a default; for `… | None` it would import typeguard, at every start.
@dataclass(frozen=True)
class Solve:
    """Solve a robust MDP exactly: the best policy for the worst model of an ambiguity set.

    For a range of radii, print and plot the price of robustness and the protection it gives. For a log of transitions
    (--counts), find sets that hold the true model with a chosen confidence, and a policy with a guaranteed value.
    """

    model: Annotated[
        Optional[str], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL", help_behavior_hint="(not with --counts)")
    ] = None
    """A CSV file, a problem that 'deeprok problems' lists, or a table of Gymnasium: NAME or NAME:parameter=value,…"""
    set: Annotated[str, tyro.conf.arg(metavar="SET", help=_SET_HELP)] = "l1"
    radius: Annotated[Optional[str], tyro.conf.arg(metavar="RADIUS", help=_RADIUS_HELP)] = None
    discount: Annotated[
        Optional[float],
        tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(default: the problem's own; 0.99 for a file)"),
    ] = None
    """Discount γ, above 0 and below 1; 1 only with a horizon."""
    rect: Rect = "sa"
    """Rectangularity: a set for each state and action (sa), or a radius shared by the actions of a state (s)."""
    support: Annotated[
        Optional[str],
        tyro.conf.arg(metavar="SUPPORT", help_behavior_hint="(default: nominal; all with --counts)"),
    ] = None
    """Where mass may move: to nominal successors, also to those listed with probability 0, or to all states. With
    --counts: all states, seen, or a CSV file of the possible successors."""
    objective: Objective = "robust"
    """The worst case, the best case, or the nominal model."""
    method: Annotated[
        Optional[Method],
        tyro.conf.arg(help_behavior_hint="(default: ppi; for some shared budgets vi)"),
    ] = None
    """Value iteration, partial policy iteration or modified policy iteration."""
    horizon: Annotated[Optional[int], tyro.conf.arg(metavar="N", help_behavior_hint="(default: infinite)")] = None
    """Number of decisions."""
    tol: float = 1e-8
    """Error bound to reach."""
    state: Annotated[int, tyro.conf.arg(metavar="ID")] = 0
    """State whose values a sweep reports."""
    json: bool = False
    """Print one JSON object instead of tables."""
    worst_model: Annotated[Optional[Path], tyro.conf.arg(metavar="FILE")] = None
    """CSV file for the worst-case model."""
    out: Annotated[Optional[Path], tyro.conf.arg(metavar="FILE")] = None
    """JSON file for the values and nature's worst model at each radius, which 'deeprok report' shows."""
    plot: Annotated[
        Optional[Path], tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: sweep-NAME.png; none with --json)")
    ] = None
    """PNG file for the plot of a sweep."""
    counts: Annotated[Optional[Path], tyro.conf.arg(metavar="FILE")] = None
    """CSV file with a log of transitions in place of MODEL: state, action, next_state, and reward, count, episode."""
    confidence: float = 0.95
    """With --counts: probability that all sets hold the true model."""
    rule: Annotated[Optional[str], tyro.conf.arg(metavar="RULE", help_behavior_hint="(default: the set's first)")] = (
        None
    )
    """With --counts: how radii follow from counts, such as weissman, if the number of samples was fixed in advance."""
    rewards: RewardsBy = "transition"
    """With --counts: what rewards depend on; those by state-action need not be known for unseen successors."""
    reward_low: Annotated[Optional[float], tyro.conf.arg(metavar="FLOAT")] = None
    """With --counts: the least that a reward can be, for transitions whose reward is not known."""
    reward_high: Annotated[Optional[float], tyro.conf.arg(metavar="FLOAT")] = None
    """With --counts: the most that a reward can be, for noisy rewards."""
    prior: float = 1.0
    """With --counts and the set bayes: parameter of the Dirichlet prior for each possible successor."""
    shape: Annotated[str, tyro.conf.arg(metavar="SHAPE", help=solve_counts.SHAPE_HELP)] = "l1"
    validate: bool = False
    """With --counts: choose the size of the sets by validation, without a guarantee."""
    factors: Annotated[
        Optional[str], tyro.conf.arg(metavar="LOW:HIGH:COUNT", help_behavior_hint="(default: from 0 to 1)")
    ] = None
    """With --validate: factors of the radii to try."""
    splits: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """With --validate: how often the log is split in halves."""
    split_by: Annotated[
        Optional[SplitBy], tyro.conf.arg(help_behavior_hint="(default: episodes if the log has them)")
    ] = None
    """With --validate: what is split."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """With --counts: of the draws from a posterior, and of the splits."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Solve, words, "solve")
    if options.counts is not None:
        solve_counts.run(options, options.counts)
        return
    solve_counts.refuse_without_counts(options)
    if options.model is None:
        raise DeeprokError("MODEL or --counts must be given; 'deeprok solve --help' tells more")
    radii = range_of("radius", options.radius)
    sweeping = isinstance(radii, np.ndarray)
    _check(options, options.model, sweeping)
    problem = _load(options.model)
    if not 0 <= options.state < problem.model.states:
        raise DeeprokError(f"state is {options.state}; there are the states 0 to {problem.model.states - 1}")
    if isinstance(radii, np.ndarray):
        nature: Nature = []
        swept = _sweep(problem, options, radii, nature)
        path = options.plot or (None if options.json else Path(f"sweep-{problem.name}.png"))
        if path:
            _draw(swept, problem, options, path)
        if options.out:
            _write(options.out, problem, options, words, _swept(swept, problem, options), nature)
        if options.json:
            print(json.dumps(_swept(swept, problem, options)))
        else:
            _print_sweep(swept, problem, options, streams.out)
            streams.out.print(f"plot: {path}", highlight=False, soft_wrap=True)
            _say_written(options)
        return
    setting = _setting(problem, options, radii)
    with work_bar(streams.err, 1.0) as done:
        found = solve(
            problem.model, **setting, tol=options.tol, method=options.method, advance=lambda work: done("solving", work)
        )
    if options.worst_model:
        write_csv(found.worst_model(), options.worst_model)
    if options.out:
        value = float(found.values.reshape(-1, problem.model.states)[0, options.state])
        described = _described(problem, options, radii) | {"state": options.state, "value": value}
        moved = moves_of(problem.model, found, _shown_states(problem, options, 1))
        _write(options.out, problem, options, words, described, [(radii, moved)])
    if options.json:
        print(json.dumps(_described(problem, options, radii) | _result(found)))
    else:
        _print_solution(found, problem, options, radii, streams.out)
        _say_written(options)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Solve)


# --- options -------------------------------------------------------------------------------------------


def _check(options: Solve, model: str, sweeping: bool) -> None:
    """Raises if options contradict each other, before anything is computed."""
    if sweeping and (options.objective == "nominal" or options.set in _WITHOUT_LEVEL):
        what = "objective is nominal" if options.objective == "nominal" else f"the set {options.set} has no radius"
        raise DeeprokError(f"radius is '{options.radius}', but {what}; there is nothing to sweep over")
    if options.worst_model and (sweeping or options.horizon):
        what = "--radius gives more than one" if sweeping else "with a horizon there is one for each decision"
        raise DeeprokError(f"--worst-model writes one model, but {what}")
    if options.plot and not sweeping:
        raise DeeprokError("--plot draws a sweep; give the radii as --radius LOW:HIGH:COUNT")
    if options.plot and options.plot.suffix.lower() != ".png":
        raise DeeprokError(f"--plot is {options.plot}; it must be a .png file")
    for name, path in (("--worst-model", options.worst_model), ("--plot", options.plot), ("--out", options.out)):
        check_output(name, path, model)


def _load(text: str) -> Instance:
    """The model from a file, or by its name."""
    if is_name(text):
        return parse(text)
    path = Path(text)
    if not os.path.exists(path) and not path.suffix and "/" not in text:
        return parse(text)  # raises the right error
    model = read_csv(path)
    return Instance(path.stem, model, Names(range(model.states), range(model.actions)), _FILE_DISCOUNT)


def _setting(problem: Instance, options: Solve, radius: float | None) -> Setting:
    return Setting(
        set=options.set,
        radius=radius,
        discount=problem.discount if options.discount is None else options.discount,
        rect=options.rect,
        support=cast(Support, options.support or "nominal"),
        objective=options.objective,
        horizon=options.horizon,
    )


def _described(problem: Instance, options: Solve, radius: Any) -> dict[str, Any]:
    """The options, for the JSON output."""
    return {"model": options.model, **_setting(problem, options, radius)}


def _result(found: Solution) -> dict[str, Any]:
    return {
        "values": found.values.tolist(),
        "policy": found.policy.tolist(),
        "residual": found.residual,
        "error_bound": found.error_bound,
        "iterations": found.iterations,
        "seconds": found.seconds,
    }


def _shown_states(problem: Instance, options: Solve, radii: int) -> list[int]:
    everywhere = (options.support or problem.model.support) == "all"
    return states_with_room(problem.model, options.state, radii, everywhere)


def _write(
    path: Path, problem: Instance, options: Solve, words: Sequence[str], described: dict[str, Any], nature: Nature
) -> None:
    """Writes what a page shows of the solutions."""
    content = {
        "command": " ".join(["deeprok solve", *map(shlex.quote, words)]),
        "name": problem.name,
        "states": list(map(str, problem.names.states)),
        "actions": list(map(str, problem.names.actions)),
        "nature": [{"radius": radius, "moves": as_object(moves)} for radius, moves in nature],
    }
    write_atomically(path, (json.dumps(described | content) + "\n").encode())


def _say_written(options: Solve) -> None:
    if options.out:
        streams.out.print(f"result: {options.out}", highlight=False, markup=False, soft_wrap=True)


# --- one radius ----------------------------------------------------------------------------------------


def _headline(problem: Instance, options: Solve, radius: str) -> str:
    model, setting = problem.model, _setting(problem, options, None)
    counts = f"{model.states:,} states, {model.actions} actions, {len(model.reward):,} transitions"
    nature = "nominal model"
    if options.objective != "nominal":
        rect = "" if options.rect == "sa" else ", shared by the actions of a state"
        reach = {"nominal": "", "listed": ", to any listed state", "all": ", to any state"}[
            setting["support"] or "nominal"
        ]
        nature = f"{options.objective}, {options.set}{radius}{rect}{reach}"
    stages = f" · {options.horizon} decisions" if options.horizon else ""
    return f"[bold]{problem.name}[/bold] · {counts} · {nature} · discount {setting['discount']:g}{stages}"


def _print_solution(found: Solution, problem: Instance, options: Solve, radius: float | None, out: Console) -> None:
    first = options.horizon is not None  # then the first axis is the stage
    values, policy = (found.values[0], found.policy[0]) if first else (found.values, found.policy)
    out.print(_headline(problem, options, "" if radius is None else f" {radius:g}"), highlight=False, soft_wrap=True)
    mixed = policy.ndim == 2
    table = Table("state", box=None, header_style="bold")
    table.add_column("value", justify="right")
    table.add_column("actions" if mixed else "action")
    shown = min(len(values), _SHOWN)
    for s in range(shown):
        table.add_row(str(problem.names.states[s]), f"{values[s]:.8g}", _action(policy[s], problem.names.actions))
    out.print(table, highlight=False)
    if shown < len(values):
        low, high = int(np.argmin(values)), int(np.argmax(values))
        out.print(
            f"… and {len(values) - shown:,} more; values from {values[low]:.8g} (state {low}) to {values[high]:.8g}"
            f" (state {high}), mean {values.mean():.8g}",
            highlight=False,
            soft_wrap=True,
        )
    if first:
        ending = f"exact to rounding · {found.iterations} sweeps"
    else:
        ending = (
            f"no value is farther than {found.error_bound:.1e} from the exact one"
            f" · residual {found.residual:.1e} · {found.iterations} sweeps"
        )
    out.print(f"{ending} · {found.seconds:.2f} s", highlight=False, soft_wrap=True)
    if options.worst_model:
        out.print(f"worst-case model: {options.worst_model}", highlight=False, soft_wrap=True)


def _action(chosen: np.ndarray, names: Sequence[object]) -> str:
    if not chosen.ndim:
        return str(names[int(chosen)])
    taken = [a for a in np.argsort(-chosen, kind="stable") if chosen[a] > 5e-4]
    return ", ".join(f"{names[a]} {chosen[a]:.3f}" for a in taken)


# --- a sweep -------------------------------------------------------------------------------------------


def _sweep(problem: Instance, options: Solve, radii: np.ndarray, nature: Nature) -> Sweep:
    setting = _setting(problem, options, None)
    states = _shown_states(problem, options, len(radii))

    def note(radius: float, found: Solution) -> None:
        nature.append((radius, moves_of(problem.model, found, states)))

    with work_bar(streams.err, 1.0) as done:
        return sweep_radii(
            problem.model,
            radii,
            options.state,
            options.tol,
            options.method,
            lambda count, work: done(f"{count} of {len(radii)} radii done", work),
            note if options.out else None,
            **setting,
        )


def _swept(swept: Sweep, problem: Instance, options: Solve) -> dict[str, Any]:
    """A sweep, for the JSON output."""
    fields = ("radius", "value", "nominal", "nominal_value", "unprotected", "price", "protection")
    found = {name: getattr(swept, name) for name in fields}
    lists = {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in found.items()}
    ending = {"error_bound": swept.error_bound, "iterations": swept.iterations, "seconds": swept.seconds}
    return _described(problem, options, None) | {"state": options.state} | lists | ending


def _print_sweep(swept: Sweep, problem: Instance, options: Solve, out: Console) -> None:
    out.print(_headline(problem, options, f" of {len(swept.radius)} radii"), highlight=False, soft_wrap=True)
    name = str(problem.names.states[options.state])
    out.print(
        f"values of state {options.state}" + (f" ({name})" if name != str(options.state) else ""), highlight=False
    )
    columns: list[tuple[str, np.ndarray | None]] = [
        ("radius", swept.radius),
        ("robust value" if options.objective == "robust" else "value", swept.value),
        ("nominal policy, worst case", swept.unprotected),
        ("protection", swept.protection),
        ("robust policy, nominal model", swept.nominal_value),
        ("price", swept.price),
    ]
    known = [(heading, column) for heading, column in columns if column is not None]
    table = Table(box=None, header_style="bold")
    for heading, _ in known:
        table.add_column(heading, justify="right")
    for i in range(len(swept.radius)):
        table.add_row(*(f"{column[i]:.6g}" for _, column in known))
    out.print(table, highlight=False)
    out.print(
        f"nominal value {swept.nominal:.8g} · errors at most {swept.error_bound:.1e} · {swept.iterations} sweeps"
        f" · {swept.seconds:.2f} s",
        highlight=False,
        soft_wrap=True,
    )


def _draw(swept: Sweep, problem: Instance, options: Solve, path: Path) -> None:
    from deeprok import plot as figures

    figure = figures.radius_sweep(
        swept.radius,
        swept.value,
        swept.nominal,
        swept.unprotected,
        swept.nominal_value,
        title=f"{problem.name}, state {options.state}",
        axis=f"radius ({options.set})",
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())
