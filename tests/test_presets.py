"""The preset `default`: the same for every environment; and `paper` and `tuned`, as results were made with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.environments import ENVIRONMENTS
from deeprok.runs.settings import check, make_config
from studies import carried_over

Q_LEARNERS = [name for name, row in ALGORITHMS.items() if row.learner != "policy_gradient"]
NUMBERS_ONLY = [name for name, row in ALGORITHMS.items() if row.learner == "actor_critic"]
CONTINUOUS = [name for name, part in ENVIRONMENTS.items() if part.make(part.settings()).actions.continuous]
CHOOSING = [name for name in ENVIRONMENTS if name not in CONTINUOUS]


def envs_of(algorithm: str) -> list[str]:
    """The environments whose actions are for it."""
    if algorithm in NUMBERS_ONLY:
        return CONTINUOUS
    return CHOOSING if algorithm in Q_LEARNERS else [*ENVIRONMENTS]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_the_default_on_every_environment(algorithm: str) -> None:
    for env in envs_of(algorithm):
        config = make_config(algorithm, env=env)
        check(config)
        assert config.preset == "default"


@pytest.mark.parametrize("algorithm", Q_LEARNERS)
def test_the_default_is_the_same_for_every_environment(algorithm: str) -> None:
    """But for the environment's own settings and the typical sizes of what is observed there."""
    settings: list[dict[str, Any]] = []
    for env in envs_of(algorithm):
        config = make_config(algorithm, env=env)
        own = {field.name for field in dataclasses.fields(config.environment)} | {"env", "input_scale"}
        assert config.input_scale == make_config(algorithm, env=env, input_scale=()).input_scale
        assert config.environment == ENVIRONMENTS[env].settings()
        settings.append({name: value for name, value in config.flat().items() if name not in own})
    assert all(each == settings[0] for each in settings)


def test_no_environment_has_a_default_of_its_own() -> None:
    assert [name for name, part in ENVIRONMENTS.items() for preset, _ in part.presets if preset == "default"] == []


#: Of the agents with a gradient and with the filter.
NUMBERS: dict[str, tuple[Any, Any]] = {
    "hidden": ((64, 64), (32, 32)),
    "train_every": (2, 1),
    "target_rate": (1.0, 1.0),
    "averaging": (0.005, 0.005),
    "target_period": (1, 1),
    "batch_size": (64, 16),
    "steps": (150_000, 150_000),
    "episodes": (0, 0),
    "discount": (0.995, 0.995),
    "edges": (0.3, 0.3),
    "settle": (True, True),
    "normalise": (True, True),
    "robust_level": (0.2, 0.2),
    "level_fraction": (0.45, 0.45),
    "refine_from": (0.6, 0.6),
}


def test_numbers_of_the_default() -> None:
    for i, algorithm in enumerate(("rtd_dqn", "deep_rok")):
        settings = make_config(algorithm).flat()
        assert {name: settings[name] for name in NUMBERS} == {name: each[i] for name, each in NUMBERS.items()}
    filtered = make_config("ekf_dqn").flat()
    assert (filtered["covariance"], filtered["rank"], filtered["hidden"]) == ("low_rank", 10, (32, 32))
    # The square of agents shares everything but what it is made of.
    nominal, robust = make_config("ddqn_dr"), make_config("rtd_dqn")
    assert (nominal.estimator, nominal.learner) == (robust.estimator, robust.learner)
    assert nominal.layers == robust.layers


def test_committed_results_are_of_the_present_presets() -> None:
    assert carried_over.check(write=False) > 100
