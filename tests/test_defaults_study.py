"""The study of the preset `default`, small."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import defaults, defaults_page, measured, plan
from studies.__main__ import STUDIES
from studies.engine import Options, Run, run_study
from studies.screening import Case, case_of
from studies.statistics import iqm

ENVS, AGENTS, EPSILONS = ("market", "ferry"), ("ddqn",), (0.05,)
EVERY_ENV, EVERY_AGENT = defaults.ENVS, defaults.AGENTS

pytestmark = pytest.mark.usefixtures("compiled_once")


def small(algorithm: str, preset: str, **changes: Any) -> Config:
    assert preset == "default"
    tiny: dict[str, Any] = dict(hidden=(4,), batch_size=4, warm_up=20, train_every=1, chunk_steps=60, trial_models=2)
    tiny |= dict(normalise=False, longest_repeat=1)  # which take long to compile
    return make_config(algorithm, preset, **{**tiny, **changes, "trial_episodes": 1, "trial_every": 1, "steps": 120})


def corners(name: str) -> Case:
    """The case with the ends of its axes alone."""
    case = case_of(name)
    return case._replace(axes={axis: values[[0, -1]] for axis, values in case.axes.items()})


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "make_config", small)
    monkeypatch.setattr(defaults, "case_of", corners)
    monkeypatch.setattr(defaults, "EPSILONS", EPSILONS)
    monkeypatch.setattr(defaults, "ENVS", ENVS)
    monkeypatch.setattr(defaults, "AGENTS", AGENTS)
    monkeypatch.setattr(defaults, "measure", functools.partial(MEASURE, envs=ENVS, agents=AGENTS))


MEASURE = defaults.measure


class Work:
    """What was trained and examined: environment and seeds of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[Any] = []
        self.examined: list[Any] = []
        self.done = 0.0
        for module, name, said in ((measured, "train", self.trained), (defaults, "examined", self.examined)):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name), said))

    def _counted(self, original: Callable[..., Any], said: list[Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            its: Sequence[Run] = next(arg for arg in args if isinstance(arg, list))
            said.append((its[0].row.changes["env"], [run.seed for run in its]))
            return original(*args, **named)

        return counted

    def count(self, what: str, work: float) -> None:
        self.done += work


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    options = Options(seeds=seeds, out=out, episodes=5, jobs=1)
    found = run_study(defaults.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


@pytest.mark.slow
def test_study_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    first, text = study(tmp_path, seeds=1)
    assert work.trained == work.examined == [("market", [0]), ("ferry", [0])]
    assert all(env in text for env in ENVS)
    assert study(tmp_path, seeds=1)[0] == json.loads(json.dumps(first))
    assert len(work.trained) == len(work.examined) == 2  # nothing was left to do

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(runs.CHECKPOINT)}
    found, _ = study(tmp_path, seeds=2)
    assert work.trained[2:] == work.examined[2:] == [("market", [1]), ("ferry", [1])]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    report = tmp_path / "report"
    saved = json.loads((report / "defaults" / "defaults.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert (report / "defaults.md").read_text() == defaults_page.page(saved)
    for kind in ("png", "svg"):
        assert (report / "defaults" / f"share.{kind}").stat().st_size > 5000
    assert saved["command"] == "deeprok reproduce --study defaults --seeds 2"
    for env in ENVS:
        row = saved["rows"][env]["ddqn"]
        assert row["settings"] == small("ddqn", "default", env=env).digest()
        assert (list(row["seeds"]), row["diverged"]) == (["0", "1"], [])
        assert row["seeds"]["0"] == first["rows"][env]["ddqn"]["seeds"]["0"]
        for scores in (its[f"{epsilon:g}"] for its in row["seeds"].values() for epsilon in EPSILONS):
            assert scores["worst_cell"] <= scores["cvar10"] <= scores["mean_return"]
            assert 0 <= scores["worst_success"] <= scores["success"] <= 1
    # The weights that a run ends with, and the settings of the preset but for its size.
    config = runs.read_config(tmp_path / "defaults" / "market" / "ddqn" / "seed-1")
    assert config == small("ddqn", "default", env="market", seed=1)


def row(env: str, seeds: Sequence[int], diverged: Sequence[int] = ()) -> dict[str, Any]:
    """A row as it is stored, with made-up scores."""
    settings = small("ddqn", "default", env=env).digest()
    scores = dict.fromkeys(("success", "mean_return", "worst_cell", "cvar10", "worst_success"), 1.0)
    each = {f"{epsilon:g}": scores for epsilon in EPSILONS}
    return {"settings": settings, "seeds": {str(seed): each for seed in seeds}, "diverged": [*diverged]}


def store(path: Path, episodes: int = 2, **rows: dict[str, Any]) -> None:
    path.write_text(json.dumps({"episodes": episodes, "rows": {env: {"ddqn": its} for env, its in rows.items()}}))


def stored(path: Path) -> dict[str, Any]:
    return {env: its["ddqn"] for env, its in json.loads(path.read_text())["rows"].items()}


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[int]]]:
    """Measures with runs that come to their end or don't, without training any; what was examined."""

    def examine(path: Path, seeds: int, broken: Sequence[int] = (), stop: str = "") -> dict[str, list[int]]:
        made: dict[str, list[int]] = {}

        def finished(runs: Sequence[Any], env: str, episodes: int) -> dict[str, Any]:
            if env == stop:
                raise KeyboardInterrupt
            made[env] = [run.seed for run in runs]
            return row(env, made[env])["seeds"]

        def runs_of(out: Path, compared: plan.Comparison) -> list[Any]:
            return [SimpleNamespace(seed=seed, finished=seed not in broken) for seed in compared.seeds]

        monkeypatch.setattr(defaults, "examined", finished)
        monkeypatch.setattr(measured, "runs_of", runs_of)
        for name in ("prepare", "train"):
            monkeypatch.setattr(measured, name, lambda *_: None)
        options = Options(seeds=seeds, out=path.parent, episodes=5)
        work: list[float] = []
        defaults.measure(options, path, lambda what, part: work.append(part))
        assert sum(work) == pytest.approx(seeds * len(ENVS) * (defaults._TRAINING["ddqn"] + measured.EXAM))
        return made

    return examine


def test_a_diverged_seed_is_listed_until_it_comes_to_its_end(tmp_path: Path, examine: Callable[..., Any]) -> None:
    path = tmp_path / "defaults.json"
    assert examine(path, seeds=3, broken=[1]) == {env: [0, 2] for env in ENVS}
    for env in ENVS:
        assert stored(path)[env] == row(env, [0, 2], diverged=[1])
    page = " ".join(defaults_page.page(json.loads(path.read_text())).split())
    assert "Seeds that diverged, which are in no mean: `market`, Double-DQN: 1; `ferry`, Double-DQN: 1." in page
    assert examine(path, seeds=3) == {env: [1] for env in ENVS}
    assert stored(path)["market"] == row("market", [0, 2, 1])
    assert "No seed diverged." in " ".join(defaults_page.page(json.loads(path.read_text())).split())
    assert examine(path, seeds=4, broken=[0, 1, 2, 3]) == {}
    assert stored(path)["market"] == row("market", [0, 2, 1], diverged=[3])


def test_an_interrupted_study_keeps_what_was_measured(tmp_path: Path, examine: Callable[..., Any]) -> None:
    path = tmp_path / "defaults.json"
    store(path, market=row("market", [0]), ferry=row("ferry", [0], diverged=[7]))
    with pytest.raises(KeyboardInterrupt):
        examine(path, seeds=2, stop="ferry")
    assert stored(path) == {"market": row("market", [0, 1]), "ferry": row("ferry", [0], diverged=[7])}
    assert examine(path, seeds=2) == {"ferry": [1]}


@pytest.mark.parametrize("other", ["settings", "episodes"])
def test_rows_of_other_settings_are_measured_again(tmp_path: Path, examine: Callable[..., Any], other: str) -> None:
    path = tmp_path / "defaults.json"
    market = row("market", [0]) | ({"settings": "another"} if other == "settings" else {})
    store(path, 3 if other == "episodes" else 2, market=market, ferry=row("ferry", [0]))
    again = {env: [0] for env in ("market", "ferry")}
    assert examine(path, seeds=1) == (again if other == "episodes" else {"market": [0]})


# --- scores, page and figure ----------------------------------------------------------------------------


def test_scores_of_a_run() -> None:
    returns = np.arange(40.0).reshape(5, 8)[::-1] - 7.0
    # Four of forty cells: −7, −6, −5 and −4.
    assert measured.scores(returns, np.linspace(0.25, 1.0, 40).reshape(5, 8)) == {
        "success": 0.625, "mean_return": 12.5, "worst_cell": -7.0, "cvar10": -5.5, "worst_success": 0.25,
    }  # fmt: skip
    assert measured.scores(np.array([[3.0, 1.0, 2.0]]), np.ones((1, 3)))["cvar10"] == 1.0  # at least one cell


def sample() -> dict[str, Any]:
    """Two environments: on the first 0 % is −10 and 100 % is 30, on the second 2 and 4."""

    def scores(worst: float) -> dict[str, Any]:
        one = {"success": 0.5, "mean_return": 9.0, "worst_cell": worst, "cvar10": worst + 1, "worst_success": 0.0}
        return {"0.05": one, "0": {**one, "worst_cell": worst + 4}}

    def known(random: float, reference: float) -> dict[str, Any]:
        policies = ("nominal", "mean", "cvar", "each")
        worst = {"random": random, "worst_case": reference} | dict.fromkeys(policies, 1.0)
        one = {policy: {"success": 0.25, "worst_cell": value} for policy, value in worst.items()}
        return {"0.05": one, "0": one}

    def seeds(*worst: float) -> dict[str, Any]:
        return {"settings": "", "seeds": {str(i): scores(x) for i, x in enumerate(worst)}, "diverged": []}

    return {
        "command": "deeprok reproduce --study defaults --seeds 3",
        "episodes": 100,
        "epsilons": [0.05, 0.0],
        "references": {"road": known(-10.0, 30.0), "rocket": known(2.0, 4.0)},
        "tuned": {"env": "cartpole", "epsilon": 0.1, "success": {"ddqn": [0.9, 0.94], "deep_rok": [0.5]}},
        "rows": {
            "road": {"ddqn": seeds(-10.0, 10.0, 30.0), "deep_rok": seeds(28.0, 28.0, 40.0)},
            "rocket": {"ddqn": seeds(1.0), "deep_rok": seeds()},
        },
    }


def test_shares_of_the_reference() -> None:
    found = sample()
    assert defaults_page.relative(found, "road", "ddqn", 0.05) == [0.0, 0.5, 1.0]
    assert defaults_page.relative(found, "road", "deep_rok", 0.05) == pytest.approx([0.95, 0.95, 1.25])
    assert defaults_page.relative(found, "rocket", "ddqn", 0.05) == [-0.5]
    assert defaults_page.relative(found, "rocket", "ddqn", 0.0) == [1.5]
    assert defaults_page.relative(found, "rocket", "deep_rok", 0.05) == []


def test_page_of_a_sample() -> None:
    page = defaults_page.page(sample())
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    of = {(line[0], line[1]): line[2:] for line in reversed(lines)}  # the first table's
    assert of["`road`", "Double-DQN"] == ["50.0", "0.0 – 100.0", "0.0", "1 of 3", "10", "11", "9", "50"]
    share, _, worst, reach, *rest = of["`road`", "Deep-RoK"]
    assert (share, worst, reach, rest) == ("105.0", "95.0", "3 of 3", ["32", "33", "9", "50"])
    assert of["`rocket`", "Double-DQN"] == ["-50.0", "–", "-50.0", "0 of 1", "1", "2", "9", "50"]
    assert ("`rocket`", "Deep-RoK") not in of  # not measured
    assert ["`road`", "25 % / -10", *["25 % / 1"] * 3, "25 % / 30", "25 % / 1"] in lines
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    first, second = defaults_page.short_tables(sample())
    assert (first[0], second[0], len(first)) == ("ε = 0.05", "ε = 0", 2 + 3)


def with_baseline() -> dict[str, Any]:
    """The sample with domain randomisation: on the road below Deep-RoK, and with a higher mean return."""
    found = sample()
    road = found["rows"]["road"]
    seeds = {
        seed: {epsilon: {**scores, "mean_return": 11.0 + int(seed)} for epsilon, scores in its.items()}
        for seed, its in road["ddqn"]["seeds"].items()
    }
    for its in seeds.values():
        its["0.05"]["worst_cell"] = its["0.05"]["worst_cell"] / 10
    road["ddqn_dr"] = {**road["ddqn"], "seeds": seeds}
    return found


def test_verdicts() -> None:
    found = sample()
    # By its mean Deep-RoK reaches 105 % with random actions, and (32 + 32 + 44) / 3 + 10 of 40 without.
    assert defaults_page.aim(found) == (
        "**By the mean over seeds the aim is reached by Deep-RoK on 1 of 1 environments.** Without random actions it "
        "is 1 of 1."
    )
    assert defaults_page.aim_table(found)[1:] == [
        ["Double-DQN", "0 of 2", "1 of 2", "1 of 4", "2 of 4"],
        ["Deep-RoK", "1 of 1", "1 of 1", "3 of 3", "3 of 3"],
    ]
    assert defaults_page.turned(found).startswith("Random actions can decide: on `rocket` 0 of 1 runs reach the aim")
    assert "`road` (25 %), `rocket` (25 %) the reference itself succeeds" in defaults_page.page(found)
    assert "hover" in defaults_page.page(found)
    # Without domain randomisation there is nothing to compare with.
    assert defaults_page.against_random_models(found, 0.05) == ""
    assert "## Minus random models" not in defaults_page.page(found)
    found = with_baseline()
    said = defaults_page.against_random_models(found, 0.05)
    # Shares of 22.5, 27.5 and 32.5 %, and mean returns of 11, 12 and 13 against 9.
    assert "- Deep-RoK is above on `road`. The price, in mean return over all cells: 9 against 12 on `road`." in said
    apart = defaults_page.apart(found, "deep_rok", "ddqn_dr", 0.05)
    assert apart["road"].value == pytest.approx(1.05 - 0.275)
    first, second = ([0.95, 0.95, 1.25], [0.225, 0.275, 0.325])
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert apart["road"].interval == pytest.approx((expected.low, expected.high))
    (line,) = defaults_page.difference_table(found, 0.05)[1:]
    assert line[0] == "`road`"
    assert line[1].startswith("**+77.5 (")
    assert line[2].startswith("**-3 (")


def test_the_page_compares_with_the_tuned_preset_where_there_is_one() -> None:
    assert "tuned for Cart-Pole" not in defaults_page.page(sample())
    found = sample()
    for env in ("references", "rows"):
        found[env]["cartpole"] = found[env]["road"]
    for success, its in zip((0.9, 0.95, 1.0), found["rows"]["cartpole"]["ddqn"]["seeds"].values(), strict=True):
        its["paper"] = {"success": success}
    found["rows"]["cartpole"]["deep_rok"]["seeds"] = {}
    (line,) = [line for line in defaults_page.page(found).splitlines() if line.startswith("| Double-DQN | 3 and")]
    agent, seeds, default, _, tuned, _, change = (cell.strip() for cell in line.split("|")[1:-1])
    assert (agent, seeds, default, tuned) == ("Double-DQN", "3 and 2", "95.0", "92.0")
    # Welch: variances 0.0025 / 3 and 0.0008 / 2.
    error, freedom = 0.0012333**0.5, 0.0012333**2 / (0.00083333**2 / 2 + 0.0004**2)
    half = stats.t.ppf(0.975, freedom) * error
    assert change == f"+3.0 ({3 - 100 * half:+.1f} – {3 + 100 * half:+.1f})"


@pytest.mark.parametrize(("success", "verdict"), [(0.495, "meets it (-0.5)"), (0.485, "misses it (-1.5)")])
def test_a_robust_agent_may_lose_a_point_against_the_tuned_preset(success: float, verdict: str) -> None:
    found = sample()
    seeds = {"0": {**found["rows"]["road"]["deep_rok"]["seeds"]["0"], "paper": {"success": success}}}
    empty = {"settings": "", "seeds": {}, "diverged": []}
    found["rows"]["cartpole"] = {"ddqn": empty, "deep_rok": {**empty, "seeds": seeds}}
    found["references"]["cartpole"] = found["references"]["road"]
    assert f"By its mean Deep-RoK {verdict}." in " ".join(defaults_page.page(found).split())


@pytest.mark.parametrize("env", ["cartpole", "ferry"])
def test_cartpole_is_examined_on_the_papers_grid_too(monkeypatch: pytest.MonkeyPatch, env: str) -> None:
    asked: list[Any] = []

    def evaluate(folders: list[str], grid: Any, episodes: int, epsilon: float, keep: str) -> Any:
        asked.append((folders, grid, episodes, epsilon, keep))
        each = [SimpleNamespace(seed=seed, mean_return=np.ones(2), success=np.full(2, 0.5)) for seed in (3, 4)]
        return SimpleNamespace(per_seed=each)

    monkeypatch.setattr(defaults, "evaluate", evaluate)
    its: Any = [SimpleNamespace(seed=seed, folder=f"seed-{seed}") for seed in (3, 4)]
    found = defaults.examined(its, env, 7)
    more = {"paper"} if env == "cartpole" else set()
    assert {seed: set(scores) for seed, scores in found.items()} == {seed: {"0.05", *more} for seed in ("3", "4")}
    if more:
        assert found["4"]["paper"]["success"] == 0.5
        grid = "pole_length=0.2:1.4:7,cart_mass=0.1:7:7"
        assert asked[-1] == (["seed-3", "seed-4"], grid, 7, 0.1, "last")


def test_results_of_the_tuned_preset_are_those_of_its_page() -> None:
    path = Path(__file__).parent.parent / "docs" / "results" / "results.json"
    agents = json.loads(path.read_text())["agents"]
    for agent, success in defaults.tuned_successes(EVERY_AGENT).items():
        assert (agents[agent]["preset"], len(success)) == ("tuned", 20)
        assert iqm(np.array(success)) == pytest.approx(agents[agent]["iqm_success"])


def test_figure_of_a_sample() -> None:
    found = sample()
    found["rows"]["rocket"]["ddqn"]["seeds"]["0"]["0.05"]["worst_cell"] = -30.0  # far below random play
    charts = defaults_page.figures(found)
    assert list(charts) == ["share", "why"]
    # Of the two only the road separates robust agents from others.
    (road,) = charts["why"].axes[0].get_yticklabels()
    assert road.get_text() == "road\nunknown grip and drag"
    chart = charts["share"]
    (panel,) = chart.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["rocket", "road"]
    dots = [line.get_xdata() for line in panel.lines if line.get_marker() == "."]
    bars = [float(line.get_xdata()[0]) for line in panel.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(np.concatenate(dots), [0.0, 50.0, 100.0, 95.0, 95.0, 125.0])
    np.testing.assert_allclose(bars, [50.0, 105.0])
    (arrow,) = [line for line in panel.lines if line.get_marker() == "<"]
    assert arrow.get_xdata()[0] == -50.0
    assert "−1600 %" in [text.get_text() for text in panel.texts]  # from 2 to 4 is the whole
    (legend,) = chart.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Double-DQN", "Deep-RoK"]


def test_references_are_those_of_the_environments_page() -> None:
    known = measured.references(EVERY_ENV)
    assert set(known) == set(EVERY_ENV)
    path = Path(__file__).parent.parent / "docs" / "environments" / "environments.json"
    road = json.loads(path.read_text())["environments"]["road"]["0.05"]
    for policy, its in known["road"]["0.05"].items():
        at = road["policies"].index(policy)
        assert its["worst_cell"] == pytest.approx(road["summary"][policy]["worst_return"])
        assert its["success"] == pytest.approx(np.mean(road["success"][at]))


def test_study_trains_the_preset_and_nothing_else() -> None:
    assert STUDIES["defaults"] is defaults.STUDY
    for env in EVERY_ENV:
        compared = defaults.comparison(env, EVERY_AGENT, 3)
        assert [(r.algorithm, r.preset, r.changes) for r in compared.rows] == [
            (agent, "default", {"env": env}) for agent in EVERY_AGENT
        ]
        assert list(compared.seeds) == [0, 1, 2]
    assert set(defaults._TRAINING) == set(EVERY_AGENT)
