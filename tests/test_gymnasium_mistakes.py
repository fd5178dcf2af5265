"""What users give with a Gymnasium environment, and what their environments give: what is wrong is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import own_simulators
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.environments import Access, HostEnvironment, check_environment, from_gymnasium
from deeprok.training.players import Fresh, Player, was_read, words_of

# --- what a user's own functions and attributes do wrong --------------------------------------------------------


def raising(*_: Any) -> Any:
    raise KeyError("mass")


READ, WRITE = own_simulators.read_delayed, own_simulators.write_delayed
CURRENT = (lambda env: {"stream": env.unwrapped.current}, lambda env, values: None)
ALLOWED = "it must be a dictionary, name -> attribute path, such as {'mass': 'unwrapped.mass'}, or two functions"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parameters": ["unwrapped.current"]}, f"parameters is ['unwrapped.current']; {ALLOWED}, (read, write)"),
        ({"parameters": {"current": 3}}, f"parameters is {{'current': 3}}; {ALLOWED}, (read, write)"),
        ({"state": "unwrapped.place"}, "state is 'unwrapped.place'; it must be a list of attribute paths, such as "),
        ({"state": {"place": "unwrapped.place"}}, "state is {'place': 'unwrapped.place'}; it must be a list of "),
        ({"branching": "copy"}, "unknown branching 'copy': did you mean 'copies'? known are copies, none, restored"),
        (
            {"parameters": (lambda env: [0.05], WRITE)},
            "the function that reads the parameters of Boat gives [0.05]; it must give a dictionary, name -> number",
        ),
        ({"parameters": (lambda env: {"mass": "heavy"}, WRITE)}, "Boat: the parameter mass is 'heavy'; it must be a "),
        (
            {"parameters": (raising, WRITE)},
            "the function that reads the parameters of Boat fails with KeyError: 'mass'",
        ),
        (
            {"parameters": (CURRENT[0], raising)},
            "the function that sets the parameters of Boat fails with KeyError: 'mass'",
        ),
        ({"state": (raising, WRITE)}, "the function that reads the state of Boat fails with KeyError: 'mass'"),
        (
            {"state": (lambda env: {"place": env.place.copy()}, raising)},
            "the function that sets the state of Boat fails with KeyError: 'mass'",
        ),
        ({"state": (lambda env: env.place, WRITE)}, "the function that reads the state of Boat gives ["),
        ({"state": (vars, WRITE)}, "Boat: observation_space of the state is a Box; it must be a number or an array"),
        ({"derive": raising}, "derive of Boat fails with KeyError: 'mass'"),
    ],
)
def test_what_users_give_is_refused_in_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        from_gymnasium(own_simulators.Boat, **options)
    assert str(error.value).startswith(said)


def test_a_plain_pair_of_functions_is_access() -> None:
    def write(env: Any, values: Mapping[str, Any]) -> None:
        env.unwrapped.current = values.get("stream", env.unwrapped.current)

    given = {"box": {"stream": (0.0, 0.3)}, "state": (READ, WRITE), "parameters": (CURRENT[0], write)}
    plain = from_gymnasium(own_simulators.Delayed, **given)
    named = {**given, "state": Access(READ, WRITE), "parameters": Access(CURRENT[0], write)}
    one, other = plain.make(), from_gymnasium(own_simulators.Delayed, **named).make()
    assert (plain.branching, vars(plain.nominal)) == ("restored", {"stream": 0.05})
    for simulator in (one, other):
        simulator.reset(2, {"stream": 0.2})
    for action in (0, 1, 0, 1):
        for mine, theirs in zip(
            one.outcomes(action, {"stream": np.array([0.1, 0.2])}), other.step(action), strict=True
        ):
            np.testing.assert_array_equal(mine[1], theirs)
        one.step(action)


class Geared(own_simulators.Boat):
    """A boat whose current is a property that can be set, and whose speed is one that can't."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = {"gear": 2.0}

    @property
    def gear(self) -> float:
        return self.inner["gear"]

    @gear.setter
    def gear(self, value: float) -> None:
        self.inner = {"gear": value}

    @property
    def speed(self) -> float:
        return self.power / self.gear

    @property
    def wake(self) -> float:
        return float(self.missing)  # type: ignore[attr-defined]

    @wake.setter
    def wake(self, value: float) -> None:
        raise RuntimeError

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 0.01 * self.gear
        return super().step(action)


def test_properties_with_a_setter_are_parameters() -> None:
    env = from_gymnasium(Geared, box={"gear": (1.0, 3.0)})
    assert {"gear", "current"} <= vars(env.nominal).keys()
    assert not {"speed", "wake"} & vars(env.nominal).keys()
    simulator = env.make()
    simulator.reset(0, {"gear": 1.0})
    found = simulator.outcomes(0, {"gear": np.array([1.0, 3.0])})
    np.testing.assert_allclose(found.obs[1] - found.obs[0], 0.02)
    with pytest.raises(DeeprokError, match=r"^Geared: unwrapped.speed can't be set, so it is no parameter \(Attribute"):
        from_gymnasium(Geared, box={"speed": (1.0, 2.0)})


# --- a state that changes its form ------------------------------------------------------------------------------


class Changing(own_simulators.Boat):
    """A boat with a note, which is something else after some steps."""

    notes: Any = (0, 0.5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.note = self.notes[0]
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.note = self.notes[1]
        self.place += 0.0 if self.notes[0] != 0 else 0.01 * self.note
        return super().step(action)


def changing(*notes: Any) -> HostEnvironment:
    kind = type("Changing", (Changing,), {"notes": notes})
    return from_gymnasium(kind, box={"current": (0.0, 0.2)}, state=["place", "_steps", "note"])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (np.ones(2), "note is of shape (2,), after a reset one number or None"),
        ("turning", "note is a str, after a reset one number or None"),
        ({"turn": 1}, "note is a dict, after a reset one number or None"),
        ([[1], [1, 2]], "note is a list, after a reset one number or None"),
    ],
)
def test_a_state_of_another_form_than_after_a_reset_can_not_be_read(now: Any, said: str) -> None:
    """And is restored nevertheless."""
    env = changing(None, now)
    assert env.branching == "restored"
    simulator: Any = env.make()
    simulator.reset(0, {})
    assert simulator.read() is not None
    simulator.step(0)
    assert (simulator.read(), simulator.unread) == (None, said)
    simulator.reset(0, {})
    assert (simulator.read() is not None, simulator.unread) == (True, "")
    found = check_environment(env, episodes=2)
    (sentence,) = [finding.sentence for finding in found if finding.subject == "storing"]
    assert sentence.startswith(f"After 1 step of an episode the state can't be stored: {said}. A run that is stopped")
    assert not [finding for finding in found if finding.level == "problem"]


@pytest.mark.parametrize("notes", [(0, 0.5), (0.0, 2), (None, 3), (np.float32(0), np.int8(1)), (False, 0.25)])
def test_the_kind_of_a_number_may_change(notes: Any) -> None:
    """Zero seconds and then half a second: a checkpoint holds bits, and knows numbers of a kind after a reset."""
    env = changing(*notes)
    player, other = Player(env, robust=False), Player(env, robust=False)
    fresh = Fresh({"current": np.array(0.1)}, {"current": np.array([0.1])}, np.uint32(3))
    player.begin(fresh)
    blank = player.pack()
    player.play(np.int32(1), fresh)
    words = player.pack()
    assert words.shape == blank.shape
    assert was_read(words)
    other.put(words, fresh, 1)
    inside: Any = other.simulator
    assert inside._env.note == notes[1]
    assert isinstance(inside._env.note, float) == isinstance(notes[1], float)
    for action in (0, 1, 0):
        one, two = (each.play(np.int32(action), fresh) for each in (player, other))
        np.testing.assert_array_equal(one.obs, two.obs)


def test_the_words_of_a_run_are_as_many_also_where_the_state_can_not_be_read() -> None:
    env = changing(None, np.ones(3))
    player = Player(env, robust=False)
    fresh = Fresh({"current": np.array(0.0)}, {"current": np.array([0.0])}, np.uint32(3))
    player.begin(fresh)
    first = player.pack()
    player.play(np.int32(1), fresh)
    unread = player.pack()
    assert (was_read(first), was_read(unread), first.shape) == (True, False, unread.shape)
    assert words_of(env) == len(first)


def test_a_simulation_that_fails_after_it_was_put_back_was_last_seen_where_it_was_stored() -> None:
    env = from_gymnasium(own_simulators.Explosive, box={"current": (0.0, 2.0)}, state=["place", "_steps"])
    one, other = env.make(), env.make()
    one.reset(0, {"current": 0.1})
    seen = one.step(1).obs
    state = one.read()
    assert state
    other.write(state, {"current": 2.0})
    found = other.step(1)
    assert found.terminated
    np.testing.assert_array_equal(found.obs, seen)


class Determined(own_simulators.Boat):
    """A boat without random numbers, which does not pass its seed on."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.place, self._steps, self.gusts = np.zeros(1), 0, 0.0
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 0.1 if action == 4 else -0.1
        return self.place.copy(), 1.0, False, False, {}


def test_a_simulator_without_random_numbers_can_be_stored() -> None:
    env = from_gymnasium(Determined, box={"current": (0.0, 0.2)}, state=["place"])
    one, other = env.make(), env.make()
    one.reset(0, {})
    one.step(1)
    state = one.read()
    assert state
    other.write(state, {})
    np.testing.assert_array_equal(one.step(0).obs, other.step(0).obs)


# --- what a simulator gives -------------------------------------------------------------------------------------


LEFT_OUT = "left out"


def stepping(**parts: Any) -> type[own_simulators.Boat]:
    """A boat of which some of what a step gives is something else."""
    names = ("obs", "reward", "terminated", "truncated", "info")

    class Odd(own_simulators.Boat):
        def step(self, action: Any) -> Any:
            found = {**dict(zip(names, super().step(action), strict=True)), **parts}
            return tuple(found[name] for name in names if found[name] is not LEFT_OUT)

    return Odd


FIVE = "it must give five: observation, reward, terminated, truncated, info"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"reward": "good"}, "the simulator's step gives the reward 'good'; it must be one number"),
        ({"reward": "1.0"}, "the simulator's step gives the reward '1.0'; it must be one number"),
        ({"reward": None}, "the simulator's step gives the reward None; it must be one number"),
        ({"reward": np.ones(2)}, "the simulator's step gives the reward [1. 1.]; it must be one number"),
        ({"terminated": 0.5}, "the simulator's step gives terminated as 0.5; it must be True or False"),
        ({"terminated": None}, "the simulator's step gives terminated as None; it must be True or False"),
        ({"terminated": np.zeros(2)}, "the simulator's step gives terminated as [0. 0.]; it must be True or False"),
        ({"truncated": "no"}, "the simulator's step gives truncated as 'no'; it must be True or False"),
        ({"truncated": LEFT_OUT}, f"the simulator's step gives 4 values; {FIVE}"),
        ({"obs": np.zeros(3)}, "Odd gives an observation of 3 numbers, but its observation_space has 1"),
    ],
    ids=str,
)
def test_what_a_step_must_give(parts: dict[str, Any], said: str) -> None:
    """It is said when the environment is made, and where no state is restored by the check."""
    kind = stepping(**parts)
    with pytest.raises(DeeprokError) as error:
        from_gymnasium(kind, box={"current": (0.0, 0.2)})
    assert str(error.value).startswith(said)
    found = check_environment(from_gymnasium(kind, box={"current": (0.0, 0.2)}, branching="none"))
    (problem,) = [finding for finding in found if finding.level == "problem"]
    assert problem.sentence.startswith(f"step(action) fails with an error: {said}")


@pytest.mark.parametrize("reward", [1, True, np.float32(1.0), np.array(1.0), np.array([1.0])])
@pytest.mark.parametrize("flag", [0, np.bool_(False), np.array(False), np.array([0])])
def test_what_a_step_may_give(reward: Any, flag: Any) -> None:
    simulator = from_gymnasium(stepping(reward=reward, terminated=flag), branching="none").make()
    simulator.reset(0, {})
    found = simulator.step(0)
    assert (found.reward, found.terminated) == (1.0, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(1), "the simulator's reset gives [0.]; it must give two: observation, info (a dictionary)"),
        (np.zeros(2), "the simulator's reset gives [0. 0.]; it must give two: observation, info (a dictionary)"),
        ((0.1, 0.2), "the simulator's reset gives (0.1, 0.2); it must give two: observation, info (a dictionary)"),
        ((0.1, 0.2, {}), "the simulator's reset gives 3 values; it must give two: observation, info (a dictionary)"),
    ],
)
def test_what_a_reset_must_give(given: Any, said: str) -> None:
    kind = type("Old", (own_simulators.Boat,), {"reset": lambda self, seed=None, options=None: given})
    with pytest.raises(DeeprokError) as error:
        from_gymnasium(kind)
    assert str(error.value) == said


class Train(own_simulators.Boat):
    """A boat with barges, which are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.barges = 3

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for _ in range(self.barges):
            self.place *= 0.99
        return super().step(action)


class Rounded(Train):
    """The same with a property that rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 3

    @property
    def barges(self) -> int:  # type: ignore[override]
        return getattr(self, "_number", 0)

    @barges.setter
    def barges(self, value: float) -> None:
        self._number = round(value)


def test_whole_numbers_are_set_as_floats() -> None:
    """What needs a whole number says so, and the check says what to do."""
    found = check_environment(from_gymnasium(Train, box={"barges": (1, 5)}), episodes=2)
    (problem,) = [finding.sentence for finding in found if finding.level == "problem"]
    assert problem.startswith("step(action) fails with TypeError: 'float' object cannot be interpreted as an integer, ")
    assert (
        "and does not if no parameter is set; barges=3 are set as floats: where a whole number is needed, " in problem
    )
    rounded = from_gymnasium(Rounded, box={"barges": (1, 5)})
    assert not [finding for finding in check_environment(rounded, episodes=2) if finding.level == "problem"]


# --- several environments at once -------------------------------------------------------------------------------


def test_an_id_of_several_environments_is_refused() -> None:
    """`gymnasium.make` makes single ones; the others are in `test_vector`."""
    gymnasium.register("Fleet-v0", entry_point=lambda: gymnasium.vector.SyncVectorEnv([own_simulators.Boat] * 2))
    try:
        with pytest.raises(DeeprokError, match=r"^Fleet-v0 makes a gymnasium.vector.VectorEnv; give a function that"):
            from_gymnasium("Fleet-v0")
    finally:
        del gymnasium.registry["Fleet-v0"]
