"""Radii from counts: ambiguity sets that contain the true distribution with a given probability.

Each rule is a function `rule(counts, confidence) -> level`, for a set around the empirical distribution counts / n.
`RULES` lists the rules, the sets that each is for and what each assumes. A rule is about one distribution. For N of
them to hold at once with probability c, use the confidence 1 − (1 − c) / N for each, as `deeprok.tabular.radii` does.

The M outcomes of a rule are all possible ones, observed or not, and the set must be able to give them mass. A set that
is restricted to the observed outcomes (`on_support`, KL, χ²) has no coverage guarantee.

How often a state and action were visited is fixed in an experiment that was planned so. In a log of trajectories it is
random, and depends on what happened before: somebody may have stopped logging because of what was seen. The rules
`anytime_…` hold for all n at once, so also for such an n. They come from nonnegative martingales, mixtures of
likelihood ratios or of exponentials of sums, which exceed 1/δ at any time with a probability of at most δ (Ville's
inequality).

T. Weissman, E. Ordentlich, G. Seroussi, S. Verdú and M. J. Weinberger, "Inequalities for the L1 deviation of
  the empirical distribution", Hewlett-Packard Labs, HPL-2003-97, 2003.
W. Hoeffding, "Probability inequalities for sums of bounded random variables", Journal of the American
  Statistical Association, 1963.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
  matrices", Operations Research, 2005.
G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
H. Robbins, "Statistical methods related to the law of the iterated logarithm", Annals of Mathematical Statistics, 1970.
M. Lindon and A. Malek, "Anytime-valid inference for multinomial count data", NeurIPS, 2022, arXiv:2011.03567.
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
    """A rule, the names of the sets that it is for, and what must be true of the data for it to hold."""

    level: RadiusRule
    sets: tuple[str, ...]
    assumes: str  # "" if it holds for any number of samples and any reason to stop


_FIXED = "the number of samples was fixed in advance"
_MANY = "there are very many samples"


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


def entrywise(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√(log(2M / (1 − confidence)) / 2n), at most 1: Hoeffding's inequality for each probability, a radius for `linf`.

    Two probabilities have one deviation, so that M = 2 counts as 1. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    square = (math.log(2 * _deviations(size)) - math.log1p(-confidence)) / 2
    return np.sqrt(np.divide(square, n, out=np.ones_like(n), where=n > square))


def anytime_l1(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """√((1 + 1/n)/n · (log(1 + n) + 2 log((2^(M−1) − 1) / (1 − confidence)))), at most 2: `weissman` for all n at once.

    The norm is twice the largest deviation of the probability of an event, and an event deviates as its complement
    does. Each deviation is bounded by a normal mixture over Hoeffding's exponentials. Arguments are those of
    `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    log_events = (size - 1) * math.log(2) + math.log1p(-(2.0 ** (1 - size)))
    return np.minimum(2.0 * _anytime_deviation(n, log_events, confidence), 2.0)


def anytime_linf(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """½ √((1 + 1/n)/n · (log(1 + n) + 2 log(M / (1 − confidence)))), at most 1: `entrywise` for all n at once.

    Two probabilities have one deviation, so that M = 2 counts as 1. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    return np.minimum(_anytime_deviation(n, math.log(_deviations(size)), confidence), 1.0)


def anytime_mean(n: ArrayLike, confidence: float) -> np.ndarray:
    """How far the mean of n numbers from [0, 1] may be from its expectation, at most 1, for all n at once.

    Args:
      n: [...] how many numbers.
      confidence: the coverage, in (0, 1).

    Returns:
      [...] ½ √((1 + 1/n)/n · (log(1 + n) + 2 log(1 / (1 − confidence)))), at most 1.
    """
    return np.minimum(_anytime_deviation(np.asarray(n, float), 0.0, confidence), 1.0)


def anytime_likelihood(counts: ArrayLike, confidence: float, outcomes: int | None = None) -> np.ndarray:
    """A radius for `burg` that holds for all n at once: (log(1 / (1 − confidence)) + log(L* / L̄)) / n.

    L* is the largest likelihood of the data, that of the empirical distribution, and L̄ their mean likelihood under
    Jeffreys' prior, Dirichlet(½, …, ½). For any true p the ratio of L̄ to the likelihood of p is a martingale, so the
    set of all p where it is below 1 / (1 − confidence) holds the truth at any time (Lindon and Malek). About p that set
    is a likelihood set. Its radius is about that of `likelihood_ratio` plus (M − 1) log n / 2n. Without samples it is
    infinite. Arguments are those of `RadiusRule`.
    """
    n, size = _totals(counts, confidence, outcomes)
    if size == 1:
        return np.zeros_like(n)
    from scipy.special import gammaln, xlogy  # here: it takes a third of a second to import

    seen = np.asarray(counts, float)
    largest = np.sum(xlogy(seen, np.divide(seen, n[..., None], out=np.ones_like(seen), where=seen > 0)), axis=-1)
    mean = gammaln(size / 2) - gammaln(n + size / 2) + np.sum(gammaln(seen + 0.5) - gammaln(0.5), axis=-1)
    exponent = np.maximum(largest - mean, 0.0) - math.log1p(-confidence)
    return np.divide(exponent, n, out=np.full_like(n, np.inf), where=n > 0)


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


def _with_sets(name: str, level: RadiusRule, assumes: str = "") -> LevelRule:
    """A rule with the sets that list it among their `level_rules`."""
    return LevelRule(level, tuple(family for family, found in SETS.items() if name in found.level_rules), assumes)


RULES: dict[str, LevelRule] = {
    "anytime_l1": _with_sets("anytime_l1", anytime_l1),
    "weissman": _with_sets("weissman", weissman, _FIXED),
    "hoeffding": _with_sets("hoeffding", hoeffding, _FIXED),
    "anytime_linf": _with_sets("anytime_linf", anytime_linf),
    "entrywise": _with_sets("entrywise", entrywise, _FIXED),
    "anytime_likelihood": _with_sets("anytime_likelihood", anytime_likelihood),
    "likelihood_ratio": _with_sets("likelihood_ratio", likelihood_ratio, _MANY),
}


def _deviations(size: int) -> int:
    """How many of the M probabilities can deviate in different ways."""
    return 1 if size == 2 else size


def _anytime_deviation(n: np.ndarray, log_events: float, confidence: float) -> np.ndarray:
    """A bound on the deviations of many means of n numbers from [0, 1], for all n at once; infinite without any.

    A sum S of n such numbers, less its expectation, has E exp(λS − λ²n/8) ≤ 1. Mixed over λ ~ N(0, 4), that is a
    martingale's bound, exp(2S² / (n + 1)) / √(n + 1), on both signs of S.

    Args:
      n: [...] how many numbers each mean has.
      log_events: the logarithm of the number of means.
      confidence: the probability that all of them hold.
    """
    square = np.log1p(n) + 2.0 * (log_events - math.log1p(-confidence))
    return 0.5 * np.sqrt(np.divide((n + 1.0) * square, n * n, out=np.full_like(n, np.inf), where=n > 0))


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
