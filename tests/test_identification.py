"""Parameters from logs: recovered with ranges that hold them, or said to be out of reach."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from identified import POINT_MASS, Slider, as_table, played
from scipy import optimize, stats

from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import ENVIRONMENTS, Environment, Interval, Outcome, quantity
from deeprok.environments.cartpole import cartpole
from deeprok.environments.pendulum import pendulum
from deeprok.identification import words
from deeprok.identification.checks import check_fit
from deeprok.identification.dynamics import make_dynamics
from deeprok.identification.fit import Bounds, Likelihood, Point, climb
from deeprok.identification.identify import identify, named_environment
from deeprok.identification.likelihood import Innovations, Score, Unknowns, as_data
from deeprok.identification.log import Log
from deeprok.identification.region import (
    Range,
    degrees_of_freedom,
    plausible_models,
    profile_range,
    simultaneous_quantile,
    student_levels,
)
from deeprok.identification.result import Identified, read_identified, settings_from
from deeprok.uncertainty.models import parse_box, parse_models, parse_values

TRUTH = {"push": 1.3, "friction": 0.3}
CARTPOLE = cartpole()


def holds(found: Identified, truth: dict[str, float]) -> bool:
    return all(found.parameters[name].low <= value <= found.parameters[name].high for name, value in truth.items())


@pytest.fixture(scope="module")
def slider() -> Identified:
    log = played(POINT_MASS, TRUTH, (60, 60, 60, 60, 60), seed=0, process=0.01, sensor=0.02)
    return identify(POINT_MASS, as_table(log), bootstrap=20, models=30)


# --- optimisation and regions, where the answer is known -----------------------------------------------

_H = np.array([[4.0, 1.8, 0.3], [1.8, 1.0, 0.1], [0.3, 0.1, 2.0]])
_CENTRE = np.array([0.2, -0.5, 1.0])


def quadratic(x: np.ndarray) -> Point:
    step = x - _CENTRE
    return Point(x, Score(-0.5 * step @ _H @ step, -_H @ step, _H))  # type: ignore[arg-type]


def test_a_quadratic_is_climbed_in_one_step_and_bounds_are_kept() -> None:
    wide = Bounds(np.full(3, -9.0), np.full(3, 9.0))
    np.testing.assert_allclose(climb(quadratic, np.full(3, 5.0), wide).x, _CENTRE, atol=0.02)
    narrow = Bounds(np.array([0.5, -9.0, -9.0]), np.array([3.0, 9.0, 0.4]))
    expected = optimize.minimize(
        lambda x: -quadratic(x).score.log_likelihood, np.ones(3), bounds=list(zip(*narrow, strict=True))
    ).x
    np.testing.assert_allclose(climb(quadratic, np.ones(3), narrow).x, expected, atol=0.02)
    held = climb(quadratic, np.array([1.0, 0.0, 0.0]), wide, held=(0,)).x
    np.testing.assert_allclose(held[1:], _CENTRE[1:] - np.linalg.solve(_H[1:, 1:], _H[1:, 0] * 0.8), atol=0.02)
    assert held[0] == 1


def test_the_profile_of_a_quadratic_ends_where_the_normal_does() -> None:
    bounds = Bounds(np.full(3, -9.0), np.full(3, 9.0))
    likelihood: Any = SimpleNamespace(at=quadratic, bounds=bounds, unknowns=SimpleNamespace(parameters=3))
    covariance = np.linalg.inv(_H)
    for i in range(3):
        found = profile_range(likelihood, quadratic(_CENTRE), i, covariance, level=2.0)
        deviation = np.sqrt(covariance[i, i])
        np.testing.assert_allclose(found[:2], _CENTRE[i] + 2.0 * deviation * np.array([-1, 1]), atol=0.03 * deviation)
        assert found.closed


def test_a_range_that_a_bound_ends_is_open() -> None:
    bounds = Bounds(np.full(3, -9.0), np.array([9.0, -0.4, 9.0]))
    likelihood: Any = SimpleNamespace(at=quadratic, bounds=bounds, unknowns=SimpleNamespace(parameters=3))
    own = profile_range(likelihood, quadratic(_CENTRE), 1, np.linalg.inv(_H), level=2.0)
    assert own.high == -0.4
    assert not own.closed
    # The first goes down as the second goes up, which ends it early.
    other = profile_range(likelihood, quadratic(_CENTRE), 0, np.linalg.inv(_H), level=2.0)
    assert not other.closed


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_simultaneous_quantiles(confidence: float) -> None:
    """Independent ones by the product of probabilities; equal ones are one."""
    independent = stats.norm.ppf(0.5 + 0.5 * confidence ** (1 / 3))
    assert simultaneous_quantile(np.diag([1.0, 4.0, 9.0]), confidence) == pytest.approx(independent, abs=0.06)
    assert simultaneous_quantile(np.ones((3, 3)), confidence) == pytest.approx(
        stats.norm.ppf(0.5 + 0.5 * confidence), abs=0.06
    )


def test_the_range_of_a_mean_is_that_of_student() -> None:
    """Where the interval that scipy gives ends, the profile likelihood has dropped by the level."""
    y = np.random.default_rng(0).normal(2.0, 3.0, size=6)
    freedom = len(y) - 1
    for deviations in (1.0, 1.645, 2.5):
        (level,) = student_levels(deviations, np.array([freedom]))
        confidence = 2 * stats.norm.cdf(deviations) - 1
        _, end = stats.t.interval(confidence, freedom, loc=y.mean(), scale=stats.sem(y))
        best, least = (stats.norm.logpdf(y, mean, np.sqrt(np.mean((y - mean) ** 2))).sum() for mean in (y.mean(), end))
        assert level**2 == pytest.approx(2 * (best - least))
    np.testing.assert_allclose(student_levels(2.0, np.array([1e6])), 2.0, rtol=1e-4)


@pytest.mark.parametrize("steps", [10, 40])
def test_degrees_of_freedom_are_counted(steps: int) -> None:
    """With exact sensors the push is a regression of the speed: a square a step, less one for each parameter."""
    table = played(POINT_MASS, TRUTH, (steps,), seed=0, process=0.02, sensor=0.0)
    with jax.enable_x64(True):
        unknowns = Unknowns(make_dynamics(POINT_MASS, ("push",)), (True,))
        low, high = unknowns.noise_ends()
        bounds = Bounds(np.concatenate([[-1.0], low]), np.concatenate([[1.0], high]))
        likelihood = Likelihood(unknowns, bounds, as_data(table))
        start = unknowns.pack(np.array([TRUTH["push"]]), np.full(2, 1e-4), np.zeros(2))
        best = climb(likelihood.at, start, bounds, held=(3, 4))
        (found,) = degrees_of_freedom(best, likelihood)
    # The penalty counts as half a square, and the push takes one.
    assert found == pytest.approx(steps - 0.5, abs=0.4)


# --- recovery ------------------------------------------------------------------------------------------


def test_a_linear_system_is_recovered(slider: Identified) -> None:
    assert holds(slider, TRUTH)
    scale = np.array(POINT_MASS.observation_scale)
    np.testing.assert_allclose(slider.noise.process, 0.01 * scale, rtol=0.3)
    np.testing.assert_allclose(slider.noise.sensor, 0.02 * scale, rtol=0.3)
    assert slider.unidentified == slider.combinations == slider.notes == slider.fit.optima == ()
    assert slider.box == {name: (each.low, each.high) for name, each in slider.parameters.items()}
    for name, (low, high) in slider.bootstrap.items():
        one = slider.parameters[name]
        assert low < one.estimate < high
        assert 0.4 < (high - low) / (one.high - one.low) < 2.0


def test_plausible_models_are_spread_over_the_region(slider: Identified) -> None:
    assert len(slider.model_list) == 30
    for name, values in slider.models.items():
        low, high = slider.box[name]
        middle, width = (low + high) / 2, high - low
        assert np.all(np.abs(np.array(values) - middle) < 0.65 * width)  # the joint region is a little larger
        assert np.ptp(values) > 0.4 * width


def test_plausible_models_are_found_where_the_estimate_is_beyond_their_limits() -> None:
    """As where the log does not end a range, and its likelihood is largest outside the environment's box.

    The noise, the second unknown, is another there: with that of the estimate no model would be kept.
    """
    centre, information = np.array([3.0, 7.0]), np.array([[4.25, 4.0], [4.0, 4.0]])

    def at(x: np.ndarray) -> Point:
        step = x - centre
        return Point(x, Score(-0.5 * step @ information @ step, -information @ step, information))  # type: ignore[arg-type]

    bounds = Bounds(np.array([-9.0, -20.0]), np.array([9.0, 20.0]))
    likelihood: Any = SimpleNamespace(at=at, bounds=bounds)
    found = plausible_models(likelihood, at(centre), np.array([[0.25]]), [(-1.0, 1.0)], 0.9, 1e6, 40, seed=0)
    assert found.shape == (40, 1)
    # With the noise that is best for x the log-likelihood is −(x − 3)² / 8. Twice its drop is at most a quantile of χ²
    # with one degree of freedom.
    least = 3.0 - 2.0 * np.sqrt(stats.chi2.ppf(0.9, 1))
    assert found.max() <= 1.0
    assert least <= found.min()


def test_notes_say_whose_end_a_range_has() -> None:
    """The log's, the environment's, none, or one that contradicts the environment's as a whole."""
    names = ("mass", "drag", "gain", "lift")
    x = np.zeros(4)
    likelihood: Any = SimpleNamespace(
        bounds=SimpleNamespace(at=lambda x: np.zeros(4, bool)),
        unknowns=SimpleNamespace(dynamics=SimpleNamespace(names=names), positive=(True, False, False, True)),
    )
    ranges = [Range(0.0, 1.0, True), Range(0.0, 2.0, False), Range(0.0, 3.0, False), Range(5.0, 6.0, False)]
    region: Any = SimpleNamespace(best=SimpleNamespace(x=x), ranges=ranges)
    own = {"mass": (1.0, 2.0), "drag": (0.0, 1.5), "lift": (1.0, 100.0)}  # of what is positive x has logarithms
    assert words.notes(own, likelihood, region, np.zeros(4)) == [
        "the log does not end the range of drag: the environment's own does, in the box",
        "the log does not end the range of gain: it is left out of the box",
        "the log does not end the range of lift: what is in the box lies outside the environment's own, so do not "
        "train for it before you know why",
    ]


def test_cartpole_is_recovered() -> None:
    truth = {"pole_length": 0.7, "cart_mass": 2.0}
    log = played(CARTPOLE, truth, (40, 40, 30), seed=2, process=0.003, sensor=0.005)
    found = identify(CARTPOLE, as_table(log), confidence=0.999, models=1)
    assert holds(found, truth)
    assert found.parameters["pole_length"].high - found.parameters["pole_length"].low < 0.1
    assert found.bootstrap == {}  # of three episodes


def test_the_spread_of_a_random_environment_is_recovered() -> None:
    part = ENVIRONMENTS["market"]
    market = part.make(part.settings())
    assert isinstance(market, Environment)
    log = played(market, {"drift": -0.1, "volatility": 0.22}, (30,) * 3, seed=0)
    log = log._replace(action=np.zeros_like(log.action), obs=held_on(log, -0.1, 0.22))
    found = identify("market", as_table(log), parameters="volatility", bootstrap=0, models=1)
    volatility = found.parameters["volatility"]
    assert volatility.low < 0.22 < volatility.high
    assert volatility.high - volatility.low < 0.08


def held_on(log: Log, drift: float, volatility: float) -> np.ndarray:
    """Observations of an option that is never exercised."""
    shocks = np.random.default_rng(0).normal(size=log.action.shape)
    moves = (drift - 0.5 * volatility**2) * 0.02 + volatility * np.sqrt(0.02) * shocks
    obs = log.obs.copy()
    obs[:, 1:, 0] = obs[:, :1, 0] + np.cumsum(moves, axis=1)
    return obs


def test_a_log_without_noise_gives_the_parameters_themselves() -> None:
    found = identify(POINT_MASS, as_table(played(POINT_MASS, TRUTH, (30, 30), seed=0)), models=1)
    for name, value in TRUTH.items():
        assert found.parameters[name].estimate == pytest.approx(value, rel=1e-6)
        assert found.box[name][0] < value < found.box[name][1]
    assert found.notes == ()


def test_the_same_log_gives_the_same_result(slider: Identified) -> None:
    log = played(POINT_MASS, TRUTH, (60, 60, 60, 60, 60), seed=0, process=0.01, sensor=0.02)
    assert identify(POINT_MASS, as_table(log), bootstrap=20, models=30) == slider


def test_what_is_compiled_for_a_name_serves_the_next_call() -> None:
    """Whatever is compiled is kept by the dynamics, so those of two calls must be the same."""
    first, second = (make_dynamics(named_environment("cartpole")[1], ("pole_length",)) for _ in range(2))  # type: ignore[arg-type]
    assert first == second
    assert hash(first) == hash(second)


# --- what a log can't tell -----------------------------------------------------------------------------


def test_a_direction_without_effect_is_reported() -> None:
    """A rod's motor and mass: only their ratio is in the equations."""
    part = ENVIRONMENTS["swing_up"]
    swing_up = part.make(part.settings())
    assert isinstance(swing_up, Environment)
    log = played(swing_up, {"torque": 1.5}, (40, 40, 40), seed=0, process=0.003, sensor=0.003)
    found = identify("swing_up", as_table(log), models=20)
    assert found.unidentified == ("torque", "mass")
    assert found.combinations == ("the log tells torque / mass, but not torque and mass by themselves",)
    assert found.box == {name: pytest.approx(swing_up.box[name]) for name in ("torque", "mass")}
    np.testing.assert_allclose(np.divide(*found.models.values()), 1.5, rtol=0.05)  # which is all that is known
    assert np.ptp(found.models["mass"]) > 0.5
    assert all(0.6 <= mass <= 1.6 for mass in found.models["mass"])
    assert found.fit.optima == ()


def test_a_parameter_without_effect_is_unidentified() -> None:
    log = played(CARTPOLE, {}, (40, 40), seed=0, process=0.003, sensor=0.003)
    found = identify(CARTPOLE, as_table(log), parameters=["pole_length", "initial_range"], models=1)
    assert found.unidentified == ("initial_range",)
    assert found.combinations == ()
    assert [*found.box] == ["pole_length"]  # the environment has no range for the other
    assert found.parameters["initial_range"].estimate == pytest.approx(0.05)
    assert "the log does not end the range of initial_range: it is left out of the box" in found.notes


def test_an_estimate_at_the_end_of_the_search_is_said() -> None:
    log = played(POINT_MASS, {"push": 9.0}, (40, 40), seed=0, process=0.01)
    found = identify(POINT_MASS, as_table(log), parameters="push", models=1)
    assert found.unidentified == ("push",)
    assert "the estimate of push is an end of what was searched" in found.notes
    low, high = found.box["push"]
    assert 2.0 < low < high == pytest.approx(3.5)  # the environment's own ends at 2, which the log contradicts


@pytree_dataclass
class Hills:
    """How strongly an action works, which rises and falls with the parameter."""

    place: Any = quantity(0.5, "", "where the hills are", positive=False)


def _hills(key: Any, state: Any, action: Any, params: Hills) -> Outcome:
    del key
    moved = 0.5 * state + (jnp.sin(2.0 * params.place) + 0.3 * params.place) * action
    return Outcome(state=moved, obs=moved, reward=jnp.zeros(()), terminated=jnp.array(False))


HILLS = Environment(
    name="hills",
    reset=lambda key, params: (jnp.zeros(1), jnp.zeros(1)),
    step=_hills,
    nominal=Hills(),
    box={"place": (0.0, 3.0)},
    observation_scale=(1.0,),
    actions=Interval((-1.0,), (1.0,)),
    horizon=50,
    success_return=0.0,
)


def test_the_better_of_two_optima_is_found() -> None:
    """The top of the first hill, at 0.86, is as near as a climb from the nominal 0.5 comes to the second, at 4."""
    log = played(HILLS, {"place": 4.0}, (50, 50), seed=0, process=0.5)
    found = identify(HILLS, as_table(log), models=1)
    assert found.parameters["place"].estimate == pytest.approx(4.0, abs=0.3)


def test_equal_optima_are_all_reported() -> None:
    """sin 2x + 0.3 x has the value that it has at 0.6 in four other places that are searched."""
    found = identify(HILLS, as_table(played(HILLS, {"place": 0.6}, (50, 50), seed=0, process=0.1)), models=1)
    places = sorted([found.parameters["place"].estimate, *(other["place"] for other in found.fit.optima)])
    ends = [(0, 0.8), (0.9, 2), (3, 4), (4.5, 5.2), (5.2, 6)]
    roots = [optimize.brentq(lambda x: np.sin(2 * x) + 0.3 * x - np.sin(1.2) - 0.18, *each) for each in ends]
    np.testing.assert_allclose(places, roots, atol=0.1)
    assert found.parameters["place"].low <= places[0]
    assert found.parameters["place"].high >= places[-1]


# --- whether the simulator is right --------------------------------------------------------------------


def test_friction_that_the_simulator_does_not_know_is_noticed() -> None:
    log = played(POINT_MASS, {"push": 1.3, "friction": 1.5}, (60,) * 5, seed=0, process=0.02, sensor=0.01)
    wrong = dataclasses.replace(Slider(), friction=0.0)
    found = identify(POINT_MASS._replace(nominal=wrong), as_table(log), parameters="push", bootstrap=0, models=1)
    assert found.notes[0].startswith("obs_1 differs from its prediction in a way that depends on obs_1 (")
    assert found.notes[0].endswith(": the simulator is wrong there, not its parameters")
    assert any(check.misfit for check in found.fit.checks)


def test_checks_of_noise_and_of_planted_dependence() -> None:
    draws = np.random.default_rng(0)
    log = Log(draws.normal(size=(4, 101, 2)), draws.uniform(-1, 1, (4, 100, 1)), np.array([100, 100, 100, 60]))
    noise = draws.normal(size=(4, 100, 2))
    right = check_fit(Innovations(2 * noise, np.full(noise.shape, 4.0)), log)  # type: ignore[arg-type]
    assert not any(check.misfit for check in right)
    planted = noise + 0.8 * np.stack([log.action[..., 0], log.obs[:, :-1, 0] ** 2], axis=-1)
    wrong = check_fit(Innovations(planted, np.ones(noise.shape)), log)  # type: ignore[arg-type]
    misfits = [(check.coordinate, check.on) for check in wrong if check.misfit]
    assert misfits == [("obs_0", "action_0"), ("obs_1", "the square of obs_0")]
    slow = 0.7 * noise[:, 1:] + 0.7 * noise[:, :-1]
    late = check_fit(Innovations(np.pad(slow, [(0, 0), (1, 0), (0, 0)]), np.ones(noise.shape)), log)  # type: ignore[arg-type]
    assert [c.kind for c in late if c.misfit] == ["time", "time"]


def test_episodes_that_differ_are_noticed() -> None:
    truths = enumerate(np.linspace(0.7, 1.5, 8))
    logs = [played(POINT_MASS, {"push": push}, (50,), seed=i, process=0.01) for i, push in truths]
    log = Log(*(np.concatenate(part) for part in zip(*logs, strict=True)))
    found = identify(POINT_MASS, as_table(log), parameters="push", models=1)
    assert any(note.startswith("resampled episodes give push a range") for note in found.notes)


# --- files ---------------------------------------------------------------------------------------------


def test_a_file_holds_all_of_it(slider: Identified, tmp_path: Path) -> None:
    path = tmp_path / "identified.json"
    slider.save(path)
    assert read_identified(path) == slider
    assert json.loads(path.read_text())["parameters"]["push"]["low"] == slider.parameters["push"].low


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content.clear(), "is no file of identified parameters"),
        (lambda content: content.update(version=2), "has version 2; this version of deeprok reads 1"),
        (lambda content: content.update(box={"push": ["a", 2]}), "is damaged: Expected `float`, got `str`"),
        (lambda content: content.update(models={}), "is damaged: its models or its box are no numbers"),
        (lambda content: content.pop("noise"), "is damaged: Object missing required field `noise`"),
    ],
)
def test_files_that_are_none(slider: Identified, tmp_path: Path, change: Any, sentence: str) -> None:
    path = tmp_path / "identified.json"
    content = json.loads(slider.to_json())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DeeprokError, match=sentence):
        read_identified(path)


def test_a_file_of_another_environment_is_refused(slider: Identified, tmp_path: Path) -> None:
    path = tmp_path / "identified.json"
    slider.save(path)
    settings = settings_from(path, "point_mass", "models")
    assert settings_from(path, "point_mass", "box") == {name: settings[name] for name in ("box", "nominal")}
    assert parse_box(settings["box"], Slider()) == slider.box
    assert parse_values(settings["nominal"], Slider(), "nominal") == slider.nominal
    models = parse_models(settings["fixed_models"], Slider())
    assert {name: tuple(values) for name, values in models.items()} == slider.models
    with pytest.raises(DeeprokError, match=r"^box is .*, which is for env 'point_mass', but env is 'cartpole'$"):
        settings_from(path, "cartpole", "box")


# --- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"confidence": 1.0}, "confidence is 1; it must be at least 0.5 and below 1"),
        ({"bootstrap": -1}, "bootstrap is -1; it must be at least 0"),
        ({"models": 0}, "models is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 4294967295"),
        ({"parameters": "pole_lenght"}, "unknown parameter in parameters 'pole_lenght': did you mean 'pole_length'?.*"),
        ({"parameters": "gravity, gravity"}, "parameters names gravity twice; give each parameter once"),
        ({"parameters": []}, "parameters is empty; give some of cart_mass, .*"),
        ({}, "data is a log with 4 steps; 2 parameters and the noises of 4 observations need 5 at least"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    data = as_table(played(CARTPOLE, {}, (4,), seed=0))
    with pytest.raises(DeeprokError, match=f"^{sentence}$"):
        identify(**{"env": "cartpole", "data": data, **arguments})


def test_a_log_that_no_parameters_explain_is_refused() -> None:
    table = as_table(played(POINT_MASS, {}, (30, 30), seed=0))
    huge = {name: column * (1e200 if "obs" in name else 1) for name, column in table.items()}
    with pytest.raises(DeeprokError, match=r"^data has no finite likelihood under any parameters; "):
        identify(POINT_MASS, huge)


# --- coverage ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("env", [CARTPOLE, pendulum()], ids=lambda env: env.name)
def test_coverage_and_false_alarms(env: Environment) -> None:
    """Over 240 logs the box holds the truth as often as it says, and a right simulator is hardly ever called wrong."""
    draws, logs = np.random.default_rng(0), 240
    held, alarms = 0, 0
    for i in range(logs):
        truth = {name: float(draws.uniform(*ends)) for name, ends in env.box.items()}
        log = played(env, truth, (50,) * 5, seed=i, process=0.005, sensor=0.01)
        found = identify(env, as_table(log), bootstrap=0, models=1)
        held += holds(found, truth)
        alarms += any(check.misfit for check in found.fit.checks)
    print(f"{env.name}: coverage {held / logs:.3f}, false alarms {alarms} of {logs}")  # noqa: T201
    assert 0.85 <= held / logs <= 0.95
    assert alarms <= 0.04 * logs
