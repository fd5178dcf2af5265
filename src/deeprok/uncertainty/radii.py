"""Radii from counts: ambiguity sets that contain the true distribution with a given probability.

Each rule is a function `rule(counts, confidence) -> level`, for a set around the empirical distribution counts / n.
`RULES` lists the rules and the sets that each is for. A rule is about one distribution. For N of them to hold at once
with probability c, use the confidence 1 − (1 − c) / N for each, as `deeprok.tabular.radii` does.

The M outcomes of a rule are all possible ones, observed or not, and the set must be able to give them mass. A set that
is restricted to the observed outcomes (`on_support`, KL, χ²) has no coverage guarantee.

T. Weissman, E. Ordentlich, G. Seroussi, S. Verdú and M. J. Weinberger, "Inequalities for the L1 deviation of
  the empirical distribution", Hewlett-Packard Labs, HPL-2003-97, 2003.
W. Hoeffding, "Probability inequalities for sums of bounded random variables", Journal of the American
  Statistical Association, 1963.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
  matrices", Operations Research, 2005.
G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty.sets import SETS


class RadiusRule(Protocol):
    """A rule that computes levels from counts."""

    def __call__(self, counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
        """The level of the set for each row of counts.

        Args:
          counts: [..., M] how often each outcome was observed.
          confidence: the coverage: the probability that the set contains the true distribution, in (0, 1).
          outcomes: the number of possible outcomes, observed or not, if it is more than M.

        Returns:
          [...] the levels.
        """


class LevelRule(NamedTuple):
    """A rule and the names of the sets that it is for."""

    level: RadiusRule
    sets: tuple[str, ...]


def weissman(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√(2/n · log((2^M − 2) / (1 − confidence))), at most 2: the L1 radius of Weissman et al. (2003).

    It holds for every n and every distribution. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    return _l1_radius(n, size * math.log(2) + math.log1p(-(2.0 ** (1 - size))), confidence)


def hoeffding(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√(2/n · log(2^M / (1 − confidence))), at most 2: Hoeffding's inequality for the L1 norm.

    The norm is the largest of 2^M sums with signs ±1. Hoeffding's inequality bounds each, and a union bound all of
    them. Two of the sums are always 0, which makes `weissman` a little smaller. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    return _l1_radius(n, size * math.log(2), confidence)


def likelihood_ratio(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """The χ² quantile of M − 1 degrees of freedom over 2n, a radius for `burg` and `kl`.

    2n times either divergence between the empirical and the true distribution is χ² in the limit of many
    samples: Nilim and El Ghaoui's choice for the likelihood set, Iyengar's for relative entropy. With
    few samples the coverage is below its nominal level, and for `kl` it is 0 while an outcome is unobserved.
    Without any samples the level is infinite. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    from scipy.special import gammaincinv  # here: it takes a third of a second to import

    quantile = 2.0 * float(gammaincinv((size - 1) / 2, confidence))
    return np.divide(quantile, 2.0 * n, out=np.full_like(n, np.inf), where=n > 0)


def _with_sets(name: str, level: RadiusRule) -> LevelRule:
    """A rule with the sets that list it among their `level_rules`."""
    return LevelRule(level, tuple(family for family, found in SETS.items() if name in found.level_rules))


RULES: dict[str, LevelRule] = {
    "weissman": _with_sets("weissman", weissman),
    "hoeffding": _with_sets("hoeffding", hoeffding),
    "likelihood_ratio": _with_sets("likelihood_ratio", likelihood_ratio),
}


def _l1_radius(n: np.ndarray, log_events: float, confidence: float) -> np.ndarray:
    """√(2 (log_events − log(1 − confidence)) / n), at most the diameter 2."""
    square = 2.0 * (log_events - math.log1p(-confidence))
    return np.sqrt(np.divide(square, n, out=np.full_like(n, 4.0), where=n > 0.25 * square))


def _totals(counts: ArrayLike, confidence: float, outcomes: int | None) -> tuple[np.ndarray, int]:
    """n of each row and the number of outcomes; raises if the arguments are wrong."""
    counts = np.asarray(counts, float)
    if counts.ndim == 0 or counts.shape[-1] == 0:
        raise DeeprokError(f"counts have shape {counts.shape}; they must be given for at least one outcome")
    bad = np.argwhere(~(np.isfinite(counts) & (counts >= 0)))
    if bad.size:
        at = tuple(int(i) for i in bad[0])
        raise DeeprokError(f"counts have {counts[at]:g} at {at}; a count is a finite number of at least 0")
    if not 0.0 < confidence < 1.0:
        raise DeeprokError(f"confidence is {confidence:g}; it must lie between 0 and 1, both excluded")
    size = counts.shape[-1]
    if outcomes is not None and outcomes < size:
        raise DeeprokError(f"outcomes is {outcomes}; it must be at least {size}, the number of outcomes counted")
    return counts.sum(axis=-1), size if outcomes is None else outcomes
