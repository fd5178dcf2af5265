"""What an environment predicts: the mean and the spread of the next observation, given this one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Environment, with_model

#: `(theta [N], obs [D], action, own) -> Prediction`, where `own` is what a step of a log has for it alone.
Predict = Callable[[jax.Array, jax.Array, jax.Array, Any], "Prediction"]

#: Outcomes by which the spread of an environment that is itself random is known in each step.
_DRAWS = 256
#: And where to begin is all that is asked.
_FEW_DRAWS = 16
_TRIED_STEPS, _TRIED_EPISODES = 8, 8
_TOLERANCE = 1e-6  # of the typical size of an observation


class Prediction(NamedTuple):
    """The next observation, linearised in this one."""

    mean: jax.Array  # [D]
    slope: jax.Array  # [D, D] its derivative with respect to the present observation
    spread: jax.Array  # [D, D] the covariance by which the environment itself is random


class Dynamics(NamedTuple):
    """An environment in which some parameters are arguments. It can be hashed: what is compiled for it is kept."""

    step: Callable[..., Any]
    state_of: Callable[[jax.Array], Any]
    nominal: Any  # the parameters, as numbers of Python
    names: tuple[str, ...]  # of the N parameters that are arguments
    scale: tuple[float, ...]  # [D] typical sizes of the observations
    random: tuple[bool, ...]  # [D] whether the environment itself is random there

    def predict(
        self, theta: jax.Array, obs: jax.Array, action: jax.Array, key: jax.Array, draws: int = _DRAWS
    ) -> Prediction:
        """What follows an observation, by so many draws where the environment itself is random."""
        params = with_model(self.nominal, dict(zip(self.names, theta, strict=True)))

        def outcome(seen: jax.Array, key: jax.Array) -> jax.Array:
            return self.step(key, self.state_of(seen), action, params).obs

        if not any(self.random):
            size = len(self.scale)
            return Prediction(outcome(obs, key), jax.jacfwd(outcome)(obs, key), jnp.zeros((size, size)))
        keys = jax.random.split(key, draws)

        def mean(seen: jax.Array) -> tuple[jax.Array, jax.Array]:
            drawn = jax.vmap(outcome, (None, 0))(seen, keys)
            return drawn.mean(axis=0), drawn

        slope, drawn = jax.jacfwd(mean, has_aux=True)(obs)
        centred = drawn - drawn.mean(axis=0)
        # Not the unbiased covariance C: for a normal outcome e it makes the mean of e²/C, which decides the likelihood,
        # 1, although both C and the mean that e is taken from are known by few draws.
        spread = centred.T @ centred * (1 + 1 / draws) / (draws - 3)
        return Prediction(drawn.mean(axis=0), slope, spread)

    @property
    def roughly(self) -> Predict:
        """The same by fewer draws."""
        return functools.partial(self.predict, draws=_FEW_DRAWS)


def make_dynamics(env: Environment, names: tuple[str, ...], what: str = "identify") -> Dynamics:
    """The dynamics of an environment whose observations determine its state; raises if they do not.

    Args:
      env: the environment.
      names: the parameters that are arguments.
      what: what needs them, for the message.
    """
    numbers = {field.name: float(getattr(env.nominal, field.name)) for field in dataclasses.fields(env.nominal)}
    nominal = dataclasses.replace(env.nominal, **numbers)
    state_of, scale = env.state_of or _itself, tuple(env.observation_scale)
    random = _random_coordinates(env.reset, env.step, state_of, env.actions, nominal, scale)  # type: ignore[arg-type]
    if random is None:
        wrong = "what its state_of makes of an observation" if env.state_of else "its observation"
        raise DeeprokError(
            f"env is '{env.name}', and {wrong} is not its state; {what} needs Environment(…, state_of=…), the state "
            "that an observation stands for, and can't be used where part of the state is not seen"
        )
    return Dynamics(env.step, state_of, nominal, names, scale, random)


def _itself(obs: jax.Array) -> jax.Array:
    return obs


@functools.lru_cache(maxsize=8)
def _random_coordinates(
    reset: Any, step: Any, state_of: Any, actions: Any, nominal: Any, scale: tuple[float, ...]
) -> tuple[bool, ...] | None:
    """Which observations depend on random numbers; None if an observation does not determine the state."""

    @jax.jit
    def step_thrice(key: jax.Array) -> tuple[jax.Array, ...]:
        """Observations after a step: from the state, from its observation, and with other random numbers."""
        params = with_model(nominal, {})
        reset_key, act_key, step_key, other_key = jax.random.split(key, 4)

        def move(now: tuple[Any, jax.Array], key: jax.Array) -> tuple[tuple[Any, jax.Array], None]:
            outcome = step(key, now[0], actions.sample(key), params)
            return (outcome.state, outcome.obs), None

        (state, obs), _ = jax.lax.scan(move, reset(reset_key, params), jax.random.split(act_key, _TRIED_STEPS))
        action, read = actions.sample(act_key), state_of(obs)
        starts = ((step_key, state), (step_key, jax.tree.map(_alike, state, read)), (other_key, state))
        return tuple(step(key, start, action, params).obs for key, start in starts)

    with jax.enable_x64(True):
        try:
            episodes = jax.random.split(jax.random.key(0), _TRIED_EPISODES)
            direct, read, other = map(np.asarray, jax.vmap(step_thrice)(episodes))
        except (TypeError, ValueError):  # it has another structure than the state
            return None
    margin = _TOLERANCE * np.array(scale)
    if np.any(np.abs(direct - read) > margin):
        return None
    return tuple(np.any(np.abs(direct - other) > margin, axis=0).tolist())


def _alike(own: Any, read: Any) -> jax.Array:
    """A part of a state as the environment has it; raises if its shape is another."""
    if jnp.shape(own) != jnp.shape(read):
        raise ValueError(f"shape {jnp.shape(read)} instead of {jnp.shape(own)}")
    return jnp.asarray(read).astype(jnp.asarray(own).dtype)
