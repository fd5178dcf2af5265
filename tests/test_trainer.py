from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from configurations import make_readable
from scipy import stats

import deeprok
from deeprok.core.errors import DeeprokError, DivergedError
from deeprok.estimators import Fit, Health, ekf
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import best
from deeprok.training import loop as trainer
from deeprok.training.loop import Report, interruptions, progress_of, train_together
from deeprok.training.scan import Log
from deeprok.uncertainty import sample_box

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=30, horizon=40, models=3, batch_size=4, warm_up=20, target_period=50, epsilon_steps=300,
    chunk_steps=100, trial_every=1, trial_models=4,
)  # fmt: skip
CARTPOLE_BOX = {"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)}
QUIET: dict[str, Any] = dict(observation_noise=1.0, process_noise=1e-4)
CONFIGS: dict[str, Config] = {
    # Runs that end within a round of steps, and trials that are rarer than chunks.
    "rtd_dqn": make_config("rtd_dqn", "tuned", **SMALL | dict(train_every=2, trial_every=2)),
    "averaged": make_config("deep_rok", "tuned", **SMALL, **QUIET, batching="averaged"),
    # All that a belief or an agent may carry along: drawn weights, a gain and a noise that are followed.
    "directed": make_config(
        "deep_rok",
        "tuned",
        **SMALL,
        **QUIET,
        batching="joint",
        covariance="low_rank",
        rank=2,
        explore="thompson",
        confidence="spread",
        level_start=1.0,
        updates=2,
        window=20,
        noise_share=0.1,
        precision="float64",
    ),
    "backprop": make_config("bbb_rtd", "tuned", **SMALL, explore="thompson", weight_prior="mixture"),
    "ensemble": make_config("boot_rtd", "tuned", **SMALL, members=3, updates=2, epsilon_end=0.1, refine_from=0.5),
    "actor": make_readable(
        "rok_td3", "tuned", **SMALL, **QUIET, covariance="diagonal", updates=2, normalise=True, refine_from=0.5
    ),
    "langevin": make_config("psgld_rtd", "tuned", **SMALL, explore="thompson", burn_in=50, thinning=7, members=5),
    # All that a point estimate may carry along: units, an average, a repeated action, the last steps; and best weights
    # to go back to on the way and to end with.
    "settled": make_config(
        "rtd_dqn",
        "tuned",
        **SMALL,
        **dict(
            memory=3,
            updates=2,
            normalise=True,
            averaging=0.1,
            longest_repeat=4,
            epsilon_fraction=0.5,
            trial_tail=0.5,
            refine_from=0.5,
            settle=True,
        ),
    ),
    "unscented": make_readable("ktd_rtd", **SMALL | dict(batch_size=1), explore="thompson", prior_covariance=0.1),
}
FRAGILE: dict[str, Any] = SMALL | dict(warm_up=100, chunk_steps=50, epsilon_steps=100_000)
# Seed 3 breaks down as soon as it learns; seed 6 has done its episodes by then.
WILD = make_config("rtd_dqn", "tuned", **FRAGILE | dict(episodes=3), optimizer="sgd", learning_rate=1e6)

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`uninterrupted(name, seed=0)` -> the folder of a run of `CONFIGS`, trained alone and at once."""

    @functools.cache
    def folder(name: str, seed: int = 0) -> Path:
        folder = new_run(tmp_path_factory.mktemp(name), CONFIGS[name], seed)
        train_together([folder])
        return folder

    return folder


def new_run(parent: Path, config: Config, seed: int = 0) -> Path:
    folder = parent / f"seed-{seed}"
    runs.create(folder, dataclasses.replace(config, seed=seed))
    return folder


def signal_after(chunks: int, times: int = 1) -> Report:
    """A report that sends Ctrl-C after so many chunks."""
    assert threading.current_thread() is threading.main_thread()
    seen = itertools.count(1)

    def report(folder: Path, line: dict[str, Any]) -> None:
        if next(seen) == chunks:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return report


def interrupt(folder: Path, chunks: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_together([folder], signal_after(chunks))


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / runs.CHECKPOINT)


def bits(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in tensors(folder).items()}


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / runs.METRICS).read_text().splitlines()]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    differing = [name for name, value in bits(one).items() if bits(other)[name] != value]
    assert differing == []
    assert metrics(one) == metrics(other)


def test_checkpoint_holds_everything(uninterrupted) -> None:
    names = set(tensors(uninterrupted("averaged")))
    belief = {"theta", "P.groups.0", "observation_noise", "updates"}
    episode = {"state", "obs", "step", "earned"} | {
        f"{kind}.{name}" for kind in ("acting", "models") for name in ("pole_length", "cart_mass")
    }
    assert names == {
        *(f"run.agent.belief.{name}" for name in belief),
        *(f"run.episode.{name}" for name in episode),
        *(f"best.belief.{name}" for name in belief),
        *(
            "run.agent.target",
            "run.agent.memory",
            "run.agent.drawn",
            "run.agent.gains",
            "run.agent.repeating",
            "run.key",
            "run.episodes",
            "run.steps",
            "run.snapshots",
            "run.held",
        ),
        *("best.trial_return", "best.steps", "best.progress"),
    }
    adam = {name.rpartition(".")[2] for name in tensors(uninterrupted("rtd_dqn")) if "belief.optimizer" in name}
    assert {"count", "mu", "nu"} <= adam


SLOW = (
    "actor",
    "backprop",
    "directed",
    "ensemble",
    "langevin",
    "unscented",
)  # kept as the others are; they take long to compile


def each(*names: str) -> Any:
    """A test for each of these settings, of which some are slow."""
    marked = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]
    return pytest.mark.parametrize("name", marked)


@each(*CONFIGS)
def test_resumed_equals_uninterrupted(uninterrupted, tmp_path: Path, name: str) -> None:
    folder = new_run(tmp_path, CONFIGS[name])
    for chunks in (1, 2):
        interrupt(folder, chunks)
    steps, episodes = progress_of(folder)
    assert steps == 3 * CONFIGS[name].learner.chunk_steps == metrics(folder)[-1]["steps"]
    assert 0 < episodes < CONFIGS[name].episodes
    assert tensors(folder)["run.episode.step"] > 0  # within an episode
    train_together([folder])
    assert progress_of(folder)[1] == CONFIGS[name].episodes
    assert_same_run(folder, uninterrupted(name))


def test_seeds_differ(uninterrupted) -> None:
    first, second = (tensors(uninterrupted("rtd_dqn", seed)) for seed in (0, 1))
    assert not np.array_equal(first["run.agent.belief.theta"], second["run.agent.belief.theta"])
    assert not np.array_equal(first["run.agent.memory"], second["run.agent.memory"])


TAILS = {
    "later lines": lambda line: "".join(json.dumps({**line, "steps": s}) + "\n" for s in (201, 300)),
    "half a line": lambda line: json.dumps({**line, "steps": 300})[:40],
    "both": lambda line: json.dumps({**line, "steps": 300}) + "\n" + '{"steps": 4',
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_metrics_beyond_the_checkpoint_are_forgotten(uninterrupted, tmp_path: Path, tail: Any) -> None:
    folder = new_run(tmp_path, CONFIGS["rtd_dqn"])
    interrupt(folder, 2)
    with open(folder / runs.METRICS, "a") as file:
        file.write(tail(metrics(folder)[-1]))
    train_together([folder])
    assert_same_run(folder, uninterrupted("rtd_dqn"))


def test_finished_run_is_left_alone(uninterrupted) -> None:
    folder = uninterrupted("rtd_dqn")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    train_together([folder], lambda folder, line: pytest.fail("a finished run went on"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of three seeds, trained together and at once."""
    folders = [new_run(tmp_path_factory.mktemp("group"), CONFIGS["rtd_dqn"], seed) for seed in SEEDS]
    reported: list[tuple[Path, int]] = []
    train_together(folders, lambda folder, line: reported.append((folder, line["steps"])))
    for folder in folders:
        assert [steps for path, steps in reported if path == folder] == [line["steps"] for line in metrics(folder)]
    assert len({len(metrics(folder)) for folder in folders}) > 1  # they did not all finish in the same chunk
    return folders


def interrupted_group(parent: Path, reports: int) -> list[Path]:
    folders = [new_run(parent, CONFIGS["rtd_dqn"], seed) for seed in SEEDS]
    with pytest.raises(KeyboardInterrupt):
        train_together(folders, signal_after(reports))
    return folders


def assert_same_runs(some: list[Path], others: list[Path]) -> None:
    for one, other in zip(some, others, strict=True):
        assert_same_run(one, other)


@pytest.mark.slow
@pytest.mark.bits
def test_seeds_in_step_give_what_each_gives_alone_to_rounding(tmp_path: Path) -> None:
    for seed, group_member in enumerate(interrupted_group(tmp_path / "together", 1)):
        folder = new_run(tmp_path / "alone", CONFIGS["rtd_dqn"], seed)
        interrupt(folder, 1)
        one, among = tensors(folder), tensors(group_member)
        assert one.keys() == among.keys()
        for name, value in one.items():
            # Some forty updates: rounding is far below what another mini-batch or another start would do.
            np.testing.assert_allclose(among[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        assert metrics(folder)[0]["returns"] == metrics(group_member)[0]["returns"]


def test_interrupted_group(group: list[Path], tmp_path: Path) -> None:
    folders = interrupted_group(tmp_path, 4)  # the first report of the second chunk
    assert [progress_of(folder)[0] for folder in folders] == [200] * 3
    train_together(folders)
    assert_same_runs(folders, group)


@pytest.mark.bits
def test_group_with_a_finished_run(group: list[Path], tmp_path: Path) -> None:
    first = min(len(metrics(folder)) for folder in group)
    folders = interrupted_group(tmp_path, 3 * first)
    done = [progress_of(folder)[1] for folder in folders]
    assert min(done) < max(done) == CONFIGS["rtd_dqn"].episodes
    train_together([folder for folder, episodes in zip(folders, done, strict=True) if episodes < max(done)])
    assert_same_runs(folders, group)


@pytest.mark.bits
def test_group_whose_runs_stand_at_different_steps(group: list[Path], tmp_path: Path) -> None:
    """As a kill between two checkpoints leaves it."""
    folders = interrupted_group(tmp_path, 1)
    early = (folders[1] / runs.CHECKPOINT).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        train_together(folders, signal_after(4))
    (folders[1] / runs.CHECKPOINT).write_bytes(early)
    (folders[2] / runs.CHECKPOINT).unlink()
    assert [progress_of(folder)[0] for folder in folders] == [300, 100, 0]
    train_together(folders)
    assert_same_runs(folders, group)


def test_group_of_which_one_goes_on(group: list[Path], tmp_path: Path) -> None:
    folders = interrupted_group(tmp_path, 4)
    shutil.rmtree(folders[0])
    train_together([folders[1]])
    assert_same_run(folders[1], group[1])
    assert progress_of(folders[2])[0] == 200


@pytest.mark.parametrize(
    "text", ['{"seeds": [1, 2]}', '{"seeds": [0, 0]}', '{"seeds": "0"}', '{"seeds": [-1]}', "{}", "[]", "", "[" * 10**5]
)
def test_damaged_group(tmp_path: Path, text: str) -> None:
    folder = new_run(tmp_path, CONFIGS["rtd_dqn"])
    (folder / runs.GROUP).write_text(text)
    with pytest.raises(DeeprokError, match=r"group\.json") as error:
        train_together([folder])
    assert "\n" not in str(error.value)


@each(*sorted(CONFIGS.keys() - {"settled", "actor"}))
def test_metrics_lines(uninterrupted, name: str) -> None:
    config, folder = CONFIGS[name], uninterrupted(name)
    lines = metrics(folder)
    steps, episodes = progress_of(folder)
    returns = [x for line in lines for x in line["returns"]]
    assert (lines[-1]["steps"], lines[-1]["episodes"]) == (steps, episodes)
    assert [line["steps"] for line in lines[:-1]] == [
        config.learner.chunk_steps * (i + 1) for i in range(len(lines) - 1)
    ]
    assert len(returns) == config.episodes
    assert all(1 <= x <= config.environment.horizon for x in returns)
    # A step earns 1, the one that fails 0; only an episode that was cut off earns its full length.
    assert sum(returns) + sum(x < config.environment.horizon for x in returns) == steps
    assert np.isfinite([line["loss"] for line in lines]).all()
    assert all(("innovation_variance" in line) == (name not in ("rtd_dqn", "ensemble")) for line in lines)
    follows = getattr(config.estimator, "noise_share", 0.0) > 0
    assert all(("observation_noise" in line) == follows for line in lines)
    by_chance = getattr(config.learner, "explore", "epsilon") == "epsilon"
    first, last = config.learner.epsilon_start, config.learner.epsilon_end
    assert lines[0]["epsilon"] == pytest.approx(first + (last - first) * 100 / 300 if by_chance else 0.0)
    tried = [i for i, line in enumerate(lines) if "trial_return" in line]
    due = {i for i in range(len(lines)) if (i + 1) % config.trial_every == 0} | {len(lines) - 1}
    assert tried == sorted(due)


@each(*sorted(CONFIGS.keys() - {"settled", "ensemble", "actor"}))
def test_best_is_the_best_trial(uninterrupted, tmp_path: Path, name: str) -> None:
    folder = uninterrupted(name)
    trials = [(line["trial_return"], line["steps"]) for line in metrics(folder) if "trial_return" in line]
    score, steps = max(trials, key=lambda trial: trial[0])
    stored = tensors(folder)
    assert (stored["best.trial_return"], stored["best.steps"]) == (np.float32(score), steps)
    if steps < stored["run.steps"]:
        again = new_run(tmp_path, CONFIGS[name])
        interrupt(again, steps // CONFIGS[name].learner.chunk_steps)
        best = tensors(again)["run.agent.belief.theta"]
    else:
        best = stored["run.agent.belief.theta"]
    np.testing.assert_array_equal(stored["best.belief.theta"], best)


def score_by(monkeypatch: pytest.MonkeyPatch, trial: Callable[[Any], Any], exam: Callable[[Any], Any] = len) -> None:
    """Trials, and the exam in the end, give what functions of the beliefs do."""
    told = {trainer.TRIAL: trial, trainer.EXAM: exam}
    monkeypatch.setattr(trainer, "make_trial", lambda config, program, trials: told[trials])


@pytest.mark.parametrize("name", ["averaged", "rtd_dqn"])
def test_of_equal_trials_the_first_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = CONFIGS[name]
    scores = itertools.cycle([5.0, 7.0, 7.0, 6.0])
    score_by(monkeypatch, lambda belief: jnp.full(1, next(scores), "float32"))
    folder = new_run(tmp_path, config)
    train_together([folder])
    stored = tensors(folder)
    # The second that is tried, which is not every chunk.
    second = 2 * config.trial_every * config.learner.chunk_steps
    assert (stored["best.trial_return"], stored["best.steps"]) == (7.0, second)
    assert stored["run.steps"] > second


def trial(belief: float, trials: Any = trainer.TRIAL, /, **changes: Any) -> float:
    """A trial's mean return with weights that all have one value."""
    config = CONFIGS["rtd_dqn"].replace(**changes)
    program = trainer.make_program(config)
    fresh = jax.eval_shape(program.init, jax.random.key(0)).agent.belief
    filled = jax.tree.map(lambda leaf: jnp.full((1, *leaf.shape), belief, leaf.dtype), fresh)
    return float(trainer.make_trial(config, program, trials)(filled)[0])


def test_trials_are_on_models_of_the_box() -> None:
    short, long = (f"pole_length={low}:{low + 0.1},cart_mass=1:1.1" for low in (0.1, 2.0))
    assert trial(0.0, box=long) > 2 * trial(0.0, box=short)


def test_trials_have_random_actions() -> None:
    greedy = trial(0.0, trial_epsilon=0.0), trial(-1.0, trial_epsilon=0.0)
    by_chance = trial(0.0, trial_epsilon=1.0), trial(-1.0, trial_epsilon=1.0)
    assert by_chance[0] == by_chance[1]  # whatever the weights
    assert by_chance[0] > max(greedy) + 1


def test_band_of_consistent_innovations(uninterrupted) -> None:
    config = CONFIGS["averaged"]
    for line, updates in zip(
        metrics(uninterrupted("averaged")), (config.learner.chunk_steps - config.learner.warm_up, 100), strict=False
    ):
        count = updates * config.learner.batch_size
        low, high = line["consistency_band"]
        assert stats.chi2.cdf(low * count, count) == pytest.approx(0.025)
        assert stats.chi2.cdf(high * count, count) == pytest.approx(0.975)


@pytest.mark.slow
def test_prior_has_random_numbers_of_its_own(uninterrupted, tmp_path: Path) -> None:
    source = uninterrupted("backprop")
    streams = [tensors(source)["run.agent.belief.stream"]]
    for seed in (0, 1):
        config = CONFIGS["backprop"].replace(prior=str(source), seed=seed)
        runs.create(tmp_path / str(seed), config)
        streams.append(safetensors.numpy.load_file(tmp_path / str(seed) / runs.PRIOR)["belief.stream"])
    assert len({stream.tobytes() for stream in streams}) == 3


def test_best_and_last_weights(uninterrupted) -> None:
    folder = uninterrupted("averaged")
    stored = tensors(folder)
    assert stored["best.steps"] < stored["run.steps"]
    learner = trainer.make_program(CONFIGS["averaged"]).learner
    best, last = (runs.load_belief(folder, learner, keep) for keep in runs.KEEPS)
    for prefix, belief in (("best.belief", best), ("run.agent.belief", last)):
        np.testing.assert_array_equal(belief.theta, stored[f"{prefix}.theta"])
        np.testing.assert_array_equal(belief.P.groups[0], stored[f"{prefix}.P.groups.0"])
        assert belief.updates == stored[f"{prefix}.updates"]
    assert not np.array_equal(best.theta, last.theta)
    assert best.updates < last.updates
    assert runs.best_trial(folder, learner) == stored["best.trial_return"]


BREAKDOWNS = {
    "sgd": (WILD, "lower --learning-rate (now 1e+06)"),
    "kalman": (
        make_config("ekf_dqn", "tuned", **FRAGILE | dict(episodes=60), learning_rate=1e30),
        "raise --observation-noise (now 0.12)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["averaged", "joint"])
def test_noise_below_what_float32_can_carry_does_no_harm(tmp_path: Path, batching: str) -> None:
    tiny = dict(observation_noise=1e-30, process_noise=0.0, prior_covariance=1.0, episodes=60, batching=batching)
    folder = new_run(tmp_path, make_config("ekf_dqn", "tuned", **FRAGILE | tiny), seed=3)
    train_together([folder])
    lines = metrics(folder)
    assert sum(line.get("floored", 0) for line in lines) > 100
    assert all(line["variances"][0] > 0 for line in lines)


@pytest.mark.parametrize(
    ("config", "remedy"),
    [pytest.param(*its, id=name, marks=[pytest.mark.slow] * (name == "sgd")) for name, its in BREAKDOWNS.items()],
)
def test_breakdown_keeps_the_last_good_checkpoint(tmp_path: Path, config: Config, remedy: str) -> None:
    folder = new_run(tmp_path, config, seed=3)
    interrupt(folder, 1)
    before = (folder / runs.CHECKPOINT).read_bytes()
    with pytest.raises(DivergedError) as error:
        train_together([folder])
    message = str(error.value)
    last = metrics(folder)[-1]["steps"]
    assert message.startswith(f"seed 3: between steps {last} and ")
    assert last >= 100  # it learned nothing before
    assert remedy in message
    assert f"{folder} keeps its checkpoint of step 50" in message
    assert "\n" not in message
    assert (folder / runs.CHECKPOINT).read_bytes() == before
    assert np.isfinite(tensors(folder)["run.agent.belief.theta"]).all()
    assert "NaN" not in (folder / runs.METRICS).read_text()
    # Gone on with from there it meets the same end.
    with pytest.raises(DeeprokError) as again:
        train_together([folder])
    assert str(again.value) == message


def test_breakdown_in_a_group(tmp_path: Path) -> None:
    folders = [new_run(tmp_path, WILD, seed) for seed in (6, 3)]
    with pytest.raises(DeeprokError, match=r"^seed 3: between steps 100 and ") as error:
        train_together(folders)
    assert "seed 6" not in str(error.value)
    assert [progress_of(folder)[1] for folder in folders] == [3, 0]
    before = bits(folders[0])
    # Trained on, the one meets the same end, and the other is left alone.
    with pytest.raises(DeeprokError) as again:
        train_together(folders)
    assert str(again.value) == str(error.value)
    assert bits(folders[0]) == before


def test_breakdown_before_the_first_checkpoint(tmp_path: Path) -> None:
    folder = new_run(tmp_path, WILD, seed=3)
    with pytest.raises(DeeprokError, match="it had no checkpoint yet"):
        train_together([folder])
    assert not (folder / runs.CHECKPOINT).exists()


@pytest.fixture
def broken_belief() -> Callable[..., str | None]:
    """What is said of a Kalman run with a certain belief after a chunk."""
    config = CONFIGS["averaged"]
    program = trainer.make_program(config)
    states = jax.tree.map(lambda x: np.array(x)[None], jax.jit(program.init)(jax.random.key(0)))

    def said(theta: float = 0.0, P: Any = np.eye, variance: float = 1.0) -> str | None:
        n = states.agent.belief.theta.shape[1]
        belief = ekf(prior_covariance=P(n)).init(jnp.full(n, theta))
        stacked = jax.tree.map(lambda x: x[None], belief)
        state = dataclasses.replace(states, agent=dataclasses.replace(states.agent, belief=stacked))
        health = Health(np.array([[1.0] * 99 + [variance]]), *[np.zeros((1, 100))] * 2)
        log = Log(np.zeros(1), np.zeros(1), np.ones((1, 100), bool), Fit(np.zeros((1, 100)), health))
        spread = trainer.make_spread(program.learner)(stacked)
        return trainer.breakdown(state, log, spread, 0, program.learner, config.env)

    return said


def indefinite(n: int) -> np.ndarray:
    P = np.eye(n)
    P[0, 1] = P[1, 0] = 1.1
    return P


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "variance": (dict(variance=-0.5), "innovation variance was not positive (-0.5)"),
    "no variance": (dict(variance=0.0), "innovation variance was not positive (0)"),
    "undefined variance": (dict(variance=np.nan), "innovation variance was not positive (nan)"),
    "weights": (dict(theta=np.nan), "infinite or not a number"),
    "infinite weights": (dict(theta=np.inf), "infinite or not a number"),
    "covariance": (dict(P=indefinite), "stopped being a distribution"),
    "undefined covariance": (dict(P=lambda n: np.full((n, n), np.nan)), "stopped being a distribution"),
}


@pytest.mark.parametrize(("belief", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_breakdown_is_noticed(broken_belief, belief: dict[str, Any], problem: str) -> None:
    assert broken_belief() is None
    said = broken_belief(**belief)
    assert problem in said
    assert "raise --observation-noise (now 1)" in said


@pytest.mark.parametrize(
    ("algorithm", "env"), [("rtd_dqn", "NO_REWARD"), ("ddqn_dr", "NO_OBSERVATION"), ("pg", "NO_REWARD")]
)
def test_numbers_that_the_environment_spoilt_are_not_the_learning_rates_fault(
    algorithm: str, env: str, tmp_path: Path
) -> None:
    small = {} if algorithm == "pg" else dict(warm_up=8, batch_size=8, chunk_steps=40, settle=False)
    config = make_config(algorithm, env=f"probe_envs:{env}", steps=400, hidden=(4,), trial_models=2, **small)
    with pytest.raises(DeeprokError) as error:
        train_together([new_run(tmp_path, config)])
    assert "the environment gave an observation or a reward that is not finite: see what " in str(error.value)
    assert f"`deeprok check-env probe_envs:{env}`" in str(error.value)
    assert "rate" not in str(error.value)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("WIDE", "The observation of step is float32[4], but observation_scale has 3; it must have a number for each"),
        ("MANY_REWARDS", "The reward of step is float32[2]; it must be float32[], a number such as jnp.where(fell, 0"),
        ("GROWN", "The state is int32[] after reset and float32[2] after a step; a step must keep shapes and types"),
        ("ALONE", "reset returns float32[3]; it must return (state, obs)"),
    ],
)
def test_wrong_shapes_are_one_sentence(env: str, said: str, tmp_path: Path) -> None:
    name = f"probe_envs:{env}"
    with pytest.raises(DeeprokError) as error:
        deeprok.train(make_config("rtd_dqn", env=name), tmp_path / "run", jobs=1)
    assert str(error.value).startswith(f"env is '{name}', but it can't be trained on: {said}")
    assert not (tmp_path / "run").exists()
    found = deeprok.check_environment(name)
    assert any(finding.level == "problem" and finding.sentence.startswith(said) for finding in found)


def test_checkpoint_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    folder = new_run(tmp_path, CONFIGS["rtd_dqn"])
    seen: list[int] = []
    train_together([folder], lambda folder, line: seen.append(progress_of(folder)[0]))
    assert seen == [0, *(line["steps"] for line in metrics(folder)[:-1])]


def test_full_disk_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted) -> None:
    folder = new_run(tmp_path, CONFIGS["rtd_dqn"])
    interrupt(folder, 1)
    before = (folder / runs.CHECKPOINT).read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DeeprokError, match="no space is left"):
            train_together([folder])
    assert (folder / runs.CHECKPOINT).read_bytes() == before
    train_together([folder])
    assert_same_run(folder, uninterrupted("rtd_dqn"))


def test_second_interruption_stops_at_once(tmp_path: Path) -> None:
    folder = new_run(tmp_path, CONFIGS["rtd_dqn"])
    interrupt(folder, 1)
    before = (folder / runs.CHECKPOINT).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        train_together([folder], signal_after(1, times=2))
    assert (folder / runs.CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruptions(number: signal.Signals) -> None:
    old = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with interruptions() as interrupted:
        assert not interrupted.is_set()
        signal.raise_signal(number)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == old


def test_interruptions_are_acknowledged_within_compiled_code() -> None:
    def busy() -> float:
        """Compiled code, during which the main thread sees no signal; ends after this many seconds."""
        began = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)
        return time.monotonic() - began

    acknowledged: list[float] = []
    with interruptions(lambda count: acknowledged.append(time.monotonic())) as interrupted:
        began = time.monotonic()
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        seconds = busy()
        assert interrupted.is_set()
    assert len(acknowledged) == 1
    assert acknowledged[0] < began + seconds  # not only when the main thread was back


def test_interruptions_in_another_thread() -> None:
    found: list[Any] = []

    def enter() -> None:
        with interruptions() as interrupted:
            found.extend([signal.getsignal(signal.SIGINT), interrupted.is_set()])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT), False]


def test_checkpoint_of_other_settings(uninterrupted, tmp_path: Path) -> None:
    folder = new_run(tmp_path, CONFIGS["averaged"].replace(hidden=(5,)))
    shutil.copy(uninterrupted("averaged") / runs.CHECKPOINT, folder)
    with pytest.raises(DeeprokError, match=r"'run\.agent\.belief\.theta' is float32\[30\] .* float32\[37\]"):
        train_together([folder])


@pytest.mark.parametrize("name", ["trial", "exam"])
@pytest.mark.parametrize(("episodes", "tail"), [(1, 1.0), (1, 0.5), (3, 1.0), (3, 0.5), (3, 0.01)])
def test_score_of_a_trial(monkeypatch: pytest.MonkeyPatch, name: str, episodes: int, tail: float) -> None:
    """The mean over the episodes of each model, then over the worst fraction of the models."""
    trials = {"trial": trainer.TRIAL, "exam": trainer.EXAM}[name]
    changes = dict(trial_models=6, trial_episodes=episodes, trial_tail=tail, edges=0.4)
    count = {"trial": 6, "exam": 48}[name]
    luck = np.random.default_rng(0).normal(size=(count, episodes)).astype("float32")

    def play(env: Any, act: Any, models: dict[str, jax.Array], key: jax.Array, epsilon: float) -> jax.Array:
        return models["cart_mass"] + luck.reshape(-1)

    monkeypatch.setattr(best, "play_episodes", play)
    keys = jax.random.split(jax.random.key(trials.seed))
    masses = np.asarray(sample_box(keys[0], CARTPOLE_BOX, (count,), 0.4)["cart_mass"])
    assert 0 < np.sum(np.isin(masses, np.float32([0.1, 7.0]))) < count
    by_model = [np.mean(mass + its) for mass, its in zip(masses, luck, strict=True)]
    worst = sorted(by_model)[: max(1, round(tail * count))]
    assert trial(0.0, trials, **changes) == pytest.approx(np.mean(worst), rel=1e-5)


def test_the_exam_has_other_models_than_the_trials() -> None:
    drawn = [
        sample_box(jax.random.split(jax.random.key(trials.seed))[0], CARTPOLE_BOX, (64 * trials.times,))["cart_mass"]
        for trials in (trainer.TRIAL, trainer.EXAM)
    ]
    assert [len(masses) for masses in drawn] == [64, 512]
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())


@pytest.mark.parametrize("favoured", [pytest.param("late", marks=pytest.mark.slow), "neither", "early"])
def test_a_settled_run_ends_with_the_better_in_the_exam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, favoured: str
) -> None:
    """The trials are for early weights. Seeds end in different chunks, and each is examined at its own end."""
    config = CONFIGS["averaged"].replace(settle=True)
    sign = {"late": 1.0, "neither": 0.0, "early": -1.0}[favoured]
    score_by(monkeypatch, lambda belief: -1.0 * belief.updates, lambda belief: sign * belief.updates)
    folders = [new_run(tmp_path, config, seed) for seed in (0, 1)]
    train_together(folders)
    assert len({len(metrics(folder)) for folder in folders}) == 2
    for folder in folders:
        stored, lines = tensors(folder), metrics(folder)
        assert len(lines) > 1
        kept = lines[0 if favoured == "early" else -1]
        assert stored["best.steps"] == kept["steps"]
        assert stored["best.trial_return"] == kept["trial_return"]
        assert stored["best.belief.updates"] == kept["steps"] - config.learner.warm_up
        assert stored["run.steps"] == lines[-1]["steps"]
        beliefs = [name for name in stored if name.startswith("run.agent.belief.")]
        assert len(beliefs) == 4
        for name in beliefs:
            np.testing.assert_array_equal(stored[name], stored[name.replace("run.agent", "best")])


def test_a_run_goes_back_to_its_best_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first trial after half of the budget, from where it learns on. Early weights are not compared."""
    config = CONFIGS["averaged"].replace(episodes=0, steps=1000, refine_from=0.5)
    updates = {100 * i: 100 * i - config.learner.warm_up for i in range(1, 11)}
    score_by(monkeypatch, lambda belief: -jnp.abs(belief.updates - 1.0 * updates[100]))
    folder = new_run(tmp_path, config)
    train_together([folder])
    lines = metrics(folder)
    assert {line["steps"]: line["returned_to"] for line in lines if "returned_to" in line} == {500: 200}
    stored = tensors(folder)
    assert stored["run.held"] == pytest.approx(0.2)
    assert stored["run.agent.belief.updates"] == updates[200] + 500  # from the steps that were left
    assert stored["best.steps"] == 200


@pytest.mark.parametrize(("sign", "kept"), [(-1.0, 100), (1.0, 500)], ids=["early", "late"])
def test_early_weights_may_be_what_a_settled_run_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: float, kept: int
) -> None:
    """They are none to go back to on the way. The trials are for them, and the exam decides."""
    config = CONFIGS["averaged"].replace(episodes=0, steps=500, refine_from=0.9, settle=True)
    score_by(monkeypatch, lambda belief: -1.0 * belief.updates, lambda belief: sign * belief.updates)
    folder = new_run(tmp_path, config)
    train_together([folder])
    stored = tensors(folder)
    assert (stored["best.early.steps"], stored["best.steps"]) == (100, kept)
    assert stored["run.agent.belief.updates"] == stored["best.belief.updates"] == kept - config.learner.warm_up
    assert stored["run.steps"] == 500


@pytest.mark.parametrize(("slope", "kept"), [(0.0, 500), (-1.0, 200)], ids=["equal", "worse"])
def test_of_equal_weights_to_go_back_to_the_last_are_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slope: float, kept: int
) -> None:
    config = CONFIGS["averaged"].replace(episodes=0, steps=500, refine_from=1.0)
    score_by(monkeypatch, lambda belief: slope * belief.updates)
    folder = new_run(tmp_path, config)
    train_together([folder])
    assert tensors(folder)["best.steps"] == kept


def test_the_level_is_held_where_the_best_weights_had_it() -> None:
    changes = dict(episodes=0, steps=200, refine_from=0.5, confidence="time", level_start=1.0, level_fraction=0.5)
    config = CONFIGS["rtd_dqn"].replace(**changes, robust_level=0.2)
    program = trainer.make_program(config)

    def second_chunk(held: float) -> np.ndarray:
        """The weights after a second half in which the level has reached its end, unless it is held."""
        fresh = jax.vmap(program.init)(jax.random.key(0)[None])
        states, _ = program.advance(jax.tree.map(np.array, fresh), 0)
        states = dataclasses.replace(states, held=jnp.full_like(states.held, held))
        return np.asarray(program.advance(states, 1)[0].agent.belief.theta)

    np.testing.assert_array_equal(second_chunk(0.7), second_chunk(-1.0))
    assert (second_chunk(0.1) != second_chunk(-1.0)).any()


def test_the_weights_that_a_settled_run_ends_with_are_its_best_ones(uninterrupted: Callable[..., Path]) -> None:
    arrays = safetensors.numpy.load_file(uninterrupted("settled") / runs.CHECKPOINT)
    beliefs = {name: array for name, array in arrays.items() if name.startswith("run.agent.belief.")}
    assert beliefs
    for name, array in beliefs.items():
        np.testing.assert_array_equal(array, arrays[name.replace("run.agent", "best")])
    trials = [line["trial_return"] for line in runs.read_metrics(uninterrupted("settled")) if "trial_return" in line]
    assert arrays["best.trial_return"] == pytest.approx(max(trials), rel=1e-6)
