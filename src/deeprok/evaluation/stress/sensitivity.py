"""Which parameters matter: Sobol indices, shares of the variance over all models.

The first-order index of a parameter is the share of the variance that it explains alone; the total index adds its part
in all interactions with others. A parameter whose total index is 0 can be left alone.

A. Saltelli et al., "Variance based sensitivity analysis of model output", Computer Physics Communications 181, 2010.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import sobol_indices

from deeprok.evaluation.stress.search import Tried

_RESAMPLES = 500
_ENDS = (0.025, 0.975)


class Sensitivity(NamedTuple):
    """The Sobol indices of a parameter, with 95 % bootstrap intervals."""

    first: float
    total: float
    low: float
    """Of the interval of the total index."""
    high: float
    first_low: float
    first_high: float


def sensitivity_of(tried: Tried) -> tuple[str, list[Sensitivity]]:
    """What the indices are of, success, or mean_return where success hardly varies; and those of each."""
    dimensions = tried.models.shape[1]
    design = slice(0, tried.sample * (dimensions + 2))
    varies = np.ptp(tried.success[: 2 * tried.sample]) > 0  # of A and B, whose variance is what is shared out
    output = (tried.success if varies else tried.mean_return)[design]
    return "success" if varies else "mean_return", indices(output, dimensions)


def indices(output: np.ndarray, dimensions: int) -> list[Sensitivity]:
    """The Sobol indices of each parameter.

    Args:
      output: [n·(D + 2)] what was found for the models of `make_design`.
      dimensions: D.
    """
    rows = np.where(np.isfinite(output), output, 0.0).reshape(dimensions + 2, -1)
    estimate = _indices(rows)
    rng, sample = np.random.default_rng(0), rows.shape[1]
    drawn = np.stack([_indices(rows[:, rng.integers(sample, size=sample)]) for _ in range(_RESAMPLES)])
    low, high = np.quantile(drawn, _ENDS, axis=0)
    return [
        Sensitivity(*(float(x) for x in (first, total, low[1, i], high[1, i], low[0, i], high[0, i])))
        for i, (first, total) in enumerate(estimate.T)
    ]


def _indices(rows: np.ndarray) -> np.ndarray:
    """[2, D] first and total indices, of outputs [D + 2, n] of A, B and A with each parameter of B."""
    if len(rows) == 3:  # one parameter explains all that there is
        return np.full((2, 1), float(np.ptp(rows[:2]) > 0))
    found = sobol_indices(func={"f_A": rows[0], "f_B": rows[1], "f_AB": rows[2:, None]}, n=rows.shape[1])
    return np.stack([found.first_order, found.total_order])
