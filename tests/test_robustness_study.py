"""The study of robustness against domain randomisation, small; and its statistics against a simulated truth."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from deeprok.environments import ENVIRONMENTS
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.uncertainty import SETS
from studies import measured, plan, robustness, robustness_figure, robustness_page, sb3
from studies.__main__ import STUDIES
from studies.engine import Options, numbers_file, run_study
from studies.screening import Case, case_of
from studies.statistics import difference, estimate, mean_of

ROOT = Path(__file__).parent.parent
MEASURE = robustness.measure
Q_ROWS = [name for name, agent in robustness.AGENTS.items() if agent.algorithm in ("ddqn_dr", "rtd_dqn")]
POLICY_ROWS = ["pg", "epopt", "robust_pg"]
SB3_ROWS = ["sb3_dqn", "sb3_ppo"]

pytestmark = pytest.mark.usefixtures("compiled_once")


def small(algorithm: str, preset: str, **changes: Any) -> Config:
    assert preset == "default"
    tiny: dict[str, Any] = dict(hidden=(4,), trial_models=2)
    if algorithm in POLICY_ROWS:
        tiny |= dict(trajectories=4, epochs=1)
    else:
        tiny |= dict(batch_size=4, warm_up=20, train_every=1, chunk_steps=60, normalise=False, longest_repeat=1)
    return make_config(algorithm, preset, **{**tiny, **changes, "trial_episodes": 1, "trial_every": 1, "steps": 120})


def corners(name: str) -> Case:
    """The case with the ends of its axes alone."""
    case = case_of(name)
    return case._replace(axes={axis: values[[0, -1]] for axis, values in case.axes.items()})


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "make_config", small)
    monkeypatch.setattr(robustness, "case_of", corners)
    monkeypatch.setattr(sb3, "is_installed", lambda: False)


def study(out: Path, seeds: int, agents: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    measure = functools.partial(MEASURE, envs=("ferry",), agents=agents)
    monkeypatch.setattr(robustness, "measure", measure)
    written = io.StringIO()
    options = Options(seeds=seeds, out=out, episodes=5, jobs=1)
    found = run_study(robustness.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


def check_report(report: Path, found: dict[str, Any], agents: Sequence[str], seeds: int) -> None:
    saved = json.loads((report / "robustness" / "robustness.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert (report / "robustness.md").read_text() == robustness_page.page(saved)
    for name in ("share", "success"):
        for kind in ("png", "svg"):
            assert (report / "robustness" / f"{name}.{kind}").stat().st_size > 5000
    for name in agents:
        row = saved["rows"]["ferry"][name]
        assert (list(row["seeds"]), row["diverged"]) == ([str(seed) for seed in range(seeds)], [])
        for seed in row["seeds"].values():
            scores = seed["0.05"]
            assert scores["worst_cell"] <= scores["cvar10"] <= scores["mean_return"]
            assert 0 <= scores["worst_success"] <= scores["success"] <= 1
            assert 0 <= scores["success_error"] <= 0.5
    others = [its["seeds"] for env, rows in saved["rows"].items() for name, its in rows.items() if name not in agents]
    assert not any(others)


@pytest.mark.slow
def test_study_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    original = measured.train

    def counted(name: str, its: Any, *rest: Any) -> None:
        trained.append((name, [run.seed for run in its if not run.finished]))
        original(name, its, *rest)

    monkeypatch.setattr(measured, "train", counted)
    agents = ["dr", "dr_last", "dr_best"]
    first, text = study(tmp_path, 1, agents, monkeypatch)
    # The best weights of a run are those of the same run as its last ones.
    assert trained == [("ferry/dr", [0]), ("ferry/dr_last", [0]), ("ferry/dr_best", [])]
    assert "dr_best" in text
    assert study(tmp_path, 1, agents, monkeypatch)[0] == json.loads(json.dumps(first))
    assert len(trained) == 3

    found, _ = study(tmp_path, 2, agents, monkeypatch)
    assert trained[3:] == [("ferry/dr", [1]), ("ferry/dr_last", [1]), ("ferry/dr_best", [])]
    check_report(tmp_path / "report", found, agents, 2)
    for name in agents:
        row = found["rows"]["ferry"][name]
        assert row["seeds"]["0"] == json.loads(json.dumps(first))["rows"]["ferry"][name]["seeds"]["0"]
        settle = {} if name == "dr" else {"settle": False}
        assert row["settings"] == small("ddqn_dr", "default", env="ferry", **settle).digest()
    # What has the preset alone is what the study of the defaults trains.
    folders = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(runs.CHECKPOINT)}
    assert folders == {
        f"{row}/seed-{k}" for row in ("defaults/ferry/ddqn_dr", "robustness/ferry/dr_last") for k in (0, 1)
    }
    for seed in found["rows"]["ferry"]["dr_last"]["seeds"].values():
        assert (seed["step"], seed["steps"]) == (120, 120)


@pytest.mark.slow
def test_a_run_that_settles_has_its_best_weights_as_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(tmp_path, 2, ["dr"], monkeypatch)
    for seed in (0, 1):
        learner = small("ddqn_dr", "default", env="ferry").make_learner()
        folder = tmp_path / "defaults" / "ferry" / "ddqn_dr" / f"seed-{seed}"
        last, best = (learner.view.mean(runs.load_belief(folder, learner, keep)) for keep in ("last", "best"))
        np.testing.assert_array_equal(last, best)


@pytest.mark.slow
def test_every_row_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [*Q_ROWS, *POLICY_ROWS]
    found, text = study(tmp_path, 2, agents, monkeypatch)
    check_report(tmp_path / "report", found, agents, 2)
    assert all(name in text for name in agents)
    page = (tmp_path / "report" / "robustness.md").read_text()
    assert "needs the extra `bench`" in page
    assert all(robustness.AGENTS[name].title in page for name in agents)


def test_rows_not_chosen_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "robustness.json"
    work: list[float] = []

    def planned(options: Options, episodes: int) -> measured.Plan:
        def row(env: str, name: str) -> measured.Planned:
            def examine(seeds: Sequence[int]) -> Any:
                return {str(seed): {"0.05": {"success": 1.0}} for seed in seeds}

            return measured.Planned(f"{env} {name}", range(options.seeds), lambda seeds: [*seeds], examine, 2.0)

        return {env: {name: row(env, name) for name in ("dr", "cvar")} for env in ("ferry", "road")}

    def seeds(**chosen: Any) -> list[int]:
        options = Options(seeds=2, out=tmp_path, episodes=5)
        found = robustness.measure(options, path, lambda what, part: work.append(part), **chosen)
        return [len(found["rows"][env][name]["seeds"]) for env in ("ferry", "road") for name in ("dr", "cvar")]

    monkeypatch.setattr(robustness, "plan_rows", planned)
    assert seeds(envs=["road"], agents=["cvar"]) == [0, 0, 0, 2]
    assert sum(work) == 2 * (2.0 + measured.EXAM)
    assert seeds(agents=["dr"]) == [2, 0, 2, 2]
    assert seeds() == [2, 2, 2, 2]


# --- what is compared ----------------------------------------------------------------------------------


def test_agents_have_the_same_effort() -> None:
    assert STUDIES["robustness"] is robustness.STUDY
    default = make_config("rtd_dqn")
    same = ("steps", "episodes", "edges", "trial_episodes", "trial_epsilon", "acting")
    for name in (*Q_ROWS, *POLICY_ROWS):
        agent = robustness.AGENTS[name]
        for env in robustness.ENVS:
            config = make_config(agent.algorithm, "default", env=env, **agent.changes)
            assert [getattr(config, field) for field in same] == [getattr(default, field) for field in same], name
            assert config.trial_tail == (1.0 if name.endswith("_mean") else default.trial_tail)
            assert config.settle is (not name.endswith(("_last", "_best")))
            assert config.robust == (agent.algorithm in ("rtd_dqn", "epopt", "robust_pg"))
    assert set(Q_ROWS) | set(POLICY_ROWS) | set(SB3_ROWS) == set(robustness.AGENTS)


def test_balls_are_as_large_as_the_default_set() -> None:
    """Ten normal values have the same worst case on average, to the digit that the radii are given with."""
    values = jax.random.normal(jax.random.key(1), (2000, 10))
    uniform = jnp.full(10, 0.1)

    def worst(name: str, level: float) -> float:
        return float(jnp.mean(jax.jit(jax.vmap(lambda v: SETS[name].worst_case(uniform, v, level).value))(values)))

    default = make_config("rtd_dqn").target
    wanted = worst(default.robust_set, default.robust_level)
    for name, row in (("kl", "kl"), ("wasserstein", "wasserstein")):
        level = robustness.AGENTS[row].changes["robust_level"]
        assert worst(name, level - 0.1) > wanted > worst(name, level + 0.1)
    late = robustness.AGENTS["minimum_late"].changes["robust_level"]
    assert worst("cvar", late) == pytest.approx(worst("minimum", 1.0), abs=1e-5)


# --- intervals -----------------------------------------------------------------------------------------


def test_errors_of_the_test_are_those_of_many_tests() -> None:
    """Episodes that have the same random numbers in all cells: the error of their mean is that of repeated tests."""
    rng = np.random.default_rng(0)
    cells, episodes, tests = 4, 50, 3000
    shared = rng.normal(size=(tests, 1, episodes))
    returns = np.array([0.0, 0.2, 0.5, 3.0])[:, None] + shared + 0.3 * rng.normal(size=(tests, cells, episodes))
    found = [robustness.grid_scores(one, 0.0) for one in returns]
    for score in ("success", "worst_cell"):
        true = np.std([one[score] for one in found])
        assert np.sqrt(np.mean([one[f"{score}_error"] ** 2 for one in found])) == pytest.approx(true, rel=0.06)


def simulated(rng: np.random.Generator, own: bool, studies: int = 1500) -> np.ndarray:
    """Success of ten seeds in each of many studies; the truth is 0.7. Cells of one episode share its luck."""
    seeds, cells, episodes = 10, 5, 30
    true = np.clip(rng.normal(0.7, 0.05, (studies, seeds, 1, 1)), 0, 1)
    luck = rng.uniform(size=(studies, seeds if own else 1, 1, episodes))
    return (np.broadcast_to(luck, (studies, seeds, cells, episodes)) < true).mean(axis=(2, 3))


def coverage(scores: np.ndarray, interval: Callable[[np.ndarray], Any]) -> float:
    ends = [interval(seeds).interval for seeds in scores]
    return float(np.mean([low <= 0.7 <= high for low, high in ends]))


def test_intervals_hold_the_noise_of_seeds_and_of_the_test() -> None:
    rng = np.random.default_rng(1)
    own = simulated(rng, own=True)
    assert 0.935 < coverage(own, mean_of) < 0.965
    # With the same episodes for all seeds the spread over seeds does not show the noise of the test.
    assert coverage(simulated(rng, own=False), mean_of) < 0.7
    # Percentiles of a bootstrap of ten seeds are too narrow.
    assert coverage(own[:200], lambda seeds: estimate(np.mean, seeds)) < 0.935


def test_interval_of_a_difference_is_welchs() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.normal(1.0, 2.0, 8), rng.normal(0.0, 0.5, 5)
    found = difference(first, second)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert found.value == pytest.approx(first.mean() - second.mean())
    assert found.interval == pytest.approx((expected.low, expected.high))
    expected = stats.ttest_1samp(first, 0.0).confidence_interval()
    assert mean_of(first).interval == pytest.approx((expected.low, expected.high))
    assert mean_of([1.0]).interval is None
    assert difference([1.0, 1.0], [0.5, 0.5]) == (0.5, (0.5, 0.5))


# --- the page ------------------------------------------------------------------------------------------


def sample() -> dict[str, Any]:
    """Two environments, where 0 % is 0 and 100 % is 10: on the first CVaR is better, on the second memory is."""

    def seeds(*worst: float, step: int = 150_000) -> dict[str, Any]:
        def one(x: float) -> dict[str, Any]:
            scores = {"success": x / 20, "mean_return": x + 1, "worst_cell": x, "cvar10": x, "worst_success": 0.0}
            return {"0.05": {**scores, "success_error": 0.01, "worst_cell_error": 0.1}, "step": step, "steps": 150_000}

        return {"settings": "", "seeds": {str(i): one(x) for i, x in enumerate(worst)}, "diverged": []}

    policies = ("nominal", "mean", "cvar", "each")
    worst = {"random": 0.0, "worst_case": 10.0} | dict.fromkeys(policies, 1.0)
    known = {"0.05": {policy: {"success": 0.25, "worst_cell": value} for policy, value in worst.items()}}
    about = {
        name: {"title": its.title, "algorithm": its.algorithm, "changes": dict(its.changes), "keep": its.keep}
        for name, its in robustness.AGENTS.items()
    }
    empty = {name: seeds() for name in about}
    return {
        "command": "deeprok reproduce --study robustness --seeds 3",
        "episodes": 200,
        "epsilons": [0.05],
        "steps": 150_000,
        "edges": 0.3,
        "baseline": "dr",
        "agents": about,
        "references": {"road": known, "rocket": known},
        "rows": {
            "road": {
                **empty,
                "dr": seeds(4.0, 5.0, 6.0),
                "dr_memory4": seeds(4.5, 5.0, 6.5),
                "cvar": seeds(9.0, 9.5, 10.0, step=100_000),
                "dr_last": seeds(1.0, 2.0, 3.0),
            },
            "rocket": {
                **empty,
                "dr": seeds(4.0, 5.0, 6.0),
                "dr_memory4": seeds(8.0, 8.5, 9.0),
                "cvar": seeds(0.0, 0.5, 1.0),
            },
        },
    }


def test_verdicts_and_sentences() -> None:
    found = sample()
    share = robustness_page.share
    assert robustness_page.verdict(found, "cvar", "dr", share) == (["road"], ["rocket"], [])
    assert robustness_page.verdict(found, "dr_memory4", "dr", share) == (["rocket"], [], ["road"])
    assert robustness_page.verdict(found, "kl", "dr", share) == ([], [], [])
    assert robustness_page.sentence(found, "dr_memory4", "dr", share) == (
        "**domain randomisation, memory 4** against domain randomisation: above on `rocket`; inconclusive on `road`."
    )
    assert robustness_page.summary(found).splitlines() == [
        "- **Worst case or random models.** CVaR, the default against domain randomisation: above on `road`; below on "
        "`rocket`.",
        "- **Memory.** Domain randomisation, memory 4 against domain randomisation is above on `rocket`.",
    ]
    # One seed has no interval, and decides nothing.
    found["rows"]["road"]["cvar"]["seeds"] = {"0": found["rows"]["road"]["cvar"]["seeds"]["0"]}
    assert robustness_page.verdict(found, "cvar", "dr", share) == ([], ["rocket"], [])


def test_page_of_a_sample() -> None:
    page = robustness_page.page(sample())
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    rows = [line for line in lines if len(line) == 12]
    of_cvar, of_dr = (
        next(line for line in rows if line[0] == name) for name in ("CVaR, the default", "domain randomisation")
    )
    assert of_dr == [
        "domain randomisation",
        "50 (25 – 75)",
        "50",
        "40",
        "5",
        "5",
        "6",
        "25 (13 – 37)",
        "25",
        "–",
        "0",
        "3",
    ]
    assert of_cvar[1:4] == ["95 (83 – 107)", "95", "90"]
    assert of_cvar[9:] == ["100 (100 – 100)", "3", "3"]
    differences = next(line for line in lines if line[0] == "CVaR, the default" and len(line) == 3)
    assert [cell.split()[0] for cell in differences[1:]] == ["**+45", "**-45"]
    text = " ".join(page.split())
    assert "With 4 comparisons with domain randomisation, about 0.2 would be called" in text
    assert "Not measured yet: domain randomisation, memory 16;" in text
    assert "On `road` (25 %), `rocket` (25 %) the reference itself succeeds in less than half" in text
    assert "standard error of 1.0 percentage points" in text
    assert "Rows have 3 seeds, not ten or more, since there are 7 of them" in text
    # 0.1 of 10, which is the way from random play to the reference.
    assert "That of its share is, in the median, 1 on `road`, 1 on `rocket`." in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    assert [name for name, *_ in robustness_page.short_tables(sample())] == ["road", "rocket"]


def test_policy_gradients_that_did_not_learn_compare_nothing() -> None:
    found = sample()
    assert robustness_page.unlearned(found) == ""
    found["rows"]["road"]["pg"] = {**found["rows"]["road"]["dr"]}
    found["rows"]["rocket"]["epopt"] = {**found["rows"]["rocket"]["cvar"]}  # successes of 0 to 5 %
    said = robustness_page.unlearned(found)
    assert "On `rocket` no policy gradient learned (success at most" in said


def test_a_coarse_test_is_said() -> None:
    found = sample()
    assert "rows that are close to each other" not in robustness_page.page(found)
    for its in found["rows"]["road"].values():
        for seed in its["seeds"].values():
            seed["0.05"]["worst_cell_error"] = 5.0
    said = " ".join(robustness_page.page(found).split())
    assert "on `road` the share of one seed has a standard error of 50 points: rows that are close" in said


def test_figures_of_a_sample() -> None:
    found = sample()
    found["rows"]["rocket"]["cvar"]["seeds"]["0"]["0.05"]["worst_cell"] = -80.0  # far below random play
    chart = robustness_figure.figures(found)["share"]
    road, rocket = chart.axes
    assert [label.get_text() for label in road.get_yticklabels()] == [
        *("CVaR, the default", "domain randomisation, memory 4", "domain randomisation"),
    ]
    dots = [line.get_xdata() for line in rocket.lines if line.get_marker() == "."]
    np.testing.assert_allclose(np.concatenate(dots), [-800, 5, 10, 80, 85, 90, 40, 50, 60])
    # Only the environment with such a seed has a wider axis, which ends beyond all that is drawn.
    assert road.get_xlim() == pytest.approx((-56.9, 186.9))
    assert rocket.get_xlim()[0] < -800
    means = [float(line.get_xdata()[0]) for line in road.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(means, [95, 160 / 3, 50])


def test_page_is_in_the_documentation_once_it_is_measured() -> None:
    numbers, page = numbers_file(robustness.STUDY, ROOT / "docs"), ROOT / "docs" / "robustness.md"
    assert numbers.exists() == page.exists() == ("robustness.md" in (ROOT / "mkdocs.yml").read_text())
    if numbers.exists():
        found = json.loads(numbers.read_text())
        assert page.read_text() == robustness_page.page(found)
        assert {path.name for path in numbers.parent.iterdir()} == {numbers.name} | {
            f"{name}.{ending}" for name in robustness_figure.figures(found) for ending in ("png", "svg")
        }


# --- stable-baselines3 ---------------------------------------------------------------------------------


def test_rows_of_stable_baselines_stay_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    row = robustness.of_stable_baselines(Options(seeds=20), "rocket", "sb3_dqn", 10)
    assert list(row.seeds) == []
    monkeypatch.setattr(sb3, "is_installed", lambda: True)
    again = robustness.of_stable_baselines(Options(seeds=20), "rocket", "sb3_dqn", 10)
    assert (list(again.seeds), again.settings) == ([*range(robustness.SB3_SEEDS)], row.settings)
    assert again.settings != robustness.of_stable_baselines(Options(), "rocket", "sb3_ppo", 10).settings


@pytest.mark.parametrize("env", robustness.ENVS)
def test_its_environment_is_any_of_ours(env: str) -> None:
    made = case_of(env).env
    scale = tuple(1.0 / size for size in made.observation_scale)
    environment = sb3.make_environment(made, True, 3, 0.5, scale)
    inner = environment.unwrapped
    assert environment.action_space.n == len(made.actions)
    drawn: dict[str, list[float]] = {name: [] for name in made.box}
    for _ in range(60):
        obs, _ = environment.reset()
        assert environment.observation_space.contains(obs)
        for name, values in drawn.items():
            values.append(float(getattr(inner.params, name)))
    for name, (low, high) in made.box.items():
        values = np.array(drawn[name])
        assert np.all((values >= np.float32(low)) & (values <= np.float32(high)))
        ends = np.isclose(values, low) | np.isclose(values, high)
        assert 0.25 < np.mean(ends) < 0.75
        assert len(set(values[~ends])) == np.sum(~ends)
    params, state = inner.params, inner.state
    for t in range(made.horizon):
        expected = made.step(jax.random.fold_in(inner.key, t + 1), state, jnp.int32(t % 2), params)
        obs, reward, terminated, truncated, _ = environment.step(t % 2)
        np.testing.assert_allclose(obs, np.asarray(expected.obs) * np.array(scale), rtol=1e-4, atol=1e-5)
        assert reward == pytest.approx(float(expected.reward), abs=1e-5)
        assert terminated == bool(expected.terminated)
        assert truncated == (t + 1 == made.horizon)
        state = expected.state
        if terminated:
            break
    assert inner.params is params  # the model stays for the episode


def test_every_environment_is_known() -> None:
    assert set(robustness.ENVS) <= set(ENVIRONMENTS)
    assert set(measured.references(robustness.ENVS)) == set(robustness.ENVS)
