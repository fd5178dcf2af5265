"""The page of the Kalman agents, made of nothing but the numbers of `kalman.json` and the stored benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies import plan
from studies.page import benchmark
from studies.tables import (
    Lines,
    beyond_table,
    coverage_table,
    earlier_anchor,
    figure,
    main_table,
    markdown,
    mean_success,
    success,
    title,
    with_interval,
    wrapped,
)

#: What each table of Cart-Pole compares.
_ORDER = {
    "structures": "Structures of the covariance",
    "exploration": "Exploration",
    "confidence": "Annealing the robustness level",
}


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    tables: list[list[Any]] = [
        [text, *main_table(found["tables"][name], short=True)]
        for name, text in _ORDER.items()
        if name in found["tables"]
    ]
    tables.append(["Empirical coverage of intervals for Q, in %", *_coverage(found)])
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
    return wrapped("\n".join(parts))


def _episodes(found: Mapping[str, Any]) -> int:
    """The test episodes that were asked for; the table of structures, which `test_episodes` is of, plays a fifth."""
    return 5 * int(found["test_episodes"])


def _introduction(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    seeds = max(row["seeds"] for row in tables["exploration"].values())
    few = max(row["seeds"] for row in tables["structures"].values())
    exam = plan.structures(1, _episodes(found)).exam
    return f"""# The Kalman agents, measured

Covariance structures, exploration, robustness level, calibration and warm starts of the agents whose weights are
estimated by an extended Kalman filter. [The Kalman filter](estimators.md) explains how to use them. This page is
generated, with its figures and [kalman.json](kalman/kalman.json), by

```sh
deeprok reproduce --study kalman --seeds {seeds}
```

Unless a section says otherwise:

- The agent is Deep-RoK with preset `tuned` on the uncertain Cart-Pole; the last weights of {few} seeds ({seeds} for
  exploration) are evaluated. [Results](results.md#how-it-was-measured) defines the columns.
- The paper's grid is played with ε = 0.1 and {exam.grid} episodes a cell; learning curves and environments beyond the
  box with {exam.beyond}, tuning with {plan.structure_tuning(_episodes(found)).exam.grid}.
- Settings were chosen by the success on this same grid, on other seeds.
- The ceiling, an LQR for each cell, succeeds in {100 * found["ceiling"]["iqm_success"]:.1f} % of the episodes. It is a
  reference, not an upper bound: with fewer test episodes its regrets are noisier, and some are negative.
"""


def _structures(found: Mapping[str, Any]) -> str:
    tables = found["tables"]
    return f"""## Structures of the covariance

{markdown(main_table(tables["structures"]))}
{figure("kalman", "structures", "Return over the grid during training, for each structure")}
Each structure has the observation noise, of 0.4, 0.12 and 0.04, with the highest mean success on the tuning seeds 1000
to 1002, which no other table reports; differences below half a point count as none:

{markdown(_tuning(tables["structure_tuning"]))}{_update_times()}
The cost grows with the number of values that a structure stores: see [structures](estimators.md#structures-of-p).
"""


def _update_times() -> str:
    """What an update costs, if it was measured."""
    names = {"Adam": "Adam", "full": "full", "low_rank(10)": "low rank (10)", "diagonal": "diagonal"}
    times = {text: benchmark("structures", "times", f"n = 562, B = 1: {name}") for name, text in names.items()}
    known = {text: time for text, time in times.items() if time is not None}
    if not known:
        return ""
    lines = [
        ["median time of one update in µs", *known],
        ["562 weights, one observation", *map("{:.0f}".format, known.values())],
    ]
    return f"""
What an update of this network costs on one core ([benchmarks](benchmarks.md#structures)):

{markdown(lines)}"""


def _exploration(found: Mapping[str, Any]) -> str:
    table = found["tables"]["exploration"]
    scales = {name: f"{table[name]['changes']['explore_scale']:g}" for name in ("thompson", "ucb")}
    return f"""## Exploration

{markdown(main_table(table))}
{figure("kalman", "exploration", "Return over the grid during training, for each exploration strategy")}
Thompson sampling acts on weights drawn from the posterior N(θ, P) at the start of each episode; the upper confidence
bound acts on Q + σ. A scale multiplies the posterior's standard deviation. Neither uses ε during training. The
scales, {scales["thompson"]} and {scales["ucb"]}, were the best of 0.3, 1, 3, 10 and 30 (Thompson sampling: up to 10)
on the tuning seeds; these trials are not stored.

{earlier_anchor("deep-sea")}
Cart-Pole does not need deep exploration. [Deep exploration](deep_sea.md) has an environment that does.
"""


def _confidence(found: Mapping[str, Any]) -> str:
    table = found["tables"]["confidence"]
    beyond = plan.confidence(1, _episodes(found)).exam.beyond
    lows, highs = zip(*(row["success_ci"] for row in table.values()), strict=True)
    overlap = " The intervals of\nall of them overlap." if max(lows) <= min(highs) else ""
    return f"""{earlier_anchor("changing-confidence")}
## Annealing the robustness level

The target takes the worst of 20 models (CVaR at 0.05) from the first update on, or starts at the mean over the models
and anneals to the worst: over the first 15,000 steps, or as the filter's gain falls below its first value.{overlap}

{markdown(main_table(table))}
Beyond the box, {beyond} episodes a cell:

{markdown(beyond_table(table, found["conditions"]))}"""


def _calibration(found: Mapping[str, Any]) -> str:
    return f"""## Calibration

Intervals with a nominal coverage of 95 % should contain the true value in 95 % of the cases. For EKF-DQN on Cart-Pole
the true value is the discounted return of its greedy policy from 200 visited states after each action, averaged over
32 models of the box. For Deep-RoK on the ferry it is the exact robust Q* of every reachable cell. Deep-RoK's
intervals on Cart-Pole were measured with the preset `default` only:
[Can the posterior be believed?](calibration.md). The table gives the empirical coverage in %: raw, and with all
standard deviations multiplied by a temperature that is cross-validated, each seed's fitted on the other seeds.

{markdown(_coverage(found))}
{figure("kalman", "calibration", "Empirical against nominal coverage of the intervals for Q")}"""


def _cautious(found: Mapping[str, Any]) -> str:
    episodes = plan.cautious_exam(_episodes(found)).grid
    return f"""{earlier_anchor("caution-after-training")}
## Acting on a lower confidence bound

Success in % when Deep-RoK's policy acts on Q − κσ after training (`evaluate --policy lcb --kappa κ`): the mean of
{plan.CAUTIOUS_SEEDS} seeds, {episodes} episodes a cell. With so few seeds and episodes the level is noisy and can lie
above the ceiling; rows can be compared with each other, as they share the test episodes. With the preset `default` and
more seeds it [can do harm](calibration.md#acting-on-a-lower-confidence-bound).

{markdown(_caution(found))}"""


def _warm_start(found: Mapping[str, Any]) -> str:
    table, before = found["tables"]["warm_start"], found["tables"]["structures"]["full"]
    rows = {"before: trained at 9.8 m/s²": before, "40 episodes from scratch": table["afresh"]}
    rows["40 episodes from the posterior"] = table["from a posterior"]
    lines = [["", "success % at 14.7 m/s²", "success % at 9.8 m/s²"]]
    lines += [[name, with_interval(row["beyond"]["strong_gravity"], 100), success(row)] for name, row in rows.items()]
    exam = plan.warm_start(1, _episodes(found)).exam
    old, new = (row["beyond"]["strong_gravity"]["value"] for row in (before, table["from a posterior"]))
    return f"""## A posterior as the next prior

Gravity rises by half, to 14.7 m/s². One agent trains for 40 episodes there from scratch, with ε annealed over 3000
steps; the other for 40 episodes from the posterior of the structure `full` above, with ε = 0.1 (`--prior RUN`).
{exam.grid} episodes a cell ({_structure_episodes(found)} for the row *before*).

{markdown(lines)}
Compare the last row with the first: the warm start changes the success at 14.7 m/s² by {100 * (new - old):+.1f}
points. The agent from scratch is a weak baseline: it keeps the target period of 2000 steps, and other settings learn
within tens of episodes ([learning speed](results.md#learning-speed)).
"""


def _structure_episodes(found: Mapping[str, Any]) -> str:
    exam = plan.structures(1, _episodes(found)).exam
    return f"{exam.beyond} and {exam.grid}"


def _tuning(table: Mapping[str, Any]) -> Lines:
    lines: dict[str, dict[float, float]] = {}
    for row in table.values():
        changes = row["changes"]
        lines.setdefault(changes["covariance"], {})[changes["observation_noise"]] = mean_success(row)
    noises = sorted({noise for line in lines.values() for noise in line}, reverse=True)
    return [
        ["mean success % at observation noise Pₙ", *(f"{noise:g}" for noise in noises)],
        *([title(name), *(f"{100 * line[noise]:.1f}" for noise in noises)] for name, line in lines.items()),
    ]


def _coverage(found: Mapping[str, Any]) -> Lines:
    names = {"ekf_dqn": "EKF-DQN, Cart-Pole"}
    return coverage_table({names.get(name, f"Deep-RoK, {name}"): row for name, row in found["calibration"].items()})


def _caution(found: Mapping[str, Any]) -> Lines:
    names = {"grid": "the grid", "outside": "outside the box", "sensor_noise": "sensor noise"}
    return [
        ["κ", *names.values()],
        *([kappa, *(f"{100 * row[name]:.1f}" for name in names)] for kappa, row in found["cautious"].items()),
    ]
