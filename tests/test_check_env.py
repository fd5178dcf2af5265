"""Checks of environments: each finds what is wrong with one that was broken for it, and nothing in sound ones."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import own_simulators
import pytest
from gymnasium import spaces
from probe_simulators import SIMULATED_CARTPOLE, Simulated

import deeprok
from deeprok.cli import check_env as command
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.environments import (
    ENVIRONMENTS,
    Choices,
    Environment,
    Finding,
    HostEnvironment,
    HostOutcome,
    Outcome,
    cartpole,
    check_environment,
    from_gymnasium,
    make_parameters,
    pytree_dataclass,
    quantity,
)
from deeprok.environments.checks import in_jax, judge
from deeprok.environments.checks.record import Played
from deeprok.environments.checks.simulator import draws_of
from deeprok.environments.pendulum import pendulum as make_pendulum

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def of(found: list[Finding], level: str, subject: str = "") -> list[str]:
    """The sentences of a level, of one subject or of all."""
    return [finding.sentence for finding in found if finding.level == level and subject in (finding.subject, "")]


def one(found: list[Finding], level: str, subject: str) -> str:
    """The only sentence of a level and a subject."""
    (sentence,) = of(found, level, subject)
    return sentence


# --- sound ones ----------------------------------------------------------------------------------------


def example(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


SOUND = {
    "cartpole": lambda: "cartpole",
    "CartPole-v1": lambda: "CartPole-v1",
    "tank": lambda: example("my_simulator", "TANK"),
    "copies": lambda: own_simulators.COPIED,
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_environments_have_no_problems(name: str) -> None:
    found = check_environment(SOUND[name](), episodes=4)
    assert of(found, "problem") == []
    assert {"box", "observations", "determinism", "termination", "parameters", "returns"} <= {
        finding.subject for finding in found if finding.level == "pass"
    }


def test_the_tank_of_the_how_to_can_be_kept_level_on_its_whole_box() -> None:
    """By switching the pump at 0.95 m, also with one random action in ten; random play fails almost always."""
    tank = example("my_simulator", "TANK")
    simulator, draws = tank.make(), np.random.default_rng(0)

    def succeeds(model: dict[str, float], seed: int, random: float) -> bool:
        level, total = simulator.reset(seed, model)[0], 0.0
        for _ in range(tank.horizon):
            action = draws.integers(2) if draws.random() < random else int(level < 0.95)
            outcome = simulator.step(action)
            level, total = outcome.obs[0], total + float(outcome.reward)
            if outcome.terminated:
                break
        return bool(total > tank.success_return)

    corners = [dict(zip(tank.box, ends, strict=True)) for ends in itertools.product(*tank.box.values())]
    for model in ({}, *corners):
        assert np.mean([succeeds(model, seed, 0.1) for seed in range(20)]) > 0.9
        assert np.mean([succeeds(model, seed, 1.0) for seed in range(20)]) < 0.5
    assert not any(succeeds({}, seed, 1.0) for seed in range(20))


def test_numbers_are_those_of_random_play() -> None:
    """In a lane of 1 m a boat with an engine of 0.4 and no wind leaves within as many steps as its actions say."""
    calm = from_gymnasium(own_simulators.Boat, box={"current": (2.0, 3.0)}, state=["place", "_steps"], horizon=25)
    found = check_environment(calm, episodes=3)
    assert "on the 2 corners of the box as much; the lowest return of all is 1." in one(found, "pass", "returns")
    assert "The nominal current, 0.05, is outside its range in the box, 2 to 3" in one(found, "note", "box")
    assert "on the nominal model and 6 of 6 at the corners" not in str(found)  # nothing says what a success is
    assert "so that success_return is 0" in one(found, "note", "success")


# --- in JAX: shapes and types --------------------------------------------------------------------------

POLE = cartpole(horizon=20)


def stepped(change: Callable[[Outcome], Any]) -> Environment:
    return POLE._replace(step=lambda *arguments: change(POLE.step(*arguments)))


def _branching_step(key: Any, state: Any, action: Any, params: Any) -> Outcome:
    return POLE.step(key, state, 1 - action if state[0] > 0 else action, params)


SHAPES: dict[str, tuple[Environment, str, str]] = {
    "too few": (POLE._replace(observation_scale=(1.0, 1.0)), "observations", "float32[4], but observation_scale has 2"),
    "whole numbers": (
        stepped(lambda out: dataclasses.replace(out, obs=out.obs.astype(jnp.int32))),
        *("observations", "observation of step is int32[4]; it must be of floats"),
    ),
    "not flat": (
        stepped(lambda out: dataclasses.replace(out, obs=out.obs[None])),
        *("observations", "is float32[1,4]; it must be flat"),
    ),
    "other type of state": (
        stepped(lambda out: dataclasses.replace(out, state=out.state.astype(jnp.float16))),
        *("state", "The state is float32[4] after reset and float16[4] after a step"),
    ),
    "other state": (
        stepped(lambda out: dataclasses.replace(out, state=(out.state, out.obs))),
        *("state", "reset gives a state of the structure (*), step one of ((*, *))"),
    ),
    "reward": (
        stepped(lambda out: dataclasses.replace(out, reward=out.reward[None])),
        *("reward", "is float32[1]; it must be float32[]"),
    ),
    "terminated": (
        stepped(lambda out: dataclasses.replace(out, terminated=out.terminated.astype(float))),
        *("terminated", "is float32[]; it must be bool[]"),
    ),
    "a tuple": (stepped(lambda out: (out.state, out.reward)), "step", "returns a tuple; it must return an Outcome"),
    "no observation": (
        POLE._replace(reset=lambda key, params: POLE.reset(key, params)[0]),
        *("reset", "it must return (state, obs)"),
    ),
    "if": (POLE._replace(step=_branching_step), "step", "fails with TracerBoolConversionError"),
    "typing error": (
        POLE._replace(reset=lambda key, params: POLE.reset(key, params.mass)),
        *("reset", "AttributeError: 'CartPole' object has no attribute 'mass'"),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_types(name: str) -> None:
    env, subject, words = SHAPES[name]
    found = check_environment(env)
    assert words in one(found, "problem", subject)
    assert found[-1].subject == "other checks"  # which would fail as well


def test_whole_numbers_as_rewards_are_no_problem() -> None:
    env = stepped(lambda out: dataclasses.replace(out, reward=out.reward.astype(jnp.int32)))
    assert of(check_environment(env, episodes=1), "problem") == []


# --- what an environment says of itself ----------------------------------------------------------------

DECLARED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "reversed": ({"box": {"gravity": (12.0, 8.0)}}, "problem", "box", "gravity in the box, 12 to 8, is reversed"),
    "empty": ({"box": {"gravity": (9.8, 9.8)}}, "problem", "box", "is empty; low must be below high"),
    "unknown": ({"box": {"mass": (1.0, 2.0)}}, "problem", "box", "unknown parameter in box 'mass'"),
    "zero": ({"box": {"gravity": (0.0, 9.8)}}, "problem", "box", "gravity the value 0, which must be positive"),
    "three": ({"box": {"gravity": (1.0, 2.0, 3.0)}}, "problem", "box", "it must be two numbers, (low, high)"),
    "scale": ({"observation_scale": (1.0, 0.0, 1.0, 1.0)}, "problem", "observations", "must be a positive number"),
    "horizon": ({"horizon": 0}, "problem", "horizon", "horizon is 0; it must be a whole number of at least 1"),
    "words as scales": ({"observation_scale": ("far", "fast")}, "problem", "observations", "is ('far', 'fast'); it"),
    "success": ({"success_return": np.nan}, "problem", "success", "success_return is nan"),
    "no success": ({"success_return": None}, "problem", "success", "success_return is None; it must be a finite"),
    "no dictionary": ({"box": [("gravity", 1, 2)]}, "problem", "box", "it must be a dictionary, name -> (low, high)"),
    "class": ({"nominal": type(POLE.nominal)}, "problem", "parameters", "nominal is the class CartPole"),
    "nominal": (
        {"nominal": dataclasses.replace(POLE.nominal, gravity=-1.0)},
        *("problem", "parameters", "nominal gives gravity the value -1, which must be positive"),
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_declared(name: str) -> None:
    changes, level, subject, words = DECLARED[name]
    assert words in one(check_environment(POLE._replace(**changes)), level, subject)


# --- in JAX: random play -------------------------------------------------------------------------------


@pytree_dataclass
class Odd:
    """Parameters with all kinds of effects, and some without."""

    speed: Any = quantity(1.0, "", "moves")
    wage: Any = quantity(1.0, "", "is earned")
    edge: Any = quantity(4.0, "", "ends the episode")
    begin: Any = quantity(0.5, "", "where it starts")
    delay: Any = quantity(1.0, "", "moves what is not seen at once")
    rare: Any = quantity(1.0, "", "matters where nobody comes")
    dead: Any = quantity(1.0, "", "is computed with nowhere")
    spare: Any = quantity(1.0, "", "likewise, outside the box")


def _odd_reset(key: Any, params: Odd) -> Any:
    state = jnp.stack([params.begin * jax.random.uniform(key), 0.0])
    return state, state[:1]


def _odd_step(key: Any, state: Any, action: Any, params: Odd) -> Outcome:
    place = state[0] + params.speed * jnp.where(action == 1, 0.3, 0.2) + 0.01 * state[1]
    place = jnp.where(place > 1e6, params.rare, place)
    reward = params.wage * place
    return Outcome(jnp.stack([place, params.delay]), place[None], reward, place > params.edge)


ODD = Environment(
    name="odd",
    reset=_odd_reset,
    step=_odd_step,
    nominal=Odd(),
    box=dict.fromkeys(("speed", "wage", "delay", "rare", "dead"), (0.7, 1.5))
    | {"edge": (2.0, 3.0), "begin": (0.1, 0.9)},
    observation_scale=(1.0,),
    actions=Choices(("slow", "fast")),
    horizon=30,
    success_return=1000.0,
)


@pytest.fixture(scope="module")
def odd() -> list[Finding]:
    return check_environment(ODD, episodes=3, seed=1)


def test_parameters_without_effect(odd: list[Finding]) -> None:
    (dead,) = of(odd, "problem")
    assert dead.startswith("No effect of dead was seen in ")
    assert "steps of random play at 0.7 and 1.5. Neither reset nor step computes anything with it" in dead


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wage", "The rewards of a step were seen to depend on wage, its observations not"),
        ("edge", "The end of an episode was seen to depend on edge, its observations not"),
        ("begin", "Only the start of an episode was seen to depend on begin, no step"),
        ("delay", "No outcome of a single action was seen to depend on delay, only what follows later"),
        ("rare", "its effect may need a state that random actions do not reach"),
    ],
)
def test_parameters_with_some_effect(odd: list[Finding], name: str, words: str) -> None:
    (said,) = [
        sentence for sentence in of(odd, "note", "parameters") if f" {name} " in sentence or f" {name}," in sentence
    ]
    assert words in said


def test_parameters_with_effect(odd: list[Finding]) -> None:
    assert one(odd, "pass", "parameters") == "An effect was seen of speed at the ends of the box."
    assert "no effect was seen of spare; neither reset nor step computes anything with spare." in str(odd)
    assert "8 of 128 corners" in one(odd, "pass", "returns")


def test_success_out_of_reach(odd: list[Finding]) -> None:
    """A place of at most 4.3 earns as much in each of 30 steps."""
    assert "with which no return can be above success_return, 1000" in one(odd, "note", "success")


def test_failures_at_a_corner_time_limits_and_scales() -> None:
    """A number grows by a factor for 12 steps: from 1e10 it is beyond float32 after 4 of them."""

    def step(key: Any, state: Any, action: Any, params: Odd) -> Outcome:
        grown, time = state[0] * params.speed, state[1] + 1.0
        obs = jnp.stack([grown, 500.0 * time, 7.0])
        return Outcome(jnp.stack([grown, time]), obs, grown, time >= 12.0)

    def reset(key: Any, params: Odd) -> Any:
        return jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0, 7.0])

    env = ODD._replace(reset=reset, step=step, box={"speed": (0.5, 1e10)}, observation_scale=(1.0,) * 3, horizon=12)
    found = check_environment(env._replace(success_return=11.0), episodes=2)
    said = one(found, "problem", "box")
    assert (
        "On speed=1e+10, 4 of 4 random episodes failed, the first in step 4, with a number that is not finite" in said
    )
    ended = one(found, "note", "termination")
    assert "8 of 8 random episodes reached the horizon, 12 steps, and each of these was reported as terminated" in ended
    large, constant = of(found, "note", "scales")
    assert "Observation 1 (counted from 0) reached 6000 in random play, far above observation_scale there, 1" in large
    assert constant.startswith("Observations 0 and 2 (counted from 0) never changed")
    assert "already succeeds, with returns above success_return, 11, in 2 of 2 episodes" in one(
        found, "note", "success"
    )


def test_random_numbers_from_elsewhere_are_found_in_jax() -> None:
    random = np.random.default_rng(0)

    def gusty(key: Any, state: Any, action: Any, params: Any) -> Outcome:
        return POLE.step(key, state + 0.01 * random.normal(), action, params)

    said = one(check_environment(POLE._replace(step=gusty), episodes=1), "problem", "determinism")
    assert said.startswith("step is another function each time that JAX traces it")


# --- simulators ----------------------------------------------------------------------------------------


class Puck(gymnasium.Env[Any, Any]):
    """A puck that is pushed to the left or to the right; sound, and made for being broken."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-3.0, 3.0, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.mass, self.push = 1.0, 0.5
        self.state, self.time = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.time = self.np_random.uniform(-0.1, 0.1, 2), 0
        return self.state.copy(), {}

    def acceleration(self, action: int) -> float:
        return (self.push if action == 1 else -self.push) / self.mass

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        place, speed = self.state
        speed += 0.1 * self.acceleration(action)
        self.state, self.time = np.array([place + 0.1 * speed, speed]), self.time + 1
        return self.state.copy(), 1.0, self.over(), False, {}

    def over(self) -> bool:
        return bool(abs(self.state[0]) > 2.9)


class Cached(Puck):
    """What follows from the mass was computed once."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = 1.0 / self.mass

    def acceleration(self, action: int) -> float:
        return (self.push if action == 1 else -self.push) * self._rate


class CachedInReset(Cached):
    """What follows from the mass is computed at the start of each episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._rate = 1.0 / self.mass
        return super().reset(seed=seed)


class Counting(Puck):
    """Every step of all pucks together is counted, and counts."""

    steps = itertools.count()

    def acceleration(self, action: int) -> float:
        return super().acceleration(action) + 1e-3 * next(Counting.steps)


class Worn(Puck):
    """Each episode leaves it slower."""

    episodes = 0  # in the class, an attribute of one puck once it has played

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def acceleration(self, action: int) -> float:
        return super().acceleration(action) / self.episodes


class Tired(Puck):
    """After a while it is slower: the time is part of its state."""

    def acceleration(self, action: int) -> float:
        return super().acceleration(action) / (2.0 if self.time > 40 else 1.0)


class Clocked(Puck):
    """It says that it has terminated when its time is up."""

    def over(self) -> bool:
        return self.time >= 20


class Mixed(Puck):
    """It leaves its place, which ends the task, or says that it has terminated when its time is up."""

    def over(self) -> bool:
        return self.time >= 20 or bool(abs(self.state[0]) > 0.4)


class Endless(Puck):
    """It never ends."""

    def over(self) -> bool:
        return False


class Limited(Puck):
    """It is never faster than a limit, which takes 12 pushes to the same side."""

    limit = 0.65

    def acceleration(self, action: int) -> float:
        change = 0.1 * super().acceleration(action)
        return float(np.clip(self.state[1] + change, -self.limit, self.limit) - self.state[1]) / 0.1


class Hurried(Puck):
    """It truncates its episodes itself."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:3], self.time >= 8, {}


class Raising(Puck):
    """It gives up where it is too light."""

    def acceleration(self, action: int) -> float:
        if self.mass < 0.6 and self.time == 4:
            raise RuntimeError("too light")
        return super().acceleration(action)


class Overflowing(Puck):
    """Its numbers are not finite where it is too light."""

    def acceleration(self, action: int) -> float:
        return np.inf if self.mass < 0.6 and self.time == 4 else super().acceleration(action)


class Unstable(Puck):
    """Where it is too light, it is ten times further away after each step, but still at a number."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = self.state * (10.0 if self.mass < 0.6 else 1.0)
        return super().step(action)

    def over(self) -> bool:
        return False


class OldFashioned(Puck):
    """Four results of a step, as in Gym."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, *_ = super().step(action)
        return obs, reward, terminated, {}


class Unseeded(Puck):
    """A reset without a seed, as in Gym."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def simulated(kind: type[Puck], **changes: Any) -> HostEnvironment:
    settings = {"box": {"mass": (0.5, 2.0)}, "state": ["state", "time"], "horizon": 20, "success_return": 30.0}
    return from_gymnasium(kind, **{**settings, **changes})


def checked(kind: type[Puck], **changes: Any) -> list[Finding]:
    return check_environment(simulated(kind, **changes), episodes=3)


def test_a_sound_simulator_has_one_note() -> None:
    """Its episodes are too short for its success; all else is as it should be."""
    found = checked(Puck)
    assert of(found, "problem") == []
    assert [finding.subject for finding in found if finding.level == "note"] == ["success"]
    assert "18 reached the horizon of 20, which was not reported as termination" in one(found, "pass", "termination")


def test_stored_quantities() -> None:
    said = one(checked(Cached), "problem", "parameters")
    assert said.startswith("No effect of mass was seen in 120 steps of random play at 0.5 and 2.")
    assert "derive" in said
    assert of(checked(Cached, derive=lambda env: setattr(env, "_rate", 1.0 / env.mass)), "problem") == []


def test_quantities_stored_by_a_reset() -> None:
    """At the start the answer of a light puck is that of the nominal one, 0.05 / 1, and not 0.05 / 0.5."""
    found = checked(CachedInReset)
    assert "The answer for mass=0.5 at the start of an episode is not the first step" in one(
        found, "problem", "parameters"
    )
    assert of(checked(CachedInReset, derive=lambda env: setattr(env, "_rate", 1.0 / env.mass)), "problem") == []


@pytest.mark.parametrize(
    ("kind", "how"), [(Counting, "when played in two simulations"), (Worn, "when reset again in one simulation")]
)
def test_episodes_that_do_not_repeat(kind: type[Puck], how: str) -> None:
    found = checked(kind, state=None)
    said = one(found, "problem", "determinism")
    assert how in said
    assert "observation 1 is" in said
    assert "can't be told" in one(found, "note", "parameters")


def test_state_that_is_not_restored() -> None:
    """It is made with three steps for each of ten, and the time of the 30 is not enough for anything to be seen.

    Here four answers and a step move the clock on by 5 each time, so that the ninth step is the first one after 40.
    """
    env = simulated(Tired, state=["state"])
    assert env.branching == "restored"
    said = one(check_environment(env, episodes=3), "problem", "restoring")
    assert "step 9 of an episode has another outcome than without: observation 1 is" in said
    assert of(checked(Tired), "problem") == []


def test_ways_of_branching() -> None:
    assert "Branching is copies" in one(checked(Puck, branching="copies"), "note", "restoring")
    none = one(checked(Puck, branching="none"), "note", "restoring")
    assert "algorithms with a robust target refuse it" in none
    assert "The state can't be stored" in one(checked(Puck, state=None), "note", "storing")
    lost = one(
        check_environment(from_gymnasium(own_simulators.Windowed, box={"current": (-0.1, 0.2)})), "note", "restoring"
    )
    assert "can't be restored (TypeError: cannot pickle 'generator' object)" in lost


def test_time_limits() -> None:
    said = one(checked(Clocked), "note", "termination")
    assert (
        "18 of 18 random episodes reached the horizon, 20 steps, and each of these was reported as terminated" in said
    )
    said = one(checked(Clocked, horizon=50), "note", "termination")
    assert "Each of 18 random episodes, whatever its model, terminated in step 20 exactly" in said
    said = one(checked(Mixed, horizon=50), "note", "termination")
    assert "of 18 random episodes terminated in step 20 exactly, and none lasted longer" in said
    assert "which looks like a time limit. If that is only because time is up, leave it out of terminated" in said
    said = one(checked(Hurried), "note", "termination")
    assert "truncated 18 of 18 random episodes, after 8 steps, before the horizon of 20" in said
    assert "episodes are truncated after 200 steps" in one(checked(Puck, horizon=None), "note", "horizon")


def lasting(*steps: int) -> Played:
    """Episodes that terminated after so many steps."""
    ended, none = np.ones(len(steps), bool), np.zeros(0)
    return Played(none, np.array(steps), ended, ~ended, [], none, none, 0.0)


def test_a_time_limit_is_told_from_chance() -> None:
    """Of geometric lengths the longest are few: no alarm in a thousand samples, by one rate or another."""
    clock = lasting(20, 3, 20, 20, 15, 20), lasting(20, 7, 20, 4, 20, 20)
    assert judge._by_the_clock(clock) == 8
    assert judge._by_the_clock((clock[0], lasting(3, 4, 5, 6, 7, 8))) == 0  # on one model alone
    assert judge._by_the_clock((*clock, lasting(21))) == 0  # one lasts longer
    again = lasting(3, 4, 5, 20, 6, 20)
    assert judge._by_the_clock([again] * 5) == 0  # two episodes, the same on each model
    cut = clock[0]._replace(terminated=clock[0].steps < 20)
    assert judge._by_the_clock((cut, clock[1])) == 0  # truncated there
    random = np.random.default_rng(0)
    for rate in (0.05, 0.2, 0.5, 0.8, 1.0):
        for _ in range(200):
            models = [lasting(*random.geometric(rate, 20).tolist()) for _ in range(3)]
            assert judge._by_the_clock(models) == 0


@pytest.mark.parametrize(
    ("kind", "what"), [(Raising, "RuntimeError: too light"), (Overflowing, "a simulation that is not finite")]
)
def test_failures_at_a_corner(kind: type[Puck], what: str) -> None:
    said = one(checked(kind), "problem", "box")
    assert said.startswith(f"On mass=0.5, 6 of 6 random episodes failed, the first in step 5, with {what};")


def test_a_corner_at_which_numbers_grow_without_end() -> None:
    assert "On mass=0.5, observation 0 reached" in (said := one(checked(Unstable), "problem", "box"))
    assert "the simulation is unstable there" in said


def test_simulators_that_can_not_be_called() -> None:
    said = one(checked(OldFashioned, branching="none"), "problem", "simulator")
    assert said.startswith("step(action) fails with an error: the simulator's step gives 4 values; it must give five: ")
    said = one(checked(Puck, observation_scale=[1.0]), "problem", "observations")
    assert "has the shape (2,), but observation_scale has 1 numbers" in said
    with pytest.raises(DeeprokError, match=r"^Unseeded can't be reset with a seed: TypeError: .*'seed'$"):
        simulated(Unseeded)


def test_nominal_values_that_the_simulator_does_not_have() -> None:
    wrong = make_parameters("Wrong", {"mass": quantity(1.2, "kg", "mass"), "push": quantity(0.5, "N", "push")})
    said = one(checked(Puck, nominal=wrong, parameters={"mass": "mass", "push": "push"}), "problem", "parameters")
    assert said.startswith("With the nominal parameters an episode goes another way than with none set, in step 1")


class Disturbing(Simulated):
    """The answers for other models move it on."""

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        found = super().outcomes(action, models)
        self.step(action)
        return found


class Forgetful(Simulated):
    """What is put back is not what was stored."""

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        self.reset(0, model)


class Wordy(Simulated):
    """It tells by a number whether it has ended."""

    def step(self, action: Any) -> HostOutcome:
        found = super().step(action)
        return found._replace(terminated=found.terminated.astype(float))


@pytest.mark.parametrize(
    ("make", "subject", "words"),
    [
        (Disturbing, "restoring", "step 1 of an episode has another outcome than without"),
        (Forgetful, "storing", "goes another way after 1 step"),
        (Wordy, "terminated", "The terminated of step is float64 of shape (); it must be bools of shape ()"),
        (lambda env: {}, "simulator", "make returns a dict; it must be a Simulator"),
    ],
)
def test_simulators_of_ones_own(make: Any, subject: str, words: str) -> None:
    env = SIMULATED_CARTPOLE._replace(make=lambda: make(cartpole()), box={"force": (5.0, 15.0)}, horizon=10)
    assert words in one(check_environment(env, episodes=2), "problem", subject)


def test_actions_that_are_held_reach_what_single_ones_do_not() -> None:
    """In every other episode; numbers are then at their ends."""
    found = checked(Limited, box={"limit": (0.6, 0.7)})
    assert one(found, "pass", "parameters") == "An effect was seen of limit at the ends of the box."
    pendulum = ENVIRONMENTS["Pendulum-v1"]
    env = pendulum.make(pendulum.settings())
    assert isinstance(env, HostEnvironment)
    single, held = ([float(action()[0]) for _ in range(300)] for action in (draws_of(env, 0, i).action for i in (2, 3)))
    assert len(set(single)) == 300
    assert max(map(abs, single)) < 2.0
    assert {number for number, _ in itertools.groupby(held)} == {-2.0, 2.0}
    assert {len(list(run)) % 50 for _, run in itertools.groupby(held)} == {0}
    keys = jax.random.split(jax.random.key(0), 20)
    ends, inner = (
        np.ravel([in_jax._action(make_pendulum(), key, jnp.array(extreme)) for key in keys])
        for extreme in (True, False)
    )
    assert set(ends) == {-1.0, 1.0}
    assert len(set(inner)) == 20


def test_long_episodes_of_a_simulator_are_fewer() -> None:
    """After 4000 steps no more are begun, unless their number was given."""
    long = simulated(Endless, horizon=1100, success_return=1099.5, branching="none")
    assert "in 2 of 2 episodes on the nominal model and 4 of 4 at" in one(check_environment(long), "note", "success")
    some = check_environment(long, episodes=3)
    assert "in 3 of 3 episodes on the nominal model and 6 of 6 at" in one(some, "note", "success")


# --- from Python and from the command line -------------------------------------------------------------

Captured = pytest.CaptureFixture[str]


def test_command_gives_what_python_gives(capsys: Captured) -> None:
    assert main(["check-env", "own_simulators:BOAT", "--episodes", "2", "--seed", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = deeprok.check_environment(own_simulators.BOAT, episodes=2, seed=3)
    assert told["findings"] == [finding._asdict() for finding in found]
    assert (told["env"], told["problems"]) == ("own_simulators:BOAT", 0)
    assert told["notes"] == len(of(found, "note"))
    assert found != deeprok.check_environment(own_simulators.BOAT, episodes=2, seed=4)


def test_command_ends_with_1_if_there_is_a_problem(capsys: Captured) -> None:
    words = ["check-env", "own_simulators:Explosive", "--box", "current=0.5:2", "--horizon", "9", "--episodes", "2"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    (problem,) = [line for line in lines if line.startswith("problem")]  # on one line, however long it is
    assert "On current=2, 4 of 4 random episodes failed" in problem
    assert problem.endswith("such as by a shorter time step.")
    assert not any("no horizon was given" in line for line in lines)
    assert lines[-1].startswith("own_simulators:Explosive: 1 problem, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("own_simulators:Camera", "Camera has images of shape (8, 8, 3) as observations; they must be a flat list"),
        ("own_simulators:Many", "Many has actions in a MultiDiscrete space; they must be Discrete or a Box"),
        ("cartpol", "unknown env 'cartpol': did you mean 'cartpole'?"),
        ("cartpole --episodes 0", "episodes is 0; it must be at least 1"),
        ("cartpole --seed -1", "seed is -1; it must be from 0 to 4294967295"),
        ("cartpole --horizon 0", "horizon is 0; it must be at least 1 and at most 2147483647"),
        ("cartpole --box mass=1:2", "unknown parameter in box 'mass'"),
        ("cartpole --episode 3", "unknown option '--episode': did you mean '--episodes'?"),
        ("", "ENV must be given"),
    ],
)
def test_command_refuses(words: str, said: str, capsys: Captured) -> None:
    assert main(["check-env", *words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err


def test_table_fits_a_terminal(odd: list[Finding], capsys: Captured) -> None:
    command._print(odd, WordConsole(width=80, force_terminal=True, color_system=None))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    levels = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert levels == sorted(levels, key=["pass", "note", "problem"].index)
    assert len(levels) == len(odd)
