"""How uncertain Q-values are on the models of the box, and whether an episode's are more so.

The unit is the episode, since its steps depend on each other. Its score is the largest standard deviation of Q, of the
actions taken. If the system is one of the models that were simulated, its episodes and the simulated ones are
exchangeable, so that the rank of a new score among all before is uniform, and independent of the ranks before it. With
p, the share of scores that are at least as large, for that model for which it is largest, κ p^(κ−1) is an e-value. A
score can only grow within an episode, and so does its e-value: an alarm need not wait for the episode's end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments.base import AnyEnvironment, Environment
from deeprok.environments.host import HostEnvironment, model_of
from deeprok.environments.host_rollout import Start, make_host_rollout
from deeprok.environments.rollout import begin_episodes, rollout

#: Corners of the box that are simulated at most, beside the nominal model; and episodes of each.
_CORNERS, _EPISODES = 8, 100
_KAPPA = 0.2


#: `obs [E, D] -> mean and deviation of Q [E, A]`.
Values = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def simulated_scores(
    env: AnyEnvironment,
    box: dict[str, tuple[float, float]],
    greedy: Callable[[jax.Array], jax.Array],
    values: Values,
    advance: Callable[[float], None],
) -> np.ndarray:
    """The scores [M, E] of episodes on each of M models.

    Args:
      env: the environment with the noise that is assumed, and with the policy's memory.
      box: the ranges of its uncertain parameters.
      greedy: the policy.
      values: mean and deviation of Q.
      advance: called with the fraction of the work done since its last call.
    """
    nominal = [float(getattr(env.nominal, name)) for name in box]
    corners = [nominal, *itertools.islice(itertools.product(*box.values()), _CORNERS)]
    each = np.repeat(np.array(corners), _EPISODES, axis=0)

    @jax.jit
    def act(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions, and the deviations of their values."""
        action = greedy(obs)
        return action, jnp.take_along_axis(values(obs)[1], action[:, None], axis=1)[:, 0]

    models = dict(zip(box, each.T, strict=True))
    if isinstance(env, HostEnvironment):
        scores = _of_simulator(env, models, act, advance)
    else:
        scores = np.asarray(_in_jax(env, models, act), float)
        advance(1.0)
    return scores.reshape(len(corners), _EPISODES)


def _in_jax(
    env: Environment, models: dict[str, np.ndarray], act: Callable[..., tuple[jax.Array, jax.Array]]
) -> jax.Array:
    start_key, step_key = jax.random.split(jax.random.key(0))
    numbers = {name: jnp.asarray(values, float) for name, values in models.items()}
    count = len(next(iter(models.values())))

    @jax.jit
    def play() -> jax.Array:
        params, start = begin_episodes(env, numbers, start_key)
        _, deviations = rollout(
            env,
            lambda t, obs: act(obs),
            params,
            start,
            env.horizon,
            lambda t: jax.random.split(jax.random.fold_in(step_key, t), count),
            collect=lambda step: jnp.where(step.alive, step.note, 0.0),
        )
        return jnp.max(deviations, axis=0)

    return play()


def _of_simulator(
    env: HostEnvironment,
    models: dict[str, np.ndarray],
    act: Callable[..., tuple[jax.Array, jax.Array]],
    advance: Callable[[float], None],
) -> np.ndarray:
    each = [dict(zip(models, values, strict=True)) for values in zip(*models.values(), strict=True)]
    starts = [Start(seed, model_of(env, model)) for seed, model in enumerate(each)]
    scores, dtype = np.zeros(len(starts)), jnp.zeros(0).dtype

    def noted(episodes: np.ndarray, steps: np.ndarray, obs: np.ndarray) -> np.ndarray:
        action, deviations = map(np.asarray, act(obs.astype(dtype)))
        playing = episodes >= 0
        scores[episodes[playing]] = np.maximum(scores[episodes[playing]], deviations[playing])
        return action

    for taken in make_host_rollout(env)(starts, noted):
        if taken.ended:
            advance(1 / len(starts))
    return scores


def log_e_value(score: float, earlier: np.ndarray, simulated: np.ndarray) -> float:
    """The logarithm of the e-value of an episode.

    Args:
      score: its score so far.
      earlier: [J] those of the episodes before it.
      simulated: [M, E].
    """
    larger = (simulated >= score).sum(axis=1) + (earlier >= score).sum() + 1
    p = larger.max() / (simulated.shape[1] + len(earlier) + 1)
    return float(np.log(_KAPPA) + (_KAPPA - 1) * np.log(p))
