"""Gymnasium's vector environments: against single ones and Gymnasium itself, resets, random numbers, and mistakes."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import own_vectors
import pytest
from test_host import settings, stopped_once
from test_jobs import contents
from test_several_simulators import played

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, HostEnvironment, check_environment, from_gymnasium
from deeprok.environments.host_wrappers import disturbed_simulator, remembering_simulator
from deeprok.runs.settings import make_config
from deeprok.training import host
from deeprok.training.jobs import train

pytestmark = pytest.mark.usefixtures("compiled_once")


def models_of(env: HostEnvironment, count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(*ends, count) for name, ends in env.box.items()}


def episode(env: HostEnvironment, models: Mapping[str, np.ndarray], seed: int, start: Any = None) -> list[Any]:
    """First observation, then what each step was answered with and came to, to the end of an episode."""
    simulator, rng = env.make(), np.random.default_rng(seed)
    acting = {name: float(values[0]) for name, values in models.items()}
    found: list[Any] = [simulator.reset(seed, acting)]
    if start is not None:
        assert env.place
        env.place(simulator, start)
    for _ in range(env.horizon):
        action = int(rng.integers(2))
        found += [*simulator.outcomes(action, models), *simulator.step(action)]
        if found[-1]:
            break
    return found


def agree(one: list[Any], other: list[Any], rtol: float = 1e-6) -> None:
    assert len(one) == len(other) > 4
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(np.asarray(first, float), np.asarray(second, float), rtol=rtol, atol=1e-9)


# --- against single environments, and Gymnasium's own ----------------------------------------------------


@pytest.mark.parametrize("env", [own_vectors.CARTPOLES, own_vectors.THREE], ids=["by number", "three rows"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_the_single_environment(env: HostEnvironment, seed: int) -> None:
    """The same episode, with the same answers for seven models, which are more than one has rows; to its end."""
    models = models_of(env, 7, seed)
    start = np.random.default_rng(seed).uniform(-0.05, 0.05, 4)
    rows, single = (episode(each, models, seed, start) for each in (env, own_vectors.CARTPOLE))
    agree(rows[1:], single[1:])
    if env is own_vectors.CARTPOLES:  # whose first row is then the only one
        np.testing.assert_array_equal(rows[0], single[0])
    assert rows[-1]
    assert (env.horizon, env.success_return) == (500, 475.0)


def test_rows_are_gymnasiums() -> None:
    """Every row of Gymnasium's own until it ends, with a mass of its own, and the last observation with it."""
    rows, rng = 5, np.random.default_rng(0)
    theirs: Any = gymnasium.make_vec("CartPole-v1", num_envs=rows)
    masses = rng.uniform(0.1, 7.0, rows)
    theirs.masscart, theirs.total_mass = masses, masses + theirs.masspole
    first, _ = theirs.reset(seed=3)
    ours = [own_vectors.CARTPOLES.make() for _ in range(rows)]
    for i, (row, mass) in enumerate(zip(ours, masses, strict=True)):
        row.reset(0, {"masscart": float(mass)})
        own_vectors.CARTPOLES.place(row, first[i])  # type: ignore[misc]
    over = np.zeros(rows, bool)
    for _ in range(100):
        actions = rng.integers(2, size=rows)
        obs, reward, terminated, _, _ = theirs.step(actions)
        for i in np.flatnonzero(~over):
            found = ours[i].step(int(actions[i]))
            # Its first observation is a state in single precision.
            np.testing.assert_allclose(found.obs, obs[i], rtol=1e-4, atol=1e-5)
            assert (float(found.reward), bool(found.terminated)) == (float(reward[i]), bool(terminated[i]))
        over |= terminated
    assert over.all()


def test_an_agent_learns_the_same_in_rows_as_in_single_environments() -> None:
    """Replay, weights and episodes of a robust learner after two chunks, four simulators side by side."""
    changes = {"simulators": 4, "memory": 1, "precision": "float64", "sensor_noise": 0.01, "action_delay": 1}
    with jax.enable_x64(True):
        rows, single = (
            played(settings("rtd_dqn", f"own_vectors:{name}", **changes), 2) for name in ("CARTPOLES", "CARTPOLE")
        )
    for one, other in ((rows[0].agent, single[0].agent), (rows[1], single[1])):
        for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(np.asarray(first, float), np.asarray(second, float), rtol=1e-4, atol=1e-6)


# --- resets, and random numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_mode_of_resets_loses_the_last_observation(seed: int) -> None:
    """Rows that end at once, one step later or never begin anew: the transitions are the same."""
    envs = own_vectors.BUOYS, own_vectors.SAME_STEP, own_vectors.DISABLED
    models = models_of(envs[0], 3, seed)
    found = [episode(env, models, seed) for env in envs]
    for one in found:
        assert one[-1]
        assert np.abs(one[-3][1]) > 1.0  # beyond which an episode ends
        agree(one, found[0])


def test_models_share_the_random_numbers_of_a_step() -> None:
    env = own_vectors.GUSTY
    models = {name: np.full(3, low) for name, (low, _) in env.box.items()}
    found = episode(env, models, 5)
    for answered, taken in zip(found[1::6], found[4::6], strict=True):
        np.testing.assert_array_equal(answered, np.tile(taken, (3, 1)))
    agree(found, episode(env, models, 5))
    still = episode(own_vectors.BUOYS, models, 5)
    np.testing.assert_array_equal(found[0], still[0])
    assert not np.allclose(found[4], still[4])


@pytest.mark.parametrize("name", ["CARTPOLES", "THREE", "BUOYS", "GUSTY", "SAME_STEP"])
def test_episodes_that_are_stepped_together_are_as_alone(name: str) -> None:
    """With noise, a delay and memory around them; each has its own model, and some end before others."""
    env = getattr(own_vectors, name)
    env = remembering_simulator(disturbed_simulator(env, 0.1, 1), 2)
    models = models_of(env, 4, 0)
    together, alone = ([env.make() for _ in range(4)] for _ in range(2))
    rng = np.random.default_rng(1)
    for i, pair in enumerate(zip(together, alone, strict=True)):
        first, second = (one.reset(i, {key: float(values[i]) for key, values in models.items()}) for one in pair)
        np.testing.assert_array_equal(first, second)
    for t in range(30):
        actions = rng.integers(2, size=4)
        env.ahead(together, actions, [models if i % 2 else {} for i in range(4)])
        for i, pair in enumerate(zip(together, alone, strict=True)):
            answers = [one.outcomes(int(actions[i]), models) for one in pair]
            steps = [one.step(int(actions[i])) for one in pair]
            for first, second in zip([*answers[0], *steps[0]], [*answers[1], *steps[1]], strict=True):
                np.testing.assert_allclose(np.asarray(first, float), np.asarray(second, float), rtol=1e-9, atol=1e-12)
            if steps[0].terminated:
                for one in pair:
                    one.reset(10 * t + i, {})


def test_a_failure_is_that_of_its_row() -> None:
    """A mass of minus the pole's divides by zero."""
    simulator = own_vectors.CARTPOLES.make()
    first = simulator.reset(0, {})
    found = simulator.outcomes(1, {"masscart": np.array([1.0, -0.1, 2.0])})
    assert found.terminated.tolist() == [False, True, False]
    np.testing.assert_array_equal(found.obs[1], first)
    assert simulator.failures == {"not finite": 1}
    assert not simulator.step(1).terminated
    assert simulator.failures == {"not finite": 1}


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings("ddqn_dr", "own_vectors:GUSTY", steps=300, horizon=20)
    assert config.simulators == 2
    stopped_once(config, tmp_path / "stopped")
    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    assert "within its episode, with the simulator's state" in capsys.readouterr().err
    train(config, tmp_path / "whole", jobs=1)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["BUOYS", "GUSTY", "CARTPOLES"])
def test_a_check_finds_nothing_wrong(name: str) -> None:
    found = check_environment(getattr(own_vectors, name), episodes=3)
    assert not [finding for finding in found if finding.level == "problem"]
    assert {finding.subject for finding in found if finding.level == "pass"} >= {"restoring", "storing"}


# --- how they are given ----------------------------------------------------------------------------------


def test_lists_of_environments_are_so_many_simulators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an `AsyncVectorEnv` are ours: its own are never forked, which JAX's threads might not survive."""
    for name, processes in (("sync", False), ("asynchronous", True)):
        env = ENVIRONMENTS[f"own_vectors:{name}"].make(ENVIRONMENTS[f"own_vectors:{name}"].settings())
        assert isinstance(env, HostEnvironment)
        assert (env.simulators, env.processes, env.ahead, env.horizon) == (2, processes, None, 500)
        config, started = settings("ddqn", f"own_vectors:{name}"), list[Any]()
        assert config.simulators == 2
        monkeypatch.setattr(host, "players_in_processes", started.append)
        host.make_program(config)
        assert bool(started) == processes
    assert not multiprocessing.active_children()


def test_a_run_has_as_many_simulators_as_it_has_rows() -> None:
    assert make_config("rtd_dqn", env="own_vectors:CARTPOLES").simulators == 4
    assert make_config("rtd_dqn", env="own_vectors:CARTPOLES", simulators=8).simulators == 8
    assert make_config("ddqn", env="own_vectors:Buoys").simulators == 2
    assert make_config("ddqn", env="own_vectors:PARTIAL").simulators == 8
    assert make_config("ddqn", env="own_vectors:numbered").simulators == 1
    assert make_config("pg", env="own_vectors:Buoys", box="current=0:0.1").simulators == 1


def test_a_number_of_rows_that_does_not_fit_is_named_as_theirs() -> None:
    said = "simulators is 3, as many as own_vectors:THREE has unless another number is given; "
    with pytest.raises(DeeprokError, match=re.escape(f"{said}it must divide train_every, 2, or be a multiple of it")):
        make_config("rtd_dqn", env="own_vectors:THREE")
    with pytest.raises(DeeprokError, match=r"^simulators is 5; it must divide train_every"):
        make_config("rtd_dqn", env="own_vectors:THREE", simulators=5)
    with pytest.raises(DeeprokError, match=r"^chunk_steps is 100; it must be a multiple of simulators, which is 3, as"):
        make_config("rtd_dqn", env="own_vectors:THREE", train_every=1, chunk_steps=100)
    assert make_config("rtd_dqn", env="own_vectors:THREE", simulators=4).simulators == 4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MADE", "that object is a Buoys that has been made; give the class, or a function that makes it"),
        ("wrapped", "wrapped is ClipReward around a list of single environments; wrap the single environment instead"),
        ("unlike", "unlike has environments that differ in length, 0.5 and 0.7; they must be alike: give a range"),
        ("Silent", "Silent does not say when it resets rows that have ended; its metadata must have an autoreset_mode"),
        ("Lost", "autoreset mode SAME_STEP), but its infos have no final_obs"),
        ("Coupled", "(rows that are stepped together have other outcomes than each alone)"),
        ("Hidden", "the rows of Hidden can't "),
        ("Flat", "the simulator's step gives rewards of shape (); it must give one for each of its"),
        ("Square", "Square: state is of shape (2, 2); the state of a vector environment with num_envs 2 is arrays"),
        ("Stubborn", "Stubborn was asked for 97 rows and made 2"),
        ("Fleet", "Fleet has no num_envs"),
        ("Sinking", "Sinking can't be stepped: RuntimeError: the buoy has sunk"),
        ("normalised", "the rows of normalised can't have parameters and states of their own (rows that are stepped"),
        ("many", "that object is a function; its one argument must be horizon, with a default, or, where it makes"),
    ],
)
def test_mistakes_are_one_sentence(name: str, said: str) -> None:
    with pytest.raises(DeeprokError, match=re.escape(said)) as error:
        ENVIRONMENTS.find(f"own_vectors:{name}", "env")
    assert str(error.value).startswith(f"env is 'own_vectors:{name}', but ")


def test_a_parameter_that_all_rows_share_is_refused() -> None:
    env = from_gymnasium(own_vectors.Shared, box={"current": (0.0, 0.1)})
    simulator = env.make()
    simulator.reset(0, {})
    simulator.step(0)
    simulator.reset(0, {"current": 0.1})
    with pytest.raises(DeeprokError, match=r"^the rows of Shared can't have parameters and states of their own"):
        simulator.outcomes(0, {"current": np.array([0.0, 0.1])})


def test_functions_have_the_axis_of_rows_first() -> None:
    def read(env: Any) -> dict[str, Any]:
        return {"all": np.concatenate([env.state, env.ended[:, None]], axis=1)}

    def write(env: Any, state: Mapping[str, Any]) -> None:
        env.state, env.ended = state["all"][:, :2].copy(), state["all"][:, 2] > 0

    told: dict[str, Any] = {"box": own_vectors.BUOYS.box, "horizon": 30}
    models = models_of(own_vectors.BUOYS, 3, 0)
    env = from_gymnasium(own_vectors.Buoys, state=(read, write), **told)
    agree(*(episode(each, models, 0) for each in (env, own_vectors.BUOYS)))
    with pytest.raises(DeeprokError, match=r"gives all of shape \(3, 97\); its first axis must be that of the 97 rows"):
        from_gymnasium(own_vectors.Buoys, state=(lambda env: {"all": read(env)["all"].T}, write), **told)
    with pytest.raises(DeeprokError, match="branching is 'copies', but Buoys simulates in batch"):
        from_gymnasium(own_vectors.Buoys, branching="copies", **told)
