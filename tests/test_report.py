"""The page of `deeprok report`: which runs it has, what it embeds, and how it is put together."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.trained import load
from deeprok.report import page
from deeprok.report.agents import read_agent
from deeprok.report.data import Agent, Map, Report, Scene, in_script
from deeprok.report.given import read_files
from deeprok.report.scenes import find_agents, labels, read_scenes
from deeprok.runs.folder import append_metrics
from deeprok.runs.settings import make_config
from studies import defaults
from tests.finished_runs import GOOD, LEFT, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents on Cart-Pole, one of which has two seeds."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    write_run(folder / "steady", best=GOOD)
    for seed in (0, 1):
        write_run(folder / "deep" / "falling" / f"seed-{seed}", best=LEFT, seed=seed)
    return folder


def content_of(html: Path) -> dict[str, Any]:
    """The data of a page."""
    return json.loads(page.data_of(html.read_text()))


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    out = folder.parent / "report.html"
    assert main(["report", str(folder), "--out", str(out), "--episodes", "2"]) == 0
    return out


@given(st.text())
def test_no_text_ends_the_script(text: str) -> None:
    escaped = in_script(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert not set(escaped) & set("<>&\u2028\u2029")


def test_numbers_that_are_none() -> None:
    report = Report("", "", "", False, [])
    assert json.loads(dataclasses.replace(report, title=float("nan")).to_json())["title"] is None  # type: ignore[arg-type]


def test_modules_are_in_the_bundle_once_and_in_order() -> None:
    files = {path.name for path in (Path(page.__file__).parent / "page").glob("*.js")}
    assert sorted(page.MODULES) == sorted(files)
    text = page.bundle()
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    for i, name in enumerate(page.MODULES):
        for needed in re.findall(r'from "\./([\w.]+)"', page.source(name)):
            assert needed in page.MODULES[:i], f"{name} imports {needed}"


def test_small_without_data() -> None:
    assert len(page.make_page(Report("", "", "", False, []).to_json())) < 1_000_000


def test_finds_runs_however_deep(folder: Path) -> None:
    found = find_agents([folder])
    assert found == [folder / "deep" / "falling", folder / "steady"]
    assert find_agents([folder, folder / "steady"]) == found
    assert labels(found) == ["deep/falling", "steady"]
    assert labels(found[:1]) == ["falling"]


@pytest.mark.parametrize("name", ["nothing", "deep"])
def test_a_folder_without_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    with pytest.raises(DeeprokError, match=r"there is no run"):
        find_agents([tmp_path / name])


def test_a_scene_is_its_environment(written: Path) -> None:
    (scene,) = content_of(written)["scenes"]
    assert scene["env"] == scene["name"] == "cartpole"
    assert scene["actions"] == ["left", "right"]
    assert (scene["horizon"], scene["success_return"], scene["seconds"]) == (200, 195.0, 0.02)
    assert scene["settings"] == {"horizon": 200, "integrator": "euler", "failing_reward": 0.0}
    sliders = {slider["name"]: slider for slider in scene["sliders"]}
    assert [*sliders][:2] == ["cart_mass", "pole_length"]
    assert [*sliders][-2:] == ["sensor_noise", "action_delay"]
    mass = sliders["cart_mass"]
    assert (mass["nominal"], mass["box"]) == (1.5, [0.1, 7.0])
    assert mass["low"] == pytest.approx(0.01)  # never 0: a mass is positive
    assert mass["high"] == pytest.approx(7.0 + 0.5 * 6.9)
    assert (sliders["gravity"]["low"], sliders["gravity"]["high"]) == (4.9, 19.6)
    assert sliders["action_delay"]["whole"]


def test_an_agent_is_its_weights(written: Path, folder: Path) -> None:
    falling, steady = content_of(written)["scenes"][0]["agents"]
    assert (falling["name"], falling["seeds"], steady["seeds"]) == ("deep/falling", [0, 1], [0])
    assert falling["seed"] == load(folder / "deep" / "falling").settings.seed
    assert (steady["algorithm"], steady["keep"], steady["q"]) == ("rtd_dqn", "best", True)
    theta = np.frombuffer(base64.b64decode(steady["network"]["theta"]), "<f4")
    np.testing.assert_array_equal(theta, GOOD)
    assert steady["network"]["sizes"] == [4, 1, 2]
    assert steady["posterior"] is None


def test_a_curve_is_the_metrics(written: Path) -> None:
    _, steady = content_of(written)["scenes"][0]["agents"]
    (curve,) = steady["curves"]
    assert curve == {
        "seed": 0, "steps": [60], "episodes": [3], "seconds": [1.0], "mean_return": [20.0], "trial_return": [100.0],
    }  # fmt: skip


def test_long_curves_are_joined(folder: Path, tmp_path: Path) -> None:
    """Means over joined chunks, weighted by episodes; seconds add up."""
    run = write_run(tmp_path / "run")
    lines = [
        {"steps": 10 * i, "episodes": i * (i + 1) // 2, "returns": [float(i)] * i, "seconds": 0.5}
        for i in range(1, 302)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (curve,) = read_agent(run, "run", "best").curves
    assert curve.steps[:2] == [30, 60]
    assert curve.steps[-1] == 3010
    assert curve.seconds[1] == 3.0
    assert curve.mean_return[0] == pytest.approx((1 + 4 + 9) / 6, rel=1e-5)  # six digits
    assert curve.trial_return[0] is None


def test_maps_are_played_once_and_stored(written: Path, folder: Path) -> None:
    """A second page shows what is stored, and other numbers of episodes are played."""
    falling, steady = content_of(written)["scenes"][0]["agents"]
    stored = json.loads((folder / "steady" / steady["map"]["file"]).read_text())
    assert steady["map"]["success"] == stored["success"]
    assert len(falling["map"]["overall"]) == 2
    assert falling["map"]["overall_interval"] is not None
    assert steady["map"]["overall_interval"] is None
    assert steady["map"]["episodes"] == 2
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("evaluation*.json")}
    (scene,) = read_scenes([folder], plays=False)
    assert [agent.map.episodes for agent in scene.agents if agent.map] == [2, 2]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("evaluation*.json")} == before
    (scene,) = read_scenes([folder], plays=False, episodes=3)
    assert [agent.map for agent in scene.agents] == [None, None]


def test_maps_of_other_weights_are_not_shown(tmp_path: Path) -> None:
    """As after a run has gone on."""
    first = write_run(tmp_path / "first", best=GOOD)
    (scene,) = read_scenes([first], episodes=1)
    assert scene.agents[0].map
    second = write_run(tmp_path / "second", best=LEFT)
    (file,) = first.glob("evaluation*.json")
    (second / file.name).write_bytes(file.read_bytes())
    (scene,) = read_scenes([second], plays=False)
    assert scene.agents[0].map is None


def test_which_weights(folder: Path) -> None:
    best, last = (read_agent(folder / "steady", "steady", keep) for keep in ("best", "last"))
    assert best.network
    assert last.network
    assert best.network.theta != last.network.theta


def test_draws_from_a_posterior(tmp_path: Path) -> None:
    """20 of them, those of `deeprok evaluate --policy vote`, and the run's correction."""
    run = write_run(tmp_path / "run", "deep_rok", spread=0.04)
    agent = read_agent(run, "run", "best")
    assert agent.posterior
    draws = np.frombuffer(base64.b64decode(agent.posterior.draws), "<f4").reshape(20, -1)
    trained = load(run)
    np.testing.assert_array_equal(draws[3], trained.sample_weights(jax.random.split(jax.random.key(0), 20)[3]))
    assert (agent.posterior.shift, agent.posterior.factor, agent.posterior.floor) == (0.0, 1.0, 0.0)
    obs = jnp.array([0.1, -0.2, 0.05, 0.3])
    assert np.std([trained.network.apply(draw, obs) for draw in draws], axis=0).max() > 0


def test_a_run_before_its_first_checkpoint(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "checkpoint.safetensors").unlink()
    agent = read_agent(run, "run", "best")
    assert agent.network is None
    assert "checkpoint" in agent.unseen
    (scene,) = read_scenes([run], episodes=1)
    assert scene.agents[0].map is None


def test_what_stress_and_calibrate_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They keep it in the run's folder, and it counts for as long as no seed is trained further."""
    run = write_run(tmp_path / "runs" / "rok", "deep_rok", best=GOOD, last=GOOD, spread=0.04)
    other = write_run(tmp_path / "runs" / "steady", best=GOOD)
    assert main(["stress", str(run), str(other), "--box", "cart_mass=0.1:7", "--budget", "96", "--json"]) == 0
    stressed = json.loads(capsys.readouterr().out)
    assert main(["calibrate", str(run), "--states", "5", "--models", "2", "--json"]) == 0
    calibrated = json.loads(capsys.readouterr().out)
    agents = [read_agent(each, "run", "best") for each in (run, other)]
    for agent, folder, one in zip(agents, (run, other), stressed["runs"], strict=True):
        assert agent.stress
        assert agent.stress.found["runs"] == [one]
        assert agent.stress.found["searched"] == stressed["searched"]
        assert agent.stress.command == (
            f"deeprok stress {run} {other} --box cart_mass=0.1:7 --margin 0.5 --threshold 0.9 --budget 96 --seed 0"
            " --json"
        )
        assert (agent.stress.keep, agent.stress.steps) == ("best", {"0": 60})
        assert read_agent(folder, "run", "last").stress is None  # other weights
    assert agents[0].coverage
    assert agents[0].coverage.found == calibrated
    assert "--states 5 --models 2 --keep last --seed 0" in agents[0].coverage.command
    assert agents[1].coverage is None
    append_metrics(run, {"steps": 90, "episodes": 4, "returns": [30.0], "seconds": 1.0})
    later = read_agent(run, "run", "best")
    assert (later.stress, later.coverage) == (None, None)


@pytest.mark.parametrize("text", ["", "[1]", '{"runs": [], "threshold": 0.9}', '{"kind": "stress"}', "NaN"])
def test_files_that_stress_did_not_write(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run")
    (run / "stress.json").write_text(text)
    assert read_agent(run, "run", "best").stress is None


#: A screening of Cart-Pole on two models, as `deeprok screen --out` writes it.
SCREENING: dict[str, Any] = {
    "env": "cartpole",
    "policies": ["each", "random"],
    "grid": {"cart_mass": [1.5, 7.0]},
    "parameters": {"cart_mass": {"unit": "kg", "nominal": 1.5}},
    "success": [[1.0, 0.9], [0.0, 0.0]],
    "mean_return": [[200.0, 150.0], [20.0, 22.0]],
    "epsilon": 0.05,
    "episodes": 7,
}


def test_maps_are_on_the_grid_of_a_reference(folder: Path, tmp_path: Path) -> None:
    """And have its ε, so that a regret to it is a difference of the same cells."""
    file = tmp_path / "screening.json"
    file.write_text(json.dumps(SCREENING))
    out = tmp_path / "report.html"
    assert main(["report", str(folder / "steady"), str(file), "--episodes", "3", "--out", str(out)]) == 0
    (scene,) = content_of(out)["scenes"]
    assert scene["reference"]["mean_return"] == [200.0, 150.0]
    assert scene["reference"]["command"].startswith("deeprok screen cartpole --grid cart_mass=1.5:7:2 --episodes 7")
    (agent,) = scene["agents"]
    assert agent["map"]["grid"] == {"cart_mass": [1.5, 7.0]}
    assert (agent["map"]["epsilon"], agent["map"]["episodes"]) == (0.05, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": "ferry"}, "is a screening of ferry with the nominal values cart_mass 1.5, in which none of the runs"),
        ({"parameters": {"cart_mass": {"unit": "kg", "nominal": 2.0}}}, "a screening of cartpole with the nominal"),
        ({"mean_return": [[1.0], [2.0]]}, "is neither a run folder nor a file that 'deeprok solve --out' or"),
        ({"policies": ["nominal", "random"]}, "is neither a run folder nor a file that"),
        ({"grid": {}}, "is neither a run folder nor a file that"),
    ],
)
def test_references_that_do_not_fit(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], sentence: str
) -> None:
    file = tmp_path / "screening.json"
    file.write_text(json.dumps(SCREENING | changes))
    assert main(["report", str(folder / "steady"), str(file), "--out", str(tmp_path / "report.html")]) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "report.html").exists()


def test_a_reference_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "screening.json"
    file.write_text(json.dumps(SCREENING))
    assert main(["report", str(file), "--out", str(tmp_path / "report.html")]) == 2
    assert "is a screening, which runs are compared with; give runs too" in capsys.readouterr().err.replace("\n", " ")


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("solved") / "river.json"
    assert main(["solve", "river_swim", "--radius", "0:0.4:3", "--state", "1", "--out", str(file), "--json"]) == 0
    return file


def test_solved_tables(solved: Path, tmp_path: Path) -> None:
    """Without a run too."""
    out = tmp_path / "report.html"
    assert main(["report", str(solved), "--out", str(out)]) == 0
    content = content_of(out)
    assert content["scenes"] == []
    (shown,) = content["solved"]
    stored = json.loads(solved.read_text())
    for name in ("radius", "value", "nominal", "nominal_value", "unprotected", "state", "name", "command"):
        assert shown[name] == stored[name]
    assert shown["nature"] == [each["moves"] for each in stored["nature"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"value": [1.0]},
        {"state": 6},
        {"nature": []},
        {"nature": [{"moves": [{"state": 1}]}] * 3},
        {
            "nature": [{"moves": [{"state": 9, "value": 0, "action": 0, "successors": [], "nominal": [], "worst": []}]}]
            * 3
        },
        {"states": "abc"},
        {"unprotected": [1.0, 2.0]},
    ],
)
def test_solved_tables_that_are_damaged(solved: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "solved.json"
    file.write_text(json.dumps(json.loads(solved.read_text()) | changes))
    with pytest.raises(DeeprokError, match="is neither a run folder nor a file that"):
        read_files([file])


def test_probability_of_improvement(written: Path) -> None:
    """Of a seed over one of the first agent, by hand."""
    falling, steady = content_of(written)["scenes"][0]["agents"]
    assert falling["map"]["improvement"] is None
    wins = [(a > b) + 0.5 * (a == b) for a in steady["map"]["overall"] for b in falling["map"]["overall"]]
    assert steady["map"]["improvement"] == np.mean(wins) == 1.0
    assert steady["map"]["improvement_interval"] is None  # of one seed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "RUN or DIR must be given"),
        (["RUN", "--out", "page.txt"], "out is page.txt; it must end with .html or .htm"),
        (["RUN", "--out", "no/page.html"], "out is no/page.html, but there is no folder no"),
        (["RUN", "--episodes", "0"], "episodes is 0; it must be at least 1"),
        (["RUN", "--keep", "worst"], "--keep is 'worst'; it must be best or last"),
        (["nowhere"], "there is no run folder nowhere"),
        (["RUN", "--sedd", "1"], "unknown option '--sedd'"),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["report", *(str(folder / "steady") if word == "RUN" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert sentence in said.replace("\n", " ")
    assert "Traceback" not in said


def test_says_what_it_wrote(written: Path, capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder / "steady"), "--no-maps", "--out", str(tmp_path / "a.html")]) == 0
    assert f"page: {tmp_path / 'a.html'}, 1 agent, " in capsys.readouterr().out


def test_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeprok.report.scenes.MOST_AGENTS", 1)
    with pytest.raises(DeeprokError, match="2 agents were trained in cartpole; a page shows at most 1 side by side"):
        read_scenes([folder], plays=False)


def test_the_command_makes_the_page_again(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "page.html")
    words = ["report", str(folder), "--keep", "last", "--out", out, "--episodes", "2"]
    assert main(words) == 0
    assert content_of(Path(out))["command"] == " ".join(["deeprok", *words])
    assert main(["report", str(folder), "--out", out, "--no-maps"]) == 0
    assert content_of(Path(out))["command"].endswith("--no-maps")


def test_intervals_of_success_end_at_100_percent(tmp_path: Path) -> None:
    for seed, best in enumerate((GOOD, GOOD, LEFT)):
        write_run(tmp_path / "both" / f"seed-{seed}", best=best, seed=seed)
    ((agent,),) = [scene.agents for scene in read_scenes([tmp_path / "both"], episodes=2)]
    assert agent.map
    assert agent.map.overall_interval
    assert 0.0 <= agent.map.overall_interval[0] < agent.map.overall_interval[1] <= 1.0


# --- the page on the front of the documentation ------------------------------------------------------------

FRONT = Path(__file__).parents[1] / "docs" / "live.html"


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    return content_of(FRONT)


def test_front_page_has_the_present_modules() -> None:
    text = FRONT.read_text()
    assert page.make_page(page.data_of(text)) == text, "python docs/tools/front_page.py puts the present ones in"


def test_front_page_has_what_pages_have_today(front: dict[str, Any]) -> None:
    def names(record: type) -> set[str]:
        return {field.name for field in dataclasses.fields(record)}

    assert set(front) == names(Report)
    for scene in front["scenes"]:
        assert set(scene) == names(Scene)
        for agent in scene["agents"]:
            assert set(agent) == names(Agent)
            assert set(agent["map"]) == names(Map)


def test_front_page_is_of_the_published_settings(front: dict[str, Any]) -> None:
    """Those of `docs/defaults.md`, and they are today's; nothing on it tells where it was made."""
    assert [scene["env"] for scene in front["scenes"]] == list(defaults.LIVE)
    rows = json.loads((FRONT.parent / "defaults" / "defaults.json").read_text())["rows"]
    for scene in front["scenes"]:
        assert [agent["algorithm"] for agent in scene["agents"]] == list(defaults.AGENTS)
        for agent in scene["agents"]:
            config = make_config(agent["algorithm"], env=scene["env"])
            assert agent["settings"] == config.digest() == rows[scene["env"]][agent["algorithm"]]["settings"]
            assert agent["seeds"] == [0, 1, 2]
            assert agent["network"]
            assert agent["map"]
            assert agent["keep"] == "last"
            assert not Path(agent["folder"]).is_absolute()
    assert "/" not in front["command"].split(" --out ")[1]


def test_no_page() -> None:
    with pytest.raises(DeeprokError, match="no page of deeprok report"):
        page.data_of("<html></html>")
