"""Gymnasium's toy text: the probability that a move succeeds is a parameter, and its table is Gymnasium's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.core.toy_text import ACTIONS
from deeprok.environments import ENVIRONMENTS
from deeprok.environments.host import HostEnvironment
from deeprok.environments.toy_text import SLIPPERY, Table
from deeprok.runs.settings import make_config
from deeprok.uncertainty.models import parse_box

every_id = pytest.mark.parametrize("name", SLIPPERY)

#: Ids, what Gymnasium is given, and the probability of an intended move in what it makes then.
GYMNASIUMS = [
    *[(name, {}, SLIPPERY[name].nominal) for name in SLIPPERY],
    ("FrozenLake-v1", {"success_rate": 0.8}, 0.8),
    ("FrozenLake8x8-v1", {"success_rate": 0.25}, 0.25),
    ("Taxi-v4", {"is_rainy": True}, 0.8),
    ("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.65}, 0.65),
    ("CliffWalking-v1", {"is_slippery": True}, 1 / 3),
]


def made(name: str) -> HostEnvironment:
    part = ENVIRONMENTS.find(name, "env")
    env = part.make(part.settings())
    assert isinstance(env, HostEnvironment)
    return env


@pytest.mark.parametrize(("name", "arguments", "rate"), GYMNASIUMS)
def test_its_table_is_gymnasiums(name: str, arguments: dict[str, Any], rate: float) -> None:
    """In every state and action the same successors, rewards and ends have the same probabilities."""
    theirs = gymnasium.make(name, **arguments).unwrapped.P  # type: ignore[attr-defined]
    slippery, intended, *_ = SLIPPERY[name]
    ours = Table(gymnasium.make(name, **slippery).unwrapped.P, intended, rate)  # type: ignore[attr-defined]
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)
    for state in theirs:
        for action, row in theirs[state].items():
            chances = [dict[Any, float]() for _ in range(2)]
            for chance, outcomes in zip(chances, (row, ours[state][action]), strict=True):
                for probability, *outcome in outcomes:
                    key = tuple(outcome)
                    chance[key] = chance.get(key, 0.0) + probability
            positive = [{key: value for key, value in chance.items() if value > 0} for chance in chances]
            assert positive[0] == pytest.approx(positive[1])


@pytest.mark.parametrize(("name", "arguments", "rate"), GYMNASIUMS)
def test_it_moves_as_gymnasium_does(name: str, arguments: dict[str, Any], rate: float) -> None:
    env, theirs = made(name), gymnasium.make(name, **arguments)
    simulator, random = env.make(), np.random.default_rng(1)
    for seed in range(3):
        start, _ = theirs.reset(seed=seed)
        assert int(np.argmax(simulator.reset(seed, {"success_rate": rate}))) == start
        for _ in range(20):
            action = int(random.integers(len(env.actions)))
            found, (state, reward, terminated, *_) = simulator.step(action), theirs.step(action)
            assert (int(np.argmax(found.obs)), found.reward, found.terminated) == (state, reward, terminated)
            if terminated:
                break


@every_id
def test_all_models_are_answered_from_one_state(name: str) -> None:
    """With the same random numbers; the episode goes on as if nobody had asked."""
    env = made(name)
    asked, left = env.make(), env.make()
    models = {"success_rate": np.array([0.05, env.nominal.success_rate, 1.0])}
    random, differ = np.random.default_rng(0), False
    for seed in range(4):
        for simulator in (asked, left):
            simulator.reset(seed, {})
        for _ in range(15):
            action = int(random.integers(len(env.actions)))
            found, stepped, other = asked.outcomes(action, models), asked.step(action), left.step(action)
            assert all(np.array_equal(a, b) for a, b in zip(stepped, other, strict=True))
            np.testing.assert_array_equal(found.obs[1], stepped.obs)
            differ |= not np.array_equal(found.obs[0], found.obs[2])
            if stepped.terminated:
                break
    assert differ


@every_id
def test_what_is_known_of_it(name: str) -> None:
    env, spec = made(name), gymnasium.spec(name)
    (low, high) = env.box["success_rate"]
    assert (env.branching, env.problem) == ("restored", "")
    assert 0 < low <= env.nominal.success_rate <= high <= 1
    assert env.actions.names == ACTIONS[name]  # type: ignore[union-attr]
    assert env.horizon == (spec.max_episode_steps or 200)
    assert not env.assumed
    simulator = env.make()
    simulator.reset(0, {"success_rate": 0.5})
    assert simulator.read() is not None


def test_a_probability_is_at_most_one() -> None:
    nominal = made("FrozenLake-v1").nominal
    assert parse_box("success_rate=0.5:1", nominal) == {"success_rate": (0.5, 1.0)}
    with pytest.raises(DeeprokError, match=r"^box gives success_rate the value 1\.2, which must be at most 1$"):
        parse_box("success_rate=0.5:1.2", nominal)
    table = Table({0: {0: [(0.1, 0, 0.0, False), (0.8, 1, 0.0, False), (0.1, 2, 0.0, False)]}}, 1, 1.3)
    assert [row[0] for row in table[0][0]] == [0.0, 1.0, 0.0]  # noise made it larger


@pytest.mark.parametrize("algorithm", ["ddqn", "ddqn_dr", "rtd_dqn"])
def test_any_q_learner_can_be_trained_on_it(algorithm: str) -> None:
    config = make_config(algorithm, env="Taxi-v4")
    assert config.make_box(config.make_env()) == {"success_rate": (0.6, 1.0)}
