"""The page on the Kalman filter against Adam, made of nothing but the numbers of `filters.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deeprok.runs.settings import make_config
from studies.statistics import Estimate, episodes_to, estimate
from studies.tables import Lines, figure, interval, markdown, wrapped

Found = Mapping[str, Any]

#: What a row is to reach: this share of the way from random play to the best row's last trial.
BAR = 0.9

#: All filters of the first part have a network that a full P can bear.
FILTERS: dict[str, Any] = {"hidden": (20, 20)}

#: What rows are called.
TITLES = {
    "adam 1": "Adam, 1 update",
    "adam 2": "Adam, 2 updates",
    "adam 4": "Adam, 4 updates",
    "adam 8": "Adam, 8 updates",
    "adam 20-20": "Adam, 1 update, network 20–20",
    "full": "filter, full P",
    "layer": "filter, P by layer",
    "neuron": "filter, P by neuron",
    "diagonal": "filter, diagonal P",
    "low_rank": "filter, low rank P",
}
FEW_TITLES = {
    "filter posterior": "filter, from the posterior",
    "filter posterior, fading": "filter, from the posterior, with fading",
    "filter mean": "filter, from the mean, new P",
    "filter scratch": "filter, from scratch",
    "filter scratch, fast": "filter, from scratch, fast",
    "adam weights": "Adam, from the weights",
    "adam weights, fast": "Adam, from the weights, fast",
    "adam scratch": "Adam, from scratch",
    "adam scratch, fast": "Adam, from scratch, fast",
}
_OLD_GRAVITY = ", old gravity"


# --- learning per step and per second --------------------------------------------------------------------


def rows_of(found: Found, env: str) -> dict[str, Any]:
    """The rows of an environment that were measured."""
    return {name: row for name, row in found["rows"].get(env, {}).items() if row["seeds"]}


def is_filter(name: str) -> bool:
    """Whether a row of the first part is one of the Kalman filter."""
    return not name.startswith("adam")


def last_trials(row: Mapping[str, Any]) -> list[float]:
    """Of each seed the return in its last trial."""
    return [seed["curve"]["trial_return"][-1] for seed in row["seeds"].values()]


def bar(found: Found, env: str) -> float:
    """The return in a trial that counts as learned."""
    random = found["random"][env][_epsilon(found, env)]["worst_cell"]
    best = max(float(np.median(last_trials(row))) for row in rows_of(found, env).values())
    return random + BAR * (best - random)


def _epsilon(found: Found, env: str) -> str:
    """That of the random actions which trials and the first score on the grid have."""
    return next(iter(found["random"][env]))


def steps_needed(found: Found, env: str, name: str) -> list[float]:
    """Of each seed the environment steps to the threshold; infinite where it was not reached, or the seed diverged."""
    row, level = found["rows"][env][name], bar(found, env)
    reached = [episodes_to(level, its["curve"]["steps"], its["curve"]["trial_return"]) for its in row["seeds"].values()]
    return [math.inf if steps is None else float(steps) for steps in reached] + [math.inf] * len(row["diverged"])


def step_time(found: Found, env: str, name: str) -> float:
    """Processor time of an environment step, in µs."""
    return float(np.median(found["times"][env]["rounds"][name]))


def _median_needed(found: Found, env: str, seconds: bool) -> dict[str, float]:
    """Of each row the median over seeds of the steps, or processor seconds, to the threshold."""
    needed = {name: float(np.median(steps_needed(found, env, name))) for name in rows_of(found, env)}
    return {name: steps * (1e-6 * step_time(found, env, name) if seconds else 1.0) for name, steps in needed.items()}


def _reached(needed: Sequence[float], factor: float, form: str) -> str:
    """A median over seeds, with how many got there, if not all did."""
    count = sum(map(math.isfinite, needed))
    missed = "" if count == len(needed) else f" ({count} of {len(needed)})"
    middle = float(np.median(needed))
    return (f"{factor * middle:{form}}" if math.isfinite(middle) else "not reached") + missed


def table(found: Found, env: str, short: bool = False) -> Lines:
    """A header and a line for each row that was measured on an environment."""
    header = ["", "success %", "worst cell", "95 % interval", "last trial", f"steps to {100 * BAR:.0f} %"]
    header += [f"seconds to {100 * BAR:.0f} %", "µs per step", "of Adam's"]
    if short:
        header = ["", "success", "worst cell", "interval", "trial", "steps", "seconds", "µs", "ratio"]
    epsilon = _epsilon(found, env)
    lines: Lines = [header]
    for name, row in rows_of(found, env).items():
        scores = [seed[epsilon] for seed in row["seeds"].values()]
        worst = estimate(np.mean, [score["worst_cell"] for score in scores])
        taken, needed = step_time(found, env, name), steps_needed(found, env, name)
        lines.append(
            [
                name if short else TITLES[name],
                f"{100 * np.mean([score['success'] for score in scores]):.0f}",
                f"{worst.value:.3g}",
                interval(worst.interval, form=".3g"),
                f"{np.median(last_trials(row)):.3g}",
                _reached(needed, 1.0, ",.0f"),
                _reached(needed, 1e-6 * taken, ",.1f"),
                f"{taken:.0f}",
                f"{taken / step_time(found, env, 'adam 1'):.1f} ×",
            ]
        )
    return lines


def _named(names: Sequence[str]) -> str:
    return "; ".join(TITLES[name] for name in names)


def _ends(found: Found, env: str) -> str:
    """A sentence on where the two estimators end: the best row of each, by the mean of its worst cells."""
    epsilon, best = _epsilon(found, env), dict[bool, tuple[float, str]]()
    for name, row in rows_of(found, env).items():
        worst = float(np.mean([seed[epsilon]["worst_cell"] for seed in row["seeds"].values()]))
        kind = is_filter(name)
        best[kind] = max(best.get(kind, (-math.inf, "")), (worst, name))
    return f"Best worst cell: {', '.join(f'{TITLES[name]} ({worst:.3g})' for worst, name in best.values())}."


def _lead(found: Found, env: str, seconds: bool) -> str:
    """A sentence on the row that needs least, and whether a filter needs less than every row of Adam."""
    needed = _median_needed(found, env, seconds)
    unit, form = ("seconds", ",.1f") if seconds else ("steps", ",.0f")
    learned = {name: value for name, value in needed.items() if math.isfinite(value)}
    if not learned:
        return f"No row reaches the threshold with most of its seeds, so that {unit} cannot be compared."
    best = min(learned, key=lambda name: learned[name])
    adam = min((value for name, value in needed.items() if not is_filter(name)), default=math.inf)
    ahead = [name for name, value in learned.items() if is_filter(name) and value < adam]
    filters = f"Filters that need fewer than every row of Adam: {_named(ahead)}." if ahead else (
        f"No filter needs fewer {unit} than the best row of Adam."
    )  # fmt: skip
    return f"Fewest {unit}: {TITLES[best]}, {learned[best]:{form}}. {filters}"


def ratio(found: Found, env: str, first: str, second: str, seconds: bool) -> Estimate | None:
    """The first row's median steps, or seconds, to the threshold over the second's.

    Returns:
      None if most seeds of either do not reach it. The bootstrap's interval is there if all seeds do.
    """
    needed = _median_needed(found, env, seconds)
    if not (math.isfinite(needed[first]) and math.isfinite(needed[second])):
        return None
    steps = [np.array(steps_needed(found, env, name)) for name in (first, second)]
    if not all(np.isfinite(its).all() for its in steps):
        return Estimate(needed[first] / needed[second], None)
    found_ratio = estimate(_ratio_of_medians, *steps)
    factor = step_time(found, env, first) / step_time(found, env, second) if seconds else 1.0
    low, high = found_ratio.interval or (found_ratio.value, found_ratio.value)
    return Estimate(factor * found_ratio.value, (factor * low, factor * high) if found_ratio.interval else None)


def _ratio_of_medians(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(first, axis=axis) / np.median(second, axis=axis)


def _times(value: Estimate, unit: str) -> str:
    """A ratio with its interval."""
    ends = f" ({interval(value.interval, form='.2g')})" if value.interval else ""
    return f"{value.value:.2g}{ends} times the {unit}"


_NO_INTERVAL = " (no interval: not all seeds reach the threshold)"


def _pair(found: Found, env: str) -> str:
    """A sentence on the full filter against Adam with one update, the two presets."""
    if not {"full", "adam 1"} <= set(rows_of(found, env)):
        return ""
    ratios = [ratio(found, env, "full", "adam 1", seconds) for seconds in (False, True)]
    steps, seconds = ratios
    if steps is None or seconds is None:
        needed = _median_needed(found, env, seconds=False)
        lacking = [TITLES[name] for name in ("full", "adam 1") if not math.isfinite(needed[name])]
        verb = "does" if len(lacking) == 1 else "do"
        return f"Of the two presets, {' and '.join(lacking)} {verb} not reach the threshold with most seeds."
    return (
        f"Of the two presets, the filter with a full P needs {_times(steps, 'steps')} and {_times(seconds, 'seconds')} "
        f"of Adam with one update{'' if steps.interval else _NO_INTERVAL}."
    )


def _verdict(found: Found, env: str) -> str:
    """The best filter against the best row of Adam, by the medians of what they need."""
    parts = []
    for seconds in (False, True):
        needed = _median_needed(found, env, seconds)
        best = {}
        for kind in (True, False):
            rows = {name: value for name, value in needed.items() if is_filter(name) == kind and math.isfinite(value)}
            if rows:
                best[kind] = min(rows, key=lambda name, rows=rows: rows[name])  # type: ignore[misc]
        if len(best) < 2:
            who = " and ".join(what for kind, what in ((True, "filter"), (False, "row of Adam")) if kind not in best)
            return f"- `{env}`: no {who} reaches the threshold with most of its seeds."
        apart = ratio(found, env, best[True], best[False], seconds)
        assert apart
        unit = "seconds" if seconds else "steps"
        parts.append(
            f"{TITLES[best[True]]} needs {_times(apart, unit)} of {TITLES[best[False]]}"
            f"{'' if apart.interval else _NO_INTERVAL}"
        )
    return f"- `{env}`: {'; '.join(parts)}."


def _environment(found: Found, env: str) -> str:
    return f"""### {env}

{markdown(table(found, env))}
{_ends(found, env)} {_lead(found, env, seconds=False)} {_lead(found, env, seconds=True)} {_pair(found, env)}
"""


# --- few data ----------------------------------------------------------------------------------------------


def successes(row: Mapping[str, Any], gravity: float) -> dict[str, float]:
    """The success of each seed at a gravity."""
    return {seed: scores[f"{gravity:g}"] for seed, scores in row["seeds"].items()}


def _success(row: Mapping[str, Any] | None, gravity: float) -> str:
    """Mean success in % and its interval."""
    if not row or not row["seeds"]:
        return "–"
    found = estimate(np.mean, list(successes(row, gravity).values()))
    return f"{100 * found.value:.1f}" + (f" ({interval(found.interval, 100)})" if found.interval else "")


def start_of(found: Found, name: str) -> Mapping[str, Any] | None:
    """The runs that a row starts from, if it does."""
    return found["earlier"].get(name.split()[0]) if "scratch" not in name else None


def few_table(found: Found, short: bool = False) -> Lines:
    """Success at the new gravity, before and after a few episodes there."""
    old, new = found["gravities"]
    budgets = [str(budget) for budget in found["budgets"]]
    header = ["success % at the new gravity", "before", *(f"{budget} episodes" for budget in budgets)]
    header.append(f"at {old:g} m/s² after {budgets[-1]}")
    lines: Lines = [header]
    for name, title in FEW_TITLES.items():
        its = found["few"].get(name, {})
        after = [_success(its.get(budget), new) for budget in budgets]
        lines.append([name if short else title, _success(start_of(found, name), new), *after])
        lines[-1].append(_success(its.get(budgets[-1]), old))
    return lines


def scratch_table(found: Found) -> Lines:
    """Success from scratch at the old gravity."""
    budgets = [str(budget) for budget in found["budgets"]]
    old = found["gravities"][0]
    lines: Lines = [["success % at the old gravity", *(f"{budget} episodes" for budget in budgets)]]
    for name, title in FEW_TITLES.items():
        its = found["few"].get(name + _OLD_GRAVITY)
        if its:
            lines.append([title, *(_success(its.get(budget), old) for budget in budgets)])
    return lines


def difference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, gravity: float) -> str:
    """How much more often the first succeeds, in points: the mean over the seeds that both have, and its interval."""
    one, two = (successes(row, gravity) if row else {} for row in (first, second))
    both = [seed for seed in one if seed in two]
    if not both:
        return "not measured"
    found = estimate(np.mean, [one[seed] - two[seed] for seed in both])
    return f"{100 * found.value:+.1f}" + (f" ({interval(found.interval, 100, '+.1f')})" if found.interval else "")


#: What is compared with what, seed by seed.
_PAIRS = {
    "filter, from the posterior − before": ("filter posterior", "before"),
    "filter, with fading − before": ("filter posterior, fading", "before"),
    "filter, from the mean, new P − before": ("filter mean", "before"),
    "Adam, from the weights − before": ("adam weights", "before"),
    "Adam, fast − before": ("adam weights, fast", "before"),
    "posterior − mean with a new P": ("filter posterior", "filter mean"),
    "with fading − without": ("filter posterior, fading", "filter posterior"),
    "filter, from the posterior − Adam, from the weights": ("filter posterior", "adam weights"),
    "from scratch, fast: filter − Adam": ("filter scratch, fast", "adam scratch, fast"),
}


def differences(found: Found) -> Lines:
    """Differences of success at the new gravity, for each budget."""
    budgets = [str(budget) for budget in found["budgets"]]
    new = found["gravities"][1]
    lines: Lines = [["difference in points", *(f"{budget} episodes" for budget in budgets)]]
    for title, (first, second) in _PAIRS.items():
        line = [title]
        for budget in budgets:
            one = found["few"].get(first, {}).get(budget)
            two = start_of(found, first) if second == "before" else found["few"].get(second, {}).get(budget)
            line.append(difference(one, two, new))
        lines.append(line)
    return lines


def _best(found: Found, budget: str) -> str:
    """A sentence on the best rows at a budget, one that starts from an earlier run and one from scratch."""
    new = found["gravities"][1]
    means = {
        name: float(np.mean(list(successes(its[budget], new).values())))
        for name, its in found["few"].items()
        if not name.endswith(_OLD_GRAVITY) and its.get(budget, {}).get("seeds")
    }
    said = []
    for what, scratch in (("of the warm starts", False), ("from scratch", True)):
        some = {name: value for name, value in means.items() if ("scratch" in name) == scratch}
        if some:
            name = max(some, key=lambda name: some[name])
            said.append(f"{what} {FEW_TITLES[name]} ({100 * some[name]:.1f} %)")
    return f"- {budget} episodes: {'; '.join(said) or 'not measured'}."


# --- the page ----------------------------------------------------------------------------------------------


def diverged(found: Found) -> str:
    """A sentence on the seeds that diverged, if any did."""
    places: dict[str, Mapping[str, Any]] = {
        **{f"`{env}`, {TITLES[name]}": row for env, rows in found["rows"].items() for name, row in rows.items()},
        **{f"the earlier runs of {name}": row for name, row in found["earlier"].items()},
        **{f"{name}, {budget} episodes": row for name, its in found["few"].items() for budget, row in its.items()},
    }
    broken = [f"{where}: {', '.join(map(str, row['diverged']))}" for where, row in places.items() if row["diverged"]]
    return f"Seeds that diverged, or whose earlier run did: {'; '.join(broken)}." if broken else "No seed diverged."


def short_tables(found: Found) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    tables: list[list[Any]] = [[env, *table(found, env, short=True)] for env in found["rows"]]
    return [*tables, [f"gravity {found['gravities'][1]:g} m/s²", *few_table(found, short=True)]]


def page(found: Found) -> str:
    """Markdown of the tables and figures.

    Args:
      found: what `filters.json` holds.
    """
    environments = "\n".join(_environment(found, env) for env in found["rows"])
    times = next(iter(found["times"].values()))
    return wrapped(
        f"""# Is the Kalman filter worth its cost?

Adam and the extended Kalman filter, with the same robust target, are compared in two ways: by what they learn per
environment step and per second of processor time, and by what they learn from few episodes, also after the
environment has changed. The best filter against the best row of Adam, by medians over seeds, with 95 % intervals of
their ratio:

{chr(10).join(_verdict(found, env) for env in found["rows"])}

This page is generated, with its figures and [filters.json](filters/filters.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. {diverged(found)}

## Per step and per second

RTD-DQN (Adam) and Deep-RoK (the filter) with the preset `default`, but for a shorter budget of {found["steps"]:,}
environment steps and a trial after every {found["trial_steps"]:,} of them. Adam makes 1, 2, 4 or 8 updates
(`--updates`) after every second step. The filter's P is stored [in five ways](estimators.md#structures-of-p). The
preset gives Adam {_size("rtd_dqn")}. Every filter here has {_size("deep_rok", **FILTERS)}, which the full P can bear;
the preset has the low-rank P, with {_size("deep_rok")}. One row has Adam with the filters' network. The filter's noises
were chosen with the full P and are the same for the others. Neither these nor Adam's learning rate were tuned for this
budget: they are those of the preset, for longer runs.

{figure("filters", "steps", "Return in trials against environment steps")}
{figure("filters", "seconds", "Return in trials against seconds of processor time")}

A trial plays held-out models; its return is the mean over the worst tenth of them. Lines are medians over seeds, bands
reach from the first to the third quartile. The dotted line is the threshold: {100 * BAR:.0f} % of the way from random
play, in the worst cell of the grid, to the best row's last trial. A seed reaches it at the first of two successive
trials above it. Medians count a seed that never does as infinitely slow; in brackets, how many do. They are medians of
few seeds, so that small differences mean little.

Seconds are steps times the processor time of a step of one seed on one core, without trials and compilation: the median
of {_count(times["rounds"])} chunks, for which all rows took turns in one process ({times["processor"]}). Several seeds
of Adam, or of the diagonal P, can share a program and then cost less each. *Success* and *worst cell* are those of the
weights that a run ends with, on the grid of [Does it work without tuning?](defaults.md) and with its random actions,
{found["episodes"]} episodes a cell.

{environments}
{_few_section(found) if is_few_measured(found) else _FEW_MISSING}
"""
    )


_FEW_MISSING = """## Few data

Warm starts and trainings of 10, 30 and 100 episodes on Cart-Pole are part of this study, and are not measured yet."""


def is_few_measured(found: Found) -> bool:
    """Whether any row with few episodes was measured."""
    return any(row["seeds"] for its in found["few"].values() for row in its.values())


def _few_section(found: Found) -> str:
    old, new = found["gravities"]
    few = found["few_settings"]
    return f"""## Few data

Cart-Pole with the preset `tuned`, and a few episodes: {_enumerated(found["budgets"])}. Runs from scratch lower ε over
half the budget. The others are warm starts: after that preset's own training at {old:g} m/s² gravity rises to
{new:g} m/s², and agents go on there with ε = 0.1 (`--prior RUN --nominal gravity={new:g}`):

- the filter from its posterior, mean and covariance;
- the same with fading (`--remembered {few["remembered"]:g}`), which lets it forget;
- the filter from the posterior's mean, with the covariance of a new run (`--prior-part mean`);
- Adam from the weights, with moments of a new run.

*Fast* rows have the step size {few["learning_rate"]:g} or the observation noise {few["observation_noise"]:g}, with
which each learned fastest in the [tuning](results.md#learning-speed) on other seeds. In all rows the target network is
copied every {few["target_period"]} steps, since those of the preset are more than ten episodes have. The score is the
success over the paper's grid at the new gravity, with ε = 0.1 and {found["few_episodes"]} episodes a cell: mean over
seeds and 95 % interval.

{figure("filters", "few", "Success at the new gravity after a few episodes")}

{markdown(few_table(found))}
Best at each budget:

{chr(10).join(_best(found, str(budget)) for budget in found["budgets"])}

Differences seed by seed, with 95 % intervals; *before* is the earlier run as it is, at the new gravity:

{markdown(differences(found))}
From scratch at {old:g} m/s², where the earlier runs succeed in {_earlier(found)} of the episodes:

{markdown(scratch_table(found))}
## A change in mid-run

A run whose gravity changes halfway is two runs, of which the second starts from the first with an empty replay buffer:
the rows above. The row with fading is the filter that expects such changes. What they do not cover is a buffer that
still holds transitions of the old gravity."""


def _size(algorithm: str, **changes: Any) -> str:
    """Network and batches of an agent, with the preset but for some changes."""
    config = make_config(algorithm, "default", **changes)
    units = " and ".join(map(str, config.layers.hidden))
    return f"hidden layers of {units} units and batches of {config.learner.batch_size}"


def _enumerated(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _count(rounds: Mapping[str, Sequence[float]]) -> int:
    return len(next(iter(rounds.values())))


def _earlier(found: Found) -> str:
    old = found["gravities"][0]
    names = {"filter": "the filter", "adam": "Adam"}
    return " and ".join(f"{_success(row, old)} % ({names[name]})" for name, row in found["earlier"].items())
