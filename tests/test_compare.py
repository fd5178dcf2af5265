"""Agents compared on the same grid: statistics against scipy's, identities, and what users read."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_runs import GOOD, LEFT, write_run
from scipy import stats

import deeprok
from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.environments import cartpole
from deeprok.evaluation import grid as evaluation
from deeprok.evaluation.comparison import compare as comparing
from deeprok.evaluation.comparison.compare import compare
from deeprok.evaluation.comparison.report import print_comparison
from deeprok.evaluation.comparison.result import ComparedRun, Comparison, Scores, Unit
from deeprok.evaluation.result import GridReturns, summarise
from deeprok.evaluation.statistics import estimate, probability_of_improvement
from deeprok.runs import folder as runs

AXES = {"pole_length": np.linspace(0.2, 1.4, 4), "cart_mass": np.linspace(0.1, 7.0, 5)}
CELLS = 20


def agent(label: str, returns: Sequence[np.ndarray], unit: Unit = "seeds") -> ComparedRun:
    """One that earned returns [cells, episodes] with each seed."""
    played = {seed: GridReturns(cells, cells[0]) for seed, cells in enumerate(returns)}
    found = summarise(label, cartpole(), AXES, played, 0.1, "mean", 1, 0.0, "best", luck=0)
    cells = np.stack(returns)
    axes = (1, 2) if unit == "seeds" else (0, 1)
    scores = Scores((cells > 195).mean(axis=axes), cells.mean(axis=axes))
    return ComparedRun(label, f"runs/{label}", list(played), found, scores)


def comparison(*agents: ComparedRun, unit: Unit = "seeds") -> Comparison:
    return Comparison("cartpole", unit, False, agents)


def some_returns(rng: np.random.Generator, seeds: int, level: float) -> list[np.ndarray]:
    return [
        rng.choice([10.0, 150.0, 200.0], (CELLS, 6), p=[0.5 - level / 2, 0.5 - level / 2, level]) for _ in range(seeds)
    ]


# --- statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second", "seed"), [(2, 2, 0), (3, 6, 1), (7, 4, 2)])
def test_differences_of_seeds_are_welchs(first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = agent("one", some_returns(rng, first, 0.5)), agent("other", some_returns(rng, second, 0.4))
    (found,) = comparison(one, other).differences
    for name, limit in (("success", 1.0), ("mean_return", np.inf)):
        ours, theirs = (np.array([getattr(s.overall, name) for s in x.evaluation.per_seed]) for x in (other, one))
        value, interval = getattr(found, name)
        assert value == pytest.approx(ours.mean() - theirs.mean())
        expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        assert interval == pytest.approx(np.clip([expected.low, expected.high], -limit, limit))
        expected = stats.ttest_1samp(ours, 0.0).confidence_interval()
        assert getattr(other, name).interval == pytest.approx(np.clip([expected.low, expected.high], 0.0, limit))
    u = stats.mannwhitneyu(other.scores.success, one.scores.success, method="asymptotic").statistic
    assert found.improvement
    assert found.improvement.value == pytest.approx(u / (first * second))


def test_differences_of_episodes_are_those_of_pairs() -> None:
    rng = np.random.default_rng(3)
    luck = rng.normal(0, 40, (CELLS, 30))
    one, other = (
        agent(name, [120 + shift + luck + rng.normal(0, 5, luck.shape)], "episodes")
        for name, shift in (("a", 0), ("b", 4))
    )
    (found,) = comparison(one, other, unit="episodes").differences
    pairs = [x.scores.mean_return for x in (other, one)]
    expected = stats.ttest_rel(*pairs).confidence_interval()
    assert found.mean_return.interval == pytest.approx((expected.low, expected.high))
    # By themselves the agents' intervals are far wider, since luck is the same for both.
    assert found.mean_return.interval[0] > 0
    assert other.mean_return.interval[0] < one.mean_return.interval[1]
    assert found.improvement is None


def test_the_interval_of_an_improvement_is_that_of_resampled_seeds() -> None:
    """As rliable does it: the seeds of each agent are drawn again by themselves."""
    rng = np.random.default_rng(4)
    first, second = rng.normal(0.5, 1.0, 7), rng.normal(0.0, 1.0, 5)
    found = estimate(probability_of_improvement, first, second)
    drawn = rng.choice(first, (3000, 7)), rng.choice(second, (3000, 5))
    resampled = stats.mannwhitneyu(*drawn, axis=1, method="asymptotic").statistic / 35
    assert found.interval == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.03)


@pytest.mark.parametrize(("seeds", "unit"), [(3, "seeds"), (1, "episodes")])
def test_the_other_way_round(seeds: int, unit: Unit) -> None:
    rng = np.random.default_rng(5)
    one, other = (agent(name, some_returns(rng, seeds, level), unit) for name, level in (("a", 0.2), ("b", 0.6)))
    forth, back = (comparison(*pair, unit=unit).differences[0] for pair in ((one, other), (other, one)))
    for name in ("success", "mean_return"):
        (value, interval), (mirrored, ends) = getattr(forth, name), getattr(back, name)
        assert (value, *interval) == pytest.approx((-mirrored, -ends[1], -ends[0]))
    assert forth.better == back.better == "b"
    assert [one.parameters for one, _ in forth.cells] == [one.parameters for one, _ in back.cells]
    if forth.improvement and back.improvement:
        assert forth.improvement.value == pytest.approx(1 - back.improvement.value)


def test_an_agent_and_itself() -> None:
    returns = some_returns(np.random.default_rng(6), 3, 0.5)
    for unit in ("seeds", "episodes"):
        (found,) = comparison(agent("a", returns, unit), agent("b", returns, unit), unit=unit).differences
        assert found.better is None
        assert found.cells == []
        assert (found.success.value, found.mean_return.value) == (0.0, 0.0)
    assert found.success.interval == (0.0, 0.0)
    assert (
        found.sentence
        == "b against a is inconclusive: the difference in success is 0.0 points (95 % interval 0.0 to 0.0)."
    )


def test_the_worst_cell_and_the_worst_tenth() -> None:
    returns = np.full((CELLS, 4), 200.0)
    returns[7, :] = 150.0  # never a success, but not the least return
    returns[3, :3] = returns[12, 0] = 10.0
    found = agent("a", [returns])
    assert found.worst == ({"pole_length": pytest.approx(0.6), "cart_mass": pytest.approx(3.55)}, 0.0, 150.0)
    assert found.tail_success == pytest.approx((0.0 + 0.25) / 2)  # two of twenty cells
    returns[:, :] = 10.0
    returns[4, :] = 5.0
    assert agent("a", [returns]).worst.mean_return == 5.0


def test_cells_in_which_they_differ_most() -> None:
    one, other = np.full((CELLS, 4), 200.0), np.full((CELLS, 4), 200.0)
    other[7, :], other[3, :2], other[2, :1] = 10.0, 10.0, 10.0
    (found,) = comparison(*(agent(name, [x] * 2) for name, x in (("a", one), ("b", other)))).differences
    assert [(first.success, second.success) for first, second in found.cells] == [(1.0, 0.0), (1.0, 0.5)]
    assert found.cells[0][0].parameters == {"pole_length": pytest.approx(0.6), "cart_mass": pytest.approx(3.55)}
    assert found.better == "a"
    assert found.sentence == (
        "b is worse than a: its success is 8.8 points lower (95 % interval 8.8 to 8.8); they differ most at "
        "pole_length=0.6, cart_mass=3.55 (0 % against 100 %) and pole_length=0.2, cart_mass=5.28 (50 % against 100 %)."
    )


def test_returns_decide_where_success_is_the_same_everywhere() -> None:
    one, other = (
        agent(name, [np.full((CELLS, 4), x), np.full((CELLS, 4), x + 1)]) for name, x in (("a", 10.0), ("b", 90.0))
    )
    found = comparison(one, other)
    assert found.measure == "mean_return"
    assert found.differences[0].better == "b"
    assert found.differences[0].sentence.startswith("b is better than a: its return is 80 higher (95 % interval ")
    assert "(90.5 against 10.5)" in found.differences[0].sentence


# --- runs ---------------------------------------------------------------------------------------------------------


def weights_of(skill: float) -> np.ndarray:
    return np.array([skill, *GOOD[1:]], np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three agents of two seeds each."""
    out = tmp_path_factory.mktemp("compared")
    for name, algorithm, skills in (
        ("first", "rtd_dqn", (0.5, 0.6)),
        ("second", "ddqn", (0.8, 0.9)),
        ("third", "ddqn", (0.1, 0.9)),
    ):
        for seed, skill in enumerate(skills):
            write_run(
                out / name / f"seed-{seed}", algorithm, best=weights_of(skill), last=weights_of(skill / 4), seed=seed
            )
    return out


@pytest.fixture
def agents(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which play at once: an episode succeeds if its luck is below the first weight."""

    def player(env: Any, policy_of: Any, episodes: int) -> Any:
        def play(weights: np.ndarray, cells: Any, epsilon: float, seed: int = 0, *_: Any) -> np.ndarray:
            luck = np.random.default_rng(seed).uniform(size=episodes)
            hard = np.linspace(0, 0.2, len(next(iter(cells.values()))))[:, None]
            return np.where(luck + hard < weights[0, 0] * (1 - epsilon), 200.0, 10.0)

        return play

    monkeypatch.setattr(evaluation, "cell_player", player)
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def names(agents: Path, *chosen: str) -> list[str]:
    return [str(agents / name) for name in chosen or ("first", "second", "third")]


def test_options_reach_the_test(agents: Path) -> None:
    found = compare(names(agents), grid="cart_mass=1:7:3", episodes=30, epsilon=0.2, keep="last").to_dict()
    assert (found["grid"], found["episodes"], found["epsilon"]) == ({"cart_mass": [1.0, 4.0, 7.0]}, 30, 0.2)
    assert [run["keep"] for run in found["runs"]] == ["last"] * 3
    assert (found["env"], found["unit"], found["measure"], found["stored"]) == ("cartpole", "seeds", "success", False)
    assert [run["label"] for run in found["runs"]] == ["first", "second", "third"]
    assert [run["algorithm"] for run in found["runs"]] == ["rtd_dqn", "ddqn", "ddqn"]
    assert [run["seeds"] for run in found["runs"]] == [[0, 1]] * 3
    assert [one["run"] for one in found["differences"]] == ["second", "third"]
    assert json.loads(json.dumps(found)) == found
    best = compare(names(agents), grid="cart_mass=1:7:3", episodes=30, epsilon=0.2).to_dict()
    for kept, last in zip(best["runs"], found["runs"], strict=True):
        assert kept["success"]["value"] > last["success"]["value"]


def test_the_default_grid_covers_the_boxes_of_all(agents: Path) -> None:
    for folder in runs.find(agents / "second"):
        config = runs.read_config(folder).replace(box="pole_length=0.1:1,cart_mass=1:9")
        (folder / runs.CONFIG).write_text(config.to_json())
    found = compare(names(agents, "first", "second"), episodes=2)
    np.testing.assert_allclose(found.grid["pole_length"], np.linspace(0.1, 1.4, 7))
    np.testing.assert_allclose(found.grid["cart_mass"], np.linspace(0.1, 9.0, 7))


def test_all_are_tested_with_the_disturbances_of_the_first(agents: Path) -> None:
    for folder in runs.find(agents / "first"):
        (folder / runs.CONFIG).write_text(runs.read_config(folder).replace(sensor_noise=0.2).to_json())
    found = compare(names(agents), episodes=2, save=True)
    assert [run.evaluation.disturbances for run in found.runs] == [{"sensor_noise": 0.2}] * 3
    assert (agents / "second" / "seed-0" / "evaluation-episodes=2,sensor_noise=0.2.json").exists()
    assert compare(names(agents, "second", "first"), episodes=2).to_dict()["disturbances"] == {}


def test_stored_evaluations_of_the_same_test_are_taken(agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = compare(names(agents), episodes=20, save=True)
    (agents / "first" / "seed-0" / "evaluation-broken.json").write_text("{")  # passed over
    with monkeypatch.context() as unneeded:
        unneeded.setattr(comparing, "play", None)
        again = compare(names(agents), episodes=20)
        assert again.stored
        assert not played.stored
        assert again.to_dict() == played.to_dict() | {"stored": True}
    for other in (dict(episodes=21), dict(epsilon=0.3), dict(keep="last"), dict(grid="cart_mass=1:2:2")):
        assert not compare(names(agents), **{"episodes": 20, **other}).stored, other
    # One seed is trained on, so that its stored evaluation is of other weights.
    run = agents / "second" / "seed-1"
    shutil.copy(agents / "third" / "seed-0" / runs.CHECKPOINT, run)
    changed = compare(names(agents), episodes=20)
    assert not changed.stored
    assert changed.runs[1].success.value < played.runs[1].success.value


def test_files_of_older_versions_are_played_again(agents: Path) -> None:
    compare(names(agents), episodes=20, save=True)
    path = agents / "third" / "seed-0" / "evaluation-episodes=20.json"
    old = json.loads(path.read_text())
    del old["seed"], old["per_seed"][0]["weights"]
    path.write_text(json.dumps(old))
    assert not compare(names(agents), episodes=20).stored


def test_single_seeds_are_compared_by_episodes(agents: Path) -> None:
    found = compare([agents / "first" / "seed-0", agents / "second"], episodes=50, save=True)
    assert found.unit == "episodes"
    assert found.differences[0].better == "second"
    # Every episode that the worse one wins, the better one wins too.
    assert found.differences[0].success.interval[0] > 0.2
    again = compare([agents / "first" / "seed-0", agents / "second"], episodes=50)
    assert not again.stored  # files hold no single episodes
    assert again.to_dict() == found.to_dict()
    one = compare([agents / "first" / "seed-0", agents / "second" / "seed-0"], episodes=1)
    assert one.differences[0].success.interval is None
    assert one.differences[0].better is None
    assert "inconclusive" in one.differences[0].sentence


def test_loaded_runs_stand_for_their_weights(agents: Path) -> None:
    best, last = (deeprok.load(agents / "first", seed=0, keep=keep) for keep in ("best", "last"))
    found = compare([last, best], episodes=20)
    assert [run.evaluation.keep for run in found.runs] == ["last", "best"]
    assert [run.label for run in found.runs] == ["seed-0 1", "seed-0 2"]
    assert found.differences[0].better == "seed-0 2"
    listed = compare([[agents / "first" / "seed-0", agents / "first" / "seed-1"], agents / "second"], episodes=20)
    assert listed.unit == "seeds"
    assert (
        listed.differences[0].success == compare(names(agents, "first", "second"), episodes=20).differences[0].success
    )


def test_labels_tell_runs_apart(agents: Path) -> None:
    found = compare([agents / "first" / "seed-0", agents / "second" / "seed-0"], episodes=2)
    assert [run.label for run in found.runs] == [str(agents / "first" / "seed-0"), str(agents / "second" / "seed-0")]


def test_real_play_has_the_same_random_numbers(tmp_path: Path) -> None:
    for name, best in (("one", GOOD), ("two", GOOD), ("left", LEFT)):
        write_run(tmp_path / name, best=best, horizon=30)
    options: dict[str, Any] = dict(grid="cart_mass=1.5:7:2", episodes=20, epsilon=0.5)
    same, left = compare([tmp_path / name for name in ("one", "two", "left")], **options).differences
    assert (same.mean_return.value, same.mean_return.interval) == (0.0, (0.0, 0.0))
    assert left.better == "one"


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "environment": (
        {"env": "ferry"},
        {},
        "first has the environment 'cartpole' and .*second 'ferry'; runs are compared",
    ),
    "horizon": ({"horizon": 50}, {}, "first has the horizon 200 and .*second 50; runs are compared in the same"),
    "nominal": ({"nominal": "gravity=12"}, {}, "first has the nominal gravity 9.8 and .*second 12; a grid that varies"),
    "parameter": ({}, {"grid": "pole_lenght=1:2:3"}, "did you mean 'pole_length'"),
    "episodes": ({}, {"episodes": 0}, "episodes is 0; it must be at least 1"),
    "epsilon": ({}, {"epsilon": 2.0}, "epsilon is 2; it must be a probability"),
    "keep": ({}, {"keep": "first"}, "unknown keep 'first'"),
    "settings": ({}, {}, "differ in more than their seed"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_not_be_compared(agents: Path, name: str) -> None:
    changes, options, said = BAD[name]
    for folder in runs.find(agents / "second")[: 1 if name == "settings" else 2]:
        config = runs.read_config(folder)
        if "env" in changes:
            config = deeprok.make_config("ddqn", "tuned", seed=config.seed, **changes)
        else:
            config = config.replace(**changes or ({"discount": 0.5} if name == "settings" else {}))
        (folder / runs.CONFIG).write_text(config.to_json())
    with pytest.raises(DeeprokError, match=said):
        compare(names(agents, "first", "second"), **options)


def test_a_grid_that_varies_it_lifts_a_difference_of_nominal_models(agents: Path) -> None:
    for folder in runs.find(agents / "second"):
        (folder / runs.CONFIG).write_text(runs.read_config(folder).replace(nominal="gravity=12").to_json())
    assert compare(names(agents, "first", "second"), grid="gravity=8:12:2", episodes=2).unit == "seeds"


@pytest.mark.parametrize("given", [["{}"], [], "{}", 3])
def test_a_comparison_takes_two(agents: Path, given: Any) -> None:
    run = str(agents / "first")
    given = [word.format(run) for word in given] if isinstance(given, list) else given
    with pytest.raises(DeeprokError, match="at least two runs"):
        compare(run if given == "{}" else given)


# --- what users read ----------------------------------------------------------------------------------------------


def printed(found: Comparison, width: int = 80) -> str:
    console = WordConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison(found, console)
    return console.file.getvalue()


def test_what_is_printed_fits_eighty_columns() -> None:
    rng = np.random.default_rng(7)
    made = [
        agent(label, some_returns(rng, 5, level))
        for label, level in (("rtd_dqn", 0.3), ("a_run_with_a_long_name", 0.9))
    ]
    text = printed(comparison(*made))
    assert max(map(len, text.splitlines())) <= 80
    for words in ("20 cells, 6 episodes each", "all were played now", "P(better)", "CVaR10", "minus rtd_dqn"):
        assert words in " ".join(text.split())
    assert "a_run_with_a_long_name is better than rtd_dqn: its success is" in " ".join(text.split())
    alone = [agent(label, some_returns(rng, 1, 0.5), "episodes") for label in ("a", "b")]
    text = " ".join(printed(comparison(*alone, unit="episodes")).split())
    assert "a single seed, too few for an interval over seeds: intervals are over the episodes" in text
    assert "P(better)" not in text
    assert "from stored evaluations" in printed(dataclasses.replace(comparison(*made), stored=True))


def test_the_command(
    agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "out", WordConsole(width=200))
    words = ["compare", *names(agents), "--episodes", "20", "--epsilon", "0.2", "--keep", "last"]
    assert main([*words, "--plot", str(tmp_path / "x.svg")]) == 0
    out = capsys.readouterr().out
    assert "last weights" in out
    assert f"plot: {tmp_path}/x.svg" in out
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stored"]  # by the command before
    assert (found["episodes"], found["epsilon"], found["runs"][0]["keep"]) == (20, 0.2, "last")
    refused = {
        ("compare", names(agents)[0]): "two DIR or more must be given",
        ("compare",): "two DIR or more must be given",
        (*words, "--plot", "x.gif"): "plot is x.gif; it must end with",
        (*words, "--plot", "x.png", "--grid", "force=1,gravity=9,cart_mass=1"): "plot draws one or two parameters, but",
        (*words, "--grid", "forse=1:2:2"): "did you mean 'force'",
        (*words, "--keeps", "x"): "did you mean '--keep'?",
    }
    for given_words, said in refused.items():
        assert main(given_words) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_frames_have_a_row_for_each_agent_and_cell() -> None:
    rng = np.random.default_rng(8)
    made = [agent(label, some_returns(rng, 2, 0.5)) for label in ("a", "b")]
    frame = comparison(*made).to_frame()
    assert list(frame) == [
        "run",
        "pole_length",
        "cart_mass",
        "success",
        "mean_return",
        "success_difference",
        "mean_return_difference",
    ]
    assert frame["run"].tolist() == ["a"] * CELLS + ["b"] * CELLS
    gap = made[1].evaluation.success - made[0].evaluation.success
    np.testing.assert_allclose(frame["success_difference"], [*[0.0] * CELLS, *gap.reshape(-1)])


@pytest.mark.parametrize("count", [2, 3])
def test_maps_have_one_scale_and_differences_another(count: int) -> None:
    rng = np.random.default_rng(9)
    made = [agent(label, some_returns(rng, 2, level)) for label, level in (("a", 0.2), ("b", 0.9), ("c", 0.5))][:count]
    figure = comparison(*made).plot()
    panels = [panel for panel in figure.axes if panel.get_title()]
    assert len(panels) == 2 * count - 1
    images = [panel.collections[0] for panel in panels]
    for image, run in zip(images[:count], made, strict=True):
        np.testing.assert_allclose(image.get_array(), 100 * run.evaluation.success.T)
        assert image.get_clim() == (0, 100)
    gaps = [100 * (run.evaluation.success - made[0].evaluation.success) for run in made[1:]]
    limit = np.abs(gaps).max()
    for image, gap in zip(images[count:], gaps, strict=True):
        np.testing.assert_allclose(image.get_array(), gap.T, atol=1e-9)
        assert image.get_clim() == pytest.approx((-limit, limit))
    assert [panel.get_title().split(":")[0] for panel in panels[count:]] == [f"{x} − a" for x in "bc"[: count - 1]]


def test_curves_along_one_parameter() -> None:
    played = {seed: GridReturns(np.array([[200.0, 10.0], [200.0, 200.0]]), np.array([200.0])) for seed in (0, 1)}
    axes = {"cart_mass": np.array([1.0, 2.0])}
    scores = Scores(np.array([0.75, 0.75]), np.array([152.5, 152.5]))
    better = {seed: GridReturns(np.full((2, 2), 200.0), np.array([200.0])) for seed in (0, 1)}
    made = [
        ComparedRun(label, label, [0, 1], summarise(label, cartpole(), axes, x, 0.1, "mean", 1, 0.0, "best"), scores)
        for label, x in (("a", played), ("b", better))
    ]
    left, right = comparison(*made).plot().axes
    assert [line.get_ydata().tolist() for line in left.get_lines()[:2]] == [[50.0, 100.0], [100.0, 100.0]]
    assert right.get_lines()[0].get_ydata().tolist() == [50.0, 0.0]
    three = dataclasses.replace(
        made[0].evaluation, grid={name: np.ones(1) for name in ("force", "gravity", "cart_mass")}
    )
    with pytest.raises(DeeprokError, match="one or two parameters, but the grid has 3: force, gravity, cart_mass"):
        comparison(*(dataclasses.replace(run, evaluation=three) for run in made)).plot()
