"""Screening where the state has too many coordinates for a grid: policies searched for instead of solved.

They push one way or the other by the sign of a weighted sum of features. That is a small class of policies and the
search is random, so what it finds is the best known and no proven ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments import Environment, with_model
from deeprok.evaluation.play import cell_player, grid_cells, play_episodes
from deeprok.evaluation.policies import Policy
from deeprok.evaluation.result import parameters_of
from deeprok.evaluation.screening.planning import worst_mean
from deeprok.evaluation.screening.result import POLICIES, Screening
from studies.references import cross_entropy, regulator

#: Called with the fraction of the work done since its last call.
Advance = Callable[[float], None]

_SPREAD = 0.5  # of the first round, around a start of length 1
_COMPARED = 8  # times as many episodes as a round has, to compare the start with what was found


class Effort(NamedTuple):
    """How long a search is."""

    population: int = 48
    rounds: int = 15
    episodes: int = 8  # in each cell, for each of the population


_EFFORT = Effort()


class Family(NamedTuple):
    """Policies that push to the right end of the actions where features · weights > 0, else to the left end."""

    features: Callable[[jax.Array], jax.Array]  # observations [..., D] -> [..., F]
    start: Callable[[Any], jax.Array]  # parameters -> [F], where a search begins
    designed: bool  # whether the start is itself a design for the parameters, and so the nominal policy


def linear(env: Environment) -> Family:
    """Linear policies of a Cart-Pole, which begin at the linear-quadratic regulator."""
    scale = jnp.array(env.observation_scale)
    return Family(lambda obs: obs / scale, lambda params: regulator(env, params) * scale, designed=True)


def pumping(env: Environment) -> Family:
    """Policies of the acrobot in ten odd features of its state, which begin at a torque along the elbow's speed."""
    scale = jnp.array(env.observation_scale)

    def features(obs: jax.Array) -> jax.Array:
        cos_1, sin_1, cos_2, sin_2, speed_1, speed_2 = jnp.moveaxis(obs / scale, -1, 0)
        plain = [sin_1, sin_2, speed_1, speed_2]
        products = [sin_1 * cos_2, cos_1 * sin_2, speed_1 * cos_1, speed_2 * cos_2, speed_1 * cos_2, speed_2 * cos_1]
        return jnp.stack([*plain, *products], axis=-1)

    return Family(features, lambda params: jnp.zeros(10).at[3].set(1.0), designed=False)


def screen_by_search(
    env: Environment,
    family: Family,
    axes: Mapping[str, np.ndarray],
    cvar: float,
    episodes: int,
    epsilon: float,
    seed: int,
    advance: Advance,
    effort: Effort = _EFFORT,
) -> Screening:
    """A screening of policies that were searched for, in the form of one of `deeprok.screen`.

    `each` is searched for in each cell alone, `mean`, `cvar` and `worst_case` for the mean return over all cells, over
    the worst of them, and in the worst one: of whole episodes, not of steps. `nominal` is the start where that is a
    design for the nominal model, else it is searched for there.

    Args:
      env: the environment.
      family: the policies.
      axes: the grid of models, name -> values.
      cvar: the fraction of the cells that `cvar` is made for.
      episodes: episodes in each cell.
      epsilon: probability of a random action, in the search too.
      seed: seed of the random numbers of the episodes that are reported.
      advance: called with the fraction of the work done since its last call.
      effort: how long to search.
    """
    cells = grid_cells(env, axes)  # the last one is the nominal model
    count = len(next(iter(cells.values()))) - 1
    nominal = {name: np.repeat(values[-1:], count) for name, values in cells.items()}
    cells = {name: values[:-1] for name, values in cells.items()}
    starts = _starts(env, family, cells)
    start = _starts(env, family, nominal)[:1]
    returns = _cell_returns(env, family, epsilon, effort.episodes)
    whole = 1 / 6  # four searches or five, and the episodes that are reported

    def shared(level: float, models: Mapping[str, np.ndarray] = cells) -> np.ndarray:
        def score(tried: np.ndarray, seed: int) -> np.ndarray:
            everywhere = np.broadcast_to(tried, (count, *tried.shape[1:]))
            return worst_mean(returns(everywhere, models, seed), level)[None]

        found = _search(score, start, effort)
        advance(whole)
        return np.broadcast_to(found, starts.shape)

    weights = {"each": _search(lambda tried, seed: returns(tried, cells, seed), starts, effort)}
    advance(whole)
    weights["nominal"] = np.broadcast_to(start, starts.shape) if family.designed else shared(1.0, nominal)
    levels = {"mean": 1.0, "cvar": cvar, "worst_case": 1 / count}
    weights |= {policy: shared(level) for policy, level in levels.items()}
    played = _play(env, family, weights, cells, episodes, epsilon, seed)
    advance(whole * (2 if family.designed else 1))
    shape = (len(POLICIES), *(len(values) for values in axes.values()))
    units = parameters_of(env)
    return Screening(
        env=env.name,
        grid={name: np.asarray(values, float) for name, values in axes.items()},
        states={},
        policies=tuple(POLICIES),
        success=(played > env.success_return).mean(axis=2).reshape(shape),
        mean_return=played.mean(axis=2).reshape(shape),
        start_values={},
        discount=1.0,
        cvar=cvar,
        episodes=episodes,
        epsilon=epsilon,
        draws=1,
        seed=seed,
        parameters={name: units[name] for name in axes},
    )


def _starts(env: Environment, family: Family, models: Mapping[str, np.ndarray]) -> np.ndarray:
    """[M, F] where the search for each model begins, of length 1."""
    begin = jax.jit(jax.vmap(lambda model: family.start(with_model(env.nominal, model))))
    starts = np.asarray(begin({name: jnp.asarray(values, float) for name, values in models.items()}), float)
    return starts / np.linalg.norm(starts, axis=1, keepdims=True)


def _search(score: Callable[[np.ndarray, int], np.ndarray], start: np.ndarray, effort: Effort) -> np.ndarray:
    """[G, F] what the cross-entropy method finds, or the start where that is no worse."""
    found = cross_entropy(score, start, _SPREAD, effort.population, effort.rounds)
    both = np.stack([start, found], axis=1)
    scores = sum((score(both, seed) for seed in range(_COMPARED)), np.zeros(both.shape[:2]))
    return np.asarray(np.where((scores[:, 1] > scores[:, 0])[:, None], found, start))


def _act(env: Environment, family: Family, weights: jax.Array) -> Policy:
    """The policy of weights [F], or [E, F] with some for each episode."""
    last = len(env.actions) - 1
    return lambda obs: last * (jnp.sum(family.features(obs) * weights, axis=-1) > 0).astype(jnp.int32)


def _cell_returns(env: Environment, family: Family, epsilon: float, episodes: int) -> Callable[..., np.ndarray]:
    """`(weights [C, P, F], models, seed) -> [C, P]`: the mean returns of P policies in each of C cells."""

    @jax.jit
    def play(weights: jax.Array, models: dict[str, jax.Array], seed: jax.Array) -> jax.Array:
        repeated = {name: jnp.repeat(values, episodes) for name, values in models.items()}

        def one(some: jax.Array) -> jax.Array:
            act = _act(env, family, jnp.repeat(some, episodes, axis=0))
            returns = play_episodes(env, act, repeated, jax.random.key(seed), epsilon)
            return jnp.mean(returns.reshape(-1, episodes), axis=1)

        return jax.lax.map(one, jnp.moveaxis(weights, 1, 0))

    def returns(weights: np.ndarray, models: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
        each = {name: jnp.asarray(values, float) for name, values in models.items()}
        return np.asarray(play(jnp.asarray(weights, float), each, jnp.uint32(seed)), float).T

    return returns


def _play(
    env: Environment,
    family: Family,
    weights: Mapping[str, np.ndarray],
    cells: Mapping[str, np.ndarray],
    episodes: int,
    epsilon: float,
    seed: int,
) -> np.ndarray:
    """[P, C, episodes] the returns of each policy, by its weights [C, F], in each cell."""
    play = cell_player(env, lambda one, params: _act(env, family, one), episodes)
    count = len(next(iter(cells.values())))
    returns = np.zeros((len(POLICIES), count, episodes))
    for i, policy in enumerate(POLICIES):
        for c in range(count):
            model = {name: values[c : c + 1] for name, values in cells.items()}
            chance = 1.0 if policy == "random" else epsilon
            one = jnp.asarray(weights["nominal" if policy == "random" else policy][c], float)
            returns[i, c] = play(one, model, chance, seed)[0]
    return returns
