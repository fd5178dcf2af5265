from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeprok
from deeprok.training import make_program

pytestmark = pytest.mark.slow

SEEDS = range(5)
#: Least success over the paper's grid, with the last weights.
SUCCESS = {"rtd_dqn": 0.85, "deep_rok": 0.88}


@pytest.fixture(scope="module", params=SUCCESS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, deeprok.Evaluation]:
    algorithm = request.param
    out: Path = tmp_path_factory.mktemp("slow") / algorithm
    deeprok.train(deeprok.make_config(algorithm, "tuned"), out, seeds=SEEDS)
    return algorithm, deeprok.evaluate(out, episodes=100, keep="last")


def test_success_over_the_grid(trained: tuple[str, deeprok.Evaluation]) -> None:
    algorithm, result = trained
    assert (result.algorithm, result.keep, result.epsilon, result.episodes) == (algorithm, "last", 0.1, 100)
    assert np.shape(result.success) == (7, 7)
    assert [seed.seed for seed in result.per_seed] == list(SEEDS)
    assert result.overall.success >= SUCCESS[algorithm]


def test_return_at_the_nominal_parameters(trained: tuple[str, deeprok.Evaluation]) -> None:
    assert trained[1].nominal.mean_return >= 190


def test_covariance_stays_positive_definite() -> None:
    config = deeprok.make_config("deep_rok", "tuned")
    program = make_program(config)
    states = jax.jit(jax.vmap(program.init))(jnp.stack([jax.random.key(0)]))
    before = np.asarray(states.agent.belief.P[0])
    chunks = (config.warm_up + 20_000) // config.chunk_steps + 1
    for chunk in range(chunks):
        states, _ = program.chunk(states, chunk * config.chunk_steps)
        P = np.asarray(states.agent.belief.P[0])
        np.testing.assert_array_equal(P, P.T)
        assert np.linalg.eigvalsh(P.astype(float)).min() > 0
        np.linalg.cholesky(P)
    assert int(states.steps[0]) - config.warm_up >= 20_000
    assert np.trace(P) < np.trace(before)  # it has learned
