from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeprok
from deeprok.agents.network import MLP
from deeprok.estimators import Estimator, Observation, block, diagonal, ekf, full, low_rank
from deeprok.training.scan import make_program

pytestmark = pytest.mark.slow

SEEDS = range(5)
#: Least success over the paper's grid, with the last weights.
SUCCESS = {"rtd_dqn": 0.85, "deep_rok": 0.88, "bbb_rtd": 0.9, "psgld_rtd": 0.9, "epopt": 0.9, "robust_pg": 0.85}


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


def test_preset_paper_of_epopt_learns() -> None:
    """Natural steps in single precision, with the trajectories and the network of that paper."""
    config = deeprok.make_config("epopt", "paper")
    program = make_program(config)
    states = jax.jit(jax.vmap(program.init))(jnp.stack([jax.random.key(0)]))
    for iteration in range(15):
        states, log = program.advance(states, iteration)
    assert np.mean(log.earned) > 180


def test_a_million_updates_of_a_cart_pole_run() -> None:
    config = deeprok.make_config("deep_rok", "tuned", episodes=20_000, snapshot_every=0)
    program = make_program(config)
    states = jax.jit(jax.vmap(program.init))(jnp.stack([jax.random.key(0)]))
    prior = float(states.agent.belief.P.groups[0][0, 0, 0, 0])
    chunks = (config.learner.warm_up + UPDATES) // config.learner.chunk_steps + 1
    for chunk in range(chunks):
        states, log = program.advance(states, chunk)
        if chunk % 50 == 0 or chunk == chunks - 1:
            P = np.asarray(states.agent.belief.P.groups[0][0, 0])[:, : states.agent.belief.theta.shape[1]]
            np.testing.assert_array_equal(P, P.T)
            assert np.linalg.eigvalsh(P.astype(float)).min() > 0
            np.linalg.cholesky(P)
            assert np.asarray(log.fit.health.extras["floored"]).sum() == 0
    assert states.agent.belief.updates[0] >= UPDATES
    # It has learned along what it sees; where it does not, process noise has added up.
    assert np.linalg.eigvalsh(P.astype(float)).min() < 0.1 * prior


# A million updates in single precision

UPDATES, CHECK_EVERY = 1_000_000, 50_000
N, B = 30, 2
#: An estimator is told `(key, update) -> (xs, ys)`.
Told = Callable[[jax.Array, jax.Array], tuple[Any, jax.Array]]


def run_long(estimator: Estimator, theta: jax.Array, h: Observation, told: Told) -> float:
    """Checks the belief at every 50,000th update; gives the observations held back in all."""
    posterior = estimator.posterior
    assert posterior is not None

    @jax.jit
    def advance(belief: Any, first: jax.Array) -> Any:
        def step(carry: Any, update: jax.Array) -> Any:
            belief, floored, least = carry
            xs, ys = told(jax.random.fold_in(jax.random.key(1), update), update)
            belief, fit = estimator.update(belief, h, xs, ys)
            health = fit.health
            return (belief, floored + health.extras["floored"], jnp.minimum(least, health.variance)), None

        start = (belief, jnp.zeros(()), jnp.asarray(jnp.inf))
        (belief, floored, least), _ = jax.lax.scan(step, start, first + jnp.arange(CHECK_EVERY))
        return belief, floored, least, posterior.definite(belief), posterior.variances(belief)

    belief, total = estimator.init(theta), 0.0
    for first in range(0, UPDATES, CHECK_EVERY):
        belief, floored, least, definite, variances = advance(belief, first)
        total += float(floored)
        where = f"by update {first + CHECK_EVERY}"
        assert np.all(np.isfinite(belief.theta)), where
        assert least > 0, where
        assert definite, where
        assert np.all(variances > 0), where
        for group in getattr(belief.P, "groups", ()):
            square = np.asarray(group)[..., : group.shape[-2]]
            np.testing.assert_array_equal(square, np.swapaxes(square, -1, -2), err_msg=where)
            assert np.linalg.eigvalsh(square.astype(float)).min() > 0, where
    assert int(belief.updates) == UPDATES
    return total


def gradients(kind: str, key: jax.Array, update: jax.Array) -> jax.Array:
    """The gradients [B, n] of an update."""
    fresh = jax.random.normal(key, (B, N))
    own, half, other = (jax.random.normal(jax.random.key(seed), (N // 2, N)) / N**0.5 for seed in (97, 98, 99))
    match kind:
        case "fresh":
            return fresh
        case "repeated":
            return jnp.broadcast_to(own[0], fresh.shape)
        case "nearly_repeated":
            return own[0] + 1e-4 * fresh
        case "zero":
            return jnp.zeros_like(fresh)
        case "one_weight":
            return jax.nn.one_hot(jnp.argmax(fresh, axis=1), N)
        case "half_of_the_space":
            return fresh[:, : N // 2] @ half
        case "one_half_then_the_other":  # what was learned precisely is not told again
            return fresh[:, : N // 2] @ jnp.where(update < UPDATES // 100, half, other)
        case "uneven_weights":
            return fresh * 10.0 ** jnp.linspace(-4, 4, N)
        case "uneven_samples":
            return fresh * 10.0 ** (8 * jax.random.uniform(jax.random.fold_in(key, 1), (B, 1)) - 4)
        case _:  # each update of another kind
            which = update % len(KINDS)
            return sum(jnp.where(which == i, gradients(k, key, update), 0.0) for i, k in enumerate(KINDS))


KINDS = (
    "fresh",
    "repeated",
    "nearly_repeated",
    "zero",
    "one_weight",
    "half_of_the_space",
    "one_half_then_the_other",
    "uneven_weights",
    "uneven_samples",
)
#: R, Pᵥ and the size of the labels; P₀ is 1.
NOISES = {"certain": (1e-12, 0.0, 1e6), "still": (1e-5, 0.0, 1.0), "drifting": (1e-12, 1e-8, 1.0)}
STRUCTURES = {
    "full": full,
    "blocks": block(slice(0, N, 2), slice(1, N, 2)),
    "diagonal": diagonal,
    "low_rank": low_rank(5),
}


@pytest.mark.parametrize("noises", NOISES)
@pytest.mark.parametrize(
    ("structure", "batching", "kind"),
    [
        *(("full", "averaged", kind) for kind in (*KINDS, "mixed")),
        *(("full", "joint", kind) for kind in ("repeated", "one_half_then_the_other", "mixed")),
        *((structure, "joint", "mixed") for structure in ("blocks", "diagonal", "low_rank")),
    ],
)
def test_a_million_updates_of_a_hostile_stream(structure: str, batching: str, kind: str, noises: str) -> None:
    R, process_noise, size = NOISES[noises]

    def told(key: jax.Array, update: jax.Array) -> tuple[jax.Array, jax.Array]:
        xs_key, ys_key = jax.random.split(key)
        return gradients(kind, xs_key, update), size * jax.random.normal(ys_key, (B,))

    estimator = ekf(R, process_noise, 1.0, batching, covariance=STRUCTURES[structure])
    run_long(estimator, jnp.zeros(N), lambda theta, x: theta @ x, told)


@pytest.mark.parametrize("noises", [(0.12, 4e-9, 0.004), (1e-3, 0.01, 1.0)], ids=["tuned", "paper"])
def test_a_million_updates_of_the_cart_pole_network(noises: tuple[float, float, float]) -> None:
    network, batch = MLP((4, 20, 20, 2), "tanh", (1.0, 1.0, 1.0, 1.0)), 10

    def told(key: jax.Array, update: jax.Array) -> tuple[Any, jax.Array]:
        obs_key, action_key, label_key = jax.random.split(key, 3)
        obs = jax.random.normal(obs_key, (batch, 4)) * jnp.array([1.0, 1.0, 0.1, 1.0])
        action = jax.random.randint(action_key, (batch,), 0, 2)
        return (obs, action), jax.random.uniform(label_key, (batch,), maxval=10.0)

    run_long(ekf(*noises), network.init(jax.random.key(0)), lambda theta, x: network.apply(theta, x[0])[x[1]], told)
