"""The correction of a posterior's values by held-out play."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeprok
from deeprok.agents.correction import CorrectedBelief, Correction, correctable, fit_correction, no_correction
from deeprok.environments import with_model
from deeprok.estimators import ekf
from deeprok.evaluation.calibration import coverage, make_correction
from deeprok.evaluation.nature import against_nature
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.loop import train_together
from deeprok.uncertainty import SETS

pytestmark = pytest.mark.usefixtures("compiled_once")


def corrected(numbers: tuple[float, float, float], mean: np.ndarray, deviation: np.ndarray) -> Any:
    shift, factor, floor = numbers
    return mean + shift, np.sqrt((factor * deviation) ** 2 + floor**2)


@given(
    shift=st.floats(-5, 5),
    factor=st.floats(0.2, 5),
    floor=st.sampled_from([0.0, 0.5, 2.0]),
    size=st.sampled_from([1e-3, 1.0, 100.0]),
)
def test_normal_errors_of_any_size_are_found(shift: float, factor: float, floor: float, size: float) -> None:
    """Errors drawn as a correction describes them: after the fitted one, intervals hold what they claim."""
    rng = np.random.default_rng(0)
    deviation = rng.uniform(0.5, 2.0, size=(2000, 2))
    spread = np.sqrt((factor * deviation) ** 2 + floor**2)
    mean = rng.normal(size=deviation.shape)
    truth = mean + shift + spread * rng.normal(size=deviation.shape)
    found = fit_correction(size * mean, size * deviation, size * truth)
    after, width = corrected(found, size * mean, size * deviation)
    np.testing.assert_allclose(coverage(((size * truth - after) / width).reshape(-1)), [0.5, 0.8, 0.95], atol=0.02)
    np.testing.assert_allclose(width, size * spread, rtol=0.2)
    assert found.shift == pytest.approx(size * shift, abs=0.2 * size * spread.mean())


def test_a_few_failures_do_not_widen_all_intervals() -> None:
    rng = np.random.default_rng(1)
    errors = rng.normal(size=1000)
    errors[:30] = -100.0
    found = fit_correction(np.zeros(1000), np.ones(1000), errors)
    _, width = corrected(found, np.zeros(1000), np.ones(1000))
    assert 0.8 < width[0] < 1.5
    assert abs(found.shift) < 0.15


def test_a_posterior_that_is_a_point_gets_a_constant_deviation() -> None:
    errors = np.random.default_rng(2).normal(size=500)
    found = fit_correction(np.zeros(500), np.zeros(500), errors)
    assert found.factor == 0
    assert found.floor == pytest.approx(1.0, rel=0.1)
    exact = fit_correction(np.zeros(500), np.ones(500), np.zeros(500))  # no error at all
    assert np.isfinite(exact).all()


def test_learning_knows_nothing_of_a_correction() -> None:
    plain = ekf(observation_noise=0.1, prior_covariance=0.5)
    wrapped = correctable(plain)
    xs, ys = jax.random.normal(jax.random.key(0), (4, 3)), jnp.arange(4.0)

    def h(theta: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ theta)

    odd = Correction(shift=jnp.float32(3), factor=jnp.float32(7), floor=jnp.float32(2), level=jnp.float32(0))
    belief, other = plain.init(jnp.ones(3)), CorrectedBelief(inner=plain.init(jnp.ones(3)), correction=odd)
    for _ in range(3):
        (belief, fit), (other, same) = plain.update(belief, h, xs, ys), wrapped.update(other, h, xs, ys)
        np.testing.assert_array_equal(fit.loss, same.loss)
    np.testing.assert_array_equal(plain.mean(belief), wrapped.mean(other))
    assert plain.posterior
    assert wrapped.posterior
    key = jax.random.key(1)
    np.testing.assert_array_equal(plain.posterior.sample(belief, key), wrapped.posterior.sample(other, key))
    np.testing.assert_array_equal(
        plain.posterior.predictive_variance(belief, xs), wrapped.posterior.predictive_variance(other, xs)
    )
    for part, its in zip(jax.tree.leaves(other.correction), jax.tree.leaves(odd), strict=True):
        np.testing.assert_array_equal(part, its)


# --- nature ----------------------------------------------------------------------------------------------


def test_nature_goes_on_with_the_worst_models(probes: Any) -> None:
    """On the treadmill a step ends the episode on models with a short life only: the worst, if V is positive."""
    config = make_config("rtd_dqn", "tuned", env="treadmill", horizon=4, hidden=(2,))
    env = config.make_env()
    models = {"lifetime": jnp.array([1.0, 1.0, 100.0, 100.0])}
    params = jax.vmap(lambda one: with_model(env.nominal, one))(models)
    state, _ = env.reset(jax.random.key(0), env.nominal)

    def shares(sign: float, name: str, level: float) -> float:
        def value(obs: jax.Array) -> jax.Array:
            return jnp.full(obs.shape[:-1], sign)

        nature = against_nature(env, value, 0.9, SETS[name].worst_case, level)
        ends = jax.vmap(lambda key: nature.step(key, state, jnp.int32(0), params).terminated)
        return float(jnp.mean(ends(jax.random.split(jax.random.key(1), 400))))

    assert shares(1.0, "cvar", 0.5) == 1.0  # both models that end, and no others
    assert shares(-1.0, "cvar", 0.5) == 0.0  # where going on is bad, nature goes on
    assert shares(1.0, "cvar", 1.0) == pytest.approx(0.5, abs=0.08)  # the mean over all
    assert shares(1.0, "minimum", 0.0) == 1.0


# --- runs ------------------------------------------------------------------------------------------------


def small(algorithm: str, **changes: Any) -> Any:
    tiny: dict[str, Any] = dict(env="ferry", hidden=(3,), steps=120, chunk_steps=60, warm_up=20, train_every=1)
    tiny |= dict(trial_models=2, trial_episodes=1, models=2, normalise=False, longest_repeat=1, discount=0.9)
    return make_config(algorithm, **{**tiny, **changes})


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """A small trained run of an algorithm, with a correction or without; each is trained once."""
    out = tmp_path_factory.mktemp("corrected")

    @functools.cache
    def trained(algorithm: str, recalibrate: bool) -> Path:
        folder = out / f"{algorithm}-{recalibrate}"
        runs.create(folder, small(algorithm, recalibrate=recalibrate))
        train_together([folder])
        return folder

    return trained


#: The nominal target, and the robust one.
TARGETS = ["ekf_dqn", pytest.param("deep_rok", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ekf_dqn", "deep_rok"])
def test_a_run_ends_with_the_correction_of_its_weights(folder_of: Callable[[str, bool], Path], algorithm: str) -> None:
    folder, plain = folder_of(algorithm, True), folder_of(algorithm, False)
    config = runs.read_config(folder)
    learner = config.make_learner()
    correct = make_correction(config, learner.view)
    for keep in ("last", "best"):
        belief = runs.load_belief(folder, learner, keep)
        assert learner.corrected
        fresh = correct(learner.corrected(belief, no_correction()), belief.correction.level)
        for one, other in zip(jax.tree.leaves(fresh), jax.tree.leaves(belief.correction), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        level = float(belief.correction.level)  # of a robust target one that its schedule has
        assert 0.199 < level <= 1.0 if algorithm == "deep_rok" else level == 0.0
    # The weights, and so the policy, are those of a run without.
    loaded, without = (deeprok.load(path, keep="last") for path in (folder, plain))
    np.testing.assert_array_equal(loaded.weights, without.weights)
    cells = np.random.default_rng(0).uniform(0, 5, size=(20, 2)).astype(np.float32)
    np.testing.assert_array_equal(loaded.act(cells), without.act(cells))
    (mean, deviation), (raw, spread) = loaded.q_values(cells), without.q_values(cells)
    own = runs.load_belief(folder, learner, "last").correction
    np.testing.assert_allclose(mean, raw + own.shift, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(deviation, np.hypot(own.factor * spread, own.floor), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", TARGETS)
def test_calibrate_tells_of_both(folder_of: Callable[[str, bool], Path], algorithm: str) -> None:
    found = deeprok.calibrate(folder_of(algorithm, True), states=30, models=4)
    plain = deeprok.calibrate(folder_of(algorithm, False), states=30, models=4)
    assert plain.raw is None
    assert found.raw is not None
    assert found.coverage != found.raw
    if algorithm == "ekf_dqn":  # whose truth does not depend on a level
        assert found.raw == plain.coverage


def test_a_lower_confidence_bound_uses_the_corrected_deviations(folder_of: Callable[[str, bool], Path]) -> None:
    """With a κ so large that only σ counts, the correction's factor and floor keep the order of the actions."""
    folder = folder_of("ekf_dqn", True)
    config = runs.read_config(folder)
    learner = config.make_learner()
    from deeprok.evaluation.predictive import q_distribution

    belief = runs.load_belief(folder, learner, "last")
    cells = jnp.asarray(np.random.default_rng(0).uniform(0, 5, size=(20, 2)), jnp.float32)
    assert learner.view.values
    for one, other in zip(q_distribution(learner.view, belief)(cells), learner.view.values(belief, cells), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_with_a_memory_nothing_is_corrected() -> None:
    assert small("deep_rok", memory=1).make_learner().corrected is None
    assert small("ekf_dqn", memory=1, acting="nominal").make_learner().corrected is not None


def test_a_point_estimate_has_nothing_to_correct() -> None:
    from deeprok.core.errors import DeeprokError
    from deeprok.runs.settings import check

    with pytest.raises(DeeprokError, match="recalibrate is True, but dqn has no posterior"):
        check(small("dqn", recalibrate=True))
