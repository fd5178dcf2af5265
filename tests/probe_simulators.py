"""Environments as JAX functions and as stateful simulators that have the same first states, for the drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from probe_envs import ice

from deeprok.environments import Environment, HostEnvironment, HostOutcome, branch, cartpole, with_model
from deeprok.environments.pendulum import pendulum

_KEY = jax.random.key(0)  # their physics is deterministic


def seeded(env: Environment, name: str) -> Environment:
    """An environment whose first states are decided by a seed."""

    def reset(key: jax.Array, params: Any) -> Any:
        return env.reset(jax.random.key(jax.random.bits(key, (), "uint32")), params)

    return env._replace(name=name, reset=reset)


class Simulated:
    """The same as a simulator."""

    def __init__(self, env: Environment) -> None:
        self.failures: dict[str, int] = {}
        self._nominal = env.nominal
        self._model: Any = None
        self._state: Any = None
        self._reset = jax.jit(lambda seed, params: env.reset(jax.random.key(seed), params))
        self._step = jax.jit(lambda state, action, params: env.step(_KEY, state, action, params))
        self._branch = jax.jit(lambda state, action, models: branch(env, _KEY, state, action, models))

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        self._model = with_model(self._nominal, {name: jnp.asarray(value) for name, value in model.items()})
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


def simulated(env: Environment, name: str, kind: type[Simulated] = Simulated) -> HostEnvironment:
    return HostEnvironment(
        name=name,
        make=lambda: kind(env),
        nominal=env.nominal,
        box=env.box,
        observation_scale=env.observation_scale,
        actions=env.actions,
        horizon=env.horizon,
        success_return=env.success_return,
    )


JAX_CARTPOLE = seeded(cartpole(horizon=40), "seeded")
SIMULATED_CARTPOLE = simulated(cartpole(horizon=40), "simulated")
FORGETFUL = simulated(cartpole(horizon=40), "forgetful", Unreadable)
JAX_PENDULUM = seeded(pendulum(horizon=20), "seeded pendulum")
SIMULATED_PENDULUM = simulated(pendulum(horizon=20), "simulated pendulum")
SIMULATED_ICE = simulated(ice(), "simulated ice")
