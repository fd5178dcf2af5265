from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import probe_envs
import pytest
from scipy.stats import binomtest

from deeprok.agents.learner import View
from deeprok.agents.network import MLP
from deeprok.agents.replaying import make_estimator
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.environments import Choices, Environment, cartpole, with_model
from deeprok.environments.base import Model
from deeprok.estimators import (
    ChainBelief,
    GaussianBelief,
    MeanFieldBelief,
    UnscentedBelief,
    bayes_by_backprop,
    block,
    diagonal,
    ekf,
    full,
    low_rank,
    psgld,
    ukf,
)
from deeprok.estimators.covariance import BlockDiagonal, Diagonal, LowRank
from deeprok.evaluation import grid as evaluation
from deeprok.evaluation.grid import GridTest, evaluate
from deeprok.evaluation.play import cell_player, grid_cells, play_episodes
from deeprok.evaluation.policies import ensemble_policy, weights_policy
from deeprok.evaluation.predictive import q_distribution
from deeprok.evaluation.report import print_evaluation
from deeprok.evaluation.result import Evaluation, GridReturns, merge, summarise, wilson
from deeprok.evaluation.stored import file_name, read, read_stored
from deeprok.evaluation.trained import load
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.best import Best
from deeprok.training.scan import make_program

CHOICES = Choices(("left", "right"))

#: The paper's grid.
PAPER_GRID = "pole_length=0.2:1.4:7,cart_mass=0.1:7:7"

#: a = 1{w·s > 0}, which succeeds on 94 % of the paper's grid at ε = 0.1.
LINEAR = (0.0217, 0.0464, 1.0, 0.1881)
#: Weights of a 4-1-2 network: Q = (−tanh(w·s), tanh(w·s)) acts as that policy.
GOOD = np.array([*LINEAR, 0.0, -1.0, 1.0, 0.0, 0.0], np.float32)
#: The same network, always left.
LEFT = np.array([0.0] * 7 + [1.0, 0.0], np.float32)
TINY: dict[str, Any] = dict(hidden=(1,), input_scale=(1.0,) * 4, episodes=3)


def write_run(
    folder: Path, algorithm: str = "rtd_dqn", best: Any = GOOD, last: Any = LEFT, spread: float = 1e-10, **changes: Any
) -> Path:
    """A finished run with the given weights."""
    prior = {"prior_covariance": spread} if algorithm in ("ekf_dqn", "deep_rok") else {}
    config = make_config(algorithm, "tuned", **TINY | prior | changes)
    runs.create(folder, config)
    with config.arithmetic():
        program = make_program(config)
        run = program.init(jax.random.key(config.seed))

        def belief(theta: Any) -> Any:
            return make_estimator(config.task()).init(jnp.asarray(theta, config.precision))

        run = dataclasses.replace(
            run,
            agent=dataclasses.replace(run.agent, belief=belief(last)),
            episodes=np.int32(config.episodes),
            steps=np.int32(60),
        )
        score = np.dtype(config.precision).type(100 + config.seed)
        kept = Best(belief=belief(best), trial_return=score, steps=np.int32(40), progress=run.held)
        checkpoint.save(folder / runs.CHECKPOINT, {"run": run, "best": kept})
    line = {"steps": 60, "episodes": 3, "returns": [20.0] * 3, "epsilon": 1.0, "seconds": 1.0, "trial_return": 100.0}
    runs.append_metrics(folder, line)
    return folder


def linear(obs: jax.Array) -> jax.Array:
    return (obs @ jnp.asarray(LINEAR) > 0).astype(int)


def models(episodes: int, **values: float) -> Model:
    return {name: jnp.full(episodes, value) for name, value in values.items()}


def played_one_by_one(env: Environment, act: Any, models: Model, key: jax.Array, epsilon: float) -> list[float]:
    """Each episode in a plain loop, with the draws that `play_episodes` makes."""
    episodes = len(next(iter(models.values())))
    reset_key, explore_key, env_key = jax.random.split(key, 3)
    reset_keys = jax.random.split(reset_key, episodes)
    explore = jax.random.uniform(explore_key, (env.horizon, episodes, 2))
    step = jax.jit(env.step)
    returns = []
    for e in range(episodes):
        params = with_model(env.nominal, {name: values[e] for name, values in models.items()})
        state, obs = env.reset(reset_keys[e], params)
        earned = 0.0
        for t in range(env.horizon):
            action = env.actions.explore(explore[t, e], epsilon, act(obs[None])[0])
            outcome = step(jax.random.split(jax.random.fold_in(env_key, t), episodes)[e], state, action, params)
            state, obs = outcome.state, outcome.obs
            earned += float(outcome.reward)
            if outcome.terminated:
                break
        returns.append(earned)
    return returns


def test_episodes_equal_a_plain_loop() -> None:
    env = cartpole(horizon=30)
    physics = {"pole_length": jnp.array([0.2, 0.5, 1.4]), "cart_mass": jnp.array([0.1, 1.5, 0.1])}
    play = jax.jit(lambda key, epsilon: play_episodes(env, linear, physics, key, epsilon))
    for epsilon, seed in ((0.0, 1), (0.8, 2)):
        key = jax.random.key(seed)
        returns = play(key, epsilon)
        assert returns.tolist() == played_one_by_one(env, linear, physics, key, epsilon)
        assert epsilon == 0 or returns.min() < 30


def test_noisy_env_equals_a_plain_loop() -> None:
    env, key = probe_envs.drift(horizon=5), jax.random.key(3)

    def first(obs: jax.Array) -> jax.Array:
        return jnp.zeros(len(obs), int)

    physics = {"size": jnp.array([1.0, 2.0, 0.5])}
    returns = play_episodes(env, first, physics, key, 0.5)
    np.testing.assert_allclose(returns, played_one_by_one(env, first, physics, key, 0.5), rtol=1e-5)
    assert len(set(np.abs(returns).tolist())) == 3


def test_cut_off_at_the_horizon() -> None:
    returns = play_episodes(cartpole(), linear, models(20, cart_mass=1.5), jax.random.key(0), 0.0)
    assert returns.tolist() == [200.0] * 20


def test_an_ended_episode_earns_nothing_more() -> None:
    env = cartpole(failing_reward=-7.0)
    left = play_episodes(env, lambda obs: jnp.zeros(len(obs), int), models(5, cart_mass=1.0), jax.random.key(0), 0)
    assert left.max() < 12 - 7  # the failure counts once
    assert left.min() > 5 - 7


@jax.jit
def random_play(models: Model) -> jax.Array:
    return play_episodes(cartpole(), linear, models, jax.random.key(0), 1.0)


RANDOM_PLAY = {"worst": (0.2, 0.1, 3.0, 5.0), "best": (1.4, 7.0, 62.0, 72.0)}


@pytest.mark.parametrize(("length", "mass", "low", "high"), RANDOM_PLAY.values(), ids=RANDOM_PLAY)
def test_random_play(length: float, mass: float, low: float, high: float) -> None:
    physics = models(1500, pole_length=length, cart_mass=mass)
    assert low < float(random_play(physics).mean()) < high


ENSEMBLE = {  # three members, two states: member -> state -> Q
    "q": [[[1.0, 0.0], [0.0, 5.0]], [[1.0, 0.0], [1.0, 0.0]], [[0.0, 9.0], [1.0, 0.0]]],
    "vote": [0, 0],
    "mean_q": [1, 1],
}


def hand_made() -> tuple[MLP, jax.Array, jax.Array]:
    """A network whose Q-values in the states ±1 are those of the table, and its members' weights."""
    network = MLP((1, 2, 2), "relu", (1.0,))
    thetas = []
    for plus, minus in ENSEMBLE["q"]:  # hidden units are max(x, 0) and max(−x, 0)
        thetas.append([1.0, -1.0, 0.0, 0.0, *plus, *minus, 0.0, 0.0])
    return network, jnp.array(thetas), jnp.array([[1.0], [-1.0]])


def test_hand_made_members() -> None:
    network, thetas, states = hand_made()
    np.testing.assert_allclose(jax.vmap(network.apply, (0, None))(thetas, states), np.array(ENSEMBLE["q"]))


@pytest.mark.parametrize("kind", ["vote", "mean_q"])
def test_members_that_disagree(kind: Any) -> None:
    network, thetas, states = hand_made()
    assert ensemble_policy(network, CHOICES, thetas, kind)(states).tolist() == ENSEMBLE[kind]


@pytest.mark.parametrize("kind", ["mean", "vote", "mean_q", "sample"])
def test_one_member_is_greedy(kind: Any) -> None:
    network, thetas, states = hand_made()
    for theta, q in zip(thetas, ENSEMBLE["q"], strict=True):
        assert ensemble_policy(network, CHOICES, theta[None], kind)(states).tolist() == np.argmax(q, axis=1).tolist()


def test_equal_votes_go_to_the_first_action() -> None:
    network, thetas, states = hand_made()
    assert ensemble_policy(network, CHOICES, thetas[1:], "vote")(states).tolist() == [0, 0]


# --- what a posterior says of Q -----------------------------------------------------------------------------------

SMALL = MLP((3, 4, 2), "elu", (1.0, 0.5, -2.0))
N = SMALL.num_weights


def some_posterior(kind: str, theta: np.ndarray, root: np.ndarray) -> tuple[Any, Any, np.ndarray]:
    """An estimator, a belief around theta that is no multiple of the identity, and its covariance."""
    one, P = np.int32(1), root @ root.T
    if kind == "ktd":
        S = np.tril(root)
        return ukf(), UnscentedBelief(theta, S, None, one), S @ S.T
    if kind == "psgld":
        rows = np.stack([root[0], root[1], 3 * theta - root[0] - root[1], 0 * theta])  # three are kept; their mean is θ
        kept = ChainBelief(theta, theta, rows, np.zeros(2, "uint32"), np.int32(3))
        return psgld(members=4, burn_in=0, thinning=1), kept, np.cov(rows[:3].T, bias=True)
    if kind == "backprop":
        belief = MeanFieldBelief(theta, root[0], None, np.zeros(2, "uint32"), one)
        return bayes_by_backprop(), belief, np.diag(np.logaddexp(root[0], 0.0) ** 2)
    if kind == "diagonal":
        kept, P = Diagonal(variances=root[0] ** 2), np.diag(root[0] ** 2)
    elif kind == "low_rank":
        kept = LowRank(precision=root[0] ** 2, factor=root[1:3])
        P = np.linalg.inv(np.diag(root[0] ** 2) + root[1:3].T @ root[1:3])
    else:
        parts = {"full": (slice(0, N),), "layer": SMALL.slices, "neuron": SMALL.neurons}[kind]
        groups = [[P[part, part] for part in same] for _, same in itertools.groupby(parts, lambda s: len(range(N)[s]))]
        kept = BlockDiagonal(groups=tuple(np.stack(group) for group in groups))
        places = np.arange(N)
        P = P * sum(np.isin(places[:, None], places[part]) * np.isin(places, places[part]) for part in parts)
    structures = {"diagonal": diagonal, "low_rank": low_rank(2), "full": full}
    structures |= {"layer": block(*SMALL.slices), "neuron": block(*SMALL.neurons)}
    return ekf(covariance=structures[kind]), GaussianBelief(theta, kept, np.float64(1.0), one), P


@pytest.mark.parametrize("kind", ["full", "layer", "neuron", "diagonal", "low_rank", "backprop", "psgld", "ktd"])
def test_deviations_of_many_states_are_those_of_the_gradients(x64, kind: str) -> None:
    rng = np.random.default_rng(0)
    theta, root, obs = rng.normal(size=N), rng.normal(size=(N, N)), rng.normal(size=(5, 3))

    def q(theta: np.ndarray) -> np.ndarray:
        return np.array([oracles.mlp(theta, SMALL.sizes, "elu", np.array(SMALL.input_scale), x) for x in obs])

    g = np.array([(q(theta + step) - q(theta - step)) / 2e-6 for step in 1e-6 * np.eye(N)])  # [n, E, A]
    estimator, belief, P = some_posterior(kind, theta, root)
    mean, deviation = jax.jit(
        lambda belief: q_distribution(View(None, SMALL, estimator.mean, estimator.posterior, None), belief)(obs)
    )(belief)
    np.testing.assert_allclose(mean, q(theta), rtol=1e-10)
    np.testing.assert_allclose(deviation**2, np.einsum("nea,nm,mea->ea", g, P, g), rtol=1e-6)


@pytest.mark.parametrize(("won", "trials"), [(0, 10), (10, 10), (3, 10), (94, 100), (499, 500), (1, 1)])
def test_wilson(won: int, trials: int) -> None:
    expected = binomtest(won, trials).proportion_ci(0.95, method="wilson")
    low, high = wilson(np.array([won]), trials)
    np.testing.assert_allclose([low[0], high[0]], [expected.low, expected.high], rtol=1e-9, atol=1e-12)
    assert (low[0] == 0) == (won == 0)  # not 3e-18
    assert (high[0] == 1) == (won == trials)


def play_grid(axes: dict[str, Any], episodes: int, env: Environment | None = None, **options: Any) -> Any:
    network = MLP((4, 1, 2), "tanh", (1.0,) * 4)
    env = env or cartpole(horizon=60)
    cells = grid_cells(env, {n: np.array(v) for n, v in axes.items()})
    returns = cell_player(env, weights_policy(network, CHOICES, "mean"), episodes)(GOOD[None], cells, 0.5, **options)
    return GridReturns(returns[:-1], returns[-1])


def test_same_random_numbers_in_every_cell() -> None:
    env = cartpole(horizon=60)

    def weightless(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        return env.step(key, state, action, dataclasses.replace(params, gravity=9.8))

    played = play_grid({"gravity": [1.0, 9.8, 20.0]}, 30, env._replace(step=weightless))
    assert played.cells.shape == (3, 30)
    assert len(set(played.cells[0])) > 5
    for cell in played.cells:
        np.testing.assert_array_equal(cell, played.nominal)


def test_cells_in_several_groups() -> None:
    # 2000 episodes: two cells at a time, and the last of five is alone.
    axes, shares = {"pole_length": [0.2, 1.4], "cart_mass": [0.1, 7.0]}, []
    played = play_grid(axes, 2000, seed=4, advance=shares.append)
    assert shares == [pytest.approx(1 / 3)] * 3
    alone = jax.jit(lambda physics: play_episodes(cartpole(horizon=60), linear, physics, jax.random.key(4), 0.5))
    cells = [(0.2, 0.1), (0.2, 7.0), (1.4, 0.1), (1.4, 7.0), (0.5, 1.5)]
    for (length, mass), returns in zip(cells, [*played.cells, played.nominal], strict=True):
        physics = models(2000, pole_length=length, cart_mass=mass)
        # Rounding may turn single episodes.
        assert np.mean(np.asarray(alone(physics)) != returns) < 0.01


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds: one that is good at its best, and one that never is."""
    folder = tmp_path_factory.mktemp("seeds")
    write_run(folder / "seed-0", seed=0)
    write_run(folder / "seed-1", seed=1, best=LEFT)
    return folder


def test_linear_policy_on_the_papers_grid(tmp_path: Path) -> None:
    result = evaluate(write_run(tmp_path / "run"), episodes=50)
    assert list(result.grid) == ["pole_length", "cart_mass"]
    np.testing.assert_allclose(result.grid["pole_length"], [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4])
    np.testing.assert_allclose(result.grid["cart_mass"], [0.1, 1.25, 2.4, 3.55, 4.7, 5.85, 7.0])
    assert result.overall.success == pytest.approx(0.94, abs=0.015)
    assert result.nominal.success > 0.97
    assert result.nominal.mean_return > 195
    success = np.array(result.success)
    assert success.shape == (7, 7)
    assert success[0, 0] < 0.05  # a short pole on a light cart
    assert success[1:, 1:].min() > 0.9
    assert (result.epsilon, result.policy, result.members, result.keep) == (0.1, "mean", 1, "best")


@pytest.fixture(scope="module")
def two_seeds(seeds: Path) -> tuple[Any, dict[int, Any]]:
    """An evaluation of both seeds, and each run's own `evaluation.json`."""
    result = evaluate(seeds, "pole_length=0.5:1.5:3,cart_mass=1.5:7:2", episodes=40, save=True)
    written = [json.loads((seeds / f"seed-{s}" / result.file).read_text()) for s in (0, 1)]
    return result, dict(enumerate(written))


def test_scores_of_seeds_agree(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    result, written = two_seeds
    assert [one.seed for one in result.per_seed] == [0, 1]
    for field in ("mean_return", "success"):
        cells = np.array([getattr(one, field) for one in result.per_seed])
        assert cells.shape == (2, 3, 2)
        np.testing.assert_allclose(cells.mean(axis=0), getattr(result, field))
        np.testing.assert_allclose(cells.mean(axis=(1, 2)), [getattr(one.overall, field) for one in result.per_seed])
        np.testing.assert_allclose(cells.mean(), getattr(result.overall, field))
        nominal = [getattr(one.nominal, field) for one in result.per_seed]
        np.testing.assert_allclose(np.mean(nominal), getattr(result.nominal, field))
    good, bad = result.per_seed
    assert good.overall.success > 0.9
    assert bad.overall.mean_return < 60
    assert bad.overall.success == 0
    # Two seeds of which one is good and one is bad differ more than the episodes of either.
    assert np.min(result.std_return) > max(np.max(good.std_return), np.max(bad.std_return))
    assert written[0]["per_seed"] == result.to_dict()["per_seed"][:1]


def test_intervals_hold_the_successes(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    result, _ = two_seeds
    success = np.array(result.success)
    low, high = wilson(success * 80, 80)
    np.testing.assert_allclose(result.success_low, low)
    np.testing.assert_allclose(result.success_high, high)
    assert (low < success).all()
    assert (success < high).all()


def test_each_run_keeps_its_own(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    result, written = two_seeds
    for seed, found in written.items():
        one = result.per_seed[seed]
        assert found["mean_return"] == one.mean_return.tolist()
        assert found["success"] == one.success.tolist()
        assert found["overall"] == dataclasses.asdict(one.overall)
        assert set(found) == set(result.to_dict())


def test_object_has_the_promised_keys(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    found = json.loads(json.dumps(two_seeds[0].to_dict()))
    assert {"algorithm", "grid", "mean_return", "success", "per_seed", "overall", "nominal"} <= set(found)
    assert found["algorithm"] == "rtd_dqn"
    assert found["grid"] == {"pole_length": [0.5, 1.0, 1.5], "cart_mass": [1.5, 7.0]}
    for scores in (found["overall"], found["nominal"]):
        assert set(scores) == {"mean_return", "success"}
    for one in found["per_seed"]:
        assert {"seed", "mean_return", "success", "overall", "nominal"} <= set(one)


# The next tests play as many cells and episodes, so that they share one compiled program.


def test_nominal_is_the_nominal_cell(seeds: Path) -> None:
    result = evaluate(seeds / "seed-0", "pole_length=0.5,cart_mass=1.5:7:2", episodes=20, epsilon=0.6, keep="best")
    assert result.mean_return[0, 0] == result.nominal.mean_return
    assert result.success[0, 0] == result.nominal.success
    assert 0 < result.nominal.success < 1


def test_last_weights(seeds: Path) -> None:
    result = evaluate(seeds / "seed-0", "cart_mass=1.5:2:2", episodes=20, epsilon=0.0, keep="last")
    assert result.keep == "last"
    assert result.overall.mean_return < 15  # always left


def test_nominal_parameters_are_the_runs_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", nominal="force=1")
    weak = evaluate(run, "force=1:10:2", episodes=20, epsilon=0.0)
    assert weak.nominal.mean_return == weak.mean_return[0]


@pytest.fixture(scope="module")
def posterior(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Evaluations of a Kalman agent with a certain spread of its weights."""
    folder = tmp_path_factory.mktemp("posterior")
    for name, spread in (("narrow", 1e-10), ("wide", 1.0)):
        write_run(folder / name, "deep_rok", spread=spread)
    return lambda name, **options: evaluate(folder / name, "cart_mass=0.5:7:2", episodes=20, epsilon=0.3, **options)


@pytest.mark.parametrize("policy", ["vote", "mean_q"])
def test_narrow_ensemble_acts_as_its_mean(posterior, policy: str) -> None:
    mean, ensemble = posterior("narrow"), posterior("narrow", policy=policy, members=3)
    assert (ensemble.policy, ensemble.members, ensemble.episodes) == (policy, 3, 20)
    np.testing.assert_allclose(ensemble.mean_return, mean.mean_return, rtol=0.02)


def test_sample_tests_each_member_alone(posterior) -> None:
    mean, sample = posterior("wide"), posterior("wide", policy="sample", members=5)
    assert (sample.policy, sample.members, sample.episodes) == ("sample", 5, 20)
    assert sample.overall.mean_return < mean.overall.mean_return - 10  # some members are bad


def test_point_agent_has_no_ensemble(seeds: Path) -> None:
    for policy in ("vote", "mean_q", "sample"):
        with pytest.raises(DeeprokError, match=f"policy is {policy}, but rtd_dqn has no posterior"):
            evaluate(seeds, policy=policy)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no episodes": (dict(episodes=0), "episodes is 0"),
    "no members": (dict(members=0), "members is 0"),
    "epsilon": (dict(epsilon=1.5), "epsilon is 1.5"),
    "undefined epsilon": (dict(epsilon=float("nan")), "epsilon is nan"),
    "policy": (dict(policy="median"), "unknown policy 'median'.*mean"),
    "keep": (dict(keep="first"), "unknown keep 'first'.*last"),
    "grid": (dict(grid="pole_length"), "can't be read"),
    "no grid": (dict(grid=""), "can't be read"),
    "name": (dict(grid="pole_lenght=1:2:3"), "did you mean 'pole_length'"),
    "mass": (dict(grid="cart_mass=0:2:3"), "cart_mass the value 0"),
    "reversed": (dict(grid="cart_mass=3:2:3"), "reversed"),
    "points": (dict(grid="cart_mass=1:2:1"), "at least 2"),
    "sensor noise": (dict(sensor_noise=-0.1), "sensor_noise is -0.1; it must be a number of at least 0"),
    "undefined sensor noise": (dict(sensor_noise=float("nan")), "sensor_noise is nan"),
    "action delay": (dict(action_delay=101), "action_delay is 101; it must be a whole number from 0 to 100"),
    "half a delay": (dict(action_delay=0.5), "action_delay is 0.5"),
    "noisy name": (dict(parameter_noise="forse=0.1"), "parameter_noise.*did you mean 'force'"),
    "noise": (dict(parameter_noise={"force": -0.1}), "parameter_noise gives force the deviation -0.1, which must be"),
    "no noise": (dict(parameter_noise="force"), "parameter_noise: 'force' can't be read; the form is name=deviation"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    run = write_run(tmp_path / "run", "deep_rok")
    with pytest.raises(DeeprokError, match=message):
        evaluate(run, **options)
    assert not (run / runs.EVALUATION).exists()


def test_runs_of_different_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "seed-0")
    write_run(tmp_path / "seed-1", seed=1, discount=0.5)
    with pytest.raises(DeeprokError, match="differ in more than their seed"):
        evaluate(tmp_path)


def test_one_damaged_seed_leaves_the_others(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    (tmp_path / "seed-1" / runs.CHECKPOINT).write_bytes(b"")
    with pytest.raises(DeeprokError, match="damaged"):
        evaluate(tmp_path, "cart_mass=1", episodes=2)
    assert not (tmp_path / "seed-0" / runs.EVALUATION).exists()


def test_seeds_are_found_in_order(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        runs.create(tmp_path / f"seed-{seed}", make_config("ddqn", "tuned", seed=seed))
    assert [path.name for path in runs.find(tmp_path)] == ["seed-0", "seed-2", "seed-10"]


def test_summary_of_known_returns() -> None:
    env = cartpole()
    cells = np.array([[200.0, 195.0, 196.0, 0.0], [10.0, 20.0, 30.0, 40.0]])

    def returns(shift: float) -> GridReturns:
        return GridReturns(cells + shift, np.array([200.0, 100.0]) + shift)

    axes = {"cart_mass": np.array([1.0, 2.0])}
    result = summarise("ddqn", env, axes, {5: returns(0.0), 7: returns(-1.0)}, 0.1, "mean", 1, 0.0, "last")
    assert result.per_seed[0].success.tolist() == [0.5, 0.0]  # above 195, not at it
    assert result.per_seed[1].success.tolist() == [0.25, 0.0]
    assert result.success.tolist() == [0.375, 0.0]
    assert result.mean_return.tolist() == [147.25, 24.5]
    assert result.nominal == type(result.nominal)(149.5, 0.5)
    assert (result.episodes, result.keep) == (4, "last")
    np.testing.assert_allclose(result.std_return, np.hstack([cells, cells - 1]).std(axis=1))
    assert PAPER_GRID == "pole_length=0.2:1.4:7,cart_mass=0.1:7:7"


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations in which nothing is played: all returns are 0."""

    def player(env: Environment, policy_of: Any, episodes: int) -> Any:
        return lambda weights, cells, *_: np.zeros((len(next(iter(cells.values()))), episodes))

    monkeypatch.setattr(evaluation, "cell_player", player)


def test_the_grid_is_the_runs_own_box_by_default(unplayed, tmp_path: Path) -> None:
    own = evaluate(write_run(tmp_path / "own", box="gravity=8:12,pole_length=0.3:0.9"), episodes=2)
    assert list(own.grid) == ["gravity", "pole_length"]
    np.testing.assert_allclose(own.grid["gravity"], np.linspace(8, 12, 7))
    run = write_run(tmp_path / "run")
    papers = evaluate(run, PAPER_GRID, episodes=2)
    for name, values in evaluate(run, episodes=2).grid.items():
        np.testing.assert_array_equal(values, papers.grid[name])


KEPT: dict[str, dict[str, Any]] = {
    "evaluation.json": {},
    "evaluation-policy=lcb,kappa=2.5.json": dict(policy="lcb", kappa=2.5),
    "evaluation-policy=vote,members=3.json": dict(policy="vote", members=3),
    "evaluation-episodes=10,epsilon=0.2,keep=last,seed=4.json": dict(episodes=10, epsilon=0.2, keep="last", seed=4),
    "evaluation-pole_length=0.2-1.4-13,force=9.json": dict(grid="pole_length=0.2:1.4:13,force=9"),
    "evaluation-sensor_noise=0.1,action_delay=2,parameter_noise=force=0.3.json": dict(
        sensor_noise=0.1, action_delay=2, parameter_noise={"force": 0.3}
    ),
}


def test_answers_to_other_questions_are_kept(unplayed, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "deep_rok")
    names = [evaluate(run, **options, save=True).file for options in KEPT.values()]
    assert names == list(KEPT)
    for name, options in KEPT.items():
        found = json.loads((run / name).read_text())
        assert found["file"] == name
        assert found["policy"] == options.get("policy", "mean")
        assert found["episodes"] == options.get("episodes", 500)
        assert ("sensor_noise" in found["disturbances"]) == ("sensor_noise" in options)
    # What does not matter for an answer does not part it from the same one.
    assert evaluate(run, PAPER_GRID, kappa=7.0, members=2).file == runs.EVALUATION


def test_a_named_evaluation_is_kept_beside_the_others(unplayed, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    evaluate(run, episodes=2, save=True)
    for episodes in (3, 4):
        windy = evaluate(run, episodes=episodes, seed=5, name="windy-2.0_b", save=True)
        assert (windy.name, windy.file, windy.seed) == ("windy-2.0_b", "evaluation-windy-2.0_b.json", 5)
    evaluate(run, keep="last", save=True)
    stored = load(run).evaluations
    assert list(stored) == ["keep=last", "windy-2.0_b", "episodes=2"]  # the newest first
    assert {name: (one.episodes, one.keep) for name, one in stored.items()} == {
        "keep=last": (500, "last"),
        "windy-2.0_b": (4, "best"),
        "episodes=2": (2, "best"),
    }
    assert load(run).evaluation is None
    evaluate(run, save=True)
    assert next(iter(load(run).evaluations)) == "default"
    same(load(run).evaluations["default"], load(run).evaluation)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/tmp/a", "a b", "a=b", "a,b", "-a", "ä", "a\n", "a" * 101, "default", 3]
)
def test_names_that_are_no_words_are_refused(unplayed, tmp_path: Path, name: Any) -> None:
    run = write_run(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DeeprokError, match=r"^name is ") as said:
        evaluate(run, episodes=2, name=name, save=True)
    assert "\n" not in str(said.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_seeds_of_one_name_and_other_options_are_not_taken_together(unplayed, tmp_path: Path) -> None:
    for seed, epsilon in ((0, 0.1), (1, 0.2)):
        evaluate(write_run(tmp_path / f"seed-{seed}", seed=seed), episodes=2, epsilon=epsilon, name="x", save=True)
    with pytest.raises(DeeprokError, match="evaluated with different options"):
        read_stored([tmp_path / "seed-0", tmp_path / "seed-1"], "evaluation-x.json")


def test_the_defaults_of_a_test_are_those_of_evaluate() -> None:
    usual = {name: parameter.default for name, parameter in inspect.signature(evaluate).parameters.items()}
    for name in ("run", "advance", "save"):
        del usual[name]
    assert GridTest._field_defaults == usual


def test_the_hash_of_the_weights_tells_them_apart(unplayed, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    best, last = (evaluate(tmp_path, episodes=1, keep=keep).per_seed for keep in ("best", "last"))
    assert [one.weights for one in best] == [hashlib.sha256(GOOD.tobytes()).hexdigest()[:12]] * 2
    assert [one.weights for one in last] == [hashlib.sha256(LEFT.tobytes()).hexdigest()[:12]] * 2


# --- what users read ----------------------------------------------------------------------------------------------


def some_evaluation(seeds: Sequence[float], **axes: int) -> Evaluation:
    """What `evaluate` would give for seeds that succeed in so large a part of the cells."""
    grid = {name: np.linspace(*cartpole().box.get(name, (5.0, 15.0)), count) for name, count in axes.items()}
    count = math.prod(axes.values())
    returns = {
        seed: GridReturns(np.where(np.arange(count) < share * count, 200.0, 10.0)[:, None], np.array([200.0]))
        for seed, share in enumerate(seeds)
    }
    return summarise("deep_rok", cartpole(), grid, returns, 0.1, "mean", 1, 0.0, "best", "evaluation.json")


def printed(result: Evaluation, width: int = 80) -> list[str]:
    console = WordConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_evaluation(result, console)
    return console.file.getvalue().splitlines()


def test_wide_maps_fit_the_terminal() -> None:
    result = some_evaluation([0.5], pole_length=12, cart_mass=14)
    for width in (60, 80, 160):
        lines = printed(result, width)
        assert max(map(len, lines)) <= width
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
        # As in a figure: the first parameter goes to the right, the second one up.
        for j, mass in enumerate(result.grid["cart_mass"]):
            band = [row[1:] for row in rows if row[0] == f"{mass:.3g}"]
            assert [int(cell) for part in band for cell in part] == [100 * share for share in result.success[:, j]]
        sides = [row[0] for row in rows]
        assert sides[: len(result.grid["cart_mass"])] == [f"{mass:.3g}" for mass in result.grid["cart_mass"][::-1]]
        heads = [word for line in lines if line.startswith("┃") for word in line.split("┃")[2:-1]]
        assert [head.strip() for head in heads] == [f"{length:.3g}" for length in result.grid["pole_length"]]
        assert "success in %, pole_length → × cart_mass ↑" in lines
    assert sum("┏" in line for line in printed(result, 160)) == 1


def lines_of(lines: Sequence[str], heading: str) -> list[list[str]]:
    """The words of the line that begins so and of those below it that have no heading."""
    at = next(i for i, line in enumerate(lines) if line.startswith(heading))
    more = itertools.takewhile(lambda line: line.startswith("  "), lines[at + 1 :])
    return [line.split() for line in (lines[at].removeprefix(heading), *more)]


def test_the_worst_cells_are_named() -> None:
    result = some_evaluation([0.5, 0.9], pole_length=3, cart_mass=4)
    # The first seed fails in the last six cells, the second in the last one.
    assert result.success.tolist() == [[1.0] * 4, [1.0, 1.0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.0]]
    assert lines_of(printed(result), "worst cells") == [
        ["return", "10.0", "success", "0.0", "%", "pole_length=1.4,", "cart_mass=7"],
        ["return", "105.0", "success", "50.0", "%", "pole_length=0.8,", "cart_mass=4.7"],
        ["return", "105.0", "success", "50.0", "%", "pole_length=0.8,", "cart_mass=7"],
    ]


@pytest.mark.parametrize(("returns", "named"), [([150.0, 152.0, 154.0, 156.0], 1), ([10.0, 20.0, 200.0, 200.0], 2)])
def test_cells_that_are_hardly_worse_than_the_others_are_not_named(returns: list[float], named: int) -> None:
    played = {0: GridReturns(np.array(returns)[:, None], np.array([200.0]))}
    axes = {"cart_mass": np.arange(1.0, 5.0)}
    result = summarise("ddqn", cartpole(), axes, played, 0.1, "mean", 1, 0.0, "best")
    heading = "worst cells" if named > 1 else "worst cell "
    assert [words[-1] for words in lines_of(printed(result), heading)] == ["cart_mass=1", "cart_mass=2"][:named]


def test_map_of_one_parameter() -> None:
    lines = printed(some_evaluation([0.5], cart_mass=2))
    assert "success in %, cart_mass →" in lines
    assert "│ success   │ 100 │ 0 │" in lines


@pytest.mark.parametrize(
    ("shares", "failed"), [([1.0, 0.75, 0.25], [2]), ([0.25, 0.25, 1.0], [0, 1]), ([0.5, 0.75], []), ([0.0, 0.0], [])]
)
def test_every_seed_has_a_line_and_failed_ones_a_mark(shares: list[float], failed: list[int]) -> None:
    lines = printed(some_evaluation(shares, cart_mass=4))
    for seed, share in enumerate(shares):
        (line,) = [line for line in lines if line.startswith(f"seed {seed} ")]
        assert f"success {100 * share:5.1f} %" in line
        assert f"worst cell {100 * (share == 1):5.1f} %" in line
        assert line.endswith("failed") == (seed in failed)
    summary = [line for line in lines if "seeds failed" in line]
    assert [line.split(" seeds")[0] for line in summary] == ([f"{len(failed)} of {len(shares)}"] if failed else [])


def test_one_seed_needs_no_line() -> None:
    assert not [line for line in printed(some_evaluation([0.5], cart_mass=4)) if line.startswith("seed")]


ARGUMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "run": (3, {}, "run is 3; it must be a run or its path, or a list of them"),
    "runs": (["x", 3], {}, r"run is \['x', 3\]; it must be"),
    "no run": ([], {}, "run is an empty list"),
    "grid": (None, {"grid": 3}, "grid is 3; it must be text"),
    "values": (None, {"grid": {"force": [2.0, 1.0]}}, "each must be above the last"),
}


@pytest.mark.parametrize(("run", "options", "said"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_other_types_are_named(tmp_path: Path, run: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        evaluate(write_run(tmp_path / "run") if run is None else run, **options)


# --- the result ---------------------------------------------------------------------------------------------------


def same(a: Evaluation, b: Evaluation) -> None:
    assert json.dumps(a.to_dict()) == json.dumps(b.to_dict())


def test_an_evaluation_is_printed_in_a_sentence() -> None:
    said = repr(some_evaluation([0.5, 1.0], pole_length=3, cart_mass=4))
    words = "<Evaluation of deep_rok, 2 seeds, on 3 pole_length × 4 cart_mass, 1 episodes a cell: success 75.0 %, at"
    assert said.startswith(f"{words} the nominal model 100.0 %; arrays mean_return, ")


def test_nothing_is_written_unless_asked_for(unplayed, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = evaluate(run, episodes=2, keep="last")
    assert read(run) is read(run, "last") is None
    evaluate(run, keep="last", save=True)
    found = read(run, "last")
    assert found
    assert (found.keep, found.episodes, result.keep) == ("last", 500, "last")


def test_json_comes_back(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    result, written = two_seeds
    again = Evaluation.from_dict(json.loads(json.dumps(result.to_dict())))
    same(again, result)
    assert isinstance(again.per_seed[1].success, np.ndarray)
    # Both seeds' own files are what was computed of them together.
    same(merge([Evaluation.from_dict(found) for found in written.values()]), result)


def test_seeds_with_other_options_are_not_merged(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    one = two_seeds[0]
    with pytest.raises(DeeprokError, match="evaluated with different options"):
        merge([one, dataclasses.replace(one, grid={"force": np.ones(2)})])


def test_files_of_older_versions_are_read(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    old = two_seeds[0].to_dict()
    for name in ("parameters", "name", "seed"):
        del old[name]
    for one in old["per_seed"]:
        del one["weights"]
    assert Evaluation.from_dict(old).parameters == {}
    assert (Evaluation.from_dict(old).name, Evaluation.from_dict(old).seed) == ("", None)
    assert Evaluation.from_dict(old).plot().axes[0].get_xlabel() == "pole length"


DAMAGED: dict[str, dict[str, Any]] = {
    "grid": {"grid": {}},
    "axis": {"grid": {"pole_length": 3, "cart_mass": [1.0, 2.0]}},
    "cells": {"success": [0.0, 1.0]},
    "score": {"overall": {"mean_return": 1.0}},
    "more than a score": {"overall": {"mean_return": 1.0, "success": 0.5, "x": 1}},
    "seeds": {"per_seed": []},
    "seed": {"per_seed": [3]},
    "parameters": {"parameters": {"force": 3}},
    "policy": {"policy": None},
    "name": {"name": 3},
    "random numbers": {"seed": "x"},
}


@pytest.mark.parametrize("changes", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(two_seeds: tuple[Any, dict[int, Any]], changes: dict[str, Any]) -> None:
    with pytest.raises(DeeprokError, match="the evaluation is damaged"):
        Evaluation.from_dict(two_seeds[0].to_dict() | changes)


def test_columns_have_a_row_for_each_cell(two_seeds: tuple[Any, dict[int, Any]]) -> None:
    result = two_seeds[0]
    columns = result.columns()
    assert set(columns) == {
        *("pole_length", "cart_mass", "mean_return", "std_return", "success", "success_low", "success_high")
    }
    for row in range(6):
        i, j = divmod(row, 2)
        assert columns["pole_length"][row] == result.grid["pole_length"][i]
        assert columns["cart_mass"][row] == result.grid["cart_mass"][j]
        assert columns["success"][row] == result.success[i, j]


def test_grids_that_differ_between_their_ends_have_files_of_their_own() -> None:
    box = {"force": (1.0, 3.0)}
    files = {file_name({"force": np.array([1.0, x, 3.0])}, box, {}) for x in (1.5, 2.0, 2.5)}
    assert len(files) == 3
    assert "evaluation-force=1-3-3.json" in files
    # Nor do grids share one whose ends differ in the seventh digit.
    ends = [{"force": np.linspace(1.0, high, 3)} for high in (3.0000001, 3.0000002)]
    ends += [{"force": np.array([value])} for value in (1.0, 1.00000001)]
    assert len({file_name(axes, box, {}) for axes in ends}) == 4


def test_long_names_of_files_are_shortened() -> None:
    grids = [{f"parameter_of_the_environment_{i}": np.array([1.0, x]) for i in range(9)} for x in (2.0, 3.0)]
    files = {file_name(axes, {}, {}) for axes in grids}
    assert len(files) == 2
    assert max(map(len, files)) < 240


def test_two_runs_of_a_seed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(DeeprokError, match="several of the runs have seed 0"):
        evaluate([run, run])
