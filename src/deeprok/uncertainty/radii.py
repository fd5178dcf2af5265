"""From counts to the size of a set: radii that hold the true distribution with a given probability.

Each rule is one function `rule(counts, confidence) -> level` for the sets that name it, which `RULES` lists,
built around the empirical distribution counts / n. A rule speaks of one row. That N rows hold at
once with probability c is had from the confidence 1 − (1 − c) / N each, as `deeprok.tabular.radii` does.

Outcomes that were not seen are outcomes too: the M of a rule are all that there may be, and the set must give
them mass. A set that is cut to the outcomes that were seen (`on_support`, KL, χ²) holds nothing.

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
from scipy.special import gammaincinv

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty.sets import SETS


class Rule(Protocol):
    """A rule from counts to levels."""

    def __call__(self, counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
        """The level of each row from what was seen in it.

        Args:
          counts: [..., M] how often each outcome was seen.
          confidence: the probability with which the set is to hold the true distribution, in (0, 1).
          outcomes: how many outcomes there may be, seen or not, if more than the M that are counted.

        Returns:
          [...] the levels.
        """


class LevelRule(NamedTuple):
    """A rule and the names of the sets whose level it gives."""

    level: Rule
    sets: tuple[str, ...]


def weissman(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√(2/n · log((2^M − 2) / (1 − confidence))), at most 2: the L1 radius of Weissman et al. (2003).

    It holds for every n and every distribution. Arguments are those of `Rule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    return _l1_radius(n, size * math.log(2) + math.log1p(-(2.0 ** (1 - size))), confidence)


def hoeffding(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√(2/n · log(2^M / (1 − confidence))), at most 2: Hoeffding's inequality for the L1 norm.

    The norm is the largest of 2^M sums with signs ±1; the inequality holds each of them, and their number
    is the price of holding all. Two of them are always 0, which makes `weissman` a little smaller. Arguments
    are those of `Rule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    return _l1_radius(n, size * math.log(2), confidence)


def likelihood_ratio(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """The χ² quantile of M − 1 degrees of freedom over 2n, a radius for `burg` and `kl`.

    2n times either divergence between the empirical and the true distribution is χ² in the limit of many
    samples: Nilim and El Ghaoui's choice for the likelihood set, Iyengar's for relative entropy. With
    few samples it promises more than it holds, and `kl` holds nothing while an outcome has not been seen.
    Without any samples the level is infinite. Arguments are those of `Rule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    quantile = 2.0 * float(gammaincinv((size - 1) / 2, confidence))
    return np.divide(quantile, 2.0 * n, out=np.full_like(n, np.inf), where=n > 0)


def _with_sets(name: str, level: Rule) -> LevelRule:
    """A rule with the sets that say it is theirs."""
    return LevelRule(level, tuple(family for family, found in SETS.items() if name in found.level_rules))


RULES: dict[str, LevelRule] = {
    "weissman": _with_sets("weissman", weissman),
    "hoeffding": _with_sets("hoeffding", hoeffding),
    "likelihood_ratio": _with_sets("likelihood_ratio", likelihood_ratio),
}


def _l1_radius(n: np.ndarray, log_events: float, confidence: float) -> np.ndarray:
    """√(2 (log_events − log(1 − confidence)) / n), or the diameter 2 where that is less."""
    square = 2.0 * (log_events - math.log1p(-confidence))
    return np.sqrt(np.divide(square, n, out=np.full_like(n, 4.0), where=n > 0.25 * square))


def _totals(counts: ArrayLike, confidence: float, outcomes: int | None) -> tuple[np.ndarray, int]:
    """n of each row and the number of outcomes, or a refusal."""
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
