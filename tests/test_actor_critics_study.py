"""The study of TD3 and SAC, small: its rows, its exam, stable-baselines3's agents and the page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from deeprok.agents.ensemble import ActorCritic
from deeprok.agents.network import MLP
from deeprok.core.errors import DeeprokError
from deeprok.environments.pendulum import pendulum
from deeprok.evaluation.grid import evaluate
from deeprok.runs.settings import Config, make_config
from studies import actor_critics, actor_critics_page, measured, plan, sb3, sb3_simulators
from studies.__main__ import STUDIES
from studies.engine import Options, numbers_file, write_page
from studies.tables import TITLES

ROOT = Path(__file__).parent.parent
OWN = ("td3", "td3_last", "td3_constant")
KINDS: tuple[sb3_simulators.Kind, ...] = ("td3", "sac")
#: Small networks that learn for a few steps.
FEW = actor_critics.SHARED._replace(hidden=(5, 4), batch_size=8, warm_up=40)


# --- what is compared ----------------------------------------------------------------------------------


def test_agents_have_the_same_effort() -> None:
    assert STUDIES["actor_critics"] is actor_critics.STUDY
    assert list(actor_critics.AGENTS) == list(actor_critics_page._COLOURS)
    assert set(actor_critics.AGENTS) <= set(TITLES)
    configs = {name: actor_critics.comparison(name, 1).rows[0].config(0) for name in OWN}
    for config in configs.values():
        assert (config.algorithm, config.preset, config.env, config.acting) == (
            "td3",
            "default",
            "pendulum",
            "nominal",
        )
        assert (config.steps, config.episodes) == (actor_critics.STEPS, 0)
    assert configs["td3"] == make_config("td3", env="pendulum", steps=actor_critics.STEPS)
    assert configs["td3_last"] == configs["td3"].replace(settle=False, refine_from=0.0)
    assert configs["td3_constant"] == configs["td3_last"].replace(final_rate=1.0, actor_final_rate=1.0)


def test_stable_baselines_has_the_numbers_of_the_preset() -> None:
    config = make_config("td3", env="pendulum")
    its = actor_critics.SHARED.arguments()
    assert its["policy_kwargs"] == {"net_arch": [*config.layers.hidden]}
    assert (its["batch_size"], its["gamma"]) == (config.learner.batch_size, config.discount)
    assert its["learning_starts"] == config.learner.warm_up
    assert (its["train_freq"], its["gradient_steps"]) == (config.learner.train_every, config.learner.updates)
    # One rate for actor and critics, as the library has it, and it falls as theirs does.
    assert config.estimator.learning_rate == config.learner.actor_rate
    assert config.estimator.final_rate == config.learner.actor_final_rate
    rates = [its["learning_rate"](left) for left in (1.0, 0.5, 0.0)]
    np.testing.assert_allclose(rates, config.estimator.learning_rate * np.array([1.0, 0.5, 0.0]))
    constant = actor_critics.SHARED._replace(**actor_critics.AGENTS["sb3_sac_constant"].changes)
    assert constant.rate(0.0) == constant.rate(1.0) == config.estimator.learning_rate
    assert config.learner.action_noise == sb3_simulators.ACTION_NOISE
    assert config.layers.activation == "relu"


def test_the_pendulum_is_gymnasiums() -> None:
    """Its steps are compared in `test_pendulum.py`; here what surrounds them."""
    spec = gymnasium.spec(actor_critics.SIMULATOR)
    made = sb3_simulators.named_simulator(actor_critics.SIMULATOR)
    assert spec.max_episode_steps == made.horizon == pendulum().horizon == 200
    assert made.observation_scale == pendulum().observation_scale
    starts = np.array([made.make().reset(seed, {}) for seed in range(300)])
    expected = jax.vmap(lambda key: pendulum().reset(key, pendulum().nominal)[1])(
        jax.random.split(jax.random.key(0), 300)
    )
    for name, found in (("theirs", starts), ("ours", np.asarray(expected))):
        angles, speeds = np.arctan2(found[:, 1], found[:, 0]), found[:, 2]
        # Uniform: a standard deviation of half the width over √3, within four standard errors.
        assert np.std(angles) == pytest.approx(np.pi / np.sqrt(3), rel=0.15), name
        assert np.std(speeds) == pytest.approx(1 / np.sqrt(3), rel=0.15), name


# --- the exam ------------------------------------------------------------------------------------------


def test_the_return_of_a_motor_that_rests() -> None:
    """The actor is 0 everywhere; another one pushes with all its force."""
    network = ActorCritic(MLP((3, 1), "relu", (1.0,) * 3), MLP((4, 1), "relu", (1.0,) * 4))
    rest = np.zeros(network.num_weights, np.float32)
    push = rest.copy()
    push[3] = 50.0  # the actor's bias
    found = actor_critics.mean_returns(network, {0: rest, 7: push, 9: rest}, 6)
    assert found[0] == found[9] != found[7]  # the same starts for all seeds
    env = pendulum()
    returns = []
    # The starts of `play_episodes`, followed by the textbook's steps.
    keys = jax.random.split(jax.random.split(jax.random.key(actor_critics._EXAM_SEED), 3)[0], 6)
    for key in keys:
        angle, speed = np.asarray(env.reset(key, env.nominal)[0], float)
        total = 0.0
        for _ in range(200):
            from_upright = (angle + np.pi) % (2 * np.pi) - np.pi
            total -= from_upright**2 + 0.1 * speed**2
            speed = np.clip(speed + 0.05 * 15 * np.sin(angle), -8, 8)
            angle += 0.05 * speed
        returns.append(total)
    assert found[0] == pytest.approx(np.mean(returns), rel=0.02)


def test_seconds_are_those_of_the_whole_training(monkeypatch: pytest.MonkeyPatch) -> None:
    made = actor_critics.make_program
    advanced: list[int] = []

    def counted(config: Config) -> Any:
        program = made(config)

        def advance(states: Any, index: int) -> Any:
            advanced.append(index)
            return program.advance(states, index)

        return program._replace(advance=advance)

    monkeypatch.setattr(actor_critics, "make_program", counted)
    config = make_config("td3", env="pendulum", hidden=(4,), batch_size=4, chunk_steps=100, steps=250, warm_up=50)
    found = actor_critics.training_seconds(config, [3, 5])
    assert advanced == [0, 1, 2] * 3  # once to compile
    assert list(found) == [3, 5]
    assert all(0 < seconds < 5 for seconds in found.values())


# --- stable-baselines3 ---------------------------------------------------------------------------------


def made_environment() -> Any:
    return sb3_simulators.make_environment(sb3_simulators.named_simulator("Pendulum-v1"), 0, None)


def test_its_environment_is_the_nominal_pendulum() -> None:
    environment = made_environment()
    plain = gymnasium.make("Pendulum-v1").unwrapped
    obs, _ = environment.reset()
    assert environment.unwrapped.model == {}
    plain.reset()
    plain.state = np.array([np.arctan2(obs[1], obs[0]), 8.0 * obs[2]])
    for t in range(200):
        action = np.array([2.0 * np.sin(0.1 * t)], np.float32)
        obs, reward, terminated, truncated, _ = environment.step(action)
        expected, cost, *_ = plain.step(action)
        np.testing.assert_allclose(obs, expected / [1, 1, 8], atol=1e-3)
        assert reward == pytest.approx(cost, rel=1e-2, abs=1e-2)
        assert not terminated
        assert truncated == (t == 199)


class Layers:
    """Acts like an agent of stable-baselines3, by numpy: tanh of a network with two hidden layers, times 2."""

    def __init__(self, theta: np.ndarray) -> None:
        self.theta = theta

    def predict(self, x: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        assert deterministic
        place = 0
        for inputs, outputs in itertools.pairwise((3, *FEW.hidden, 1)):
            weights = self.theta[place:][: inputs * outputs].reshape(inputs, outputs)
            bias = self.theta[place + inputs * outputs :][:outputs]
            x, place = x @ weights + bias, place + (inputs + 1) * outputs
            x = np.tanh(x) if outputs == 1 else np.maximum(x, 0)
        return 2.0 * x, None


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_act_otherwise_are_refused(kind: sb3_simulators.Kind) -> None:
    env = sb3_simulators.named_simulator("Pendulum-v1")
    network = sb3_simulators.network_of(env, kind, FEW)
    theta = np.random.default_rng(0).normal(size=network.num_weights).astype(np.float32)
    sb3_simulators.check_actions(Layers(theta), env, network, theta)
    with pytest.raises(DeeprokError, match="acts otherwise"):
        sb3_simulators.check_actions(Layers(theta + 0.1), env, network, theta)


def test_rows_of_stable_baselines_stay_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sb3, "is_installed", lambda: False)
    rows = {name: actor_critics.plan_row(Options(seeds=7), name) for name in actor_critics.AGENTS}
    assert {name: len(row.seeds) for name, row in rows.items() if row.seeds} == dict.fromkeys(OWN, 7)
    assert len({row.settings for row in rows.values()}) == len(rows)
    monkeypatch.setattr(sb3, "is_installed", lambda: True)
    again = actor_critics.plan_row(Options(seeds=7), "sb3_sac")
    assert (list(again.seeds), again.settings) == ([*range(7)], rows["sb3_sac"].settings)


# --- what is done again and what is not ----------------------------------------------------------------


def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, work, made = tmp_path / "actor_critics.json", list[float](), list[str]()

    def planned(options: Options, name: str) -> measured.Planned:
        def examine(seeds: Sequence[int]) -> Any:
            made.append(f"{name}: {[*seeds]}")
            return {str(seed): {"mean_return": -1.0, "seconds": 2.0} for seed in seeds}

        return measured.Planned(name, range(options.seeds), lambda seeds: [*seeds], examine, 3.0, 4.0)

    monkeypatch.setattr(actor_critics, "plan_row", planned)

    def measure(seeds: int, episodes: int = 500, **chosen: Any) -> list[str]:
        made.clear()
        work.clear()
        options = Options(seeds=seeds, out=tmp_path, episodes=episodes)
        actor_critics.measure(options, path, lambda what, part: work.append(part), **chosen)
        if not chosen:
            assert sum(work) == actor_critics._work(options) == len(actor_critics.AGENTS) * seeds * 7.0
        return list(made)

    assert measure(1, agents=["sb3_sac"]) == ["sb3_sac: [0]"]
    assert measure(1) == [f"{name}: [0]" for name in actor_critics.AGENTS if name != "sb3_sac"]
    assert measure(2) == [f"{name}: [1]" for name in actor_critics.AGENTS]
    assert measure(2) == []
    assert measure(2, episodes=499) == [f"{name}: [0, 1]" for name in actor_critics.AGENTS]


@pytest.mark.slow
def test_a_small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains for some hundred steps, is interrupted and goes on; the exam is that of `deeprok.evaluate`."""
    monkeypatch.setattr(sb3, "is_installed", lambda: False)

    def small(algorithm: str, preset: str, **changes: Any) -> Config:
        tiny: dict[str, Any] = dict(hidden=(4,), batch_size=4, warm_up=50, chunk_steps=100, steps=200, trial_models=2)
        return make_config(algorithm, preset, **{**changes, **tiny})

    monkeypatch.setattr(plan, "make_config", small)
    report, options = tmp_path / "report", Options(seeds=1, out=tmp_path, episodes=30, jobs=1)
    path = numbers_file(actor_critics.STUDY, report)

    def measure(*agents: str) -> dict[str, Any]:
        return actor_critics.measure(options, path, lambda what, part: None, agents=agents)["rows"]["pendulum"]

    first = measure("td3_last")
    rows = measure(*actor_critics.AGENTS)
    assert rows["td3_last"] == first["td3_last"]
    assert [len(rows[name]["seeds"]) for name in actor_critics.AGENTS] == [1, 1, 1, 0, 0, 0, 0]
    assert json.loads(path.read_text())["rows"]["pendulum"] == rows
    folder = tmp_path / "actor_critics" / "pendulum" / "td3_last" / "seed-0"
    expected = evaluate(folder, {"mass": [1.0]}, 30, 0.0, keep="last", seed=actor_critics._EXAM_SEED)
    scores = rows["td3_last"]["seeds"]["0"]
    assert scores["mean_return"] == pytest.approx(float(expected.mean_return.item()), rel=1e-4)
    assert scores["seconds"] > 0
    write_page(actor_critics.STUDY, report)
    page = " ".join((report / "actor_critics.md").read_text().split())
    assert "stable-baselines3 is not among the rows" in page
    assert all((report / "actor_critics" / f"returns.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))


# --- the page ------------------------------------------------------------------------------------------


def sample() -> dict[str, Any]:
    """TD3 is like that of stable-baselines3, SAC is worse, and one row is missing."""

    def seeds(*returns: float, seconds: float = 2.0) -> dict[str, Any]:
        its = {str(i): {"mean_return": x, "seconds": seconds} for i, x in enumerate(returns)}
        return {"settings": "", "seeds": its, "diverged": []}

    return {
        "command": "deeprok reproduce --study actor_critics --seeds 3",
        "env": "pendulum",
        "simulator": "Pendulum-v1",
        "horizon": 200,
        "steps": 20_000,
        "episodes": 500,
        "shared": actor_critics.SHARED._asdict(),
        "action_noise": 0.1,
        "trial_steps": 8000,
        "refine_from": 0.6,
        "rows": {
            "pendulum": {
                "td3": seeds(-151.0, -155.0, -159.0),
                "td3_last": seeds(),
                "td3_constant": seeds(-150.0, -152.0, -154.0),
                "sb3_td3": seeds(-200.0, seconds=31.0),
                "sb3_sac": seeds(),
                "sb3_td3_constant": seeds(-149.0, -152.0, -155.0, seconds=30.0),
                "sb3_sac_constant": seeds(-168.0, -170.0, -172.0, seconds=50.0),
            }
        },
    }


def test_verdict() -> None:
    match, choice = actor_critics_page.verdict(sample()).splitlines()
    assert match.startswith(
        "- **Does `td3` match the TD3 of stable-baselines3?** TD3, constant rate is not clearly better or worse than "
        # Variances 4 and 9 over three seeds each: a standard error of √(13 / 3) and 3.49 degrees of freedom.
        "SB3 TD3, constant rate: the means differ by 0 (-6.13 – 6.13), and a seed of the former beats one of the "
        "latter with probability 50 ("
    )
    assert "TD3 has too few seeds to be compared with SB3 TD3." in match
    assert choice.startswith(
        "- **TD3 or SAC?** SB3 SAC, constant rate is worse than SB3 TD3, constant rate: the means differ by -18 ("
    )
    assert "with probability 0 (0 – 0) %." in choice
    assert choice.count("a seed of the former") == 1  # nothing of the row that is missing


def test_page_of_a_sample() -> None:
    found = sample()
    page = actor_critics_page.page(found)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    header, _, *rest = lines
    names = ["TD3", "TD3, constant rate", "SB3 TD3", "SB3 TD3, constant rate", "SB3 SAC, constant rate"]
    assert [line[0] for line in rest] == names
    assert dict(zip(header, rest[4], strict=True)) == {
        "agent": "SB3 SAC, constant rate",
        "mean return": "-170.0",
        "95 % interval": "-172.0 – -168.0",
        "worst seed": "-172.0",
        "better than SB3 TD3, constant rate %": "0 (0 – 0)",
        "processor seconds": "50.0",
        "seeds": "3",
    }
    assert rest[3][4] == "–"  # itself
    assert rest[2][1:] == ["-200.0", "–", "-200.0", "0", "31.0", "1"]
    text = " ".join(page.split())
    # 6 · 2 + 3 · (30 + 50) + 31 seconds.
    assert (
        "Training took 5 minutes of one core. No seed diverged. Not measured yet: TD3, last weights; SB3 SAC." in text
    )
    assert "for 20,000 environment steps" in text
    assert (
        "hidden layers of 64 and 64 units, mini-batches of 64, a learning rate of 0.001 that falls linearly to 0, "
        in text
    )
    assert "1,000 steps of random actions before the first update, and then an update for each step." in text
    assert "tried every 8,000 steps on held-out models from the box" in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    ((title, _, *short),) = actor_critics_page.short_tables(found)
    assert title == "pendulum, 20,000 steps"
    assert [line[0] for line in short] == [name for name in actor_critics.AGENTS if name not in ("td3_last", "sb3_sac")]


def test_figure_of_a_sample() -> None:
    (panel,) = actor_critics_page.figures(sample())["returns"].axes
    labels = [label.get_text() for label in panel.get_yticklabels()]
    names = ["TD3", "TD3, constant rate", "SB3 TD3", "SB3 TD3, constant rate", "SB3 SAC, constant rate"]
    assert labels == names[::-1]
    dots = [line.get_xdata() for line in panel.lines if line.get_marker() == "."]
    np.testing.assert_allclose(
        np.concatenate(dots), [-168, -170, -172, -149, -152, -155, -200, -150, -152, -154, -151, -155, -159]
    )
    means = [float(line.get_xdata()[0]) for line in panel.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(means, [-170, -152, -200, -152, -155])


def test_a_study_without_numbers_has_a_page_and_no_figure() -> None:
    found = sample()
    for row in found["rows"]["pendulum"].values():
        row["seeds"] = {}
    assert actor_critics_page.figures(found) == {}
    assert actor_critics_page.verdict(found) == ""
    assert "it needs the extra `bench`, which was not installed" in " ".join(actor_critics_page.page(found).split())


def test_page_is_in_the_documentation_once_it_is_measured() -> None:
    numbers, page = numbers_file(actor_critics.STUDY, ROOT / "docs"), ROOT / "docs" / "actor_critics.md"
    assert numbers.exists() == page.exists() == ("actor_critics.md" in (ROOT / "mkdocs.yml").read_text())
    if numbers.exists():
        found = json.loads(numbers.read_text())
        assert page.read_text() == actor_critics_page.page(found)
        assert {path.name for path in numbers.parent.iterdir()} == {numbers.name} | {
            f"{name}.{ending}" for name in actor_critics_page.figures(found) for ending in ("png", "svg")
        }
        for name in OWN:
            row = found["rows"]["pendulum"][name]
            assert row["settings"] == actor_critics.comparison(name, 1).rows[0].config(0).digest()
