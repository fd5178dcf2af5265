from __future__ import annotations

import functools
import json
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx.reference
import pytest
import safetensors.numpy
from comparisons import assert_equal_to_rounding, bits
from configurations import make_readable
from probe_envs import part_of

from deeprok.agents.policy.gradient import PolicySettings
from deeprok.agents.policy.objectives import WorstTrajectoriesSettings, trajectory_weights
from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import ENVIRONMENTS, Environment, Interval
from deeprok.environments.base import Outcome, quantity
from deeprok.evaluation.export import export_policy, json_q_values
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.play import cell_player
from deeprok.evaluation.policies import weights_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.loop import train_together

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=16, horizon=15, trajectories=6, minibatches=2, epochs=2, level_iterations=2, snapshot_every=3
)

pytestmark = pytest.mark.usefixtures("compiled_once")


# How much each trajectory counts.


@pytest.mark.parametrize(("level", "counts"), [(0.1, 1.0), (0.25, 2.5), (0.5, 5.0), (1.0, 10.0)])
def test_epopt_takes_the_worst_fraction(level: float, counts: float) -> None:
    returns = np.random.default_rng(0).permutation(10).astype(np.float32)
    weight = np.asarray(trajectory_weights(WorstTrajectoriesSettings(trajectory_level=level), jnp.asarray(returns), 10))
    # Ten returns 0 … 9: all of the worst ones, and of the one at the boundary what lies within.
    expected = np.clip(counts - returns, 0, 1) / counts
    np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_240_trajectories_leave_the_papers_24() -> None:
    returns = jnp.asarray(np.random.default_rng(1).normal(size=240), jnp.float32)
    weight = np.asarray(trajectory_weights(WorstTrajectoriesSettings(), returns, 240))
    assert set(np.flatnonzero(weight > 1e-6)) == set(np.argsort(returns)[:24].tolist())
    np.testing.assert_allclose(weight[weight > 1e-6], 1 / 24, rtol=1e-4)


def test_models_are_weighed_by_their_mean() -> None:
    settings = WorstTrajectoriesSettings(trajectory_set="minimum", weigh="models")
    # The i-th trajectory is on model i mod 3; the second model is the worst on average, not in any single one.
    returns = jnp.array([0.0, 2.0, 5.0, 9.0, 2.0, 1.0])
    np.testing.assert_allclose(trajectory_weights(settings, returns, 3), [0, 0.5, 0, 0, 0.5, 0])


@pytest.mark.parametrize("name", ["kl", "chi2", "tv", "l1", "contamination", "entropic"])
def test_every_set_weighs_the_worse_more(name: str) -> None:
    settings = WorstTrajectoriesSettings(trajectory_set=name, trajectory_level=0.3)
    weight = np.asarray(trajectory_weights(settings, jnp.array([3.0, 1.0, 4.0, 2.0]), 4))
    assert weight.sum() == pytest.approx(1.0, abs=1e-5)
    assert (np.diff(weight[[1, 3, 0, 2]]) <= 1e-6).all()
    assert weight[1] > 0.26


# Identities. Sums over whole trajectories round more than those over mini-batches.

same_to_rounding = functools.partial(assert_equal_to_rounding, tolerance=1e-4)


@pytest.mark.slow
def test_neutral_sets_are_the_plain_policy_gradient(train) -> None:
    plain = train(make_readable("pg", **SMALL), seeds=(0, 1), chunks=3)
    same = {
        "cvar of everything": make_config("epopt", "tuned", **SMALL, trajectory_level=1.0),
        "a ball of radius 0": make_config(
            "robust_pg", "tuned", **SMALL, trajectory_set="kl", trajectory_level=0.0, adversary=0.0
        ),
    }
    for config in same.values():
        run = train(config, seeds=(0, 1), chunks=3)
        same_to_rounding(run.last, plain.last)
        same_to_rounding(run.logs, plain.logs)
    # Until its time EPOpt is the plain one, then no longer.
    epopt = train(make_config("epopt", "tuned", **SMALL), seeds=(0, 1), chunks=3)
    same_to_rounding(epopt.history[1], plain.history[1])
    assert np.abs(epopt.theta - plain.theta).max() > 1e-3 * np.abs(plain.theta).max()  # ten tolerances
    assert np.mean(plain.theta[0] == plain.theta[1]) < 0.1


@pytest.mark.slow
def test_a_seed_among_others_is_the_seed_alone_and_ends(train) -> None:
    config = make_readable("pg", **SMALL)
    together, alone = train(config, seeds=(0, 1), chunks=3), train(config, seeds=(1,), chunks=4)
    same_to_rounding(jax.tree.map(lambda leaf: leaf[1:], together.last), alone.history[2])
    assert [int(state.episodes[0]) for state in alone.history] == [6, 12, 18, 18]
    assert [log.ended.sum() for log in alone.logs] == [6, 6, 6, 0]
    assert [bool(log.learned[0, 0]) for log in alone.logs] == [True, True, True, False]
    assert bits(alone.history[2]) == bits(alone.history[3])
    # In Cart-Pole a step earns 1, but for the one that fails.
    taken = alone.history[0].steps[0]
    assert alone.logs[0].earned.sum() <= taken <= alone.logs[0].earned.sum() + 6
    snapshots = alone.last.snapshots[0]
    assert snapshots.shape[0] == 5
    for k, row in enumerate(snapshots):
        np.testing.assert_array_equal(row, alone.history[k // 2].agent.belief.theta[0])


# Environments whose answer is known.

FORK: dict[str, Any] = dict(
    env="fork", input_scale=(1.0,) * 3, hidden=(8,), horizon=10, trajectories=30, episodes=10**6, snapshot_every=0,
    acting="member", inner="natural", kl_bound=0.05, discount=0.9, adversary=0.0,
    fixed_models="wind=0.5,prize=1.5; wind=0.5,prize=0.5; wind=1.5,prize=1",
)  # fmt: skip


def test_the_worst_model_changes_the_way(train, build, probes) -> None:
    """Going right earns most on average, and little if the wind is strong, which going left does not mind."""
    config = make_config("robust_pg", "tuned", **FORK, trajectory_set="minimum", weigh="models", level_iterations=15)
    run = train(config, chunks=60)
    apply = build(config).program.learner.view.network.apply
    right = [float(jax.nn.softmax(apply(run.history[k].agent.belief.theta[0], np.eye(3)[0]))[1]) for k in (14, 59)]
    assert right[0] > 0.8  # all trajectories counted alike
    assert right[1] < 0.1  # those on the worst model


@pytree_dataclass
class Aim:
    goal: Any = quantity(0.0, "", "what to hit", positive=False)


def aim(horizon: int = 1) -> Environment:
    """One number, paid by its squared distance from the goal."""

    def reset(key: jax.Array, params: Aim) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(1), jnp.ones(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Aim) -> Outcome:
        missed = jnp.sum((action - params.goal) ** 2)
        return Outcome(state=state, obs=jnp.ones(1), reward=-missed, terminated=jnp.array(True))

    interval = Interval((-2.0,), (2.0,))
    return Environment("aim", reset, step, Aim(), {"goal": (-1.0, 1.0)}, (1.0,), interval, horizon, -0.1)


@pytest.fixture
def aiming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS._entries, "aim", part_of(aim))


AIM: dict[str, Any] = dict(
    env="aim", input_scale=(1.0,), hidden=(4,), horizon=2, trajectories=60, minibatches=2, epochs=5, adversary=0.0,
    learning_rate=0.02, episodes=10**6, snapshot_every=0, acting="member", fixed_models="goal=-1;goal=-1;goal=1.4",
    trajectory_set="minimum", weigh="models", level_iterations=60,
)  # fmt: skip


@pytest.mark.slow
def test_numbers_as_actions_hit_what_is_best_on_average_and_then_at_worst(train, build, aiming) -> None:
    config = make_config("robust_pg", "tuned", **AIM)
    run = train(config, chunks=120)
    view = build(config).program.learner.view
    for k, best in ((59, (-1 - 1 + 1.4) / 3), (119, (-1 + 1.4) / 2)):
        belief = run.history[k].agent.belief
        hit = view.env.actions.choose(view.network.apply(jnp.asarray(belief.theta[0]), jnp.ones(1)))[0]
        assert float(hit) == pytest.approx(best, abs=0.15)
        assert np.exp(belief.log_deviation[0, 0]) < 0.7  # it has grown surer


@pytest.mark.slow
def test_the_adversary_goes_where_life_is_short(train, probes) -> None:
    config = make_config(
        "robust_pg", "tuned", env="treadmill", input_scale=(1.0,), hidden=(2,), horizon=20, trajectories=20,
        minibatches=1, epochs=1, adversary=0.5, trajectory_level=0.0, snapshot_every=0, box="lifetime=5:20",
    )  # fmt: skip
    run = train(config, chunks=25)
    assert run.last.agent.adversary.mean[0, 0] < 0.15
    # Half of the trajectories are its own, and they are the shorter half.
    lengths = run.logs[-1].earned[0, 0]
    assert lengths[10:].mean() < 8 < lengths[:10].mean()


# Run folders: everything that is carried along at once.

CARRIED: dict[str, Any] = {
    **SMALL,
    **dict(
        episodes=60,
        horizon=30,
        trial_models=4,
        adversary=0.5,
        target="pole_length=0.5,cart_mass=3,pole_mass=0.1",
        adapt_every=2,
        particles=200,
    ),
}


def interrupt_after(chunks: int) -> Any:
    seen = []

    def report(folder: Path, line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == chunks:
            signal.raise_signal(signal.SIGINT)

    return report


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_and_finds_its_target(tmp_path: Path) -> None:
    config = make_config("epopt", "tuned", **CARRIED, seed=5)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        runs.create(folder, config)
    train_together([whole])
    with pytest.raises(KeyboardInterrupt):
        train_together([cut], interrupt_after(5))
    train_together([cut])
    one, other = (safetensors.numpy.load_file(folder / runs.CHECKPOINT) for folder in (whole, cut))
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
    lines = [json.loads(line) for line in (whole / runs.METRICS).read_text().splitlines()]
    assert len(lines) == 10
    assert all(len(line["returns"]) == 6 for line in lines)
    # The source has found the target's physics among all of the box.
    mean = one["run.agent.source.mean"]
    np.testing.assert_allclose(0.2 + 1.2 * mean[0], 0.5, atol=0.03)
    np.testing.assert_allclose(0.1 + 6.9 * mean[1], 3.0, atol=0.1)
    assert one["run.agent.source.deviation"].max() < 0.05
    scores = evaluate(whole, episodes=4, grid="cart_mass=1:3:2")
    assert scores.algorithm == "epopt"
    assert np.isfinite(scores.overall.mean_return)
    with pytest.raises(DeeprokError, match="epopt has no posterior"):
        evaluate(whole, policy="vote")


# Numbers as actions, elsewhere.


def test_evaluation_plays_numbers(build, aiming) -> None:
    view = build(make_config("robust_pg", "tuned", **AIM)).program.learner.view
    play = cell_player(view.env, weights_policy(view.network, view.env.actions, "mean"), 2000)
    theta = np.zeros((1, view.network.num_weights), np.float32)  # aims at 0
    greedy = play(theta, {"goal": np.array([0.5])}, 0.0)
    np.testing.assert_allclose(greedy, -0.25, rtol=1e-6)
    # Uniform between −2 and 2: the mean squared miss is 4/3 + goal².
    assert play(theta, {"goal": np.array([0.5])}, 1.0).mean() == pytest.approx(-(4 / 3 + 0.25), rel=0.05)


@pytest.mark.parametrize("kind", ["json", "onnx"])
def test_policies_of_numbers_are_exported(tmp_path: Path, build, aiming, kind: str) -> None:
    view = build(make_config("robust_pg", "tuned", **AIM)).program.learner.view
    theta = np.array(view.network.init(jax.random.key(0)) * 3)
    out = tmp_path / f"policy.{kind}"
    export_policy(view.network, theta, view.env, kind, out)  # type: ignore[arg-type]
    obs = np.linspace(-2, 2, 9, dtype=np.float32)[:, None]
    expected = np.asarray(view.env.actions.choose(view.network.apply(jnp.asarray(theta), jnp.asarray(obs))))
    if kind == "json":
        policy = json.loads(out.read_text())
        low, high = (np.array(policy["interval"][end]) for end in ("low", "high"))
        found = low + (high - low) * (np.clip(json_q_values(policy, obs), -1, 1) + 1) / 2
    else:
        found = onnx.reference.ReferenceEvaluator(out.read_bytes()).run(["action"], {"obs": obs})[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a set": ("epopt", dict(trajectory_set="cvr"), "unknown trajectory_set 'cvr'"),
    "a level": ("epopt", dict(trajectory_level=0.0), "trajectory_level is 0; for the set cvar"),
    "pg with a set": ("pg", dict(trajectory_level=0.5), "unknown setting 'trajectory_level'"),
    "minibatches": ("pg", dict(trajectories=10, minibatches=4), "trajectories is 10; .* minibatches, which is 4"),
    "members": ("pg", dict(acting="member", models=7), "trajectories is .* models, which is 7"),
    "weigh": ("epopt", dict(weigh="models"), "weigh is 'models', but acting is 'sampled'"),
    "target": ("epopt", dict(target="pole_lenght=1"), "'pole_length'"),
    "target acting": ("epopt", dict(target="pole_length=1", acting="nominal"), "target is 'pole_length=1', but acting"),
    "adversary": ("robust_pg", dict(adversary=1.5), "adversary is 1.5; it must be a probability"),
    "clip": ("pg", dict(clip=1.0), "clip is 1.0; it must be above 0 and below 1"),
    "inner": ("pg", dict(inner="npg"), "unknown inner 'npg'"),
    "memory": ("pg", dict(trajectories=10**6), "GB a seed"),
    "numbers": ("deep_rok", dict(env="pendulum"), "pendulum has continuous actions; deep_rok"),
}


@pytest.mark.parametrize(("algorithm", "changes", "said"), REFUSED.values(), ids=REFUSED)
def test_impossible_settings_are_refused(algorithm: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        make_config(algorithm, "tuned", **changes)


def test_the_papers_preset_has_its_numbers() -> None:
    config = make_config("epopt", "paper")
    assert config.estimator is None
    assert config.learner == PolicySettings(inner="natural", trajectories=240)
    assert config.target == WorstTrajectoriesSettings("cvar", 0.1, level_iterations=100)
    assert (config.layers.hidden, config.layers.activation) == ((64, 64), "tanh")
    plain = make_config("pg", "paper")
    assert plain.learner == config.learner
    assert plain.row.target == "mean_return"
