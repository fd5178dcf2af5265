"""What agents do with their posterior: explore by it, be cautious by it, pass it on, and let it set the robustness."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparisons import assert_equal_to_rounding

from deeprok.agents.clock import Clock
from deeprok.agents.replaying import make_estimator
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Transition
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.policies import cautious_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training.loop import train_together
from deeprok.training.scan import make_program

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=30, horizon=30, chunk_steps=300, warm_up=20, target_period=50, batch_size=5, models=3,
    observation_noise=1.0, process_noise=1e-4, trial_models=4,
)  # fmt: skip
START = Clock(jnp.int32(0), 0.0)
OBS = jnp.array([[0.1, -0.2, 0.05, 0.3], [-0.3, 0.4, 0.1, 0.0]])


def settings(**changes: Any) -> Config:
    return make_config("deep_rok", "tuned", **{**SMALL, **changes})


@functools.cache
def belief_of(config: Config) -> Any:
    """A belief that has seen something."""
    agent = config.make_learner()
    rng = np.random.default_rng(0)

    def h(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        return agent.view.network.apply(theta, x[0])[x[1]]

    estimator = make_estimator(config.task())
    update = jax.jit(lambda belief, xs, ys: estimator.update(belief, h, xs, ys)[0])
    belief = agent.init(jax.random.key(0)).belief
    for _ in range(5):
        xs = np.asarray(rng.normal(size=(5, 4)), belief.theta.dtype), rng.integers(2, size=5)
        belief = update(belief, xs, np.asarray(rng.normal(size=5), belief.theta.dtype))
    return belief


def correlated(config: Config) -> tuple[Any, Any]:
    """An agent and its state with such a belief, which does not hang on how the agent explores."""
    agent = config.make_learner()
    belief = belief_of(config.replace(explore="epsilon", explore_scale=1.0))
    return agent, dataclasses.replace(agent.init(jax.random.key(0)), belief=belief)


def deviations(agent: Any, belief: Any, obs: jax.Array) -> np.ndarray:
    """σ of Q(s, a) from the dense covariance and finite differences."""
    P = np.asarray(agent.view.posterior.covariance(belief), float)
    theta = np.asarray(belief.theta, float)
    q = np.array([
        [(agent.view.network.apply(theta + step, obs) - agent.view.network.apply(theta - step, obs)) / 2e-5]
        for step in 1e-5 * np.eye(len(theta))
    ])[:, 0]  # fmt: skip
    return np.sqrt(np.einsum("nca,nm,mca->ca", q, P, q))


@pytest.mark.parametrize("covariance", ["full", "layer", "neuron", "diagonal", "low_rank"])
def test_values_have_the_posteriors_deviation(x64, covariance: str) -> None:
    agent, state = correlated(settings(covariance=covariance, precision="float64"))
    mean, deviation = jax.jit(agent.view.values)(state.belief, OBS)
    np.testing.assert_allclose(mean, agent.view.network.apply(state.belief.theta, OBS), rtol=1e-12)
    np.testing.assert_allclose(deviation, deviations(agent, state.belief, OBS), rtol=1e-6)


def test_upper_bound_acts_on_what_it_knows_least(x64) -> None:
    agent, state = correlated(settings(precision="float64", explore="ucb", explore_scale=1e3))
    act, draw = jax.jit(agent.act), agent.draw(jax.random.key(1))
    for obs in OBS:
        expected = np.argmax(deviations(agent, state.belief, obs[None])[0])
        assert act(state, draw, obs, START)[0] == expected
    timid, state = correlated(settings(precision="float64", explore="ucb", explore_scale=0.0))
    unmoved = jax.jit(timid.act)
    for obs in OBS:
        assert unmoved(state, draw, obs, START)[0] == jnp.argmax(timid.view.network.apply(state.belief.theta, obs))


def observing(agent: Any) -> Any:
    """`(state, draw, ended) -> state`, what a step changes."""
    step = Transition(
        obs=jnp.zeros(4), action=jnp.int32(0), reward=jnp.zeros(3), next_obs=jnp.zeros((3, 4)),
        terminated=jnp.zeros(3, bool),
    )  # fmt: skip
    return jax.jit(lambda state, draw, ended: agent.plays.observe(state, step, draw, START, ended, jnp.array(True)))


def test_thompson_acts_on_one_draw_an_episode() -> None:
    agent, state = correlated(settings(explore="thompson"))
    draw = agent.draw(jax.random.key(1))
    renew = observing(agent)
    kept = renew(state, draw, jnp.array(False))
    np.testing.assert_array_equal(kept.drawn, state.drawn)
    fresh = renew(state, draw, jnp.array(True))
    sample = jax.jit(agent.view.posterior.sample)(state.belief, jax.random.wrap_key_data(draw.weights))
    np.testing.assert_allclose(fresh.drawn, sample, rtol=1e-5, atol=1e-6)
    assert agent.act(fresh, draw, OBS[0], START)[0] == jnp.argmax(agent.view.network.apply(fresh.drawn, OBS[0]))
    other = renew(state, agent.draw(jax.random.key(2)), jnp.array(True))
    assert not np.any(other.drawn == fresh.drawn)


def test_scale_of_a_draw() -> None:
    (wide, state), (narrow, _) = (correlated(settings(explore="thompson", explore_scale=s)) for s in (1.0, 0.1))
    draw = wide.draw(jax.random.key(1))
    steps = [observing(agent)(state, draw, jnp.array(True)).drawn - state.belief.theta for agent in (wide, narrow)]
    np.testing.assert_allclose(steps[1], 0.1 * steps[0], rtol=1e-3, atol=1e-6)


DIVER: dict[str, Any] = dict(
    env="deep_sea", horizon=12, episodes=120, chunk_steps=240, snapshot_every=0, covariance="diagonal",
    observation_noise=1e-3, prior_covariance=0.1, process_noise=1e-6,
)  # fmt: skip


@pytest.mark.slow
def test_thompson_finds_what_chance_does_not(train) -> None:
    found = {}
    for explore in ("thompson", "epsilon"):
        config = make_config("ekf_dqn", "tuned", explore=explore, **DIVER)
        chunks = config.episodes * config.environment.horizon // config.learner.chunk_steps
        run = train(config, seeds=range(5), chunks=chunks)
        earned = np.concatenate([np.where(log.ended, log.earned, 0.0).max(axis=(1, 2))[None] for log in run.logs])
        found[explore] = int((earned.max(axis=0) > 0.5).sum())
    assert found["thompson"] >= 4
    assert found["epsilon"] <= 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posterior") / "run"
    runs.create(folder, settings())
    train_together([folder])
    return folder


def test_caution(trained: Path) -> None:
    learner = runs.read_config(trained).make_learner()
    belief, view = runs.load_belief(trained, learner, "last"), learner.view
    obs = jax.random.normal(jax.random.key(0), (50, 4))
    mean, deviation = (np.asarray(part) for part in jax.jit(view.values)(belief, obs))

    def act(kappa: float) -> np.ndarray:
        policy = cautious_policy(view, kappa)
        return jax.jit(lambda belief: policy(belief, view.env.nominal)(obs))(belief)

    for kappa in (0.7, -2.0):
        np.testing.assert_array_equal(act(kappa), np.argmax(mean - kappa * deviation, axis=1))
    np.testing.assert_array_equal(act(1e6), np.argmin(deviation, axis=1))


@pytest.mark.slow
def test_no_caution_is_the_mean_policy(trained: Path) -> None:
    arguments = dict(grid="pole_length=0.3:1:2", episodes=5, keep="last")
    plain = evaluate(trained, **arguments)
    cautious = evaluate(trained, **arguments, policy="lcb", kappa=0.0)
    assert (cautious.policy, cautious.kappa, cautious.members) == ("lcb", 0.0, 1)
    np.testing.assert_array_equal(cautious.mean_return, plain.mean_return)
    with pytest.raises(DeeprokError, match="kappa is nan; it must be a finite number"):
        evaluate(trained, **arguments, policy="lcb", kappa=float("nan"))


def test_a_posterior_as_the_next_prior(trained: Path, tmp_path: Path) -> None:
    config = settings(prior=str(trained), nominal="gravity=12", episodes=2, epsilon_start=0.1)
    runs.create(tmp_path / "next", config)
    program = make_program(config)
    given = runs.load_belief(trained, program.learner, "last")
    begun = program.init(jax.random.key(0), runs.load_prior(tmp_path / "next", program.learner))
    np.testing.assert_array_equal(begun.agent.belief.theta, given.theta)
    np.testing.assert_array_equal(begun.agent.belief.P.groups[0], given.P.groups[0])
    np.testing.assert_array_equal(begun.agent.target, given.theta)
    assert begun.agent.belief.updates == 0 < given.updates
    train_together([tmp_path / "next"])
    after = runs.load_belief(tmp_path / "next", program.learner, "last")
    assert 0 < np.abs(after.theta - given.theta).max() < 0.5 * np.abs(given.theta).max()


def begun(config: Config, folder: Path) -> Any:
    """The estimate that a run begins with."""
    runs.create(folder, config)
    return runs.load_prior(folder, config.make_learner())


def point(**changes: Any) -> Config:
    own: dict[str, Any] = {k: v for k, v in SMALL.items() if k not in ("observation_noise", "process_noise")}
    return make_config("rtd_dqn", "tuned", **{**own, **changes})


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a point estimate, in units of its own."""
    folder = tmp_path_factory.mktemp("point") / "run"
    runs.create(folder, point(normalise=True, averaging=0.1))
    train_together([folder])
    return folder


def test_a_point_estimate_goes_on_with_its_moments(points: Path, tmp_path: Path) -> None:
    config = point(normalise=True, averaging=0.1, nominal="gravity=12", prior=str(points))
    given = runs.load_belief(points, config.make_learner(), "last")
    taken = begun(config, tmp_path / "next")
    jax.tree.map(np.testing.assert_array_equal, taken, given)
    assert given.inner.inner.optimizer[0].count > 0  # beneath units and averaging


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [False, True])
def test_the_mean_of_a_posterior_with_a_new_covariance(trained: Path, tmp_path: Path, normalise: bool) -> None:
    config = settings(prior=str(trained), prior_part="mean", normalise=normalise)
    learner = config.make_learner()
    given = runs.load_belief(trained, runs.read_config(trained).make_learner(), "last")
    taken = begun(config, tmp_path / "next")
    np.testing.assert_allclose(learner.view.mean(taken), given.theta, rtol=1e-5, atol=1e-6)
    inner = taken.inner if normalise else taken
    new = settings().make_learner().init(jax.random.key(0)).belief
    jax.tree.map(np.testing.assert_array_equal, inner.P, new.P)
    assert inner.updates == 0 < given.updates
    train_together([tmp_path / "next"])
    assert runs.read_config(tmp_path / "next") == config


def test_a_filter_starts_from_the_weights_of_a_point_estimate(points: Path, tmp_path: Path) -> None:
    source = point(normalise=True, averaging=0.1).make_learner()
    given = runs.load_belief(points, source, "last")
    theta = source.view.mean(given)
    for name, changes in {"same units": {"normalise": True}, "plain": {}, "exact": {"precision": "float64"}}.items():
        config = settings(prior=str(points), prior_part="mean", covariance="diagonal", **changes)
        with config.arithmetic():
            taken = begun(config, tmp_path / name)
            mean = config.make_learner().view.mean(taken)
            assert mean.dtype == config.precision
            np.testing.assert_allclose(mean, theta, rtol=1e-4, atol=1e-5)
        if name == "same units":
            jax.tree.map(np.testing.assert_array_equal, taken.scales, given.scales)


def test_weights_alone_have_the_moments_of_a_new_run(points: Path, tmp_path: Path) -> None:
    source = point(normalise=True, averaging=0.1).make_learner()
    theta = source.view.mean(runs.load_belief(points, source, "last"))
    taken = begun(point(prior=str(points), prior_part="mean"), tmp_path / "next")
    np.testing.assert_array_equal(taken.theta, theta)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(taken.optimizer))


@pytest.mark.slow
def test_schedules_begin_again_in_units_too(tmp_path: Path) -> None:
    config = settings(normalise=True, episodes=4)
    runs.create(tmp_path / "first", config)
    train_together([tmp_path / "first"])
    taken = begun(config.replace(prior=str(tmp_path / "first")), tmp_path / "next")
    given = runs.load_belief(tmp_path / "first", config.make_learner(), "last")
    assert taken.inner.updates == 0 < given.inner.updates
    np.testing.assert_array_equal(taken.inner.P.groups[0], given.inner.P.groups[0])


def test_a_policy_is_no_prior_of_a_q_learner(tmp_path: Path) -> None:
    policy = make_config("pg", "tuned", hidden=(4,), episodes=4, horizon=5, trajectories=2)
    runs.create(tmp_path / "policy", policy)
    with pytest.raises(DeeprokError, match="a run of pg; rtd_dqn needs one of a Q-learner"):
        runs.create(tmp_path / "next", point(prior=str(tmp_path / "policy"), prior_part="mean"))


BAD_PRIORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no run": ("train deep_rok --prior nowhere", ("no run folder nowhere",)),
    "another network": (
        "train deep_rok --preset tuned --prior {run}",
        ("prior is {run}, whose", "of another kind (", "hidden 4, here 20 20", "--prior-part mean"),
    ),
    "another covariance": (
        "train deep_rok --preset tuned --hidden 4 --covariance low_rank --prior {run}",
        ("covariance full, here low_rank",),
    ),
    "another estimator": (
        "train rtd_dqn --preset tuned --hidden 4 --prior {run}",
        ("(algorithm deep_rok, here rtd_dqn)", "--prior-part mean"),
    ),
    "the mean of another network": (
        "train rtd_dqn --preset tuned --hidden 5 --prior {run} --prior-part mean",
        ("prior is {run}", "30 weights", "37", "the same layers"),
    ),
    "part": ("train dqn --prior {run} --prior-part some", ("--prior-part", "all", "mean")),
    "directed": ("train rtd_dqn --explore ucb", ("explore is 'ucb'", "rtd_dqn has no posterior")),
    "spread": ("train rtd_dqn --confidence spread", ("confidence is 'spread'", "has no posterior")),
}


@pytest.mark.parametrize(("words", "needed"), BAD_PRIORS.values(), ids=BAD_PRIORS)
def test_bad_priors(
    trained: Path, tmp_path: Path, words: str, needed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([*words.format(run=trained).split(), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert [word for word in needed if word.format(run=trained) not in said] == []
    assert not out.exists()


@pytest.mark.slow
def test_prior_by_seed(trained: Path, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    folders = [seeds / f"seed-{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        runs.create(folder, settings(seed=seed, episodes=2))
    train_together(folders)
    program = make_program(settings())
    for seed in (0, 1):
        runs.create(tmp_path / f"from-{seed}", settings(seed=seed, prior=str(seeds)))
        given = runs.load_belief(folders[seed], program.learner, "last")
        assert given.updates > 0
        np.testing.assert_array_equal(runs.load_prior(tmp_path / f"from-{seed}", program.learner).theta, given.theta)
    with pytest.raises(DeeprokError, match="which has no seed-5"):
        runs.create(tmp_path / "from-5", settings(seed=5, prior=str(seeds)))


# Changing confidence: an environment where each level has an answer of its own.

FORK: dict[str, Any] = dict(
    env="fork", horizon=5, episodes=400, chunk_steps=400, warm_up=20, target_period=20, batch_size=10, hidden=(4,),
    fixed_models="wind=0.5,prize=1.5; wind=0.5,prize=0.5", acting="member", robust_set="cvar", snapshot_every=0,
    observation_noise=0.05, process_noise=1e-5, prior_covariance=0.5, discount=0.9, epsilon_steps=1, epsilon_end=1.0,
)  # fmt: skip


def prize(run: Any, program: Any) -> float:
    return float(program.learner.view.network.apply(run.theta[0], np.array([0.0, 0.0, 1.0]))[0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(robust_level=0.5), 0.5),  # the worst half
        (dict(robust_level=0.5, confidence="time", level_steps=10**9), 1.0),  # not yet: the mean of 1.5 and 0.5
        (dict(robust_level=0.5, confidence="time", level_steps=100), 0.5),  # long since
        (dict(robust_level=0.5, confidence="spread"), 0.5),  # sure by now
    ],
    ids=["worst", "time to come", "time gone by", "spread"],
)
def test_level_follows_confidence(train, build, probes, changes: dict[str, Any], expected: float) -> None:
    config = make_config("deep_rok", "tuned", **FORK, **changes)
    run = train(config, chunks=4)
    assert prize(run, build(config).program) == pytest.approx(expected, abs=0.1)
    if config.target.confidence == "spread":
        first, lately = run.last.agent.gains[0]
        assert lately < 0.3 * first


def test_a_level_that_does_not_change_changes_nothing(train, probes) -> None:
    fixed = make_config("deep_rok", "tuned", **FORK, robust_level=0.5)
    same = fixed.replace(confidence="time", level_start=0.5, level_steps=50)
    assert_equal_to_rounding(train(same, chunks=1).theta, train(fixed, chunks=1).theta)


@pytest.mark.slow
def test_precision_is_that_of_the_whole_run(trained: Path, tmp_path: Path) -> None:
    runs.create(tmp_path / "double", settings(precision="float64", episodes=2))
    train_together([tmp_path / "double"])
    for folder, precision in ((trained, "float32"), (tmp_path / "double", "float64")):
        config = runs.read_config(folder)
        with config.arithmetic():
            belief = runs.load_belief(folder, config.make_learner(), "last")
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(belief)} == {precision, "int32"}
    assert evaluate(tmp_path / "double", "pole_length=0.5", episodes=2, keep="last").episodes == 2
