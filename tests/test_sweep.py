"""What a sweep tries, what it refuses, and what it leaves in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import math
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sweeping import FAST, as_toml

import deeprok
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError, DivergedError
from deeprok.core.search import Range
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.sweeps import executors, on_ray
from deeprok.sweeps import spec as specs
from deeprok.sweeps.design import Drawn, Trial, is_trial_name, make_trials
from deeprok.sweeps.on_ray import RETRIES, Resources
from deeprok.sweeps.parcels import CHANGED, NEEDED, own_modules, pack, unpack
from deeprok.sweeps.spec import read_spec
from deeprok.sweeps.sweep import SUMMARY, SweepResult, run_sweep, sweep
from deeprok.tracking.convert import write_events
from deeprok.tracking.tensorboard import EVENTS


def trials(**spec: Any) -> list[Trial]:
    return make_trials(read_spec({"algorithm": "ddqn", **spec}))


def toml(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


# --- the design ---------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
algorithm = ["ddqn", "rtd_dqn"]
env = ["cartpole", "road"]
seeds = [7, 3]
[settings]
preset = "tuned"
episodes = 9
discount = [0.9, 1e-1]
hidden = [[4], [5, 6]]
settle = [true, false]
""",
    )
    axes = {
        "algorithm": ["ddqn", "rtd_dqn"], "env": ["cartpole", "road"], "discount": [0.9, 0.1],
        "hidden": [(4,), (5, 6)], "settle": [True, False],
    }  # fmt: skip
    expected = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    found = make_trials(read_spec(path))
    assert [trial.varies for trial in found] == expected
    fixed = dict(preset="tuned", episodes=9, seed=7)
    assert [trial.config for trial in found] == [make_config(**fixed, **point) for point in expected]
    assert {trial.seeds for trial in found} == {(7, 3)}


def test_env_may_stand_among_the_settings_and_may_be_left_out() -> None:
    beside, below, neither = trials(env="road"), trials(settings={"env": "road"}), trials()
    assert beside[0].config == below[0].config == make_config("ddqn", env="road")
    assert neither[0].config == make_config("ddqn")
    assert (neither[0].varies, neither[0].seeds) == ({}, (0,))


def test_equal_trials_are_one() -> None:
    assert len(trials(settings={"discount": [0.5, 0.5], "input_scale": [[1], [1.0, 1, 1, 1]]})) == 1
    assert trials(settings={"sensor_noise": 1})[0].digest == trials(settings={"sensor_noise": 1.0})[0].digest


RANDOM: dict[str, Any] = {
    "algorithm": ["ekf_dqn", "deep_rok"],
    "trials": 12,
    "design_seed": 5,
    "settings": {
        "process_noise": {"low": 1e-4, "high": 1, "log": True},
        "discount": {"low": 0.5, "high": 0.75},
        "batch_size": {"low": 3, "high": 6},
        "memory": {"low": 1, "high": 9, "log": True},
        "explore": ["epsilon", "thompson", "ucb"],
        "hidden": [[4]],
    },
}


def test_a_random_design_is_drawn_by_numpys_generator() -> None:
    def share(axis: str, i: int) -> float:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([5, i, *axis.encode()]))).random()

    found = make_trials(read_spec(RANDOM))
    assert len(found) == 12
    for i, trial in enumerate(found):
        varies = dict(trial.varies)
        assert varies.pop("algorithm") == ["ekf_dqn", "deep_rok"][math.floor(2 * share("algorithm", i))]
        assert varies.pop("explore") == ["epsilon", "thompson", "ucb"][math.floor(3 * share("explore", i))]
        noise = np.exp(scipy.stats.uniform(np.log(1e-4), -np.log(1e-4)).ppf(share("process_noise", i)))
        assert varies.pop("process_noise") == pytest.approx(noise, rel=1e-5)
        assert varies.pop("discount") == pytest.approx(np.interp(share("discount", i), [0, 1], [0.5, 0.75]), rel=1e-5)
        assert varies.pop("batch_size") == scipy.stats.randint(3, 7).ppf(share("batch_size", i))
        assert varies.pop("memory") == math.floor(np.exp(np.log(10) * share("memory", i)))
        assert varies == {}
        assert trial.config.flat()["discount"] == trial.varies["discount"]


def test_draws_do_not_depend_on_other_draws() -> None:
    """More trials, another axis, another seed of the runs: what was drawn before stays."""
    before = [trial.varies for trial in make_trials(read_spec(RANDOM))]
    more = make_trials(read_spec({**RANDOM, "trials": 20, "seeds": 3}))
    assert [trial.varies for trial in more[:12]] == before
    axis = {**RANDOM["settings"], "edges": {"low": 0, "high": 0.5}}
    wider = [dict(trial.varies) for trial in make_trials(read_spec({**RANDOM, "settings": axis}))]
    assert all(0 < varies.pop("edges") < 0.5 for varies in wider)
    assert wider == before
    other = [trial.varies for trial in make_trials(read_spec({**RANDOM, "design_seed": 6}))]
    assert all(one != another for one, another in zip(other, before, strict=True))


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 50), st.integers(1, 50), st.booleans(), st.booleans())
def test_draws_stay_within_their_range(share: float, low: int, width: int, log: bool, whole: bool) -> None:
    number = Drawn(Range(low, low + width, log), share).number(whole)
    assert low <= number <= low + width
    assert not whole or type(number) is int


def test_draws_are_uniform() -> None:
    shares = np.random.default_rng(0).random(4000)
    wholes = [Drawn(Range(3, 6), share).number(whole=True) for share in shares]
    assert scipy.stats.chisquare(np.bincount(wholes)[3:]).pvalue > 0.01
    logs = np.log10([Drawn(Range(1e-3, 10.0, True), share).number(whole=False) for share in shares])
    assert scipy.stats.kstest(logs, scipy.stats.uniform(-3, 4).cdf).pvalue > 0.01


# --- names of folders ---------------------------------------------------------------------------------------------


def test_names_say_what_varies() -> None:
    found = trials(
        algorithm=["ddqn", "rtd_dqn"],
        env=["cartpole", "ferry"],
        settings={"learning_rate": [1e-3, 1 / 3], "hidden": [[4], [5, 6]], "settle": [True, False], "episodes": 9},
    )
    assert found[0].name == f"ddqn-cartpole-learning_rate=0.001-hidden=4-settle=true-{found[0].digest}"
    assert found[-1].name == f"rtd_dqn-ferry-learning_rate=0.3333-hidden=5x6-settle=false-{found[-1].digest}"
    assert str(found[0]) == "algorithm = ddqn, env = cartpole, learning_rate = 0.001, hidden = 4, settle = true"
    assert len({trial.name for trial in found}) == 32
    (alone,) = trials(settings={"episodes": 9})
    assert alone.name == f"ddqn-{alone.digest}"


def test_names_differ_where_their_words_do_not() -> None:
    found = trials(settings={"discount": [0.91234567, 0.91234568], "box": ["gravity=8:9", "gravity=8 :9"]})
    assert len({trial.name for trial in found}) == 4
    assert len({trial.name.rpartition("-")[0] for trial in found}) == 2


@given(st.dictionaries(st.text(max_size=60), st.text(max_size=200) | st.integers() | st.tuples(st.floats())))
def test_names_are_those_of_one_folder(varies: dict[str, Any]) -> None:
    name = Trial(varies, make_config("ddqn"), (0,), "0123456789ab").name
    assert name == os.path.basename(name)
    assert name.isascii()
    assert len(name) <= 120
    assert name[0] not in ".-"
    assert is_trial_name(name)


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "unknown key": ('algorithm = "ddqn"\nsettngs = 3', ("unknown key 'settngs'", "did you mean 'settings'?")),
    "setting in the wrong place": ('algorithm = "ddqn"\nepisodes = 3', ("'episodes'", "stand below [settings]")),
    "no algorithm": ("seeds = 3", ("algorithm is missing",)),
    "unknown algorithm": ('algorithm = ["ddqn", "ddqnn"]', ("unknown algorithm 'ddqnn'", "did you mean 'ddqn'?")),
    "algorithm that is a number": ("algorithm = 3", ("algorithm is 3", "a name")),
    "unknown env": ('algorithm = "ddqn"\nenv = "rod"', ("unknown env 'rod'", "did you mean 'road'?")),
    "env twice": ('algorithm = "ddqn"\nenv = "road"\nsettings.env = "road"', ("settings.env", "given once")),
    "seed": ('algorithm = "ddqn"\nsettings.seed = [1, 2]', ("settings.seed", "seeds")),
    "seeds": ('algorithm = "ddqn"\nseeds = 0', ("seeds is 0", "at least 1")),
    "too many seeds": ('algorithm = "ddqn"\nseeds = 1000000000', ("seeds is 1000000000", "at most 10,000")),
    "a seed twice": ('algorithm = "ddqn"\nseeds = [1, 1]', ("seeds is [1, 1]", "different seeds")),
    "seeds that are true": ('algorithm = "ddqn"\nseeds = true', ("seeds is True",)),
    "settings that are no table": ('algorithm = "ddqn"\nsettings = 3', ("settings is 3", "a table")),
    "unknown setting": ('algorithm = "ddqn"\nsettings.epsodes = 3', ("settings.epsodes is 3", "'episodes'")),
    "a setting of another algorithm": (
        'algorithm = ["deep_rok", "ddqn"]\nsettings.process_noise = 0.1',
        ("settings.process_noise is 0.1", "no setting of ddqn on cartpole"),
    ),
    "type": ('algorithm = "ddqn"\nsettings.episodes = [1, "x"]', ("settings.episodes is 'x'", "a whole number")),
    "bounds": ('algorithm = "ddqn"\nsettings.discount = [0.5, 2.0]', ("settings.discount is 2.0", "below 1")),
    "choice": ('algorithm = "ddqn"\nsettings.draw = "pair"', ("settings.draw 'pair'", "did you mean 'pairs'?")),
    "date": ('algorithm = "ddqn"\nsettings.episodes = 2026-01-01', ("settings.episodes is 2026-01-01", "numbers")),
    "not a number": ('algorithm = "ddqn"\nsettings.discount = nan', ("settings.discount is nan", "below 1")),
    "a list of layers": ('algorithm = "ddqn"\nsettings.hidden = [4, 4]', ("settings.hidden is 4", "[[4]]")),
    "a list that is no axis": ('algorithm = "ddqn"\nsettings.episodes = [[1, 2]]', ("settings.episodes is (1, 2)",)),
    "empty axis": ('algorithm = "ddqn"\nsettings.episodes = []', ("settings.episodes is an empty list",)),
    "a table in a list": ('algorithm = "ddqn"\nsettings.episodes = [{low = 1}]', ("settings.episodes", "numbers")),
    "depth": (f'algorithm = "ddqn"\nsettings.hidden = {"[" * 99}1{"]" * 99}', ("settings.hidden", "lists of them")),
    "a range in a grid": (
        'algorithm = "ddqn"\nsettings.discount = {low = 0.1, high = 0.2}',
        ("settings.discount is a range", "trials = N"),
    ),
    "half a range": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {low = 0.1}',
        ("settings.discount is {'low': 0.1}", "A below B"),
    ),
    "a range of nothing": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {low = 0.5, high = 0.5}',
        ("settings.discount", "A below B"),
    ),
    "logarithm of 0": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {low = 0, high = 0.5, log = true}',
        ("settings.discount", "above 0"),
    ),
    "misspelt range": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {low = 0.1, high = 0.5, lg = true}',
        ("settings.discount", "{low = A, high = B}"),
    ),
    "ends of a range": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {low = 0.1, high = 1.5}',
        ("settings.discount is 1.5", "below 1"),
    ),
    "a range of halves": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.episodes = {low = 1, high = 2.5}',
        ("settings.episodes is a range from 1 to 2.5", "whole numbers"),
    ),
    "a range of words": (
        'algorithm = "ddqn"\ntrials = 2\nsettings.draw = {low = 1, high = 2}',
        ("settings.draw is a range from 1 to 2", "not numbers"),
    ),
    "an endless range": (
        f'algorithm = "ddqn"\ntrials = 2\nsettings.discount = {{low = 0, high = 1{"0" * 400}}}',
        ("settings.discount", "A below B"),
    ),
    "trials": ('algorithm = ["ddqn", "dqn"]\ntrials = 0', ("trials is 0", "at least 1")),
    "too many trials": ('algorithm = ["ddqn", "dqn"]\ntrials = 1000000', ("trials is 1000000", "at most 10000")),
    "trials of one": ('algorithm = "ddqn"\ntrials = 5', ("trials is 5", "nothing varies")),
    "a seed of no design": ('algorithm = "ddqn"\ndesign_seed = 5', ("design_seed", "trials = N")),
    "a seed of the design": (
        'algorithm = ["ddqn", "dqn"]\ntrials = 2\ndesign_seed = -1',
        ("design_seed is -1", "at least 0"),
    ),
    "settings that don't go together": (
        'algorithm = "ddqn"\nsettings.episodes = [5, 0]\nsettings.steps = 0',
        ("at episodes = 0", "episodes and steps are both 0"),
    ),
    "own part": ('algorithm = "nowhere:PART"', ("there is no module 'nowhere'",)),
    "no TOML": ("algorithm = ,", ("is not TOML", "line 1")),
    "digits": (f"seeds = {'1' * 5000}", ("is not TOML",)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_one_sentence_before_anything_is_trained(
    text: str, said: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toml(tmp_path, text)
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert str(path) in sentence
    assert [part for part in said if part not in sentence] == [], sentence
    assert os.listdir(tmp_path) == [path.name]


def test_large_designs_are_refused_before_they_are_made(tmp_path: Path) -> None:
    names = (
        "episodes",
        "steps",
        "models",
        "memory",
        "trial_every",
        "snapshot_every",
        "warm_up",
        "batch_size",
        "chunk_steps",
    )
    with pytest.raises(DeeprokError, match=r"a grid of 1000000000 trials; at most 10,000"):
        trials(settings={name: list(range(1, 11)) for name in names})
    with pytest.raises(DeeprokError, match=r"has 1,000,000 runs, 1,000 trials of 1,000 seeds each"):
        trials(seeds=1000, settings={name: list(range(1, 11)) for name in names[:3]})
    (tmp_path / "large.toml").write_text("#" * 1_000_001)
    with pytest.raises(DeeprokError, match=r"large.toml has more than 1,000,000 bytes"):
        read_spec(tmp_path / "large.toml")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\0" * 9, b"[" * 100_000, b"a." * 4000 + b"b = 1"])
def test_files_that_are_no_toml(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(DeeprokError, match=r"x.toml"):
        read_spec(tmp_path / "x.toml")
    for other in (tmp_path, tmp_path / "nowhere.toml", "a\0b", 3, None):
        with pytest.raises(DeeprokError):
            read_spec(other)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
_VALUES = st.recursive(_LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3))
_NAMES = st.sampled_from(["episodes", "hidden", "discount", "box", "env", "network", "process_noise", "prior", "draw"])


@given(
    st.fixed_dictionaries({"algorithm": st.sampled_from(["ddqn", "deep_rok", ["ddqn", "dqn"]]) | _VALUES}),
    st.dictionaries(st.sampled_from(["seeds", "trials", "design_seed", "env"]), _VALUES),
    st.dictionaries(_NAMES, _VALUES, max_size=3) | _VALUES,
)
def test_whatever_a_file_holds_it_is_trials_or_one_sentence(first: Any, more: Any, settings: Any) -> None:
    with contextlib.suppress(DeeprokError):
        assert make_trials(read_spec({**first, **more, "settings": settings}))


# --- the folder ---------------------------------------------------------------------------------------------------


class Pretended:
    """An executor that trains nothing: its runs are finished, or fail with a sentence, or are interrupted."""

    def __init__(self, slots: int = 1, fails: str = "never", stops_after: int = 99) -> None:
        self.slots, self.fails, self.stops_after = slots, fails, stops_after
        self.trained: list[list[str]] = []

    def train(self, groups: Any, report: Any, on_interrupt: Any, on_end: Any) -> None:
        for group in groups:
            if len(self.trained) == self.stops_after:
                raise KeyboardInterrupt
            self.trained.append([f"{folder.parent.name.rpartition('-')[0]}/{folder.name}" for folder in group])
            if self.fails in str(group[0]):
                on_end(group, DivergedError(*(f"{folder.name} diverged" for folder in group)))
                continue
            for folder in group:
                episodes = runs.read_config(folder).episodes
                counters = {"steps": np.int32(99), "episodes": np.int32(episodes)}
                checkpoint.save(folder / runs.CHECKPOINT, {"run": counters})
                report(folder, {"steps": 99, "episodes": episodes})
            on_end(group, None)


SPEC: dict[str, Any] = {
    "algorithm": ["ddqn", "deep_rok"],
    "seeds": 3,
    "settings": {"preset": "tuned", "episodes": 5, "discount": [0.5, 0.6]},
}


@pytest.fixture
def pretend(tmp_path: Path) -> Callable[..., tuple[SweepResult, Pretended, str]]:
    def run(spec: dict[str, Any], **options: Any) -> tuple[SweepResult, Pretended, str]:
        executor, console = Pretended(**options), Console(file=io.StringIO(), width=1000)
        found = run_sweep(read_spec(spec), tmp_path / "out", contextlib.nullcontext(executor), console)
        return found, executor, console.file.getvalue()

    return run


def test_each_trial_is_a_folder_of_seeds(tmp_path: Path, pretend: Any) -> None:
    found, executor, _ = pretend(SPEC)
    assert executor.trained == [
        ["ddqn-discount=0.5/seed-0", "ddqn-discount=0.5/seed-1", "ddqn-discount=0.5/seed-2"],
        ["ddqn-discount=0.6/seed-0", "ddqn-discount=0.6/seed-1", "ddqn-discount=0.6/seed-2"],
        *([f"deep_rok-discount={discount}/seed-{seed}"] for discount in (0.5, 0.6) for seed in range(3)),
    ]
    assert {each.state for each in found.trials} == {"finished"}
    for each in found.trials:
        assert each.folder.parent == tmp_path / "out"
        assert runs.find(each.folder) == each.runs
        for seed, folder in enumerate(each.runs):
            assert runs.read_config(folder) == dataclasses.replace(each.trial.config, seed=seed)
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert summary == json.loads(json.dumps(found.to_dict()))
    assert summary["spec"] == SPEC
    assert summary["design"] == {"kind": "grid"}
    assert summary["trials"][1] == {
        "folder": found.trials[1].folder.name,
        "varies": {"algorithm": "ddqn", "discount": 0.6},
        "settings": found.trials[1].trial.config.digest(),
        "seeds": [0, 1, 2],
        "state": "finished",
        "problem": "",
    }
    again, executor, said = pretend(SPEC)
    assert again == found
    assert executor.trained == []
    assert "4 of 4 trials" in said


def test_seeds_are_shared_out_where_there_are_more_processes_than_trials(pretend: Any) -> None:
    spec = {**SPEC, "algorithm": "ddqn", "seeds": 4}
    _, executor, _ = pretend(spec, slots=4)
    assert [[name[-1] for name in group] for group in executor.trained] == [["0", "2"], ["1", "3"]] * 2


def test_a_trial_that_fails_does_not_stop_the_others(tmp_path: Path, pretend: Any) -> None:
    found, executor, _ = pretend(SPEC, fails="ddqn-discount=0.5")
    assert [each.state for each in found.trials] == ["failed", *["finished"] * 3]
    assert found.trials[0].problem == "seed-0 diverged; seed-1 diverged; seed-2 diverged"
    assert json.loads((tmp_path / "out" / SUMMARY).read_text())["trials"][0]["problem"] == found.trials[0].problem
    again, executor, _ = pretend(SPEC)  # it may have been the disk
    assert len(executor.trained) == 1
    assert {each.state for each in again.trials} == {"finished"}
    assert again.trials[0].problem == ""


def test_an_interrupted_sweep_goes_on(tmp_path: Path, pretend: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretend(SPEC, stops_after=4)
    states = [each["state"] for each in json.loads((tmp_path / "out" / SUMMARY).read_text())["trials"]]
    assert states == ["finished", "finished", "unfinished", "unfinished"]
    found, executor, said = pretend(SPEC)
    assert len(executor.trained) == 4
    assert "2 of 4 trials" in said
    assert {each.state for each in found.trials} == {"finished"}


def test_a_changed_sweep_keeps_the_trials_that_stay_equal(tmp_path: Path, pretend: Any) -> None:
    before = {each.trial.digest: each.folder for each in pretend(SPEC)[0].trials}
    changed = {"algorithm": "ddqn", "env": ["cartpole", "ferry"], "seeds": 2, "settings": dict(SPEC["settings"])}
    changed["settings"]["discount"] = [0.6, 0.7]
    found, executor, said = pretend(changed)
    kept = [each for each in found.trials if each.trial.digest in before]
    assert [each.trial.varies for each in kept] == [{"env": "cartpole", "discount": 0.6}]
    assert kept[0].folder == before[kept[0].trial.digest]  # under the name that it had
    assert len(executor.trained) == 3
    assert not any("seed-2" in name for group in executor.trained for name in group)
    others = sorted(path.relative_to(tmp_path / "out") for path in found.others)
    assert [path.name.rpartition("-")[0] or path.name for path in others] == [
        "ddqn-discount=0.5", "seed", "deep_rok-discount=0.5", "deep_rok-discount=0.6",
    ]  # fmt: skip
    assert "and 3 more are no longer part of spec, and left as before" in said
    assert all(path.is_dir() for path in found.others)
    assert json.loads((tmp_path / "out" / SUMMARY).read_text())["others"] == [
        str(path.relative_to(tmp_path / "out")) for path in found.others
    ]
    found, executor, _ = pretend({**SPEC, "seeds": 4})
    assert [group[0][-1] for group in executor.trained] == ["3"] * 4  # a seed more
    assert {runs.read_group(folder) for folder in found.trials[0].runs} == {(0, 1, 2), (3,)}


def test_a_kill_while_folders_are_made_does_not_change_the_groups(tmp_path: Path, pretend: Any) -> None:
    spec = {**SPEC, "algorithm": "ddqn", "seeds": 4}
    with pytest.raises(KeyboardInterrupt):
        pretend(spec, slots=4, stops_after=0)
    trial = make_trials(read_spec(spec))[0]
    for seed in (1, 2, 3):
        for path in (tmp_path / "out" / trial.name / f"seed-{seed}").iterdir():
            path.unlink()
    _, executor, _ = pretend(spec, slots=1)
    assert [[name[-1] for name in group] for group in executor.trained] == [["0", "2"], ["1", "3"]] * 2


def test_a_damaged_summary_is_written_again(tmp_path: Path, pretend: Any) -> None:
    found, _, _ = pretend(SPEC)
    whole = (tmp_path / "out" / SUMMARY).read_bytes()
    (tmp_path / "out" / SUMMARY).write_bytes(whole[:100])
    assert pretend(SPEC)[0] == found
    assert (tmp_path / "out" / SUMMARY).read_bytes() == whole


def test_a_folder_of_something_else_is_refused(tmp_path: Path, pretend: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(DeeprokError, match=r"is not empty and holds no sweep\.json; choose another folder"):
        pretend(SPEC)
    assert os.listdir(tmp_path / "out") == ["mine.txt"]


def test_two_sweeps_on_one_folder(tmp_path: Path, pretend: Any) -> None:
    pretend(SPEC)
    before = (tmp_path / "out" / SUMMARY).read_bytes()
    with (
        runs.hold([tmp_path / "out"]),
        pytest.raises(DeeprokError, match=rf"out is in use by process {os.getpid()}; wait until it has ended"),
    ):
        pretend({**SPEC, "seeds": 5})
    assert (tmp_path / "out" / SUMMARY).read_bytes() == before


def test_a_run_that_was_changed_by_hand_is_refused(tmp_path: Path, pretend: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretend(SPEC, stops_after=0)
    trial = make_trials(read_spec(SPEC))[0]
    changed = dataclasses.replace(trial.config, seed=1, discount=0.1)
    (tmp_path / "out" / trial.name / "seed-1" / runs.CONFIG).write_text(changed.to_json())
    with pytest.raises(DeeprokError, match=r"seed-1 was trained with other settings"):
        pretend(SPEC)


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "tracker": (dict(trackers=["tensorbord"]), "unknown tracker 'tensorbord': did you mean 'tensorboard'"),
    "executor": (dict(executor="slurm"), "unknown executor 'slurm': known are local, ray"),
    "address": (dict(address="auto"), "address is auto, but executor is local"),
    "resources": (dict(cpus=2), "cpus, gpus and memory are for the executor ray"),
    "jobs": (dict(jobs=0), "jobs is 0; it must be at least 1"),
    "no cores": (dict(executor="ray", cpus=0), "cpus is 0; it must be a finite number, above 0"),
    "memory": (dict(executor="ray", memory=math.nan), "memory is nan; it must be a finite number, at least 0"),
    "size of a cluster": (dict(executor="ray", address="auto", jobs=2), "jobs is 2, but the cluster at auto has"),
}


@pytest.mark.parametrize(("options", "said"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_make_no_folder(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DeeprokError, match=said):
        sweep(SPEC, tmp_path / "out", **options)
    assert os.listdir(tmp_path) == []


def test_without_ray_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeeprokError, match=r"sweeps on Ray need the extra ray; in a clone: pip install .*'\.\[ray\]'"):
        sweep(SPEC, tmp_path / "out", executor="ray")
    assert os.listdir(tmp_path) == []


def test_what_ray_raises_is_one_sentence(tmp_path: Path) -> None:
    class RayError(Exception):
        pass

    ended = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: None,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 5.0}}, {"Alive": False, "Resources": {"CPU": 9.0}}],
        shutdown=lambda: ended.append(True),
        exceptions=SimpleNamespace(RayError=RayError),
    )

    def lose_it() -> None:
        with on_ray._cluster(ray, tmp_path, None, None, Resources(cpus=2)) as executor:
            assert executor.slots == 2
            raise RayError

    with pytest.raises(DeeprokError, match=r"the Ray cluster no longer answers \(RayError\)"):
        lose_it()
    assert ended == [True]


# --- parcels ------------------------------------------------------------------------------------------------------


def test_run_folders_travel_as_bytes(tmp_path: Path, pretend: Any) -> None:
    found, _, _ = pretend({**SPEC, "algorithm": "ddqn"})
    group = [str(folder.relative_to(found.out)) for folder in found.trials[0].runs]
    parcel = pack(found.out, group, NEEDED)
    assert {Path(name).name for name in parcel} == {runs.CONFIG, runs.GROUP, runs.CHECKPOINT}
    unpack(parcel, tmp_path / "there")
    for name in group:
        for file in (runs.CONFIG, runs.GROUP, runs.CHECKPOINT):
            assert (tmp_path / "there" / name / file).read_bytes() == (found.out / name / file).read_bytes()
    assert CHANGED[-1] == NEEDED[-1] == runs.CHECKPOINT  # what comes before it is forgotten if it is not whole


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "", ".", "link/x", "a/..", "x\0y"])
def test_nothing_is_unpacked_elsewhere(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (out / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeeprokError, match="is not a path below"):
        unpack({"first": b"whole", name: b"evil"}, out)
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "elsewhere", "link"}


@given(st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "a", "", "/"]), max_size=6).map("/".join))
def test_parcels_stay_in_their_folder(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "a" / "b"
        out.mkdir(parents=True)
        with contextlib.suppress(DeeprokError):
            unpack({name: b"x"}, out)
        inside = {*out.rglob("*"), out, out.parent}
        assert set(Path(folder).rglob("*")) == inside


def test_modules_that_are_not_installed_travel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pack").mkdir()
    (tmp_path / "my_pack" / "__init__.py").write_text("from my_pack import inner\n")
    (tmp_path / "my_pack" / "inner.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_pack")
    found = own_modules()
    assert found["my_pack/__init__.py"] == b"from my_pack import inner\n"
    assert found["my_pack/inner.py"] == b"X = 1\n"
    assert not any(name.startswith(("deeprok/", "numpy", "jax", "os.")) for name in found)


# --- a real one ---------------------------------------------------------------------------------------------------


def test_trained_in_processes_a_trial_diverges_and_the_other_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**FAST, "episodes": 60, "learning_rate": [1e-3, 1e30]}
    path = toml(tmp_path, as_toml({"algorithm": "ddqn", "seeds": 2, "settings": settings}))
    words = ["sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "2", "--tensorboard"]
    assert main(words) == 2
    printed = capsys.readouterr()
    good, bad = (trial.name for trial in make_trials(read_spec(path)))
    assert "1 finished · 1 failed" in printed.out
    assert f"{tmp_path / 'out' / bad}: seed 0: between steps" in printed.err
    assert "Traceback" not in printed.err
    trained = [deeprok.load(tmp_path / "out" / good / f"seed-{seed}") for seed in (0, 1)]
    assert [run.metrics.returns.shape for run in trained] == [(60,), (60,)]
    assert not np.array_equal(trained[0].metrics.returns, trained[1].metrics.returns)
    for run in trained:
        assert run.folder
        told = (run.folder / EVENTS).read_bytes()
        write_events([run.folder])
        assert (run.folder / EVENTS).read_bytes() == told
    # The other one is tried again, from where it was; what is finished is left alone.
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / good).rglob("*")}
    path.write_text(path.read_text().replace("1e+30", "1e-2"))
    found = deeprok.sweep(path, tmp_path / "out", jobs=1)
    assert [each.state for each in found.trials] == ["finished", "finished"]
    assert found.others == (tmp_path / "out" / bad,)
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps


def test_the_page_says_what_is_so() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "sweep.md").read_text()
    grid, drawn = (
        tomllib.loads(text) for text in re.findall(r"^```toml.*?\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    )
    assert len(make_trials(read_spec(grid))) == 8
    assert len(make_trials(read_spec(drawn))) == 40
    assert "2 × 2 × 2 trials of 5 seeds" in page
    assert f"At most {specs.MOST_TRIALS:,} trials\nand {specs.MOST_RUNS:,} runs" in page
    assert f"up to {RETRIES} times" in page


def test_local_sweeps_use_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.jobs, "count_cores", lambda: 7)
    with executors.local(None) as made:
        assert made.slots == 7
    with executors.local(3) as made:
        assert made.slots == 3
