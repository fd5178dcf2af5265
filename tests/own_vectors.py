"""Gymnasium's vector environments as users have them, to be named `own_vectors:OBJECT`; some of them can't be used."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from deeprok.environments import from_gymnasium

# --- Gymnasium's Cart-Pole -----------------------------------------------------------------------------


def _derive(env: Any) -> None:
    pole = env.unwrapped
    pole.total_mass = pole.masspole + pole.masscart
    pole.polemass_length = pole.masspole * pole.length


_told: dict[str, Any] = dict(
    box={"length": (0.2, 1.4), "masscart": (0.1, 7.0)},
    derive=_derive,
    observation_scale=(2.4, 2.0, 0.2, 2.0),
    name="CartPole",
)


def three() -> Any:
    """Always three rows."""
    return gymnasium.make_vec("CartPole-v1", num_envs=3)


#: One that is made with as many rows as are asked for, one that always has three, and the single environment.
CARTPOLES = from_gymnasium(functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=4), **_told)
THREE = from_gymnasium(three, **_told)
CARTPOLE = from_gymnasium("CartPole-v1", state=["unwrapped.state", "unwrapped.steps_beyond_terminated"], **_told)


# --- lists of single environments ----------------------------------------------------------------------


def sync() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


def asynchronous() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")


def wrapped() -> Any:
    return gymnasium.wrappers.vector.ClipReward(sync(), 0.0, 1.0)


def unlike() -> Any:
    """Two poles, one of them with a longer one."""

    def make(length: float) -> Any:
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.length = length  # type: ignore[attr-defined]
        return env

    return SyncVectorEnv([functools.partial(make, length) for length in (0.5, 0.7)])


# --- in batch ------------------------------------------------------------------------------------------


class Buoys(VectorEnv[Any, Any, Any]):
    """Buoys on a line, each with a drift and a position, which must stay near; rows come first, gusts are random."""

    mode, gust = AutoresetMode.NEXT_STEP, 0.0
    render_mode = None

    def __init__(self, num_envs: int = 2) -> None:
        self.metadata = {"autoreset_mode": self.mode}
        self.num_envs = num_envs
        self.current, self.pull = 0.05, np.full(num_envs, 0.3)
        self.single_observation_space = spaces.Box(-9.0, 9.0, (2,), np.float64)
        self.single_action_space = spaces.Discrete(2, start=5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state, self.ended = np.zeros((num_envs, 2)), np.zeros(num_envs, bool)

    def fresh(self, count: int) -> Any:
        return self.np_random.uniform(-0.1, 0.1, (count, 2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.ended = self.fresh(self.num_envs), np.zeros(self.num_envs, bool)
        return self.state.copy(), {}

    def drift(self, action: Any) -> Any:
        return self.current + self.pull * (action - 5.5)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        again = self.ended if self.mode is AutoresetMode.NEXT_STEP else np.zeros_like(self.ended)
        self.state[:, 0] += 0.5 * self.drift(actions)
        if self.gust:
            self.state[:, 0] += self.gust * self.np_random.normal(size=self.num_envs)
        self.state[:, 1] += self.state[:, 0]
        reward = 1.0 - self.state[:, 1] ** 2
        terminated = (np.abs(self.state[:, 1]) > 1.0) & ~again
        self.state[again] = self.fresh(int(again.sum()))
        self.ended, info = terminated.copy(), {}
        seen = self.state.copy()
        if self.mode is AutoresetMode.SAME_STEP and terminated.any():
            info = {"final_obs": seen.copy(), "_final_obs": terminated}
            self.state[terminated] = self.fresh(int(terminated.sum()))
            self.ended[:], seen = False, self.state.copy()
        return seen, reward, terminated, np.zeros_like(terminated), info


class Gusty(Buoys):
    """Its steps draw random numbers."""

    gust = 0.05


class SameStep(Buoys):
    """A row that has ended begins anew in the same step."""

    mode = AutoresetMode.SAME_STEP


class Disabled(Buoys):
    """Rows that have ended go on."""

    mode = AutoresetMode.DISABLED


class Lost(SameStep):
    """One that does not tell what an episode ended with."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return (*super().step(actions)[:4], {})


class Silent(Buoys):
    """One that does not say when it resets rows."""

    def __init__(self, num_envs: int = 2) -> None:
        super().__init__(num_envs)
        self.metadata = {}


class Shared(Buoys):
    """One current for all."""

    def drift(self, action: Any) -> Any:
        return float(self.current) + self.pull * (action - 5.5)


class Coupled(Buoys):
    """Rows that disturb each other."""

    def drift(self, action: Any) -> Any:
        return super().drift(action) + 0.01 * self.state[:, 1].mean()


class Hidden(Buoys):
    """Part of its state is no array with an axis of rows."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.tide = [0.0]
        return super().reset(seed=seed)

    def drift(self, action: Any) -> Any:
        self.tide[0] += 0.01
        return super().drift(action) + self.tide[0]


class Flat(Buoys):
    """One reward for all rows."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        seen, reward, *others = super().step(actions)
        return seen, reward.mean(), *others  # type: ignore[return-value]


class Square(Buoys):
    """As many rows as observations."""

    def __init__(self) -> None:
        super().__init__(2)


class Stubborn(Buoys):
    """Two rows, whatever is asked for."""

    def __init__(self, num_envs: int = 2) -> None:
        super().__init__(2)


class Fleet(VectorEnv[Any, Any, Any]):
    """Nothing at all."""


class Sinking(Buoys):
    """One that fails in its first step."""

    def drift(self, action: Any) -> Any:
        raise RuntimeError("the buoy has sunk")


def normalised() -> Any:
    """A wrapper that all rows share the numbers of."""
    return gymnasium.wrappers.vector.NormalizeObservation(Buoys(3))


def many(num_envs: int, speed: float) -> Any:
    return Buoys(num_envs)


def numbered(num_envs: int) -> Any:
    return Buoys(num_envs)


PARTIAL = functools.partial(Buoys, num_envs=8)

_BOX = {"current": (-0.1, 0.1), "pull": (0.1, 0.4)}
BUOYS, GUSTY, SAME_STEP, DISABLED = (
    from_gymnasium(kind, box=_BOX, horizon=30, success_return=10.0) for kind in (Buoys, Gusty, SameStep, Disabled)
)

MADE = Buoys()
