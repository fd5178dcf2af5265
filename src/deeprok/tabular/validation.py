"""Choosing the size of ambiguity sets by validation: which policy does best on the half of the log that it did not see?

Sets that hold the true model with a high confidence are often larger than what serves best. Here the radii of a rule
are multiplied by a factor. For each factor a policy is found with one half of the log, and judged by the empirical
model of the other. That is an estimate, not a guarantee.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Unpack, get_args

import numpy as np

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.confidence import CountedModel, CountSetting, from_counts
from deeprok.tabular.counts import Counts
from deeprok.tabular.solution import solve
from deeprok.tabular.solvers import Method
from deeprok.tabular.sweep import value_of_policy

#: What a log is split by: single transitions, or whole episodes.
SplitBy = Literal["rows", "episodes"]

#: Factors of the radii that are tried by default; 0 is the nominal model, 1 the sets with the confidence.
FACTORS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

_MOST_DRAWN = 10**9  # what numpy can draw from without replacement


class Validation(NamedTuple):
    """Values of policies on the half of a log that they were not made of, for each of R factors of the radii."""

    factors: np.ndarray  # [R]
    held_out: np.ndarray  # [K, R] of each split, in the mean over the initial states
    chosen: float  # the factor with the best mean, the largest of several

    @property
    def values(self) -> np.ndarray:
        """[R] the mean over the splits."""
        return self.held_out.mean(0)

    @property
    def deviations(self) -> np.ndarray:
        """[R] the standard deviation over the splits, which share their data: how much a split alone would vary."""
        return self.held_out.std(0, ddof=1) if len(self.held_out) > 1 else np.zeros(len(self.factors))


def validate_counts(
    counts: Counts,
    factors: Sequence[float] = FACTORS,
    splits: int = 10,
    by: SplitBy | None = None,
    discount: float = 0.99,
    horizon: int | None = None,
    tol: float = 1e-6,
    method: Method | None = None,
    split_seed: int = 0,
    advance: Callable[[int, float], None] | None = None,
    **setting: Unpack[CountSetting],
) -> Validation:
    """Chooses a factor of the radii by splitting a log in two halves, several times.

    Each half is once what a policy is found with, and once what it is judged by. A state and action that the held-out
    half does not have is judged by its worst case. Values are means over the initial states of the episodes, and of a
    log without episodes over all its states.

    Args:
      counts: the log.
      factors: [R] factors of the radii, at least 0.
      splits: how often the log is split.
      by: `rows` splits the transitions of each state and action; `episodes` keeps those of an episode together, and is
        the default where the log has episodes.
      discount: γ.
      horizon: the number of decisions; infinite if not given.
      tol: the error bound of all values.
      method: as in `solve`.
      split_seed: of the splits.
      advance: called with the number of splits done and the fraction of the work done since its last call.
      **setting: as in `from_counts`.

    Example:
      >>> curve = validate_counts(log, discount=0.9, set="likelihood", reward_low=0.0)
      >>> model = from_counts(log, set="likelihood", reward_low=0.0).scaled(curve.chosen)
    """
    chosen_by = by or ("rows" if counts.episode is None else "episodes")
    levels = np.asarray(factors, float)
    if chosen_by not in get_args(SplitBy):
        raise unknown("by", chosen_by, get_args(SplitBy))
    if levels.ndim != 1 or not levels.size or not (np.isfinite(levels) & (levels >= 0)).all():
        raise DeeprokError(f"factors is {levels.tolist()}; give a list of finite numbers of at least 0")
    if splits < 1:
        raise DeeprokError(f"splits is {splits}; it must be at least 1")
    rng, starts = np.random.default_rng(split_seed), counts.starts()
    parts = 2 * splits * len(levels)
    found = []
    for k in range(splits):
        halves = [from_counts(half, **setting) for half in split_counts(counts, chosen_by, rng)]
        for train, test in (halves, halves[::-1]):
            row = []
            for factor in levels.tolist():
                row.append(starts @ _held_out(train.scaled(factor), test, discount, horizon, tol, method))
                if advance:
                    advance(k, 1 / parts)
            found.append(row)
    held_out = np.array(found).reshape(splits, 2, -1).mean(1)
    mean = held_out.mean(0)
    best = levels[mean >= mean.max() - tol].max()
    return Validation(levels, held_out, float(best))


def _held_out(
    train: CountedModel, test: CountedModel, discount: float, horizon: int | None, tol: float, method: Method | None
) -> np.ndarray:
    """[S] the values, in the nominal model of one half, of the robust policy of the other."""
    policy = solve(train.problem, **train.setting(discount, horizon), tol=tol, method=method).policy
    return value_of_policy(test.nominal, policy, test.nominal_setting(discount, horizon), tol, lambda work: None)


def split_counts(counts: Counts, by: SplitBy, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """Two random halves of a log, with the same rows; those of the other half have a count of 0.

    Args:
      counts: the log.
      by: `rows`: half of the transitions of each state and action, and of an odd one more or less; `episodes`: half of
        the episodes.
      rng: random numbers.
    """
    if by == "episodes":
        if counts.episode is None:
            raise DeeprokError("by is 'episodes', but the log has no column episode; split it by rows")
        number = int(counts.episode.max()) + 1
        if number < 2:
            raise DeeprokError("by is 'episodes', but the log has one episode only; split it by rows")
        first = rng.permutation(number) < number // 2
        taken = np.where(first[counts.episode], counts.count, 0)
    else:
        taken = np.zeros_like(counts.count)
        row = counts.state * len(counts.actions) + counts.action
        order = np.argsort(row, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(row[order])) + 1):
            amounts = counts.count[rows]
            total = int(amounts.sum())
            half = (total + int(rng.integers(2))) // 2
            if total >= _MOST_DRAWN:
                taken[rows] = amounts // 2
            else:
                taken[rows] = rng.multivariate_hypergeometric(amounts, half, method="marginals")
    if not 0 < taken.sum() < counts.count.sum():
        raise DeeprokError("the log is too short to be split: a half would have no transition")
    return dataclasses.replace(counts, count=taken), dataclasses.replace(counts, count=counts.count - taken)
