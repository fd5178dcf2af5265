"""The documentation tells what the code does."""

from __future__ import annotations

import functools
import json
import re
import shlex
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.cli.main import COMMANDS
from deeprok.environments import ENVIRONMENTS
from deeprok.runs.run_settings import PRESETS
from deeprok.runs.settings import make_config
from deeprok.uncertainty import SETS
from studies import (
    critic,
    critic_page,
    deep_sea,
    deep_sea_page,
    defaults,
    defaults_page,
    figures,
    logs,
    logs_page,
    paper,
    plan,
    robustness,
    robustness_figure,
    robustness_page,
    simulators,
    simulators_page,
)
from studies.carried_over import format3_hashes, stored_rows
from studies.engine import Options
from studies.kalman_page import kalman_page
from studies.page import results_page
from studies.results import needed
from studies.table1_page import SYSTEMS, table1_page

ROOT = Path(__file__).parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text()


#: Heading -> its part of the page, of those below "Settings".
GROUPS = dict(part.split("\n", 1) for part in CLI.split("### Settings")[1].split("\n## ")[0].split("#### ")[1:])


def agents_of(heading: str) -> list[str]:
    """The algorithms that a heading names, of which the first has the values below it; none if it is for all."""
    return re.findall(r"`(\w+)`", heading)


@functools.cache
def preset_of(algorithm: str, preset: str) -> dict[str, Any]:
    """Every setting of an algorithm that the page is to have, as it shows its value."""
    settings = make_config(algorithm, preset).flat()
    # On or off as the algorithm is defined, in every preset.
    by_algorithm = {"double": "by algorithm"} if "double" in settings else {}
    return {name: shown(settings[name]) for name in settings if name not in ("algorithm", "preset")} | by_algorithm


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in ("", (), None):
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, tuple):
        return "`" + " ".join(f"{x:g}" for x in value) + "`"
    return str(value) if isinstance(value, int) else f"{value:g}"


def row_of(algorithm: str, name: str) -> str:
    """How a row of the page begins: the option and its value in each preset, bold where it is not that of `default`."""
    default, *others = (preset_of(algorithm, preset)[name] for preset in PRESETS)
    option = name.replace("_", "-")
    switch = isinstance(make_config(algorithm).flat()[name], bool)
    options = f"`--{option}`, `--no-{option}`" if switch else f"`--{option}`"
    return " | ".join([f"| {options}", default, *(value if value == default else f"**{value}**" for value in others)])


def rows_below(heading: str) -> dict[str, str]:
    """Setting -> its row, of one part of the page."""
    found = re.findall(r"^\| `--([a-z-]+)`.*$", GROUPS[heading], re.MULTILINE)
    lines = [line for line in GROUPS[heading].splitlines() if line.startswith("| `--")]
    assert len(set(found)) == len(lines)
    return {name.replace("-", "_"): line for name, line in zip(found, lines, strict=True)}


def test_cli_page_has_the_presets_as_columns() -> None:
    header = " | ".join(["| option", *(f"`{preset}`" for preset in PRESETS)])
    for heading, text in GROUPS.items():
        for line in text.splitlines():
            assert not line.startswith("| option") or line.startswith(f"{header} |"), heading


@pytest.mark.parametrize(("heading", "name"), [(heading, name) for heading in GROUPS for name in rows_below(heading)])
def test_cli_page_has_the_values_of_every_preset(heading: str, name: str) -> None:
    agent = next(iter(agents_of(heading)), "rtd_dqn")
    assert name in preset_of(agent, "default"), f"{agent} has no such setting"
    row = row_of(agent, name)
    assert rows_below(heading)[name].startswith(f"{row} |"), f"below '{heading}' the row must begin:\n{row} |"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cli_page_has_every_setting_of_an_algorithm(algorithm: str) -> None:
    """Where it has a value of its own, that stands in a part of the page for it; or it is named in its definition."""
    general, own = dict[str, str](), dict[str, str]()
    for heading in GROUPS:
        named = agents_of(heading)
        if not named or algorithm in named:
            (own if named else general).update(rows_below(heading))
    rows = general | own
    wrong = [
        row
        for name in preset_of(algorithm, "default")
        if name not in rows or name not in ALGORITHMS[algorithm].settings
        if not rows.get(name, "").startswith((row := row_of(algorithm, name)) + " |")
    ]
    assert not wrong, f"{algorithm} needs these rows:\n" + " |\n".join([*wrong, ""])


@pytest.mark.parametrize("heading", GROUPS)
def test_cli_page_has_no_other_settings(heading: str) -> None:
    options = set(rows_below(heading))
    readers = {algorithm for algorithm in ALGORITHMS if options <= set(make_config(algorithm).flat())}
    assert options
    assert readers
    if named := agents_of(heading):
        assert set(named) == readers


@pytest.mark.parametrize("command", COMMANDS)
def test_cli_page_has_every_command(command: str) -> None:
    assert f"[`{command}`]" in CLI


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_table_of_algorithms_has_every_algorithm(algorithm: str) -> None:
    assert f"| `{algorithm}` |" in (ROOT / "docs" / "algorithms" / "index.md").read_text()


def test_readme_counts_right() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    sets = len(set(SETS) - {"finite"})  # a list of models is for tables alone
    assert f"{len(ALGORITHMS)} algorithms, {sets} ambiguity sets" in text
    assert f"lists all {len(ALGORITHMS)}" in text


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def commands(page: Path) -> list[list[str]]:
    """The words of each `deeprok …` line in a block of shell commands, usage lines aside."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("deeprok ") and "[" not in line]
    return [found for found in words if found and found[0] != "COMMAND"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_pages_exist(page: Path) -> None:
    for words in commands(page):
        assert words[0] in COMMANDS
        if words[0] == "train" and not words[1].startswith("-"):
            assert words[1] in ALGORITHMS
        known = set(import_module(f"deeprok.cli.{words[0].replace('-', '_')}").options())
        own = {"--momentum", "--features", "--network"} if ":" in " ".join(words) else set()  # of users' own parts
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known | own


# Numbers in prose.


@pytest.fixture(scope="module")
def stored() -> Any:
    spec = spec_from_file_location("stored_numbers", ROOT / "docs" / "tools" / "stored_numbers.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_are_those_of_the_stored_results(page: Path, stored: Any) -> None:
    for expression, said in stored.stated(page.read_text()):
        assert said == stored.computed(expression), expression


#: Percentages that say how something is defined, not what was measured.
DEFINED = {"0 %", "50 %", "95 %", "90 %", "91 %", "80 %", "5 %", "30 %", "100 %"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/faq.md"])
def test_measured_percentages_name_their_source(page: str, stored: Any) -> None:
    unmarked = stored.MARKED.sub("", (ROOT / page).read_text())
    assert set(re.findall(r"\d+(?:\.\d+)? %", unmarked)) <= DEFINED
    assert not re.findall(r"\d+\.\d+ – \d+\.\d+", unmarked)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=lambda page: page.stem)
def test_results_of_algorithms_name_their_source(page: Path, stored: Any) -> None:
    """Singhal and Wu's tables are those that a script prints; another test compares them."""
    text = page.read_text()
    if "## Results" not in text or page.stem == "singhal_wu":
        return
    unmarked = stored.MARKED.sub("", text.split("## Results")[1])
    assert set(re.findall(r"\d+(?:\.\d+)? %", unmarked)) <= DEFINED
    assert not re.findall(r"\d+\.\d+ – \d+\.\d+", unmarked)


def test_cli_page_lists_every_environment() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    listed = text.split("| environment | task |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", listed, re.MULTILINE) == sorted(ENVIRONMENTS)


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
    assert set(drawn) == {
        *(f"{kind}-paper" for kind in ("returns", "success", "learning")),
        *("shortfall-tuned", "learning-tuned", "learning-fastest", "square"),
    }


def test_results_are_of_these_settings_and_enough_seeds(results: dict[str, Any]) -> None:
    tables = {"tuned": results["agents"], **results["studies"]}
    for study in paper.comparisons(seeds=20, preset="tuned", full=True, episodes=500):
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
        settings = [make_config(name, "tuned", **_tuples(row["changes"])) for row in (chosen, winner)]
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


# The page on the preset `default`.

DEFAULTS = ROOT / "docs" / "defaults"


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return json.loads((DEFAULTS / "defaults.json").read_text())


def test_page_of_the_default_is_what_its_numbers_give(measured: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "defaults.md").read_text() == defaults_page.page(measured)
    assert {path.name for path in DEFAULTS.iterdir()} == {"defaults.json"} | {
        f"{name}.{ending}" for name in defaults_page.figures(measured) for ending in ("png", "svg")
    }


def test_the_default_was_measured_as_it_is_and_with_enough_seeds(measured: dict[str, Any]) -> None:
    assert list(measured["rows"]) == list(defaults.ENVS)
    for env, agents in measured["rows"].items():
        for agent, its in agents.items():
            if its["seeds"]:
                assert its["settings"] == make_config(agent, env=env).digest()
                assert len(its["seeds"]) + len(its["diverged"]) >= 10
        assert all(agents[agent]["seeds"] for agent in ("ddqn", "ddqn_dr", "rtd_dqn"))


TABLE1 = ROOT / "docs" / "table1"


@pytest.fixture(scope="module")
def systems() -> dict[str, Any]:
    return json.loads((TABLE1 / "table1.json").read_text())


def test_page_on_deep_exploration_is_what_its_numbers_give() -> None:
    found = json.loads((ROOT / "docs" / "deep_sea" / "deep_sea.json").read_text())
    assert (ROOT / "docs" / "deep_sea.md").read_text() == deep_sea_page.page(found)
    assert {path.name for path in (ROOT / "docs" / "deep_sea").iterdir()} == {
        "deep_sea.json",
        *(f"{name}.{ending}" for name in deep_sea_page.figures(found) for ending in ("png", "svg")),
    }
    for agent, trials in deep_sea.TRIALS.items():
        its = found["tuning"]["trials"][agent]
        assert [trial["changes"] for trial in its] == trials
        assert (
            found["chosen"][agent] == min(its, key=lambda t: deep_sea.merit(t, found["tuning"]["episodes"]))["changes"]
        )
        rows = found["rows"][agent]
        assert list(rows) == [str(depth) for depth in deep_sea.DEPTHS[: len(rows)]]
        for depth, row in zip(deep_sea.DEPTHS, rows.values(), strict=False):
            assert row["settings"] == deep_sea.make(agent, depth, deep_sea.EPISODES, found["chosen"][agent]).digest()
            assert list(row["seeds"]) == [str(seed) for seed in range(10)]


def test_page_on_critics_is_what_its_numbers_give() -> None:
    found = json.loads((ROOT / "docs" / "critic" / "critic.json").read_text())
    assert (ROOT / "docs" / "critic.md").read_text() == critic_page.page(found)
    assert {path.name for path in (ROOT / "docs" / "critic").iterdir()} == {
        "critic.json",
        *(f"{name}.{ending}" for name in critic_page.figures(found) for ending in ("png", "svg")),
    }
    for env, rows in found["rows"].items():
        assert list(rows) == list(critic.CRITICS)
        for name, row in rows.items():
            assert list(row["seeds"]) == [str(seed) for seed in range(1, 11)]
            if name != "linear":
                trials = {
                    value: np.mean(list(its["seeds"].values())) for value, its in found["tuning"][env][name].items()
                }
                assert row["value"] == float(max(trials, key=lambda value: trials[value]))


def test_page_on_robustness_is_what_its_numbers_give() -> None:
    found = json.loads((ROOT / "docs" / "robustness" / "robustness.json").read_text())
    assert (ROOT / "docs" / "robustness.md").read_text() == robustness_page.page(found)
    assert {path.name for path in (ROOT / "docs" / "robustness").iterdir()} == {
        "robustness.json",
        *(f"{name}.{ending}" for name in robustness_figure.figures(found) for ending in ("png", "svg")),
    }
    for env in robustness_page.environments(found):
        for name, row in found["rows"][env].items():
            if row["seeds"] and not robustness.AGENTS[name].algorithm.startswith("sb3:"):
                assert row["settings"] == robustness.comparison(env, name, 1).rows[0].config(0).digest()
                assert len(row["seeds"]) + len(row["diverged"]) >= 5


def test_page_on_logs_is_what_its_numbers_give() -> None:
    folder = ROOT / "docs" / "logs"
    found = json.loads((folder / "logs.json").read_text())
    assert (ROOT / "docs" / "logs.md").read_text() == logs_page.page(found)
    assert {path.name for path in folder.iterdir()} == {"logs.json", "logs.png", "logs.svg"}
    rows = {item.name: item for item in logs.items()}
    for env in logs_page.environments(found):
        assert list(found["rows"][env]) == list(rows)
        for name in logs_page.measured(found, env):
            row = found["rows"][env][name]
            assert row["settings"] == logs.plan_row(Options(), env, rows[name]).settings
            for seed, its in row["seeds"].items():
                assert its["truth"] == logs.true_system(logs.environment(env), int(seed))


def test_page_of_the_simulators_is_what_its_numbers_give() -> None:
    folder = ROOT / "docs" / "simulators"
    found = json.loads((folder / "simulators.json").read_text())
    assert (ROOT / "docs" / "simulators.md").read_text() == simulators_page.page(found)
    assert {path.name for path in folder.iterdir()} == {"simulators.json"} | {
        f"{name}.{ending}" for name in simulators_page.figures(found) for ending in ("png", "svg")
    }
    for env, rows in found["rows"].items():
        for name, row in rows.items():
            if row["seeds"] and not simulators.ENVS[env].algorithm(name).startswith(("sb3", "random")):
                assert row["settings"] == simulators.comparison(env, name, 5).rows[0].config(0).digest()
                assert len(row["seeds"]) + len(row["diverged"]) >= 5


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


def test_results_trained_in_format_3_have_the_present_settings() -> None:
    rows = [(row, table[row.name]) for _, comparison, (_, table) in stored_rows() for row in comparison.rows]
    assert len(rows) > 150
    for row, found in rows:
        assert found["settings_3"] in format3_hashes(row.config(0))
    other = make_config("deep_rok", "tuned", target_period=1999)
    assert not format3_hashes(other) & format3_hashes(make_config("deep_rok", "tuned"))


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
