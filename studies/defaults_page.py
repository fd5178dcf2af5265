"""The page on the preset `default`, made of nothing but the numbers of `defaults.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLUE, GREEN, ORANGE, SKY
from studies.statistics import difference, estimate, mean_of
from studies.tables import Lines, figure, interval, markdown, title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a robust agent is to reach: this share of the way from random play to the reference, in the worst cell.
BAR = 0.95
_REFERENCE = "worst_case"
_COLOURS = {"ddqn": ORANGE, "ddqn_dr": SKY, "rtd_dqn": BLUE, "deep_rok": GREEN}


def relative(found: Mapping[str, Any], env: str, agent: str, epsilon: float) -> list[float]:
    """Of each seed the return in its worst cell, from 0 for random play to 1 for the reference's worst cell."""
    known = found["references"][env][f"{epsilon:g}"]
    random, reference = known["random"]["worst_cell"], known[_REFERENCE]["worst_cell"]
    return [(worst - random) / (reference - random) for worst in each(found, env, agent, epsilon, "worst_cell")]


def each(found: Mapping[str, Any], env: str, agent: str, epsilon: float, score: str) -> list[float]:
    """A score of each seed."""
    return [seed[f"{epsilon:g}"][score] for seed in found["rows"][env][agent]["seeds"].values()]


def diverged(found: Mapping[str, Any], called: Callable[[str], str] = title) -> str:
    """A sentence on the seeds that diverged, if any did."""
    broken = [
        f"`{env}`, {called(agent)}: {', '.join(map(str, its['diverged']))}"
        for env, agents in found["rows"].items()
        for agent, its in agents.items()
        if its.get("diverged")
    ]
    return f"Seeds that diverged, which are in no mean: {'; '.join(broken)}." if broken else "No seed diverged."


def missing(found: Mapping[str, Any], called: Callable[[str], str] = title) -> str:
    """A sentence on the agents that have no numbers yet, on all environments or on some."""
    without = []
    for agent in next(iter(found["rows"].values())):
        envs = [env for env, its in found["rows"].items() if not its[agent]["seeds"]]
        if envs:
            where = "" if len(envs) == len(found["rows"]) else f" on {', '.join(f'`{env}`' for env in envs)}"
            without.append(f"{called(agent)}{where}")
    return f" Not measured yet: {'; '.join(without)}." if without else ""


def table(found: Mapping[str, Any], epsilon: float, short: bool = False) -> Lines:
    """A header and a line for each environment and agent that was measured."""
    header = ["environment", "agent", "worst cell, of reference %", "95 % interval", "worst seed %", "reach 95 %"]
    header += ["worst cell", "CVaR₁₀", "success %"]
    if short:
        header = ["", "", "% of ref.", "interval", "worst", "reach", "worst cell", "CVaR10", "success"]
    lines: Lines = [header]
    for env, agents in found["rows"].items():
        for agent, its in agents.items():
            if not its["seeds"]:
                continue
            shares = relative(found, env, agent, epsilon)
            share = estimate(np.mean, shares)
            lines.append(
                [
                    env if short else f"`{env}`",
                    agent if short else title(agent),
                    f"{100 * share.value:.0f}",
                    interval(share.interval, 100, ".0f"),
                    f"{100 * min(shares):.0f}",
                    f"{sum(s >= BAR for s in shares)} of {len(shares)}",
                    f"{np.mean(each(found, env, agent, epsilon, 'worst_cell')):.3g}",
                    f"{np.mean(each(found, env, agent, epsilon, 'cvar10')):.3g}",
                    f"{100 * np.mean(each(found, env, agent, epsilon, 'success')):.0f}",
                ]
            )
    return lines


def reference_table(found: Mapping[str, Any], epsilon: float) -> Lines:
    """The references: mean success and return in the worst cell."""
    policies = ("random", "nominal", "mean", "cvar", "worst_case", "each")
    return [
        ["environment", *(policy.replace("_", " ") for policy in policies)],
        *(
            [
                f"`{env}`",
                *(
                    f"{100 * known[f'{epsilon:g}'][policy]['success']:.0f} % / "
                    f"{known[f'{epsilon:g}'][policy]['worst_cell']:.3g}"
                    for policy in policies
                ),
            ]
            for env, known in found["references"].items()
        ),
    ]


def tuned_table(found: Mapping[str, Any]) -> Lines:
    """Success with the preset `default` and with `tuned`, where there is one: means over seeds and their difference."""
    tuned = found["tuned"]
    lines: Lines = [["agent", "seeds", "`default` %", "95 % interval", "`tuned` %", "95 % interval", "difference"]]
    for agent, its in found["rows"][tuned["env"]].items():
        success = [seed["paper"]["success"] for seed in its["seeds"].values()]
        if not success:
            continue
        cells = [title(agent), f"{len(success)} and {len(tuned['success'][agent])}"]
        for one in (mean_of(success), mean_of(tuned["success"][agent])):
            cells += [f"{100 * one.value:.1f}", interval(one.interval, 100, ".1f")]
        change = difference(success, tuned["success"][agent])
        lines.append([*cells, f"{100 * change.value:+.1f} ({interval(change.interval, 100, '+.1f')})"])
    return lines


def _against_tuned(found: Mapping[str, Any]) -> str:
    """The section on the environment that has a preset of its own; empty where it was not measured."""
    tuned = found["tuned"]
    if tuned["env"] not in found["rows"]:
        return ""
    return f"""## Against settings tuned for Cart-Pole

The preset `tuned` was made for Cart-Pole alone. Both are tested on the paper's grid of 49 models, where actions are
random with probability {tuned["epsilon"]:g}. The score is the success over all cells. The aim for the two robust agents
is to lose at most one point.

{markdown(tuned_table(found), texts=(1,))}

"""


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[f"ε = {epsilon:g}", *table(found, epsilon, short=True)] for epsilon in found["epsilons"]]


def page(found: Mapping[str, Any]) -> str:
    """Markdown of the tables and the figure.

    Args:
      found: what `defaults.json` holds.
    """
    first, last = found["epsilons"][0], found["epsilons"][-1]
    return wrapped(
        f"""# Does it work without tuning?

The preset `default`, which `deeprok train` uses, has the same numbers for every environment. Here it is measured on
{len(found["rows"])} of them, each agent with the preset and nothing else. The weights are those that a run ends with.

The score is the return in the worst cell of a grid of models over the whole box. It is given as a share: 0 is random
play, 100 % is the policy that was planned for the worst case with the model known
([Which environments can tell?](environments.md)). A share above 100 % is possible: that policy is planned against a
nature that may choose another model in every step, and without the random actions that are played here. The aim is
{100 * BAR:.0f} %.

{figure("defaults", "share", "The worst cell of each agent on each environment, as a share of the reference")}

A dot is a seed, a bar the mean over seeds. What lies outside {_RANGE[0]:g} % to {_RANGE[1]:g} % is drawn at the edge.

This page is generated, with its figure and [defaults.json](defaults/defaults.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. Each cell is played for {found["episodes"]} episodes, the same ones as the
references: starts, random actions and noise are equal. {diverged(found)}{missing(found)}

The numbers of the preset were chosen with RTD-DQN and Deep-RoK, on other seeds than these and on models further inside
the box. Double-DQN has the same ones, where it reads them. Weights are chosen by the worst of held-out models of the
box for every agent, also for Double-DQN, which learns on the nominal model alone. Four earlier variants of Deep-RoK
were measured on these seeds, one of them on two environments only. Their poor results on Cart-Pole led to the joint
update, to a smaller prior covariance, to more observation noise, and to early weights that are compared at the end.

## With random actions

Actions are random with probability ε = {first:g}. *Reach 95 %*: seeds whose own share is at least that. *CVaR₁₀*: the
mean return over the worst tenth of the cells. *Success*: over all cells. Means are plain ones, over seeds.

{markdown(table(found, first), texts=(1,))}

## Without random actions

{markdown(table(found, last), texts=(1,))}

{_against_tuned(found)}## The references

Mean success over the cells and return in the worst one, with ε = {first:g}.

{markdown(reference_table(found, first))}
"""
    )


#: Where robustness can pay, and what is not known there.
_TELLING = {
    "ferry": "ferry\nunknown current",
    "road": "road\nunknown grip and drag",
    "swing_up": "pendulum swing-up\nunknown torque and mass",
    "mountain_car": "mountain car\nunknown force and gravity",
    "market": "American put\nunknown drift and volatility",
}


def figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    telling = {env: words for env, words in _TELLING.items() if env in found["rows"]}
    return {"share": shares(found, {env: env for env in found["rows"]})} | (
        {"why": shares(found, telling)} if telling else {}
    )


def shares(found: Mapping[str, Any], names: Mapping[str, str]) -> Figure:
    """A dot for each seed, and a bar for the mean, of every agent on some environments, with random actions.

    Args:
      found: what `defaults.json` holds.
      names: environment -> what the figure calls it.
    """
    from matplotlib.figure import Figure

    epsilon = found["epsilons"][0]
    envs = list(names)
    chart = Figure(figsize=(9.6, 0.62 * len(envs) + 1.2), layout="constrained")
    panel = chart.subplots()
    agents = [agent for agent in _COLOURS if any(found["rows"][env].get(agent, {}).get("seeds") for env in envs)]
    for row, env in enumerate(reversed(envs)):
        for i, agent in enumerate(agents):
            if not found["rows"][env].get(agent, {}).get("seeds"):
                continue
            height = row + 0.3 - 0.6 * i / max(1, len(agents) - 1)
            # What lies far below random play is shown at the edge.
            values = np.clip(100 * np.array(relative(found, env, agent, epsilon)), *_RANGE)
            colour = _COLOURS[agent]
            panel.plot(values, np.full(len(values), height), ".", color=colour, markersize=4, alpha=0.5)
            mean = float(np.clip(100 * np.mean(relative(found, env, agent, epsilon)), *_RANGE))
            panel.plot(mean, height, "|", color=colour, markersize=11, markeredgewidth=2.5)
    panel.axvline(100 * BAR, color="black", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(envs)), [names[env] for env in reversed(envs)])
    panel.set_xlim(_RANGE[0] - 3, _RANGE[1] + 3)
    panel.set_xlabel("return in the worst cell: 0 % is random play, 100 % the policy planned for the worst case")
    panel.grid(axis="x", linewidth=0.6, alpha=0.5)
    marks = [panel.plot([], [], "o", color=_COLOURS[agent])[0] for agent in agents]
    words = [title(agent) for agent in agents]
    chart.legend(marks, words, loc="outside lower center", ncols=len(agents), frameon=False, fontsize=9)
    return chart


_RANGE = (-50.0, 180.0)
