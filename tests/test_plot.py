"""Figures of one's own runs, from Python and from the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from test_evaluation import some_evaluation, unplayed, write_run  # noqa: F401

from deeprok import Calibration, plot
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.core.figure_files import ENDINGS
from deeprok.evaluation.trained import load
from deeprok.runs import folder as runs

CALIBRATION = Calibration([0.5, 0.8, 0.95], [0.3, 0.5, 0.7], [0.49, 0.81, 0.93], [2.0, 2.2], 0.1, 0.2, 1.5, None, 80)


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


# --- maps and returns ---------------------------------------------------------------------------------------------


def test_success_map_is_laid_out_as_the_table() -> None:
    result = some_evaluation([0.5], pole_length=3, cart_mass=4)
    figure = plot.success_map(result)
    panel, scale = figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("pole length (m)", "cart mass (kg)")
    assert scale.get_ylabel() == "success in %"
    written = {text.get_position(): text.get_text() for text in panel.texts}
    for i, length in enumerate(result.grid["pole_length"]):
        for j, mass in enumerate(result.grid["cart_mass"]):
            assert written[length, mass] == f"{100 * result.success[i, j]:.0f}"
    assert panel.get_title() == "deep_rok: 50.0 % success"
    assert labels(figure) == ["nominal model: 100.0 % success"]  # though the cell around it may be another
    (square,) = panel.get_lines()
    assert square.get_xydata().tolist() == [[0.5, 1.5]]


def test_maps_side_by_side() -> None:
    one = some_evaluation([0.5], pole_length=3, cart_mass=4)
    grid = {**one.grid, "pole_length": one.grid["pole_length"] + 1}
    other = dataclasses.replace(one, algorithm="ddqn", grid=grid)
    figure = plot.success_map(one, one, other, names=["a", "b", "c"])
    assert labels(figure) == ["nominal model: a 100.0 %, b 100.0 % success"]  # the third grid does not have it
    *panels, _ = plot.success_map(one, other, names=["a", "b"]).axes
    assert [panel.get_title().split(":")[0] for panel in panels] == ["a", "b"]
    *panels, _ = plot.success_map(one, other).axes
    assert [panel.get_title().split(":")[0] for panel in panels] == ["deep_rok", "ddqn"]
    assert [len(panel.get_lines()) for panel in panels] == [1, 0]  # the nominal model is not on the second grid


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize(("count", "low"), [(3, 0.2), (7, 0.0617), (7, 0.2), (14, 0.0617)])
def test_labels_are_not_written_over_each_other(panels: int, count: int, low: float) -> None:
    one = some_evaluation([0.5], pole_length=count, cart_mass=3)
    one = dataclasses.replace(one, grid={**one.grid, "pole_length": np.linspace(low, low + 0.07, count)})
    figure = plot.success_map(*[one] * panels)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for panel in figure.axes[:panels]:
        texts = [label for label in panel.get_xticklabels() if label.get_text()]
        assert len(texts) == count
        turned = np.deg2rad(texts[0].get_rotation())
        height = texts[0].get_fontsize() * figure.dpi / 72
        places = [panel.transData.transform((x, 0))[0] for x in one.grid["pole_length"]]
        widest = max(label.get_window_extent(canvas.get_renderer()).width for label in texts)
        # Between two lines of text side by side there must be room for one; upright ones must not touch.
        needed = height / np.sin(turned) if turned else widest
        assert np.diff(places).min() > needed


def test_large_maps_have_no_numbers() -> None:
    panel, _ = plot.success_map(some_evaluation([0.5], pole_length=30, cart_mass=3)).axes
    assert not panel.texts
    assert len(panel.get_xticks()) < 15


def test_return_curve() -> None:
    result = some_evaluation([0.5, 1.0], cart_mass=4)
    figure = plot.return_curve(result, dataclasses.replace(result, algorithm="ddqn"))
    (panel,) = figure.axes
    curve, _, nominal = panel.get_lines()
    np.testing.assert_allclose(curve.get_xdata(), result.grid["cart_mass"])
    np.testing.assert_allclose(curve.get_ydata(), result.mean_return)
    assert list(nominal.get_xdata()) == [1.5, 1.5]
    filled = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert filled.max() == pytest.approx(np.max(result.mean_return + result.std_return))
    assert panel.get_xlabel() == "cart mass (kg)"
    assert labels(figure) == ["deep_rok", "ddqn"]
    assert len({line.get_linestyle() for line in panel.get_lines()[:2]}) == 2  # without colour they still differ


@pytest.mark.parametrize(("axes", "words"), [({"cart_mass": 3}, "return"), ({"force": 2, "gravity": 1}, "gravity")])
def test_evaluations_draw_themselves(axes: dict[str, int], words: str) -> None:
    assert words in some_evaluation([0.5], **axes).plot().axes[0].get_ylabel()


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (plot.success_map, "there is nothing to draw"),
    "no curves": (plot.learning_curve, "there is nothing to draw"),
    "one": (
        lambda: plot.success_map(some_evaluation([0.5], force=2)),
        "a success map takes a grid of two, but this one has 1: force",
    ),
    "three": (
        lambda: some_evaluation([0.5], force=2, gravity=2, cart_mass=2).plot(),
        "takes a grid of two, but this one has 3: force, gravity, cart_mass",
    ),
    "different": (
        lambda: plot.return_curve(some_evaluation([0.5], force=2), some_evaluation([0.5], gravity=2)),
        "vary different parameters, force and gravity",
    ),
    "names": (
        lambda: plot.coverage(CALIBRATION, names=["a", "b"]),
        "names are 2, but 1 are drawn; give one for each",
    ),
    "window": (lambda: plot.learning_curve("x", window=0), "window is 0; it must be at least 1"),
    "kind": (lambda: plot.learning_curve(3), "run is 3; it must be a run or its path"),
}


@pytest.mark.parametrize(("draw", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(draw: Callable[[], Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        draw()


@pytest.mark.usefixtures("unplayed")
def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run"))
    with pytest.raises(DeeprokError, match="has no stored evaluation; give the result of"):
        plot.success_map(run)
    assert main(["evaluate", str(run.folder)]) == 0
    assert plot.success_map(run).axes[0].get_title() == "rtd_dqn: 0.0 % success"


# --- learning curves ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds that differ in their returns; the second has a trial more and an episode less."""
    out = tmp_path_factory.mktemp("seeds")
    for seed in (0, 1):
        run = write_run(out / f"seed-{seed}", seed=seed)  # three episodes of 20, and a trial of 100
        lines: list[dict[str, Any]] = [{"steps": 80, "episodes": 4, "returns": [40.0]}]
        if seed == 0:
            lines.append({"steps": 99, "episodes": 5, "returns": [60.0]})
        else:
            lines[0] |= {"trial_return": 150.0, "returns": [80.0]}
        for line in lines:
            runs.append_metrics(run, line)
    return out


def test_learning_curve(seeds: Path) -> None:
    figure = plot.learning_curve(seeds, window=2)
    (panel,) = figure.axes
    curve, trials = panel.get_lines()
    assert curve.get_xdata().tolist() == [1, 2, 3, 4, 5]
    # Means of two episodes, then of both seeds; the second has but four.
    np.testing.assert_allclose(curve.get_ydata(), [20, 20, 20, (30 + 50) / 2, 50])
    heights = panel.collections[0].get_paths()[0].vertices
    assert heights[np.isclose(heights[:, 0], 4), 1].max() == pytest.approx(50)
    assert trials.get_xydata().tolist() == [[3, 100], [3, 100], [4, 150]]
    assert labels(figure) == ["rtd_dqn, 2 seeds", "rtd_dqn, 2 seeds: trials on held-out models"]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("episodes of training", "return: mean of 2 episodes")


def test_learning_curves_of_runs(seeds: Path) -> None:
    one, other = (load(seeds, seed) for seed in (0, 1))
    assert len(plot.learning_curve(one, seeds / "seed-1").axes[0].get_lines()) == 4
    listed = plot.learning_curve([one, other], window=2).axes[0].get_lines()
    np.testing.assert_allclose(listed[0].get_ydata(), [20, 20, 20, 40, 50])


def test_no_episode_yet(seeds: Path, tmp_path: Path) -> None:
    runs.create(tmp_path / "run", runs.read_config(seeds / "seed-0"))
    with pytest.raises(DeeprokError, match="has no finished episode yet"):
        plot.learning_curve(tmp_path / "run")


# --- coverage and files -------------------------------------------------------------------------------------------


def test_coverage() -> None:
    figure = plot.coverage(CALIBRATION, dataclasses.replace(CALIBRATION, calibrated=None), names=["two", "one"])
    left, right = figure.axes
    _, plain, scaled = left.get_lines()
    np.testing.assert_allclose(plain.get_xydata(), [[50, 30], [80, 50], [95, 70]])
    np.testing.assert_allclose(scaled.get_ydata(), [49, 81, 93])
    assert len(right.get_lines()) == 2
    assert (left.get_title(), left.get_xlabel(), left.get_ylabel()) == (
        *("two", "nominal coverage in %", "empirical coverage in %"),
    )
    assert labels(figure) == ["as estimated", "with the temperature of the other seeds"]


BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_figure_gives_the_same_file(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # it is not needed
    for name in ("one", "two"):
        plot.save(plot.coverage(CALIBRATION), tmp_path / f"{name}{ending}")
    one, two = ((tmp_path / f"{name}{ending}").read_bytes() for name in ("one", "two"))
    assert one.startswith(BEGINNINGS[ending])
    assert one == two


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`drawn(words)`: what the command prints when it draws the two seeds into a file."""

    def draw(*words: str) -> str:
        assert main(["plot", str(seeds), *words]) == 0
        return capsys.readouterr().out

    return draw


def test_learning_is_drawn_where_nothing_is_stored(drawn: Callable[..., str], seeds: Path) -> None:
    assert drawn() == f"learning: {seeds}/learning.png\n"
    assert (seeds / "learning.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("unplayed")
def test_a_stored_evaluation_is_drawn(
    drawn: Callable[..., str], seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["evaluate", str(seeds), "--json"]) == 0
    stored = {path: path.read_bytes() for path in seeds.glob("*/evaluation.json")}
    assert len(stored) == 2
    monkeypatch.setattr("deeprok.cli.plot.evaluate", None)  # nothing is played again
    out = tmp_path / "map.svg"
    assert drawn("--out", str(out)).endswith(f"map: {out}\n")
    assert out.read_text().startswith("<?xml")
    assert stored == {path: path.read_bytes() for path in stored}
    for path in stored:
        path.unlink()


@pytest.mark.usefixtures("unplayed")
def test_the_newest_stored_evaluation_of_the_grid_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "two", tmp_path / "other"
    for seed in (0, 1):
        write_run(folder / f"seed-{seed}", seed=seed)
    write_run(other)
    evaluations = ["--episodes 2", "--episodes 4 --policy mean --seed 3", "--grid gravity=5:15:3", "--episodes 3"]
    for age, words in enumerate(evaluations):
        known = set(folder.glob("*/evaluation*.json"))
        assert main(["evaluate", str(folder), "--json", *words.split()]) == 0
        for path in set(folder.glob("*/evaluation*.json")) - known:
            os.utime(path, (1000 - age, 1000 - age))  # each is older than the one before
    capsys.readouterr()

    def draw(*words: str) -> list[str]:
        assert main(["plot", *map(str, words), "--out", str(tmp_path / "x.png")]) == 0
        return capsys.readouterr().out.splitlines()

    def of(name: str, episodes: int, run: str = f"{folder}/seed-*") -> str:
        return f"drawn from {run}/evaluation{name}.json, {episodes} episodes a cell"

    is_map = f"map: {tmp_path}/x.png"
    with monkeypatch.context() as unneeded:
        unneeded.setattr("deeprok.cli.plot.evaluate", None)  # nothing is played again
        assert draw(folder) == [of("-episodes=2", 2), is_map]
        assert draw(folder, "--kind", "map") == [of("-episodes=2", 2), is_map]
        assert draw(folder, "--episodes", "3") == [of("-episodes=3", 3), is_map]
        assert draw(folder, "--grid", "gravity=5:15:3")[1] == f"returns: {tmp_path}/x.png"
        assert draw(folder, other) == [f"learning: {tmp_path}/x.png"]  # what only one of them has is not compared
    # What is not stored is played, with so many episodes.
    both = [of("-episodes=5", 5), of("-episodes=5", 5, str(other)), is_map]
    assert draw(folder, other, "--episodes", "5") == both
    assert draw(folder, other) == both
    # A file of some seeds alone is none of the folder.
    os.utime(folder / "seed-0" / "evaluation-episodes=2.json", (9e9, 9e9))
    (folder / "seed-1" / "evaluation-episodes=2.json").unlink()
    assert draw(folder)[0] == of("-episodes=5", 5)


@pytest.mark.usefixtures("unplayed")
def test_an_evaluation_is_drawn_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_given = [str(write_run(tmp_path / name)) for name in ("one", "two")]
    for run in runs_given:
        assert main(["evaluate", run, "--name", "windy", "--episodes", "2", "--grid", "gravity=5:15:3"]) == 0
        assert f"kept in {run}/evaluation-windy.json" in capsys.readouterr().out
        assert main(["evaluate", run, "--episodes", "3", "--json"]) == 0
    assert main(["evaluate", runs_given[0], "--json"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("deeprok.cli.plot.evaluate", None)  # nothing is played again
    out = ["--out", str(tmp_path / "x.png")]
    for label, kind, file in (("windy", "returns", "-windy"), ("episodes=3", "map", "-episodes=3")):
        assert main(["plot", *runs_given, "--name", label, *out]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert [line.split(",")[0] for line in printed[:2]] == [
            f"drawn from {run}/evaluation{file}.json" for run in runs_given
        ]
        assert printed[2] == f"{kind}: {tmp_path}/x.png"
    assert main(["plot", runs_given[0], "--name", "default", *out]) == 0
    assert capsys.readouterr().out.startswith(f"drawn from {runs_given[0]}/evaluation.json")
    refused = {
        ("default",): "unknown name 'default': known are episodes=3, windy",
        ("wind",): "did you mean 'windy'?",
        ("windy", "--grid", "force=1:2:2"): "grid is force=1:2:2 and name is 'windy', whose grid is stored with it",
        ("windy", "--kind", "map"): "a success map takes a grid of two, but this one has 1: gravity",
        ("windy", "--kind", "learning"): "name is windy, but learning has no name",
    }
    for words, said in refused.items():
        assert main(["plot", *runs_given, "--name", *words, *out]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "one" / "evaluation-windy.json").write_text("{}")
    assert main(["plot", runs_given[0], "--name", "windy", *out]) == 2
    assert "evaluation-windy.json is damaged" in capsys.readouterr().err
    bare = write_run(tmp_path / "bare")
    assert main(["plot", str(bare), "--name", "windy", *out]) == 2
    assert f"name is 'windy', but {bare} has no stored evaluation" in capsys.readouterr().err


@pytest.mark.usefixtures("unplayed")
def test_a_grid_is_evaluated_and_stored(drawn: Callable[..., str], seeds: Path, tmp_path: Path) -> None:
    printed = drawn("--grid", "gravity=5:15:3", "--out", str(tmp_path / "a.pdf")).splitlines()
    of = f"drawn from {seeds}/seed-*/evaluation-gravity=5-15-3.json, 500 episodes a cell"
    assert printed == [of, f"returns: {tmp_path}/a.pdf"]
    kept = list(seeds.glob("*/evaluation-gravity=5-15-3.json"))
    assert len(kept) == 2
    assert json.loads(kept[0].read_text())["grid"] == {"gravity": [5.0, 10.0, 15.0]}
    words = ["--grid", "gravity=5:15:3,force=5:15:2", "--kind", "map", "--out", str(tmp_path / "b.png")]
    assert drawn(*words).endswith(f"map: {tmp_path}/b.png\n")
    assert (tmp_path / "b.png").exists()


def test_coverage_is_computed(
    drawn: Callable[..., str], seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("deeprok.cli.plot.calibrate", lambda folder: asked.append(folder) or CALIBRATION)
    out = str(tmp_path / "c.png")
    assert drawn("--kind", "coverage", "--out", out) == f"coverage: {out}\n"
    assert asked == [seeds]


REFUSED: dict[str, tuple[list[str], str]] = {
    "no run": ([], "RUN must be given"),
    "nowhere": (["nowhere"], "there is no run folder nowhere"),
    "kind": (["{run}", "--kind", "pie"], "unknown kind 'pie': known are coverage, learning, map, returns"),
    "ending": (["{run}", "--out", "x.gif"], "out is x.gif; it must end with .png, .svg or .pdf"),
    "no folder": (["{run}", "--out", "no/x.png"], "out is no/x.png, but there is no folder no"),
    "grid of learning": (["{run}", "--kind", "learning", "--grid", "force=1:2:2"], "learning has no grid"),
    "episodes of learning": (["{run}", "--kind", "learning", "--episodes", "3"], "learning has no episodes"),
    "no episodes": (["{run}", "--episodes", "0"], "episodes is 0; it must be at least 1"),
    "returns of two": (["{run}", "--kind", "returns"], "returns needs a grid of one parameter, but"),
    "map of one": (["{run}", "--kind", "map", "--grid", "force=1:2:2"], "map needs a grid of two parameters, but"),
    "grid": (["{run}", "--grid", "forse=1:2:2"], "did you mean 'force'"),
    "option": (["{run}", "--kinds", "map"], "did you mean '--kind'?"),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(seeds: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", *(word.replace("{run}", str(seeds)) for word in words)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("unplayed")
def test_unfinished_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    assert main(["evaluate", str(run), "--json"]) == 0
    assert "unfinished" not in capsys.readouterr().err
    config = dataclasses.replace(runs.read_config(run), episodes=9, snapshot_every=0)
    (run / runs.CONFIG).write_text(config.to_json())
    assert main(["evaluate", str(run), "--json"]) == 0
    said = f"{run} is unfinished: 3 of 9 episodes; resume with: deeprok train --resume {run}"
    assert said in capsys.readouterr().err
