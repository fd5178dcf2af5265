"""Stress tests: the search, margins, sensitivities, and what is reported of them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import probe_envs
import pytest
from finished_runs import GOOD, LEFT, write_run
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from test_disturbances import PUSH, PUSHES
from test_host_disturbances import PUSHES as HOST_PUSHES

import deeprok
from deeprok.cli import stress as command
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Environment, EnvironmentPart, EpisodeSettings, cartpole
from deeprok.environments.disturbable import disturbable, disturbable_parameters
from deeprok.environments.wrappers import with_memory
from deeprok.evaluation.play import play_episodes
from deeprok.evaluation.stress import player as player_module
from deeprok.evaluation.stress import stress as stress_module
from deeprok.evaluation.stress.margin import ROUNDS, SECTIONS, Direction, Margin, held_fractions, margins
from deeprok.evaluation.stress.player import CHOICE, EPISODES, LINES, REPORT, SEARCH, Player, Scores, make_player
from deeprok.evaluation.stress.report import print_stress
from deeprok.evaluation.stress.result import Model, StressedRun, judge, make_rate
from deeprok.evaluation.stress.search import Tried, least_budget, make_design, search
from deeprok.evaluation.stress.sensitivity import indices, sensitivity_of
from deeprok.evaluation.stress.space import Dimension, Space, enclosing, make_space
from deeprok.evaluation.stress.stress import BUDGET
from deeprok.training.train import train as train_run

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("probes")


def cube(dimensions: int, low: float = 0.0, high: float = 1.0) -> Space:
    """A space whose box is in its middle."""
    inner = (low + (high - low) / 4, high - (high - low) / 4)
    return Space(tuple(Dimension(f"x{i}", "", inner, low, high, False) for i in range(dimensions)))


def exactly(success: Callable[[np.ndarray], np.ndarray]) -> Player:
    """A player that knows the success of models [N, D]; the return is the same."""

    def player(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        found = np.asarray(success(models), float)
        return Scores(found, found)

    return player


def drawn(success: Callable[[np.ndarray], np.ndarray], seed: int) -> Player:
    """A player that plays episodes, with common random numbers; the return tells nothing."""

    def player(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        chances = np.random.default_rng((seed, purpose)).random(blocks * EPISODES)
        found = (chances < np.asarray(success(models), float)[:, None]).mean(axis=1)
        return Scores(found, np.zeros(len(models)))

    return player


# --- what is searched ---------------------------------------------------------------------------------------------

PARAMETERS = disturbable_parameters(cartpole().nominal, 0.0, 0)


def test_a_margin_widens_each_range_by_a_part_of_its_width() -> None:
    box = {"gravity": (8.0, 12.0), "pole_length": (0.2, 1.4), "sensor_noise": (0.02, 0.1), "action_delay": (1.0, 4.0)}
    space = make_space(box, 0.5, PARAMETERS)
    assert space.names == list(box)
    ends = [(each.low, each.high) for each in space.dimensions]
    # −0.4 m is no length: a tenth of the box's lower end is the least; noise ends at 0; delays are whole numbers.
    np.testing.assert_allclose(ends, [(6.0, 14.0), (0.02, 2.0), (0.0, 0.14), (0.0, 6.0)], atol=1e-12)
    assert [each.box for each in space.dimensions] == list(box.values())
    assert [each.unit for each in space.dimensions] == ["m/s²", "m", "", "steps"]
    same = make_space(box, 0.0, PARAMETERS)
    assert [(each.low, each.high) for each in same.dimensions] == list(box.values())


@given(st.floats(1e-3, 10.0), st.floats(1e-3, 10.0), st.floats(0.0, 5.0))
def test_what_must_be_positive_stays_so(low: float, width: float, margin: float) -> None:
    (each,) = make_space({"cart_mass": (low, low + width)}, margin, PARAMETERS).dimensions
    assert 0 < each.low <= low < low + width <= each.high
    assert each.low == pytest.approx(max(low - margin * ((low + width) - low), low / 10))


def test_a_margin_does_not_go_beyond_0() -> None:
    part = ENVIRONMENTS["road"]
    nominal = part.make(part.settings()).nominal
    assert make_space({"drag": (0.0, 0.004)}, 0.5, nominal).dimensions[0][3:5] == (0.0, 0.006)
    assert make_space({"drag": (-0.004, 0.0)}, 0.5, nominal).dimensions[0][3:5] == (-0.006, 0.0)
    assert make_space({"drag": (-0.002, 0.002)}, 0.5, nominal).dimensions[0][3:5] == (-0.004, 0.004)


def test_places_become_models() -> None:
    space = make_space({"gravity": (8.0, 12.0), "action_delay": (1.0, 2.0)}, 0.5, PARAMETERS)
    places = np.array([[0.0, 0.0], [1.0, 1.0], [0.25, 0.24], [0.5, 0.26], [0.75, 0.74], [0.1, 0.76]])
    found = space.values(places)
    np.testing.assert_allclose(found[:, 0], [6.0, 14.0, 8.0, 10.0, 12.0, 6.8])
    np.testing.assert_array_equal(found[:, 1], [0, 3, 0, 1, 2, 3])  # a quarter of the cube for each


def test_several_boxes_are_held_by_one() -> None:
    boxes: list[Any] = [{"a": (0.0, 1.0), "b": (2.0, 3.0)}, {"c": (5.0, 6.0), "a": (-1.0, 0.5)}]
    assert enclosing(boxes) == {"a": (-1.0, 1.0), "b": (2.0, 3.0), "c": (5.0, 6.0)}


# --- the search ---------------------------------------------------------------------------------------------------


def in_pocket(seed: int, share: float, dimensions: int) -> Callable[[np.ndarray], np.ndarray]:
    """Whether models lie in a cube of this share of the unit cube, somewhere in it."""
    side = share ** (1 / dimensions)
    corner = np.random.default_rng((seed, 17)).random(dimensions) * (1 - side)
    return lambda models: np.all((models >= corner) & (models <= corner + side), axis=1)


def test_a_pocket_of_a_hundredth_of_a_box_is_found() -> None:
    """In 19 of 20 tries at least; outside of it all models are alike, so nothing leads there."""
    found = 0
    for seed in range(20):
        inside = in_pocket(seed, 0.01, 4)
        tried = search(
            cube(4), drawn(lambda models, inside=inside: np.where(inside(models), 0.1, 1.0), seed), BUDGET, seed
        )
        assert len(tried.models) == BUDGET
        found += bool(inside(tried.worst(1))[0])
    assert found >= 19


def test_the_search_follows_returns_where_success_is_the_same() -> None:
    """A millionth of the cube, to which only the return leads: no sample of this size would meet it."""
    for seed in range(5):
        goal = 0.1 + 0.8 * np.random.default_rng(seed).random(4)

        def player(models: np.ndarray, purpose: int, blocks: int, goal: np.ndarray = goal) -> Scores:
            distance = np.abs(models - goal).max(axis=1)
            return Scores(np.where(distance < 0.0158, 0.0, 1.0), 1000 * distance)

        tried = search(cube(4), player, BUDGET, seed)
        assert tried.success.min() == 0
        assert np.abs(tried.worst(1) - goal).max() < 0.0158


def test_success_comes_before_return() -> None:
    tried = Tried(
        np.arange(5.0)[:, None], np.array([0.5, 0.25, 0.25, 0.25, 1.0]), np.array([-9, 3, np.nan, 2, -99.0]), 0
    )
    assert tried.worst(4)[:, 0].tolist() == [2, 3, 1, 0]  # a return that is no number is worse than any


@pytest.mark.parametrize(("budget", "dimensions"), [(96, 1), (192, 4), (300, 3), (1000, 2), (704, 20)])
def test_the_budget_is_used_up_exactly(budget: int, dimensions: int) -> None:
    def run(seed: int) -> Tried:
        return search(cube(dimensions), exactly(lambda models: models.mean(axis=1)), budget, seed)

    tried, again, other = run(3), run(3), run(4)
    assert len(tried.models) == budget >= least_budget(dimensions)
    assert 2 * tried.sample * (dimensions + 2) <= budget
    np.testing.assert_array_equal(tried.models, again.models)
    assert not np.array_equal(tried.models, other.models)
    assert ((tried.models >= 0) & (tried.models <= 1)).all()


def test_a_search_where_nothing_differs_fills_the_space() -> None:
    tried = search(cube(2), exactly(lambda models: np.ones(len(models))), 1024, 0)
    assert len(np.unique(tried.models, axis=0)) > 900
    counts, _, _ = np.histogram2d(*tried.models.T, bins=4, range=[(0, 1)] * 2)
    assert counts.min() > 40  # of 64


def test_the_design_is_two_samples_and_their_mixtures() -> None:
    n, dimensions = 16, 3
    a, b, *mixed = make_design(n, dimensions, np.random.default_rng(0)).reshape(dimensions + 2, n, dimensions)
    for sample in (a, b):  # of a Sobol sequence: one in each sixteenth of every side
        assert [sorted(np.floor(n * column).astype(int)) for column in sample.T] == [list(range(n))] * dimensions
    for i, sample in enumerate(mixed):
        for j in range(dimensions):
            np.testing.assert_array_equal(sample[:, j], (b if i == j else a)[:, j])


@pytest.fixture(scope="module")
def planted() -> Any:
    """The script that compares searches."""
    path = Path(__file__).parents[1] / "benchmarks" / "planted_failures.py"
    spec = spec_from_file_location("planted_failures", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_searches_are_compared_as_the_page_says(planted: Any) -> None:
    root = Path(__file__).parents[1]
    stored = json.loads((root / "benchmarks" / "planted_failures.json").read_text())
    assert planted.table(stored) in (root / "docs" / "benchmarks.md").read_text()
    assert list(stored["searches"]) == list(planted.SEARCHES)
    ours, *others = [row["found"] for row in stored["searches"].values()]
    assert ours["pocket of 1 %"] >= 19
    assert sum(ours.values()) >= max(sum(found.values()) for found in others)
    for failure in ("funnel", "ridge"):
        assert planted.tries_found(planted.stress, failure, stored["budget"], 3) == 3


# --- sensitivities ------------------------------------------------------------------------------------------------


def of_function(function: Callable[[np.ndarray], np.ndarray], dimensions: int, sample: int = 4096) -> Any:
    return indices(function(make_design(sample, dimensions, np.random.default_rng(1))), dimensions)


def test_indices_of_the_ishigami_function() -> None:
    """f = sin x + a sin² y + b z⁴ sin x with x, y, z in ±π; its indices are known."""
    a, b = 7.0, 0.1

    def ishigami(places: np.ndarray) -> np.ndarray:
        x, y, z = (2 * np.pi * places - np.pi).T
        return np.sin(x) + a * np.sin(y) ** 2 + b * z**4 * np.sin(x)

    alone, together = 0.5 * (1 + b * np.pi**4 / 5) ** 2, 8 * b**2 * np.pi**8 / 225
    variance = alone + a**2 / 8 + together
    found = of_function(ishigami, 3)
    np.testing.assert_allclose([one.first for one in found], [alone / variance, a**2 / 8 / variance, 0], atol=0.02)
    total = np.array([alone + together, a**2 / 8, together]) / variance
    np.testing.assert_allclose([one.total for one in found], total, atol=0.02)
    for one, truth in zip(found, total, strict=True):
        assert one.low < one.total < one.high < one.low + 0.2
        assert one.low < truth < one.high


def test_indices_of_a_linear_function_and_their_intervals() -> None:
    """Shares of the squared coefficients, first and total alike; intervals of 95 % hold them in most samples."""
    coefficients = np.array([3.0, 2.0, 1.0, 0.0])
    truth = coefficients**2 / 14
    held = []
    for seed in range(10):
        design = make_design(64, 4, np.random.default_rng(seed))
        found = indices(design @ coefficients + 100.0, 4)
        held += [one.low <= t <= one.high for one, t in zip(found, truth, strict=True)]
        np.testing.assert_allclose([one.total for one in found], truth, atol=0.1)
        assert found == indices(design @ coefficients + 100.0, 4)
        assert found[3].total == pytest.approx(0.0, abs=1e-12)
    assert np.mean(held) > 0.85


def test_indices_of_what_does_not_vary_and_of_one_parameter() -> None:
    assert {tuple(one) for one in of_function(lambda places: np.ones(len(places)), 3, 16)} == {(0.0,) * 6}
    (one,) = of_function(lambda places: np.sin(9 * places[:, 0]), 1, 16)
    assert (one.first, one.total) == (1.0, 1.0)


def test_indices_are_of_returns_where_success_is_constant() -> None:
    def made(success: Callable[[np.ndarray], np.ndarray]) -> Tried:
        def player(models: np.ndarray, purpose: int, blocks: int) -> Scores:
            return Scores(np.asarray(success(models), float), 5 * models[:, 1])

        return search(cube(2), player, 512, 0)

    of, found = sensitivity_of(made(lambda models: np.ones(len(models))))
    assert of == "mean_return"
    np.testing.assert_allclose([one.total for one in found], [0, 1], atol=0.1)
    of, found = sensitivity_of(made(lambda models: models[:, 0] > 0.5))
    assert of == "success"
    np.testing.assert_allclose([one.total for one in found], [1, 0], atol=0.1)


def test_indices_are_of_returns_where_success_varies_in_a_model_or_two() -> None:
    """The variance is that of the samples A and B; if success is the same there, its indices would all be 0."""

    def trial(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        return Scores(np.zeros(len(models)), 5 * models[:, 1])

    tried = search(cube(2), trial, 512, 0)
    tried.success[2 * tried.sample] = 1.0
    of, found = sensitivity_of(tried)
    assert of == "mean_return"
    np.testing.assert_allclose([one.total for one in found], [0, 1], atol=0.1)


# --- margins ------------------------------------------------------------------------------------------------------

#: A line is known to so much of its length.
RESOLUTION = 1 / SECTIONS**ROUNDS


def test_margins_are_where_success_falls_below_the_threshold() -> None:
    """Success is 1 − |x − 3| / 4 − (y − 3)₊² / 10: below 0.9 from x = 2.6, x = 3.4 and y = 4 on."""

    def success(models: np.ndarray) -> np.ndarray:
        x, y, _ = models.T
        return 1 - np.abs(x - 3) / 4 - np.maximum(y - 3, 0) ** 2 / 10

    nominal, worst = np.array([3.0, 3.0, 3.0]), np.array([9.0, 3.0, 0.0])
    found, direction = margins(cube(3, 0.0, 10.0), nominal, worst, exactly(success), 0.9, 1)
    assert found["x0"].low == pytest.approx(2.6, abs=3 * RESOLUTION)
    assert found["x0"].high == pytest.approx(3.4, abs=7 * RESOLUTION)
    assert found["x1"] == (None, pytest.approx(4.0, abs=7 * RESOLUTION))
    assert found["x2"] == (None, None)
    assert found["x0"].low >= 2.6  # where success still holds
    assert direction.fraction == pytest.approx(0.4 / 6, abs=RESOLUTION)
    assert direction.parameters is not None
    np.testing.assert_allclose([*direction.parameters.values()], nominal + direction.fraction * (worst - nominal))


def test_a_margin_ends_where_success_falls_first() -> None:
    """It is no bisection: success falls between 0.3 and 0.5 and comes back."""
    space, start = cube(1), np.zeros(1)
    player = exactly(lambda models: np.where((models[:, 0] > 0.3) & (models[:, 0] < 0.5), 0.0, 1.0))
    (held,) = held_fractions(start, np.ones((1, 1)), space, player, 0.5, 1)
    assert held == pytest.approx(0.3, abs=RESOLUTION)


def test_a_nominal_model_that_fails_has_no_margin() -> None:
    found, direction = margins(cube(2), np.full(2, 0.5), np.ones(2), exactly(lambda m: 0 * m[:, 0]), 0.9, 1)
    assert found == {"x0": (0.5, 0.5), "x1": (0.5, 0.5)}
    assert direction == (0.0, {"x0": 0.5, "x1": 0.5})
    found, _ = margins(cube(2), np.array([0.0, 1.0]), np.ones(2), exactly(lambda m: 0 * m[:, 0]), 0.9, 1)
    assert found == {"x0": (0.0, 0.0), "x1": (1.0, 1.0)}  # also at an end of the space


def test_margins_from_a_nominal_model_outside_of_the_space() -> None:
    """Downwards there is nothing to search; upwards the line begins at the nominal value."""
    player = exactly(lambda models: models[:, 0] < 0.5)
    found, _ = margins(cube(1), np.array([-1.0]), np.ones(1), player, 0.9, 1)
    assert found["x0"] == (None, pytest.approx(0.5, abs=2 * RESOLUTION))


# --- noise and delay as parameters --------------------------------------------------------------------------------


def push(obs: jax.Array) -> jax.Array:
    return (obs[:, 0] > 0).astype(int)


def returns_of(env: Any, models: dict[str, float], act: Any = push, episodes: int = 2000) -> np.ndarray:
    same = {name: jnp.full(episodes, value) for name, value in models.items()}
    return np.asarray(jax.jit(lambda key: play_episodes(env, act, same, key, 0.0))(jax.random.key(5)))


def probe(**settings: Any) -> Environment:
    env = deeprok.make_config("dqn", "tuned", env="pushes", horizon=10, **settings).make_env()
    assert isinstance(env, Environment)
    return env


def test_without_noise_and_delay_it_is_the_environment_itself() -> None:
    env = cartpole(horizon=50)
    models = {"pole_length": 0.3, "initial_range": 0.2}

    def act(obs: jax.Array) -> jax.Array:
        return (obs[:, 2] > 0).astype(int)  # towards where the pole leans, which holds it for a while

    plain, same = (returns_of(each, models, act, 50) for each in (env, disturbable(env, 0.0, 0, 3)))
    assert np.mean(plain == same) > 0.95  # but for what rounding in two programs may change
    assert len(set(plain)) > 5
    late = returns_of(disturbable(env, 0.0, 0, 3), models | {"action_delay": 3.0}, act, 50)
    assert late.mean() < plain.mean()


@pytest.mark.parametrize("memory", [0, 2])
def test_models_may_differ_by_noise_and_delay(memory: int) -> None:
    """Each of d late steps is a coin; the one is seen with a deviation of twice the noise."""
    env = disturbable(with_memory(probe(), memory) if memory else probe(), 0.0, 0, 4)
    for delay in (0, 1, 4):
        found = returns_of(env, {"action_delay": float(delay), "strength": 3.0})
        assert found.mean() == pytest.approx(3 * (10 - delay / 2), abs=0.15)
        assert found.max() == 30
    noisy = returns_of(env, {"sensor_noise": 0.5, "action_delay": 0.0})
    assert noisy.mean() == pytest.approx(10 * norm.cdf(1.0), rel=0.03)


def test_the_runs_own_noise_and_delay_are_nominal() -> None:
    env = disturbable(probe(), 0.5, 2, 2)
    assert [float(getattr(env.nominal, name)) for name in ("strength", "sensor_noise", "action_delay")] == [1, 0.5, 2]
    expected = 2 * 0.5 + 8 * norm.cdf(1.0)
    assert returns_of(env, {"strength": 1.0}).mean() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("memory", [0, 2])
def test_simulators_have_the_noise_and_delay_of_their_model(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    part = EnvironmentPart(EpisodeSettings, lambda settings: HOST_PUSHES._replace(horizon=settings.horizon))
    monkeypatch.setitem(ENVIRONMENTS._entries, "host_pushes", part)
    config = deeprok.make_config("rtd_dqn", "tuned", env="host_pushes", memory=memory)
    env: Any = disturbable(config.make_env(), 0.0, 0, 3)
    simulator = env.make()
    actions, first = [1, 0, 0, 1, 1, 0, 1], []
    for delay in (2, 0, 3):
        for seed in range(40):
            simulator.reset(seed, {"action_delay": float(delay), "strength": 2.0})
            outcomes = [simulator.step(np.int32(action)) for action in actions]
            done = [float(outcome.obs[1]) for outcome in outcomes]
            assert done[delay:] == actions[: len(actions) - delay]
            np.testing.assert_array_equal([float(outcome.reward) for outcome in outcomes], 2 * np.array(done))
            first.append(done[0])
    assert 0.2 < np.mean(first[80:]) < 0.8  # random until the first action arrives
    starts = np.stack([simulator.reset(seed, {"sensor_noise": 0.1})[:3] for seed in range(500)])
    np.testing.assert_allclose(starts.std(axis=0), [0.2, 0.1, 0.1], rtol=0.15)


# --- playing ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stress")


@pytest.fixture
def pushing(folder: Path, probes: None) -> Path:
    """A run that pushes if and only if the first observation is positive; a success is ten pushes of strength 1."""
    path = folder / "pushing"
    return path if path.exists() else write_run(path, "dqn", **PUSHES, horizon=10)


def test_purposes_have_random_numbers_of_their_own(pushing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def player(*_: Any) -> Any:
        def play(weights: Any, models: Any, epsilon: float, seed: int) -> np.ndarray:
            assert epsilon == 0
            seen.append(seed)
            return np.zeros((len(models["strength"]), EPISODES))

        return play

    monkeypatch.setattr(player_module, "cell_player", player)
    run, work = deeprok.load(pushing), list[float]()
    player = make_player(run, run.env, ["strength"], 1, work.append)
    for purpose, blocks in ((SEARCH, 1), (CHOICE, 8), (REPORT, 32), (LINES, 8)):
        assert player(np.ones((3, 1)), purpose, blocks).success.shape == (3,)
    assert len(set(seen)) == len(seen) == 49
    assert sum(work) == 3 * 49
    first = seen[:]
    make_player(run, run.env, ["strength"], 2, work.append)(np.ones((300, 1)), SEARCH, 1)
    assert len(seen) == 52  # in three parts, with the same numbers
    assert len(set(seen[49:])) == 1
    assert seen[-1] not in first


def test_scores_are_those_of_each_model(pushing: Path) -> None:
    run = deeprok.load(pushing)
    player = make_player(run, run.env, ["strength", "bias"], 0, lambda part: None)
    strengths = np.linspace(0.5, 1.5, 200)
    scores = player(np.stack([strengths, np.zeros(200)], axis=1), SEARCH, 2)
    np.testing.assert_allclose(scores.mean_return, 10 * strengths, rtol=1e-5)
    np.testing.assert_array_equal(scores.success, strengths > 0.95)


# --- the whole ----------------------------------------------------------------------------------------------------


def test_what_is_found_is_what_follows_by_hand(pushing: Path) -> None:
    """Ten pushes must earn more than 9.5; each late step is a coin, and noise hides the one that tells to push."""
    parts: list[float] = []
    box = {"strength": (0.8, 1.2), "sensor_noise": (0.0, 0.3), "action_delay": (0.0, 2.0)}
    found = deeprok.stress(pushing, box=box, margin=0.0, seed=3, advance=parts.append)
    assert math.isclose(sum(parts), 1.0)
    assert min(parts) >= 0
    (run,) = found.runs
    assert run.nominal.success == make_rate(1.0, 1024)
    assert run.nominal.mean_return == pytest.approx(10.0)
    assert run.worst.success.value == 0
    assert run.worst.parameters["strength"] < 0.95 or run.worst.parameters["action_delay"] > 0
    assert found.margin["strength"].low == pytest.approx(0.95, abs=0.001)
    assert found.margin["strength"].high is None
    assert found.margin["action_delay"] == (None, 0.0)
    noise = 1 / (2 * norm.ppf(0.9**0.1))  # ten times the right decision, with probability 0.9
    assert found.margin["sensor_noise"].high == pytest.approx(noise, rel=0.1)
    # It fails below a strength of 0.95, that is on 3/8 of the models, and with a delay, on 2/3 of the others, unless
    # the strength makes up for a lost push: 9 · 1.0556 are 9.5.
    assert run.failing.low > 3 / 8 + 5 / 8 * 0.2
    assert set(found.sensitivity) == set(box)
    assert [*found.sensitivity.values()] == sorted(found.sensitivity.values(), key=lambda one: -one.total)


def test_success_is_that_of_an_evaluation_with_other_wrappers(pushing: Path) -> None:
    found = deeprok.stress(pushing, box="sensor_noise=0.2:0.3,action_delay=0:1", margin=0.0, budget=1024)
    worst = found.worst
    assert worst.parameters["action_delay"] == 1
    assert worst.parameters["sensor_noise"] > 0.28
    settings = {name: worst.parameters[name] for name in ("sensor_noise",)} | {"action_delay": 1}
    played = deeprok.evaluate(pushing, {"strength": [1.0]}, episodes=4000, epsilon=0.0, seed=9, **settings)
    count = round(worst.success.value * 256)
    assert binomtest(count, 256, float(played.success[0])).pvalue > 0.001


def test_a_seed_repeats_a_stress_test(pushing: Path) -> None:
    first, second = (deeprok.stress(pushing, box="sensor_noise=0:0.3", budget=96, seed=7).to_dict() for _ in range(2))
    assert first == second


def test_by_default_the_runs_own_box_noise_and_delay_are_searched(folder: Path) -> None:
    run = write_run(folder / "own", "dqn", **PUSHES, horizon=10, sensor_noise=0.05, action_delay=2, box="strength=1:3")
    found = deeprok.stress(run, budget=160)
    boxes = {each.name: each.box for each in found.space.dimensions}
    assert boxes["strength"] == (1.0, 3.0)
    assert boxes["sensor_noise"] == (0.0, pytest.approx(0.15))
    assert boxes["action_delay"] == (0.0, 3.0)
    assert found.runs[0].nominal.parameters == {"strength": 1.0, "sensor_noise": 0.05, "action_delay": 2.0}
    other = deeprok.stress(run, box={"bias": (-1.0, 1.0)}, budget=96)  # outside of the run's own box
    assert other.space.names == ["bias"]
    # Noise and delay are then the run's own: two coins, eight times right.
    expected = 0.25 * norm.cdf(1 / 0.1) ** 8
    assert other.runs[0].nominal.success.low < expected < other.runs[0].nominal.success.high


def test_in_a_stateful_simulator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = EnvironmentPart(EpisodeSettings, lambda settings: HOST_PUSHES._replace(horizon=settings.horizon))
    monkeypatch.setitem(ENVIRONMENTS._entries, "host_pushes", part)
    small = dict(hidden=(1,), input_scale=(1.0,) * 3, episodes=3, horizon=10, chunk_steps=20, trial_models=2)
    config = deeprok.make_config("dqn", "tuned", env="host_pushes", acting="nominal", **small)
    run = train_run(config, folder / "simulator")
    run._agent = run._agent._replace(weights=PUSH)
    parts: list[float] = []
    found = deeprok.stress(run, box="strength=0.8:1.2,action_delay=0:1", margin=0.0, budget=128, advance=parts.append)
    assert math.isclose(sum(parts), 1.0)
    assert found.margin["strength"].low == pytest.approx(0.95, abs=0.001)
    assert found.margin["action_delay"].high == 0
    assert found.worst.success.value < 0.2


# --- fresh random numbers -----------------------------------------------------------------------------------------


@pytest.fixture
def played_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the evaluator: `played_by(name -> Player)`, by the last part of each run's path."""

    def use(players: dict[str, Player]) -> None:
        def make(run: Any, env: Any, names: Any, seed: int, advance: Any) -> Player:
            return players[run.folder.name]

        monkeypatch.setattr(stress_module, "make_player", make)

    return use


def test_there_is_no_winners_curse(pushing: Path, played_by: Callable[..., None]) -> None:
    """All models have 80 % success, and what tells them apart is luck: the worst is as good as any."""
    calls: list[int] = []

    def luck(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        calls.append(purpose)
        rng = np.random.default_rng((len(calls), purpose))
        found = rng.binomial(blocks * EPISODES, 0.8, len(models)) / (blocks * EPISODES)
        return Scores(found, found)

    played_by({"pushing": luck})
    off = []
    for seed in range(10):
        (run,) = deeprok.stress(pushing, box="strength=0.5:1.5,bias=-1:1", seed=seed).runs
        assert run.tried.success.min() < 0.6
        off.append((run.worst.success.value - 0.8) / np.sqrt(0.8 * 0.2 / 1024))
        assert run.worst.success.high - run.worst.success.low < 0.06
    assert abs(np.mean(off)) < 3 / np.sqrt(10)
    assert np.max(np.abs(off)) < 4
    assert {SEARCH, CHOICE, REPORT, LINES} == set(calls)


@pytest.mark.parametrize("held", [True, False], ids=["searched", "beyond"])
def test_the_nominal_model_may_be_the_worst(pushing: Path, played_by: Callable[..., None], held: bool) -> None:
    """It fails at a strength of exactly 1, which no search would find; it counts if it is one of those searched."""

    def fails(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        return Scores(np.where(models[:, 0] == 1.0, 0.0, 1.0), np.zeros(len(models)))

    played_by({"pushing": fails})
    (run,) = deeprok.stress(pushing, box="strength=0.71:1.37" if held else "strength=1.01:1.37", margin=0.0).runs
    assert run.nominal.success.value == 0
    assert (run.worst == run.nominal) == held
    assert (run.worst.success.value == 0) == held


# --- several runs -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(folder: Path) -> list[Path]:
    paths = [folder / name for name in ("a", "b")]
    for path in paths:
        if not path.exists():
            write_run(path, "dqn", **PUSHES, horizon=10)
    return paths


def test_what_one_run_fails_on_is_tried_on_the_others(pair: list[Path], played_by: Callable[..., None]) -> None:
    """b fails only within a millionth of the box, where a's returns lead: its own search can't find it."""
    goal = np.array([0.71, 0.37])

    def distance(models: np.ndarray) -> np.ndarray:
        return np.abs(models - goal).max(axis=1)

    def first(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        return Scores(np.full(len(models), 0.5), distance(models))

    def second(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        return Scores(np.where(distance(models) < 5e-4, 0.0, 1.0), np.zeros(len(models)))

    played_by({"a": first, "b": second})
    box = "strength=0.001:1,bias=0:1"
    assert deeprok.stress(pair[1], box=box, margin=0.0).worst.success.value == 1
    found = deeprok.stress(*pair, box=box, margin=0.0)
    assert found.runs[1].tried.success.min() == 1
    assert found.runs[1].worst.success.value == 0
    np.testing.assert_allclose([*found.runs[1].worst.parameters.values()], goal, atol=5e-4)
    assert found.worst is found.runs[0].worst


def test_the_safer_run_is_named(folder: Path, capsys: Captured) -> None:
    good, bad = (write_run(folder / name, best=best, horizon=40) for name, best in (("good", GOOD), ("left", LEFT)))
    words = [
        "stress",
        str(bad),
        str(good),
        "--box",
        "pole_length=0.2:1.4",
        "--margin",
        "0",
        "--budget",
        "128",
        "--json",
    ]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["safer"] == str(good)
    assert told["verdict"].startswith(f"{good} is safer: success on the worst model is {bad} 0.0 %")
    assert [run["run"] for run in told["runs"]] == [str(bad), str(good)]
    assert (told["runs"][0]["failing"]["share"], told["runs"][1]["failing"]["share"]) == (1.0, 0.0)
    assert told["margin"] == {"pole_length": {"low": 0.5, "high": 0.5}}  # it fails at the nominal model
    assert told["runs"][1]["margin"] == {"pole_length": {"low": None, "high": None}}


def stressed(name: str, worst: float, success: np.ndarray) -> StressedRun:
    model = Model({"x0": 0.0}, make_rate(worst, 1000), 0.0)
    tried = Tried(np.zeros((len(success), 1)), success, success, len(success) // 2)
    failing = make_rate(float((success < 0.9).mean()), len(success))
    return StressedRun(
        name,
        name,
        "dqn",
        "best",
        model,
        model,
        failing,
        {"x0": Margin(None, None)},
        Direction(None, None),
        {},
        "",
        tried,
    )


def failing_on(count: int) -> np.ndarray:
    return np.where(np.arange(200) < count, 0.0, 1.0)


@pytest.mark.parametrize(
    ("runs", "safer", "words"),
    [
        ([("a", 0.5, 20), ("b", 0.1, 20)], "a", "a is safer"),
        ([("a", 0.0, 20), ("b", 0.0, 60)], "a", "a is safer"),
        ([("a", 0.0, 20), ("b", 0.0, 23)], None, "No run is safer than all others"),  # 0 and 3 of 3: p = 1/4
        ([("a", 0.5, 90), ("b", 0.1, 20)], None, "a is safer at its worst, b fails on fewer models"),
        ([("a", 0.1, 20), ("b", 0.1, 50), ("c", 0.3, 20)], "c", "c is safer"),
    ],
)
def test_verdicts(runs: list[Any], safer: str | None, words: str) -> None:
    found = judge([stressed(name, worst, failing_on(count)) for name, worst, count in runs], 0.9)
    assert found.safer == safer
    assert found.sentence.startswith(words)


def test_verdicts_on_one_run() -> None:
    for worst, words in (
        (0.2, "There are models"),
        (0.99, "No model with less"),
        (0.9, "The worst model found is too"),
    ):
        assert judge([stressed("a", worst, failing_on(10))], 0.9).sentence.startswith(words)


# --- the command --------------------------------------------------------------------------------------------------

NUMBER = (int, float)


def test_json(pushing: Path, capsys: Captured, tmp_path: Path) -> None:
    words = ["stress", str(pushing), "--box", "strength=0.8:1.2,sensor_noise=0:0.2", "--margin", "0.25", "--threshold"]
    words += ["0.8", "--budget", "128", "--seed", "5", "--out", str(tmp_path / "figure.svg"), "--json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    told = json.loads(out)
    assert (told["threshold"], told["budget"], told["seed"], told["episodes"]) == (0.8, 128, 5, EPISODES)
    assert told["env"] == "pushes"
    assert told["box"] == {"strength": [0.8, 1.2], "sensor_noise": [0.0, 0.2]}
    assert told["searched"] == {"strength": pytest.approx([0.7, 1.3]), "sensor_noise": pytest.approx([0.0, 0.25])}
    assert set(told["worst"]) == {"parameters", "success", "mean_return", "interval"}
    low, high = told["worst"]["interval"]
    assert 0 <= low <= told["worst"]["success"] <= high <= 1
    assert set(told["worst"]["parameters"]) == set(told["margin"]) == set(told["sensitivity"]) == set(told["box"])
    for margin in told["margin"].values():
        assert set(margin) == {"low", "high"}
        assert all(end is None or isinstance(end, NUMBER) for end in margin.values())
    for one in told["sensitivity"].values():
        assert set(one) == {"first", "total", "low", "high", "first_low", "first_high"}
        assert all(isinstance(value, NUMBER) for value in one.values())
    (run,) = told["runs"]
    assert run["run"] == run["folder"] == str(pushing)
    assert {name: run[name] for name in ("worst", "margin", "sensitivity")} == {
        name: told[name] for name in ("worst", "margin", "sensitivity")
    }
    assert set(run["worst_direction"]) == {"fraction", "parameters"}
    assert told["safer"] is None
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_defaults_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def fake(*runs: Path, **options: Any) -> None:
        seen.update(options, runs=runs)
        raise DeeprokError("enough")

    monkeypatch.setattr(command, "stress", fake)
    assert main(["stress", str(tmp_path), "other"]) == 2
    seen.pop("advance")
    usual = dict(box=None, margin=0.5, threshold=0.9, budget=None, seed=0)
    assert seen == dict(runs=(tmp_path, Path("other")), save=True, **usual)


def test_ctrl_c_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, pushing: Path, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stress_module, "search", interrupted)
    before = sorted(path.name for path in pushing.iterdir())
    assert main(["stress", str(pushing), "--out", str(tmp_path / "figure.png")]) == 130
    assert not (tmp_path / "figure.png").exists()
    assert sorted(path.name for path in pushing.iterdir()) == before


@pytest.fixture
def two(pair: list[Path], played_by: Callable[..., None]) -> deeprok.Stress:
    """A stress test of two runs that fail in a corner of the space, one of them also without it."""
    corner = drawn(lambda models: np.where((models[:, 0] < 1) & (models[:, 2] > 1), 0.2, 1.0), 0)
    played_by({"a": corner, "b": drawn(lambda models: 0.3 + 0.1 * models[:, 0], 1)})
    return deeprok.stress(*pair, budget=256)


def test_what_is_printed_fits_a_terminal(two: deeprok.Stress, capsys: Captured) -> None:
    out = WordConsole(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_stress(two, out)
    said = out.file.getvalue()
    assert max(len(line) for line in said.splitlines()) <= 80
    a, b = two.runs
    for words in ("256 models in 3 parameters", a.folder, b.folder, "strength", "sensor_noise", "action_delay"):
        assert words in said.replace("\n", " ") or words in said
    assert f"worst found  success {a.worst.success}" in said
    assert f"fails on     {a.failing} of the models: success below 90 %" in said
    assert "the policy fails at the nominal model already" in said  # of b
    assert "is safer" in said


def test_the_figure_shows_each_run(two: deeprok.Stress, tmp_path: Path) -> None:
    figure = two.plot()
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[0] == "success of at least 90 %, others nominal"
    assert titles[1] == f"a: fails on {100 * two.runs[0].failing.value:.1f} % of the models"
    assert titles[2] == "b: fails on 100.0 % of the models"
    assert titles[3] == "total Sobol index of success"
    works, fails = (collection.get_offsets() for collection in figure.axes[1].collections)
    assert len(works) + len(fails) == 2 * two.runs[0].tried.sample
    assert len(fails) == round(two.runs[0].failing.value * 2 * two.runs[0].tried.sample)
    deeprok.plot.save(figure, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 10_000


def test_the_figure_of_one_parameter(pair: list[Path], played_by: Callable[..., None]) -> None:
    played_by({"a": exactly(lambda models: models[:, 0] < 1)})
    figure = deeprok.stress(pair[0], box="strength=0.5:1.5", budget=96).plot()
    assert figure.axes[1].get_ylabel() == "success in %"


def test_all_models_as_a_frame(two: deeprok.Stress) -> None:
    frame = two.to_frame()
    assert list(frame) == ["run", "strength", "sensor_noise", "action_delay", "success", "mean_return"]
    assert len(frame) == 512
    assert frame.groupby("run").success.min().tolist() == [
        two.runs[0].tried.success.min(),
        two.runs[1].tried.success.min(),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--margin", "-0.1"], "margin is -0.1; it must be a number of at least 0"),
        (["--margin", "inf"], "margin is inf; it must be a number of at least 0"),
        (["--threshold", "0"], "threshold is 0; it must be a success rate above 0 and at most 1"),
        (["--threshold", "1.01"], "threshold is 1.01; it must be a success rate above 0 and at most 1"),
        (["--threshold", "nan"], "threshold is nan; it must be a success rate above 0 and at most 1"),
        (["--seed", "-1"], "seed is -1; it must be from 0 to 4294967295"),
        (["--budget", "159"], "budget is 159; a search of 3 parameters takes at least 160 models"),
        (["--box", "strength=1:2", "--budget", "95"], "budget is 95; a search of 1 parameter takes at least 96 models"),
        (["--box", "strenght=1:2"], "unknown parameter in box 'strenght': did you mean 'strength'? known are"),
        (["--box", "sensor_nois=0:2"], "did you mean 'sensor_noise'?"),
        (["--box", "strength=2:1"], "box: the range strength=2:1 is reversed"),
        (["--box", "strength=-1:1"], "box gives strength the value -1, which must be positive and finite"),
        (["--box", "sensor_noise=-0.1:1"], "box gives sensor_noise the range -0.1:1; a noise must be at least 0"),
        (["--box", "action_delay=0:1.5"], "its ends must be whole numbers from 0 to 100"),
        (["--box", "action_delay=0:101"], "its ends must be whole numbers from 0 to 100"),
        (["--box", "strength=1:3e38"], "the box with its margin gives strength the value 4.5e+38"),
        (["--out", "figure.txt"], "out is figure.txt; it must end with .png, .svg or .pdf"),
        (["--budget", "many"], "--budget is 'many'; it must be a whole number"),
        (["--thresold", "0.5"], "unknown option '--thresold': did you mean '--threshold'?"),
    ],
)
def test_bad_input_is_said_in_a_sentence(pushing: Path, capsys: Captured, words: list[str], sentence: str) -> None:
    assert main(["stress", str(pushing), *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err.replace("\n", " ")
    assert said.out == ""


def test_runs_that_cannot_be_compared(pushing: Path, folder: Path, capsys: Captured) -> None:
    cart, short = write_run(folder / "cart"), write_run(folder / "short", "dqn", **PUSHES, horizon=9)
    assert main(["stress", str(pushing), str(cart)]) == 2
    assert f"{pushing} has the environment 'pushes' and {cart} 'cartpole'; runs are" in capsys.readouterr().err
    assert main(["stress", str(pushing), str(short)]) == 2
    assert f"{pushing} has the horizon 10 and {short} 9; runs are" in capsys.readouterr().err
    assert main(["stress", str(pushing), str(pushing)]) == 2
    assert f"{pushing} is given twice; give each run once" in capsys.readouterr().err
    assert main(["stress", str(folder / "nowhere")]) == 2
    assert "there is no run folder" in capsys.readouterr().err
    assert main(["stress"]) == 2
    assert "RUN must be given" in capsys.readouterr().err


def test_an_environment_without_a_box_has_noise_and_delay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = EnvironmentPart(EpisodeSettings, lambda s: probe_envs.pushes(s.horizon)._replace(box={}, name="bare"))
    monkeypatch.setitem(ENVIRONMENTS._entries, "bare", bare)
    run = write_run(folder / "bare", "ddqn", **{**PUSHES, "env": "bare"}, horizon=10)
    assert deeprok.stress(run, budget=128).space.names == ["sensor_noise", "action_delay"]
