"""The study of other people's simulators, small: its rows, its exam, stable-baselines3's part and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.environments import Choices, HostEnvironment, HostOutcome
from deeprok.environments.base import quantity
from deeprok.environments.host import make_parameters, model_of
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.policies import weights_policy
from deeprok.runs.settings import Config, make_config
from studies import measured, plan, sb3, sb3_simulators, simulators, simulators_page
from studies.__main__ import STUDIES
from studies.engine import Options, numbers_file, write_page

ROOT = Path(__file__).parent.parent
OWN = ("nominal", "dr", "robust", "posterior")


@pytest.fixture(autouse=True)
def no_stable_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sb3, "is_installed", lambda: False)


# --- what is compared ----------------------------------------------------------------------------------


def test_agents_have_the_same_effort() -> None:
    assert STUDIES["simulators"] is simulators.STUDY
    assert set(simulators.AGENTS) == set(simulators_page.ROLES)
    same = ("steps", "episodes", "models", "edges", "trial_every", "trial_models", "trial_episodes", "trial_epsilon")
    for env, budget in simulators.ENVS.items():
        assert set(budget.seconds) == set(simulators.AGENTS)
        if simulators.problem_of(env):
            continue
        configs = {name: simulators.comparison(env, name, 1).rows[0].config(0) for name in OWN}
        assert {tuple(getattr(config, field) for field in same) for config in configs.values()} == {
            (budget.steps, 0, 5, 0.3, budget.steps // 20_000, 8, 2, 0.0)
        }
        assert {name: (config.acting, config.robust) for name, config in configs.items()} == {
            "nominal": ("nominal", False),
            "dr": ("sampled", False),
            "robust": ("sampled", True),
            "posterior": ("sampled", True),
        }
        assert configs["posterior"].has_posterior
        for config in configs.values():
            said = simulators.about_environment(env, 20, {})["trial_steps"]
            assert config.trial_every * config.learner.chunk_steps == said
            assert config.make_env().actions.continuous == budget.numbers


def test_slow_simulators_have_half_the_episodes() -> None:
    episodes = simulators.cell_episodes(500)
    assert [simulators.episodes_of(env, episodes) for env in simulators.ENVS] == [20, 10, 20, 10, 10]
    assert simulators.episodes_of("Hopper-v5", simulators.cell_episodes(5)) == 1


def test_rows_not_chosen_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, work = tmp_path / "simulators.json", list[float]()

    def planned(options: Options, env: str, name: str, episodes: int) -> measured.Planned:
        def examine(seeds: Sequence[int]) -> Any:
            return {str(seed): {"0": {"success": 1.0}} for seed in seeds}

        return measured.Planned(f"{env} {name}", range(2), lambda seeds: [*seeds], examine, 3.0, 4.0)

    monkeypatch.setattr(simulators, "plan_row", planned)
    monkeypatch.setattr(simulators, "AGENTS", {name: simulators.AGENTS[name] for name in ("dr", "robust")})
    monkeypatch.setattr(simulators, "ENVS", {e: simulators.ENVS[e] for e in ("Acrobot-v1", "Pendulum-v1")})
    options = Options(seeds=2, out=tmp_path, episodes=25)

    def seeds(**chosen: Any) -> list[int]:
        chosen = {"envs": tuple(simulators.ENVS), "agents": tuple(simulators.AGENTS), **chosen}
        found = simulators.measure(options, path, lambda what, part: work.append(part), **chosen)
        return [len(row["seeds"]) for rows in found["rows"].values() for row in rows.values()]

    assert seeds(envs=["Pendulum-v1"], agents=["robust"]) == [0, 0, 0, 2]
    assert sum(work) == 2 * (3.0 + 4.0)
    assert seeds(agents=["dr"]) == [2, 0, 2, 2]
    work.clear()
    assert seeds() == [2, 2, 2, 2]
    assert sum(work) == simulators._work(options) == 8 * 7.0


def test_a_simulator_that_is_missing_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "simulators.json"
    monkeypatch.setattr(simulators, "problem_of", lambda env: f"{env} can't be made: Box2D is not installed")
    before = sample()
    path.write_text(json.dumps(before))
    found = simulators.measure(Options(seeds=9, out=tmp_path), path, lambda what, part: None)
    assert found["rows"]["Acrobot-v1"] == before["rows"]["Acrobot-v1"]
    assert found["environments"]["Acrobot-v1"]["box"] == before["environments"]["Acrobot-v1"]["box"]
    assert "left out: Acrobot-v1 can't be made: Box2D is not installed" in " ".join(capsys.readouterr().err.split())
    page = " ".join(simulators_page.page(found).split())
    assert "Pendulum-v1 can't be made: Box2D is not installed; " in page
    assert "Acrobot-v1 can't be made" not in page  # it has numbers from elsewhere


# --- the exam ------------------------------------------------------------------------------------------


class Weight:
    """Earns the strength and the action in each of three steps; fails in the second one if it is too strong."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.strength, self.t = 0.0, 0

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        self.strength, self.t = model["strength"], 0
        return np.zeros(1)

    def step(self, action: Any) -> HostOutcome:
        self.t += 1
        failed = self.strength > 3.5 and self.t == 2
        if failed:
            self.failures["too strong"] = self.failures.get("too strong", 0) + 1
        return HostOutcome(np.zeros(1), np.asarray(self.strength + float(action)), np.asarray(failed))

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        raise NotImplementedError

    def read(self) -> None:
        return None

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        raise NotImplementedError


WEIGHT = HostEnvironment(
    name="weight",
    make=Weight,
    nominal=make_parameters("WeightParameters", {"strength": quantity(2.0, "N", "what it earns")}),
    box={"strength": (0.0, 4.0)},
    observation_scale=(1.0,),
    actions=Choices(("rest", "push")),
    horizon=3,
    success_return=7.0,
)


def test_scores_of_a_simulator_whose_returns_are_known() -> None:
    def always(weights: Any, params: Any) -> Any:
        return lambda obs: jnp.full(len(obs), weights[0])

    found = simulators.played(WEIGHT, always, {0: np.ones(1), 4: np.zeros(1)}, 10)
    # Strengths 0, 1, …, 4: three steps, but two with the last one.
    of_push, of_rest = found["0"]["0"], found["4"]["0"]
    assert (of_push["mean_return"], of_push["worst_cell"], of_push["success"]) == ((3 + 6 + 9 + 12 + 10) / 5, 3.0, 0.6)
    assert (of_rest["mean_return"], of_rest["worst_cell"], of_rest["cvar10"]) == ((0 + 3 + 6 + 9 + 8) / 5, 0.0, 0.0)
    assert [seed["failed"] for seed in found.values()] == [10, 10]


def test_random_play_takes_all_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "named_simulator", lambda env: WEIGHT)
    found = simulators.random_play([0], "weight", 400)["0"]["0"]
    # In the worst cell each of the three steps earns 1 with probability ½.
    assert found["worst_cell"] == pytest.approx(1.5, abs=4 * np.sqrt(0.75 / 400))
    assert found["worst_cell_error"] == pytest.approx(np.sqrt(0.75 / 400), rel=0.2)


@pytest.mark.slow
def test_a_small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains for some hundred steps, is interrupted and goes on; the exam is that of `deeprok.evaluate`."""

    def small(algorithm: str, preset: str, **changes: Any) -> Config:
        tiny: dict[str, Any] = dict(hidden=(4,), batch_size=4, warm_up=50, chunk_steps=160, normalise=False)
        tiny |= dict(horizon=30, steps=320, trial_models=2, trial_episodes=1)
        return make_config(algorithm, preset, **{**changes, **tiny})

    env = "Pendulum-v1"
    monkeypatch.setattr(plan, "make_config", small)
    monkeypatch.setattr(simulators, "_VALUES", 2)
    monkeypatch.setattr(simulators, "ENVS", {env: simulators.ENVS[env]})
    made = simulators.named_simulator(env)._replace(horizon=30)
    monkeypatch.setattr(simulators, "named_simulator", lambda name: made)
    report, options = tmp_path / "report", Options(seeds=1, out=tmp_path, episodes=75, jobs=1)
    path = numbers_file(simulators.STUDY, report)

    def measure(*agents: str) -> dict[str, Any]:
        return simulators.measure(options, path, lambda what, part: None, envs=[env], agents=agents)["rows"][env]

    first = measure("nominal", "random")
    rows = measure("nominal", "dr", "sb3", "random")
    assert rows["nominal"] == first["nominal"]
    assert [len(rows[name]["seeds"]) for name in simulators.AGENTS] == [1, 1, 0, 0, 0, 1]
    found = json.loads(path.read_text())
    assert found["rows"][env] == rows
    axes = simulators.axes_of(made)
    folder = tmp_path / "simulators" / env / "dr" / "seed-0"
    expected = evaluate(folder, axes, 3, 0.0, keep="last", seed=1)
    scores = rows["dr"]["seeds"]["0"]
    assert expected.mean_return.shape == (2, 2)
    assert scores["0"]["worst_cell"] == pytest.approx(np.min(expected.mean_return), rel=1e-4)
    assert scores["0"]["mean_return"] == pytest.approx(np.mean(expected.mean_return), rel=1e-4)
    assert scores["seconds"] > 0
    write_page(simulators.STUDY, report)
    page = (report / "simulators.md").read_text()
    assert "needs the extra `bench`" in page
    assert "### `Pendulum-v1`" in page
    assert all((report / "simulators" / f"worst.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))


# --- stable-baselines3 ---------------------------------------------------------------------------------


def test_rows_of_stable_baselines_stay_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    row = simulators.of_stable_baselines(Options(seeds=7), "Hopper-v5", 10)
    assert list(row.seeds) == []
    monkeypatch.setattr(sb3, "is_installed", lambda: True)
    again = simulators.of_stable_baselines(Options(seeds=7), "Hopper-v5", 10)
    assert (list(again.seeds), again.settings) == ([*range(7)], row.settings)
    assert again.settings != simulators.of_stable_baselines(Options(), "Pendulum-v1", 10).settings


@pytest.mark.parametrize(("name", "action"), [("Acrobot-v1", 2), ("InvertedPendulum-v5", np.array([0.4]))])
def test_its_environment_is_the_simulator(name: str, action: Any) -> None:
    made = simulators.named_simulator(name)
    made = made._replace(horizon=5)
    environment = sb3_simulators.make_environment(made, 3, 0.5)
    inner = environment.unwrapped
    if made.actions.continuous:
        np.testing.assert_allclose([environment.action_space.low, environment.action_space.high], [[-3.0], [3.0]])
    else:
        assert environment.action_space.n == len(made.actions)
    drawn: dict[str, list[float]] = {key: [] for key in made.box}
    for _ in range(60):
        obs, _ = environment.reset()
        assert environment.observation_space.contains(obs)
        for key, values in drawn.items():
            values.append(inner.model[key])
    for key, (low, high) in made.box.items():
        values = np.array(drawn[key])
        assert np.all((values >= np.float32(low)) & (values <= np.float32(high)))
        ends = np.isclose(values, low) | np.isclose(values, high)
        assert 0.25 < np.mean(ends) < 0.75
        assert len(set(values[~ends])) == np.sum(~ends)
    # The same episode on a simulation of its own.
    expected, state = made.make(), inner.simulator.read()
    assert state is not None
    expected.reset(0, model_of(made, inner.model))
    expected.write(state, model_of(made, inner.model))
    for t in range(5):
        obs, reward, terminated, truncated, _ = environment.step(action)
        outcome = expected.step(action)
        np.testing.assert_allclose(obs * np.array(made.observation_scale), outcome.obs, rtol=1e-5, atol=1e-6)
        assert (reward, terminated) == (float(outcome.reward), bool(outcome.terminated))
        assert truncated == (t == 4)


def test_its_actor_is_played_as_it_is() -> None:
    """An action is low + (high − low) (tanh f + 1) / 2, with f of two hidden layers on scaled observations."""
    env = simulators.named_simulator("Pendulum-v1")
    network = sb3_simulators.network_of(env, "td3")
    rng = np.random.default_rng(0)
    theta = (0.1 * rng.normal(size=network.num_weights)).astype(np.float32)
    obs = rng.normal(size=(6, 3)).astype(np.float32)
    x, place = obs / np.array([1.0, 1.0, 8.0]), 0
    for inputs, outputs in ((3, 400), (400, 300), (300, 1)):
        weights = theta[place : place + inputs * outputs].reshape(inputs, outputs)
        bias = theta[place + inputs * outputs :][:outputs]
        x, place = x @ weights + bias, place + (inputs + 1) * outputs
        x = np.tanh(x) if outputs == 1 else np.maximum(x, 0)
    assert network.num_weights == place + 2 * ((4 + 1) * 400 + (400 + 1) * 300 + 301)
    found = weights_policy(network, env.actions, "mean")(jnp.asarray(theta)[None], env.nominal)(jnp.asarray(obs))
    np.testing.assert_allclose(found, -2.0 + 4.0 * (x + 1.0) / 2.0, rtol=1e-4, atol=1e-5)


def test_another_library_trains_what_has_no_file(tmp_path: Path) -> None:
    """Touching a file stands for training; the seed is its mode."""

    def examine(files: Mapping[int, Path]) -> Any:
        return {str(seed): {"mode": path.stat().st_mode & 0o777} for seed, path in files.items()}

    def plan_of(settings: dict[str, Any]) -> measured.Planned:
        return measured.of_another_library(
            Options(jobs=1), settings, lambda seed: tmp_path / f"{seed:o}", [0o600, 0o640], Path.touch, examine, 1.0
        )

    row = plan_of({"steps": 1})
    (tmp_path / "640").touch(0o400)  # as if it was trained before
    assert row.train(row.seeds) == [0o600, 0o640]
    assert row.examine(row.seeds) == {str(0o600): {"mode": 0o600}, str(0o640): {"mode": 0o400}}
    assert row.settings == plan_of({"steps": 1}).settings != plan_of({"steps": 2}).settings


def test_what_it_trained_is_read_and_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = sb3_simulators.network_of(WEIGHT, "dqn")
    theta = jax.device_get(jnp.zeros(network.num_weights).at[-1].set(1.0))  # the bias of "push"
    sb3_simulators.save(tmp_path / "seed-0.safetensors", {"theta": theta, "seconds": np.asarray(12.5, np.float32)})
    monkeypatch.setattr(simulators, "named_simulator", lambda env: WEIGHT)
    found = simulators.examined_files({0: tmp_path / "seed-0.safetensors"}, "weight", "dqn", 2)["0"]
    assert (found["seconds"], found["0"]["worst_cell"], found["0"]["mean_return"]) == (12.5, 3.0, 8.0)


# --- the page ------------------------------------------------------------------------------------------


def sample() -> dict[str, Any]:
    """Two environments: on the first the worst case is better than domain randomisation, on the second it is worse."""

    def seeds(*worst: float, seconds: float = 100.0) -> dict[str, Any]:
        def one(x: float) -> dict[str, Any]:
            scores = {"success": 0.5, "mean_return": x + 1, "worst_cell": x, "cvar10": x, "worst_success": 0.0}
            return {"0": scores, "failed": 1, "tested": 36.0, "seconds": seconds}

        return {"settings": "", "seeds": {str(i): one(x) for i, x in enumerate(worst)}, "diverged": []}

    def about(budget: simulators.Budget) -> dict[str, Any]:
        return {
            "steps": budget.steps,
            "episodes": 20,
            "trial_steps": 4000,
            "algorithms": {name: budget.algorithm(name) for name in simulators.AGENTS},
            "problem": "",
            "box": {"torque": [0.5, 1.5]},
            "success_return": -500.0,
        }

    empty = {name: seeds() for name in simulators.AGENTS}
    random = seeds(-7.0)
    del random["seeds"]["0"]["seconds"]
    return {
        "command": "deeprok reproduce --study simulators --seeds 3",
        "episodes": simulators.cell_episodes(Options().episodes),
        "epsilons": [0.0],
        "edges": 0.3,
        "action_noise": 0.1,
        "changes": simulators.CHANGES,
        "baseline": "dr",
        "environments": {env: about(budget) for env, budget in simulators.ENVS.items()},
        "rows": {
            **dict.fromkeys(simulators.ENVS, empty),
            "Acrobot-v1": {
                **empty,
                "nominal": seeds(-5.0, -4.0, -3.0),
                "dr": seeds(1.0, 2.0, 3.0, seconds=150.0),
                "robust": seeds(4.0, 5.0, 6.0, seconds=220.0),
                "posterior": seeds(0.5, 2.0, 3.5),
                "random": random,
            },
            "Hopper-v5": {
                **empty,
                "dr": seeds(1200.0, 1300.0, 1400.0),
                "robust": seeds(100.0, 200.0, 300.0),
                "sb3": seeds(1250.0),
            },
        },
    }


def test_verdicts() -> None:
    found = sample()
    # Welch's interval of means 3 apart, of three values one apart each: ± 2.776 √(2 / 3).
    assert simulators_page.verdict_on(found, "Acrobot-v1").startswith(
        "**In the worst cell RTD-DQN is better than Double-DQN, randomised:** the means differ by 3 (0.733 – 5.27), "
        "and a seed of the former beats one of the latter with probability 100 (100 – 100) %. Deep-RoK is not clearly "
        "better or worse than Double-DQN, randomised: the means differ by 0 ("
    )
    said = simulators_page.verdict_on(found, "Hopper-v5")
    assert said.startswith("**In the worst cell RTD-TD3 is worse than TD3, randomised:** ")
    assert "TD3, randomised has too few seeds to be compared with SB3 TD3, randomised" in said
    assert simulators_page.verdict_on(found, "Pendulum-v1") == ""
    assert simulators_page.summary(found).splitlines() == [
        "- **Worst case** against domain randomisation: above on `Acrobot-v1`; below on `Hopper-v5`.",
        "- **Worst case with a posterior** against domain randomisation: inconclusive on `Acrobot-v1`.",
    ]


def test_page_of_a_sample() -> None:
    found = sample()
    page = simulators_page.page(found)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    # An interval of a worst cell can't leave the range of its seeds.
    assert ["RTD-DQN", "50 (50 – 50)", "6", "5 (4 – 6)", "5", "2.2", "3"] in lines
    assert ["random policy", "50", "-6", "-7", "-7", "–", "1"] in lines
    assert ["TD3, randomised", "50 (50 – 50)", "1301", "1300 (1200 – 1400)", "1300", "–", "3"] in lines
    assert ["`Hopper-v5`", "`torque` 0.5 – 1.5", "50,000", "4,000", "20", "-500"] in lines
    text = " ".join(page.split())
    assert "With 4 comparisons on this page, about 0.2 would be called better or worse by chance" in text
    assert "Simulations that failed in the tests, each an episode that ended there: 13 on `Acrobot-v1`, 7 on" in text
    # 3 (100 + 150 + 220 + 100) + 7 · 100 seconds, and 20 tests of 36 seconds.
    assert "Where the time was taken, training took 0.7 hours of one core and the tests 0.2." in text
    assert "No seed diverged. Not measured yet: nominal model on `LunarLander-v3`," in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    assert [name for name, *_ in simulators_page.short_tables(found)] == ["Acrobot-v1", "Hopper-v5"]


def test_figure_of_a_sample() -> None:
    chart = simulators_page.figures(sample())["worst"]
    acrobot, hopper = chart.axes
    rows = {acrobot: ("posterior", "robust", "dr", "nominal"), hopper: ("sb3", "robust", "dr")}
    for panel, names in rows.items():  # those that were measured there
        labels = [label.get_text() for label in panel.get_yticklabels()]
        assert labels == [simulators_page.ROLES[name] for name in names]
    dots = [line.get_xdata() for line in hopper.lines if line.get_marker() == "."]
    np.testing.assert_allclose(np.concatenate(dots), [1250, 100, 200, 300, 1200, 1300, 1400])
    means = [float(line.get_xdata()[0]) for line in acrobot.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(means, [2, 5, 2, -4])
    assert [line.get_xdata()[0] for line in acrobot.lines if line.get_linestyle() == ":"] == [-7.0]


def test_a_study_without_numbers_has_a_page_and_no_figure() -> None:
    found = sample()
    found["rows"] = {
        env: {name: {"settings": "", "seeds": {}, "diverged": []} for name in simulators.AGENTS}
        for env in simulators.ENVS
    }
    assert simulators_page.figures(found) == {}
    assert "Not measured yet: nominal model; domain randomisation;" in " ".join(simulators_page.page(found).split())


def test_page_is_in_the_documentation_once_it_is_measured() -> None:
    numbers, page = numbers_file(simulators.STUDY, ROOT / "docs"), ROOT / "docs" / "simulators.md"
    assert numbers.exists() == page.exists() == ("simulators.md" in (ROOT / "mkdocs.yml").read_text())
    if numbers.exists():
        found = json.loads(numbers.read_text())
        assert page.read_text() == simulators_page.page(found)
        assert {path.name for path in numbers.parent.iterdir()} == {numbers.name} | {
            f"{name}.{ending}" for name in simulators_page.figures(found) for ending in ("png", "svg")
        }
