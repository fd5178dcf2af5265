"""Playing policies in stateful simulators, on lists of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments.host import HostEnvironment, model_of
from deeprok.environments.host_rollout import Start, make_host_rollout
from deeprok.evaluation.policies import PolicyOf


def host_player(env: HostEnvironment, policy_of: PolicyOf, episodes: int) -> Callable[..., np.ndarray]:
    """What `deeprok.evaluation.play.cell_player` makes, for a stateful simulator.

    The i-th episode has the same first state and exploration on each model. The function has one more argument,
    `failed` [models], to which it adds the episodes that ended because the simulation failed.

    Args:
      env: the environment.
      policy_of: what weights do, whatever the model.
      episodes: episodes on each model.
    """
    rollout = make_host_rollout(env)

    @jax.jit
    def choose(weights: Any, obs: jax.Array, draws: jax.Array, epsilon: jax.Array) -> jax.Array:
        greedy = policy_of(weights, env.nominal)(obs)
        return jax.vmap(lambda draw, best: env.actions.explore(draw, epsilon, best))(draws, greedy)

    def play(
        weights: Any,
        models: Mapping[str, np.ndarray],
        epsilon: float,
        seed: int = 0,
        advance: Callable[[float], None] | None = None,
        failed: np.ndarray | None = None,
    ) -> np.ndarray:
        each, dtype = _models(env, models), jnp.zeros(0).dtype
        chances = [np.random.default_rng((seed, number)) for _ in each for number in range(episodes)]
        starts = [Start(int(chance.integers(2**32)), each[i // episodes]) for i, chance in enumerate(chances)]
        returns = np.zeros(len(starts))

        def act(playing: np.ndarray, steps: np.ndarray, obs: np.ndarray) -> np.ndarray:
            draws = np.zeros((len(obs), env.actions.draws), dtype)
            for slot in np.flatnonzero(playing >= 0):
                draws[slot] = chances[playing[slot]].random(draws.shape[1])
            return np.asarray(choose(weights, obs.astype(dtype), draws, epsilon))

        for taken in rollout(starts, act):
            returns[taken.episode] += taken.outcome.reward
            if failed is not None:
                failed[taken.episode // episodes] += taken.failed > 0
            if taken.ended and advance:
                advance(1 / len(starts))
        return returns.reshape(len(each), episodes)

    return play


def _models(env: HostEnvironment, models: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """What the simulator is given for each model: what is varied, and what the run has changed.

    Where nothing is named, there is one model, the nominal one.
    """
    own = model_of(env, {})
    nominal = {name: getattr(env.nominal, name) for name in models}
    varied = {name: values for name, values in models.items() if name in own or (values != nominal[name]).any()}
    count = len(next(iter(models.values()), (own,)))
    return [own | {name: float(values[i]) for name, values in varied.items()} for i in range(count)]
