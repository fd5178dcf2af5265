from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparisons import assert_equal_to_rounding, bits
from configurations import make_readable

from deeprok.agents import replay
from deeprok.agents.algorithms import ALGORITHMS
from deeprok.runs.settings import Config
from deeprok.training.best import TRIAL, make_trial
from deeprok.training.scan import make_program

# A noise at which these short runs are calm, so that comparisons speak of the code and not of chaos.
QUIET: dict[str, Any] = dict(observation_noise=1.0, process_noise=1e-4)
SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=30, horizon=30, chunk_steps=60, warm_up=20, target_period=25, batch_size=5, epsilon_steps=200
)
ONE = "pole_length=0.5,cart_mass=1.5"  # the nominal model


def settings(algorithm: str, preset: str = "paper", **changes: Any) -> Config:
    own: dict[str, Any] = {}
    if algorithm in ("ekf_dqn", "deep_rok"):
        own = QUIET
    if algorithm in ("psgld_dqn", "psgld_rtd"):
        own = dict(burn_in=20, thinning=5, members=5)
    if algorithm in ("ktd_q", "ktd_rtd"):
        own = dict(batch_size=1, prior_covariance=0.1, observation_noise=1.0)
    return make_readable(algorithm, preset, **{**SMALL, **own, **changes})


def seed_of(tree: Any, seed: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[seed], tree)


SETTINGS: dict[str, dict[str, Any]] = {
    "the nominal model": dict(acting="nominal", fixed_models=ONE, robust_set="minimum"),
    "a drawn model": dict(acting="member", models=1, robust_set="cvar", robust_level=0.3),
}
#: Robust agents with one model, one of each estimator.
ONE_MODEL: dict[str, dict[str, Any]] = {
    "gradient": dict(algorithm="rtd_dqn", **SETTINGS["the nominal model"]),
    "full": dict(algorithm="deep_rok", explore="thompson", **SETTINGS["a drawn model"]),
    "diagonal": dict(algorithm="deep_rok", covariance="diagonal", explore="thompson", **SETTINGS["the nominal model"]),
    "backprop": dict(algorithm="bbb_rtd", explore="thompson", weight_prior="mixture", **SETTINGS["the nominal model"]),
    "langevin": dict(algorithm="psgld_rtd", explore="thompson", **SETTINGS["a drawn model"]),
}
PLAIN = {"gradient": "dqn", "full": "ekf_dqn", "backprop": "bbb_dqn", "langevin": "psgld_dqn"}


@pytest.mark.parametrize(
    "estimator",
    ["gradient", *(pytest.param(name, marks=pytest.mark.slow) for name in ("full", "backprop", "langevin"))],
)
def test_robust_with_one_model_is_the_plain_agent(train, build, estimator: str) -> None:
    config = settings(**ONE_MODEL[estimator])
    robust = train(config, seeds=(0, 1))
    plain = train(settings(**{**ONE_MODEL[estimator], "algorithm": PLAIN[estimator]}), seeds=(0, 1))
    assert_equal_to_rounding(robust.last.agent.belief, plain.last.agent.belief)
    assert_equal_to_rounding(robust.last.agent.memory, plain.last.agent.memory)
    assert robust.last.steps.min() == config.learner.chunk_steps
    assert robust.last.episodes.min() >= 2
    start = build(config).start(np.arange(2))
    assert np.abs(robust.last.agent.target - start.agent.target).max() > 0.01


@pytest.mark.slow
def test_robust_ktd_with_one_model_is_ktd(train, build) -> None:
    """One observes 0 and the other a reward, so that they agree to rounding alone."""
    configs = [settings(algorithm, **SETTINGS["the nominal model"]) for algorithm in ("ktd_rtd", "ktd_q")]
    robust, plain = (train(config, chunks=3) for config in configs)
    np.testing.assert_allclose(robust.theta, plain.theta, rtol=1e-3, atol=1e-4)
    start = build(configs[0]).start(np.zeros(1, int))
    assert np.abs(robust.theta - start.agent.target).max() > 0.1
    assert robust.last.agent.memory.shape[1] == 1


def test_identical_models_are_one_model(train) -> None:
    one = train(settings(**ONE_MODEL["gradient"]), seeds=(0, 1))
    threefold = dict(fixed_models=";".join([ONE] * 3), robust_set="cvar", robust_level=0.5)
    many = train(settings(**{**ONE_MODEL["gradient"], **threefold}), seeds=(0, 1))
    assert_equal_to_rounding(many.last.agent.belief, one.last.agent.belief)
    assert many.last.agent.memory.shape[2] == 4 + 1 + 3 * 6


def assert_seeds_differ(run) -> None:
    assert np.mean(run.theta[0] == run.theta[1]) < 0.1
    assert not np.array_equal(run.last.agent.memory[0], run.last.agent.memory[1])


@pytest.mark.parametrize("estimator", ["gradient", "full"])  # in step, one by one
def test_a_seed_repeats(train, estimator: str) -> None:
    config = settings(**ONE_MODEL[estimator])
    first, again = (train(config, seeds=(0, 1), chunks=2) for _ in range(2))
    assert bits(first.last) == bits(again.last)
    assert bits(first.logs) == bits(again.logs)
    assert_seeds_differ(first)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=[pytest.mark.slow] * (name in ("backprop", "langevin")))
        for name, changes in ONE_MODEL.items()
    ],
)
def test_a_seed_does_not_depend_on_its_company(train, changes: dict[str, Any]) -> None:
    config = settings(**changes)
    here, there = train(config, seeds=(0, 1)), train(config, seeds=(1, 2))
    assert_equal_to_rounding(seed_of(there.last, 0), seed_of(here.last, 1))
    assert_seeds_differ(here)


@pytest.mark.parametrize("estimator", ["gradient", pytest.param("full", marks=pytest.mark.slow)])  # in step, one by one
def test_a_seed_among_others_is_the_seed_alone(train, estimator: str) -> None:
    config = settings(**ONE_MODEL[estimator])
    together, alone = train(config, seeds=(0, 1)), train(config, seeds=(1,))
    assert_equal_to_rounding(seed_of(alone.last, 0), seed_of(together.last, 1))


def test_the_log_tells_what_happened(train) -> None:
    config = settings("dqn", **SETTINGS["the nominal model"])
    run = train(config, seeds=(0, 1), chunks=5)
    ended, earned = (np.concatenate([getattr(log, name)[0, :, 0] for log in run.logs]) for name in ("ended", "earned"))
    steps = jax.tree.map(np.asarray, replay.unpack(jnp.asarray(run.last.agent.memory[0]), 4))
    taken = int(run.last.steps[0])
    assert ended.sum() == run.last.episodes[0]
    length, total = 0, 0.0
    for t in range(taken):
        length, total = length + 1, total + float(steps.reward[t, 0])
        assert earned[t] == total
        assert ended[t] == (steps.terminated[t, 0] or length == config.environment.horizon)
        if ended[t]:
            length, total = 0, 0.0
        if t + 1 < taken:
            follows = np.array_equal(steps.obs[t + 1], steps.next_obs[t, 0])
            fresh = np.abs(steps.obs[t + 1]).max() <= 0.05
            assert (not follows and fresh) if ended[t] else follows


STANDING = {
    "dqn, every third step": dict(algorithm="dqn", train_every=3),
    "dqn, twice every third step": dict(algorithm="dqn", train_every=3, updates=2),
    "deep_rok": dict(algorithm="deep_rok"),
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(each, id=name, marks=[pytest.mark.slow] * (each["algorithm"] == "dqn"))
        for name, each in STANDING.items()
    ],
)
def test_a_finished_seed_stands_still(train, changes: dict[str, Any]) -> None:
    config = settings(**changes, episodes=3, horizon=200, chunk_steps=9, acting="sampled", epsilon_end=1.0, warm_up=5)
    run = train(config, seeds=range(4), chunks=14)
    done = [state.episodes == config.episodes for state in run.history]
    waited = 0
    for before, after, finished in zip(run.history, run.history[1:], done, strict=False):
        for seed in range(4):
            if finished[seed]:
                assert bits(seed_of(before, seed)) == bits(seed_of(after, seed))
                waited += not finished.all()
            else:
                assert bits(seed_of(before.agent.belief, seed)) != bits(seed_of(after.agent.belief, seed))
                assert after.steps[seed] > before.steps[seed]
    assert waited >= 4  # chunks in which a seed stood still while others went on
    ended = np.concatenate([log.ended for log in run.logs], axis=1)
    assert ended.shape == (4, 14 * 9 // config.learner.train_every, config.learner.train_every)
    ended = ended.reshape(4, -1)
    assert (ended.sum(axis=1) == run.last.episodes).all()
    for seed in np.flatnonzero(done[-1]):
        assert run.last.steps[seed] == np.flatnonzero(ended[seed])[-1] + 1
    if config.algorithm == "dqn":
        # An update, or two, after each third step that was taken and lies beyond the warm-up.
        rounds = [sum(t >= config.learner.warm_up for t in range(2, steps, 3)) for steps in run.last.steps]
        updates = [config.learner.updates * count for count in rounds]
        assert run.last.agent.belief.optimizer[0].count.tolist() == updates
        learned = np.concatenate([log.learned for log in run.logs], axis=1)
        assert learned.shape == np.concatenate([log.fit.loss for log in run.logs], axis=1).shape
        assert learned.sum(axis=1).tolist() == updates


@pytest.mark.parametrize(
    ("train_every", "updates", "copies"),
    [
        pytest.param(1, 1, [10, 15, 20, 25], marks=pytest.mark.slow),
        pytest.param(2, 1, [10, 16, 20, 26], marks=pytest.mark.slow),
        (2, 3, [10, 16, 20, 26]),
    ],
)
def test_step_by_step(train, build, train_every: int, updates: int, copies: list[int]) -> None:
    """Learning starts after the warm-up, the target is copied once a period, models live for an episode."""
    config = settings(
        "rtd_dqn",
        acting="member",
        models=3,
        train_every=train_every,
        updates=updates,
        chunk_steps=train_every,
        warm_up=7,
        target_period=5,
        horizon=6,
        epsilon_end=1.0,
    )
    run = train(config, chunks=26 // train_every)
    found, members = [], set()
    for k, (before, after) in enumerate(zip(run.history, run.history[1:], strict=False), 1):
        steps = (k + 1) * train_every
        assert after.steps[0] == steps
        still = np.array_equal(before.agent.belief.theta, after.agent.belief.theta)
        assert still == (steps - 1 < config.learner.warm_up), steps
        if not np.array_equal(before.agent.target, after.agent.target):
            np.testing.assert_array_equal(after.agent.target, after.agent.belief.theta)
            found.append(steps)
        models, later = (state.episode.models["cart_mass"][0] for state in (before, after))
        assert np.array_equal(models, later) == (before.episodes[0] == after.episodes[0])
        away = np.abs(models - before.episode.acting["cart_mass"][0])
        assert away.min() < 1e-5
        members.add(int(np.argmin(away)))
    assert found == copies  # at a period's end, or at the first update after it
    assert run.last.episodes[0] >= 26 // config.environment.horizon
    assert len(members) > 1
    assert build(config).program.advance.func._cache_size() == 1


@pytest.mark.parametrize("algorithm", ["ddqn", "rtd_dqn"])
def test_another_box_needs_no_other_program(algorithm: str) -> None:
    """One compiled program serves every box and nominal model, and its numbers are those of the run."""

    def program(box: str, nominal: str) -> tuple[str, Any]:
        config = settings(algorithm, models=2, hidden=(3,), chunk_steps=2, box=box, nominal=nominal)
        made = make_program(config)
        states = jax.eval_shape(jax.vmap(made.init), jax.random.split(jax.random.key(0), 1))
        lowered = made.advance.func.lower(*made.advance.args, states, 0)  # type: ignore[attr-defined]
        trial = make_trial(config, made, TRIAL)
        lowered_trial = trial.func.lower(*trial.args, states.agent.belief)  # type: ignore[attr-defined]
        return lowered.as_text() + lowered_trial.as_text(), (made.advance.args, trial.args)  # type: ignore[attr-defined]

    text, numbers = program("cart_mass=1:2,pole_length=0.4:0.6", "cart_mass=1.25")
    other, others = program("cart_mass=0.5:4,pole_length=0.2:0.3", "cart_mass=1.75")
    assert text == other
    assert not any(map(np.array_equal, jax.tree.leaves(numbers[0][0].box), jax.tree.leaves(others[0][0].box)))
    assert numbers[0][0].box["cart_mass"] == (1.0, 2.0)
    assert (numbers[0][0].nominal.cart_mass, others[0][0].nominal.cart_mass) == (1.25, 1.75)
    assert all(1 <= mass <= 2 for mass in numbers[1][0][1]["cart_mass"])
    assert all(0.2 <= length <= 0.3001 for length in others[1][0][1]["pole_length"])


def inside_loops(hlo: str) -> Iterator[str]:
    """The lines of every computation that runs in a loop."""
    computations = {}
    for block in re.split(r"\n\n+", hlo):
        head = re.match(r"\s*(?:ENTRY )?%?([\w.\-]+) .*\{\s*\n", block)
        if head:
            computations[head[1]] = block[head.end() :].splitlines()
    waiting, seen = re.findall(r"body=%?([\w.\-]+)", hlo), set()
    assert waiting, "no loop found"
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield from computations[name]
            called = re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)", "\n".join(computations[name]))
            waiting.extend(called)


@pytest.mark.parametrize(
    ("batching", "updates"),
    [pytest.param(*each, marks=pytest.mark.slow) for each in (("averaged", 1), ("averaged", 3), ("joint", 1))],
)
def test_neither_replay_nor_covariance_is_copied(build, batching: str, updates: int) -> None:
    size: dict[str, Any] = dict(models=2, hidden=(3,), chunk_steps=10, episodes=31, seed=0)
    config = settings("deep_rok", batching=batching, updates=updates, **size)
    built = build(config)
    states = jax.eval_shape(built.start, np.arange(1))
    # With the passes that users have, not with those of the tests.
    advance = built.program.advance
    compiled = advance.func.lower(*advance.args, states, 0).compile({"xla_cpu_use_fusion_emitters": True}).as_text()
    lines = list(inside_loops(compiled))
    (P,) = states.agent.belief.P.groups
    for array in (states.agent.memory, P):
        shape = r"f32\[(1,)*" + ",".join(map(str, array.shape[-2:])) + r"\]"
        assert any(re.search(shape, line) for line in lines), f"{shape} is not in the loop"
        spent = [line for line in lines if re.search(f"= {shape}" + r"\S* (copy|copy-start|select)\(", line)]
        assert not spent, spent


GAMMA = 0.9


def fork_values(go: float, prize: float) -> np.ndarray:
    """Q* of the fork, given the value of going and the label of the prize."""
    return np.array([[0.3 + GAMMA * 0.2, GAMMA * go], [0.2, 0.1], [prize, 0.6]])


NOMINAL = fork_values(go=1.0, prize=1.0)
# Models: the prize is 1.5, 0.5 or, in strong wind, 1.
WEATHERS = "wind=0.5,prize=1.5; wind=0.5,prize=0.5; wind=1.5,prize=1"
WORST = fork_values(go=0.2, prize=0.5)
# The worst half of three: all of the least and half of the next.
TAIL_PRIZE = (0.5 / 3 + 1.0 / 6) / 0.5
TAIL = fork_values(go=(0.2 / 3 + TAIL_PRIZE / 6) / 0.5, prize=TAIL_PRIZE)
RANDOMISED = fork_values(go=0.5 * 1.0 + 0.5 * 0.2, prize=1.0)

FORKS = {
    "dqn": ("dqn", {}, NOMINAL),
    "ddqn": ("ddqn", {}, NOMINAL),
    "ddqn_dr": ("ddqn_dr", dict(learning_rate=2e-3), RANDOMISED),
    "rtd_dqn": ("rtd_dqn", {}, WORST),
    "rtd_dqn cvar": ("rtd_dqn", dict(robust_set="cvar", robust_level=0.5), TAIL),
    "ekf_dqn joint": ("ekf_dqn", dict(batching="joint"), NOMINAL),
    "deep_rok": ("deep_rok", {}, WORST),
    # Of the others the plain one is the robust one with one model, by the identities above.
    "bbb_rtd": ("bbb_rtd", dict(weight_prior="mixture"), WORST),
    "psgld_rtd": ("psgld_rtd", dict(decay=0.5, decay_updates=2000.0), WORST),
    "ktd_rtd": ("ktd_rtd", {}, WORST),
}
#: What estimators need to learn a probe environment in some thousand updates.
QUICK: dict[str, dict[str, Any]] = {
    "gradient": dict(learning_rate=5e-3),
    "kalman": dict(observation_noise=0.1, process_noise=1e-5),
    "bayes_by_backprop": dict(learning_rate=5e-3, observation_noise=0.01),
    "psgld": dict(learning_rate=1e-3, observation_noise=0.01, thinning=20),
    "unscented": dict(observation_noise=0.01, prior_covariance=0.3, batch_size=1, replay_size=1, hidden=(4,)),
}


def probe(algorithm: str, env: str, inputs: int, **changes: Any) -> Config:
    """Settings to learn a probe environment by acting at random."""
    own = QUICK[ALGORITHMS[algorithm].estimator]
    shared = dict(
        env=env,
        input_scale=(1.0,) * inputs,
        hidden=(8,),
        horizon=10,
        episodes=100_000,
        replay_size=4000,
        chunk_steps=2000,
        target_period=50,
        warm_up=50,
        batch_size=16,
        epsilon_end=1.0,
        discount=GAMMA,
        robust_set="minimum",
    )
    return make_readable(algorithm, "paper", **{**shared, **own, **changes})


#: Those of which every part is also tested in the others, or by itself.
SLOW_FORKS = ("dqn", "ddqn", "ddqn_dr", "rtd_dqn cvar", "ekf_dqn joint", "bbb_rtd", "psgld_rtd", "ktd_rtd")


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [pytest.param(*fork, id=name, marks=[pytest.mark.slow] * (name in SLOW_FORKS)) for name, fork in FORKS.items()],
)
def test_learns_the_known_values(train, build, probes, algorithm, changes, expected) -> None:
    config = probe(algorithm, "fork", 3, box="wind=0.5:1.5,prize=0.5:1.5", fixed_models=WEATHERS, **changes)
    run, program = train(config, chunks=4), build(config).program
    mean = program.learner.view.mean(seed_of(run.last.agent.belief, 0))
    q = program.learner.view.network.apply(jnp.asarray(mean), jnp.eye(3))
    np.testing.assert_allclose(q, expected, atol=0.05)


def test_several_updates_learn_more_of_a_step(train, build, probes) -> None:
    """What takes one update a step four chunks, four updates a step learn in one."""
    config = probe("dqn", "fork", 3, updates=4)
    q = build(config).program.learner.view.network.apply(jnp.asarray(train(config).theta[0]), jnp.eye(3))
    np.testing.assert_allclose(q, NOMINAL, atol=0.05)


def test_the_worst_case_changes_the_policy() -> None:
    assert NOMINAL[0].argmax() == 1
    assert WORST[0].argmax() == 0


# Ten steps an episode. If nothing ends, 1 / (1 − γ); if one step in ten does, 1 / (1 − 0.9 γ).
ENDS = {
    "cut off": ("ddqn", "", 1 / (1 - GAMMA)),
    "cut off, filtered": ("deep_rok", "", 1 / (1 - GAMMA)),
    "ended": ("ddqn", "lifetime=10", 1 / (1 - 0.9 * GAMMA)),
}


@pytest.mark.parametrize(
    ("algorithm", "nominal", "value"),
    [pytest.param(*its, id=name, marks=[pytest.mark.slow] * ("filtered" in name)) for name, its in ENDS.items()],
)
def test_only_termination_ends_the_future(train, build, probes, algorithm: str, nominal: str, value: float) -> None:
    fixed = f"lifetime={nominal[9:] or 1e9}"
    config = probe(algorithm, "treadmill", 1, box="lifetime=5:20", nominal=nominal, fixed_models=fixed)
    run = train(config, chunks=4)
    assert run.last.episodes[0] == 800
    q = build(config).program.learner.view.network.apply(jnp.asarray(run.theta[0]), jnp.ones(1))
    np.testing.assert_allclose(q, value, rtol=0.05)


def first_with(history: list[Any], episodes: int, every: int) -> Any:
    """The mean weights at the first of every so many steps at which so many episodes have ended."""
    return next(s.agent.belief.theta[0] for s in history[every - 1 :: every] if s.episodes[0] >= episodes)


@pytest.mark.parametrize(("chunk_steps", "look"), [pytest.param(1, 1, marks=pytest.mark.slow), (60, 3)])
def test_snapshots_are_the_weights_of_their_time(train, chunk_steps: int, look: int) -> None:
    changes: dict[str, Any] = dict(snapshot_every=2, episodes=9, epsilon_end=1.0, **SETTINGS["the nominal model"])
    steps = train(settings("dqn", chunk_steps=1, **changes), chunks=240).history
    run = train(settings("dqn", chunk_steps=chunk_steps, **changes), chunks=240 // chunk_steps).last
    assert run.episodes[0] == 9
    assert run.snapshots.shape == (1, 4, steps[0].agent.target.shape[1])
    for k, row in enumerate(run.snapshots[0]):
        np.testing.assert_allclose(row, first_with(steps, 2 * (k + 1), look), rtol=1e-4, atol=1e-6)


def test_snapshots_that_are_due_together_are_all_taken(train) -> None:
    config = settings("dqn", snapshot_every=1, episodes=12, horizon=2, chunk_steps=200, warm_up=0)
    last = train(config, seeds=(0, 1)).last
    assert last.episodes.tolist() == [12, 12]
    # A look is ten steps long, in which five episodes of two steps end.
    rows = last.snapshots
    assert (np.abs(rows).sum(axis=2) > 0).all()
    for start, end in ((0, 5), (5, 10), (10, 12)):
        assert (rows[:, start:end] == rows[:, start : start + 1]).all()
    assert not (rows[:, 0] == rows[:, 5]).all()
    np.testing.assert_array_equal(rows[:, -1], last.agent.belief.theta)


def test_no_snapshots(train) -> None:
    changes = SETTINGS["the nominal model"]
    none = train(settings("dqn", snapshot_every=0, **changes), seeds=(0, 1)).last
    assert none.snapshots.shape[1] == 0
    assert_equal_to_rounding(none.agent, train(settings("dqn", **changes), seeds=(0, 1)).last.agent)
