"""From the scores of seeds to the numbers that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.exam import Scores
from studies.statistics import Estimate, episodes_to, estimate, iqm, probability_of_improvement

#: A row of a table, as it is written to JSON.
Summary = dict[str, Any]

_NEAR = 0.95  # of the ceiling's return: where an agent counts as having learned


def summarise(scores: Mapping[int, Scores], ceiling: Scores, settings: str) -> Summary:
    """What the seeds of one agent, or one reference, come to.

    Args:
      scores: seed -> what its exam gave.
      ceiling: what the exam of the ceiling gave.
      settings: the settings' hash.

    Returns:
      Interquartile means over seeds, with 95 % intervals. A single seed has the interval of its
      test episodes, which says nothing of other seeds. `episodes_to_95` counts a seed that never
      got there as one evaluation more than it had: a lower bound; `reached` says how many got there.
    """
    rows = list(scores.values())
    summary: Summary = {}
    for name in ("success", "return"):
        found = estimate(iqm, [row[name] for row in rows])
        interval = found.interval or _of_episodes(rows[0][name], rows[0][f"{name}_error"])
        summary |= {f"iqm_{name}": found.value, f"{name}_ci": list(interval)}
    regret = [np.asarray(ceiling["cell_return"]) - np.asarray(row["cell_return"]) for row in rows]
    summary |= {
        "mean_regret": float(iqm(np.array([cells.mean() for cells in regret]))),
        "max_regret": float(iqm(np.array([cells.max() for cells in regret]))),
        "nominal_return": float(iqm(np.array([row["nominal_return"] for row in rows]))),
        "episodes_to_95": None,
        "seeds": len(rows),
        "settings": settings,
        "per_seed": {
            "seed": list(scores),
            "success": [row["success"] for row in rows],
            "return": [row["return"] for row in rows],
        },
        "cell_success": np.mean([row["cell_success"] for row in rows], axis=0).tolist(),
    }
    if all("curve" in row for row in rows):
        summary |= _learning(rows, ceiling)
    if all("length_return" in row for row in rows):
        means, spreads = (np.array([row[name] for row in rows]) for name in ("length_return", "length_deviation"))
        summary["lengths"] = {
            "mean": means.mean(axis=0).tolist(),
            "deviation": np.sqrt((spreads**2).mean(axis=0) + means.var(axis=0)).tolist(),  # over all episodes
        }
    if all("beyond" in row for row in rows):
        summary["beyond"] = {
            name: _shown(estimate(iqm, [row["beyond"][name]["success"] for row in rows])) for name in rows[0]["beyond"]
        }
    return summary


def _learning(rows: Sequence[Scores], ceiling: Scores) -> Summary:
    """How fast the seeds learned."""
    times = rows[0]["curve"]["episodes"]
    threshold = _NEAR * ceiling["return"]
    reached = [episodes_to(threshold, times, row["curve"]["return"]) for row in rows]
    time = estimate(iqm, needed(reached, times))
    returns = np.array([row["curve"]["return"] for row in rows])
    success = np.array([row["curve"]["success"] for row in rows])
    return {
        "episodes_to_95": time.value,
        "episodes_to_95_ci": list(time.interval) if time.interval else None,
        "reached": sum(found is not None for found in reached),
        "per_seed_episodes_to_95": reached,
        "curve": {
            "episodes": times,
            "iqm_return": iqm(returns, axis=0).tolist(),
            "low": np.quantile(returns, 0.25, axis=0).tolist(),
            "high": np.quantile(returns, 0.75, axis=0).tolist(),
            "iqm_success": iqm(success, axis=0).tolist(),
        },
    }


def improvement(agents: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """For each pair of agents, how likely a seed of the first has the higher success over the grid."""
    return {
        first: {
            second: _shown(estimate(probability_of_improvement, a["per_seed"]["success"], b["per_seed"]["success"]))
            for second, b in agents.items()
            if second != first
        }
        for first, a in agents.items()
    }


def needed(reached: Sequence[int | None], times: Sequence[int]) -> list[float]:
    """Episodes that each seed needed; one evaluation more than it had if it never got there."""
    return [times[-1] + times[0] if time is None else time for time in reached]


def _shown(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "ci": list(found.interval) if found.interval else None}


def _of_episodes(value: float, error: float) -> tuple[float, float]:
    """The interval of one policy's test episodes; neither a return nor a share is negative."""
    return max(0.0, value - 1.96 * error), value + 1.96 * error
