"""The study of critics, small."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import critic, critic_page, plan
from studies.__main__ import STUDIES
from studies.engine import Options, run_study
from studies.screening import Case, case_of

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY: dict[str, Any] = dict(
    hidden=(3,), horizon=12, trajectories=4, minibatches=1, epochs=1, snapshot_every=0, trial_every=1, trial_models=2
)


def small(algorithm: str, preset: str, **changes: Any) -> Config:
    assert (algorithm, preset) == ("pg", "tuned")
    network = dict(critic_hidden=(2,), critic_updates=2, critic_batch=3) if "critic" in changes else {}
    return make_config(algorithm, preset, **{**changes, **TINY, **network, "episodes": 8})


def corners(name: str) -> Case:
    """The case with the ends of its axes alone."""
    case = case_of(name)
    return case._replace(axes={axis: values[[0, -1]] for axis, values in case.axes.items()})


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plan, critic):
        monkeypatch.setattr(module, "make_config", small)
    monkeypatch.setattr(critic, "case_of", corners)
    monkeypatch.setattr(critic, "EPSILONS", (0.05,))
    monkeypatch.setattr(critic, "ENVS", {"cartpole": {"episodes": 1800}})
    monkeypatch.setattr(critic, "REACHED", {"cartpole": 1.0})
    monkeypatch.setattr(critic, "CRITICS", ("linear", "kalman"))
    monkeypatch.setattr(critic, "TRIALS", {"kalman": ("critic_noise", (0.1, 0.3))})
    monkeypatch.setattr(critic, "TUNING_SEEDS", (1000,))
    monkeypatch.setattr(critic.measure, "__defaults__", (("cartpole",),))


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    options = Options(seeds=seeds, out=out, episodes=5, jobs=1)
    found = run_study(critic.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


@pytest.mark.slow
def test_study_adds_up(tmp_path: Path) -> None:
    first, text = study(tmp_path, seeds=1)
    assert "cartpole" in text
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(runs.CHECKPOINT)}
    assert len(before) == 2 + 2
    found, _ = study(tmp_path, seeds=2)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list(tmp_path.rglob(runs.CHECKPOINT))) == 2 * 2 + 2
    report = tmp_path / "report"
    saved = json.loads((report / "critic" / "critic.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert (report / "critic.md").read_text() == critic_page.page(saved)
    for kind in ("png", "svg"):
        assert (report / "critic" / f"critics.{kind}").stat().st_size > 5000
    assert saved["seconds"] == first["seconds"]  # measured once
    assert all(number > 0 for number in saved["seconds"]["cartpole"].values())
    for name, row in saved["rows"]["cartpole"].items():
        value = row["value"]
        assert (value is None) == (name == "linear")
        assert row["settings"] == small("pg", "tuned", **critic.changes_of("cartpole", name, value)).digest()
        assert row["seeds"]["1"] == first["rows"]["cartpole"][name]["seeds"]["1"]
        for seed in row["seeds"].values():
            assert seed["explained"] <= 1
            assert ("deviation" in seed) == (name == "kalman")
            assert seed["scores"]["0.05"]["worst_cell"] <= seed["scores"]["0.05"]["mean_return"]
            assert seed["reached"] == 4  # the first of two trials; anything earns more than 1
    assert set(saved["tuning"]["cartpole"]["kalman"]) == {"0.1", "0.3"}


# --- what is done again and what is not -----------------------------------------------------------------


def made_up(seed: int) -> dict[str, Any]:
    names = ("success", "mean_return", "worst_cell", "cvar10", "worst_success")
    return {"scores": {"0.05": dict.fromkeys(names, 1.0)}, "explained": 0.5, "deviation": 0.1, "reached": seed}


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Measures with runs that come to their end or don't, without training any; what was examined."""

    def measure(path: Path, seeds: int, broken: Sequence[int] = (), stop: str = "") -> list[str]:
        made: list[str] = []

        def note(its: Sequence[Any]) -> None:
            if its[0].row.name == stop:
                raise KeyboardInterrupt
            made.append(f"{its[0].row.name}: {[run.seed for run in its]}")

        def examined(its: Sequence[Any], env: str, episodes: int) -> dict[str, Any]:
            note(its)
            return {str(run.seed): made_up(run.seed) for run in its}

        def tried(its: Sequence[Any], env: str, episodes: int) -> dict[str, float]:
            note(its)
            return {str(run.seed): its[0].row.changes["critic_noise"] for run in its}  # the larger the better

        def runs_of(out: Path, its: plan.Comparison) -> list[Any]:
            return [SimpleNamespace(seed=s, finished=s not in broken, row=its.rows[0]) for s in its.seeds]

        stand_ins: dict[str, Any] = dict(examined=examined, tried=tried, runs_of=runs_of)
        stand_ins |= dict(prepare=lambda *_: None, train=lambda *_: None)
        stand_ins["seconds"] = lambda env: {"linear": 1.0, "kalman": 2.0}
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(critic, name, stand_in)
        options = Options(seeds=seeds, out=path.parent, episodes=5)
        work: list[float] = []
        critic.measure(options, path, lambda what, part: work.append(part))
        assert sum(work) == pytest.approx(critic._work(options))
        return made

    return measure


def test_only_what_is_missing_is_measured(tmp_path: Path, measure: Callable[..., list[str]]) -> None:
    path = tmp_path / "critic.json"
    trials = ["cartpole/kalman-0.1: [1000]", "cartpole/kalman-0.3: [1000]"]
    assert measure(path, 1) == ["cartpole/linear: [1]", *trials, "cartpole/kalman-0.3: [1]"]
    assert measure(path, 2) == ["cartpole/linear: [2]", "cartpole/kalman-0.3: [2]"]
    assert measure(path, 2) == []
    stored = json.loads(path.read_text())
    stored["rows"]["cartpole"]["linear"]["settings"] = "others"
    path.write_text(json.dumps(stored))
    assert measure(path, 2) == ["cartpole/linear: [1, 2]"]
    path.write_text(json.dumps(stored | {"episodes": 77}))
    assert len(measure(path, 1)) == 4


def test_an_interrupted_study_keeps_what_was_measured(tmp_path: Path, measure: Callable[..., list[str]]) -> None:
    path = tmp_path / "critic.json"
    with pytest.raises(KeyboardInterrupt):
        measure(path, 2, stop="cartpole/kalman-0.3")
    assert measure(path, 2) == ["cartpole/kalman-0.3: [1000]", "cartpole/kalman-0.3: [1, 2]"]


def test_a_diverged_seed_is_listed_and_its_setting_not_chosen(
    tmp_path: Path, measure: Callable[..., list[str]]
) -> None:
    path = tmp_path / "critic.json"
    measure(path, 3, broken=[2])
    rows = json.loads(path.read_text())["rows"]["cartpole"]
    assert [(list(row["seeds"]), row["diverged"]) for row in rows.values()] == [(["1", "3"], [2])] * 2
    page = " ".join(critic_page.page(json.loads(path.read_text())).split())
    assert "`cartpole`, linear: 2; `cartpole`, network, Kalman filter: 2." in page
    measure(path, 3)
    assert "No seed diverged." in critic_page.page(json.loads(path.read_text()))


def test_the_best_trial_in_which_no_seed_diverged() -> None:
    trials = {
        "0.1": {"seeds": {"1": 2.0, "2": 4.0}},
        "0.2": {"seeds": {"1": 9.0}},
        "3": {"seeds": {"1": 5.0, "2": 0.0}},
    }
    assert critic.best_value(trials, 2) == 0.1
    assert critic.best_value({"0.2": trials["0.2"]}, 2) is None


# --- parts ------------------------------------------------------------------------------------------------


def test_models_of_the_trials_are_inside_and_not_reported() -> None:
    axes = {"friction": np.linspace(0.3, 0.9, 5), "drag": np.linspace(0.0, 6.0, 3)}
    inner = critic.inset(axes)
    np.testing.assert_allclose(inner["drag"], [1, 3, 5])
    np.testing.assert_allclose(inner["friction"], [0.4, 0.6, 0.8])
    cells = {(f, d) for f in axes["friction"] for d in axes["drag"]}
    same = [c for c in cells for f in inner["friction"] for d in inner["drag"] if np.allclose(c, (f, d))]
    assert same == [(pytest.approx(0.6), 3.0)]  # the centre alone


def test_a_critic_that_knows_nothing_explains_nothing() -> None:
    config = small("pg", "tuned", env="cartpole")
    agent = config.make_learner().init(jax.random.key(0))
    assert float(critic.critic_measures(config)(agent, jax.random.key(1))["explained"]) == pytest.approx(0, abs=1e-6)


def test_rows_differ_in_the_critic_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert STUDIES["critic"] is critic.STUDY
    for env in critic.ENVS:
        linear, adam, kalman = (critic.changes_of(env, name) for name in critic.CRITICS)
        assert adam == linear | {"critic": "adam"}
        assert kalman == linear | {"critic": "kalman"}
        for name, (setting, values) in critic.TRIALS.items():
            assert len(values) == 3
            for value in values:
                config = make_config("pg", "tuned", **critic.changes_of(env, name, value))
                assert (config.learner.critic, getattr(config.learner, setting)) == (name, value)
    assert set(critic.REACHED) == set(critic.ENVS)
    assert set(critic._TRAINING) == set(critic.CRITICS) == set(critic_page.TITLES)


def sample() -> dict[str, Any]:
    def seed(worst: float, explained: float, reached: int | None) -> dict[str, Any]:
        scores = {"success": 0.5, "mean_return": 9.0, "worst_cell": worst, "cvar10": 0.0, "worst_success": 0.0}
        return {"scores": {"0.05": scores}, "explained": explained, "deviation": 0.25, "reached": reached}

    def row(value: float | None, *seeds: dict[str, Any]) -> dict[str, Any]:
        return {"settings": "", "diverged": [], "value": value, "seeds": {str(i): s for i, s in enumerate(seeds)}}

    return {
        "command": "deeprok reproduce --study critic --seeds 2",
        "episodes": 200,
        "epsilons": [0.05, 0.0],
        "environments": {"road": {"episodes": 4800, "discount": 0.999, "reached": -0.5}},
        "seconds": {"road": {"linear": 0.1, "adam": 0.12, "kalman": 0.25}},
        "tuning": {"road": {"kalman": {"0.1": {"seeds": {"1000": 3.0, "1001": 5.0}}, "0.3": {"seeds": {}}}}},
        "rows": {
            "road": {
                "linear": row(None, seed(1.0, 0.25, 60), seed(3.0, 0.75, None)),
                "kalman": row(0.1, seed(2.0, 1.0, 120), seed(4.0, 1.0, 240)),
            }
        },
    }


def test_page_of_a_sample() -> None:
    page = critic_page.page(sample())
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert ["`road`", "linear", "50.0", "50.0 – 50.0", "2", "1 – 3", "0.50", "–", "60 (1 of 2)", "1.00"] in lines
    kalman = ["`road`", "network, Kalman filter"]
    assert [*kalman, "50.0", "50.0 – 50.0", "3", "2 – 4", "1.00", "0.25", "180", "2.50"] in lines
    assert [*kalman, "`--critic-noise`", "0.1: 4, 0.3: –", "0.1"] in lines
    # Of the four pairs the Kalman critic wins three.
    assert any(line[:3] == ["`road`", "linear", "75 %"] for line in lines)
    assert "`road` (4,800 episodes, discount 0.999; bar -0.5)" in " ".join(page.split())
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    assert "does not differ from that with another critic on any environment, beyond chance. An iter" in " ".join(
        page.split()
    )
    found = sample()
    for row in found["rows"]["road"].values():
        for seed in row["seeds"].values():
            seed["scores"]["0.05"]["success"] = 0.08
    said = "No policy learned `road` (success at most 8 %), so it can't compare critics."
    assert said in " ".join(critic_page.page(found).split())
    ((title, _, *short),) = critic_page.short_tables(sample())
    assert (title, len(short)) == ("critics, ε = 0.05", 2)


def test_figure_of_a_sample() -> None:
    chart = critic_page.figures(sample())["critics"]
    worst, explained = chart.axes
    assert [label.get_text() for label in worst.get_xticklabels()] == ["linear", "network,\nKalman filter"]
    for panel, dots, means in ((worst, [1, 3, 2, 4], [2, 3]), (explained, [0.25, 0.75, 1, 1], [0.5, 1])):
        found = [line.get_ydata() for line in panel.lines if line.get_marker() == "."]
        np.testing.assert_allclose(np.concatenate(found), dots)
        np.testing.assert_allclose([line.get_ydata()[0] for line in panel.lines if line.get_marker() == "_"], means)
