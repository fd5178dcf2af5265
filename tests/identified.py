"""Systems whose parameters are to be identified, and logs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import Environment, Interval, Outcome, quantity, with_model
from deeprok.identification.log import Log


@pytree_dataclass
class Slider:
    """A mass that is pushed along a line against friction: a linear system."""

    push: Any = quantity(1.0, "m/s²", "acceleration by a full push")
    friction: Any = quantity(0.5, "1/s", "deceleration for each m/s", positive=False)
    time_step: Any = quantity(0.1, "s", "time between two decisions")


def _reset(key: jax.Array, params: Slider) -> tuple[jax.Array, jax.Array]:
    del params
    state = jax.random.normal(key, (2,))
    return state, state


def _step(key: jax.Array, state: jax.Array, action: jax.Array, params: Slider) -> Outcome:
    del key
    place, speed = state
    new_speed = speed + params.time_step * (params.push * action[0] - params.friction * speed)
    moved = jnp.stack([place + params.time_step * speed, new_speed])
    return Outcome(state=moved, obs=moved, reward=jnp.zeros(()), terminated=jnp.array(False))


POINT_MASS = Environment(
    name="point_mass",
    reset=_reset,
    step=_step,
    nominal=Slider(),
    box={"push": (0.5, 2.0), "friction": (0.0, 1.0)},
    observation_scale=(1.0, 0.5),
    actions=Interval((-1.0,), (1.0,)),
    horizon=100,
    success_return=0.0,
)


def played(
    env: Environment,
    truth: Mapping[str, float],
    lengths: tuple[int, ...],
    seed: int,
    process: float = 0.0,
    sensor: float = 0.0,
    flat_start: bool = False,
) -> Log:
    """A log of random actions; episodes neither end early nor know of termination.

    Args:
      env: the environment, whose observations determine its state.
      truth: its true parameters, where they are not nominal.
      lengths: steps of each episode.
      seed: of all random numbers.
      process: standard deviation of the process noise, as a multiple of the observations' typical sizes.
      sensor: likewise of the sensor noise.
      flat_start: the noise of the first observation is taken off what is true instead of added to what is seen, as if
        nothing were known of the start.
    """
    scale = np.array(env.observation_scale)
    state_of = env.state_of or (lambda obs: obs)
    most, episodes = max(lengths), len(lengths)

    @jax.jit
    def play(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = with_model(env.nominal, truth)
        begin, act, step, noise = jax.random.split(key, 4)
        _, first = env.reset(begin, params)
        draws = jax.random.normal(noise, (2, most + 1, len(scale)))
        actions = jax.vmap(env.actions.sample)(jax.random.split(act, most))
        first = first - sensor * scale * draws[1, 0] if flat_start else first

        def move(seen: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
            key, action, shock = now
            following = env.step(key, state_of(seen), action, params).obs + process * scale * shock
            return following, following

        _, others = jax.lax.scan(move, first, (jax.random.split(step, most), actions, draws[0, 1:]))
        return jnp.concatenate([first[None], others]) + sensor * scale * draws[1], actions

    with jax.enable_x64(True):
        obs, action = map(np.array, jax.vmap(play)(jax.random.split(jax.random.key(seed), episodes)))
    for i, length in enumerate(lengths):
        obs[i, length + 1 :], action[i, length:] = 0, 0
    return Log(obs, action, np.array(lengths))
