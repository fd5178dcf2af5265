"""Models that are searched for during training: that they are found, join the sets, and are part of a run's state."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe_envs import POCKET
from test_trainer import assert_same_run, interrupt, metrics, new_run, tensors

import deeprok
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.stress.player import Scores
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import adversary, jobs, loop, scan
from deeprok.training.adversary import MOMENTS, is_due, make_find
from deeprok.training.best import TRIAL, Best, make_trial, tried_again
from deeprok.training.found import KEPT, Found, nothing_found, with_found
from deeprok.training.loop import train_together
from deeprok.uncertainty import sample_box

pytestmark = pytest.mark.usefixtures("compiled_once")

BOX = {"east": (0.0, 1.0), "north": (0.0, 1.0)}
SMALL: dict[str, Any] = dict(
    env="probe_envs:ice", hidden=(2,), steps=300, models=4, trial_models=4, trial_every=1, trial_epsilon=0.0,
    snapshot_every=0,
)  # fmt: skip
LEARNING: dict[str, Any] = dict(
    batch_size=8, warm_up=10, target_period=10, epsilon_steps=100, chunk_steps=20, learning_rate=0.02
)
SIMULATED = dict(env="probe_simulators:SIMULATED_ICE")


def by_steps(**changes: Any) -> Config:
    return make_config("rtd_dqn", "tuned", **SMALL | LEARNING | dict(adversary="stress") | changes)


def by_trajectories(**changes: Any) -> Config:
    own = dict(steps=0, episodes=160, trajectories=8, minibatches=2, epochs=2, learning_rate=0.1, adversary="stress")
    return make_config("pg", "tuned", **SMALL | own | changes)


ICE, PLAIN = by_steps(), by_steps(adversary="none")


def in_pocket(model: Any) -> bool:
    return all(low <= value <= high for value, (low, high) in zip(model, POCKET.values(), strict=True))


def trained(parent: Path, config: Config, seeds: tuple[int, ...] = (0,)) -> list[Path]:
    folders = [new_run(parent, config, seed) for seed in seeds]
    train_together(folders)
    return folders


@pytest.fixture(scope="module")
def ice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("ice"), ICE)[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain"), PLAIN)[0]


def searches(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if "found_at" in line]


# --- how they join ------------------------------------------------------------------------------------------------


def some_found(count: int) -> Found:
    """As if so many had joined: the i-th is (10 + i, 20 + i)."""
    found = nothing_found(ICE.task())
    assert found
    rows = np.arange(KEPT)[:, None] + np.array([10.0, 20.0])
    there = min(count, KEPT)
    return dataclasses.replace(
        found, models=found.models.at[:there].set(rows[:there]), count=jnp.int32(count), searches=jnp.int32(count)
    )


@pytest.mark.parametrize("size", [2, 3, 5, 10, 24])
def test_found_models_take_a_quarter_to_half_of_the_places(size: int) -> None:
    drawn = {name: jnp.linspace(0.0, 1.0, size) for name in BOX}
    join = jax.jit(lambda found, seed: with_found(found, BOX, drawn, jax.random.key(seed)))
    for count in (0, 1, 2, 3, 7, KEPT, 2 * KEPT):
        joined = join(some_found(count), count)
        there = min(count, KEPT)
        places = min(max(there, math.ceil(size / 4)), size // 2) if count else 0
        taken = np.asarray(joined["east"][size - places :]) - 10.0
        np.testing.assert_array_equal(np.asarray(joined["north"][size - places :]) - 20.0, taken)
        assert set(taken) <= set(range(there))
        assert len(set(taken)) == min(there, places)  # different ones, and all of them if they fit
        for name, values in drawn.items():
            np.testing.assert_array_equal(joined[name][: size - places], values[: size - places])


def test_before_the_first_search_all_is_as_without() -> None:
    key = jax.random.key(3)
    without, nothing = (scan.draw_models(ICE.task(), key, found) for found in (None, some_found(0)))
    for ours, theirs in zip(jax.tree.leaves(nothing[:2]), jax.tree.leaves(without[:2]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("acting", "share"), [("sampled", 0.25), ("member", 0.5), ("nominal", 0.0)])
def test_found_models_are_acted_on(acting: str, share: float) -> None:
    """Of four models two are found ones, if two have joined."""
    task, found, count = ICE.replace(acting=acting).task(), some_found(2), 2000
    acted, models, _ = jax.vmap(lambda key: scan.draw_models(task, key, found))(
        jax.random.split(jax.random.key(0), count)
    )
    np.testing.assert_array_equal((models["east"] >= 10).sum(axis=1), 2)
    for row in range(2):
        times = int((acted["east"] == 10.0 + row).sum())
        assert abs(times - share / 2 * count) <= 5 * math.sqrt(count * share / 2)
    np.testing.assert_array_equal(acted["east"] >= 10, acted["north"] >= 20)


# --- what is found ------------------------------------------------------------------------------------------------


def test_the_pocket_is_found_and_reaches_the_targets(ice: Path, plain: Path) -> None:
    """One draw in ten thousand is in it."""
    with_it, without = tensors(ice), tensors(plain)
    assert in_pocket(with_it["run.found.models"][0])
    first = searches(ice)[0]
    assert first["found_at"] == MOMENTS[0] * ICE.steps + 5  # the end of a chunk
    assert in_pocket([first["found_east"], first["found_north"]])
    assert (first["found_success"], first["found_return"], first["found_joined"]) == (0.0, -5.0, 1)
    # The outcomes of the four models that are stored of each step, two after the observation and the action.
    rewards = [each["run.agent.memory"][:, 2:6] for each in (with_it, without)]
    assert rewards[0].min() == -5
    assert (rewards[0][: first["found_at"]] > 0).all()
    assert (rewards[1] > 0).all()
    # So one agent learns to walk, and the other runs; and trials know why.
    for keep in ("last", "best"):
        actions = [deeprok.load(folder, keep=keep).predict([1.0])[0] for folder in (ice, plain)]
        assert actions == [1, 0], keep


def test_what_is_no_worse_does_not_join(ice: Path) -> None:
    """To walk earns the same everywhere."""
    lines = searches(ice)
    assert len(lines) == tensors(ice)["run.found.searches"] == 5
    walked = [line["found_joined"] for line in lines if line["found_return"] == 0.5]
    assert len(walked) > 0
    assert sum(walked) == 0
    assert tensors(ice)["run.found.count"] == sum(line["found_joined"] for line in lines)


@pytest.mark.parametrize("algorithm", ["rtd_td3", "boot_rtd"])
def test_actors_and_ensembles_are_searched_too(algorithm: str) -> None:
    """With an actor's a(x), nothing is worse than one of the two ends of the slopes; an ensemble prefers to run."""
    env = "probe_envs:aim" if algorithm == "rtd_td3" else "probe_envs:ice"
    config = make_config(algorithm, "tuned", env=env, hidden=(4,), steps=100, adversary="stress")
    learner = config.make_learner()
    state = learner.init(jax.random.key(2))
    weights = np.asarray(learner.view.mean(state.belief))
    found = nothing_found(config.task())
    assert found
    found = make_find(learner.view, config.make_box(config.make_env()))(weights, found, 0, lambda part: None)
    assert found.searches == found.count == 1
    if algorithm == "rtd_td3":
        assert min(abs(found.worst[0] - 0.2), abs(found.worst[0] - 1.0)) < 1e-3
    else:
        runs_there = int(jnp.argmax(learner.view.network.apply(jnp.asarray(weights), jnp.ones(1)))) == 0
        assert float(found.mean_return) == (-5.0 if runs_there else 0.5)


@pytest.mark.parametrize("settings", [by_steps, pytest.param(by_trajectories, marks=pytest.mark.slow)])
def test_simulators_are_searched_too(tmp_path: Path, settings: Callable[..., Config]) -> None:
    folder = trained(tmp_path, settings(**SIMULATED))[0]
    lines = searches(folder)
    assert len(lines) >= 4
    # Fewer models are tried than in JAX: it is enough that they are near the pocket, to where returns lead.
    joined = tensors(folder)["run.found.models"][0]
    assert np.abs(joined - [0.905, 0.205]).max() < 0.1


def test_trajectories_are_on_found_models(tmp_path: Path) -> None:
    folder = trained(tmp_path, by_trajectories())[0]
    assert in_pocket(tensors(folder)["run.found.models"][0])
    at = searches(folder)[0]["found_at"]
    before, after = (
        [x for line in metrics(folder) for x in line["returns"] if (line["steps"] > at) == late]
        for late in (False, True)
    )
    assert min(before) > 0
    assert min(after) == -5


# --- part of a run's state ----------------------------------------------------------------------------------------


def test_resumed_equals_uninterrupted(ice: Path, tmp_path: Path) -> None:
    """Stopped before, after and between searches."""
    folder = new_run(tmp_path, ICE)
    for chunks in (3, 1, 2, 4):
        interrupt(folder, chunks)
    train_together([folder])
    assert_same_run(ice, folder)


def test_a_search_that_is_stopped_is_done_again(ice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, folder = adversary.search, new_run(tmp_path, ICE)

    def stopped(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return search(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(adversary, "search", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_together([folder])
    assert loop.progress_of(folder)[0] == searches(ice)[0]["found_at"]
    assert searches(folder) == []
    train_together([folder])
    assert_same_run(ice, folder)


def test_each_seed_has_its_own(tmp_path: Path) -> None:
    one, other = (tensors(folder)["run.found.models"][0] for folder in trained(tmp_path, ICE, (0, 1)))
    assert in_pocket(one)
    assert in_pocket(other)
    assert (one != other).all()


def test_a_longer_budget_has_more_searches(ice: Path, tmp_path: Path) -> None:
    folder = new_run(tmp_path, ICE)
    train_together([folder])
    jobs.extend([folder], None, 2 * ICE.steps)
    train_together([folder])
    lines = searches(folder)
    assert lines[:5] == searches(ice)
    assert len(lines) == 8  # of the new budget's moments two had passed
    assert tensors(folder)["run.found.searches"] == 8
    np.testing.assert_array_equal(
        tensors(folder)["run.found.models"][0], tensors(ice)["run.found.models"][0], "the first is kept"
    )


def test_searches_are_due_at_fractions_of_the_budget() -> None:
    found, at = some_found(0), list[float]()
    for steps in range(ICE.steps):
        if is_due(found, ICE.budget, 0, steps):
            at.append(steps / ICE.steps)
            found = dataclasses.replace(found, steps=jnp.int32(steps))
    np.testing.assert_allclose(at, MOMENTS)


def test_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each is worse than the last."""
    places = np.arange(KEPT + 3) / 100

    def players(*_: Any) -> Any:
        return lambda *_: lambda models, purpose, blocks: Scores(np.zeros(len(models)), -models[:, 0])

    monkeypatch.setattr(adversary, "make_player_of", players)
    found = some_found(0)
    for place in places:
        monkeypatch.setattr(adversary, "worst_of", lambda *_, place=place: np.full(2, place))
        found = make_find(ICE.make_learner().view, BOX)(np.zeros(1), found, 0, lambda part: None)
        assert found.joined
    assert found.count == found.searches == KEPT + 3
    np.testing.assert_allclose(np.sort(found.models[:, 0]), places[3:], rtol=1e-6)


def test_without_an_adversary_nothing_of_it_is_stored(plain: Path) -> None:
    assert not any("found" in name for name in tensors(plain))
    assert "adversary" not in PLAIN.to_json()
    assert not any(name.startswith("found") for line in metrics(plain) for name in line)


# --- trials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [SMALL["env"], SIMULATED["env"]])
@pytest.mark.parametrize(("tail", "joined"), [(1.0, 3), (0.5, 3), (0.5, 0)])
def test_trials_are_on_found_models_too(env: str, tail: float, joined: int) -> None:
    config = by_steps(env=env, trial_tail=tail)
    program = loop.make_program(config)
    belief = jax.tree.map(jnp.zeros_like, program.init(jax.random.key(0)).agent.belief)  # all equal: the first, to run
    places = np.array([[0.905, 0.205], [0.1, 0.9], [0.905, 0.3]])
    found = some_found(joined)
    found = dataclasses.replace(found, models=found.models.at[:3].set(places))
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (belief, found))
    drawn = sample_box(jax.random.split(jax.random.key(TRIAL.seed))[0], BOX, (4,), config.edges)
    models = np.concatenate([np.stack([drawn["east"], drawn["north"]], axis=1), places[:joined]])
    away = np.abs(models - [0.905, 0.205]).sum(axis=1)
    returns = np.sort(np.where([in_pocket(model) for model in models], -5.0, 1.0 + 0.1 * away))
    expected = returns[: max(1, round(tail * len(models)))].mean()
    assert float(make_trial(config, program, TRIAL)(*one)[0]) == pytest.approx(expected, rel=1e-5)


def test_the_best_weights_are_tried_again() -> None:
    """Where something has joined, and where there was a trial; early weights too."""
    seeds, none = np.arange(3.0), jnp.zeros((3, 0))
    early = Best(jnp.array(seeds + 10), jnp.array([7.0, -jnp.inf, 7.0]), jnp.zeros(3, int), none)
    best = Best(jnp.array(seeds), jnp.array([5.0, 5.0, 5.0]), jnp.zeros(3, int), none, early)
    again = tried_again(best, lambda belief: belief - 100, np.array([True, True, False]))
    assert again.trial_return.tolist() == [-100.0, -99.0, 5.0]
    assert again.early
    assert again.early.trial_return.tolist() == [-90.0, -np.inf, 7.0]


# --- the command, and what is refused -----------------------------------------------------------------------------


def test_the_command_says_what_was_found(ice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--resume", str(ice)])
    said = " ".join(capsys.readouterr().out.split())
    assert "held-out models and those that the adversary has found worst models found run" in said
    assert "searched at success return east north joined" in said
    assert "step 80 0 % -5.0 0.9" in said
    assert "no, the set had one as bad" in said
    with ICE.arithmetic():
        score = runs.best_trial(ice, ICE.make_learner())
    assert f" {score:.1f} the best weights are" in said


def test_the_command_says_if_there_was_no_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (SMALL | LEARNING | dict(steps=20)).items()]
    words = [word for word in words if not word.startswith("--hidden")]
    main(["train", "rtd_dqn", "--preset", "tuned", *words, "--adversary", "stress", "--out", str(tmp_path / "run")])
    assert "the budget was too short for a search of the adversary" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("rtd_dqn", dict(fixed_models="pole_length=0.3:0.5:2"), "but fixed_models lists the whole set"),
        ("ddqn", {}, "but acting is 'nominal' and ddqn has no worst case over models, so that no model could join"),
        ("epopt", dict(acting="nominal"), "but acting is 'nominal' and epopt has no worst case over models"),
        ("rtd_dqn", dict(models=1), "but models is 1: a found model would be the whole set; raise models"),
        ("ddqn_dr", dict(models=1, acting="member"), "but models is 1"),
    ],
)
def test_where_nothing_can_join_is_one_sentence(algorithm: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        make_config(algorithm, **changes, adversary="stress")
    assert str(error.value).startswith(f"adversary is 'stress', {said}")


@pytest.mark.parametrize(
    ("algorithm", "value", "said"),
    [
        ("rtd_dqn", "strss", "unknown adversary 'strss'"),
        ("rtd_dqn", 0.25, "unknown adversary '0.25'"),
        ("epopt", "none", "adversary is 'none'; it must be a probability between 0 and 1, or stress"),
    ],
)
def test_another_adversary_is_one_sentence(algorithm: str, value: Any, said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        make_config(algorithm, adversary=value)
    assert str(error.value).startswith(said)


def test_domain_randomisation_and_nominal_acting_can_have_one() -> None:
    for algorithm, changes in (("ddqn_dr", dict(models=1)), ("rtd_dqn", dict(acting="nominal")), ("pg", {})):
        assert make_config(algorithm, **changes, adversary="stress").searches
    assert not make_config("robust_pg", adversary=0.5).searches
