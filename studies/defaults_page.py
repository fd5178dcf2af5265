"""The page on the preset `default`, made of nothing but the numbers of `defaults.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLUE, GREEN, ORANGE, SKY
from studies.marks import draw_seeds
from studies.statistics import Estimate, difference, estimate, mean_of, verdict
from studies.tables import Lines, figure, interval, markdown, placed, signed, title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a robust agent is to reach: this share of the way from random play to the reference, in the worst cell.
BAR = 0.95
_REFERENCE = "worst_case"
#: Random models without a worst case, and the agents that are to beat it.
_BASELINE, _ROBUST = "ddqn_dr", ("rtd_dqn", "deep_rok")
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


def caveat(found: Mapping[str, Any], envs: Iterable[str], epsilon: float) -> str:
    """Where the reference itself fails, so that the share says little; empty if it does nowhere."""
    known = {env: found["references"][env][f"{epsilon:g}"][_REFERENCE]["success"] for env in envs}
    failing = [f"`{env}` ({100 * rate:.0f} %)" for env, rate in known.items() if rate < 0.5]
    if not failing:
        return ""
    return (
        f"On {', '.join(failing)} the reference itself succeeds in less than half of the episodes: there a share of "
        "100 % is no success."
    )


# --- verdicts ------------------------------------------------------------------------------------------


def _agents(found: Mapping[str, Any]) -> list[str]:
    """Those that were measured anywhere."""
    return [agent for agent in _COLOURS if any(rows.get(agent, {}).get("seeds") for rows in found["rows"].values())]


def _shares(found: Mapping[str, Any], agent: str, epsilon: float) -> dict[str, list[float]]:
    """Environment -> of each seed the share, where the agent was measured."""
    envs = [env for env, rows in found["rows"].items() if rows.get(agent, {}).get("seeds")]
    return {env: relative(found, env, agent, epsilon) for env in envs}


def _reached(shares: Iterable[float]) -> int:
    return sum(share >= BAR for share in shares)


def _of_means(shares: Mapping[str, list[float]]) -> str:
    return f"{_reached(map(np.mean, shares.values()))} of {len(shares)}"


def aim(found: Mapping[str, Any]) -> str:
    """On how many environments each robust agent reaches the aim by its mean; empty if there is none."""
    first, *others = found["epsilons"]
    agents = [agent for agent in _ROBUST if agent in _agents(found)]
    if not agents:
        return ""
    reached = {
        epsilon: [_of_means(_shares(found, agent, epsilon)) for agent in agents] for epsilon in found["epsilons"]
    }
    parts = (f"{title(agent)} on {count}" for agent, count in zip(agents, reached[first], strict=True))
    without = f" Without random actions it is {' and '.join(reached[others[-1]])}." if others else ""
    return f"**By the mean over seeds the aim is reached by {' and by '.join(parts)} environments.**{without}"


def aim_table(found: Mapping[str, Any]) -> Lines:
    """Of each agent the environments on which its mean reaches the aim, and its runs that do."""
    header = [
        "agent",
        *(f"{what}, ε = {epsilon:g}" for what in ("environments", "runs") for epsilon in found["epsilons"]),
    ]
    lines: Lines = [header]
    for agent in _agents(found):
        of = [_shares(found, agent, epsilon) for epsilon in found["epsilons"]]
        runs = [[share for its in shares.values() for share in its] for shares in of]
        lines.append([title(agent), *map(_of_means, of), *(f"{_reached(its)} of {len(its)}" for its in runs)])
    return lines


def turned(found: Mapping[str, Any]) -> str:
    """Environments where random actions decide whether most runs reach the aim; empty if there is none."""
    first, last = found["epsilons"][0], found["epsilons"][-1]
    said = []
    for env in found["rows"]:
        counts, total = [], 0
        for epsilon in (first, last):
            runs = [share for agent in _agents(found) for share in _shares(found, agent, epsilon).get(env, [])]
            counts.append(_reached(runs))
            total = len(runs)
        if abs(counts[0] - counts[1]) > total / 2:
            said.append(f"on `{env}` {counts[0]} of {total} runs reach the aim with them and {counts[1]} without")
    if not said:
        return ""
    return f"Random actions can decide: {'; '.join(said)}. The reference is planned without them."


def apart(
    found: Mapping[str, Any], first: str, second: str, epsilon: float, score: str = "share"
) -> dict[str, Estimate]:
    """Environment -> difference of two agents' means over seeds, with Welch's 95 % interval.

    Args:
      found: what `defaults.json` holds.
      first: an agent.
      second: the one that is subtracted.
      epsilon: of the test.
      score: the share of the reference, or a score that is stored.
    """

    def of(env: str, agent: str) -> list[float]:
        return relative(found, env, agent, epsilon) if score == "share" else each(found, env, agent, epsilon, score)

    both = [env for env, rows in found["rows"].items() if all(rows.get(a, {}).get("seeds") for a in (first, second))]
    return {env: difference(of(env, first), of(env, second)) for env in both}


def against_random_models(found: Mapping[str, Any], epsilon: float) -> str:
    """What the intervals say of the robust agents against domain randomisation; empty where it was not measured."""
    sentences, count = [], 0
    for agent in (agent for agent in _ROBUST if {agent, _BASELINE} <= {*_agents(found)}):
        said = verdict(apart(found, agent, _BASELINE, epsilon))
        total = sum(map(len, said))
        count += total
        sentences.append(f"- {title(agent)} is {placed(said)}.")
        worse = {
            env: change
            for env, change in apart(found, agent, _BASELINE, epsilon, "mean_return").items()
            if change.interval and change.interval[1] < 0
        }
        if worse:
            means = (
                f"{np.mean(each(found, env, agent, epsilon, 'mean_return')):.3g} against "
                f"{np.mean(each(found, env, _BASELINE, epsilon, 'mean_return')):.3g} on `{env}`"
                for env in worse
            )
            sentences[-1] += f" The price, in mean return over all cells: {', '.join(means)}."
    if not sentences:
        return ""
    text = f"Against {title(_BASELINE)}, which trains on random models, in the worst cell:\n\n" + "\n".join(sentences)
    text += f"\n\nOf {count} such intervals about {count / 20:.1g} would exclude 0 by chance."
    if "market" in found["rows"]:
        known = found["references"]["market"][f"{epsilon:g}"]
        gap = known[_REFERENCE]["worst_cell"] - known["random"]["worst_cell"]
        text += f" On `market` the reference earns only {gap:.3f} more than random play, so shares are large there."
    return text


def difference_table(found: Mapping[str, Any], epsilon: float) -> Lines:
    """The robust agents minus domain randomisation: in the worst cell, in points of the share, and in mean return."""
    agents = [agent for agent in _ROBUST if {agent, _BASELINE} <= {*_agents(found)}]
    scores = {"worst cell, points": ("share", 100.0, "+z.1f"), "mean return": ("mean_return", 1.0, "+.2g")}
    columns = [(agent, what) for what in scores for agent in agents]
    lines: Lines = [["environment", *(f"{title(agent)}: {what}" for agent, what in columns)]]
    for env in found["rows"]:
        cells = []
        for agent, what in columns:
            score, factor, form = scores[what]
            cells.append(signed(apart(found, agent, _BASELINE, epsilon, score).get(env), factor, form))
        if any(cell != "–" for cell in cells):
            lines.append([f"`{env}`", *cells])
    return lines


# --- tables --------------------------------------------------------------------------------------------

#: What is printed of the returns.
_RETURNS = ("worst_cell", "cvar10", "mean_return")


def table(found: Mapping[str, Any], epsilon: float, short: bool = False) -> Lines:
    """A header and a line for each environment and agent that was measured."""
    header = ["environment", "agent", "worst cell, of reference %", "95 % interval", "worst seed %", "reach 95 %"]
    header += ["worst cell", "CVaR₁₀", "mean return", "success %"]
    if short:
        header = ["", "", "% of ref.", "interval", "worst", "reach", "worst cell", "CVaR10", "return", "success"]
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
                    f"{100 * share.value:z.1f}",
                    interval(share.interval, 100, "z.1f"),
                    f"{100 * min(shares):z.1f}",
                    f"{sum(s >= BAR for s in shares)} of {len(shares)}",
                    *(f"{np.mean(each(found, env, agent, epsilon, of)):.3g}" for of in _RETURNS),
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


#: How much success the robust agents may lose against a preset that was tuned for the environment.
_LOSS = 0.01


def _tuned_verdict(found: Mapping[str, Any]) -> str:
    """Which of the robust agents meets the aim, by its mean."""
    tuned, parts = found["tuned"], []
    for agent in _ROBUST:
        its = found["rows"][tuned["env"]].get(agent, {}).get("seeds")
        if its:
            success = [seed["paper"]["success"] for seed in its.values()]
            change = difference(success, tuned["success"][agent])
            parts.append(
                f"{title(agent)} {'meets' if change.value >= -_LOSS else 'misses'} it "
                f"({signed(change, 100, '+.1f').strip('*')})"
            )
    return f"By its mean {' and '.join(parts)}." if parts else ""


def _against_tuned(found: Mapping[str, Any]) -> str:
    """The section on the environment that has a preset of its own; empty where it was not measured."""
    tuned = found["tuned"]
    if tuned["env"] not in found["rows"]:
        return ""
    return f"""## Against settings tuned for Cart-Pole

The preset `tuned` was made for Cart-Pole alone. Both are tested on the paper's grid of 49 models, where actions are
random with probability {tuned["epsilon"]:g}. The score is the success over all cells. The aim for the two robust agents
is to lose at most one point. {_tuned_verdict(found)}

{markdown(tuned_table(found), texts=(1,))}

"""


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[f"ε = {epsilon:g}", *table(found, epsilon, short=True)] for epsilon in found["epsilons"]]


#: What agents do that reach a reference's share without success.
_NO_SUCCESS = {"rocket": "The runs on `rocket` hover above the ground until the time is up, as the reference does."}


def _differences(found: Mapping[str, Any], epsilon: float) -> str:
    """The section on differences; empty where domain randomisation was not measured beside a robust agent."""
    lines = difference_table(found, epsilon)
    if len(lines[0]) == 1:
        return ""
    return f"""## Minus random models

The robust agents minus {title(_BASELINE)}, with ε = {epsilon:g}: the return in the worst cell in percentage points of
the share, and the mean return over all cells, which is the price of robustness where it is negative. 95 % intervals are
Welch's; bold where 0 is outside.

{markdown(lines)}

"""


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
([Where can robustness pay?](environments.md)). A share above 100 % is possible: that policy is planned against a
nature that may choose another model in every step, and without the random actions that are played here. The aim is
{100 * BAR:.0f} %.

{aim(found)} {turned(found)}

{markdown(aim_table(found))}

{caveat(found, found["rows"], first)} {" ".join(text for env, text in _NO_SUCCESS.items() if env in found["rows"])}

{against_random_models(found, first)}

{figure("defaults", "share", "The worst cell of each agent on each environment, as a share of the reference")}

A dot is a seed, a bar the mean over seeds, with random actions. An arrow stands for seeds outside the axis, with their
mean.

This page is generated, with its figure and [defaults.json](defaults/defaults.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. Each cell is played for {found["episodes"]} episodes. All seeds and the references
play the same ones: starts, random actions and noise are equal. So the intervals cover seeds, not test episodes.
{diverged(found)}{missing(found)}

The numbers of the preset were chosen with RTD-DQN and Deep-RoK, on other seeds than these and on models further inside
the box. Double-DQN has the same ones, where it reads them. Weights are chosen by the worst of held-out models of the
box for every agent, also for Double-DQN, which learns on the nominal model alone. Five earlier variants of Deep-RoK
were measured on these seeds, one of them on two environments only. The poor results of the first four on Cart-Pole led
to the joint update, to a smaller prior covariance, to more observation noise, and to early weights that are compared at
the end. The fifth had a full covariance and two layers of 20 units, and was weak on `market` and `mountain_car`; rank
and layers were then chosen on two other seeds.

## With random actions

Actions are random with probability ε = {first:g}. *Reach 95 %*: seeds whose own share is at least that. *CVaR₁₀*: the
mean return over the worst tenth of the cells. *Mean return* and *success*: over all cells. Means are plain ones, over
seeds, with bootstrap intervals.

{markdown(table(found, first), texts=(1,))}

## Without random actions

{markdown(table(found, last), texts=(1,))}

{_differences(found, first)}{_against_tuned(found)}## The references

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
            values = 100 * np.array(relative(found, env, agent, epsilon))
            mean = Estimate(float(np.mean(values)), None)
            draw_seeds(panel, height, values, mean, _COLOURS[agent], above=0.0, limits=_RANGE)
    panel.axvline(100 * BAR, color="black", linewidth=0.8, linestyle=":")
    where: dict[str, Any] = {"xycoords": panel.get_xaxis_transform(), "textcoords": "offset points"}
    panel.annotate(f"aim: {100 * BAR:.0f} %", (100 * BAR, 1), xytext=(0, 3), **where, ha="center", fontsize=8)
    panel.set_yticks(range(len(envs)), [names[env] for env in reversed(envs)])
    panel.set_xlim(_RANGE[0] - 3, _RANGE[1] + 3)
    panel.xaxis.set_major_formatter("{x:.0f} %")
    panel.set_xlabel("return with the worst model: 0 % is random play, 100 % the policy planned for the worst case")
    panel.grid(axis="x", linewidth=0.6, alpha=0.5)
    marks = [panel.plot([], [], "o", color=_COLOURS[agent])[0] for agent in agents]
    words = [title(agent) for agent in agents]
    chart.legend(marks, words, loc="outside lower center", ncols=len(agents), frameon=False, fontsize=9)
    return chart


_RANGE = (-50.0, 180.0)
