"""The page on deep exploration, made of nothing but the numbers of `deep_sea.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLUE, GREEN, ORANGE
from studies.statistics import fisher
from studies.tables import Lines, figure, markdown, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What each agent is called, its colour and its marker.
_STYLES = {
    "dqn": ("DQN, ε-greedy", ORANGE, "s"),
    "ekf_dqn": ("EKF-DQN, Thompson sampling", GREEN, "D"),
    "boot_dqn": ("Bootstrapped DQN", BLUE, "o"),
}


def name_of(agent: str) -> str:
    """What the page calls an agent."""
    return _STYLES[agent][0]


def solved(found: Mapping[str, Any], agent: str, depth: str) -> list[float]:
    """Of each seed the episodes that it took; infinite for one that has not solved it."""
    seeds = found["rows"][agent].get(depth, {}).get("seeds", {})
    return [np.inf if its["solved"] is None else its["solved"] for its in seeds.values()]


def median(found: Mapping[str, Any], agent: str, depth: str) -> float:
    """The median over seeds of the episodes to solve it; infinite if half of them have not."""
    return float(np.quantile(solved(found, agent, depth), 0.5, method="higher"))


def depths_of(found: Mapping[str, Any]) -> list[str]:
    """The depths that were measured with any agent."""
    return sorted({depth for rows in found["rows"].values() for depth in rows}, key=int)


def exponent(found: Mapping[str, Any], agent: str) -> float | None:
    """k of episodes ~ depthᵏ, by least squares through the medians that are finite; None for fewer than three."""
    points = [(int(depth), median(found, agent, depth)) for depth in depths_of(found) if solved(found, agent, depth)]
    finite = np.log([(depth, episodes) for depth, episodes in points if np.isfinite(episodes)])
    return float(np.polyfit(finite[:, 0], finite[:, 1], 1)[0]) if len(finite) >= 3 else None


def _episodes(number: float, budget: int) -> str:
    return f"{number:.0f}" if np.isfinite(number) else f"> {budget}"


def table(found: Mapping[str, Any]) -> Lines:
    """A header, and a line for each depth."""
    agents, budget = list(found["rows"]), found["episodes"]
    header = ["depth"]
    for agent in agents:
        header += [f"{name_of(agent)}: solved", "median episodes"]
    lines: Lines = [[*header, "2ᴺ"]]
    for depth in depths_of(found):
        line = [depth]
        for agent in agents:
            its = solved(found, agent, depth)
            count = f"{int(np.isfinite(its).sum())} of {len(its)}" if its else "–"
            line += [count, _episodes(median(found, agent, depth), budget) if its else "–"]
        lines.append([*line, f"{2 ** int(depth):.3g}"])
    return lines


def seed_table(found: Mapping[str, Any]) -> Lines:
    """A header, and a line for each agent and depth with the episodes of every seed."""
    lines: Lines = [["agent", "depth", "episodes to solve it, by seed", "first episode with the treasure, by seed"]]
    for agent, rows in found["rows"].items():
        for depth, its in rows.items():
            each = its["seeds"].values()
            cells = [", ".join(str(seed[key]) if seed[key] else "–" for seed in each) for key in ("solved", "first")]
            lines.append([name_of(agent), depth, *cells])
    return lines


def _settings(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {value:g}" for name, value in changes.items())


def trial_table(found: Mapping[str, Any]) -> Lines:
    """A header, and a line for each trial."""
    lines: Lines = [["agent", "settings", "solved", "episodes, by seed", "chosen"]]
    for agent, trials in found["tuning"]["trials"].items():
        for trial in trials:
            its = [seed["solved"] for seed in trial["seeds"].values()]
            lines.append(
                [
                    name_of(agent),
                    _settings(trial["changes"]),
                    f"{sum(x is not None for x in its)} of {len(its)}",
                    ", ".join("–" if x is None else str(x) for x in its),
                    "yes" if trial["changes"] == found["chosen"].get(agent) else "",
                ]
            )
    return lines


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    header, *lines = table(found)
    short = ["", *(word for agent in found["rows"] for word in (agent, "median")), "2^N"]
    assert len(short) == len(header)
    return [["Deep sea: seeds that solved it, and median episodes", short, *lines]]


def _growth(found: Mapping[str, Any]) -> str:
    """Sentences on how the episodes grow with the depth."""
    said = []
    for agent in found["rows"]:
        if (power := exponent(found, agent)) is not None:
            said.append(
                f"The medians of {name_of(agent)} grow as the depth to the power of {power:.1f}, by least squares "
                "through these few points."
            )
    return " ".join(said) or "No agent has three finite medians, so that no growth can be fitted."


def deepest(found: Mapping[str, Any]) -> str:
    """The deepest sea that at least half of an agent's seeds have solved."""
    parts = []
    for agent in found["rows"]:
        depths = [int(depth) for depth in depths_of(found) if (its := solved(found, agent, depth)) and _most(its)]
        parts.append(f"{name_of(agent)} to depth {max(depths)}" if depths else f"{name_of(agent)} at no depth")
    return f"**At least half of the seeds solve it: {', '.join(parts)}.**" if parts else ""


def _most(episodes: list[float]) -> bool:
    return bool(np.mean(np.isfinite(episodes)) >= 0.5)


def compared(found: Mapping[str, Any], first: str = "ekf_dqn", second: str = "dqn") -> str:
    """Whether two agents' seeds solve it equally often, at the depths that both were measured at."""
    if not {first, second} <= set(found["rows"]):
        return ""
    parts = []
    for depth in depths_of(found):
        pair = [solved(found, agent, depth) for agent in (first, second)]
        if all(pair):
            # Infinite episodes count as failed.
            p = fisher([-one for one in pair[0]], [-one for one in pair[1]], -found["episodes"])
            counts = " and ".join(f"{int(np.isfinite(its).sum())} of {len(its)}" for its in pair)
            parts.append(f"{counts} seeds at depth {depth} (p = {p:.2g})")
    if not parts:
        return ""
    text = f"{name_of(first)} and {name_of(second)} solve it with {', '.join(parts)}; p is that of Fisher's exact test."
    if found["chosen"].get(second, {}).get("epsilon_fraction") == 1:
        text += " Their medians can't be compared: ε falls over the whole run, so ε-greedy solves it late or never."
    return text


def _limits(found: Mapping[str, Any]) -> str:
    """What was not run, and seeds that were lucky."""
    last = int(depths_of(found)[-1]) if depths_of(found) else 0
    said = [f"bsuite goes to depth {_DEEPEST}; depths beyond {last} were not run."] if 0 < last < _DEEPEST else []
    lucky = [
        f"{name_of(agent)} at depth {depth} in episode {its['solved']}"
        for agent, rows in found["rows"].items()
        for depth, row in rows.items()
        for its in row["seeds"].values()
        if its["solved"] is not None and its["solved"] == its["first"]
    ]
    if lucky:
        said.append(
            f"An early find counts as solved, since it is more than a tenth of so few episodes: {'; '.join(lucky)}."
        )
    return " ".join(said)


#: Of bsuite's deep seas.
_DEEPEST = 50


def _diverged(found: Mapping[str, Any]) -> str:
    broken = [
        f"{name_of(agent)}, depth {depth}: {', '.join(seeds)}"
        for agent, rows in found["rows"].items()
        for depth, its in rows.items()
        if (seeds := [seed for seed, one in its["seeds"].items() if one["diverged"]])
    ]
    return f"Seeds whose weights became infinite or no numbers: {'; '.join(broken)}." if broken else "No seed diverged."


def page(found: Mapping[str, Any]) -> str:
    """Markdown of the tables and the figure.

    Args:
      found: what `deep_sea.json` holds.
    """
    tuning = found["tuning"]
    shared = found["shared"]
    trials = max((len(its) for its in tuning["trials"].values()), default=0)
    return wrapped(
        f"""# Deep exploration

The deep sea of bsuite [^bsuite]: N rows of N cells, a step leads one row down, to the left or to the right.
Going right in all N steps finds a treasure of 1; each step to the right costs 0.01 / N. Which of the two
actions goes right is drawn for each cell, another map for every seed, and the observation is one-hot. So
nothing that is learned in one cell helps in another. Random actions find the treasure once in 2ᴺ episodes.
An agent that explores deeply returns to states that it has tried little, though they are N steps away.

{deepest(found)} {compared(found)}

{figure("deep_sea", "episodes", "Episodes to solve the deep sea against its depth, for each agent and seed")}

A mark is a seed, a line goes through the medians. *Solved* is what bsuite's figures show: less than 90 % of the
episodes so far were bad, that is, the treasure was found in more than a tenth of them. (The default of its analysis
code is 80 %.) A run has {found["episodes"]} episodes. An agent whose seeds all failed at a depth was not
taken deeper. {_limits(found)}

{markdown(table(found))}

The last column is the mean number of episodes until random actions find the treasure for the first time.
{_growth(found)} {_diverged(found)}

## Agents

- **DQN, ε-greedy**: `dqn`. The probability of a random action falls from 1 to
  {found["agents"]["dqn"]["epsilon_end"]:g}.
- **EKF-DQN, Thompson sampling**: `ekf_dqn --explore thompson`, an extended Kalman filter over the weights,
  which acts on weights drawn from its posterior at the start of each episode. The covariance is diagonal, since
  there are some N² inputs. Its targets are those of the posterior's mean. So the uncertainty about later cells
  does not reach the values of earlier ones. A diagonal covariance can't tell an action that was tried from the
  other one of the same cell, since both share the cell's weights.
- **Bootstrapped DQN**: [`boot_dqn`](algorithms/boot_dqn.md), {found["agents"]["boot_dqn"]["members"]} members
  with prior networks, each with its own targets.

All have one hidden layer of {shared["hidden"][0]} units, a discount of {shared["discount"]:g}, a replay of
{shared["replay_size"]} transitions, an update every {shared["train_every"]} steps and a target network that is
copied every {shared["target_period"]} steps. For the two that learn by gradients the observation is multiplied
by N, so that its mean square is one.

## How the settings were chosen

Each agent had {trials} trials at depth {tuning["depth"]}, with {tuning["episodes"]} episodes, on other seeds
and maps than those above. The best has the fewest episodes in the mean over seeds, where a seed that has not
solved it counts as twice the budget.

{markdown(trial_table(found), texts=(1, 3, 4))}

## Every seed

{markdown(seed_table(found), texts=(2, 3))}

This page is generated, with its figure and [deep_sea.json](deep_sea/deep_sea.json), by

```sh
{found["command"]}
```

which adds to what its folder holds.

[^bsuite]: I. Osband et al., "Behaviour suite for reinforcement learning", ICLR, 2020, arXiv:1908.03568.
"""
    )


def figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"episodes": dives(found)}


def dives(found: Mapping[str, Any]) -> Figure:
    """Episodes to solve it against the depth: a mark for each seed, above the budget those that have not.

    Args:
      found: what `deep_sea.json` holds.
    """
    from matplotlib.figure import Figure

    chart = Figure(figsize=(8.4, 4.8), layout="constrained")
    panel = chart.subplots()
    depths, budget = [int(depth) for depth in depths_of(found)], found["episodes"]
    gap = min(np.diff(depths), default=10)
    agents = [agent for agent in _STYLES if found["rows"].get(agent)]
    lowest = float(budget)
    for k, agent in enumerate(agents):
        label, colour, marker = _STYLES[agent]
        shift = 0.07 * gap * (k - (len(agents) - 1) / 2)
        for depth in map(int, found["rows"][agent]):
            its = np.sort(solved(found, agent, str(depth)))
            across = depth + shift + 0.03 * gap * np.linspace(-1, 1, len(its))
            done = np.isfinite(its)
            panel.scatter(across[done], its[done], s=18, color=colour, marker=marker, alpha=0.75, linewidth=0)
            # Each agent's own height, so that counts can be read.
            above = budget * (1.35 + 0.32 * k)
            panel.scatter(across[~done], np.full((~done).sum(), above), s=16, facecolor="none", edgecolor=colour,
                          marker=marker, linewidth=0.9)  # fmt: skip
            lowest = min([lowest, *its[done]])
        line = [(depth + shift, median(found, agent, str(depth))) for depth in map(int, found["rows"][agent])]
        line = [point for point in line if np.isfinite(point[1])]
        panel.plot(*zip(*line, strict=True) if line else ([], []), color=colour, linewidth=1.2, alpha=0.8)
        panel.plot([], [], color=colour, marker=marker, markersize=5, linewidth=1.2, label=label)
    every = np.linspace(depths[0] - gap / 2, depths[-1] + gap / 2, 200)
    random = 2.0**every
    panel.plot(every[random <= budget], random[random <= budget], color="grey", linewidth=1, linestyle="--",
               label="2ᴺ: random actions")  # fmt: skip
    panel.axhline(budget, color="black", linewidth=0.8, linestyle=":")
    panel.set_yscale("log")
    panel.set_ylim(lowest / 1.6, budget * 2.6)
    panel.set_xlim(every[0], every[-1])
    panel.annotate(f"not solved within {budget} episodes (open marks)", (every[0], budget * 2.25), xytext=(5, 0),
                   textcoords="offset points", fontsize=8, va="center")  # fmt: skip
    ticks = [x for x in (10, 30, 100, 300, 1000, 3000, 10_000) if lowest / 1.6 <= x < 0.8 * budget] + [budget]
    panel.set_yticks(ticks, [str(x) for x in ticks])
    panel.minorticks_off()
    panel.set_xticks(depths)
    panel.set_xlabel("depth N: rows, columns and steps of an episode")
    panel.set_ylabel("episodes until solved")
    panel.grid(axis="y", linewidth=0.5, alpha=0.4)
    chart.legend(loc="outside upper center", ncols=len(agents) + 1, frameon=False, fontsize=8)
    return chart
