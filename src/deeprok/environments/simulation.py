"""A Gymnasium environment as a `Simulator`: what it answers for several models, and its state as arrays."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.host import Branching, HostOutcome
from deeprok.environments.spaces import ActionSpace, Interval

#: Steps in which restoring the state is tried.
_TRIED_STEPS = 10

#: The render mode of pictures that are arrays.
_PICTURE = "rgb_array"

#: What a stored state has beside the environment's own: the kind of each array, the random state, the last observation.
_KINDS, RANDOM, SEEN = _OWN = ("deeprok.kinds", "deeprok.random", "deeprok.seen")

#: Why random numbers can't be stored.
NO_WORDS = "its random numbers are not of numpy's default generator"


class Access(NamedTuple):
    """How to read and set something of a Gymnasium environment: its parameters, or its state.

    Attributes:
      read: `env -> dict` of numbers, or of arrays that are the state's copy; always with the same names and shapes.
      write: `(env, dict) -> None`, sets what the dictionary names. Parameters are set before and after each reset.
    """

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any, Mapping[str, Any]], None]


class Inside(NamedTuple):
    """All that a simulation is made of."""

    make: Callable[[], Any]
    parameters: Access
    state: Access | None
    begun: Mapping[str, np.ndarray]  # the state after a reset: what a checkpoint holds has these names and shapes
    derive: Callable[[Any], None] | None
    flatten: Callable[[Any], np.ndarray]
    take: Callable[[Any], Any]
    branching: Branching


class _Copies(NamedTuple):
    """An environment for each model, all of them after the same actions."""

    envs: list[Any]
    models: Mapping[str, np.ndarray] | None  # None until they are taken to where the episode is
    steps: int  # how many actions they have taken
    ended: bool  # whether one of them has terminated


class Simulation:
    """A `Simulator` of a Gymnasium environment."""

    def __init__(self, within: Inside) -> None:
        self.failures: dict[str, int] = {}
        self.truncated = False
        self.unread = ""  # what of the state can't be stored, where the last `read` gave None because of it
        self._within = within
        self._env = within.make()
        self._nominal = within.parameters.read(self._env)
        self._model: dict[str, float] = {}
        self._obs = np.zeros(0)  # the last one, which is finite
        self._seed, self._taken = 0, list[Any]()
        self._copies = _Copies([], None, 0, False)

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; the first observation [D]."""
        self._model = {**{name: self._nominal[name] for name in self._model}, **model}
        self._seed, self._taken, self.truncated = seed, [], False
        self._copies = self._copies._replace(models=None, ended=False)
        self._obs = self._begin(self._env, self._model)
        return self._obs

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action on the model of the episode, which moves on."""
        outcome, self.truncated = self._take(self._env, action)
        if self._within.branching == "copies":
            self._taken.append(action)
            # A copy that has ended could not answer any more.
            self.truncated |= self._copies.ended
        self._obs = outcome.obs
        return outcome

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes of the action under each of M models; the simulation is left as it was."""
        count = len(next(iter(models.values())))
        each = [{name: float(values[i]) for name, values in models.items()} for i in range(count)]
        found = (
            self._of_copies(action, models, each) if self._within.branching == "copies" else self.answer(action, each)
        )
        return HostOutcome(*(np.array(column) for column in zip(*found, strict=True)))

    def set(self, model: Mapping[str, float]) -> None:
        """Changes parameters within the episode."""
        self._model = {**self._model, **model}
        self._set(self._env, model)

    def put(self, state: Mapping[str, Any]) -> None:
        """Changes a part of the state within the episode, which is named as the state's access names it."""
        access = self._within.state
        assert access
        access.write(self._env, {**access.read(self._env), **state})

    def picture(self) -> Any:
        """What it looks like now, as Gymnasium draws it: [H, W, 3] bytes."""
        return drawn(self._env)

    def answer(self, action: Any, models: Sequence[Mapping[str, float]]) -> list[HostOutcome]:
        """The outcome of the action under each model, by putting the state back or by copies made for it."""
        env, access, found = self._env, self._within.state, []
        saved, random = (access.read(env), random_state(env)) if access else ({}, None)
        for model in models:
            there = env if access else copy.deepcopy(env)
            self._set(there, model)
            found.append(self._take(there, action)[0])
            if access:
                access.write(env, saved)
                set_random_state(env, random)
        if access:
            self._set(env, {name: self._model.get(name, self._nominal[name]) for name in models[0]})
        return found

    def read(self) -> dict[str, np.ndarray] | None:
        """The state as arrays; None if there are none: it is a copy, or no longer has the form it began with."""
        access, words, self.unread = self._within.state, random_words(random_state(self._env)), ""
        if self._within.branching != "restored" or access is None:
            return None
        if words is None:
            self.unread = NO_WORDS
            return None
        state, begun = access.read(self._env), self._within.begun
        if state.keys() != begun.keys():
            self.unread = f"it has the names {_names(state)}, after a reset {_names(begun)}"
            return None
        found, kinds = dict[str, np.ndarray](), []
        for name, first in sorted(begun.items()):
            value = state[name]
            array = as_numbers(value)
            if array is None or array.shape != first.shape:
                now = f"a {type(value).__name__}" if array is None else _size(array)
                self.unread = f"{name} is {now}, after a reset {_size(first)}"
                return None
            # An attribute may be None, and change its kind from one step to the next; a checkpoint holds only bits.
            kinds.append(0 if value is None else ord(array.dtype.char))
            found[name] = _of_kind(array, first)
        return {**found, _KINDS: np.array(kinds), RANDOM: words, SEEN: self._obs.copy()}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""
        access = self._within.state
        assert access
        # A first reset makes what an environment steps only after.
        self.reset(0, model)
        names = sorted(name for name in state if name not in _OWN)
        found: dict[str, Any] = {}
        for name, kind in zip(names, np.asarray(state[_KINDS]).tolist(), strict=True):
            array = _back(np.asarray(state[name]), chr(kind)) if kind else None
            found[name] = array if array is None or array.ndim else array.item()
        access.write(self._env, found)
        set_random_state(self._env, state_of_words(np.asarray(state[RANDOM])))
        self._obs = np.array(state[SEEN], float)

    def _begin(self, env: Any, model: Mapping[str, float]) -> np.ndarray:
        """A reset with a model's parameters, which the first state may depend on, or which a reset may replace."""
        self._set(env, model)
        obs = first_observation(env.reset(seed=self._seed))
        self._set(env, model)
        return self._within.flatten(obs)

    def _set(self, env: Any, model: Mapping[str, float]) -> None:
        self._within.parameters.write(env, model)
        if self._within.derive:
            self._within.derive(env)

    def _take(self, env: Any, action: Any) -> tuple[HostOutcome, bool]:
        try:
            obs, earned, terminated, truncated = _results(env.step(self._within.take(action)))
            flat = self._within.flatten(obs)
        except (ArithmeticError, np.linalg.LinAlgError):  # as by a mass of zero
            flat, earned, terminated, truncated = self._obs, math.nan, True, False
        if not math.isfinite(earned + sum(flat.tolist())):  # for a few numbers faster than numpy
            self.failures["not finite"] = self.failures.get("not finite", 0) + 1
            flat, earned, terminated = self._obs, earned if math.isfinite(earned) else 0.0, True
        return HostOutcome(flat, earned, terminated), truncated  # type: ignore[arg-type]

    def _of_copies(
        self, action: Any, models: Mapping[str, np.ndarray], each: list[dict[str, float]]
    ) -> list[HostOutcome]:
        """Steps an environment for each model. They begin with the episode and have been taken to where it is."""
        envs, begun, steps, _ = self._copies
        if begun is not models or steps != len(self._taken):
            envs = envs if len(envs) == len(each) else [self._within.make() for _ in each]
            for env, model in zip(envs, each, strict=True):
                self._begin(env, {**self._model, **model})
                for taken in self._taken:
                    env.step(self._within.take(taken))
        found = [self._take(env, action)[0] for env in envs]
        self._copies = _Copies(envs, models, len(self._taken) + 1, any(outcome.terminated for outcome in found))
        return found


# --- what an environment gives -------------------------------------------------------------------------


def first_observation(found: Any) -> Any:
    """The observation of what a reset gave; raises unless that is a pair with Gymnasium's dictionary."""
    if isinstance(found, tuple) and len(found) == 2 and (found[1] is None or isinstance(found[1], Mapping)):
        return found[0]
    what = f"{len(found)} values" if isinstance(found, tuple) and len(found) != 2 else shown(found)
    raise DeeprokError(f"the simulator's reset gives {what}; it must give two: observation, info (a dictionary)")


def _results(found: Any) -> tuple[Any, float, bool, bool]:
    """What a step gave, without the dictionary; raises unless it is what Gymnasium asks for."""
    if not isinstance(found, tuple) or len(found) != 5:
        what = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise DeeprokError(
            f"the simulator's step gives {what}; it must give five: observation, reward, terminated, truncated, info "
            "(done of the old Gym is terminated where the task has ended, truncated where only time is up)"
        )
    obs, reward, terminated, truncated, _ = found
    return obs, _reward(reward), _flag(terminated, "terminated"), _flag(truncated, "truncated")


def _reward(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise DeeprokError(f"the simulator's step gives the reward {shown(value)}; it must be one number")
    return float(array.reshape(()))


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if np.size(value) != 1 or np.ravel(value)[0] not in (0, 1):
        raise DeeprokError(f"the simulator's step gives {name} as {shown(value)}; it must be True or False")
    return bool(value)


def drawn(env: Any) -> Any:
    """What an environment looks like now, as it draws itself."""
    bare = env.unwrapped
    if _PICTURE not in bare.metadata.get("render_modes", ()):
        raise DeeprokError(f"{type(bare).__name__} can't be seen: it has no render mode {_PICTURE}")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # It was made to be stepped; what it needs to be drawn it makes with the first picture.
    bare.render_mode = _PICTURE
    return bare.render()


# --- the state as arrays -------------------------------------------------------------------------------


def as_numbers(value: Any) -> np.ndarray | None:
    """A part of a state as an array, of which nothing is a zero; None if it is not of numbers."""
    try:
        array = np.asarray(0.0 if value is None else value)
    except ValueError:  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _of_kind(array: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Whole numbers as floats where those were at first; floats as their bits where whole numbers were."""
    if (array.dtype.kind == "f") == (first.dtype.kind == "f"):
        return array
    floats = array.astype(float)
    return floats if first.dtype.kind == "f" else floats.view(np.int64)


def _back(array: np.ndarray, kind: str) -> np.ndarray:
    """What `_of_kind` was given."""
    bits = np.dtype(kind).kind == "f" and array.dtype.kind != "f"
    return (array.view(float) if bits else array).astype(kind)


def _size(array: np.ndarray) -> str:
    return f"of shape {array.shape}" if array.ndim else "one number or None"


def _names(state: Mapping[str, Any]) -> str:
    return ", ".join(sorted(state)) or "nothing"


def random_state(env: Any) -> Any:
    """The state of the environment's random numbers; None if it has drawn none."""
    generator = env.unwrapped._np_random
    return generator and generator.bit_generator.state


def set_random_state(env: Any, state: Any) -> None:
    """Puts back what `random_state` gave."""
    if state is not None and random_state(env) != state:
        env.unwrapped.np_random.bit_generator.state = state


_WORD = 2**32


def random_words(state: Any) -> np.ndarray | None:
    """The state of random numbers as words [10] of 32 bits, zeros if there is none; None if it can't be written so."""
    if state is None:
        return np.zeros(10, int)
    if state["bit_generator"] != "PCG64":
        return None
    numbers = [state["state"]["state"], state["state"]["inc"]]
    words = [number // _WORD**i % _WORD for number in numbers for i in range(4)]
    return np.array([*words, state["has_uint32"], state["uinteger"]])


def state_of_words(words: np.ndarray) -> Any:
    """What `random_words` was given."""
    whole = [int(word) for word in words]
    if not any(whole):
        return None
    state, inc = (sum(whole[4 * k + i] * _WORD**i for i in range(4)) for k in range(2))
    return {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": inc},
        "has_uint32": whole[8],
        "uinteger": whole[9],
    }


def not_restored(simulation: Simulation, actions: ActionSpace) -> str:
    """What shows that the state can't be restored; empty if it can.

    An action is tried twice and then taken: the three outcomes must be the same. A simulation that gives what is no
    observation, reward or flag raises, and so does a user's function that fails.
    """
    draws = np.random.default_rng(0)
    try:
        simulation.reset(0, {})
        for _ in range(_TRIED_STEPS):
            action = random_action(actions, draws)
            tried = simulation.answer(action, [{}, {}])
            taken = simulation.step(action)
            for outcome in tried:
                if not all(np.array_equal(a, b) for a, b in zip(outcome, taken, strict=True)):
                    return "the same action from a restored state has another outcome"
            if taken.terminated:
                simulation.reset(0, {})
    except DeeprokError:
        raise
    except Exception as error:  # whatever can't be copied says so in its own way
        return f"{type(error).__name__}: {error}"
    return ""


def random_action(actions: ActionSpace, draws: np.random.Generator) -> Any:
    """An action that is as likely as any other."""
    if isinstance(actions, Interval):
        return draws.uniform(actions.low, actions.high)
    return int(draws.integers(len(actions)))
