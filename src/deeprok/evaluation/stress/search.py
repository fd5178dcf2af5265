"""The search for what hurts most: a space-filling design, then differential evolution from the worst of it.

The design is the one that Sobol indices are computed from (see `sensitivity`): two samples A and B of n models each,
and for each parameter the sample A with that parameter of B. So no model is played for one purpose alone. Where
nothing that was tried differs from its neighbours, evolution has nothing to follow: it ends at once, and the rest of
the budget fills the space more densely. `benchmarks/planted_failures.py` compares this search with others.

R. Storn and K. Price, "Differential evolution", Journal of Global Optimization 11, 1997.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from deeprok.evaluation.stress.player import CHOICE, EPISODES, SEARCH, Player, Scores
from deeprok.evaluation.stress.space import Space

#: Models that evolve together, as a share of the budget and at least and at most: some twenty generations of them. As a
#: power of two they can be a part of a Sobol sequence.
_POPULATION_SHARE, _LEAST_POPULATION, _MOST_POPULATION = 1 / 32, 16, 128

#: Evolution ends where merits differ by less, relative to their mean: what is left of the budget looks elsewhere.
_TOLERANCE = 1e-4

#: The fewest models of each of the samples A and B, and the share of the budget that the design takes at most.
_LEAST_SAMPLE, _DESIGN_SHARE = 16, 0.5


class Tried(NamedTuple):
    """The models of a search, in the order in which they were tried; the design comes first."""

    models: np.ndarray  # [N, D]
    success: np.ndarray  # [N]
    mean_return: np.ndarray  # [N]
    sample: int  # n; the design is the first n·(D + 2)

    def uniform(self) -> np.ndarray:
        """[2n] which of them fill the space evenly, so that shares of them are shares of it: A and B."""
        return np.arange(2 * self.sample)

    def worst(self, count: int) -> np.ndarray:
        """The models [count, D] with the least success and, of equals, the least return."""
        return self.models[Scores(self.success, self.mean_return).ranking()[:count]]


def least_budget(dimensions: int) -> int:
    """The fewest models that a search of so many parameters can do with."""
    return int(_LEAST_SAMPLE * (dimensions + 2) / _DESIGN_SHARE)


def sample_size(budget: int, dimensions: int) -> int:
    """n, the models of each of the samples A and B: a power of two, as Sobol sequences are balanced for."""
    return _power_of_two(_DESIGN_SHARE * budget / (dimensions + 2))


def population_size(budget: int) -> int:
    """Models that evolve together."""
    return _power_of_two(float(np.clip(_POPULATION_SHARE * budget, _LEAST_POPULATION, _MOST_POPULATION)))


def _power_of_two(most: float) -> int:
    return 2 ** int(np.log2(most))


def make_design(sample: int, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """The places [n·(D + 2), D] of a design: A, B, and for each parameter A with that parameter of B."""
    from scipy.stats import qmc  # here: every training imports this module, and few search

    both = qmc.Sobol(2 * dimensions, rng=rng).random_base2(int(np.log2(sample)))
    a, b = both[:, :dimensions], both[:, dimensions:]
    mixed = np.repeat(a[None], dimensions, axis=0)
    for i in range(dimensions):
        mixed[i, :, i] = b[:, i]
    return np.concatenate([a, b, *mixed])


def search(space: Space, player: Player, budget: int, seed: int) -> Tried:
    """Plays as many models as the budget has, most of them where the policy does badly.

    Args:
      space: the models that there are.
      player: plays models.
      budget: how many models; at least `least_budget`.
      seed: decides which models are tried; the same for all policies that are compared.
    """
    from scipy.optimize import differential_evolution
    from scipy.stats import qmc

    dimensions = len(space.dimensions)
    sample = sample_size(budget, dimensions)
    rng = np.random.default_rng((seed, SEARCH))
    places = make_design(sample, dimensions, rng)
    models = [space.values(places)]
    scores = [player(models[0], SEARCH, 1)]
    merit = make_merit(scores[0])

    def tried(columns: np.ndarray) -> np.ndarray:
        """The merits [N] of places [D, N]: what evolution makes small."""
        models.append(space.values(columns.T))
        scores.append(player(models[-1], SEARCH, 1))
        return merit(scores[-1])

    left = budget - len(places)
    population = population_size(budget)
    start = places[np.argsort(merit(scores[0]), kind="stable")[:population]]
    fresh = qmc.Sobol(dimensions, rng=rng)
    while left >= 2 * population:
        before = len(models)
        differential_evolution(
            tried,
            [(0.0, 1.0)] * dimensions,
            init=start,
            maxiter=left // population - 1,
            tol=_TOLERANCE,
            polish=False,
            updating="deferred",
            vectorized=True,
            rng=rng,
        )
        left -= sum(map(len, models[before:]))
        start = fresh.random(population)
    if left > 0:
        tried(rng.random((dimensions, left)))
    success, mean_return = (np.concatenate(column) for column in zip(*scores, strict=True))
    return Tried(np.concatenate(models), success, mean_return, sample)


def worst_of(candidates: np.ndarray, player: Player, blocks: int) -> np.ndarray:
    """The worst [D] of models [N, D], by episodes that no search has seen: each of them was also unlucky.

    Args:
      candidates: the models.
      player: plays models.
      blocks: blocks of episodes on each.
    """
    worst: np.ndarray = candidates[player(candidates, CHOICE, blocks).ranking()[0]]
    return worst


def make_merit(reference: Scores) -> Callable[[Scores], np.ndarray]:
    """A function `Scores -> [N]`: the success, and below the difference of one episode the return.

    Args:
      reference: scores whose returns tell what a small difference is.
    """
    finite = reference.mean_return[np.isfinite(reference.mean_return)]
    low, centre, high = np.quantile(finite, (0.25, 0.5, 0.75)) if finite.size else (0.0, 0.0, 0.0)
    unit = (high - low) or 1.0

    def merit(scores: Scores) -> np.ndarray:
        share = 0.5 + np.arctan((scores.comparable - centre) / unit) / np.pi
        return scores.success + 0.99 * share / EPISODES

    return merit
