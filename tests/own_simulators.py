"""Gymnasium environments as users have them, to be named `own_simulators:OBJECT`; some of them can't be used."""

from __future__ import annotations

import collections
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from deeprok.environments import HostEnvironment, from_gymnasium

FLAT = spaces.Box(-1.0, 1.0, (1,), np.float64)


class Boat(gymnasium.Env[Any, Any]):
    """A boat in a current that must stay in its lane; the wind is random, and its time is its own."""

    power = 0.4  # of all boats

    def __init__(self) -> None:
        self.current, self.gusts, self.most = 0.05, 0.02, 30
        self.observation_space, self.action_space = FLAT, spaces.Discrete(2, start=3)
        self.place, self._steps = np.zeros(1), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self._steps = self.np_random.uniform(-0.1, 0.1, 1), 0
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (3, 4)
        self.place += self.current + (self.power if action == 4 else -self.power) + self.gusts * self.np_random.normal()
        self._steps += 1
        left = bool(abs(self.place[0]) > 1.0)
        return self.place.copy(), 1.0, left, self._steps >= self.most, {}


class Bare(gymnasium.Env[Any, Any]):
    """Holds no number that is not its own."""

    observation_space, action_space = FLAT, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-0.1, 0.1, 1)
        return self._place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 0.3 if action else -0.3
        return self._place.copy(), 1.0, bool(abs(self._place[0]) > 1.0), False, {}


class Windowed(Boat):
    """A boat that holds what can't be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.window = (i for i in range(3))


class Haunted(Boat):
    """A boat whose random numbers are no part of its state."""

    drawn = np.random.default_rng(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 0.01 * self.drawn.normal()
        return super().step(action)

    def __deepcopy__(self, memo: Any) -> Haunted:
        made = Haunted()
        made.__dict__.update(self.__dict__, place=self.place.copy())
        return made


class Delayed(Boat):
    """A boat whose engine answers two steps late; the queue may be of any kind that can be appended to."""

    kind: Any = collections.deque

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.queue = self.kind([3, 4])
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.queue.append(action)
        late = self.queue[0]
        del self.queue[0]
        return super().step(late)


class Noted(Boat):
    """A slow boat that notes its last place, of which there is none after a reset."""

    power = 0.03

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.last = None
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.last = np.array([self.place[0], 1.0])
        return super().step(action)


class Listed(Delayed):
    """The same with a list."""

    kind = list


def read_delayed(env: Any) -> dict[str, Any]:
    """The state of `Delayed`, as arrays."""
    return {"place": env.unwrapped.place.copy(), "queue": np.array(env.unwrapped.queue)}


def write_delayed(env: Any, state: Any) -> None:
    """Puts it back."""
    env.unwrapped.place, env.unwrapped.queue = state["place"].copy(), collections.deque(state["queue"])


class Camera(Boat):
    """A boat that sees images."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Many(Boat):
    """A boat with two engines."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 2])


class Boundless(Boat):
    """A boat whose engine has no largest power."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,))


class Needy(Boat):
    """A boat that can't be made without a captain."""

    def __init__(self, captain: str) -> None:
        super().__init__()


class Explosive(Boat):
    """A boat whose simulation is lost in a strong current."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return (obs * np.nan if self.current > 1.0 else obs, reward, *rest)


class Divided(Boat):
    """A boat whose acceleration is its power over its mass, which may be zero; with a negative one it gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.mass = 1.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.mass < 0:
            raise ValueError("negative mass")
        self.place += 0.0 / self.mass
        return super().step(action)


class Exact(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Gymnasium's Cart-Pole rounds its observations to single precision; this one does not."""

    def observation(self, observation: Any) -> Any:
        return np.array(self.unwrapped.state)


def exact_cartpole() -> Any:
    """A function that makes an environment, with a time limit of its own."""
    return gymnasium.wrappers.TimeLimit(Exact(CartPoleEnv()), 300)


def derive(env: Any) -> None:
    pole = env.unwrapped
    pole.total_mass = pole.masspole + pole.masscart
    pole.polemass_length = pole.masspole * pole.length


EXACT = from_gymnasium(
    exact_cartpole,
    box={"length": (0.2, 1.4), "masscart": (0.1, 7.0)},
    state=["unwrapped.state", "unwrapped.steps_beyond_terminated"],
    derive=derive,
)

#: The same without saying where its state is: it is copied.
COPIED = from_gymnasium(exact_cartpole, box=EXACT.box, derive=derive)

BOAT = from_gymnasium(Boat, box={"current": (-0.3, 0.3)}, state=["place", "_steps"], horizon=25, success_return=20.0)


#: Its state can be restored in every step, and stored only at the start of an episode.
NOTED = from_gymnasium(Noted, box={"current": (-0.01, 0.01)}, state=["place", "_steps", "last"], horizon=40)

#: Its state can't be restored.
WINDOWED = from_gymnasium(Windowed, box={"current": (-0.2, 0.2)}, horizon=20)


def boat() -> HostEnvironment:
    """A function without arguments that makes an environment."""
    return BOAT


class Fragile(Boat):
    """A boat that sinks, some time after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 60

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("the boat has sunk")
        return super().step(action)


FRAGILE = from_gymnasium(Fragile, box={"current": (-0.3, 0.3)}, state=["place", "_steps"], horizon=10)
