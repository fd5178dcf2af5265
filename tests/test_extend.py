"""Runs that are given a longer budget go on as if they had had it from the beginning, but for schedules."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_trainer import CONFIGS, QUIET, SMALL, assert_same_run, metrics, new_run, score_by, signal_after, tensors

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import jobs
from deeprok.training.loop import progress_of, train_together

#: Nothing in it depends on the budget: ε follows the steps. Runs end within a round of steps.
STEADY = CONFIGS["rtd_dqn"].replace(episodes=12, snapshot_every=5)
SHORT, LONG = 12, 20
SEEDS = (0, 1)

pytestmark = pytest.mark.usefixtures("compiled_once")


def trained(parent: Path, config: Config, seeds: tuple[int, ...] = SEEDS) -> list[Path]:
    """Runs of some seeds, trained together and at once."""
    folders = [new_run(parent, config, seed) for seed in seeds]
    train_together(folders)
    return folders


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds that have ended."""
    return trained(tmp_path_factory.mktemp("short"), STEADY)[0].parent


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with the longer budget from the beginning."""
    return trained(tmp_path_factory.mktemp("long"), STEADY.replace(episodes=LONG))


def copied(short: Path, tmp_path: Path) -> list[Path]:
    return runs.find(Path(shutil.copytree(short, tmp_path / "runs")))


def assert_alike(one: Path, other: Path) -> None:
    """Two programs may round differently; nothing else differs between two runs, but for trials at an earlier end."""
    first, second = (
        {name: array for name, array in tensors(folder).items() if name.startswith("run.")} for folder in (one, other)
    )
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert (array.shape, array.dtype) == (second[name].shape, second[name].dtype), name
        np.testing.assert_allclose(array, second[name], rtol=1e-4, atol=1e-5, err_msg=name)
    returns = [[x for line in metrics(folder) for x in line["returns"]] for folder in (one, other)]
    np.testing.assert_allclose(*returns, rtol=1e-5)


def test_extended_runs_are_those_that_were_longer_from_the_beginning(
    short: Path, at_once: list[Path], tmp_path: Path
) -> None:
    folders = copied(short, tmp_path)
    ends = [progress_of(folder) for folder in folders]
    assert [episodes for _, episodes in ends] == [SHORT, SHORT]
    assert all(steps % STEADY.learner.chunk_steps for steps, _ in ends)  # within a chunk, each in its own place
    assert ends[0][0] != ends[1][0]
    before = [metrics(folder) for folder in folders]
    jobs.resume(folders, jobs=1, episodes=LONG)
    for folder, other, lines in zip(folders, at_once, before, strict=True):
        assert runs.read_config(folder) == runs.read_config(other)
        assert progress_of(folder) == progress_of(other)
        assert progress_of(folder)[1] == LONG
        assert_alike(folder, other)
        assert metrics(folder)[: len(lines)] == lines
        assert tensors(folder)["run.snapshots"].any(axis=1).all()  # those of both parts
        assert tensors(folder)["best.trial_return"] == pytest.approx(
            max(line["trial_return"] for line in metrics(folder) if "trial_return" in line)
        )


def test_an_extended_run_can_be_stopped_and_resumed(short: Path, tmp_path: Path) -> None:
    one, other = (copied(short, tmp_path / name) for name in ("one", "other"))
    for folders in (one, other):
        jobs.extend(folders, episodes=LONG)
    train_together(one)
    with pytest.raises(KeyboardInterrupt):
        train_together(other, signal_after(1))
    train_together(other)
    for pair in zip(one, other, strict=True):
        assert_same_run(*pair)  # the same program, bit for bit


def test_an_unfinished_run_is_given_a_longer_budget(at_once: list[Path], tmp_path: Path) -> None:
    folders = [new_run(tmp_path, STEADY, seed) for seed in SEEDS]
    with pytest.raises(KeyboardInterrupt):
        train_together(folders, signal_after(1))
    jobs.resume(folders, jobs=1, episodes=LONG)
    for pair in zip(folders, at_once, strict=True):
        assert_alike(*pair)


def test_a_run_that_has_not_begun_is_given_a_longer_budget(tmp_path: Path) -> None:
    folder = new_run(tmp_path, STEADY)
    jobs.extend([folder], steps=500)
    assert runs.read_config(folder).budget == (0, 500)


SCHEDULED: dict[str, tuple[Config, dict[str, int]]] = {
    # A replay buffer that is written over, and a budget of steps that becomes one of episodes.
    "replay": (STEADY.replace(replay_size=64, episodes=0, steps=130), {"episodes": LONG}),
    "masks": (
        make_config("boot_rtd", "tuned", **SMALL | dict(episodes=SHORT), members=2, mask=0.5),
        {"episodes": LONG},
    ),
    "corrected": (
        make_config(
            "ekf_dqn", "tuned", **SMALL | dict(episodes=SHORT), **QUIET, covariance="diagonal", recalibrate=True
        ),
        {"episodes": LONG},
    ),
    "trajectories": (
        make_config("epopt", "tuned", hidden=(4,), horizon=30, trajectories=8, episodes=16, trial_models=2),
        {"episodes": 40},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULED)
def test_what_other_runs_carry_along(tmp_path: Path, name: str) -> None:
    config, budget = SCHEDULED[name]
    (longer,) = trained(tmp_path / "long", config.replace(**budget), (0,))
    (folder,) = trained(tmp_path / "short", config, (0,))
    jobs.resume([folder], jobs=1, **budget)
    assert_alike(folder, longer) if name != "replay" else _but_for_snapshots(folder, longer)


def _but_for_snapshots(one: Path, other: Path) -> None:
    """A budget of steps takes none."""
    theta = [tensors(folder)["run.agent.belief.theta"] for folder in (one, other)]
    np.testing.assert_allclose(*theta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(tensors(folder)["run.agent.memory"] for folder in (one, other)), rtol=1e-4, atol=1e-5)


def test_a_simulator_goes_on_within_a_chunk(tmp_path: Path) -> None:
    small = SMALL | dict(env="CartPole-v1", episodes=4, train_every=2, chunk_steps=60)
    config = make_config("ddqn", "tuned", **{name: value for name, value in small.items() if name != "models"})
    (longer,) = trained(tmp_path / "long", config.replace(episodes=7), (0,))
    (folder,) = trained(tmp_path / "short", config, (0,))
    assert progress_of(folder)[0] % 60
    jobs.resume([folder], jobs=1, episodes=7)
    assert_alike(folder, longer)


def test_schedules_are_those_of_the_longer_budget(short: Path, tmp_path: Path) -> None:
    config = STEADY.replace(episodes=0, steps=200, epsilon_fraction=0.5, epsilon_start=1.0, epsilon_end=0.0)
    (folder,) = trained(tmp_path, config, (0,))
    assert [line["epsilon"] for line in metrics(folder)] == pytest.approx([0.0, 0.0])
    jobs.resume([folder], jobs=1, steps=800)
    # Over half of 800 steps, from the step on that the run had come to.
    found = {line["steps"]: line["epsilon"] for line in metrics(folder)}
    assert found == pytest.approx(
        {step: 0.0 if step <= 200 else max(0.0, 1 - step / 400) for step in range(100, 900, 100)}
    )


def test_a_settled_run_goes_on_from_the_weights_that_it_ended_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its best trial, if they passed the exam; the last ones are not stored."""
    config = CONFIGS["averaged"].replace(episodes=0, steps=300, settle=True)
    warm_up = config.learner.warm_up
    score_by(monkeypatch, lambda belief: -1.0 * belief.updates, lambda belief: -1.0 * belief.updates)
    (folder,) = trained(tmp_path, config, (0,))
    assert tensors(folder)["run.agent.belief.updates"] == tensors(folder)["best.belief.updates"] == 100 - warm_up
    score_by(monkeypatch, lambda belief: 1.0 * belief.updates, lambda belief: 1.0 * belief.updates)
    jobs.resume([folder], jobs=1, steps=400)
    assert tensors(folder)["run.agent.belief.updates"] == 100 - warm_up + 100
    assert tensors(folder)["run.steps"] == 400


# --- what is refused, and what users read ---------------------------------------------------------------------------


def kept(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != runs.LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


REFUSED: dict[str, tuple[str, str]] = {
    "fewer": ("--episodes 5", "episodes is 5, but {}/seed-0 has done 12 already; give more"),
    "fewer steps": ("--steps 50", "steps is 50, but {}/seed-0 has done "),
    "both": ("--episodes 20 --steps 50", "steps is 50, but {}/seed-0 has done "),
    "negative": ("--episodes=-1", "episodes is -1; it must be"),
    "no limit": ("--episodes 0", "episodes and steps are both 0"),
    "no number": ("--steps many", "--steps is 'many'; it must be a whole number"),
    "setting": ("--discount 0.5", "--discount can't be given with --resume"),
    "setting beside it": ("--episodes 20 --seed 3", "--seed can't be given with --resume"),
    "jobs": ("--episodes 20 --jobs 0", "jobs is 0; it must be at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_budgets_that_are_refused(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    words, said = REFUSED[name]
    folder = copied(short, tmp_path)[0].parent
    before = kept(folder)
    assert main(["train", "--resume", str(folder), *words.split()]) == 2
    err = capsys.readouterr().err
    assert said.format(folder) in err
    assert err.count("\n") == 1
    assert kept(folder) == before


def test_no_seed_is_extended_unless_all_can_be(short: Path, tmp_path: Path) -> None:
    folders = copied(short, tmp_path)
    checkpoint = folders[1] / runs.CHECKPOINT
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    before = kept(tmp_path)
    with pytest.raises(DeeprokError, match="damaged or cut short"):
        jobs.extend(folders, episodes=LONG)
    assert kept(tmp_path) == before
    checkpoint.write_bytes(whole)
    with runs.hold(folders[1:]), pytest.raises(DeeprokError, match="is in use by process"):
        jobs.extend(folders, episodes=LONG)
    assert runs.read_config(folders[0]).episodes == SHORT


def test_a_kill_between_two_seeds_is_mended_by_the_same_call(short: Path, tmp_path: Path) -> None:
    folders = copied(short, tmp_path)
    jobs.extend(folders[:1], episodes=LONG)
    jobs.extend(folders, episodes=LONG)
    assert [runs.read_config(folder).episodes for folder in folders] == [LONG, LONG]


def test_runs_of_several_simulators_that_ended_between_their_steps(
    short: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = copied(short, tmp_path)[0]
    steps, _ = progress_of(folder)
    changed = dataclasses.replace(runs.read_config(folder), episodes=LONG, simulators=steps + 1)
    monkeypatch.setattr(Config, "replace", lambda config, **changes: changed)
    with pytest.raises(DeeprokError, match=f"ended between the steps of its {steps + 1} simulators"):
        jobs.extend([folder], episodes=LONG)


@pytest.mark.parametrize("settle", [False, True])
def test_the_command_says_what_happens(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, settle: bool
) -> None:
    folders = copied(short, tmp_path)
    for folder in folders:
        config = dataclasses.replace(runs.read_config(folder), settle=settle)
        (folder / runs.CONFIG).write_text(config.to_json())
    trained_on: list[Any] = []
    monkeypatch.setattr(jobs, "resume", lambda folders, *_, **__: trained_on.append(list(folders)))
    assert main(["train", "--resume", str(folders[0].parent), "--steps", "900"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"{folders[0].parent} goes on to 900 steps; schedules that are fractions of the budget are those of the" in said
    )
    assert ("from the weights that it had settled on" in said) == settle
    assert [runs.read_config(folder).budget for folder in folders] == [(0, 900)] * 2
    assert trained_on == [folders]
    # The same budget again changes nothing and says nothing.
    assert main(["train", "--resume", str(folders[0].parent), "--steps", "900"]) == 0
    assert "goes on to" not in capsys.readouterr().err


def test_the_budget_that_a_finished_run_has_leaves_it_alone(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(short, tmp_path)[0].parent
    before = kept(folder)
    assert main(["train", "--resume", str(folder), "--episodes", str(SHORT)]) == 0
    assert "is finished: nothing to do" in " ".join(capsys.readouterr().err.split())
    assert kept(folder) == before


def test_a_replay_buffer_that_was_written_over_fits_no_other(short: Path, tmp_path: Path) -> None:
    folder = copied(short, tmp_path)[0]
    config = dataclasses.replace(STEADY.learner, replay_size=50)
    (folder / runs.CONFIG).write_text(dataclasses.replace(STEADY, learner=config, episodes=LONG).to_json())
    with pytest.raises(DeeprokError, match=r"'run\.agent\.memory' is float32\[\d+, \d+\] where the settings ask for"):
        train_together([folder])
