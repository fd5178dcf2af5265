"""The reproduction of the paper, small; its parts have tests of their own below."""

from __future__ import annotations

import functools
import io
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from finished_runs import GOOD, LEFT, write_run
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deeprok.core.errors import DeeprokError, DivergedError
from deeprok.environments import CartPole, cartpole, with_model
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.uncertainty.models import parse_grid
from studies import engine, exam, figures, kalman, paper, plan, references, sb3, screening, table1
from studies.engine import Options, Study, run_study
from studies.exam import CONDITIONS, PAPER_GRID, Exam, Snapshots, make_examiner
from studies.results import improvement, summarise
from studies.statistics import (
    episodes_to,
    estimate,
    exam_noise,
    fisher,
    iqm,
    probability_of_improvement,
    ratio_of_iqms,
)
from studies.tables import wrapped

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=4, horizon=30, chunk_steps=100, trial_models=2, trial_every=1, warm_up=20, snapshot_every=2
)
SOME = {name: CONDITIONS[name] for name in ("between", "delay")}
ENV = cartpole()
AXES = parse_grid(PAPER_GRID, ENV.nominal)

pytestmark = pytest.mark.usefixtures("compiled_once")


def small(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    return make_config(algorithm, preset, **{**SMALL, "models": 2, **changes})


def reproduce(out: Path, seeds: int, draw: bool = True) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_config", small)
        # The corners of the square are enough, and so is a rough regulator.
        patch.setattr(plan, "PAPER_AGENTS", plan.SQUARE)
        patch.setattr(figures, "PAPER_AGENTS", ("dqn", "rtd_dqn", "deep_rok"))
        patch.setattr(references, "lqr_gain", functools.partial(references.lqr_gain, sweeps=50))
        patch.setattr(exam, "CONDITIONS", SOME)  # each disturbance is a program to compile
        patch.setattr(engine, "search_linear", lambda *_: np.array([0.0217, 0.0464, 1.0, 0.1881]))
        study = paper.STUDY if draw else paper.STUDY._replace(figures=lambda found: {})
        options = Options(seeds=seeds, out=out, episodes=10, jobs=1)
        found = run_study(study, options, Console(file=io.StringIO()), Console(file=written, width=160))
    return found, written.getvalue()


class Reproduced:
    """One seed, then two in the same folder, which needs the same programs again."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.first, self.text = reproduce(out, seeds=1, draw=False)
        self.trained = {path: path.stat().st_mtime_ns for path in out.rglob(runs.CHECKPOINT)}
        self.scored = {path: path.stat().st_mtime_ns for path in out.rglob("scores-*.json")}
        (out / "tuned" / "dqn" / "seed-0" / next(iter(self.scored)).name).unlink()  # as if it had been cut off there
        self.second, _ = reproduce(out, seeds=2)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    return Reproduced(tmp_path_factory.mktemp("reproduce"))


FIELDS = {
    "iqm_success",
    "success_ci",
    "iqm_return",
    "return_ci",
    "mean_regret",
    "max_regret",
    "nominal_return",
    "episodes_to_95",
    "seeds",
    "settings",
}


def test_only_a_run_that_diverged_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    its = engine.runs_of(tmp_path, plan.Comparison("some", [plan.Row("dqn", "dqn")], [0], exam.Exam(0)))
    engine.prepare(tmp_path, its)
    console, options = Console(file=io.StringIO(), width=200), Options(out=tmp_path, jobs=1)
    with runs.hold([its[0].folder]), pytest.raises(DeeprokError, match="seed-0 is in use by process"):
        engine.train("some", its, options, lambda what, work: None, console)

    def diverges(*_: Any) -> None:
        raise DivergedError("seed 0 broke down")

    monkeypatch.setattr(engine.jobs, "resume", diverges)
    engine.train("some", its, options, lambda what, work: None, console)
    assert console.file.getvalue() == "seed 0 broke down\n"


@pytest.mark.slow
def test_results_have_every_field(reproduced: Reproduced) -> None:
    saved = json.loads((reproduced.out / "report" / "results" / "results.json").read_text())
    assert saved == json.loads(json.dumps(reproduced.second))
    assert list(saved["agents"]) == list(plan.SQUARE)
    assert list(saved["references"]) == ["random", "linear", "lqr"]
    for row in (*saved["agents"].values(), *saved["references"].values()):
        assert set(row) >= FIELDS
        assert row["success_ci"][0] <= row["iqm_success"] <= row["success_ci"][1]
        assert row["return_ci"][0] <= row["iqm_return"] <= row["return_ci"][1]
        assert set(row["beyond"]) == set(SOME)
    assert {row["seeds"] for row in saved["agents"].values()} == {2}
    assert saved["agents"]["dqn"]["settings"] == small("dqn").digest()
    assert saved["references"]["lqr"]["mean_regret"] == saved["references"]["lqr"]["max_regret"] == 0
    assert saved["agents"]["dqn"]["per_seed_episodes_to_95"] == [None] * 2
    assert saved["agents"]["dqn"]["curve"]["episodes"] == [2, 4]
    live = (reproduced.out / "report.html").read_text()
    assert all(f'"name":"{name}"' in live for name in plan.SQUARE)


def test_a_study_ends_with_the_page_of_its_agents(tmp_path: Path) -> None:
    """With the weights that its tables are of, the last ones, and a fifth of its test episodes."""
    write_run(tmp_path / "agents" / "steady" / "seed-0", best=LEFT, last=GOOD)
    study = Study(
        "steady",
        "one agent",
        compare=lambda _: [],
        collect=lambda _: {},
        page=lambda _: "",
        figures=lambda _: {},
        tables=lambda _: [],
        shown=lambda options: [options.out / "agents" / name for name in ("steady", "measured-elsewhere")],
    )
    written, options = io.StringIO(), Options(seeds=1, out=tmp_path, episodes=10)
    run_study(study, options, Console(file=io.StringIO()), Console(file=written, width=160))
    assert f"the agents, live: {tmp_path / 'report.html'}" in written.getvalue()
    data = (tmp_path / "report.html").read_text().partition('id="data">')[2].partition("</script>")[0]
    ((agent,),) = [scene["agents"] for scene in json.loads(data)["scenes"]]
    assert (agent["name"], agent["keep"], agent["map"]["episodes"]) == ("steady", "last", 2)
    assert agent["map"]["nominal"] == 1.0


@pytest.mark.slow
def test_seeds_add_up_and_nothing_is_done_twice(reproduced: Reproduced) -> None:
    assert len(reproduced.trained) == len(reproduced.scored) == 4
    assert {path: path.stat().st_mtime_ns for path in reproduced.trained} == reproduced.trained
    changed = [path for path, then in reproduced.scored.items() if path.stat().st_mtime_ns != then]
    assert [path.parent.parent.name for path in changed] == ["dqn"]
    for name in plan.SQUARE:
        before, after = (found["agents"][name]["per_seed"] for found in (reproduced.first, reproduced.second))
        assert after["seed"] == [0, 1]
        assert after["return"][:1] == before["return"]


@pytest.mark.slow
def test_scores_are_those_of_the_runs(reproduced: Reproduced) -> None:
    found = reproduced.second["agents"]["deep_rok"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeprok.runs.settings.Config.make_env", lambda self: ENV)
        again = evaluate(reproduced.out / "tuned" / "deep_rok", PAPER_GRID, episodes=10, keep="last")
    assert [seed.overall.mean_return for seed in again.per_seed] == pytest.approx(found["per_seed"]["return"])
    np.testing.assert_allclose(again.success, found["cell_success"])
    # The last snapshot is the last weights.
    score = json.loads(next(path for path in reproduced.scored if "deep_rok" in str(path)).read_text())
    assert score["curve"]["episodes"] == [2, 4]


@pytest.mark.slow
def test_table_page_and_figures(reproduced: Reproduced) -> None:
    for name, row in reproduced.first["agents"].items():
        assert any(name in line and f"{row['iqm_return']:.1f}" in line for line in reproduced.text.splitlines())
    report = reproduced.out / "report"
    written = (report / "results.md").read_text()
    assert "deeprok reproduce --seeds 2\n" in written
    for figure in ("shortfall-tuned", "learning-tuned", "square"):
        assert f"(results/{figure}.png)" in written
        assert (report / "results" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (report / "results" / f"{figure}.svg").read_text()


def test_runs_of_other_settings_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tuned" / "rtd_dqn" / "seed-0"
    runs.create(folder, small("rtd_dqn", episodes=5))
    with pytest.raises(DeeprokError, match=r"rtd_dqn.seed-0 was trained with other settings"):
        reproduce(tmp_path, seeds=1)
    assert [path.name for path in folder.iterdir()] == [runs.CONFIG]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "seeds": ({"seeds": 0}, "seeds is 0; it must be at least 1"),
    "episodes": ({"episodes": 0}, "episodes is 0; it must be at least 1"),
    "jobs": ({"jobs": 0}, "jobs is 0; it must be at least 1"),
    "nothing to resume": ({"resume": True}, "there is nothing to resume in .*out; leave out --resume"),
}


ALL = [paper.STUDY, kalman.STUDY, table1.STUDY, screening.STUDY]
STUDIES = pytest.mark.parametrize("study", ALL, ids=lambda study: study.name)


@STUDIES
def test_a_second_study_in_a_folder_is_refused(tmp_path: Path, study: Study) -> None:
    with runs.hold([tmp_path]), pytest.raises(DeeprokError, match=f"in use by process {os.getpid()}"):
        run_study(study, Options(out=tmp_path), Console(file=io.StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == [runs.LOCK]


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_options_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeeprokError, match=message):
        run_study(paper.STUDY, Options(**options, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"full": True}, {"preset": "paper"}], ids=str)
def test_only_the_paper_has_presets(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(DeeprokError, match="study is kalman, which takes neither --full nor --preset paper"):
        run_study(kalman.STUDY, Options(**options, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@STUDIES
def test_stored_numbers_give_the_stored_page(tmp_path: Path, study: Study) -> None:
    docs = Path(__file__).parent.parent / "docs"
    stored = docs / study.name / f"{study.name}.json"
    (tmp_path / study.name).mkdir()
    (tmp_path / study.name / stored.name).write_bytes(stored.read_bytes())
    engine.write_page(study._replace(figures=lambda found: {}), tmp_path)
    assert (tmp_path / f"{study.name}.md").read_text() == (docs / f"{study.name}.md").read_text()


# The plan.


def studies() -> list[plan.Comparison]:
    return paper.comparisons(seeds=20, preset="tuned", full=True, episodes=500)


def test_full_plan() -> None:
    found = {study.name: study for study in studies()}
    assert next(iter(found)) == "tuned"
    assert set(found) == {"tuned", "fastest", "tuning", "best", "paper", "ablation"}
    for preset in ("tuned", "paper"):
        assert {row.name for row in found[preset].rows} == {*plan.PAPER_AGENTS, "deep_rok_joint", "deep_rok_vote"}
    assert {name: len(study.seeds) for name, study in found.items()} == {
        "tuned": 20,
        "fastest": 20,
        "tuning": 3,
        "best": 20,
        "paper": 10,
        "ablation": 10,
    }
    reported = {seed for study in studies() if study.name != "tuning" for seed in study.seeds}
    assert not reported & set(plan.TUNING_SEEDS)


def test_every_row_has_a_folder_and_settings_of_its_own() -> None:
    for study in studies():
        own = [row for row in study.rows if not row.runs]
        assert len({row.name for row in own}) == len({row.config(0).digest() for row in own}) == len(own)
        for row in study.rows:
            assert "/" not in row.name
            if row.runs:  # the runs it borrows are what it says it is
                owner_study, owner = row.runs.split("/")
                rows = {r.name: r for s in studies() if s.name == owner_study for r in s.rows}
                assert rows[owner].config(3) == row.config(3)


def test_the_square_differs_by_target_and_estimator_alone() -> None:
    for preset in ("tuned", "paper"):
        configs = [make_config(name, preset) for name in plan.SQUARE]
        shared = [{k: v for k, v in vars(c).items() if k not in ("algorithm", "estimator", "target")} for c in configs]
        assert all(settings == shared[0] for settings in shared)
        assert len({c.target.target_period for c in configs}) == 1
        assert {(c.robust, c.row.estimator) for c in configs} == {
            (robust, estimator) for robust in (False, True) for estimator in ("gradient", "kalman")
        }
        assert not any(c.target.double for c in configs)


def test_corners_are_tuned_with_the_same_budget() -> None:
    rows = plan.tuning(500).rows
    assert {sum(row.algorithm == name for row in rows) for name in plan.SQUARE} == {15}


def test_ablations_change_one_choice() -> None:
    study = plan.ablation(10, 500)
    for row in study.rows:
        base, changed = make_config(row.algorithm, "paper").flat(), row.config(0).flat()
        assert {name for name in base if base[name] != changed[name]} <= set(row.changes)
    for algorithm in plan.ABLATED:
        assert sum(row.algorithm == algorithm for row in study.rows) > 5


# Statistics.


def test_episodes_to() -> None:
    times = [20, 40, 60, 80, 100]
    assert episodes_to(5.0, times, [6, 4, 6, 7, 1]) == 60
    assert episodes_to(5.0, times, [5, 6, 6, 0, 0]) == 40
    assert episodes_to(5.0, times, [0, 0, 0, 0, 9]) is None
    assert episodes_to(5.0, times[:1], [9]) is None


@given(st.lists(st.floats(0, 1), min_size=4, max_size=24).filter(lambda x: len(x) % 4 == 0))
def test_iqm_is_the_mean_of_the_middle_half(scores: list[float]) -> None:
    quarter = len(scores) // 4
    assert iqm(np.array(scores)) == pytest.approx(np.mean(sorted(scores)[quarter:-quarter]))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_probability_of_improvement_is_mann_whitney(first: list[int], second: list[int]) -> None:
    u = scipy.stats.mannwhitneyu(first, second, method="asymptotic").statistic if first != second else None
    found = probability_of_improvement(np.array(first), np.array(second))
    assert found == pytest.approx(1 - probability_of_improvement(np.array(second), np.array(first)))
    if u is not None and len(set(first + second)) > 1:
        assert found == pytest.approx(u / (len(first) * len(second)))


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(60):
        sample = rng.normal(3.0, 1.0, 20)
        low, high = estimate(iqm, sample).interval
        covered.append(low < 3.0 < high)
    assert 0.85 < np.mean(covered) <= 1.0


def test_estimates() -> None:
    assert estimate(iqm, [0.4]) == (0.4, None)
    assert estimate(iqm, [0.4] * 5) == (pytest.approx(0.4), pytest.approx((0.4, 0.4)))
    ratio = estimate(ratio_of_iqms, [1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
    assert ratio.value == pytest.approx(0.5)
    assert ratio.interval == pytest.approx((0.25, 0.75), abs=0.1)
    better = estimate(probability_of_improvement, [3.0, 4.0], [1.0, 2.0])
    assert better == (1.0, (1.0, 1.0))


def test_fisher_by_hand() -> None:
    # Of 3 + 3 seeds 3 fail, all of one agent: 1 of the 20 ways to place them, and its mirror image.
    assert fisher([0.1, 0.2, 0.3], [0.95, 0.96, 0.97], 0.9) == pytest.approx(2 / 20)
    assert fisher([0.1, 0.95], [0.95, 0.1], 0.9) == pytest.approx(1)
    assert fisher([0.9], [0.9], 0.9) == pytest.approx(1)  # at the threshold is not below it


def test_exam_noise_is_that_of_binomial_cells() -> None:
    rng = np.random.default_rng(0)
    cells = np.array([[0.5, 0.9], [1.0, 0.0]])
    played = rng.binomial(20, cells, (20_000, 2, 2)).mean(axis=(1, 2)) / 20
    assert exam_noise(cells.tolist(), 20) == pytest.approx(played.std(), rel=0.02)


def test_pages_are_wrapped_but_for_tables_and_code() -> None:
    table, code = "| " + "x " * 30 + "|", "word " * 10 + "word"
    page = f"# Title\n\none two\nthree four five\n\n- six seven\n  eight nine\n- ten\n\n{table}\n\n```sh\n{code}\n```\n"
    lines = wrapped(page, width=13).splitlines()
    assert lines[2:4] == ["one two three", "four five"]
    assert lines[5:8] == ["- six seven", "  eight nine", "- ten"]
    assert {table, code} <= set(lines)
    assert wrapped(page, 200).split() == page.split()


def scores(success: float, returns: list[list[float]], curve: list[float]) -> dict[str, Any]:
    return {
        "success": success,
        "success_error": 0.01,
        "return": float(np.mean(returns)),
        "return_error": 1.0,
        "nominal_return": 200.0,
        "cell_success": [[success, success]],
        "cell_return": returns,
        "curve": {"episodes": [20, 40, 60], "return": curve, "success": [0.0, 0.5, success]},
    }


def test_summary_by_hand() -> None:
    ceiling = scores(0.9, [[100.0, 200.0]], [])
    found = summarise(
        {
            7: scores(0.8, [[90.0, 200.0]], [10, 143, 144]),
            8: scores(0.6, [[40.0, 198.0]], [10, 20, 150]),
        },
        ceiling,
        "abc",
    )
    assert found["iqm_success"] == pytest.approx(0.7)
    assert found["success_ci"] == pytest.approx([0.6, 0.8])
    assert found["mean_regret"] == pytest.approx((5 + 31) / 2)
    assert found["max_regret"] == pytest.approx((10 + 60) / 2)
    assert found["per_seed_episodes_to_95"] == [40, None]  # 95 % of 150 is 142.5
    assert found["episodes_to_95"] == pytest.approx((40 + 80) / 2)
    assert found["reached"] == 1
    assert (found["seeds"], found["settings"]) == (2, "abc")
    assert improvement({"a": found, "b": found})["a"]["b"]["value"] == 0.5


def test_a_single_policy_has_the_interval_of_its_episodes() -> None:
    one = scores(0.8, [[90.0, 200.0]], [10, 20, 30])
    assert summarise({0: one}, one, "")["success_ci"] == pytest.approx([0.7804, 0.8196])


# References and the exam.

CELLS = [(0.5, 1.5), (0.2, 0.1), (1.4, 7.0)]


def matrices(length: float, cart: float) -> tuple[np.ndarray, np.ndarray]:
    """Barto's equations of motion, linearised by hand at the upright position, one Euler step."""
    pole, gravity, force, tau = 0.1, 9.8, 10.0, 0.02
    total = pole + cart
    reach = length * (4 / 3 - pole / total)
    theta_acc = np.array([0, 0, gravity / reach, 0]), -force / total / reach
    x_acc = -pole * length / total * theta_acc[0], force / total - pole * length / total * theta_acc[1]
    A = np.eye(4)
    A[0, 1] = A[2, 3] = tau
    A[1] += tau * x_acc[0]
    A[3] += tau * theta_acc[0]
    return A, np.array([0, tau * x_acc[1], 0, tau * theta_acc[1]])


@pytest.mark.parametrize(("length", "cart"), CELLS)
def test_linearisation_and_regulator(x64: None, length: float, cart: float) -> None:
    params = with_model(CartPole(), {"pole_length": length, "cart_mass": cart})
    linear = jax.jit(functools.partial(references.linearise, ENV))(params)
    A, B = matrices(length, cart)
    np.testing.assert_allclose(linear.A, A, atol=1e-6)
    np.testing.assert_allclose(linear.B, B, rtol=1e-6)
    cost = np.diag([0.3, 0.0, 10.0, 0.1])
    riccati = scipy.linalg.solve_discrete_are(A, B[:, None], cost, np.array([[2.0]]))
    expected = (B @ riccati @ A) / (2.0 + B @ riccati @ B)
    design = jax.jit(lambda A, B: references.lqr_gain(references.Linearisation(A, B), jnp.diag(cost), 2.0, 5000))
    gain = design(A, B)
    np.testing.assert_allclose(gain, expected, rtol=1e-6)


def play(gain: Any, designed: bool, epsilon: float, episodes: int = 40) -> np.ndarray:
    controller = references.Controller(gain=jnp.asarray(gain, float), designed=jnp.asarray(designed))
    player = cell_player(ENV, references.make_linear_policy(ENV), episodes)
    return player(controller, grid_cells(ENV, AXES), epsilon)


def test_the_ceiling() -> None:
    returns = play(np.zeros(4), True, 0.1)
    success = (returns[:-1] > 195).mean(axis=1).reshape(7, 7)
    assert success[:, 1:].mean() > 0.99
    np.testing.assert_allclose(success[:, 0], [0, 0.07, 0.57, 0.78, 0.91, 0.97, 0.98], atol=0.2)
    assert 0.93 < success.mean() < 0.96
    assert play(np.zeros(4), False, 1.0).mean() < 70


def test_search_finds_a_good_linear_policy() -> None:
    gain = references.search_linear(ENV, AXES, 0.1, population=32, rounds=8, episodes=2)
    assert np.linalg.norm(gain) == pytest.approx(1)
    assert (play(gain, False, 0.1) > 195).mean() > 0.9


def test_exam_asks_what_it_says() -> None:
    gain = np.array([0.0217, 0.0464, 1.0, 0.1881], np.float32)
    examine = make_examiner(ENV, lambda gain, _: lambda obs: (obs @ gain > 0).astype(jnp.int32), Exam(*[10] * 4))
    found = examine(gain, Snapshots([20, 40], [0 * gain, gain]))
    assert 0.9 < found["success"] < 1
    assert found["success"] == pytest.approx(np.mean(found["cell_success"]))
    assert found["return"] == pytest.approx(np.mean(found["cell_return"]))
    assert 0 < found["success_error"] < 0.02
    assert found["nominal_return"] == 200
    assert np.min(found["length_return"]) > 170
    assert len(found["length_deviation"]) == 13
    start, end = found["curve"]["return"]
    assert start < 70 < 180 < end
    beyond = {name: score["success"] for name, score in found["beyond"].items()}
    assert set(beyond) == set(CONDITIONS)
    assert beyond["between"] > 0.99
    assert min(beyond.values()) > 0.5
    # Noise and delay cost something.
    assert max(beyond["force_noise"], beyond["delay"]) < found["success"]
    assert examine(gain, epsilon=1.0)["success"] < 0.1
    assert "curve" not in examine(gain)


def test_conditions_leave_the_grid() -> None:
    on_grid = {tuple(cell) for cell in np.array(list(grid_cells(ENV, AXES).values())).T.round(6)}
    for name in ("between", "outside"):
        cells = grid_cells(ENV, parse_grid(CONDITIONS[name].grid, ENV.nominal))
        assert not {tuple(cell) for cell in np.array(list(cells.values())).T[:-1].round(6)} & on_grid
    assert float(CONDITIONS["heavy_pole"].change(ENV).nominal.pole_mass) == pytest.approx(0.5)


# stable-baselines3's environment.


@pytest.mark.parametrize("sampled", [False, True])
def test_its_environment_is_that_of_gymnasium(sampled: bool) -> None:
    environment = sb3.make_environment(ENV, sampled, seed=3)
    inner, drawn = environment.unwrapped, set()
    for episode in range(5):
        obs, _ = environment.reset(seed=episode)
        params = inner.params
        drawn.add((float(params.pole_length), float(params.cart_mass)))
        theirs = CartPoleEnv()
        theirs.reset(seed=0)
        theirs.length, theirs.masscart = float(params.pole_length), float(params.cart_mass)
        theirs.total_mass = theirs.masspole + theirs.masscart
        theirs.polemass_length = theirs.masspole * theirs.length
        theirs.state = np.asarray(obs, float)
        earned, ended = 0.0, False
        while not ended:
            expected, _, failed, *_ = theirs.step(episode % 2)
            obs, reward, terminated, truncated, _ = environment.step(episode % 2)
            np.testing.assert_allclose(obs, expected, rtol=1e-4, atol=1e-5)
            assert (reward, terminated) == (0.0 if failed else 1.0, failed)
            earned, ended = earned + reward, terminated or truncated
        assert 3 < earned < 60
    assert len(drawn) == (5 if sampled else 1)
    for length, mass in drawn:
        assert 0.2 <= length <= 1.4
        assert 0.1 <= mass <= 7.0
    if not sampled:
        assert drawn == {(0.5, 1.5)}


def test_without_the_extra_full_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "stable_baselines3", None)
    with pytest.raises(
        DeeprokError, match=r"stable_baselines3 is not installed: it needs the extra bench; in a clone: pip install -c "
    ):
        run_study(paper.STUDY, Options(out=tmp_path / "out", full=True))
    assert not (tmp_path / "out").exists()
