"""Playing policies in stateful simulators: several episodes side by side, with one call of the policy for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments.host import HostEnvironment, Simulator, model_of
from deeprok.evaluation.policies import PolicyOf

#: Simulations at once: so many that calling the policy costs little beside their steps.
_SIDE_BY_SIDE = 64


def host_player(env: HostEnvironment, policy_of: PolicyOf, episodes: int) -> Callable[..., np.ndarray]:
    """What `deeprok.evaluation.play.cell_player` makes, for a stateful simulator.

    The i-th episode has the same first state and exploration on each model. The function has one more argument,
    `failed` [models], to which it adds the episodes that ended because the simulation failed.

    Args:
      env: the environment.
      policy_of: what weights do, whatever the model.
      episodes: episodes on each model.
    """
    simulators: list[Simulator] = []

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
        each = _models(env, models)
        waiting = [(cell, number) for cell in range(len(each)) for number in range(episodes)]
        returns = np.zeros((len(each), episodes))
        slots = min(_SIDE_BY_SIDE, len(waiting))
        simulators.extend(env.make() for _ in range(slots - len(simulators)))
        obs = np.zeros((slots, len(env.observation_scale)), jnp.zeros(0).dtype)
        draws = np.zeros((slots, env.actions.draws), obs.dtype)
        chances: dict[int, np.random.Generator] = {}  # of each slot's episode
        playing: dict[int, tuple[int, int]] = {}  # slot -> cell and number of the episode
        steps, total = [0] * slots, len(waiting)
        waiting.reverse()
        free = list(range(slots))
        while waiting or playing:
            while waiting and free:
                slot = free.pop()
                cell, number = playing[slot] = waiting.pop()
                chances[slot] = np.random.default_rng((seed, number))
                obs[slot] = simulators[slot].reset(int(chances[slot].integers(2**32)), each[cell])
                steps[slot] = 0
            for slot in playing:
                draws[slot] = chances[slot].random(draws.shape[1])
            actions = np.asarray(choose(weights, obs, draws, epsilon))
            for slot, (cell, number) in list(playing.items()):
                lost = sum(simulators[slot].failures.values())
                outcome = simulators[slot].step(actions[slot])
                if failed is not None:
                    failed[cell] += sum(simulators[slot].failures.values()) > lost
                obs[slot], steps[slot] = outcome.obs, steps[slot] + 1
                returns[cell, number] += outcome.reward
                truncated = steps[slot] >= env.horizon or getattr(simulators[slot], "truncated", False)
                if outcome.terminated or truncated:
                    del playing[slot]
                    free.append(slot)
                    if advance:
                        advance(1 / total)
        return returns

    return play


def _models(env: HostEnvironment, models: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """What the simulator is given for each model: what is varied, and what the run has changed."""
    own = model_of(env, {})
    nominal = {name: getattr(env.nominal, name) for name in models}
    varied = {name: values for name, values in models.items() if name in own or (values != nominal[name]).any()}
    count = len(next(iter(models.values())))
    return [own | {name: float(values[i]) for name, values in varied.items()} for i in range(count)]
