"""The study of what a log is worth, small."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from deeprok.environments import Environment
from deeprok.identification.log import read_log
from deeprok.identification.result import Estimate, Fit, Identified, Noise
from deeprok.runs.settings import Config, make_config
from studies import logs, logs_page, plan
from studies.__main__ import STUDIES
from studies.engine import Options, run_study

MEASURE = logs.measure
ROAD = logs.environment("road")
NO_NOISE = (0.0,) * 6
QUIET = logs.SYSTEMS["road"]._replace(noise=Noise(NO_NOISE, NO_NOISE))


def small(algorithm: str, preset: str = "default", **changes: Any) -> Config:
    tiny: dict[str, Any] = dict(hidden=(4,), batch_size=4, warm_up=20, train_every=1, chunk_steps=60, trial_models=2)
    tiny |= dict(normalise=False, longest_repeat=1)  # which take long to compile
    return make_config(algorithm, preset, **{**tiny, **changes, "trial_episodes": 1, "trial_every": 1, "steps": 120})


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plan, logs):
        monkeypatch.setattr(module, "make_config", small)
    monkeypatch.setattr(logs, "EPISODES", (1, 3))
    monkeypatch.setattr(logs, "ENVS", ("road",))


def found_by(env: Environment, log: Any, **named: Any) -> Identified:
    """What stands in for an identification: ranges that depend on the log."""
    low = 0.5 + len(np.unique(log["episode"])) / 64
    parameters = {"friction": Estimate(low + 0.125, low, low + 0.25), "drag": Estimate(0.002, 0.0, 0.004)}
    return Identified(
        env=env.name,
        parameters=parameters,
        confidence=named["confidence"],
        unidentified=(),
        combinations=(),
        noise=QUIET.noise,
        fit=Fit(1, len(log["t"]), 0.0, (), ()),
        bootstrap={},
        models={"friction": (low, low + 0.25), "drag": (0.001, 0.003)},
        box={name: (one.low, one.high) for name, one in parameters.items()},
        notes=(),
    )


# --- true systems and logs -------------------------------------------------------------------------------


def test_each_seed_has_its_own_system_from_the_box() -> None:
    systems = [logs.true_system(ROAD, seed) for seed in range(40)]
    assert systems[3] == logs.true_system(ROAD, 3)
    for name, (low, high) in ROAD.box.items():
        values = [system[name] for system in systems]
        assert len(set(values)) == 40
        # Uniform over the whole range.
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 0.001


def test_a_log_without_noise_is_the_system_itself() -> None:
    log = logs.make_log(ROAD, QUIET, seed=1, episodes=3)
    params = ROAD.nominal.__class__(**logs.true_system(ROAD, 1))
    obs, after = (np.stack([log[f"{kind}_{i}"] for i in range(6)], axis=1) for kind in ("obs", "next_obs"))
    step = jax.jit(ROAD.step)
    for row, action in enumerate(log["action"]):
        outcome = step(jax.random.key(5), obs[row, :2].astype(np.float32), int(action), params)
        np.testing.assert_allclose(after[row], outcome.obs, rtol=1e-4, atol=1e-6)
    shares = np.bincount(log["action"].astype(int)) / len(log["action"])
    np.testing.assert_allclose(shares, QUIET.actions, atol=0.15)
    assert max(log["t"]) == logs.LOG_STEPS - 1
    assert len(read_log(log, ROAD).length) == 3


def test_a_longer_log_begins_with_a_shorter_one_and_seeds_differ() -> None:
    system = logs.SYSTEMS["road"]
    short, long, other = (logs.make_log(ROAD, system, seed, count) for seed, count in ((2, 1), (2, 3), (3, 1)))
    for name, column in short.items():
        np.testing.assert_array_equal(column, long[name][: len(column)])
    assert not np.array_equal(short["obs_1"][:5], other["obs_1"][:5])


def test_noise_is_that_of_the_sensors_and_of_the_system() -> None:
    sensor = (0.5, 0.4, 0.002, 0.002, 0.002, 0.002)
    plain, seen = (
        logs.make_log(ROAD, QUIET._replace(noise=Noise(NO_NOISE, each)), 4, 20) for each in (NO_NOISE, sensor)
    )
    for i, deviation in enumerate(sensor):
        error = seen[f"obs_{i}"] - plain[f"obs_{i}"]
        assert np.std(error) == pytest.approx(deviation, rel=0.15)
    # What the system adds stays in it: the next step begins from there.
    moved = logs.make_log(ROAD, QUIET._replace(noise=Noise((0.0, 0.4, 0.0, 0.0, 0.0, 0.0), NO_NOISE)), 4, 20)
    params = ROAD.nominal.__class__(**logs.true_system(ROAD, 4))
    step = jax.jit(jax.vmap(lambda state, action: ROAD.step(jax.random.key(0), state, action, params).obs))
    states = np.stack([moved["obs_0"], moved["obs_1"]], axis=1).astype(np.float32)
    expected = step(states, moved["action"].astype(np.int32))
    assert np.std(moved["next_obs_1"] - expected[:, 1]) == pytest.approx(0.4, rel=0.15)
    np.testing.assert_allclose(moved["next_obs_0"], expected[:, 0], atol=1e-4)


# --- training and test -----------------------------------------------------------------------------------


def test_settings_of_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def identify(env: Environment, log: Any, **named: Any) -> Identified:
        asked.append(named)
        return found_by(env, log, **named)

    monkeypatch.setattr(logs, "identify", identify)
    configs = {
        item.name: logs.run_of(tmp_path, "road", item, 7).row.config(7)
        for item in logs.items()
        if item.episodes in (0, 3)
    }
    assert asked == [{"confidence": 0.9, "bootstrap": 0, "models": 10, "seed": 7}]  # the file serves all ways
    truth = logs.true_system(ROAD, 7)
    log = found_by(ROAD, {"episode": np.arange(3), "t": np.arange(3)}, confidence=0.9)
    one_model = {"truth": truth, "estimate-3": log.nominal}
    for name, config in configs.items():
        assert (config.preset, config.steps, config.seed, config.env) == ("default", 60_000, 7, "road")
        robust = name not in one_model
        assert config.algorithm == ("rtd_dqn" if robust else "ddqn")
        box, nominal = config.make_box(ROAD), config.make_env().nominal
        own = ROAD.box if name == "prior" else log.box
        for each in truth:
            low, high = box[each]
            if robust:
                assert (low, high) == pytest.approx(own[each])
            else:
                value, width = one_model[name][each], ROAD.box[each][1] - ROAD.box[each][0]
                assert float(getattr(nominal, each)) == pytest.approx(value)
                assert ((low + high) / 2, high - low) == pytest.approx((value, width / 1000))
    assert configs["prior"] == make_config("rtd_dqn", env="road", steps=60_000, seed=7)
    assert configs["models-3"].fixed_models == "friction=0.546875,drag=0.001; friction=0.796875,drag=0.003"
    assert configs["box-3"].replace(fixed_models=configs["models-3"].fixed_models) == configs["models-3"]


def test_the_test_is_on_the_seeds_own_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def player(env: str, network: Any, episodes: int) -> Any:
        def play(weights: Any, cell: Any, epsilon: float, seed: int) -> np.ndarray:
            asked.append((env, episodes, {name: values.tolist() for name, values in cell.items()}, epsilon, seed))
            return np.array([[-2.0, -0.5, 0.3, 0.2]])

        return play

    monkeypatch.setattr(logs, "identify", found_by)
    monkeypatch.setattr(logs, "_player", player)
    view = SimpleNamespace(network=None, mean=lambda belief: np.zeros(3))
    monkeypatch.setattr(Config, "make_learner", lambda _: SimpleNamespace(view=view))
    monkeypatch.setattr(logs.runs, "load_belief", lambda folder, learner, keep: asked.append((folder, keep)))
    item = logs.Item("box", 3)
    its = [logs.run_of(tmp_path, "road", item, seed) for seed in (4, 5)]
    found = logs.examined(its, "road", item, tmp_path, 4)
    assert [*found] == ["4", "5"]
    truth = logs.true_system(ROAD, 5)
    assert asked[2:] == [
        (tmp_path / "logs" / "road" / "box-3" / "seed-5", "last"),
        ("road", 4, {name: [value] for name, value in truth.items()}, 0.0, 6),
    ]
    # On the road an arrival returns more than −1.
    assert found["5"]["0"] == {"success": 0.75, "mean_return": pytest.approx(-0.5)}
    assert found["5"]["truth"] == truth
    assert found["5"]["box"]["friction"] == (0.546875, 0.796875)
    assert found["5"]["models"] == 2
    (own,) = logs.examined([logs.run_of(tmp_path, "road", logs.Item("truth", 0), 4)], "road", logs.Item("truth", 0),
                           tmp_path, 4).values()  # fmt: skip
    assert set(own) == {"0", "truth"}


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    options = Options(seeds=seeds, out=out, episodes=5, jobs=1)
    found = run_study(logs.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return json.loads(json.dumps(found)), written.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_study_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    identify, trained = logs.identify, logs.train

    def counted(env: Environment, log: Any, **named: Any) -> Identified:
        made.append((named["seed"], len(np.unique(log["episode"]))))
        return identify(env, log, **named)

    def train(name: str, its: Any, *rest: Any) -> None:
        made.append((name, [run.seed for run in its if not run.finished]))
        trained(name, its, *rest)

    monkeypatch.setattr(logs, "identify", counted)
    monkeypatch.setattr(logs, "train", train)
    ways = ("truth", "estimate", "models")
    monkeypatch.setattr(logs, "measure", functools.partial(MEASURE, ways=ways))
    first, text = study(tmp_path, 1)
    assert made == [
        ("road/truth", [0]), (0, 1), ("road/estimate-1", [0]), (0, 3), ("road/estimate-3", [0]),
        ("road/models-1", [0]), ("road/models-3", [0]),
    ]  # fmt: skip
    assert all(name in text for name in ("truth", "estimate-3", "models-1"))
    assert study(tmp_path, 1)[0] == first
    assert len(made) == 7  # nothing was left to do

    found, _ = study(tmp_path, 2)
    assert made[7:9] == [("road/truth", [1]), (1, 1)]
    report = tmp_path / "report"
    saved = json.loads((report / "logs" / "logs.json").read_text())
    assert saved == found
    assert (report / "logs.md").read_text() == logs_page.page(saved)
    for kind in ("png", "svg"):
        assert (report / "logs" / f"logs.{kind}").stat().st_size > 5000
    rows = saved["rows"]["road"]
    assert [name for name, row in rows.items() if row["seeds"]] == [
        "truth", "estimate-1", "estimate-3", "models-1", "models-3",
    ]  # fmt: skip
    for name, row in rows.items():
        if row["seeds"]:
            assert (list(row["seeds"]), row["diverged"]) == (["0", "1"], [])
            assert row["seeds"]["0"] == first["rows"]["road"][name]["seeds"]["0"]
            assert row["seeds"]["1"]["truth"] == logs.true_system(ROAD, 1)


@pytest.mark.usefixtures("tiny")
def test_rows_are_measured_again_if_their_logs_would_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(seeds=1, out=tmp_path, episodes=5)
    items = [logs.Item("truth", 0), logs.Item("box", 3), logs.Item("models", 3), logs.Item("box", 1)]

    def names() -> list[str]:
        return [logs.plan_row(options, "road", item).settings for item in items]

    before = names()
    assert len(set(before)) == 4
    monkeypatch.setitem(logs.SYSTEMS, "road", QUIET)
    assert [a == b for a, b in zip(before, names(), strict=True)] == [True, False, False, False]
    monkeypatch.undo()
    monkeypatch.setattr(logs, "identify", found_by)
    again, file = names(), logs.identified(tmp_path, "road", 0, 1)
    monkeypatch.setattr(logs, "METHOD", logs.METHOD + 1)  # as if ranges were found in another way
    assert [a == b for a, b in zip(again, names(), strict=True)] == [True, False, False, False]
    assert logs.identified(tmp_path, "road", 0, 1) != file


def test_study_has_every_way_and_number_of_episodes() -> None:
    assert STUDIES["logs"] is logs.STUDY
    assert logs.EPISODES == (1, 3, 10, 30)
    names = [item.name for item in logs.items()]
    assert names == ["truth", "prior", *(f"{way}-{n}" for way in ("estimate", "box", "models") for n in logs.EPISODES)]
    for env in logs.ENVS:
        made, (actions, noise, steps) = logs.environment(env), logs.SYSTEMS[env]
        assert len(made.observation_scale) == len(noise.process) == len(noise.sensor)
        assert (len(actions), sum(actions)) == (len(made.actions), pytest.approx(1.0))
        assert steps < make_config("rtd_dqn").steps


# --- page and figure -------------------------------------------------------------------------------------


def sample() -> dict[str, Any]:
    """Three seeds of some rows on one environment."""

    def seeds(*scores: tuple[float, float], box: tuple[float, float] | None = None) -> dict[str, Any]:
        told = {"estimate": {"friction": 0.6}, "box": {"friction": box}, "models": 9} if box else {}
        its = {
            str(i): {"0": {"success": s, "mean_return": r}, "truth": {"friction": 0.5 + 0.1 * i}, **told}
            for i, (s, r) in enumerate(scores)
        }
        return {"settings": "", "seeds": its, "diverged": []}

    rows = {name: seeds() for name in (item.name for item in logs.items() if item.episodes in (0, 1, 3))}
    rows["truth"] = seeds((1.0, 0.5), (1.0, 0.3), (0.9, 0.1))
    rows["estimate-1"] = seeds((0.5, 0.0), (0.0, -1.0), (0.1, -0.8), box=(0.55, 0.9))
    rows["box-1"] = seeds((0.9, 0.2), (0.5, 0.0), (0.5, -0.4), box=(0.55, 0.9))
    rows["box-3"] = seeds((1.0, 0.2), (0.9, 0.1), box=(0.45, 0.65))
    return {
        "command": "deeprok reproduce --study logs --seeds 3",
        "episodes": 100,
        "epsilon": 0.0,
        "log_episodes": [1, 3],
        "log_steps": 20,
        "confidence": 0.9,
        "method": 2,
        "models": 10,
        "ways": {
            name: {"title": way.title, "algorithm": way.algorithm, "logged": way.logged}
            for name, way in logs.WAYS.items()
        },
        "envs": {
            "road": {
                "box": {"friction": [0.3, 1.0]},
                "steps": 1000,
                "actions": [0.4, 0.6],
                "noise": {"process": [0.0, 0.4], "sensor": [0.5, 0.3]},
            }
        },
        "rows": {"road": rows},
    }


def cells(page: str) -> dict[str, list[str]]:
    """The lines of a page's tables by their first cells; the last ones of those that are alike."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines}


def test_differences_are_paired_by_seed() -> None:
    found = sample()
    apart = logs_page.apart(found, "road", "box-1", "estimate-1", "success")
    assert apart
    differences = np.array([0.4, 0.5, 0.4])
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(apart.value, differences.mean())
    np.testing.assert_allclose(apart.interval, [differences.mean() - half, differences.mean() + half])
    both = logs_page.apart(found, "road", "box-3", "truth", "success")  # of the third seed there is no box-3
    assert both
    assert both.value == pytest.approx(-0.05)
    assert logs_page.apart(found, "road", "prior", "truth", "success") is None


def test_page_of_a_sample() -> None:
    page = logs_page.page(sample())
    success = [line for line in logs_page.difference_table(sample(), "road", "success") if "estimate" in line[0]]
    assert success[0][:2] == ["the identified box − nominal = estimate", "**+43 (+29 – +58)**"]
    assert success[0][2] == "–"
    of = cells(page)
    assert of["the identified box, 1 episode"][:2] == ["63 (6 – 100)", "50"]
    assert of["the true parameters"][-3:] == ["–", "–", "3"]
    assert of["the identified box, 3 episodes"][-1] == "2"
    # Half the width of the environment's range; it holds 0.6 and 0.7 but not 0.5.
    lines = logs_page.log_table(sample())
    assert lines[1] == ["`road`", "1", "`friction`", "50", "14", "2 of 3"]
    assert lines[2] == ["`road`", "3", "`friction`", "29", "7", "2 of 2"]
    text = " ".join(page.split())
    assert "Not measured yet: the wide prior box;" in text
    assert "5 of 5 logs gave fewer." in text
    assert "| `road` | 0.4, 0.6 | 0, 0.4 | 0.5, 0.3 |" in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    # The returns differ by 0.2, 1.0 and 0.4 over the three seeds, so the interval holds 0.
    assert "- The identified box against nominal = estimate: inconclusive with 1 episode." in text
    assert "- In success, the intervals of 1 of 1 differences exclude 0." in text
    ((title, header, *rest),) = logs_page.short_tables(sample())
    assert (title, len(header), [line[0] for line in rest]) == ("road", 7, ["truth", "estimate-1", "box-1", "box-3"])


def test_figure_of_a_sample() -> None:
    (chart,) = logs_page.figures(sample()).values()
    top, bottom = chart.axes
    drawn = [[line.get_xdata().tolist(), line.get_ydata().tolist()] for line in top.lines if len(line.get_xdata())]
    truth, estimate, box = drawn
    assert truth == [[1, 3], pytest.approx([290 / 3] * 2)]
    assert estimate == [[1], pytest.approx([20.0])]
    assert box == [[1, 3], pytest.approx([190 / 3, 95.0])]
    assert bottom.lines[0].get_ydata().tolist() == pytest.approx([0.3, 0.3])
    (legend,) = chart.legends
    titles = [logs.WAYS[way].title for way in ("truth", "estimate", "box")]
    assert [text.get_text() for text in legend.get_texts()] == titles
    assert logs_page.figures(sample() | {"rows": {"road": {}}}) == {}
