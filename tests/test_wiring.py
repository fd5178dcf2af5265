"""What the settings are handed to does what they say: agents, the scan, policies, calibration, exams and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe_envs import part_of

from deeprok.agents import replay
from deeprok.agents.clock import Clock
from deeprok.agents.replaying import estimator_context, make_estimator
from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import ENVIRONMENTS, Choices, Environment, Outcome, quantity
from deeprok.estimators import Estimator
from deeprok.evaluation import calibration
from deeprok.runs.settings import Config, make_config
from deeprok.uncertainty import SETS, WorstCase
from deeprok.uncertainty.sets import AmbiguitySet
from deeprok.uncertainty.sets.base import radius_check
from studies import exam, results


def estimator_of(algorithm: str, **changes: Any) -> Estimator:
    config = make_config(algorithm, "tuned", **changes)
    return make_estimator(config.task())


def nothing(theta: jax.Array, x: jax.Array) -> jax.Array:
    """An observation that tells nothing of the weights."""
    return 0.0 * theta[0] * x


ONE = jnp.ones(1)


# --- estimators ------------------------------------------------------------------------------------------

# An update every second step from step 4 on, with room for 9 transitions: at steps 5, 7, 9 and 11.
DATA: dict[str, Any] = dict(warm_up=4, train_every=2, batch_size=3, replay_size=9, chunk_steps=4)
HELD = np.array([6.0, 8.0, 9.0, 9.0])


def after_updates(estimator: Estimator, theta: jax.Array) -> Any:
    """The beliefs that each of four updates leaves, all from the first one."""

    def update(t: jax.Array) -> Any:
        belief = dataclasses.replace(estimator.init(theta), updates=t)
        return estimator.update(belief, nothing, ONE, ONE)[0]

    return jax.jit(jax.vmap(update))(jnp.arange(4))


def test_backprop_charges_a_mini_batch_its_share_of_the_divergence() -> None:
    """Of N transitions B carry B/N of the KL divergence, whose gradient is θ / prior_variance where q is narrow."""
    estimator = estimator_of("bbb_dqn", **DATA, prior_variance=2.0, initial_deviation=1e-6)
    belief = after_updates(estimator, jnp.full(1, 5.0))
    gradient = np.asarray(belief.optimizer[0].mu[0])[:, 0] / (1 - 0.9)  # Adam's first mean
    np.testing.assert_allclose(gradient, 3 / HELD * 5.0 / 2.0, rtol=1e-4)


def test_the_data_grow_with_the_rounds() -> None:
    """Two updates a round: the data of both are those of its steps."""
    context = estimator_context(make_config("bbb_dqn", "tuned", **DATA, updates=2, episodes=5, horizon=21).task())
    np.testing.assert_array_equal(context.data_size(jnp.arange(8)), np.repeat(HELD, 2))
    assert context.updates == 5 * 21 // 2 * 2


def test_langevin_steps_are_twice_the_rate_over_the_data() -> None:
    """ε = 2α/N and no gradient but the prior's: θ goes by ½ ε G θ / prior_variance, with G = 1/λ."""
    estimator = estimator_of("psgld_dqn", **DATA, learning_rate=1e-6, prior_variance=1e-6, damping=1.0)
    theta = np.asarray(after_updates(estimator, jnp.full(1, 1.0)).theta)[:, 0]
    noise = np.sqrt(2e-6 / HELD)
    assert np.all(np.abs(1.0 - theta - 1 / HELD) < 5 * noise)
    assert np.all(5 * noise < 0.02 / HELD * 6)


def test_langevin_steps_fall_as_set() -> None:
    changes = dict(learning_rate=1e-6, prior_variance=1e-6, damping=1.0, warm_up=0, replay_size=1, decay_updates=2.0)
    estimator = estimator_of("psgld_dqn", **changes, batch_size=1, decay=1.0)
    theta = np.asarray(after_updates(estimator, jnp.full(1, 1.0)).theta)[:, 0]
    np.testing.assert_allclose(1.0 - theta, 1 / (1 + np.arange(4) / 2), atol=0.01)


def variance_after(algorithm: str, **changes: Any) -> float:
    """Of one weight of variance 1, after an update that told nothing."""
    estimator = estimator_of(algorithm, prior_covariance=1.0, process_noise=0.0, **changes)
    assert estimator.posterior

    def update() -> jax.Array:
        belief = estimator.update(estimator.init(jnp.zeros(1)), nothing, ONE, jnp.zeros(1))[0]
        return estimator.posterior.variances(belief)[0]

    return float(jax.jit(update)())


def test_filters_forget_as_set() -> None:
    assert variance_after("ktd_q", adaptive_noise=0.2) == pytest.approx(1.2)


#: Remembered fraction, window, fraction of the budget -> how many of t updates count.
MEMORIES: dict[str, tuple[float, int, float, Callable[[int], float]]] = {
    "in proportion": (0.25, 0, 0.9, lambda t: 0.25 * t),
    "in a window": (0.25, 2, 0.7, lambda t: min(0.25 * t, 2)),
    "in a window that has grown": (0.5, 1, 0.9, lambda t: min(0.5 * t, 3)),
    "in a window without end": (0.25, 1, 1.0, lambda t: 0.25 * t),
    "in a window alone": (1.0, 3, 0.0, lambda t: min(t, 3)),
}


@pytest.mark.parametrize(("remembered", "window", "progress", "count"), MEMORIES.values(), ids=MEMORIES)
def test_the_filter_forgets(
    x64, remembered: float, window: int, progress: float, count: Callable[[int], float]
) -> None:
    """Λ ← (1 − η) Λ + HᵀH / R with η = 1 / (2 + count); in its first update it has nothing to forget."""
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(size=(12, 5, 3)), rng.normal(size=(12, 5))
    settings = dict(observation_noise=0.02, process_noise=0.0, prior_covariance=2.0, batching="joint", batch_size=5)
    estimator = estimator_of("ekf_dqn", **settings, remembered=remembered, window=window)

    @jax.jit
    def update(belief: Any, xs: jax.Array, ys: jax.Array) -> Any:
        belief, fit = estimator.update(belief, lambda theta, x: theta @ x, xs, ys, progress=progress)
        return belief, estimator.posterior.covariance(belief), fit.health.extras["capped"]

    belief, information, told = estimator.init(jnp.ones(3)), np.eye(3) / 2.0, np.ones(3) / 2.0
    for t, (H, seen) in enumerate(zip(xs, ys, strict=True)):
        belief, covariance, capped = update(belief, jnp.asarray(H), jnp.asarray(seen))
        kept = 1.0 - 1.0 / (2.0 + count(t)) if t else 1.0
        information = kept * information + H.T @ H / 0.1  # five observations, each of noise 5 · 0.02
        told = kept * told + H.T @ seen / 0.1
        assert capped == (0 if t else 3)
        np.testing.assert_allclose(covariance, np.linalg.inv(information), rtol=1e-9)
        np.testing.assert_allclose(belief.theta, np.linalg.solve(information, told), rtol=1e-9)


PRIORS = {"number": 0.3, "vector": tuple(np.linspace(0.1, 1.0, 16))}
PRIORS["matrix"] = tuple(map(tuple, np.diag(PRIORS["vector"]) + 0.05))


@pytest.mark.parametrize(
    ("covariance", "prior"),
    [("full", "number"), ("layer", "vector"), ("neuron", "matrix"), ("diagonal", "vector"), ("low_rank", "number")],
)
def test_what_is_forgotten_is_never_less_known_than_at_first(covariance: str, prior: str) -> None:
    given = PRIORS[prior]
    settings = dict(hidden=(2,), covariance=covariance, rank=3, prior_covariance=given, remembered=0.05)
    estimator = estimator_of("ekf_dqn", **settings, batching="joint", observation_noise=0.01, process_noise=1e-3)
    variances = np.broadcast_to(np.diagonal(given) if np.ndim(given) == 2 else given, 16)
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(60, 4, 16)) * (np.arange(16) > 2)  # of three weights nothing is ever seen
    xs[20:] *= np.arange(16) > 8  # and later of nine

    @jax.jit
    def run(xs: jax.Array) -> jax.Array:
        def step(belief: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            belief, _ = estimator.update(belief, lambda theta, x: theta @ x, x, jnp.ones(4))
            return belief, estimator.posterior.variances(belief)

        return jax.lax.scan(step, estimator.init(jnp.zeros(16)), xs)[1]

    seen = np.asarray(run(jnp.asarray(xs, "float32")))
    assert (seen <= variances * (1 + 1e-5)).all()
    assert (seen[19, 3:] < 0.9 * variances[3:]).all()
    assert (seen[-1, 3:9] > seen[19, 3:9]).all()  # forgotten again


def test_the_unscented_filter_takes_all_of_a_mini_batch() -> None:
    """Of a linear function the filter is Bayesian regression, whatever the number of observations."""
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(size=(3, 2)), rng.normal(size=3)
    estimator = estimator_of("ktd_q", observation_noise=0.5, prior_covariance=2.0)

    @jax.jit
    def update(xs: jax.Array, ys: jax.Array, active: jax.Array) -> Any:
        before = estimator.init(jnp.zeros(2))
        belief, fit = estimator.update(before, lambda theta, x: theta @ x, xs, ys, active)
        return before, belief, fit, estimator.posterior.covariance(belief)

    _, belief, fit, covariance = update(jnp.asarray(xs, "float32"), jnp.asarray(ys, "float32"), True)
    expected = np.linalg.inv(np.eye(2) / 2.0 + xs.T @ xs / 0.5)
    np.testing.assert_allclose(covariance, expected, rtol=1e-4)
    np.testing.assert_allclose(belief.theta, expected @ xs.T @ ys / 0.5, rtol=1e-4)
    # The innovations, each from what the observations before it left.
    mean, P, innovations, variances = np.zeros(2), 2.0 * np.eye(2), [], []
    for x, y in zip(xs, ys, strict=True):
        innovations.append(y - x @ mean)
        variances.append(x @ P @ x + 0.5)
        gain = P @ x / variances[-1]
        mean, P = mean + gain * innovations[-1], P - np.outer(gain, x @ P)
    assert fit.loss == pytest.approx(0.5 * np.mean(np.square(innovations)), rel=1e-4)
    assert fit.health.variance == pytest.approx(min(variances), rel=1e-4)
    assert fit.health.consistency == pytest.approx(np.mean(np.square(innovations) / variances), rel=1e-4)
    assert fit.health.gain == pytest.approx(1 - np.mean(0.5 / np.array(variances)), rel=1e-4)
    before, still, *_ = update(jnp.asarray(xs, "float32"), jnp.asarray(ys, "float32"), False)
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(still), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ktd_refuses_noise_below_zero() -> None:
    with pytest.raises(DeeprokError, match=r"process_noise is -1\.0"):
        make_config("ktd_q", "tuned", process_noise=-1.0)


# --- agents ----------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_the_step_to_be_taken() -> None:
    config = make_config("dqn", "tuned", hidden=(1,), epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=4)
    agent = config.make_learner()
    coins = np.array([0.99, 0.74, 0.51, 0.49, 0.01, 0.24, 0.26])
    steps = np.array([0, 1, 2, 2, 4, 3, 3])

    @jax.jit
    def act() -> jax.Array:
        state, draw = agent.init(jax.random.key(0)), agent.draw(jax.random.key(1))
        # Weights that prefer action 0, and a random action that would be 1.
        theta = jnp.zeros(agent.view.network.num_weights).at[-2].set(1.0)
        state = dataclasses.replace(state, belief=make_estimator(config.task()).init(theta))

        def one(coin: jax.Array, t: jax.Array) -> jax.Array:
            explored = dataclasses.replace(draw, explore=jnp.array([coin, 0.9]))
            return agent.act(state, explored, jnp.zeros(4), Clock(t, 0.0))[0]

        return jax.vmap(one)(coins, steps)

    np.testing.assert_array_equal(act(), coins < 1 - steps / 4)


def targets(config: Config, times: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """The target of a step that earns 0, 1, 2 or 3, with nothing to come, at these times and gains of the filter."""
    agent = config.make_learner()
    row = replay.empty(4, 4, 1).at[0, 5:9].set(jnp.arange(4.0))

    @jax.jit
    def losses() -> jax.Array:
        state, draw = agent.init(jax.random.key(0)), agent.draw(jax.random.key(1))
        flat = jnp.zeros(agent.view.network.num_weights)
        state = dataclasses.replace(state, belief=make_estimator(config.task()).init(flat), target=flat, memory=row)

        def one(t: jax.Array, gains: jax.Array) -> jax.Array:
            return agent.learn(dataclasses.replace(state, gains=gains), draw, Clock(t, 0.0), jnp.array(True))[1].loss

        return jax.vmap(one)(times, gains)

    return np.sqrt(2 * np.asarray(losses()))


# The mean of the worst share of 0, 1, 2 and 3, which goes from all of them to a quarter.
LEVELS: dict[str, Any] = dict(
    **dict(hidden=(1,), covariance="diagonal", batch_size=1, replay_size=1, models=4),
    **dict(robust_set="cvar", level_start=1.0, robust_level=0.25, level_steps=30),
)


def test_the_robustness_level_goes_linearly_in_time() -> None:
    times = np.array([0, 10, 20, 30, 40])
    found = targets(make_config("deep_rok", "tuned", **LEVELS, confidence="time"), times, np.zeros((5, 0)))
    np.testing.assert_allclose(found, [1.5, 1.0, 0.5, 0.0, 0.0], atol=1e-5)


def test_the_robustness_level_follows_the_gain() -> None:
    gains = np.array([[0.0, 0.0], [0.6, 0.6], [0.6, 0.4], [0.6, 0.2], [0.6, 0.0], [0.6, 0.9]])
    found = targets(make_config("deep_rok", "tuned", **LEVELS, confidence="spread"), np.full(6, 200), gains)
    np.testing.assert_allclose(found, [1.5, 1.5, 1.0, 0.5, 0.0, 1.5], atol=1e-5)


# --- the scan --------------------------------------------------------------------------------------------


def test_one_of_the_models_is_acted_on_with_the_chance_that_labels_share(train, probes) -> None:
    """In a random walk each model's outcome is its own multiple of one random number."""
    config = make_config(
        "rtd_dqn",
        "tuned",
        **dict(env="drift", horizon=2, acting="member", fixed_models="size=0.5;size=1;size=2"),
        **dict(hidden=(1,), batch_size=1, replay_size=120, chunk_steps=120, snapshot_every=0),
    )
    memory = train(config).last.agent.memory[0]
    steps = jax.tree.map(np.asarray, replay.unpack(jnp.asarray(memory), 1))
    outcomes, happened = steps.next_obs[0::2, :, 0], steps.obs[1::2]
    as_model = np.isclose(outcomes, happened, rtol=1e-5, atol=0)
    np.testing.assert_array_equal(as_model.sum(axis=1), 1)
    assert as_model.sum(axis=0).min() >= 10  # of 60 episodes, 20 each on average


# --- policies --------------------------------------------------------------------------------------------


@pytree_dataclass
class Patience:
    late: Any = quantity(0.5, "", "above 1 the reward comes at the end, and twice as large")


def patience(horizon: int = 4) -> Environment:
    def reset(key: jax.Array, params: Patience) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Patience) -> Outcome:
        reward = jnp.where(params.late > 1, 2.0 * (state == horizon - 1), 1.0 * (state == 0))
        return Outcome(state=state + 1, obs=jnp.ones(1), reward=reward, terminated=jnp.array(False))

    return Environment(
        "patience", reset, step, Patience(), {"late": (0.5, 1.5)}, (1.0,), Choices(("a", "b")), horizon, 0.0
    )


def test_the_worst_trajectories_are_those_of_discounted_returns_judged_by_the_last_baseline(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discounted by ½, a late 2 is worth ¼ and an early 1 is worth 1. The first baseline is 0 everywhere."""
    monkeypatch.setitem(ENVIRONMENTS._entries, "patience", part_of(patience))
    config = make_config(
        "epopt",
        "tuned",
        **dict(env="patience", acting="member", fixed_models="late=0.5;late=1.5", discount=0.5, horizon=4),
        **dict(trajectories=4, trajectory_level=0.5, level_iterations=0, epochs=1, minibatches=1),
        **dict(hidden=(1,), snapshot_every=0),
    )
    first, second = (float(log.fit.loss[0, 0]) for log in train(config, chunks=2).logs)
    to_come = np.array([0.25, 0.5, 1.0, 2.0])
    assert first == pytest.approx(0.5 * np.mean(to_come**2), rel=1e-4)
    assert second < 0.01 * first  # by then the baseline has seen such trajectories


# --- calibration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acting", "low", "high"), [("nominal", 1.99, 2.01), ("sampled", 0.99, 1.51)])
def test_calibration_knows_what_the_run_acted_on(probes, acting: str, low: float, high: float) -> None:
    """With a discount of ½ steps that never end are worth 2; where they end after one or two, 1 or 1.5 at most."""
    config = make_config(
        "ekf_dqn",
        "tuned",
        **dict(env="treadmill", acting=acting, box="lifetime=1:2", horizon=3, discount=0.5),
        **dict(hidden=(1,), covariance="diagonal"),
    )
    view = config.make_learner().view
    intervals = calibration.make_intervals(config, view, states=4, models=3, seed=0)
    truth = intervals(make_estimator(config.task()).init(jnp.zeros(view.network.num_weights)), 0.0).truth
    assert truth.shape == (4, 2)
    assert low < truth.min() <= truth.max() < high


# --- exams and results -----------------------------------------------------------------------------------


def scores_of(returns: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> exam.Scores:
    """What an exam makes of such returns [cells, episodes]."""
    monkeypatch.setattr(exam, "cell_player", lambda *_: lambda weights, cells, epsilon: returns)
    examine = exam.make_examiner(
        make_config("dqn", "tuned").make_env(), lambda weights: None, exam.Exam(grid=returns.shape[1])
    )
    return examine(None)


def test_success_is_above_the_threshold_and_errors_are_of_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    threshold = make_config("dqn", "tuned").make_env().success_return
    returns = np.full((50, 4), threshold)
    returns[:7] += 1.0
    scores = scores_of(returns, monkeypatch)
    assert scores["success"] == pytest.approx(7 / 49)
    # Every cell says the same in each of its episodes, so that all is known of the mean over cells.
    assert scores["return_error"] == scores["success_error"] == 0.0
    assert scores["nominal_success"] == 0.0

    rng = np.random.default_rng(0)
    means, spreads = rng.uniform(0, 200, 50), rng.uniform(1, 20, 50)
    many = means[:, None] + spreads[:, None] * rng.normal(size=(50, 4000))
    error = scores_of(many, monkeypatch)["return_error"]
    assert error == pytest.approx(np.sqrt(np.sum(spreads[:49] ** 2) / 4000) / 49, rel=0.02)


def test_the_deviation_over_all_episodes_has_that_between_seeds() -> None:
    rng = np.random.default_rng(0)
    episodes = rng.normal(size=(3, 2, 5)) + np.array([0.0, 3.0, 10.0])[:, None, None]  # seeds, lengths, episodes
    whole = dict(success=0.5, success_error=0.1, nominal_return=1.0, cell_success=[[0.5]], cell_return=[[1.0]])
    whole |= {"return": 1.0, "return_error": 0.1}
    scores = {
        seed: {**whole, "length_return": own.mean(axis=1).tolist(), "length_deviation": own.std(axis=1).tolist()}
        for seed, own in enumerate(episodes)
    }
    lengths = results.summarise(scores, scores[0], "")["lengths"]
    np.testing.assert_allclose(lengths["mean"], episodes.mean(axis=(0, 2)))
    np.testing.assert_allclose(lengths["deviation"], episodes.std(axis=(0, 2)))


# --- schedules of a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [dict(steps=40), dict(episodes=8), dict(steps=40, episodes=20)], ids=str)
def test_the_level_follows_the_progress_of_the_run(
    train, build, probes, monkeypatch: pytest.MonkeyPatch, budget: dict[str, int]
) -> None:
    """A set whose worst case is its level, and weights that stay at 0: the loss of an update is level² / 2."""
    told = AmbiguitySet(lambda p, values, level: WorstCase(level + 0 * p[0], p), radius_check("told"), 0.0, "support")
    monkeypatch.setitem(SETS._entries, "told", told)
    config = make_config(
        "rtd_dqn", "tuned", env="treadmill", input_scale=(1.0,), hidden=(2,), horizon=5, models=2, batch_size=2,
        warm_up=0, chunk_steps=40, snapshot_every=0, optimizer="sgd", learning_rate=1e-30, robust_set="told",
        robust_level=0.2, confidence="time", level_start=1.0, level_fraction=0.6, box="lifetime=100:200", **budget,
    )  # fmt: skip
    built = build(config)
    start = built.start(jnp.zeros(1, int))
    belief = dataclasses.replace(start.agent.belief, theta=jnp.zeros_like(start.agent.belief.theta))
    state = dataclasses.replace(
        start, agent=dataclasses.replace(start.agent, belief=belief, target=jnp.copy(belief.theta))
    )
    after, log = built.program.advance(state, 0)
    steps = np.arange(40)
    # Each episode has five steps; of two budgets the one that is further used up counts.
    used = [steps / budget.get("steps", np.inf), steps // 5 / budget.get("episodes", np.inf)]
    expected = 1.0 - 0.8 * np.minimum(1.0, np.maximum(*used) / 0.6)
    np.testing.assert_allclose(np.sqrt(2 * log.fit.loss[0]), expected, rtol=1e-5)
    assert (int(after.steps[0]), int(after.episodes[0])) == (40, 8)


ENDS = np.float32([5.0, 20.0])


@pytest.mark.parametrize(("algorithm", "acting"), [("ddqn_dr", "sampled"), ("rtd_dqn", "member")])
def test_episodes_are_on_models_at_the_edges(build, probes, algorithm: str, acting: str) -> None:
    config = make_config(
        algorithm, "tuned", env="treadmill", input_scale=(1.0,), hidden=(2,), episodes=1, horizon=5, models=3,
        edges=0.6, acting=acting,
    )  # fmt: skip
    episode = build(config).start(jnp.arange(400)).episode
    drawn = [episode.acting["lifetime"], *episode.models.values()]
    assert len(drawn) == 1 + config.robust
    for values in drawn:
        for end in ENDS:
            assert np.mean(np.asarray(values) == end) == pytest.approx(0.3, abs=0.07)


def test_trajectories_are_on_models_at_the_edges(train, probes) -> None:
    """An episode lasts as long as the model says: 5 steps only at the lower end, and more than 19 above that."""
    config = make_config(
        "pg", "tuned", env="treadmill", input_scale=(1.0,), hidden=(2,), horizon=25, trajectories=400, minibatches=1,
        epochs=1, episodes=400, snapshot_every=0, edges=0.6,
    )  # fmt: skip
    lengths = train(config).logs[0].earned[0, 0]
    assert np.mean(lengths == 5) == pytest.approx(0.3, abs=0.07)
    assert np.mean(lengths == 20) == pytest.approx(0.3 + 0.4 / 15, abs=0.07)
