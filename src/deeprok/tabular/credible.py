"""Bayesian credible sets: balls around the posterior mean that hold the true model with a given posterior probability.

With independent Dirichlet priors of the rows the posterior of each is a Dirichlet distribution again. Models drawn from
it say how far all rows are from their means at once. So the balls need no union bound over the rows.

M. Petrik and R. H. Russel, "Beyond confidence regions: tight Bayesian ambiguity sets for robust MDPs", NeurIPS, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError

#: Set -> the distance between draws q [K, M] and their mean p [M].
DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "l1": lambda q, p: np.abs(q - p).sum(-1),
    "linf": lambda q, p: np.abs(q - p).max(-1),
    "l2": lambda q, p: np.sqrt(np.square(q - p).sum(-1)),
    "kl": lambda q, p: np.where(q > 0, q * np.log(np.where(q > 0, q, 1.0) / p), 0.0).sum(-1),
}

_FEWEST, _MOST = 4000, 200_000  # models drawn
_BEYOND = 20  # of them that should be outside of the set


class Credible(NamedTuple):
    """The centres and radii of credible sets."""

    mean: np.ndarray  # [R, M] posterior means
    radius: np.ndarray  # [R]


def credible_sets(
    seen: np.ndarray, possible: np.ndarray, confidence: float, prior: float, seed: int, shape: str
) -> Credible:
    """Balls around the posterior means of R rows that hold all of them with a given posterior probability.

    The radii are in proportion to the mean distance of a row's draws from their mean. The factor is that quantile of
    the largest relative distance of a model's rows, over models drawn from the posterior.

    Args:
      seen: [R, M] how often each successor was seen.
      possible: [R, M] which successors are possible.
      confidence: the posterior probability, in (0, 1).
      prior: the parameter of the Dirichlet prior for each possible successor.
      seed: of the draws.
      shape: the kind of ball, a name of `DISTANCES`.
    """
    draws = max(_FEWEST, math.ceil(_BEYOND / (1 - confidence)))
    if draws > _MOST:
        raise DeeprokError(
            f"confidence is {confidence:g}; for a credible set, which is found by drawing models, it must be at most"
            f" {1 - _BEYOND / _MOST:g}"
        )
    rng = np.random.default_rng(seed)
    weight = np.where(possible, seen + prior, 0.0)
    mean = weight / weight.sum(-1, keepdims=True)
    scale, largest = np.zeros(len(seen)), np.zeros(draws)
    for r in np.flatnonzero(possible.sum(-1) > 1):
        place = possible[r]
        gammas = rng.standard_gamma(weight[r, place], (draws, int(place.sum())))
        distance = DISTANCES[shape](gammas / gammas.sum(-1, keepdims=True), mean[r, place])
        scale[r] = distance.mean()
        largest = np.maximum(largest, distance / scale[r])
    # One more draw is as likely to have any rank among these as any other.
    rank = min(math.ceil((draws + 1) * confidence), draws)
    return Credible(mean, np.sort(largest)[rank - 1] * scale)
