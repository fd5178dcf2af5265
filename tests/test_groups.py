"""Runs compared by their settings: statistics against rliable's, what is found in folders, and what users read."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finished_runs import GOOD, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import deeprok
from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.evaluation import aggregates
from deeprok.evaluation import grid as evaluation
from deeprok.evaluation.aggregates import (
    Resampled,
    improvement_over_tasks,
    iqm_over_tasks,
    mean_over_tasks,
    profile,
    resample,
)
from deeprok.evaluation.groups import compare as comparing
from deeprok.evaluation.groups.compare import read_references
from deeprok.evaluation.groups.report import print_groups
from deeprok.evaluation.groups.result import GroupComparison
from deeprok.evaluation.statistics import probability_of_improvement
from deeprok.runs import folder as runs

# --- statistics ---------------------------------------------------------------------------------------------------

#: What rliable 1.2.0 gives (with arch 7.2.0 and numpy 2.4.6) for the scores of `matrices`: of the first agent the IQM,
#: the mean (20,000 resamples) and the profile at 0.2, 0.5 and 0.8 (10,000), and the probability that it is better
#: (4,000).
RLIABLE: list[dict[str, Any]] = [
    {
        "shape": (5, 4, 6),
        "iqm": (0.548, 0.449, 0.649),
        "mean": (0.5445, 0.4464875, 0.6375),
        "improvement": (0.49583333333, 0.33333333, 0.66666667),
        "profile": [(0.95, 0.85, 1.0), (0.6, 0.4, 0.8), (0.15, 0.0, 0.3)],
    },
    {
        "shape": (10, 7, 3),
        "iqm": (0.59277777778, 0.53361111, 0.64833333),
        "mean": (0.57757142857, 0.51913929, 0.63428571),
        "improvement": (0.56666666667, 0.42619048, 0.70952381),
        "profile": [
            (0.94285714286, 0.88571429, 0.98571429),
            (0.65714285714, 0.55714286, 0.75714286),
            (0.15714285714, 0.08571429, 0.24285714),
        ],
    },
    {
        "shape": (4, 1, 4),
        "iqm": (0.46, -0.13, 0.66),
        "mean": (0.3625, 0.0225, 0.605),
        "improvement": (0.1875, 0.0, 0.5625),
        "profile": [(0.75, 0.25, 1.0), (0.25, 0.0, 0.75), (0.0, 0.0, 0.0)],
    },
]


def matrices(case: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two agents: runs × tasks."""
    first, tasks, second = RLIABLE[case]["shape"]
    rng = np.random.default_rng(case)
    return rng.normal(0.6, 0.3, (first, tasks)).round(2), rng.normal(0.5, 0.3, (second, tasks)).round(2)


def by_column(scores: np.ndarray, rng: np.random.Generator, resamples: int = 20_000) -> Resampled:
    """As rliable resamples: the runs of each task by themselves."""
    return resample(np.split(scores, scores.shape[1], axis=1), rng, resamples)


@pytest.mark.parametrize("case", [0, 1, 2])
def test_statistics_are_those_of_rliable(case: int) -> None:
    rng = np.random.default_rng(7)
    first, second = (by_column(scores, rng) for scores in matrices(case))
    found = {
        "iqm": [iqm_over_tasks(first)],
        "mean": [mean_over_tasks(first)],
        "improvement": [improvement_over_tasks(first, second)],
        "profile": profile(first, np.array([0.2, 0.5, 0.8])),
    }
    for name, estimates in found.items():
        expected = RLIABLE[case][name] if name == "profile" else [RLIABLE[case][name]]
        for (value, interval), (theirs, low, high) in zip(estimates, expected, strict=True):
            assert value == pytest.approx(theirs, abs=1e-9), name
            # The bootstrap's noise; a profile has steps of one run on one task.
            noise = 1.001 / matrices(case)[0].size if name == "profile" else 0.016
            assert interval == pytest.approx((low, high), abs=noise), name


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 4), st.integers(2, 5))
def test_values_are_the_published_formulas(seed: int, runs_: int, tasks: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(0, 4, (count, tasks)) / 3 for count in (runs_, others))  # with draws
    for split in (True, False):
        one, two = (by_column(s, rng, 9) if split else resample([s], rng, 9) for s in (first, second))
        assert iqm_over_tasks(one).value == pytest.approx(stats.trim_mean(first, 0.25, axis=None))
        assert mean_over_tasks(one).value == pytest.approx(first.mean(axis=0).mean())
        u = [stats.mannwhitneyu(first[:, t], second[:, t], method="asymptotic").statistic for t in range(tasks)]
        assert improvement_over_tasks(one, two).value == pytest.approx(np.mean(u) / (runs_ * others))
        for share, threshold in zip(profile(one, np.array([0.0, 0.5])), (0.0, 0.5), strict=True):
            assert share.value == pytest.approx(np.mean(first > threshold))


def test_every_sample_is_that_of_the_runs_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics of counted runs are those of the runs written out."""
    rng = np.random.default_rng(1)
    blocks = [rng.normal(size=(4, 3)), rng.normal(size=(3, 2))]
    drawn = resample(blocks, rng, 400)
    monkeypatch.setattr(aggregates, "_MOST_NUMBERS", 100)  # in several parts
    every = [
        [np.repeat(block, counts[i], axis=0) for block, counts in zip(blocks, drawn.counts, strict=True)]
        for i in range(400)
    ]
    iqms = [stats.trim_mean(np.concatenate([b.ravel() for b in sample]), 0.25) for sample in every]
    assert iqm_over_tasks(drawn).interval == pytest.approx(np.quantile(iqms, [0.025, 0.975]))
    means = [np.mean(np.concatenate([b.mean(axis=0) for b in sample])) for sample in every]
    assert mean_over_tasks(drawn).interval == pytest.approx(np.quantile(means, [0.025, 0.975]))
    mirrored = Resampled(drawn.blocks, tuple(counts[::-1] for counts in drawn.counts))
    better = [
        np.mean([p for a, b in zip(*pair, strict=True) for p in probability_of_improvement(a, b, axis=0)])
        for pair in zip(every, every[::-1], strict=True)
    ]
    assert improvement_over_tasks(drawn, mirrored).interval == pytest.approx(np.quantile(better, [0.025, 0.975]))


def test_cells_of_a_run_stay_together() -> None:
    """Copies of one cell tell no more than the cell; taken for tasks of their own they would."""
    scores = np.random.default_rng(2).normal(size=(6, 1))
    copies = np.repeat(scores, 20, axis=1)

    def width(drawn: Resampled) -> float:
        interval = mean_over_tasks(drawn).interval
        assert interval
        return interval[1] - interval[0]

    alone, together, apart = (
        width(drawn)
        for drawn in (
            resample([scores], np.random.default_rng(0)),
            resample([copies], np.random.default_rng(0)),
            by_column(copies, np.random.default_rng(0)),
        )
    )
    assert together == pytest.approx(alone)
    assert apart < 0.3 * alone


def test_a_single_run_has_no_interval() -> None:
    drawn = resample([np.ones((3, 2)), np.zeros((1, 2))], np.random.default_rng(0))
    assert iqm_over_tasks(drawn) == (1.0, None)  # of six ones and two zeros
    assert mean_over_tasks(drawn) == (0.5, None)
    assert improvement_over_tasks(drawn, drawn) == (0.5, None)
    assert profile(drawn, np.array([0.5])) == [(0.5, None)]


# --- folders ------------------------------------------------------------------------------------------------------


def weights_of(skill: float) -> np.ndarray:
    return np.array([skill, *GOOD[1:]], np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two algorithms with two learning rates, and an agent beside it."""
    out = tmp_path_factory.mktemp("groups")
    trials = []
    for algorithm, level in (("ddqn", 0.4), ("rtd_dqn", 0.7)):
        for rate, more in ((1e-3, 0.0), (3e-4, 0.2)):
            name = f"{algorithm}-{rate}"
            for seed in (0, 1):
                skill = weights_of(level + more + 0.05 * seed)
                write_run(
                    out / "sweep" / name / f"seed-{seed}", algorithm, skill, skill / 2, seed=seed, learning_rate=rate
                )
            trials.append({"folder": name, "seeds": [0, 1]})
    (out / "sweep" / "sweep.json").write_text(json.dumps({"format": 1, "trials": trials}))
    write_run(out / "beside" / "seed-0", "ddqn", weights_of(0.9), learning_rate=0.01, env="hard_cartpole")
    write_run(out / "beside" / "seed-1", "ddqn", weights_of(0.8), learning_rate=0.01, env="hard_cartpole", seed=1)
    return out


@pytest.fixture
def out(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, whose runs play at once: an episode succeeds if its luck is below the first weight."""

    def player(env: Any, policy_of: Any, episodes: int) -> Any:
        def play(weights: np.ndarray, cells: Any, epsilon: float, seed: int = 0, *_: Any) -> np.ndarray:
            luck = np.random.default_rng(seed).uniform(size=episodes)
            hard = np.linspace(0, 0.2, len(next(iter(cells.values()))))[:, None]
            return np.where(luck + hard < weights[0, 0] * (1 - epsilon), 1000.0, 10.0)

        return play

    monkeypatch.setattr(evaluation, "cell_player", player)
    return Path(shutil.copytree(written, tmp_path / "runs"))


def compare(*given: Path, **options: Any) -> GroupComparison:
    return deeprok.compare(list(given), **{"by": "all", "episodes": 20, "grid": "cart_mass=1:7:3", **options})


def labels(found: GroupComparison) -> list[str]:
    return [group.label for group in found.groups]


def test_a_sweep_is_grouped_by_what_varies(out: Path) -> None:
    found = compare(out / "sweep")
    assert found.by == ("algorithm", "learning_rate")  # not what only one of the algorithms has
    assert labels(found) == [
        f"{algorithm}, learning_rate={rate}" for algorithm in ("ddqn", "rtd_dqn") for rate in ("0.001", "0.0003")
    ]
    assert [len(group.runs) for group in found.groups] == [2] * 4
    assert (found.measure, found.tasks, found.scales) == ("success", "cells", {})
    group = found.groups[3]
    matrix = np.stack([run.success for run in group.runs])
    assert matrix.shape == (2, 3)
    assert group.iqm.value == pytest.approx(stats.trim_mean(matrix, 0.25, axis=None))
    assert group.mean.value == pytest.approx(matrix.mean())
    assert group.worst == (str(out / "sweep/rtd_dqn-0.0003/seed-0"), 0, "cartpole", pytest.approx(matrix[0].mean()))
    assert group.worst_cell == pytest.approx(matrix.mean(axis=0).min())
    assert found.groups[0].improvement is None
    assert group.improvement
    assert group.improvement.value == 1.0
    assert (group.steps, group.seconds, group.processor_seconds) == (60.0, 1.0, None)
    for threshold, share in zip(found.thresholds, group.profile, strict=True):
        assert share.value == pytest.approx(np.mean(matrix > threshold))


def test_settings_can_be_named(out: Path) -> None:
    found = compare(out / "sweep", by="learning-rate")
    assert labels(found) == ["learning_rate=0.001", "learning_rate=0.0003"]
    assert [len(group.runs) for group in found.groups] == [4, 4]
    listed = compare(out / "sweep", by=["learning_rate", "algorithm"])
    assert labels(listed)[2] == "learning_rate=0.001, rtd_dqn"
    level = compare(out / "sweep", by="robust_set")  # which ddqn has not
    assert labels(level) == ["robust_set=–", "robust_set=cvar"]
    for wrong, said in (
        ("learning_rat", "did you mean 'learning_rate'"),
        (3, "by is 3; it must be names of settings, or all"),
        ([3], "it must be names"),
        ("algorithm,algorithm", "each setting may be named once"),
    ):
        with pytest.raises(DeeprokError, match=said):
            compare(out / "sweep", by=wrong)


def test_a_preset_brings_its_settings_with_it(tmp_path: Path, out: Path) -> None:
    for preset in ("tuned", "paper"):
        write_run(tmp_path / preset, "ddqn")
        path = tmp_path / preset / runs.CONFIG
        config = deeprok.make_config("ddqn", preset, hidden=(1,), input_scale=(1.0,) * 4, episodes=3)
        path.write_text(config.to_json())
    assert compare(tmp_path / "tuned", tmp_path / "paper").by == ("preset",)


def test_folders_of_any_kind_are_read_once(out: Path) -> None:
    trial = out / "sweep" / "ddqn-0.001"
    assert len(compare(trial, out / "sweep", trial / "seed-0").runs) == 8
    # A trial that the sweep no longer has is no part of it, but it may be named itself.
    content = json.loads((out / "sweep" / "sweep.json").read_text())
    content["trials"] = content["trials"][1:]
    (out / "sweep" / "sweep.json").write_text(json.dumps(content))
    assert len(compare(out / "sweep").runs) == 6
    assert len(compare(out / "sweep", trial).runs) == 8
    (out / "sweep" / "sweep.json").unlink()
    assert len(compare(out / "sweep").runs) == 8
    assert len(compare(deeprok.load(trial, seed=1), trial).runs) == 2
    (out / "sweep" / "sweep.json").write_text('{"trials": [{"folder": "../x", "seeds": [0]}]}')
    with pytest.raises(DeeprokError, match=r"sweep\.json is damaged"):
        compare(out / "sweep")
    with pytest.raises(DeeprokError, match="there is no run folder"):
        compare(out / "nowhere")


def test_what_is_left_out_is_said(out: Path) -> None:
    shutil.copytree(out / "sweep" / "ddqn-0.001", out / "again")
    (out / "sweep" / "ddqn-0.001" / "seed-1" / runs.CHECKPOINT).unlink()
    (out / "again" / "seed-1" / runs.CHECKPOINT).unlink()
    for folder in (out / "sweep" / "rtd_dqn-0.001").iterdir():
        (folder / runs.CONFIG).write_text(runs.read_config(folder).replace(episodes=50).to_json())
    found = compare(out / "sweep", out / "again", by="algorithm")
    assert found.remarks == (
        f"{out}/sweep/ddqn-0.001/seed-1 and 1 more have no weights yet and are left out",
        f"{out}/again/seed-0 has settings and a seed that another has too, and is left out",
        f"{out}/sweep/rtd_dqn-0.001/seed-0 and 1 more are unfinished",
    )
    assert len(found.runs) == 7
    shutil.rmtree(out / "sweep" / "rtd_dqn-0.0003")
    assert len(compare(out / "sweep").runs) == 5
    with pytest.raises(DeeprokError, match=r"no run below '.*again/seed-1' has been trained"):
        compare(out / "again" / "seed-1")


def test_costs_are_read_from_metrics(out: Path) -> None:
    for i, folder in enumerate(runs.find(out / "sweep" / "ddqn-0.001")):
        lines = [
            {"steps": 40, "episodes": 2, "returns": [1.0, 2.0], "seconds": 2.0, "processor_seconds": 1.5},
            {"steps": 100 + i, "episodes": 3, "returns": [3.0], "seconds": 4.0, "processor_seconds": 2.5 + i},
        ]
        (folder / runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = compare(out / "sweep").groups[0]
    assert (group.steps, group.seconds, group.processor_seconds) == (100.5, 6.0, 4.5)


# --- tests --------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_not_played_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(out / "sweep").played == 8
    assert compare(out / "sweep", save=True).played == 8
    assert (out / "sweep/ddqn-0.001/seed-0/evaluation-episodes=20,cart_mass=1-7-3.json").exists()
    with monkeypatch.context() as unneeded:
        unneeded.setattr(comparing, "play", None)
        again = compare(out / "sweep")
    assert again.played == 0
    assert again.to_dict() == compare(out / "sweep", save=True).to_dict()
    shutil.copy(out / "sweep/rtd_dqn-0.001/seed-0" / runs.CHECKPOINT, out / "sweep/ddqn-0.001/seed-1")
    parts: list[float] = []
    changed = compare(out / "sweep", advance=parts.append)
    assert changed.played == 1
    assert changed.groups[0].mean.value > again.groups[0].mean.value


def test_options_reach_the_test(out: Path) -> None:
    found = compare(out / "sweep", episodes=30, epsilon=0.2, keep="last", grid="force=8:12:2,gravity=9")
    assert (found.episodes, found.epsilon) == (30, 0.2)
    assert {run.keep for run in found.runs} == {"last"}
    assert {name: axis.tolist() for name, axis in found.grids["cartpole"].items()} == {
        "force": [8.0, 12.0],
        "gravity": [9.0],
    }
    best = compare(out / "sweep", episodes=30, epsilon=0.2, grid="force=8:12:2,gravity=9")
    assert all(x.mean.value > y.mean.value for x, y in zip(best.groups, found.groups, strict=True))
    against = compare(out / "sweep", against="best")
    assert against.against == "rtd_dqn, learning_rate=0.0003"
    assert [group.improvement is None for group in against.groups] == [False] * 3 + [True]
    whole = compare(out / "sweep", tasks="environments")
    assert whole.groups[0].iqm.value == pytest.approx(np.mean([run.success.mean() for run in whole.groups[0].runs]))
    for wrong, said in (
        ({"against": "last"}, "unknown against 'last'"),
        ({"tasks": "seeds"}, "unknown tasks 'seeds'"),
        ({"episodes": 0}, "episodes is 0"),
        ({"grid": "cart_mas=1:2:2"}, "did you mean 'cart_mass'"),
        ({"references": "cartpole=3:2"}, "references are 'cartpole=3:2'; they must be env=low:high"),
        ({"references": "cartpool=3:4"}, "unknown environment in references 'cartpool'"),
        ({"references": "cartpole=3:4"}, "success is compared, which needs none"),
    ):
        with pytest.raises(DeeprokError, match=said):
            compare(out / "sweep", **wrong)
    with pytest.raises(DeeprokError, match="against, tasks and references are for groups of runs"):
        deeprok.compare([out / "sweep/ddqn-0.001", out / "sweep/rtd_dqn-0.001"], tasks="cells")  # type: ignore[call-overload]
    with pytest.raises(DeeprokError, match="is a folder of many runs; say what they are grouped by: by='all'"):
        deeprok.compare([out / "sweep", out / "beside"])


def test_environments_are_tasks_with_scales_of_their_own(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = compare(out / "sweep", out / "beside", grid=None, by="algorithm")
    assert (both.measure, both.tasks, both.scales) == ("success", "environments", {})
    means = [
        [np.mean([run.success.mean() for run in group.runs if run.env == env]) for env in ("cartpole", "hard_cartpole")]
        for group in both.groups[:1]
    ]
    assert both.groups[0].mean.value == pytest.approx(np.mean(means))
    assert both.groups[1].improvement  # on the environment that they have in common
    alone = compare(out / "sweep", out / "beside", grid=None, by="env")
    assert labels(alone) == ["cartpole", "hard_cartpole"]
    assert alone.groups[1].improvement is None
    # Where success is not known returns are normalised.
    monkeypatch.setattr(comparing, "_measure", lambda scores: "mean_return")
    found = compare(out / "sweep", out / "beside", grid=None, by="algorithm", save=True)
    assert found.scales["cartpole"].low == 10.0  # random play never succeeds
    ours = [[run.mean_return.mean() for run in group.runs if run.env == "cartpole"] for group in found.groups]
    best = max(map(np.mean, ours))
    assert found.scales["cartpole"].high == pytest.approx(best)
    run = found.runs[0]
    np.testing.assert_allclose(found.score(run), (run.mean_return - 10) / (best - 10))
    assert (out / "sweep/ddqn-0.001/seed-0/evaluation-episodes=20,epsilon=1.0.json").exists()
    references = {"cartpole": (0, 100), "hard_cartpole": (0, 50)}
    given = compare(out / "sweep", out / "beside", grid=None, references=references)
    assert given.scales == {"cartpole": (0.0, 100.0), "hard_cartpole": (0.0, 50.0)}
    np.testing.assert_allclose(given.score(given.runs[0]), given.runs[0].mean_return / 100)
    with pytest.raises(DeeprokError, match="the runs have 2 environments, cartpole, hard_cartpole; without"):
        compare(out / "sweep", out / "beside")
    monkeypatch.setattr(comparing, "_random_play", lambda *_: 2000.0)
    with pytest.raises(DeeprokError, match=r"no group is better than random play on cartpole .* references cartpole="):
        compare(out / "sweep", out / "beside", grid=None)


def test_references_are_read() -> None:
    assert read_references("Acrobot-v1=-500:-60, my:Env=0:1") == {"Acrobot-v1": (-500.0, -60.0), "my:Env": (0.0, 1.0)}
    assert read_references(None) == {}
    for wrong in ("a", "a=1", "a=1:x", "=1:2", "a=1:inf", {"a": 3}):
        with pytest.raises(DeeprokError, match="references are"):
            read_references(wrong)  # type: ignore[arg-type]


def test_without_a_box_trials_are_the_score(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "enclosing", lambda _: {})
    for folder in runs.find(out / "sweep" / "ddqn-0.001"):
        line = {"steps": 60, "episodes": 3, "returns": [], "trial_return": 40.0}
        runs.append_metrics(folder, line)
    best, last = (compare(out / "sweep", grid=None, keep=keep) for keep in ("best", "last"))
    assert (best.groups[0].mean.value, last.groups[0].mean.value) == (100.0, 40.0)
    assert best.measure == "mean_return"
    assert best.remarks == ("cartpole has no box, so that it has one cell: the mean return of the trials in training",)
    with pytest.raises(DeeprokError, match="random play on it is not known"):
        compare(out / "sweep", out / "beside", grid=None)


def test_other_environments_of_one_name_are_refused(out: Path) -> None:
    for folder in runs.find(out / "sweep" / "ddqn-0.001"):
        (folder / runs.CONFIG).write_text(runs.read_config(folder).replace(horizon=50).to_json())
    with pytest.raises(DeeprokError, match=r"has the horizon 50 and .* 200; runs are compared in the same environment"):
        compare(out / "sweep")


# --- what users read ----------------------------------------------------------------------------------------------


def test_tables_have_a_row_for_each_seed_and_cell(out: Path, tmp_path: Path) -> None:
    found = compare(out / "sweep", by="learning_rate")
    for file in ("t.parquet", "t.csv"):
        found.save_table(tmp_path / file)
    frame = found.to_frame()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), frame)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), frame, check_dtype=False)
    assert len(frame) == 8 * 3
    assert list(frame) == [
        *("group", "run", "env", "algorithm", "learning_rate", "seed", "keep", "cart_mass"),
        *("success", "mean_return", "score", "steps", "episodes", "seconds", "processor_seconds"),
    ]
    means = frame.groupby(["algorithm", "learning_rate"])["success"].mean()
    wider = compare(out / "sweep")
    for group in wider.groups:
        assert means[tuple(group.settings.values())] == pytest.approx(group.mean.value)
    row = frame.iloc[4]
    assert (row["run"], row["seed"], row["cart_mass"]) == (str(out / "sweep/ddqn-0.001/seed-1"), 1, 4.0)
    with pytest.raises(DeeprokError, match=r"table is x.txt; it must end with .parquet or .csv"):
        found.save_table("x.txt")


def printed(found: GroupComparison, width: int = 80) -> str:
    console = WordConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_groups(found, console)
    return console.file.getvalue()


def test_what_is_printed_fits_eighty_columns(out: Path) -> None:
    text = printed(compare(out / "sweep"))
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for said in (
        "cartpole 3 cells · 20 episodes each",
        "8 runs: 0 from stored evaluations, 8 played now",
        "scores: success in %; intervals are of a bootstrap over seeds, tasks are the cells",
        "P(better): that a seed is better on a task than one of ddqn, learning_rate=0.001",
    ):
        assert said in words
    alone = compare(out / "sweep/ddqn-0.001/seed-0", out / "sweep/rtd_dqn-0.001/seed-0")
    assert "a group with a single seed has no interval" in printed(alone)
    many = dataclasses.replace(alone, groups=alone.groups * 30)
    assert "and 20 more groups; --json and --table have all" in printed(many)


def test_the_figure(out: Path) -> None:
    found = compare(out / "sweep")
    left, right = found.plot().axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        group.label for group in sorted(found.groups, key=lambda group: -group.iqm.value)
    ]
    for line, group in zip(right.get_lines(), found.groups, strict=True):
        np.testing.assert_allclose(line.get_xdata(), 100 * found.thresholds)
        np.testing.assert_allclose(line.get_ydata(), [100 * share.value for share in group.profile])
    many = dataclasses.replace(found, groups=tuple(dataclasses.replace(group) for group in found.groups * 12))
    assert len(many.plot().axes[1].get_lines()) == 6


def test_the_command(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "out", WordConsole(width=200))
    words = ["compare", str(out / "sweep"), "--episodes", "20", "--grid", "cart_mass=1:7:3"]
    assert main([*words, "--plot", str(tmp_path / "x.svg"), "--table", str(tmp_path / "x.csv")]) == 0
    said = capsys.readouterr().out
    assert f"plot: {tmp_path}/x.svg" in said
    assert f"table: {tmp_path}/x.csv" in said
    assert len(pd.read_csv(tmp_path / "x.csv")) == 24
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")
    assert main([*words, "--json", "--by", "algorithm", "--against", "best", "--tasks", "environments"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["played"] == 0  # by the command before
    assert (found["by"], found["against"], found["tasks"]) == (["algorithm"], "rtd_dqn", "environments")
    assert [group["label"] for group in found["groups"]] == ["ddqn", "rtd_dqn"]
    assert set(found["groups"][0]["iqm"]) == {"value", "interval"}
    pair = ["compare", str(out / "sweep/ddqn-0.001"), str(out / "sweep/rtd_dqn-0.001")]
    assert main([*pair, *words[2:], "--by", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by"] == ["algorithm"]
    refused = {
        (*pair, "--table", "x.csv"): "table is for groups of runs; give --by too",
        (*pair, "--tasks", "cells"): "tasks is for groups of runs; give --by too",
        (*pair, "--references", "a=1:2"): "references is for groups of runs; give --by too",
        (*pair, "--against", "best"): "against is for groups of runs; give --by too",
        (*words, "--table", "x.txt"): "table is x.txt; it must end with .parquet or .csv",
        (*words, "--table", "no/x.csv"): "table is no/x.csv, but there is no folder no",
        (*words, "--plot", "x.gif"): "plot is x.gif; it must end with",
        (*words, "--by", "learning_rat"): "did you mean 'learning_rate'",
    }
    for given_words, sentence in refused.items():
        assert main(given_words) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert err.count("\n") == 1
