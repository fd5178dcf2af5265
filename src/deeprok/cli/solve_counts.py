"""`deeprok solve --counts`: a policy with a guaranteed value from a log of transitions."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import check_output, range_of
from deeprok.core.errors import DeeprokError
from deeprok.tabular import (
    CountedModel,
    Counts,
    Guarantee,
    Validation,
    from_counts,
    read_counts,
    read_support,
    solve_best,
    solve_counts,
    validate_counts,
    write_csv,
)
from deeprok.tabular.confidence import CountSetting
from deeprok.tabular.credible import DISTANCES
from deeprok.tabular.validation import FACTORS
from deeprok.training.progress import work_bar

if TYPE_CHECKING:
    from deeprok.cli.solve import Solve

_SHOWN = 20  # states printed at most
_NAMED = 3  # states and actions named at most
_DISCOUNT = 0.99
_BEST = "best"

SHAPE_HELP = (
    f"With --counts and the set bayes: kind of ball, {', '.join(DISTANCES)}; {_BEST} tries all and takes the one with"
    " the best guarantee."
)

#: Options that are for a log only.
_OWN = (
    *("confidence", "rule", "rewards", "reward_low", "reward_high", "prior", "shape", "validate"),
    *("factors", "splits", "split_by", "seed"),
)
#: Options that a log has no use for, and why.
_FOREIGN = {
    "model": "the log takes the place of MODEL",
    "radius": "radii come from --confidence, or from --validate",
    "rect": "each state and action has its own set",
    "objective": "a guarantee is about the worst case",
    "state": "all states are printed",
    "plot": "there is no sweep to draw",
    "out": "it is for the radii of a model; --json has all that is known of a log",
}


def refuse_without_counts(options: Solve) -> None:
    """Raises if an option is given that is for a log, but no log is."""
    for name in _given(options, _OWN):
        raise DeeprokError(f"{_option(name)} is given, but --counts is not; it is for a log of transitions")


def run(options: Solve, path: Path) -> None:
    """Solves a log.

    Args:
      options: those of the command.
      path: the log.
    """
    _check(options, path)
    counts = read_counts(path)
    setting = _setting(options, counts)
    discount = _DISCOUNT if options.discount is None else options.discount
    with work_bar(streams.err, 1.0) as done:
        validation = _validate(options, counts, setting, discount, done) if options.validate else None
        rest = 1.0 if validation is None else 0.1
        advance = functools.partial(_advance, done, rest)
        time = (discount, options.horizon, options.tol, options.method, advance)
        if options.shape == _BEST:
            each: list[CountSetting] = [{**setting, "shape": shape} for shape in DISTANCES]
            found = solve_best([from_counts(counts, **shaped) for shaped in each], *time)
        else:
            model = from_counts(counts, **setting)
            found = solve_counts(model if validation is None else model.scaled(validation.chosen), *time)
    if options.worst_model:
        write_csv(found.worst_model(), options.worst_model)
    if options.json:
        print(json.dumps(_described(options, setting, discount) | _result(found) | _validated(options, validation)))
        return
    _print_headline(found.model, options, discount)
    if validation is not None:
        _print_validation(validation, options)
    _print_values(found, options)
    _print_meaning(found, options, validation)
    if options.worst_model:
        _say(f"worst-case model: {options.worst_model}")


# --- options -------------------------------------------------------------------------------------------


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(options: Solve, names: tuple[str, ...]) -> list[str]:
    """Those of the options that do not have their default."""
    default = {field.name: field.default for field in dataclasses.fields(options)}
    return [name for name in names if getattr(options, name) != default[name]]


def _check(options: Solve, path: Path) -> None:
    """Raises if options contradict each other, before anything is computed."""
    for name in _given(options, tuple(_FOREIGN)):
        what = "MODEL" if name == "model" else _option(name)
        raise DeeprokError(f"{what} is given with --counts; {_FOREIGN[name]}")
    for name in _given(options, ("prior", "shape")):
        if options.set != "bayes":
            raise DeeprokError(f"{_option(name)} is given, but the set is {options.set}; it is for the set bayes")
    for name in _given(options, ("factors", "splits", "split_by")):
        if not options.validate:
            raise DeeprokError(f"{_option(name)} is given, but --validate is not")
    if options.validate and options.shape == _BEST:
        raise DeeprokError(f"--shape is {_BEST}, which goes by the guarantee; --validate has none, so give one shape")
    if options.worst_model and options.horizon:
        raise DeeprokError("--worst-model writes one model, but with a horizon there is one for each decision")
    if options.seed < 0:
        raise DeeprokError(f"seed is {options.seed}; it must be at least 0")
    sources = [path] if options.support is None else [path, options.support]
    check_output("--worst-model", options.worst_model, *sources)


def _setting(options: Solve, counts: Counts) -> CountSetting:
    support: Any = options.support or "all"
    if support not in ("all", "seen"):
        # A word without an ending that is no file is a mistyped word.
        if not os.path.exists(support) and not Path(support).suffix:
            raise DeeprokError(f"--support is '{support}'; with --counts it must be all, seen or a CSV file")
        support = read_support(support, counts)
    return {
        "confidence": options.confidence,
        "set": options.set,
        "rule": options.rule,
        "support": support,
        "rewards": options.rewards,
        "reward_low": options.reward_low,
        "reward_high": options.reward_high,
        "prior": options.prior,
        "shape": "l1" if options.shape == _BEST else options.shape,
        "seed": options.seed,
    }


def _advance(done: Any, share: float, work: float) -> None:
    done("solving", share * work)


def _validate(options: Solve, counts: Counts, setting: CountSetting, discount: float, done: Any) -> Validation:
    factors = range_of("factors", options.factors)
    return validate_counts(
        counts,
        FACTORS if factors is None else np.atleast_1d(factors).tolist(),
        options.splits,
        options.split_by,
        discount,
        options.horizon,
        method=options.method,
        split_seed=options.seed,
        advance=lambda count, work: done(f"{count} of {options.splits} splits done", 0.9 * work),
        **setting,
    )


# --- JSON ----------------------------------------------------------------------------------------------


def _described(options: Solve, setting: CountSetting, discount: float) -> dict[str, Any]:
    asked: dict[str, Any] = {**setting, "support": options.support or "all", "shape": options.shape}
    if options.set != "bayes":
        asked = {name: value for name, value in asked.items() if name not in ("prior", "shape")}
    return {"counts": str(options.counts), **asked, "discount": discount, "horizon": options.horizon}


def _result(found: Guarantee) -> dict[str, Any]:
    model, log = found.model, found.model.counts
    radius = [[r if np.isfinite(r) else None for r in row] for row in model.radius.tolist()]
    return {
        "rule": model.rule,
        "states": list(log.states),
        "actions": list(log.actions),
        "guaranteed": True,
        "assumes": model.assumes,
        "values": found.values.tolist(),
        "policy": found.policy.tolist(),
        "nominal_values": found.nominal.values.tolist(),
        "nominal_policy": found.nominal.policy.tolist(),
        "robust_in_nominal": found.robust_in_nominal.tolist(),
        "cost": found.cost.tolist(),
        "visits": model.visits.tolist(),
        "radius": radius,
        "without_data": [[log.states[s], log.actions[a]] for s, a in model.without_data],
        "never_taken": [[log.states[s], log.actions[a]] for s, a in model.left_out],
        "residual": found.robust.residual,
        "error_bound": max(found.robust.error_bound, found.nominal.error_bound),
        "iterations": found.robust.iterations + found.nominal.iterations,
        "seconds": found.robust.seconds + found.nominal.seconds,
    }


def _validated(options: Solve, validation: Validation | None) -> dict[str, Any]:
    if validation is None:
        return {}
    curve = {
        "factors": validation.factors.tolist(),
        "held_out": validation.values.tolist(),
        "deviation": validation.deviations.tolist(),
        "chosen": validation.chosen,
        "splits": options.splits,
    }
    return {"guaranteed": False, "confidence": None, "validation": curve}


# --- tables --------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    streams.out.print(text, highlight=False, soft_wrap=True)


def _print_headline(model: CountedModel, options: Solve, discount: float) -> None:
    log = model.counts
    sizes = f"{len(log.states):,} states, {len(log.actions):,} actions, {log.count.sum():,} transitions"
    support = options.support or "all"
    reach = {"all": "to any state", "seen": "to listed successors"}.get(support, f"to successors of {support}")
    sets = f"{options.set} ({f'{model.set} balls' if options.set == 'bayes' else model.rule})"
    level = "" if options.validate else f", confidence {options.confidence:g}"
    stages = f" · {options.horizon} decisions" if options.horizon else ""
    name = Path(str(options.counts)).stem
    _say(f"[bold]{name}[/bold] · {sizes} · {sets}{level}, {reach} · discount {discount:g}{stages}")


def _print_validation(validation: Validation, options: Solve) -> None:
    table = Table(box=None, header_style="bold")
    for heading in ("factor of the radii", "held-out value", "deviation over splits"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for factor, value, deviation in zip(
        validation.factors.tolist(), validation.values.tolist(), validation.deviations.tolist(), strict=True
    ):
        mark = "chosen" if factor == validation.chosen else ""
        table.add_row(f"{factor:g}", f"{value:.6g}", f"{deviation:.2g}", mark)
    streams.out.print(table, highlight=False)


def _print_values(found: Guarantee, options: Solve) -> None:
    model, log = found.model, found.model.counts
    first = options.horizon is not None  # then the first axis is the stage
    values, policy = (found.values[0], found.policy[0]) if first else (found.values, found.policy)
    nominal = found.nominal.values[0] if first else found.nominal.values
    table = Table("state", box=None, header_style="bold")
    for heading in ("robust" if options.validate else "guaranteed", "nominal", "cost"):
        table.add_column(heading, justify="right")
    table.add_column("action")
    table.add_column("seen", justify="right")
    for s in range(min(len(values), _SHOWN)):
        action = int(policy[s])
        numbers = [f"{0.0 if abs(x) < options.tol else x:.6g}" for x in (values[s], nominal[s], nominal[s] - values[s])]
        known = model.visits[s].any() or model.radius[s, action] == 0
        name = str(log.actions[action]) if known else "no data"
        table.add_row(str(log.states[s]), *numbers, name, f"{model.visits[s, action]:,}")
    streams.out.print(table, highlight=False)
    if len(values) > _SHOWN:
        _say(f"… and {len(values) - _SHOWN:,} more; --json has all")


def _print_meaning(found: Guarantee, options: Solve, validation: Validation | None) -> None:
    """What the numbers mean, and what they rest on."""
    model = found.model
    if validation is not None:
        _say(
            f"no guarantee: the radii are {validation.chosen:g} times those of confidence {options.confidence:g}, which"
            " did best on the held-out halves of the log"
        )
    else:
        given = [f"each row has the prior Dirichlet({options.prior:g}, …)"] if options.set == "bayes" else []
        given += [model.assumes] if model.assumes else []
        given += ["there are no other successors"] if options.support not in (None, "all") else []
        condition = f", if {' and '.join(given)}" if given else ", however the log was collected and ended"
        kind = "posterior probability" if options.set == "bayes" else "probability"
        _say(
            f"with {kind} {options.confidence:g} the policy is worth at least its guaranteed value in every"
            f" state{condition}"
        )
    for pairs, words in (
        (model.without_data, "without data; their successor may be any that is possible"),
        (model.left_out, "without data and with unknown rewards; the policy never takes them"),
    ):
        if len(pairs):
            names = ", ".join(model.counts.pair(s, a) for s, a in pairs[:_NAMED])
            more = f" and {len(pairs) - _NAMED:,} more" if len(pairs) > _NAMED else ""
            _say(f"{names}{more}: {words}")
    bound = max(found.robust.error_bound, found.nominal.error_bound)
    loss = float((np.atleast_2d(found.nominal.values)[0] - found.robust_in_nominal).max())
    _say(
        f"in the nominal model the policy loses at most {loss if loss > 4 * options.tol else 0.0:.6g} to the nominal"
        f" one · no value is farther than {bound:.1e} from the exact one"
    )
