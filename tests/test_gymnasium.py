"""Gymnasium environments through the adapter: against our own, restored states, derived quantities, and mistakes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import own_simulators
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeprok
from deeprok.cli import train
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import (
    ENVIRONMENTS,
    Access,
    CartPole,
    Choices,
    HostEnvironment,
    Interval,
    Simulator,
    branch,
    cartpole,
    from_gymnasium,
    with_model,
)
from deeprok.environments.acrobot import acrobot
from deeprok.environments.mountain_car import mountain_car
from deeprok.environments.ready_made import READY_MADE
from deeprok.environments.toy_text import SLIPPERY
from deeprok.runs.settings import from_json, make_config

#: Ready-made ones that need no more than Gymnasium.
CLASSIC = [name for name in READY_MADE if name != "LunarLander-v3"]


def made(name: str, **settings: Any) -> HostEnvironment:
    part = ENVIRONMENTS[name]
    env = part.make(part.settings(**settings))
    assert isinstance(env, HostEnvironment)
    return env


def action_of(env: HostEnvironment, rng: np.random.Generator) -> Any:
    if isinstance(env.actions, Interval):
        return rng.uniform(env.actions.low, env.actions.high)
    return int(rng.integers(len(env.actions)))


def models_of(env: HostEnvironment, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: rng.uniform(*ends, count) for name, ends in env.box.items()}


# --- against environments in JAX -----------------------------------------------------------------------


@pytest.mark.parametrize("env", [own_simulators.EXACT, own_simulators.COPIED], ids=["paths", "copies of it"])
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_ours_to_the_last_digits(env: HostEnvironment, seed: int) -> None:
    """An episode of fixed actions at perturbed parameters, with the outcomes of all models in every step."""
    ours = cartpole(failing_reward=1.0)
    rng = np.random.default_rng(seed)
    acting = {name: float(rng.uniform(*ends)) for name, ends in env.box.items()}
    models = models_of(env, 4, rng)
    names = {"length": "pole_length", "masscart": "cart_mass"}
    simulator = env.make()
    obs = simulator.reset(seed, acting)
    assert env.branching == "restored"
    with jax.enable_x64(True):
        params = with_model(CartPole(cart_mass=1.0), {names[name]: value for name, value in acting.items()})
        state, key = jnp.asarray(obs), jax.random.key(0)
        several = {names[name]: jnp.asarray(values) for name, values in models.items()}
        each = jax.jit(lambda s, a: branch(ours, key, s, a, several))
        one = jax.jit(lambda s, a: ours.step(key, s, a, params))
        steps = 0
        while steps < 200:
            action = int(rng.integers(2))
            expected, found = each(state, action), simulator.outcomes(action, models)
            np.testing.assert_allclose(found.obs, expected.obs, rtol=1e-9, atol=1e-9)
            np.testing.assert_array_equal(found.reward, expected.reward)
            np.testing.assert_array_equal(found.terminated, expected.terminated)
            outcome, taken = one(state, action), simulator.step(action)
            np.testing.assert_allclose(taken.obs, outcome.obs, rtol=1e-9, atol=1e-9)
            assert (float(taken.reward), bool(taken.terminated)) == (1.0, bool(outcome.terminated))
            state, steps = outcome.state, steps + 1
            if taken.terminated:
                break
        assert taken.terminated
        assert steps > 5


@pytest.mark.parametrize(
    ("name", "ours", "state_of"),
    [
        ("Acrobot-v1", acrobot(), lambda simulator: simulator.read()["unwrapped.state"]),
        ("MountainCar-v0", mountain_car(), lambda simulator: simulator.read()["unwrapped.state"]),
    ],
)
def test_ready_made_ones_are_those_in_jax(name: str, ours: Any, state_of: Any) -> None:
    """Their boxes, and what each of their parameters does."""
    env, rng = made(name), np.random.default_rng(0)
    assert (env.box, env.observation_scale, env.actions) == (ours.box, ours.observation_scale, ours.actions)
    shared = [name for name in vars(env.nominal) if name in vars(ours.nominal)]
    assert set(env.box) <= set(shared)
    simulator = env.make()
    with jax.enable_x64(True):
        step = jax.jit(lambda state, action, params: ours.step(jax.random.key(0), state, action, params))
        for i, varied in enumerate(shared):
            model = {varied: 1.1 * getattr(env.nominal, varied)}
            simulator.reset(i, model)
            params = with_model(ours.nominal, {**{each: getattr(env.nominal, each) for each in shared}, **model})
            for _ in range(5):
                state, action = jnp.asarray(state_of(simulator), float), action_of(env, rng)
                expected, found = step(state, action, params), simulator.step(action)
                np.testing.assert_allclose(found.obs, expected.obs, rtol=2e-6, atol=2e-6)  # Gymnasium's are float32
                assert (found.reward, found.terminated) == (expected.reward, expected.terminated)


@pytest.mark.parametrize("name", [name for name in CLASSIC if name not in SLIPPERY])
def test_ready_made_ones_state_what_gymnasium_has(name: str) -> None:
    env, theirs = made(name), gymnasium.make(name)
    assert theirs.spec
    assert env.horizon == theirs.spec.max_episode_steps
    assert len(env.observation_scale) == theirs.observation_space.shape[0]
    simulator = env.make()
    assert isinstance(simulator, Simulator)
    simulator.reset(0, {})
    nominal = simulator._nominal
    assert {each: pytest.approx(value) for each, value in nominal.items()} == vars(env.nominal)
    for each, (low, high) in env.box.items():
        assert low < getattr(env.nominal, each) < high or each == "max_speed"
    # With nominal parameters it is the environment that Gymnasium makes.
    rng, obs = np.random.default_rng(0), theirs.reset(seed=7)[0]
    np.testing.assert_array_equal(simulator.reset(7, {}), obs)
    for _ in range(60):
        action = action_of(env, rng)
        obs, reward, terminated, _, _ = theirs.step(
            np.asarray(action, np.float32) if env.actions.continuous else action
        )
        found = simulator.step(action)
        np.testing.assert_array_equal(found.obs, np.asarray(obs, float))
        assert (found.reward, found.terminated) == (pytest.approx(reward), terminated)
        if terminated:
            break


# --- the state is restored -------------------------------------------------------------------------------


SIMULATED = {**{name: made(name) for name in CLASSIC}, "boat": own_simulators.BOAT, "copied": own_simulators.COPIED}


@pytest.mark.parametrize("name", SIMULATED)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(0, 15))
def test_outcomes_leave_the_simulation_as_it_was(name: str, seed: int, steps: int) -> None:
    env, rng = SIMULATED[name], np.random.default_rng(seed)
    acting = {each: float(rng.uniform(*ends)) for each, ends in env.box.items()}
    asked, alone = env.make(), env.make()
    np.testing.assert_array_equal(asked.reset(seed, acting), alone.reset(seed, acting))
    for _ in range(steps):
        action, models = action_of(env, rng), models_of(env, 3, rng)
        # Among the models is the one acted on: what it would have come to is what comes.
        there = {each: np.append(values, acting[each]) for each, values in models.items()}
        outcomes = asked.outcomes(action, there)
        taken = asked.step(action)
        for answer, single in zip(outcomes, taken, strict=True):
            np.testing.assert_array_equal(answer[-1], single)
        for ours, theirs in zip(taken, alone.step(action), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if taken.terminated:
            break
    before, after = asked.read(), alone.read()
    assert (before is None) == (after is None) == (name == "copied")
    for each in before or {}:
        np.testing.assert_array_equal(before[each], after[each])


@pytest.mark.parametrize("name", [*CLASSIC, "boat"])
def test_what_was_read_can_be_written_into_another_simulation(name: str) -> None:
    env, rng = SIMULATED[name], np.random.default_rng(1)
    model = {each: float(rng.uniform(*ends)) for each, ends in env.box.items()}
    for steps in (0, 4):
        first, second = env.make(), env.make()
        first.reset(5, model)
        for _ in range(steps):
            first.step(action_of(env, rng))
        state = first.read()
        assert state
        second.write(state, model)
        for _ in range(4):
            action = action_of(env, rng)
            for ours, theirs in zip(first.step(action), second.step(action), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_all_models_get_the_same_random_numbers() -> None:
    simulator = own_simulators.BOAT.make()
    simulator.reset(0, {"current": 0.1})
    outcomes = simulator.outcomes(1, {"current": np.array([0.1, 0.1, 0.2])})
    assert outcomes.obs[0] == outcomes.obs[1]
    np.testing.assert_allclose(outcomes.obs[2] - outcomes.obs[0], 0.1)
    assert simulator.step(1).obs == outcomes.obs[0]
    assert simulator.step(1).obs != outcomes.obs[0] + (outcomes.obs[0] - simulator.step(0).obs)


def test_derived_quantities_follow() -> None:
    """Gymnasium's Cart-Pole stores its total mass; without the hook the mass of the cart would change nothing."""
    env = made("CartPole-v1")
    simulator: Any = env.make()
    simulator.reset(0, {"cart_mass": 3.0, "pole_mass": 0.2, "pole_length": 0.7})
    inside = simulator._env.unwrapped
    assert (inside.total_mass, inside.polemass_length) == (pytest.approx(3.2), pytest.approx(0.14))
    simulator.outcomes(0, {"cart_mass": np.array([1.0, 2.0])})
    assert (inside.total_mass, inside.polemass_length) == (pytest.approx(3.2), pytest.approx(0.14))
    # The next episode has nominal values again but for those of its model.
    simulator.reset(0, {"cart_mass": 2.0})
    assert (inside.total_mass, inside.masspole, inside.length) == (pytest.approx(2.1), 0.1, 0.5)
    stale = from_gymnasium("CartPole-v1", box={"masscart": (0.1, 7.0)}, state=["unwrapped.state"])
    outcomes = stale.make()
    outcomes.reset(0, {})
    heavy = outcomes.outcomes(1, {"masscart": np.array([0.1, 7.0])})
    np.testing.assert_array_equal(heavy.obs[0], heavy.obs[1])


# --- copies ----------------------------------------------------------------------------------------------


def test_copies_are_stepped_from_a_common_reset() -> None:
    copies = from_gymnasium(own_simulators.Boat, box={"current": (-0.3, 0.3)}, branching="copies")
    models = {"current": np.array([0.05, 0.2, -0.1])}
    simulator, alone = copies.make(), [copies.make() for _ in range(3)]
    assert simulator.reset(3, {"current": 0.0}) == alone[0].reset(3, {"current": 0.05})
    for one, current in zip(alone, models["current"], strict=True):
        one.reset(3, {"current": current})
    assert simulator.read() is None
    for step, action in enumerate([1, 0] * 5):
        outcomes = simulator.outcomes(action, models)
        if step == 2:  # asked again, also of other models, they come to the same place
            simulator.outcomes(1 - action, {"current": np.array([0.0])})
            outcomes = simulator.outcomes(action, dict(models))
        own = [one.step(action) for one in alone]
        np.testing.assert_array_equal(outcomes.obs, [one.obs for one in own])
        np.testing.assert_array_equal(outcomes.terminated, [one.terminated for one in own])
        simulator.step(action)
        assert getattr(simulator, "truncated") == any(one.terminated for one in own)  # noqa: B009
        if any(one.terminated for one in own):
            break
    assert step > 2  # until one of them has left its lane
    assert getattr(simulator, "truncated")  # noqa: B009


def test_an_environment_may_truncate_itself() -> None:
    """Which ends an episode, and never terminates it."""
    env = made_of(own_simulators.Boat)
    simulator = env.make()
    simulator.reset(0, {"current": 0.0, "gusts": 0.0, "power": 0.01})
    ends = [(simulator.step(t % 2).terminated, getattr(simulator, "truncated")) for t in range(30)]  # noqa: B009
    assert ends == [*[(False, False)] * 29, (False, True)]


def test_a_simulation_that_is_lost_is_a_failure_of_its_model() -> None:
    env = from_gymnasium(own_simulators.Explosive, box={"current": (0.0, 2.0)})
    simulator = env.make()
    first = simulator.reset(0, {"current": 0.0})
    outcomes = simulator.outcomes(0, {"current": np.array([0.0, 2.0])})
    assert outcomes.terminated.tolist() == [False, True]
    assert np.isfinite(outcomes.obs).all()
    assert outcomes.obs[1] == first
    assert simulator.failures == {"not finite": 1}


# --- names and defaults ----------------------------------------------------------------------------------


def made_of(env: Any, **options: Any) -> HostEnvironment:
    return from_gymnasium(env, **options)


def test_every_number_of_the_unwrapped_environment_is_a_parameter() -> None:
    env = made_of(own_simulators.Boat)
    assert vars(env.nominal) == {"power": 0.4, "current": 0.05, "gusts": 0.02, "most": 30.0}
    assert (env.name, env.horizon, env.success_return, env.box) == ("Boat", 200, 0.0, {})
    assert env.actions == Choices(("3", "4"))
    assert made_of(own_simulators.exact_cartpole).horizon == 300
    assert made_of("CartPole-v1").observation_scale == pytest.approx((4.8, 1.0, 0.41887903, 1.0))
    assert made_of("CartPole-v1").success_return == 475.0


def test_discrete_observations_are_one_hot() -> None:
    env = made_of("FrozenLake-v1")
    assert env.observation_scale == (1.0,) * 16
    np.testing.assert_array_equal(env.make().reset(0, {}), np.eye(16)[0])


def test_parameters_and_state_by_functions() -> None:
    def set_stream(env: Any, values: Mapping[str, Any]) -> None:
        env.unwrapped.current = values.get("stream", env.unwrapped.current)

    parameters = Access(lambda env: {"stream": env.unwrapped.current}, set_stream)
    state = Access(
        lambda env: {"place": env.unwrapped.place.copy()},
        lambda env, saved: setattr(env.unwrapped, "place", saved["place"].copy()),
    )
    env = made_of(own_simulators.Boat, box={"stream": (0.0, 0.3)}, parameters=parameters, state=state)
    assert env.branching == "restored"
    simulator = env.make()
    simulator.reset(0, {"stream": 0.1})
    found = simulator.outcomes(0, {"stream": np.array([0.1, 0.2])})
    np.testing.assert_allclose(found.obs[1] - found.obs[0], 0.1)
    stored = simulator.read()
    assert stored
    assert stored.keys() == {"place", "deeprok.kinds", "deeprok.random", "deeprok.seen"}


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (own_simulators.Listed, ["unwrapped.place", "unwrapped.queue"]),
        (own_simulators.Delayed, Access(own_simulators.read_delayed, own_simulators.write_delayed)),
    ],
)
def test_queues_are_stored_as_lists_or_by_functions(kind: Any, state: Any) -> None:
    """An episode goes on in another simulation as it would have."""
    env = made_of(kind, box={"current": (0.0, 0.2)}, state=state)
    one, other = env.make(), env.make()
    assert (env.branching, env.problem) == ("restored", "")
    one.reset(5, {"current": 0.1})
    for action in (0, 1, 1):
        one.step(action)
    stored = one.read()
    assert stored is not None
    other.write({name: np.array(value) for name, value in stored.items()}, {"current": 0.1})
    for action in (1, 0, 0, 1):
        assert one.step(action) == other.step(action)


@pytest.mark.parametrize("command", ["check-env", "train ddqn_dr --out {out} --env", "train rtd_dqn --out {out} --env"])
def test_a_queue_at_a_path_is_refused_before_anything_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = """
from deeprok.environments import from_gymnasium
from own_simulators import Delayed
BOAT = from_gymnasium(Delayed, box={"current": (0.0, 0.2)}, state=["unwrapped.place", "unwrapped.queue"])
"""
    (tmp_path / "queued.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "run"
    assert main([*command.format(out=out).split(), "queued:BOAT"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        "Delayed: unwrapped.queue is a deque; attribute paths of a state may hold numbers, and arrays, lists and "
        "tuples of numbers; for anything else give two functions as the state, Access(read, write)"
    ) in said
    assert not out.exists()


@pytest.mark.parametrize("name", ["Boat", "BOAT", "boat", "exact_cartpole"])
def test_users_name_them_as_module_and_object(name: str) -> None:
    """A class, an environment, a function that makes one of either kind."""
    box = {"masscart": (0.5, 2.0)} if name == "exact_cartpole" else {"current": (-0.2, 0.2)}
    config = make_config("ddqn_dr", env=f"own_simulators:{name}", box=box)
    env = config.make_env()
    assert isinstance(env, HostEnvironment)
    assert env.horizon == {"Boat": 200, "BOAT": 25, "boat": 25, "exact_cartpole": 300}[name]
    assert config.replace(horizon=7).make_env().horizon == 7


def test_a_name_that_both_have_is_that_in_jax() -> None:
    gymnasium.register("cartpole", entry_point="own_simulators:Boat")
    try:
        assert not isinstance(ENVIRONMENTS["cartpole"].make(ENVIRONMENTS["cartpole"].settings()), HostEnvironment)
    finally:
        del gymnasium.registry["cartpole"]


def test_success_follows_the_horizon() -> None:
    assert made("CartPole-v1", horizon=200).success_return == 195.0
    assert made("MountainCar-v0", horizon=300).success_return == -300.0


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Camera", "Camera has images of shape (8, 8, 3) as observations; they must be a flat list of numbers"),
        ("Many", "Many has actions in a MultiDiscrete space; they must be Discrete or a Box"),
        ("Boundless", "Boundless has actions without ends; a Box of actions must be bounded"),
        ("Needy", "Needy can't be made: TypeError: Needy.__init__() missing 1 required positional argument: 'captain'"),
    ],
)
def test_environments_that_cannot_be_used_are_refused_in_a_sentence(name: str, said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        make_config("rtd_dqn", env=f"own_simulators:{name}", box={"current": (0.0, 0.2)})
    assert str(error.value) == f"env is 'own_simulators:{name}', but {said}"


def test_tuples_of_observations_are_refused() -> None:
    with pytest.raises(DeeprokError, match="Blackjack-v1 has observations in a Tuple space; they must be a flat Box"):
        make_config("rtd_dqn", env="Blackjack-v1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"parameters": {"mass": "unwrapped.weight"}},
            "Boat has no attribute 'unwrapped.weight', so it is no parameter and no state",
        ),
        ({"parameters": {"mass": "unwrapped.place"}}, "Boat: unwrapped.place is "),
        ({"box": {"mass": (0.0, 1.0)}}, "Boat has no attribute 'unwrapped.mass', so it is no parameter and no state"),
        (
            {"state": ["unwrapped.nowhere"]},
            "Boat has no attribute 'unwrapped.nowhere', so it is no parameter and no state",
        ),
        (
            {"box": {"speed": (0.0, 1.0)}, "parameters": {"current": "unwrapped.current"}},
            "Boat has no parameter 'speed'; it has current",
        ),
        ({"actions": ["left"]}, "actions are ['left']; Boat has 2, give as many names"),
    ],
)
def test_paths_that_do_not_exist_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        from_gymnasium(own_simulators.Boat, **options)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (own_simulators.Windowed, "TypeError: cannot pickle 'generator' object"),
        (own_simulators.Haunted, "the same action from a restored state has another outcome"),
    ],
)
def test_a_state_that_cannot_be_restored_is_found_out(kind: Any, why: str) -> None:
    env = from_gymnasium(kind, box={"current": (0.0, 0.2)})
    assert (env.branching, env.problem) == ("none", why)
    name, box = f"own_simulators:{kind.__name__}", {"current": (0.0, 0.2)}
    with pytest.raises(DeeprokError) as error:
        make_config("rtd_dqn", env=name, box=box)
    assert str(error.value) == (
        f"{name} can't restore its state ({why}), so that it can't answer for several models, which rtd_dqn needs; say "
        "how its state is read and set, set branching to 'copies' (--branching copies), or take an algorithm without a "
        "robust target"
    )
    assert make_config("rtd_dqn", env=name, box=box, branching="copies").make_env().branching == "copies"
    assert make_config("ddqn_dr", env=name, box=box).make_env().branching == "none"


@pytest.mark.parametrize("name", ["own_simulators:BOAT", "own_simulators:boat", "own_simulators:Boat", "CartPole-v1"])
def test_branching_is_a_setting_of_a_run(name: str) -> None:
    """Of an object, a function that makes it, a class and an id; older runs of objects do not have it."""
    box = {"cart_mass" if name == "CartPole-v1" else "current": (0.1, 0.3)}
    usual = make_config("rtd_dqn", env=name, box=box)
    for way in ("copies", "none", "restored"):
        config = make_config("ddqn_dr" if way == "none" else "rtd_dqn", env=name, box=box, branching=way)
        stored = from_json(config.to_json(), "config.json")
        env = stored.make_env()
        assert isinstance(env, HostEnvironment)
        assert (env.branching, env.horizon) == (way, usual.make_env().horizon)
        simulator = env.make()
        simulator.reset(0, {})
        assert (simulator.read() is None) == (way != "restored" or name == "own_simulators:Boat")
    assert ("branching" in usual.to_json()) == (name in ("own_simulators:Boat", "CartPole-v1"))


def test_branching_of_an_object_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the refusal advises works, for training and in the check."""
    words = ["--env", "own_simulators:WINDOWED", "--out", str(tmp_path / "run")]
    assert main(["train", "rtd_dqn", *words]) == 2
    assert "set branching to 'copies' (--branching copies), or take an algorithm" in capsys.readouterr().err
    assert main(["train", "rtd_dqn", *words, "--branching", "copy"]) == 2
    assert "unknown branching 'copy': did you mean 'copies'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    config, *_ = train._parse("rtd_dqn", [*words, "--branching", "copies"])
    env = from_json(config.to_json(), "config.json").make_env()
    assert isinstance(env, HostEnvironment)
    assert (env.branching, env.problem) == ("copies", "")
    assert main(["check-env", "own_simulators:WINDOWED", "--episodes", "2"]) == 0
    assert "set branching to copies (--branching copies)." in capsys.readouterr().out
    assert main(["check-env", "own_simulators:WINDOWED", "--branching", "copies", "--episodes", "2"]) == 0
    assert "Branching is copies, one for each model" in capsys.readouterr().out
    assert main(["check-env", "cartpole", "--branching", "copies"]) == 2
    assert "--branching is not a setting of cartpole, which answers" in capsys.readouterr().err


def test_what_was_replaced_in_an_object_stays_with_another_branching() -> None:
    env = own_simulators.BOAT._replace(box={"current": (0.0, 0.1)}, success_return=3.0)
    assert env.branched
    copies = env.branched(env, "copies")
    assert (copies.branching, copies.box, copies.success_return) == ("copies", env.box, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Windowed", "WINDOWED"])
def test_it_trains_on_copies(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a stopped run goes on with them, as does its evaluation."""
    config = make_config(
        "rtd_dqn",
        env=f"own_simulators:{name}",
        box={"current": (-0.2, 0.2)},
        branching="copies",
        **dict(steps=200, chunk_steps=100, hidden=(8,), batch_size=8, warm_up=20, models=3, horizon=20),
        **dict(trial_models=2, trial_episodes=1, settle=False),
    )
    run = deeprok.train(config, tmp_path / "run", jobs=1)
    assert run.metrics.returns.max() <= 20
    assert '"branching": "copies"' in (tmp_path / "run" / "config.json").read_text()
    capsys.readouterr()  # a training that takes long says how far it is
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--grid", "current=0:0.1:2", "--episodes", "2"]) == 0
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'run'} is finished")


@pytest.mark.parametrize(("name", "extra"), [("LunarLander-v3", "box2d"), ("Ant-v5", "mujoco")])
def test_what_an_environment_needs_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words that work in a clone, whatever Gymnasium says."""

    def missing(*_: Any, **__: Any) -> Any:
        package = {"box2d": "Box2D", "mujoco": "MuJoCo"}[extra]
        raise gymnasium.error.DependencyNotInstalled(f"{package} is not installed: pip install gymnasium[{extra}]")

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(DeeprokError) as error:
        from_gymnasium(name)
    how = f"pip install -c constraints.txt '.[{extra}]'"
    assert str(error.value) == f"{name} needs the extra {extra}; in a clone: {how}"


def test_extras_are_those_of_the_project() -> None:
    """Every extra that a message or a page tells to install can be installed so."""
    root = Path(__file__).parents[1]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [*(root / "src").rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    text = "".join(path.read_text() for path in files)
    said = {*re.findall(r"'\.\[(\w+)\]'", text), *re.findall(r'extra_missing\(.+?, "(\w+)"\)', text)}
    assert {"onnx", "mujoco", "box2d"} < said <= set(known)
    assert "pip install 'deeprok" not in text  # it is on no index


def test_without_gymnasium_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(DeeprokError, match="need the extra gymnasium; in a clone: pip install"):
        from_gymnasium("CartPole-v1")
    with pytest.raises(DeeprokError, match="unknown environment 'Taxi-v9'"):
        ENVIRONMENTS["Taxi-v9"]
