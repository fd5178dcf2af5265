"""Cart-Pole as JAX functions and as stateful simulators that have the same first states, for the drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments import HostEnvironment, HostOutcome, branch, cartpole, with_model

_ENV = cartpole(horizon=40)
_KEY = jax.random.key(0)  # its physics is deterministic


def _begin(seed: Any, params: Any) -> tuple[jax.Array, jax.Array]:
    return _ENV.reset(jax.random.key(seed), params)


#: Cart-Pole whose first states are decided by a seed.
JAX_CARTPOLE = _ENV._replace(
    name="seeded", reset=lambda key, params: _begin(jax.random.bits(key, (), "uint32"), params)
)


class Simulated:
    """The same as a simulator."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._model: Any = None
        self._state: Any = None
        self._reset = jax.jit(_begin)
        self._step = jax.jit(lambda state, action, params: _ENV.step(_KEY, state, action, params))
        self._branch = jax.jit(lambda state, action, models: branch(_ENV, _KEY, state, action, models))

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        self._model = with_model(_ENV.nominal, {name: jnp.asarray(value) for name, value in model.items()})
        self._state, obs = self._reset(np.uint32(seed), self._model)
        return np.asarray(obs, float)

    def step(self, action: Any) -> HostOutcome:
        outcome = self._step(self._state, action, self._model)
        self._state = outcome.state
        return HostOutcome(np.asarray(outcome.obs, float), np.asarray(outcome.reward), np.asarray(outcome.terminated))

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        outcome = self._branch(self._state, action, {name: jnp.asarray(values) for name, values in models.items()})
        return HostOutcome(np.asarray(outcome.obs, float), np.asarray(outcome.reward), np.asarray(outcome.terminated))

    def read(self) -> dict[str, np.ndarray] | None:
        return {"state": np.asarray(self._state)}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        self.reset(0, model)
        self._state = jnp.asarray(state["state"], float)


class Unreadable(Simulated):
    """One whose state can't be stored."""

    def read(self) -> dict[str, np.ndarray] | None:
        return None


SIMULATED_CARTPOLE = HostEnvironment(
    name="simulated",
    make=Simulated,
    nominal=_ENV.nominal,
    box=_ENV.box,
    observation_scale=_ENV.observation_scale,
    actions=_ENV.actions,
    horizon=_ENV.horizon,
    success_return=_ENV.success_return,
)

FORGETFUL = SIMULATED_CARTPOLE._replace(name="forgetful", make=Unreadable)
