"""The page of the study `robustness`, made of nothing but the numbers of `robustness.json`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from studies import statistics
from studies.defaults_page import caveat, diverged, each, missing, reference_table, relative
from studies.statistics import Estimate, Verdict, difference, estimate, iqm, mean_of, probability_of_improvement
from studies.tables import Lines, changed, figure, in_code, interval, markdown, placed, signed, wrapped

Found = Mapping[str, Any]
#: `(found, environment, row) -> a score of each seed`.
Score = Callable[[Found, str, str], list[float]]


def share(found: Found, env: str, name: str) -> list[float]:
    """Of each seed the return in its worst cell, from 0 for random play to 1 for the reference's worst cell."""
    return relative(found, env, name, _epsilon(found))


def success(found: Found, env: str, name: str) -> list[float]:
    """Of each seed its mean success over the cells."""
    return each(found, env, name, _epsilon(found), "success")


def _epsilon(found: Found) -> float:
    return float(found["epsilons"][0])


def _scores(found: Found, env: str, name: str, score: str) -> list[float]:
    return each(found, env, name, _epsilon(found), score)


def title_of(found: Found, name: str) -> str:
    """What a row is called."""
    return str(found["agents"][name]["title"])


def measured(found: Found, env: str, name: str) -> bool:
    """Whether a row has numbers on an environment."""
    return bool(found["rows"].get(env, {}).get(name, {}).get("seeds"))


def environments(found: Found) -> list[str]:
    """Those on which any row has numbers."""
    return [env for env in found["rows"] if any(measured(found, env, name) for name in found["agents"])]


def compared(found: Found, chosen: bool = True) -> list[str]:
    """The rows that have numbers.

    Args:
      found: the numbers.
      chosen: those whose weights were chosen on held-out models; if not, those that show what this choice changes.
    """
    rows = [name for name in found["agents"] if any(measured(found, env, name) for env in found["rows"])]
    return [name for name in rows if chosen == (found["agents"][name]["changes"].get("settle") is not False)]


# --- comparisons ---------------------------------------------------------------------------------------


def verdict(found: Found, first: str, second: str, score: Score) -> Verdict:
    """Compares two rows on every environment that has both: on which the first is above, below, or neither."""
    return statistics.verdict({env: _apart(found, env, first, second, score) for env in environments(found)})


def _apart(found: Found, env: str, first: str, second: str, score: Score) -> Estimate | None:
    if not (measured(found, env, first) and measured(found, env, second)):
        return None
    return difference(score(found, env, first), score(found, env, second))


def sentence(found: Found, first: str, second: str, score: Score) -> str:
    """What the intervals say of two rows."""
    said = verdict(found, first, second, score)
    return f"**{title_of(found, first)}** against {title_of(found, second)}: {placed(said)}."


def family(found: Found, pairs: Sequence[tuple[str, str]]) -> str:
    """What the intervals say of some pairs of rows in the worst cell, in a sentence; empty if none has numbers."""
    parts, open_ = [], []
    for first, second in (pair for pair in pairs if set(pair) <= set(compared(found))):
        said = verdict(found, first, second, share)
        text = f"{title_of(found, first)} against {title_of(found, second)}"
        if said.above or said.below:
            parts.append(f"{text} is {placed(said._replace(open=[]))}")
        elif said.open:
            open_.append(text)
    if open_:
        parts.append(f"no difference is beyond chance for {'; '.join(open_)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


#: The other ambiguity sets against the default, and the same agents with memory and without.
_SETS = tuple((name, "cvar") for name in ("minimum", "minimum_late", "kl", "wasserstein"))
_MEMORY = (("dr_memory4", "dr"), ("dr_memory16", "dr"), ("cvar_memory4", "cvar"))
_GRADIENTS = ("pg", "epopt", "robust_pg")


def unlearned(found: Found) -> str:
    """Where no policy gradient learned anything, so that kinds of nature can't be compared; empty if nowhere."""
    best = {
        env: max(float(np.mean(success(found, env, name))) for name in _GRADIENTS if measured(found, env, name))
        for env in environments(found)
        if any(measured(found, env, name) for name in _GRADIENTS)
    }
    failing = [env for env, rate in best.items() if rate < _LEARNED]
    if not failing:
        return ""
    return (
        f"- **Nature that chooses once an episode or in every step.** On {in_code(failing)} no policy gradient learned "
        f"(success at most {100 * max(best[env] for env in failing):.0f} %). So EPOpt, whose nature chooses once an "
        "episode, can't be compared there with the others, whose nature chooses in every step."
    )


#: Mean success below which a policy counts as not learned.
_LEARNED = 0.05


def summary(found: Found) -> str:
    """The findings in the worst cell, a line each."""
    lines = []
    if "cvar" in compared(found):
        against = sentence(found, "cvar", found["baseline"], share).replace("**", "")
        lines.append(f"- **Worst case or random models.** {against}")
    for what, pairs in (("Other ambiguity sets", _SETS), ("Memory", _MEMORY)):
        text = family(found, pairs)
        if text:
            lines.append(f"- **{what}.** {text}")
    return "\n".join([*lines, *filter(None, [unlearned(found)])])


#: Comparisons of two rows beside those with domain randomisation.
_PAIRS = (
    ("cvar", "dr_memory4"),
    ("cvar", "dr_memory16"),
    ("cvar_memory4", "dr_memory4"),
    ("cvar", "minimum_late"),
    ("cvar", "epopt"),
    ("epopt", "pg"),
)


def _bullets(found: Found, score: Score) -> str:
    return "\n".join(f"- {sentence(found, *pair, score)}" for pair in _PAIRS if set(pair) <= set(compared(found)))


def _chance(found: Found) -> str:
    """How many differences would stand out by chance."""
    others = [name for name in compared(found) if name != found["baseline"]]
    count = sum(sum(map(len, verdict(found, name, found["baseline"], share))) for name in others)
    return (
        f"With {count} comparisons with {title_of(found, found['baseline'])}, about {count / 20:.1g} would be called "
        "above or below by chance if all agents were alike."
    )


# --- tables --------------------------------------------------------------------------------------------


def percent(value: Estimate, rate: bool = False) -> str:
    """A number in percent with its interval; that of a rate ends at 0 and 100 %."""
    text = f"{100 * value.value:z.0f}"
    if not value.interval:
        return text
    ends = [min(max(end, 0.0), 1.0) if rate else end for end in value.interval]
    return f"{text} ({interval(ends, 100, 'z.0f')})"


def table(found: Found, env: str, names: Sequence[str], short: bool = False) -> Lines:
    """A header and a line for each of these rows that has numbers on an environment."""
    header = ["agent", "worst cell, of reference %", "IQM", "worst seed", "worst cell", "CVaR₁₀", "return"]
    header += ["success %", "IQM", "better than baseline %", "earlier weights", "seeds"]
    if short:
        header = ["", "% of ref.", "IQM", "worst", "worst cell", "CVaR10", "return", "success", "IQM", "better"]
        header += ["earlier", "seeds"]
    lines: Lines = [header]
    for name in names:
        if not measured(found, env, name):
            continue
        shares, successes = share(found, env, name), success(found, env, name)
        better = "–"
        if name != found["baseline"] and measured(found, env, found["baseline"]):
            better = percent(estimate(probability_of_improvement, shares, share(found, env, found["baseline"])))
        lines.append(
            [
                name if short else title_of(found, name),
                percent(mean_of(shares)),
                f"{100 * float(iqm(np.asarray(shares))):z.0f}",
                f"{100 * min(shares):z.0f}",
                *(f"{np.mean(_scores(found, env, name, of)):.3g}" for of in ("worst_cell", "cvar10", "mean_return")),
                percent(mean_of(successes), rate=True),
                f"{100 * float(iqm(np.asarray(successes))):.0f}",
                better,
                _earlier(found["rows"][env][name]["seeds"].values()),
                str(len(shares)),
            ]
        )
    return lines


def _earlier(seeds: Any) -> str:
    """How many seeds ended with weights of an earlier step."""
    known = [seed for seed in seeds if "step" in seed]
    return str(sum(seed["step"] < seed["steps"] for seed in known)) if known else "–"


def difference_table(found: Found, score: Score) -> Lines:
    """Differences to domain randomisation in percentage points, bold where their interval excludes 0."""
    envs = environments(found)
    lines: Lines = [["minus domain randomisation", *(f"`{env}`" for env in envs)]]
    for name in compared(found):
        if name != found["baseline"]:
            cells = (signed(_apart(found, env, name, found["baseline"], score), form="+z.0f") for env in envs)
            lines.append([title_of(found, name), *cells])
    return lines


def settings_table(found: Found) -> Lines:
    """What each row is."""
    rows = [name for name in found["agents"] if any(measured(found, env, name) for env in found["rows"])]
    return [
        ["agent", "algorithm", "what differs from the preset", "weights"],
        *(
            [
                title_of(found, name),
                _algorithm(its["algorithm"]),
                "its own defaults" if its["algorithm"].startswith("sb3:") else changed(_written(its["changes"])),
                "best in trials" if its["keep"] == "best" else "those it ends with",
            ]
            for name, its in ((name, found["agents"][name]) for name in rows)
        ),
    ]


def _algorithm(name: str) -> str:
    return f"stable-baselines3 {name.removeprefix('sb3:').upper()}" if name.startswith("sb3:") else f"`{name}`"


def _written(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in changes.items()}


def short_tables(found: Found) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    rows = [*compared(found), *compared(found, chosen=False)]
    return [[env, *table(found, env, rows, short=True)] for env in environments(found)]


# --- the page ------------------------------------------------------------------------------------------


def _seeds(found: Found) -> str:
    counts = sorted({len(its["seeds"]) for rows in found["rows"].values() for its in rows.values() if its["seeds"]})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _rows(found: Found) -> int:
    return sum(measured(found, env, name) for env in environments(found) for name in found["agents"])


def _noise(found: Found) -> str:
    """How large the noise of the test alone is."""
    epsilon = f"{_epsilon(found):g}"
    errors = [
        seed[epsilon]["success_error"]
        for rows in found["rows"].values()
        for its in rows.values()
        for seed in its["seeds"].values()
    ]
    shares = [f"{_share_noise(found, env):.0f} on `{env}`" for env in environments(found)]
    return (
        f"From the test episodes alone the success of one seed has a standard error of {100 * np.median(errors):.1f} "
        f"percentage points in the median and {100 * max(errors):.1f} at most. That of its share is, in the median, "
        f"{', '.join(shares)}."
    )


def _share_noise(found: Found, env: str) -> float:
    """Of one seed's share in percentage points, the standard error from the test episodes alone: the median."""
    epsilon = f"{_epsilon(found):g}"
    known = found["references"][env][epsilon]
    whole = known["worst_case"]["worst_cell"] - known["random"]["worst_cell"]
    seeds = [seed for its in found["rows"][env].values() for seed in its["seeds"].values()]
    return 100 * float(np.median([seed[epsilon]["worst_cell_error"] for seed in seeds])) / whole


def _indistinct(found: Found) -> str:
    """Environments on which the test is too coarse for small differences; empty if there is none."""
    coarse = {env: _share_noise(found, env) for env in environments(found)}
    parts = [
        f"on `{env}` the share of one seed has a standard error of {its:.0f} points" for env, its in coarse.items()
    ]
    loud = [part for part, its in zip(parts, coarse.values(), strict=True) if its > _COARSE]
    if not loud:
        return ""
    return f" From the test episodes alone {'; '.join(loud)}: rows that are close to each other are inconclusive there."


#: A standard error of a seed's share, in percentage points, above which small differences are inconclusive.
_COARSE = 20.0


def _stable_baselines(found: Found) -> str:
    rows = [name for name, its in found["agents"].items() if its["algorithm"].startswith("sb3:")]
    if any(measured(found, env, name) for env in found["rows"] for name in rows):
        return (
            "stable-baselines3 has its own default settings, observations divided by their typical sizes, and models "
            "drawn in the same way. It has no choice of weights on held-out models, so its last ones are played."
        )
    return "stable-baselines3 is not among the rows: it was not measured, and needs the extra `bench`."


def page(found: Found) -> str:
    """Markdown of the findings, the tables and the figures.

    Args:
      found: what `robustness.json` holds.
    """
    envs, main, others = environments(found), compared(found), compared(found, chosen=False)
    called = functools.partial(title_of, found)
    tables = "\n".join(f"### `{env}`\n\n{markdown(table(found, env, main))}" for env in envs)
    choice = "\n".join(
        f"### `{env}`, by the choice of weights\n\n{markdown(table(found, env, others))}" for env in envs
    )
    return wrapped(
        f"""# Does the worst case beat random models?

Domain randomisation trains on random models and maximises the mean over them. The worst-case target is trained on the
same models and maximises what the worse of them leave. Here both, and what lies between and beside them, have the same
effort: {found["steps"]:,} environment steps, the preset `default` with the same numbers on every environment, and the
same choice of weights on held-out models.

Nothing was tuned for an environment, but agents were not tuned equally. The numbers of `default` were chosen with
RTD-DQN, which is CVaR here, and with Deep-RoK; domain randomisation has the same ones. Policy gradients have the
numbers of `tuned`, which are Cart-Pole's, and stable-baselines3 has its library's. Read these two as a check, not as a
comparison of methods.

The first score is the return in the worst cell of a grid of models over the whole box, as a share: 0 is random play,
100 % is the policy that was planned for the worst case with the model known
([Where can robustness pay?](environments.md)). The second is the mean success over all cells.
{caveat(found, envs, _epsilon(found))}

{summary(found)}

An agent is above another where the 95 % interval of the difference of their means over {_seeds(found)} seeds excludes
0. {_chance(found)}{_indistinct(found)}

{figure("robustness", "share", "The worst cell of each agent on each environment, as a share of the reference")}

A dot is a seed, a bar the mean over seeds with its 95 % interval. The dotted line is the mean of domain randomisation.
Axes differ where shares are large.

{figure("robustness", "success", "Mean success of each agent on each environment")}

## What the numbers say

Differences to domain randomisation in the worst cell, in percentage points of the share, with their 95 % intervals;
bold where 0 is outside:

{markdown(difference_table(found, share))}

Differences in mean success, in percentage points:

{markdown(difference_table(found, success))}

Other pairs, in the worst cell:

{_bullets(found, share)}

and in mean success:

{_bullets(found, success)}

## All numbers

Actions are random with probability ε = {_epsilon(found):g}. *CVaR₁₀*: the mean return over the worst tenth of the
cells. *Worst seed*: its share. *IQM*: the mean over the middle half of the seeds. *Better than baseline*: the
probability that a seed has a better worst cell than one of domain randomisation, with a bootstrap interval. *Earlier
weights*: seeds that ended with weights from before their last step, because these did better on held-out models.
Other means are plain ones, over seeds.

{tables}

## Which weights

With the preset a run ends with the better of its last weights and those that did best in its trials, on more held-out
models. These rows are runs without that choice: their last weights, and the best ones of their trials.

{choice}

## How it was measured

This page is generated, with its figures and [robustness.json](robustness/robustness.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. Rows have {_seeds(found)} seeds, not ten or more, since there are
{_rows(found)} of them and stable-baselines3 takes minutes for a seed. Each cell is played for {found["episodes"]}
episodes by each seed. {diverged(found, called)}{missing(found, called)}

Every seed is tested on episodes of its own, so the spread over seeds holds the noise of the test as well, and the
intervals, which are Student's for means and Welch's for differences, include both. {_noise(found)} The references and
random play are taken as they are, on episodes of their own.

{markdown(settings_table(found), texts=(1, 2, 3))}

- Models are drawn from the box anew in each episode; each value is one of the ends of its range with probability
  {found["edges"]:g}.
- The radii of the KL and the Wasserstein ball are those at which ten normally distributed values have on average the
  same worst case as with the default CVaR. In the Wasserstein ball mass moves between models by their number. Models
  that are drawn have no order, so it is no distance between parameters.
- *Hard minimum* takes the worst model from the first step on, as it has no level to change. *Approached* goes from the
  mean to the minimum as the default goes to CVaR: over one of ten models CVaR is the minimum.
- Policy gradients have no numbers of their own in the preset and take those of `tuned`, with the same number of steps,
  models and choice of weights as the others. *EPOpt* is inspired by the algorithm of that name
  ([differences](algorithms/epopt.md)). Its nature chooses trajectories, each on one model: it is the worst case per
  episode, not per step.
- {_stable_baselines(found)}

Mean success of the references and return in their worst cell:

{markdown(reference_table({"references": {env: found["references"][env] for env in envs}}, _epsilon(found)))}
"""
    )
