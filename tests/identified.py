"""Systems whose parameters are to be identified, and logs of them."""

from __future__ import annotations

import functools
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
    play = _player(env.reset, env.step, env.state_of, env.actions, env.nominal, env.observation_scale, max(lengths))
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), len(lengths))
        numbers = {name: jnp.asarray(value, float) for name, value in truth.items()}
        obs, action = map(np.array, play(keys, numbers, process, sensor, flat_start))
    for i, length in enumerate(lengths):
        obs[i, length + 1 :], action[i, length:] = 0, 0
    return Log(obs, action, np.array(lengths))


@functools.cache
def _player(reset: Any, step: Any, state_of: Any, actions: Any, nominal: Any, scale: Any, steps: int) -> Any:
    """Compiled once for each environment, whatever the truth."""
    state_of = state_of or (lambda obs: obs)
    sizes = np.array(scale)

    def play(key: jax.Array, truth: Any, process: Any, sensor: Any, flat_start: Any) -> tuple[jax.Array, jax.Array]:
        params = with_model(nominal, truth)
        begin, act, move_key, noise = jax.random.split(key, 4)
        _, first = reset(begin, params)
        draws = jax.random.normal(noise, (2, steps + 1, len(sizes)))
        taken = jax.vmap(actions.sample)(jax.random.split(act, steps))
        first = jnp.where(flat_start, first - sensor * sizes * draws[1, 0], first)

        def move(seen: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
            key, action, shock = now
            following = step(key, state_of(seen), action, params).obs + process * sizes * shock
            return following, following

        _, others = jax.lax.scan(move, first, (jax.random.split(move_key, steps), taken, draws[0, 1:]))
        return jnp.concatenate([first[None], others]) + sensor * sizes * draws[1], taken

    return jax.jit(jax.vmap(play, (0, None, None, None, None)))


def as_table(log: Log) -> dict[str, np.ndarray]:
    """The log's columns."""
    alive = np.arange(log.action.shape[1]) < log.length[:, None]
    episode, t = np.nonzero(alive)
    action = log.action[alive].reshape(log.steps, -1)
    columns = {"episode": episode, "t": t} | {f"action_{k}": action[:, k] for k in range(action.shape[1])}
    for name, obs in (("obs", log.obs[:, :-1]), ("next_obs", log.obs[:, 1:])):
        columns |= {f"{name}_{k}": obs[alive][:, k] for k in range(obs.shape[2])}
    return columns
