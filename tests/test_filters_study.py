"""The study of the Kalman filter against Adam, small."""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import defaults, filters, filters_figure, filters_page, plan
from studies.__main__ import STUDIES
from studies.engine import Options, run_study
from studies.exam import CONDITIONS, PAPER_GRID
from studies.screening import Case, case_of

ENVS, EPSILONS, BUDGETS = ("ferry",), (0.05,), (2,)
ROWS = {name: filters.ROWS[name] for name in ("adam 1", "diagonal")}
FEW = {name: filters.FEW[name] for name in ("filter mean", "adam weights", "adam scratch")}

pytestmark = pytest.mark.usefixtures("compiled_once")


def small(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    tiny: dict[str, Any] = dict(hidden=(4,), batch_size=4, warm_up=20, chunk_steps=60, trial_models=2, trial_every=1)
    tiny |= {} if preset == "tuned" else dict(train_every=1, normalise=False, longest_repeat=1, trial_episodes=1)
    length: dict[str, Any] = dict(horizon=20, models=2) if preset == "tuned" else dict(steps=120)
    length |= {"episodes": min(changes.get("episodes", 3), 3)} if preset == "tuned" else {}
    return make_config(algorithm, preset, **{**tiny, **changes, **length})


def corners(name: str) -> Case:
    """The case with the ends of its axes alone."""
    case = case_of(name)
    return case._replace(axes={axis: values[[0, -1]] for axis, values in case.axes.items()})


MEASURE = filters.measure


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "make_config", small)
    monkeypatch.setattr(defaults, "case_of", corners)
    monkeypatch.setattr(defaults, "EPSILONS", EPSILONS)
    for name, value in (("ROWS", ROWS), ("FEW", FEW), ("BUDGETS", BUDGETS), ("PAPER_GRID", "pole_length=0.2:1.4:2")):
        monkeypatch.setattr(filters, name, value)
    monkeypatch.setattr(filters, "measure", functools.partial(MEASURE, envs=ENVS, rounds=2))


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    options = Options(seeds=seeds, out=out, episodes=5, jobs=1)
    found = run_study(filters.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


@pytest.mark.slow
def test_study_adds_up(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, list[int]]] = []
    train = filters.train

    def counted(what: str, its: list[Any], *rest: Any) -> None:
        trained.append((what, [run.seed for run in its]))
        train(what, its, *rest)

    monkeypatch.setattr(filters, "train", counted)
    first, text = study(tmp_path, seeds=1)
    assert trained == [(f"rows ferry {name}", [0]) for name in ROWS] + [
        *((f"earlier {name}", [0]) for name in filters.EARLIER),
        *((f"few {name} 2", [0]) for name, its in FEW.items() for _ in range(1 + its.warm)),
    ]
    assert all(name in text for name in ("ferry", "adam 1", "diagonal", "filter mean"))
    count = len(trained)
    assert study(tmp_path, seeds=1)[0] == json.loads(json.dumps(first))
    assert len(trained) == count  # nothing was left to do

    found, _ = study(tmp_path, seeds=2)
    assert trained[count:] == [(what, [1]) for what, _ in trained[:count]]
    report = tmp_path / "report"
    saved = json.loads((report / "filters" / "filters.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert (report / "filters.md").read_text() == filters_page.page(saved)
    for name in ("steps", "seconds", "few"):
        assert (report / "filters" / f"{name}.png").stat().st_size > 5000
    assert saved["times"] == first["times"]  # of the same settings: not measured again
    for name, (algorithm, changes) in ROWS.items():
        row = saved["rows"]["ferry"][name]
        config = small(algorithm, "default", env="ferry", **changes)
        assert (row["settings"], list(row["seeds"]), row["diverged"]) == (config.digest(), ["0", "1"], [])
        assert row["seeds"]["0"] == first["rows"]["ferry"][name]["seeds"]["0"]
        # A trial after each of the two chunks.
        assert row["seeds"]["1"]["curve"]["steps"] == [60, 120]
        assert len(saved["times"]["ferry"]["rounds"][name]) == 2
        assert min(saved["times"]["ferry"]["rounds"][name]) > 0
    for name in FEW:
        for budget in BUDGETS:
            seeds = saved["few"][name][str(budget)]["seeds"]
            assert all(0 <= success <= 1 for its in seeds.values() for success in its.values())
            assert [set(its) for its in seeds.values()] == [{"9.8", "14.7"}] * 2
    # A warm start begins with the weights of the earlier run of its own seed, and with another gravity.
    warm = tmp_path / "filters" / "few" / "adam weights" / "2" / "seed-1"
    config = runs.read_config(warm)
    assert config.prior == str(tmp_path / "filters" / "earlier" / "adam" / "seed-1")
    assert (config.learner.prior_part, config.nominal, config.episodes) == ("mean", "gravity=14.7", 2)


def stand_ins(monkeypatch: pytest.MonkeyPatch, broken: Callable[[str, int], bool], stop: str = "") -> list[Any]:
    """Runs that come to their end or don't, without training any; what was examined."""
    made: list[Any] = []

    def runs_of(out: Path, compared: plan.Comparison) -> list[Any]:
        (row,) = compared.rows
        return [
            SimpleNamespace(row=row, seed=seed, finished=not broken(row.name, seed), folder=None)
            for seed in compared.seeds
        ]

    def examine(its: Sequence[Any], **_: Any) -> dict[str, Any]:
        name = its[0].row.name
        if stop and name == stop:
            raise KeyboardInterrupt
        made.append((name, [run.seed for run in its]))
        return {str(run.seed): {"9.8": 0.5, "14.7": 0.25} for run in its}

    for name, stand_in in (("runs_of", runs_of), ("_examine", examine), ("_successes", examine)):
        monkeypatch.setattr(filters, name, stand_in)
    for name in ("prepare", "train"):
        monkeypatch.setattr(filters, name, lambda *_: None)
    monkeypatch.setattr(filters, "chunk_times", lambda configs, rounds: {name: [1.0] for name in configs})
    return made


def measured(path: Path, seeds: int, episodes: int = 5) -> dict[str, Any]:
    options = Options(seeds=seeds, out=path.parent, episodes=episodes)
    work: list[float] = []
    found = filters.measure(options, path, lambda what, part: work.append(part))
    its = filters.parts(options, ENVS)
    assert sum(work) == pytest.approx(filters._TIMING + sum(part.work * len(part.runs) for part in its))
    return found


def test_a_start_that_diverged_leaves_out_its_seed(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stand_ins(monkeypatch, lambda name, seed: (name, seed) == ("earlier/adam", 1))
    prepared: list[Any] = []
    monkeypatch.setattr(filters, "prepare", lambda _, its: prepared.extend((run.row.name, run.seed) for run in its))
    found = measured(tmp_path / "filters.json", seeds=2)
    assert found["earlier"]["adam"]["diverged"] == [1]
    assert ("few/adam weights/2", 0) in prepared
    assert ("few/adam weights/2", 1) not in prepared
    assert ("few/adam scratch/2", 1) in prepared
    assert ("few/filter mean/2", 1) in prepared
    assert found["few"]["adam weights"]["2"]["diverged"] == [1]
    assert list(found["few"]["adam weights"]["2"]["seeds"]) == ["0"]
    assert ("earlier/adam", [0]) in made
    assert "the earlier runs of adam: 1" in filters_page.diverged(found)


def test_an_interrupted_study_keeps_what_was_measured(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "filters.json"
    stand_ins(monkeypatch, lambda name, seed: False)
    measured(path, seeds=1)
    stand_ins(monkeypatch, lambda name, seed: False, stop="few/adam weights/2")
    with pytest.raises(KeyboardInterrupt):
        measured(path, seeds=2)
    stored = json.loads(path.read_text())
    assert list(stored["few"]["filter mean"]["2"]["seeds"]) == ["0", "1"]
    assert list(stored["few"]["adam weights"]["2"]["seeds"]) == ["0"]
    assert list(stored["few"]["adam scratch"]["2"]["seeds"]) == ["0"]
    made = stand_ins(monkeypatch, lambda name, seed: False)
    measured(path, seeds=2)
    assert made == [(f"few/{name}/2", [1]) for name in ("adam weights", "adam scratch")]
    # With other episodes, or of other settings, all is measured again.
    made.clear()
    measured(path, seeds=1, episodes=50)
    assert len(made) == len(ROWS) + 2 + len(FEW) * len(BUDGETS)
    made.clear()
    monkeypatch.setattr(filters, "ROWS", {**ROWS, "diagonal": ("deep_rok", {"covariance": "diagonal", "rank": 3})})
    measured(path, seeds=1, episodes=50)
    assert made == [("ferry/diagonal", [0])]


def test_rows_are_those_of_the_presets() -> None:
    assert STUDIES["filters"] is filters.STUDY
    default = {name: make_config(name, env="road") for name in ("rtd_dqn", "deep_rok")}
    for name, (algorithm, changes) in filters.ROWS.items():
        config = filters.row_of("road", name).config(0)
        assert config == default[algorithm].replace(steps=60_000, trial_every=1, **changes)
    full, small_adam = (filters.row_of("road", name).config(0) for name in ("full", "adam 20-20"))
    assert full.layers == small_adam.layers
    assert filters.row_of("road", "adam 1").config(0).layers != full.layers
    assert list(filters.ROWS) == list(filters_page.TITLES) == list(filters_figure._STYLES)
    assert len({style[0] for style in filters_figure._STYLES.values()}) == len(filters.ROWS)
    old = filters_page._OLD_GRAVITY
    new = [name for name in filters.FEW if not name.endswith(old)]
    assert new == list(filters_page.FEW_TITLES) == list(filters_figure._FEW_STYLES)
    assert {name.removesuffix(old) for name in filters.FEW} == set(new)
    for name, its in filters.FEW.items():
        assert (its.estimator, its.warm) == (name.split()[0], "scratch" not in name)
        assert (its.gravity == filters.OLD) == name.endswith(old)
        for budget in filters.BUDGETS:
            row = filters.few_row(name, budget)
            assert (row.preset, bool(row.prior), row.config(0).episodes) == ("tuned", its.warm, budget)
            assert float(row.config(0).make_env().nominal.gravity) == pytest.approx(its.gravity)
    assert filters.few_row("filter posterior", 10).config(0).learner.prior_part == "all"
    # What is called fast is what learned fastest in the tuning.
    for estimator, algorithm in filters.EARLIER.items():
        assert filters._FAST[estimator].items() <= plan._FASTEST[algorithm].items()
        assert plan._FASTEST[algorithm]["target_period"] == filters._FEW["target_period"]
    condition = CONDITIONS["strong_gravity"]
    changed = condition.change(make_config("deep_rok").make_env())
    assert (float(changed.nominal.gravity), condition.grid) == (pytest.approx(filters.NEW), PAPER_GRID)


def test_times_are_of_chunks_that_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    clock = iter(np.cumsum([0.0, *[0.5, 0.25] * 6]))

    def program(name: str) -> Any:
        def advance(states: Any, chunk: int) -> tuple[Any, None]:
            assert states.shape == (1, 3)
            calls.append((name, chunk))
            return states, None

        return SimpleNamespace(
            init=lambda key: np.zeros(3), advance=advance, learner=SimpleNamespace(chunk_steps=1000)
        )  # fmt: skip

    monkeypatch.setattr(filters, "make_program", program)
    monkeypatch.setattr(filters.time, "process_time", lambda: next(clock))
    times = filters.chunk_times({"one": "one", "two": "two"}, rounds=2)  # type: ignore[dict-item]
    assert calls == [(name, chunk) for chunk in range(3) for name in ("one", "two")]  # in turns
    # Half a second for 1000 steps; the first chunk, which is compiled, is not counted.
    assert times == {"one": [500.0, 500.0], "two": [500.0, 500.0]}


# --- page and figures -----------------------------------------------------------------------------------------


def curves(*returns: Sequence[float], worst: float = 1.0) -> dict[str, Any]:
    """A row whose seeds had these trials, at 2000, 4000, … steps."""
    scores = {"success": 0.5, "mean_return": 9.0, "worst_cell": worst, "cvar10": worst, "worst_success": 0.0}
    seeds = {
        str(i): {"0.05": scores, "curve": {"steps": [2000 * (k + 1) for k in range(len(its))], "trial_return": [*its]}}
        for i, its in enumerate(returns)
    }
    return {"settings": "", "seeds": seeds, "diverged": []}


def shares(*new: float) -> dict[str, Any]:
    seeds = {str(i): {"9.8": 0.9, "14.7": success} for i, success in enumerate(new)}
    return {"settings": "", "seeds": seeds, "diverged": []}


def sample() -> dict[str, Any]:
    """Random play has −10 and the best row 30, so that the bar is 26."""
    adam = curves([0, 20, 27, 30], [0, 27, 20, 30], [27, 27, 27, 30], worst=4.0)
    quick = curves([28, 28, 28, 28], [0, 28, 28, 28], [0, 0, 0, 0])
    return {
        "command": "deeprok reproduce --study filters --seeds 3",
        "episodes": 100, "few_episodes": 50, "steps": 8000, "trial_steps": 2000, "gravities": [9.8, 14.7],
        "few_settings": {"remembered": 0.1, "target_period": 200, "learning_rate": 1e-3, "observation_noise": 0.012},
        "budgets": [10, 30],
        "random": {"road": {"0.05": {"success": 0.0, "worst_cell": -10.0}}},
        "times": {"road": {"processor": "P", "rounds": {"adam 1": [90, 100, 500], "full": [1000, 900, 1100]}}},
        "rows": {"road": {"adam 1": adam, "full": quick, "layer": curves()}},
        "earlier": {"filter": shares(0.5, 0.6), "adam": shares(0.4, 0.4)},
        "few": {
            "filter posterior": {"10": shares(0.6, 0.8), "30": shares(0.7, 0.9)},
            "filter mean": {"10": shares(0.5, 0.6)},
            "adam scratch": {"10": shares(0.1, 0.2), "30": shares()},
            "adam scratch, old gravity": {"10": shares(0.1, 0.2)},
        },
    }  # fmt: skip


def test_steps_and_seconds_to_the_bar() -> None:
    found = sample()
    assert filters_page.bar(found, "road") == pytest.approx(26.0)
    # Two trials in succession; a single one above the bar does not count.
    assert filters_page.steps_needed(found, "road", "adam 1") == [6000, math.inf, 2000]
    assert filters_page.steps_needed(found, "road", "full") == [2000, 4000, math.inf]
    assert filters_page.step_time(found, "road", "adam 1") == 100
    _, adam, full = filters_page.table(found, "road")
    assert adam[1:] == ["50", "4", "4 – 4", "30", "6,000 (2 of 3)", "0.6 (2 of 3)", "100", "1.0 ×"]
    assert full[5:] == ["4,000 (2 of 3)", "4.0 (2 of 3)", "1000", "10.0 ×"]
    found["rows"]["road"]["full"]["diverged"] = [7, 8]
    assert filters_page.steps_needed(found, "road", "full") == [2000, 4000, *[math.inf] * 3]
    assert filters_page.table(found, "road")[2][5] == "not reached (2 of 5)"


def test_page_of_a_sample() -> None:
    page = filters_page.page(sample())
    text = " ".join(page.split())
    assert (
        "- `road`: filter, full P needs 0.67 times the steps of Adam, 1 update (no interval: not all seeds reach the "
        "threshold); filter, full P needs 6.7 times the seconds of Adam, 1 update (no interval"
    ) in text
    assert "Every filter here has hidden layers of 20 and 20 units and batches of 16, which" in text
    assert "the low-rank P, with hidden layers of 32 and 32 units and batches of 16. One row" in text
    assert "Best worst cell: Adam, 1 update (4), filter, full P (1)." in text
    assert (
        "Fewest steps: filter, full P, 4,000. Filters that need fewer than every row of Adam: filter, full P." in text
    )
    assert "Fewest seconds: Adam, 1 update, 0.6. No filter needs fewer seconds than the best row of Adam." in text
    assert "needs 0.67 times the steps and 6.7 times the seconds of Adam with one update" in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    of = {line[0]: line[1:] for line in lines}
    # Seed by seed: 10 and 20 points at 10 episodes, twice 30 − 10 at 30.
    assert of["filter, from the posterior − before"] == ["+15.0 (+10.0 – +20.0)", "+25.0 (+20.0 – +30.0)"]
    assert of["posterior − mean with a new P"] == ["+15.0 (+10.0 – +20.0)", "not measured"]
    first = next(line for line in lines if line[0] == "filter, from the posterior")
    assert [cell.split()[0] for cell in first[1:]] == ["55.0", "70.0", "80.0", "90.0"]
    assert "- 10 episodes: of the warm starts filter, from the posterior (70.0 %); from scratch Adam" in text
    assert "the earlier runs succeed in 90.0 (90.0 – 90.0) % (the filter)" in text
    assert "No seed diverged." in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    assert [title for title, *_ in filters_page.short_tables(sample())] == ["road", "gravity 14.7 m/s²"]


def test_rows_that_never_learn_are_not_compared() -> None:
    found = sample()
    found["rows"]["road"] = {"adam 1": curves([0, 9], [9, 0]), "full": curves([9, 0], [0, 0])}
    text = " ".join(filters_page.page(found).split())
    assert "No row reaches the threshold with most of its seeds, so that steps cannot be compared." in text
    assert "filter, full P and Adam, 1 update do not reach the threshold with most seeds" in text
    assert "- `road`: no filter and row of Adam reaches the threshold with most of its seeds." in text


def test_ratios_have_intervals_where_all_seeds_learn() -> None:
    found = sample()
    found["rows"]["road"]["adam 1"] = curves([0, 27, 30, 30], [0, 27, 27, 30], [27, 27, 27, 30])
    found["rows"]["road"]["full"] = curves([28, 28, 28, 28], [28, 28, 28, 28], [28, 28, 28, 28])
    steps, seconds = (filters_page.ratio(found, "road", "full", "adam 1", of) for of in (False, True))
    assert steps is not None
    assert seconds is not None
    # Medians of 2000 and 4000 steps; resampled seeds of Adam have a median of 2000 or 4000.
    assert steps == (0.5, (0.5, 1.0))
    assert seconds == (5.0, (5.0, 10.0))
    assert "needs 0.5 (0.5 – 1) times the steps and 5 (5 – 10) times the seconds" in " ".join(
        filters_page.page(found).split()
    )


def test_figures_of_a_sample() -> None:
    found = sample()
    charts = filters_figure.of_filters(found)
    assert list(charts) == ["steps", "seconds", "few"]
    for name, unit in (("steps", 2.0), ("seconds", 2000 * 100e-6)):
        above, below = charts[name].axes
        for panel in (above, below):  # each estimator's preset is in both
            adam, full, _ = panel.lines
            np.testing.assert_allclose(adam.get_xdata(), unit * np.arange(1, 5))
            np.testing.assert_allclose(adam.get_ydata(), [0, 27, 27, 30])
            np.testing.assert_allclose(full.get_ydata(), [0, 28, 28, 28])
    assert [text.get_text() for text in charts["steps"].legends[0].get_texts()] == ["Adam, 1 update", "filter, full P"]
    left, right = charts["few"].axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["before", "10", "30"]
    np.testing.assert_allclose(left.containers[0].lines[0].get_ydata(), [55.0, 70.0, 80.0])
    np.testing.assert_allclose(left.containers[1].lines[0].get_ydata(), [55.0, 55.0])
    # From scratch there is no before.
    np.testing.assert_allclose(right.containers[-1].lines[0].get_ydata(), [15.0])


DOCS = Path(__file__).parent.parent / "docs"


def test_page_is_there_if_its_numbers_are() -> None:
    """Then it is what they give, and they are of these settings and enough seeds."""
    numbers = DOCS / "filters" / "filters.json"
    is_measured = numbers.exists()
    assert (DOCS / "filters.md").exists() == is_measured
    assert ("filters.md" in (DOCS.parent / "mkdocs.yml").read_text()) == is_measured
    if is_measured:
        found = json.loads(numbers.read_text())
        assert (DOCS / "filters.md").read_text() == filters_page.page(found)
        assert {path.name for path in numbers.parent.iterdir()} == {"filters.json"} | {
            f"{name}.{ending}" for name in filters_figure.of_filters(found) for ending in ("png", "svg")
        }
        # The page says so as long as the second part is not measured.
        whole = filters_page.is_few_measured(found)
        for part in filters.parts(Options(seeds=10), filters.ENVS):
            if part.place[0] != "rows" and not whole:
                continue
            its = filters._at(found, part.place)
            assert its["settings"] == part.settings
            assert len(its["seeds"]) + len(its["diverged"]) >= 10
