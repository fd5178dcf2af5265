"""The documentation tells what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deeprok
from deeprok.cli.main import COMMANDS
from deeprok.runs.settings import ALGORITHMS, Config, make_config
from deeprok.training import jobs
from studies import figures, paper, plan
from studies.kalman_page import kalman_page
from studies.page import results_page
from studies.results import needed
from studies.table1_page import SYSTEMS, table1_page

ROOT = Path(__file__).parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text()


def shown(value: Any) -> str:
    if value in ("", (), None):
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, tuple):
        return "`" + " ".join(f"{x:g}" for x in value) + "`"
    return str(value) if isinstance(value, int) else f"{value:g}"


def settings() -> list[tuple[str, str, str]]:
    """Name, value in `paper` and value in `tuned` of every setting."""
    rows = []
    for algorithm in ("bbb_rtd", "psgld_rtd", "ktd_q", "epopt", "rtd_dqn", "deep_rok"):
        paper, tuned = (make_config(algorithm, preset) for preset in ("paper", "tuned"))
        for field in dataclasses.fields(paper.estimator):
            values = [getattr(config.estimator, field.name) for config in (paper, tuned)]
            if not isinstance(values[0], bool):
                rows.append((field.name, *map(shown, values)))
    for field in dataclasses.fields(Config):
        if field.name not in ("algorithm", "preset", "estimator", "double"):
            rows.append((field.name, shown(getattr(paper, field.name)), shown(getattr(tuned, field.name))))
    return rows


@pytest.mark.parametrize(("name", "paper", "tuned"), settings())
def test_cli_page_has_every_setting_with_its_values(name: str, paper: str, tuned: str) -> None:
    bold = tuned if tuned == paper else f"**{tuned}**"
    assert f"| `--{name.replace('_', '-')}` | {paper} | {bold} |" in CLI


@pytest.mark.parametrize("command", COMMANDS)
def test_cli_page_has_every_command(command: str) -> None:
    assert f"[`{command}`]" in CLI


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_readme_has_every_algorithm(algorithm: str) -> None:
    assert f"| `{algorithm}` |" in (ROOT / "README.md").read_text()


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    monkeypatch.chdir(tmp_path)
    real_config, real_evaluate = deeprok.make_config, deeprok.evaluate
    small = dict(hidden=(4,), chunk_steps=100, horizon=40, models=2, trial_models=2)

    def quick_config(algorithm: str, **changes: Any) -> Config:
        return real_config(algorithm, **{**changes, **small, "episodes": 4})

    def quick_evaluate(folder: str, **options: Any) -> deeprok.Evaluation:
        return real_evaluate(folder, **{**options, "episodes": 3})

    monkeypatch.setattr(jobs, "count_cores", lambda: 1)  # worker processes would compile all of it again
    monkeypatch.setattr(deeprok, "make_config", quick_config)
    monkeypatch.setattr(deeprok, "evaluate", quick_evaluate)
    exec(code[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("success over the grid 0.")
    assert [line.split()[0] for line in lines[1:]] == ["0.2", "0.4", "0.6", "0.8", "1.0", "1.2", "1.4"]
    assert sorted(path.name for path in (tmp_path / "runs" / "robust").iterdir()) == ["seed-0", "seed-1", "seed-2"]


# The page of results.

RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads((RESULTS / "results.json").read_text())


def test_results_page_is_what_its_numbers_give(results: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results_page(results)


def test_results_have_their_figures(results: dict[str, Any]) -> None:
    drawn = figures.of_results(results)
    assert {path.name for path in RESULTS.iterdir()} == {"results.json"} | {
        f"{name}.{ending}" for name in drawn for ending in ("png", "svg")
    }
    assert set(drawn) >= {
        f"{kind}-{preset}" for kind in ("returns", "success", "learning") for preset in ("tuned", "paper")
    }
    assert set(drawn) >= {"square", "learning-fastest"}


def test_results_are_of_these_settings_and_enough_seeds(results: dict[str, Any]) -> None:
    tables = {"tuned": results["agents"], **results["studies"]}
    for study in paper._studies(seeds=20, preset="tuned", full=True, episodes=500):
        assert list(tables[study.name]) == [row.name for row in study.rows]
        for row in study.rows:
            found = tables[study.name][row.name]
            assert found["settings"] == row.config(0).digest()
            assert sorted(found["per_seed"]["seed"] + found["broken"]) == list(study.seeds)
    assert set(results["references"]) == {"random", "linear", "lqr", "sb3_dqn", "sb3_dqn_dr"}


@pytest.mark.parametrize("study", ["best", "fastest"])
def test_settings_are_those_that_tuning_chose(results: dict[str, Any], study: str) -> None:
    rows = list(results["studies"]["tuning"].values())

    def merit(row: dict[str, Any]) -> float:
        times = needed(row["per_seed_episodes_to_95"], row["curve"]["episodes"])
        return sum(row["per_seed"]["success"]) if study == "best" else -sum(times)

    for name, chosen in results["studies"][study].items():
        winner = max((row for row in rows if row["algorithm"] == name), key=merit)
        settings = [make_config(name, **_tuples(row["changes"])) for row in (chosen, winner)]
        assert settings[0] == settings[1]


def _tuples(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}


# The page of the Kalman family.

KALMAN = ROOT / "docs" / "kalman"


@pytest.fixture(scope="module")
def filters() -> dict[str, Any]:
    return json.loads((KALMAN / "kalman.json").read_text())


def test_kalman_page_is_what_its_numbers_give(filters: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "kalman.md").read_text() == kalman_page(filters)


def test_kalman_page_has_its_figures(filters: dict[str, Any]) -> None:
    assert {path.name for path in KALMAN.iterdir()} == {"kalman.json"} | {
        f"{name}.{ending}" for name in figures.of_filters(filters) for ending in ("png", "svg")
    }


def test_filters_are_of_these_settings_and_enough_seeds(filters: dict[str, Any]) -> None:
    studies = [make(20, 500) for make in (plan.structures, plan.exploration, plan.confidence, plan.warm_start)]
    for study in (*studies, plan.nominal_filter(20, 500), plan.structure_tuning(500)):
        table = filters["tables"][study.name]
        assert list(table) == [row.name for row in study.rows]
        for row in study.rows:
            assert table[row.name]["settings"] == row.config(0).digest()
            assert sorted(table[row.name]["per_seed"]["seed"] + table[row.name]["broken"]) == list(study.seeds)
    for rows in filters["deep_sea"].values():
        assert {name: len(row["first"]) for name, row in rows.items()} == {"epsilon": 20, "thompson": 20, "ucb": 20}


TABLE1 = ROOT / "docs" / "table1"


@pytest.fixture(scope="module")
def systems() -> dict[str, Any]:
    return json.loads((TABLE1 / "table1.json").read_text())


def test_page_of_table_1_is_what_its_numbers_give(systems: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "table1.md").read_text() == table1_page(systems)
    assert {path.name for path in TABLE1.iterdir()} == {"table1.json"} | {
        f"{name}.{ending}" for name in figures.of_systems(systems) for ending in ("png", "svg")
    }


def test_systems_are_of_these_settings_and_enough_seeds(systems: dict[str, Any]) -> None:
    for study in (plan.beliefs(10, 500), plan.policies(10, 500), plan.belief_tuning(500)):
        table = systems["tables"][study.name]
        assert list(table) == [row.name for row in study.rows]
        for row in study.rows:
            assert table[row.name]["settings"] == row.config(0).digest()
            assert sorted(table[row.name]["per_seed"]["seed"] + table[row.name]["broken"]) == list(study.seeds)


def test_code_and_pages_of_table_1_are_there() -> None:
    for system in SYSTEMS:
        assert (ROOT / "src" / "deeprok" / system.code).exists()
        assert (ROOT / "docs" / system.page).exists()


def test_noises_of_the_structures_are_those_that_tuning_chose(filters: dict[str, Any]) -> None:
    for name, chosen in plan.STRUCTURES.items():
        rows = [row for row in filters["tables"]["structure_tuning"].values() if row["changes"]["covariance"] == name]
        merit = {row["changes"]["observation_noise"]: np.mean(row["per_seed"]["success"]) for row in rows}
        # Half a percent is what three seeds can't tell apart.
        assert merit[chosen] > max(merit.values()) - 0.005
