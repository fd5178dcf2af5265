"""What tuning tries, how it chooses, what it reports, and what it leaves in its folder."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_runs import GOOD, LEFT, write_run
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import deeprok
from deeprok.agents.algorithms import ALGORITHMS
from deeprok.cli.main import main
from deeprok.cli.options import parse_options
from deeprok.cli.tune import Tune
from deeprok.core.errors import DeeprokError
from deeprok.core.search import Range
from deeprok.estimators import ESTIMATORS
from deeprok.runs import folder as runs
from deeprok.runs.preset_file import PresetFile, read_preset, write_preset
from deeprok.runs.run_settings import PRESETS
from deeprok.runs.settings import Config, make_config
from deeprok.runs.space import stated_space
from deeprok.sweeps.design import make_trials
from deeprok.sweeps.executors import Executor
from deeprok.sweeps.spec import read_spec
from deeprok.tuning import search as searching
from deeprok.tuning.record import SUMMARY, Scored, TrialRecord
from deeprok.tuning.result import said
from deeprok.tuning.sampler import KEPT, Sampler, importances
from deeprok.tuning.scoring import Models, Scorer, held_out, metric_of, reported
from deeprok.tuning.task import Options, Task, make_task, read_fixed, read_search, seconds_of
from deeprok.tuning.tune import run_tuning


def task_of(
    algorithm: str = "rtd_dqn", env: str = "ferry", fix: Any = None, search: Any = None, **options: Any
) -> Task:
    return make_task(algorithm, env, fix or {}, search or {}, Options(**{"trials": 5, **options}))


# --- the search space ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_states_what_is_worth_trying_and_runs_may_have_it(algorithm: str) -> None:
    for preset in PRESETS:
        base = make_config(algorithm, preset)
        space = stated_space(base)
        assert len(space) >= 3
        for name, (searched, _) in space.items():
            assert name not in ALGORITHMS[algorithm].settings or name in ALGORITHMS[algorithm].search
            for end in searched[:2] if isinstance(searched, Range) else searched:
                kept = int(end) if isinstance(base.flat()[name], int) else end
                assert base.replace(**{name: kept}).flat()[name] == kept


def test_the_parts_state_their_own_and_later_ones_replace_earlier_ones() -> None:
    found = {name: stated.by for name, stated in stated_space(make_config("deep_rok")).items()}
    assert (found["discount"], found["robust_level"], found["epsilon_end"]) == ("every run", "target", "learner")
    # A filter's update costs the square of the number of weights.
    assert (found["hidden"], found["batch_size"]) == ("estimator", "estimator")
    assert stated_space(make_config("rtd_dqn"))["hidden"].by == "layers"


def test_what_has_no_effect_is_not_tried() -> None:
    spaces = {preset: set(stated_space(make_config("rtd_dqn", preset))) for preset in PRESETS}
    assert {"level_fraction", "epsilon_fraction", "averaging"} <= spaces["default"]
    assert not {"level_fraction", "epsilon_fraction", "averaging", "target_rate"} & spaces["tuned"]
    assert "target_period" in spaces["tuned"] - spaces["default"]
    assert "edges" not in stated_space(make_config("ddqn"))  # which acts on the nominal model
    assert "robust_level" not in stated_space(make_config("rtd_dqn", robust_set="minimum"))


def test_a_users_part_may_state_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    part = ESTIMATORS["gradient"]._replace(search=lambda settings: {"learning_rate": Range(0.5, 0.7)})
    monkeypatch.setitem(ESTIMATORS._entries, "gradient", part)
    assert task_of().space["learning_rate"] == Range(0.5, 0.7)
    wrong = part._replace(search=lambda settings: {"learning_rate": Range(-1.0, 1.0)})
    monkeypatch.setitem(ESTIMATORS._entries, "gradient", wrong)
    with pytest.raises(DeeprokError, match=r"learning_rate is -1\.0; it must be a positive number"):
        task_of()


def test_what_is_fixed_is_not_tried_and_all_runs_have_it() -> None:
    task = task_of(fix={"batch_size": 32, "steps": 2000, "box": {"current": (0.5, 1.5)}})
    assert "batch_size" not in task.space
    for config in (task.config({}), task.preset("tuned"), task.preset("default")):
        assert (config.flat()["batch_size"], config.steps, config.episodes) == (32, 2000, 0)
        assert dict(config.make_box(config.make_env())) == {"current": (0.5, 1.5)}


def test_words_of_the_command_line_say_what_is_fixed_and_tried() -> None:
    words = [
        "steps=30000",
        "hidden=[32, 32]",
        "input-scale=1.0,2.0",
        "settle=false",
        "activation=relu",
        "box=a=0:1,b=1:2",
    ]
    assert read_fixed(words) == {
        "steps": 30000, "hidden": [32, 32], "input_scale": [1.0, 2.0], "settle": False, "activation": "relu",
        "box": "a=0:1,b=1:2",
    }  # fmt: skip
    words = ["edges", "learning-rate=1e-4:1e-2:log", "discount=0.9:0.99", "hidden=[8],[16, 16]", "activation=relu,tanh"]
    task = task_of(search=read_search(words))
    assert task.space == {
        "edges": Range(0.0, 0.6),
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "discount": Range(0.9, 0.99),
        "hidden": ((8,), (16, 16), (64, 64)),  # with the preset's own
        "activation": ("relu", "tanh"),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "neither budget nor trials is given; say how long to tune: budget 2h, or trials 50"),
        (["--budget", "soon"], "budget is 'soon'; it must be a time such as 2h, 1h30m, 20m or 45s"),
        (["--budget", "0m"], "budget is '0m'; it must be a time such as 2h, 1h30m, 20m or 45s"),
        (["--trials", "0"], "trials is 0; it must be a whole number from 1 to 100000"),
        (["--trials", "x"], "--trials is 'x'; it must be a whole number"),
        (["--trials", "3", "--fresh", "1"], "fresh is 1; it must be a whole number from 2 to 1000"),
        (["--trials", "3", "--rungs", "9"], "rungs is 9; it must be a whole number from 1 to 8"),
        (["--trials", "3", "--epsilon", "2"], "epsilon is 2.0; it must be a probability between 0 and 1"),
        (["--trials", "3", "--metric", "best"], "--metric is 'best'; it must be worst, cvar10, success or return"),
        (["--trials", "3", "--preset", "defualt"], "unknown preset 'defualt': did you mean 'default'?"),
        (["--trials", "3", "--jobs", "0"], "jobs is 0; it must be at least 1"),
        (["--trials", "3", "--env", "fery"], "unknown env 'fery': did you mean 'ferry'?"),
        (["--trials", "3", "--fix", "seed=3"], "seed can't be fixed or searched; it has an option of its own"),
        (["--trials", "3", "--fix", "steps"], "fix is 'steps'; it must be NAME=VALUE"),
        (["--trials", "3", "--fix", "step=3"], "unknown setting 'step': did you mean 'steps'?"),
        (["--trials", "3", "--fix", "steps=many"], "steps is 'many'; it must be a whole number of at least 0"),
        (["--trials", "3", "--fix", "edges=0", "--search", "edges"], "edges is both fixed and searched; give it once"),
        (["--trials", "3", "--search", "memory"], "memory has no range of its own; give one, as memory=LOW:HIGH"),
        (["--trials", "3", "--search", "edges=0:2"], "edges is 2.0; it must be at least 0 and below 1"),
        (["--trials", "3", "--search", "edges=0.5"], "edges is searched over [0.5]; give at least two values, or fix"),
        (["--trials", "3", "--search", "edges=1:0"], "edges is {'low': 1, 'high': 0, 'log': False}; a range must be"),
        (["--trials", "3", "--search", "edges=0:1:lin"], "search is 'edges=0:1:lin'; a range is NAME=LOW:HIGH, or"),
        (["--trials", "3", "--search", "settle=0:1"], "settle is Range(low=0, high=1, log=False); a range needs a"),
        (["--trials", "3", "--search", "models=1.5:4"], "the ends of this range must be whole numbers"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert (
        main(["tune", "rtd_dqn", *(["--env", "ferry"] if "--env" not in words else []), *words, "--out", str(out)]) == 2
    )
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("deeprok: ")
    assert err.count("\n") == 1
    assert not out.exists()


def test_space_is_shown_without_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "rtd_dqn", "--space", "--search", "edges", "learning_rate=0.1:0.2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["edges", "0", "to", "0.6", "0.3", "target"],
        ["learning_rate", "0.1", "to", "0.2", "0.001", "estimator"],
    ]
    assert main(["tune", "rtd_dqn", "--space", "--json", "--search", "edges"]) == 0
    assert json.loads(capsys.readouterr().out) == {"edges": {"low": 0.0, "high": 0.6, "log": False}}


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("1h30m", 5400), ("20m", 1200), ("45s", 45), (90, 90), ("1.5min", 90)]
)
def test_times(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


# --- what is tried next -------------------------------------------------------------------------------------------

PLANTED = {
    "rate": Range(1e-5, 1.0, log=True),
    "size": Range(1, 64, log=True),
    "kind": ("a", "b", "c"),
    "layers": ((1,), (2,), (3,)),
}
START = {"rate": 0.9, "size": 64, "kind": "a", "layers": (1,)}


def planted(settings: Any) -> float:
    """0 at rate 0.01, size 8, kind b and three layers; less anywhere else."""
    far = abs(math.log10(settings["rate"] / 0.01)) + abs(math.log2(settings["size"] / 8)) / 3
    return -far - 0.5 * (settings["kind"] != "b") - 0.5 * (3 - settings["layers"][0])


def sampler(trials: Sequence[TrialRecord] = (), rungs: int = 1, seed: int = 0) -> Sampler:
    return Sampler(PLANTED, ["size"], rungs, seed, START, trials)


def test_the_search_begins_with_the_preset_and_finds_a_planted_optimum() -> None:
    found = sampler()
    scores = []
    for _ in range(60):
        number, settings = found.ask()
        scores.append(planted(settings))
        found.tell(number, 0, scores[-1])
    assert scores[0] == planted(START)
    chance = np.random.default_rng(0)
    blind = max(
        planted(
            {
                "rate": 10 ** chance.uniform(-5, 0),
                "size": 2 ** chance.uniform(0, 6),
                "kind": "abc"[chance.integers(3)],
                "layers": (chance.integers(1, 4),),
            }
        )
        for _ in range(60)
    )
    assert max(scores) > max(-0.35, blind)


def test_what_is_proposed_depends_on_what_was_seen_alone() -> None:
    """As it must where a tuning was killed."""
    whole, trials = sampler(rungs=2, seed=3), list[TrialRecord]()
    for i in range(16):
        again = sampler(trials, rungs=2, seed=3)
        number, settings = whole.ask()
        assert again.ask() == (number, settings) == (i, settings)
        scores = [Scored((planted(settings),), round=2 * i)]
        if whole.tell(number, 0, scores[0].mean):
            scores.append(Scored((planted(settings) + 1,), round=2 * i + 1))
            whole.tell(number, 1, scores[1].mean)
        trials.append(TrialRecord(i, settings, tuple(scores), "finished" if len(scores) == 2 else "pruned"))
    assert len({tuple(trial.settings.values()) for trial in trials}) == 16
    assert sampler(trials, rungs=2, seed=4).ask() != sampler(trials, rungs=2, seed=3).ask()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_the_best_third_of_a_rung_goes_on(scores: list[int]) -> None:
    """Asynchronous successive halving: of those that were at the rung so far; the best so far always does."""
    found, promoted = sampler(rungs=2), []
    for score in scores:
        number, _ = found.ask()
        promoted.append(found.tell(number, 0, float(score)))
    for i, score in enumerate(scores):
        ranked = sorted(scores[: i + 1], reverse=True)
        assert promoted[i] == (score >= ranked[max(0, (i + 1) // KEPT - 1)])


def test_failures_are_the_worst_and_never_go_on() -> None:
    found = sampler(rungs=2)
    for score in (None, -5.0, None):
        number, _ = found.ask()
        assert found.tell(number, 0, score) == (score is not None)


def test_importance_is_of_what_matters() -> None:
    chance = np.random.default_rng(0)
    space = {"matters": Range(0.0, 1.0), "idle": Range(0.0, 1.0)}
    settings = [{"matters": chance.random(), "idle": chance.random()} for _ in range(40)]
    trials = [TrialRecord(i, each, (Scored((each["matters"],)),), "pruned") for i, each in enumerate(settings)]
    found = importances(space, [], trials)
    assert found
    assert found["matters"] > 0.8
    assert sum(found.values()) == pytest.approx(1.0)
    assert importances(space, [], trials[:3]) is None
    assert importances(space, [], [each._replace(rungs=(Scored((1.0,)),)) for each in trials]) is None


def test_without_optuna_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DeeprokError, match=r"tuning needs the extra tune; in a clone: pip install"):
        deeprok.tune("rtd_dqn", "ferry", trials=1, out=tmp_path / "out")


# --- models and scores --------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.sampled_from(["ferry", "road", "cartpole"]), st.integers(1, 100))
def test_models_used_to_tune_are_none_of_those_reported(seed: int, env: str, count: int) -> None:
    task = task_of(env=env, seed=seed, held_out=count)
    box = task.base.make_box(task.base.make_env())
    tuned, told = held_out(task).models, reported(task).models
    assert {len(values) for values in tuned.values()} == {count}
    for name, (low, high) in box.items():
        assert np.all((low < tuned[name]) & (tuned[name] < high))
        assert {low, high} <= set(told[name])
    assert not set(zip(*tuned.values(), strict=True)) & set(zip(*(told[name] for name in tuned), strict=True))


def test_a_drawn_model_that_the_report_has_is_left_out() -> None:
    drawn = held_out(task_of(held_out=4)).models["current"]
    again = held_out(task_of(held_out=4, grid={"current": [drawn[1], 2.0]})).models["current"]
    assert drawn[1] not in again
    assert len(again) == 4
    assert {drawn[0], drawn[2], drawn[3]} <= set(again)


def test_without_a_box_there_is_the_nominal_model_and_other_random_numbers() -> None:
    task = task_of("ddqn", "own_parts:UNBOXED")
    tuned, told = held_out(task), reported(task)
    nominal = task.base.make_env().nominal
    assert tuned.models == told.models == {f.name: [getattr(nominal, f.name)] for f in dataclasses.fields(nominal)}
    assert tuned.luck != told.luck


def test_simulators_have_fewer_models_and_episodes() -> None:
    in_jax, simulated = task_of().options, task_of("ddqn_dr", "Acrobot-v1").options
    assert (in_jax.held_out, in_jax.episodes, in_jax.test_episodes) == (64, 10, 100)
    assert (simulated.held_out, simulated.episodes, simulated.test_episodes) == (16, 2, 10)
    assert task_of("ddqn_dr", "Acrobot-v1", held_out=5, episodes=7, test_episodes=9).options[9:13] == (7, None, 9, 0.1)


def test_seeds_of_the_search_the_finalists_and_the_report_are_disjoint() -> None:
    task = task_of(seed=7, seeds=100, fresh=1000)
    groups = [set(task.tuning_seeds(rung)) for rung in task.rungs]
    assert groups[0] < groups[1] < groups[2]
    assert not groups[2] & set(task.final_seeds)
    assert not (groups[2] | set(task.final_seeds)) & set(task.fresh_seeds)


def test_rungs_double_the_budget_and_add_seeds() -> None:
    task = task_of(fix={"steps": 1001, "episodes": 10})
    assert task.rungs == ((0.25, 1), (0.5, 2), (1.0, 3))
    configs = [task.config({"edges": 0.5}, rung) for rung in task.rungs]
    assert [(each.steps, each.episodes) for each in configs] == [(251, 3), (501, 5), (1001, 10)]
    assert configs[2] == task.base.replace(edges=0.5)


def test_metrics_are_those_of_the_textbook() -> None:
    returns = np.arange(80.0).reshape(20, 4) % 37
    by_model = returns.mean(axis=1)
    assert metric_of(returns, 10.0, "worst") == min(by_model)
    assert metric_of(returns, 10.0, "return") == pytest.approx(np.mean(by_model))
    assert metric_of(returns, 10.0, "success") == np.mean(returns > 10.0)
    assert metric_of(returns, 10.0, "cvar10") == pytest.approx(np.mean(sorted(by_model)[:2]))


def test_the_report_has_the_scores_of_evaluate(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"seed-{seed}", best=weights, last=LEFT, seed=seed)
        for seed, weights in ((0, GOOD), (1, LEFT))
    ]
    grid = "pole_length=0.4:1.2:3,cart_mass=1:3:2"
    found = deeprok.evaluate(tmp_path, grid, episodes=4)
    for metric, expected in (
        ("worst", [one.mean_return.min() for one in found.per_seed]),
        ("success", [one.overall.success for one in found.per_seed]),
        ("return", [one.overall.mean_return for one in found.per_seed]),
    ):
        task = task_of(env="cartpole", grid=grid, test_episodes=4, metric=metric)
        assert Scorer(task, reported(task))(runs.read_config(folders[0]), folders) == pytest.approx(expected)


# --- the whole of it, with scores that cost nothing ---------------------------------------------------------------

Score = Callable[[Config, int], float]


class StoppedError(Exception):
    """As if the process was killed."""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., deeprok.Tuning]:
    """Tunes with a score that is a function of the settings and the seed, instead of trainings."""

    def tuned(score: Score, out: str = "out", stop: int | None = None, slots: int = 2, **given: Any) -> deeprok.Tuning:
        trained: list[Path] = []

        def prepare(wanted: Any, count: int) -> Any:
            configs = {
                folder / f"seed-{seed}": dataclasses.replace(config, seed=seed)
                for folder, (config, seeds) in wanted.items()
                for seed in seeds
            }
            assert slots == count
            assert not set(configs) & set(trained)  # nothing is trained twice
            return configs, [[folder] for folder in configs]

        def train(groups: Any, report: Any, on_interrupt: Any, on_end: Any) -> None:
            tuned.rounds += 1
            if stop is not None and tuned.rounds > stop:
                raise StoppedError
            trained.extend(folder for (folder,) in groups)

        class Fake:
            def __init__(self, task: Task, test: Models) -> None:
                self.held_out = test.luck != 0

            def __call__(self, config: Config, folders: Sequence[Path]) -> tuple[float, ...]:
                return tuple(score(config, int(folder.name.removeprefix("seed-"))) for folder in folders)

        tuned.rounds = 0
        monkeypatch.setattr(searching, "prepare", prepare)
        monkeypatch.setattr(searching, "is_finished", lambda folder, config: True)
        monkeypatch.setattr(searching, "Scorer", Fake)
        options = {"trials": 12, **given}
        executor = _entered(Executor(slots, train))
        return run_tuning(task_of(**options), tmp_path / out, executor, Console(quiet=True))

    return tuned


class _entered:  # noqa: N801 (a context manager of an executor)
    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def __enter__(self) -> Executor:
        return self.executor

    def __exit__(self, *_: object) -> None:
        return None


def by_rate(config: Config, seed: int) -> float:
    return -abs(math.log10(config.estimator.learning_rate / 3e-3)) + 0.01 * math.sin(seed)


def noise(config: Config, seed: int) -> float:
    """No setting is better than another; each training has luck of its own."""
    return float(np.random.default_rng([seed, int(config.digest(), 16) % 2**32]).normal())


def without_times(out: Path) -> Any:
    found = json.loads((out / SUMMARY).read_text())
    for each in (found, *found["presets"], *found["finalists"], found["winner"]):
        each["seconds"] = None
    return found


def test_the_winner_is_found_and_becomes_a_preset(play: Any, tmp_path: Path) -> None:
    found = play(by_rate, trials=30, search={"learning_rate": None, "edges": None}, fix={"steps": 4000})
    rate = found.settings["learning_rate"]
    assert abs(math.log10(rate / 3e-3)) < 0.1
    fresh = [by_rate(make_config("rtd_dqn", env="ferry", learning_rate=rate), seed) for seed in range(1000, 1010)]
    assert found.record.winner.scored.scores == pytest.approx(fresh)
    assert found.score.value == pytest.approx(np.mean(fresh))
    assert {one.preset: one.apart for one in found.comparisons} == {"default": True, "tuned": True}
    assert all("the winner is better than preset" in one.sentence for one in found.comparisons)
    config = make_config("rtd_dqn", preset=tmp_path / "out" / "preset.toml")
    assert config == found.task.config(found.settings)
    assert (config.env, config.preset, config.steps) == ("ferry", "default", 4000)
    page = (tmp_path / "out" / "report.md").read_text()
    assert "## On fresh seeds" in page
    assert page.count("| pruned |") + page.count("| finished |") == 30
    assert (tmp_path / "out" / "tuning.png").stat().st_size > 1000
    assert found.importances["learning_rate"] > found.importances["edges"]


def test_the_page_says_what_a_tuning_has_found(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs" / "tools"))
    tunings = importlib.import_module("tunings")
    found = play(by_rate, trials=30, search={"learning_rate": None, "edges": None}, fix={"steps": 4000})
    text = tunings.section(json.loads((tmp_path / "out" / SUMMARY).read_text()))
    for sentence in (one.sentence for one in found.comparisons):
        assert f"- {sentence[0].upper()}{sentence[1:]}." in text
    assert f"| winner, {found.record.winner.name} | {said(found.score, found.task.options.metric)} | 4,000 |" in text
    finished = sum(trial.state == "finished" for trial in found.record.trials)
    assert f"30 trials in 0 minutes, {finished} of them with all of their steps." in text
    # The command stands there as it would be given, but for what is searched.
    words = text.splitlines()[1].split()
    assert words[:2] == ["deeprok", "tune"]
    options = parse_options(Tune, words[2:], "tune")
    assert (options.algorithm, options.env, options.trials) == (found.task.base.algorithm, found.task.base.env, 30)
    assert read_fixed(options.fix) == found.task.fixed
    for name in ("metric", "preset", "seeds", "rungs", "finalists", "fresh", "seed"):
        assert getattr(options, name) == getattr(found.task.options, name), name


def test_the_winner_is_trained_with_seeds_that_nothing_was_chosen_by(play: Any) -> None:
    """The winner's curse: of settings that are all the same the best was lucky, and its fresh seeds are not."""
    found = [play(noise, f"out-{seed}", seed=seed, trials=24, rungs=1, seeds=1, finalists=1) for seed in range(5)]
    assert np.mean([one.score_while_tuning for one in found]) > 1.5
    assert abs(np.mean([one.score.value for one in found])) < 0.4
    for one in found:
        config = one.task.config(one.settings)
        assert one.record.winner.scored.scores == tuple(noise(config, seed) for seed in one.task.fresh_seeds)
    said = [one.comparisons[0].sentence for one in found]
    assert any("the winner is not better than preset default" in each and "may be chance" in each for each in said)


def test_finalists_are_chosen_by_other_seeds(play: Any) -> None:
    """What did best in the search by luck is worst on the seeds of the finalists."""

    def misleading(config: Config, seed: int) -> float:
        return by_rate(config, 0) if seed >= 100 else -by_rate(config, 0)

    found = play(misleading, trials=20, rungs=1, search={"learning_rate": None})
    chosen = max(found.record.finalists, key=lambda each: each.scored.mean)
    assert len(found.record.finalists) == 3
    assert found.record.winner.name == chosen.name
    assert found.record.winner.name != f"trial {max(found.record.trials, key=lambda each: each.rank).number}"
    assert {each.seeds for each in found.record.finalists} == {(100, 101, 102)}


@pytest.mark.parametrize("stop", [0, 1, 2, 5, 9])
def test_a_tuning_that_was_killed_ends_as_if_nothing_had_happened(play: Any, tmp_path: Path, stop: int) -> None:
    play(by_rate, "undisturbed")
    with pytest.raises(StoppedError):
        play(by_rate, "killed", stop=stop)
    play(by_rate, "killed")
    assert without_times(tmp_path / "killed") == without_times(tmp_path / "undisturbed")
    play(by_rate, "killed", stop=0)  # finished: nothing is trained
    assert without_times(tmp_path / "killed") == without_times(tmp_path / "undisturbed")


def test_more_trials_go_on_from_those_there_are(play: Any, tmp_path: Path) -> None:
    few = play(by_rate, trials=6)
    more = play(by_rate, trials=9)
    assert [trial.settings for trial in more.record.trials[:6]] == [trial.settings for trial in few.record.trials]
    assert len(more.record.trials) == 9
    with pytest.raises(DeeprokError, match=r"was tuned with metric 'worst', not 'return'; choose another --out"):
        play(by_rate, metric="return")


def test_trials_that_fail_are_reported_and_stop_nothing(play: Any) -> None:
    def fails(config: Config, seed: int) -> float:
        if config.estimator.learning_rate > 3e-3 and seed < 1000:
            raise DeeprokError("the weights became infinite")
        return by_rate(config, seed)

    found = play(fails, trials=20, search={"learning_rate": None})
    states = {trial.settings["learning_rate"] > 3e-3: trial.state for trial in found.record.trials}
    assert states[True] == "failed"
    assert all((trial.state == "failed") == (trial.settings["learning_rate"] > 3e-3) for trial in found.record.trials)
    assert found.settings["learning_rate"] <= 3e-3
    assert "failed, and count as the worst; trial" in (found.out / "report.md").read_text()


def test_settings_that_can_not_be_had_together_have_failed(play: Any) -> None:
    found = play(by_rate, search={"batch_size": (16, 512)}, fix={"replay_size": 100})
    assert {trial.settings["batch_size"] > 100: trial.state == "failed" for trial in found.record.trials}[True]
    assert "it must be at most replay_size" in next(trial.problem for trial in found.record.trials if trial.problem)


def test_where_all_fail_this_is_said(play: Any) -> None:
    def fails(config: Config, seed: int) -> float:
        raise DeeprokError("the simulator is broken")

    with pytest.raises(DeeprokError, match="all 12 trials failed, the first with: the simulator is broken"):
        play(fails)


def test_a_winner_that_is_the_preset_is_said_to_be(play: Any) -> None:
    found = play(
        lambda config, seed: float(config.estimator.learning_rate == 1e-3) + 0.01 * (seed % 7),
        search={"learning_rate": None},
    )
    assert found.settings == {"learning_rate": 1e-3}
    sentences = {one.preset: one.sentence for one in found.comparisons}
    assert (
        sentences["default"]
        == "the winner has the settings of preset default: the search has found none that do better"
    )
    assert "settings of" not in sentences["tuned"]


def test_a_winner_that_is_worse_is_said_to_be(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def deceived(config: Config, seed: int) -> float:
        return by_rate(config, seed) if seed < 1000 else -by_rate(config, seed)

    found = play(deceived, trials=20, search={"learning_rate": None})
    assert "the winner is worse than preset default" in found.comparisons[0].sentence
    assert found.comparisons[0].sentence.endswith("train with the preset instead")


def test_time_ends_the_search_and_leaves_enough_for_the_winner(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances with what is trained: 100 s for the presets, 10 s for each round."""
    now = [0.0]
    monkeypatch.setattr(searching.time, "monotonic", lambda: now[0])

    def takes(config: Config, seed: int) -> float:
        now[0] += 5.0 if seed >= 1000 else 1.0
        return by_rate(config, seed)

    found = play(takes, trials=None, budget=400, search={"learning_rate": None})
    assert len(found.record.trials) > 15
    assert 250 < now[0] <= 400


def test_a_long_start_of_short_trainings_does_not_end_the_search(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting takes 30 s to compile, and 5 s for all of the steps of a seed. A first rung, which hardly trains,
    says little of how long the last one takes; the presets, which were trained to the end, say more."""
    now, compiled = [0.0], set[str]()
    monkeypatch.setattr(searching.time, "monotonic", lambda: now[0])

    def takes(config: Config, seed: int) -> float:
        now[0] += 5.0 * config.steps / 150_000 + (0.0 if config.digest() in compiled else 30.0)
        compiled.add(config.digest())
        return by_rate(config, seed)

    found = play(takes, trials=None, budget="20m", search={"learning_rate": None})
    assert len(found.record.trials) > 10
    assert any(trial.state == "finished" for trial in found.record.trials)
    assert now[0] <= 1200


def test_folders_of_others_and_damaged_ones_are_refused(play: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(DeeprokError, match=r"other is not empty and holds no tuning\.json; choose another folder"):
        play(by_rate, "other")
    play(by_rate, "out")
    with runs.hold([tmp_path / "out"]), pytest.raises(DeeprokError, match="is in use by process"):
        play(by_rate, "out")
    whole = (tmp_path / "out" / SUMMARY).read_text()
    for text in (
        "",
        "[]",
        "{}",
        whole[:200],
        whole.replace('"scores"', '"score"'),
        whole.replace('"format": 1', '"format": 9'),
    ):
        (tmp_path / "out" / SUMMARY).write_text(text)
        with pytest.raises(DeeprokError, match=r"tuning\.json (is damaged: it does not hold what|has format 9)"):
            play(by_rate, "out")


# --- preset files -------------------------------------------------------------------------------------------------

FOUND = PresetFile("rtd_dqn", "ferry", "tuned", {"hidden": [8, 4], "learning_rate": 1, "steps": 500, "settle": True})


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    write_preset(tmp_path / "mine.toml", FOUND, ("a remark\nof two lines",))
    return tmp_path / "mine.toml"


def test_a_preset_file_is_read_as_it_was_written(preset: Path) -> None:
    assert read_preset(preset) == FOUND
    assert preset.read_text().startswith("# a remark of two lines\nformat = 1\n")


def test_a_preset_file_is_a_preset_with_settings(preset: Path) -> None:
    expected = make_config("rtd_dqn", "tuned", env="ferry", hidden=(8, 4), learning_rate=1.0, steps=500, settle=True)
    assert make_config("rtd_dqn", preset) == make_config("rtd_dqn", str(preset)) == expected
    assert make_config("rtd_dqn", preset, learning_rate=0.5) == expected.replace(learning_rate=0.5)
    longer = make_config("rtd_dqn", preset, episodes=7)
    assert (longer.episodes, longer.steps) == (7, 0)
    assert make_config("rtd_dqn", preset, env="road").env == "road"


def test_runs_do_not_need_the_preset_file_again(preset: Path, tmp_path: Path) -> None:
    expected = make_config("rtd_dqn", preset, seed=3)
    runs.create(tmp_path / "run", expected)
    preset.unlink()
    assert runs.read_config(tmp_path / "run") == expected
    assert "mine" not in (tmp_path / "run" / runs.CONFIG).read_text()


def test_train_and_sweep_take_a_preset_file(preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from deeprok.cli.train import _parse

    expected = make_config("rtd_dqn", preset)
    assert _parse("rtd_dqn", ["--preset", str(preset)])[0] == expected
    assert _parse("rtd_dqn", [f"--preset={preset}", "--learning-rate", "2"])[0] == expected.replace(learning_rate=2.0)
    assert _parse("rtd_dqn", ["--preset", str(preset), "--episodes", "5"])[0] == expected.replace(episodes=5)
    assert _parse("rtd_dqn", ["--env", "road", "--preset", str(preset)])[0] == make_config(
        "rtd_dqn", preset, env="road"
    )
    (trial,) = make_trials(read_spec({"algorithm": "rtd_dqn", "settings": {"preset": str(preset)}}))
    assert trial.config == expected
    with pytest.raises(SystemExit):
        main(["train", "rtd_dqn", "--preset", str(preset), "--help"])
    assert "(default: 500)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format = 1", "algorithm is None; it must be the name of one"),
        ("format = 2", "has format 2; this version of deeprok reads format 1"),
        ("format = ", "is not TOML: "),
        ("colour = 1", "unknown key 'colour': known are algorithm, base, env, format, settings; settings stand below"),
        ("base = 'best'", "base is 'best'; it must be default, paper or tuned"),
        ("settings = 3", "settings is 3; it must be a table of settings"),
        ("[settings]\nseed = 3", "settings.seed is given; a preset has no seed among its settings"),
        ("[settings]\nedgse = 3", "unknown setting 'edgse': did you mean 'edges'?"),
        ("[settings]\nedges = 3", "settings.edges is 3.0; it must be at least 0 and below 1"),
        ("[settings]\nhidden = 3", "settings.hidden is 3, but a value of it is a list: write [3]"),
        ("[settings]\nhidden = ['a']", "settings.hidden is ('a',); it must be"),
        ("algorithm = 'ddqn'", "which is for ddqn, not for rtd_dqn"),
    ],
)
def test_mistakes_in_a_preset_file_are_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    top = 'format = 1\nalgorithm = "rtd_dqn"\nenv = "ferry"\n'
    lines = [
        line
        for line in top.splitlines()
        if text != "format = 1" and line.split()[0] not in re.findall(r"^\w+", text, re.M)
    ]
    path.write_text("\n".join([*lines, text]))
    assert main(["train", "rtd_dqn", "--preset", str(path), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "mine.toml" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_preset_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeeprokError, match=r"can't read .*mine\.toml: No such file"):
        make_config("rtd_dqn", tmp_path / "mine.toml")
    with pytest.raises(DeeprokError, match=r"unknown preset 'mine': .*; a preset file ends with \.toml"):
        make_config("rtd_dqn", "mine")
