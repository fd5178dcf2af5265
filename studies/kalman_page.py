"""The page of the Kalman family, made of nothing but the numbers of `kalman.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.page import Lines, beyond_table, coverage_table, main_table, markdown, with_interval

#: What each table of Cart-Pole compares.
_ORDER = {
    "structures": "Structures of the covariance",
    "exploration": "Exploration",
    "confidence": "Changing confidence",
}


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    tables: list[list[Any]] = [
        [title, *main_table(found["tables"][name], short=True)]
        for name, title in _ORDER.items()
        if name in found["tables"]
    ]
    tables.append(["Deep sea: seeds whose policy keeps to the treasure", *_dives(found)])
    tables.append(["Coverage of intervals for Q, in %", *_coverage(found)])
    return tables


def kalman_page(found: Mapping[str, Any]) -> str:
    """Markdown of all tables and figures.

    Args:
      found: what `kalman.json` holds; a table that it lacks is left out.
    """
    parts = [_introduction(found), _structures(found), _exploration(found)]
    if "confidence" in found["tables"]:
        parts.append(_confidence(found))
    parts.append(_calibration(found))
    if found["cautious"]:
        parts.append(_cautious(found))
    if "warm_start" in found["tables"]:
        parts.append(_warm_start(found))
    return "\n".join(parts)


def _introduction(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    seeds = max(row["seeds"] for row in tables["exploration"].values())
    few = max(row["seeds"] for row in tables["structures"].values())
    return f"""# The Kalman family, measured

This page is generated, with its figures and [kalman.json](kalman/kalman.json), by

```sh
deeprok reproduce --study kalman --seeds {seeds}
```

How to use what is measured here is told in [the Kalman filter](estimators.md). Unless said otherwise: Deep-RoK, preset
`tuned`, uncertain Cart-Pole, the last weights of {few} seeds ({seeds} for exploration), over the paper's grid with
ε = 0.1 and {found["test_episodes"]} episodes a cell, interquartile means with 95 % bootstrap intervals over seeds.
*Episodes to 95 %* is when the return over the grid first stayed above 95 % of the ceiling's for two evaluations, which
come every 20 episodes. The ceiling, a regulator for each cell, succeeds in
{100 * found["ceiling"]["iqm_success"]:.1f} %.
"""


def _structures(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    return f"""## Structures of the covariance

{markdown(main_table(tables["structures"]))}
{_figure("structures", "Return over the grid as training goes on, for each structure")}
Each structure has the observation noise, of 0.4, 0.12 and 0.04, with the highest mean success on the tuning seeds 1000
to 1002, which no table reports otherwise:

{markdown(_tuning(tables["structure_tuning"]))}
What they cost grows with the numbers they keep: see [structures](estimators.md#structures-of-p).
"""


def _exploration(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    return f"""## Exploration

{markdown(main_table(tables["exploration"]))}
{_figure("exploration", "Return over the grid as training goes on, for each way to explore")}
`thompson` acts on weights drawn from N(θ, P) at the start of each episode, `ucb` on Q + scale·σ, both without ε while
they train. The scale, {_changes(tables["exploration"], "thompson", "explore_scale")} and
{_changes(tables["exploration"], "ucb", "explore_scale")}, was the best of 0.3, 1, 3, 10 and 30
(Thompson: up to 10) on the tuning seeds.

### Deep sea

A treasure lies at the end of the one way, of 2ᴺ, on which every step goes right, and each step to the right costs a
little. The network sees row and column as two numbers. {_divers(found)} episodes; the nominal label with a diagonal
covariance (`ekf_dqn`).

{markdown(_dives(found))}
{_figure("deep-sea", "Episode of the first treasure for each seed, depth and way to explore")}
*Found* counts the seeds that ever found the treasure, *kept* those whose greedy policy goes for it at the end.
"""


def _confidence(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    return f"""## Changing confidence

The worst of 20 models (CVaR at 0.05) from the first update on, or approached from the mean over the models: over the
first 15,000 steps, or as the filter's gain falls below its first value.

{markdown(main_table(tables["confidence"]))}
{_figure("confidence", "Return over the grid as training goes on, for each course of the level")}
{_beyond(found, "confidence")}
"""


def _calibration(found: Mapping[str, Any]) -> str:
    return f"""## Calibration

An interval that claims 95 % should hold the truth in 95 % of the cases. For EKF-DQN on Cart-Pole the truth is what its
greedy policy earns from 200 visited states after each action, averaged over 32 models of the box; for Deep-RoK on the
ferry it is the exact robust Q* of every cell that can be reached. The temperature multiplies all deviations; that of a
seed is fitted on the other seeds.

{markdown(_coverage(found))}
{_figure("calibration", "Coverage against what intervals claim")}
"""


def _cautious(found: Mapping[str, Any]) -> str:
    return f"""## Caution after training

The share of successes when Deep-RoK's policy acts on Q − κσ (`evaluate --policy lcb --kappa κ`), on the grid, outside
the box, and with sensor noise (the mean of 3 seeds):

{markdown(_caution(found))}
"""


def _warm_start(found: Mapping[str, Any]) -> str:
    return f"""## A posterior as the next prior

Gravity rises by half. Forty episodes from fresh weights, with ε falling over 3000 steps, and forty episodes that begin
with the posterior of the structure `full` above and ε = 0.1 (`--prior RUN`). Success where gravity is 14.7 m/s²:

{markdown(_warm(found))}
"""


def _figure(name: str, what: str) -> str:
    return f"![{what}](kalman/{name}.png)\n\n[As SVG](kalman/{name}.svg)\n"


def _changes(table: Mapping[str, Any], row: str, name: str) -> str:
    return f"{table[row]['changes'][name]:g}"


def _tuning(table: Mapping[str, Any]) -> Lines:
    lines: dict[str, dict[float, float]] = {}
    for row in table.values():
        changes = row["changes"]
        mean = sum(row["per_seed"]["success"]) / len(row["per_seed"]["success"])
        lines.setdefault(changes["covariance"], {})[changes["observation_noise"]] = mean
    noises = sorted({noise for line in lines.values() for noise in line}, reverse=True)
    return [
        ["mean success % at Pₙ", *(f"{noise:g}" for noise in noises)],
        *([name, *(f"{100 * line[noise]:.1f}" for noise in noises)] for name, line in lines.items()),
    ]


def _divers(found: Mapping[str, Any]) -> str:
    return str(next(iter(next(iter(found["deep_sea"].values())).values()))["episodes"])


def _dives(found: Mapping[str, Any]) -> Lines:
    depths = found["deep_sea"]
    ways = list(next(iter(depths.values())))
    header = ["depth", *(f"{way}: {what}" for way in ways for what in ("found", "median episode", "kept"))]
    lines = []
    for depth, rows in depths.items():
        line = [depth]
        for way in ways:
            first = rows[way]["first"]
            seen = sum(x is not None for x in first)
            median = rows[way]["median_first"]
            line += [
                f"{seen} of {len(first)}",
                "never" if median > rows[way]["episodes"] else f"{median:.0f}",
                f"{sum(rows[way]['kept'])} of {len(first)}",
            ]
        lines.append(line)
    return [header, *lines]


def _coverage(found: Mapping[str, Any]) -> Lines:
    names = {"ekf_dqn": "EKF-DQN, Cart-Pole"}
    return coverage_table({names.get(name, f"Deep-RoK, {name}"): row for name, row in found["calibration"].items()})


def _caution(found: Mapping[str, Any]) -> Lines:
    rows = found["cautious"]
    names = {"grid": "the grid", "outside": "outside the box", "sensor_noise": "sensor noise"}
    return [
        ["κ", *names.values()],
        *([kappa, *(f"{100 * row[name]:.1f}" for name in names)] for kappa, row in rows.items()),
    ]


def _beyond(found: Mapping[str, Any], name: str) -> str:
    return markdown(beyond_table(found["tables"][name], found["conditions"]))


def _warm(found: Mapping[str, Any]) -> Lines:
    rows = {"before: structure full": found["tables"]["structures"]["full"], **found["tables"]["warm_start"]}
    return [
        ["", "success % at 14.7 m/s²", "success % at 9.8 m/s²"],
        *(
            [name, with_interval(row["beyond"]["strong_gravity"], 100), f"{100 * row['iqm_success']:.1f}"]
            for name, row in rows.items()
        ),
    ]
