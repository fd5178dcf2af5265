"""Films of policies: what environments draw, what is played, and the files that come of it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from finished_runs import GOOD, LEFT, TINY, write_run
from hypothesis import given
from hypothesis import strategies as st
from own_simulators import Boat
from PIL import Image, ImageColor
from probe_simulators import SIMULATED_CARTPOLE, Simulated

import deeprok
from deeprok.agents.replaying import make_estimator
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Environment, cartpole, from_gymnasium
from deeprok.environments.acrobot import acrobot
from deeprok.environments.cartpole import CartPole
from deeprok.environments.deep_sea import deep_sea
from deeprok.environments.disturbable import disturbable
from deeprok.environments.drawing import BLUE, GREEN, GREY, INK, RED, Circle, Drawing, Line, Polygon, Shape, Text
from deeprok.environments.ferry import ferry
from deeprok.environments.host_picture import picture_of
from deeprok.environments.host_wrappers import disturbed_simulator, remembering_simulator
from deeprok.environments.market import market
from deeprok.environments.mountain_car import mountain_car
from deeprok.environments.pendulum import pendulum
from deeprok.environments.road import curvature, road
from deeprok.environments.rocket import rocket
from deeprok.environments.wrappers import disturbed, with_memory
from deeprok.evaluation.play import cell_player
from deeprok.evaluation.policies import weights_policy
from deeprok.evaluation.render import files
from deeprok.evaluation.render import render as render_module
from deeprok.evaluation.render.canvas import paint
from deeprok.evaluation.render.episode import _painter, make_player
from deeprok.evaluation.render.files import HOLD, delays, shown_steps, write_film
from deeprok.evaluation.render.pane import Film, Layout, Subject, make_pane
from deeprok.evaluation.trained import Run, _agent_of

Captured = pytest.CaptureFixture[str]

IN_JAX = [name for name in ENVIRONMENTS if "-" not in name]


def made(name: str) -> Environment:
    part = ENVIRONMENTS[name]
    env = part.make(part.settings())
    assert isinstance(env, Environment)
    return env


def drawing(env: Environment, *states: Any, **params: float) -> Drawing:
    """What an environment draws of states, as it is given them."""
    assert env.draw
    model = jax.tree.map(np.float32, dataclasses.replace(env.nominal, **params))
    return env.draw([jax.tree.map(np.asarray, state) for state in states], model)


def of(found: Drawing, kind: type[Any], colour: str) -> list[Any]:
    return [shape for shape in found.shapes if isinstance(shape, kind) and shape.colour == colour]


def places(shape: Shape) -> np.ndarray:
    if isinstance(shape, Circle):
        return np.array([*shape.centre, shape.radius])
    return np.asarray(shape.at if isinstance(shape, Text) else shape.points, float)


# --- what environments draw ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.5, 1.4])
def test_a_pole_is_twice_as_long_as_from_its_pivot_to_its_centre(length: float) -> None:
    x, theta = 0.3, 0.1
    found = drawing(cartpole(), [x, 1.0, theta, -2.0], pole_length=length)
    (pole,) = of(found, Line, BLUE)
    (foot_x, foot_y), tip = pole.points
    assert foot_x == pytest.approx(x)
    np.testing.assert_allclose(
        np.subtract(tip, (foot_x, foot_y)), [2 * length * math.sin(theta), 2 * length * math.cos(theta)], rtol=1e-6
    )
    left, bottom, right, top = found.view
    assert left < -2.4
    assert right > 2.4
    assert bottom < 0 < foot_y + 2 * length < top  # an upright pole is seen as a whole


def test_an_acrobats_tip_is_above_the_bar_where_its_goal_is_reached() -> None:
    env = acrobot()
    step = jax.jit(env.step)
    seen = set()
    for i, length in enumerate([1.0, 1.0, 0.7] * 20):
        state = jax.random.uniform(jax.random.key(i), (4,), minval=-math.pi, maxval=math.pi)
        params = dataclasses.replace(env.nominal, link_length_1=length, time_step=1e-6)
        reached = bool(step(jax.random.key(0), state, jnp.array(1), params).terminated)
        found = drawing(env, state, link_length_1=length)
        ((_, bar), _) = of(found, Line, GREEN)[0].points
        (_, tip) = of(found, Line, BLUE)[0].points[-1]
        assert (tip > bar) == reached
        seen.add(reached)
    assert seen == {True, False}


def test_a_rod_at_angle_0_is_upright_and_turns_anticlockwise() -> None:
    for angle, end in {0.0: (0.0, 1.2), math.pi / 2: (-1.2, 0.0), math.pi: (0.0, -1.2)}.items():
        (rod,) = of(drawing(pendulum(), [angle, 0.0], length=1.2), Line, BLUE)
        np.testing.assert_allclose(rod.points, [(0.0, 0.0), end], atol=1e-6)


def test_the_dots_of_a_car_are_as_far_apart_as_it_drove() -> None:
    way = [[place, 10.0] for place in np.arange(0.0, 200.0, 2.0)]
    found = drawing(road(), *way)
    dots = np.array([dot.centre for dot in of(found, Circle, BLUE)])
    assert len(dots) == len(way) - 1  # the car itself is no dot
    np.testing.assert_allclose(np.hypot(*np.diff(dots, axis=0).T), 2.0, atol=0.02)
    # The road turns as much as its curvature says, to either side.
    heading = np.unwrap(np.arctan2(*np.diff(dots, axis=0).T[::-1]))
    middles = jnp.arange(2.0, 196.0, 2.0)
    np.testing.assert_allclose(np.abs(np.diff(heading)), 2.0 * np.asarray(curvature(middles)), atol=0.01)


@pytest.mark.parametrize(("friction", "skids"), [(0.3, True), (0.8, False)])
def test_a_car_that_skids_is_red(friction: float, skids: bool) -> None:
    # At 8 m/s in the curve of 12 m, where v²/r is 5.33 m/s², and the tyres hold 2.9 or 7.8.
    assert bool(of(drawing(road(), [110.0, 8.0], friction=friction), Polygon, RED)) == skids


def test_a_rocket_stands_where_it_is_and_burns_when_it_gets_faster_upwards() -> None:
    falls, burns = [[50.0, -10.0], [48.0, -12.0]], [[50.0, -10.0], [48.0, -8.0]]
    for way, burning in ((falls, False), (burns, True)):
        found = drawing(rocket(), *way)
        hull = of(found, Polygon, BLUE)[0].points
        assert min(y for _, y in hull) == 48.0
        assert (len(of(found, Polygon, "#E69F00")) == 1) == burning
    assert min(y for _, y in of(drawing(rocket(), [3.0, -9.0], [-2.0, -9.0]), Polygon, BLUE)[0].points) == 0.0


def test_a_car_between_hills_stands_on_the_slope_that_pulls_it() -> None:
    env = mountain_car()
    for position in (-1.1, -0.7, -0.2, 0.3):
        found = drawing(env, [position, 0.0])
        ridge = np.asarray(next(shape for shape in found.shapes if isinstance(shape, Line)).points)
        slope = np.interp(position, ridge[:, 0], np.gradient(ridge[:, 1], ridge[:, 0]))
        pulled = float(env.step(jax.random.key(0), jnp.array([position, 0.0]), jnp.array(1), env.nominal).obs[1])
        assert np.sign(pulled) == -np.sign(slope)
        wheels = np.array([shape.centre for shape in found.shapes if isinstance(shape, Circle)])
        (across, up) = wheels[1] - wheels[0]
        assert up / across == pytest.approx(slope, abs=0.05)


def test_grids_show_the_way_so_far() -> None:
    (way,) = of(drawing(ferry(), [0, 2], [1, 3], [1, 2]), Line, BLUE)
    assert way.points == [(2.0, 0.0), (3.0, 1.0), (2.0, 1.0)]
    assert of(drawing(ferry(), [0, 2], [1, 7]), Circle, RED)  # over the falls
    (dive,) = of(drawing(deep_sea(), [0, 0], [1, 1], [2, 0]), Line, BLUE)
    assert dive.points == [(0.0, 0.0), (1.0, -1.0), (0.0, -2.0)]


def test_a_market_shows_prices_over_time() -> None:
    found = drawing(market(), [0.0, 1.0], [math.log(1.2), 0.98], strike=5.0)
    (way,) = of(found, Line, BLUE)
    np.testing.assert_allclose(way.points, [(0.0, 5.0), (0.02, 6.0)], atol=1e-6)
    assert found.stretched


@functools.cache
def played(name: str) -> tuple[list[Any], list[Any]]:
    """Parameters at the nominal model and at two corners of the box, and the states of random play on each."""
    env = made(name)
    corners: list[dict[str, float]] = [{}, *({key: ends[i] for key, ends in env.box.items()} for i in (0, 1))]
    models = [dataclasses.replace(env.nominal, **corner) for corner in corners]
    step, sample, ways = jax.jit(env.step), jax.jit(env.actions.sample), []
    for i, params in enumerate(models):
        state, _ = env.reset(jax.random.key(i), params)
        way = [state]
        for t in range(6):
            key = jax.random.key(100 * i + t)
            outcome = step(key, way[-1], sample(key), params)
            way.append(outcome.state)
            if outcome.terminated:
                break
        ways.append(jax.tree.map(np.asarray, way))
    return [jax.tree.map(np.asarray, params) for params in models], ways


@pytest.mark.parametrize("name", IN_JAX)
def test_every_environment_draws_what_can_be_seen(name: str) -> None:
    env = made(name)
    assert env.draw
    for params, way in zip(*played(name), strict=True):
        for count in (1, len(way)):
            found = env.draw(way[:count], params)
            left, bottom, right, top = found.view
            assert all(np.isfinite(places(shape)).all() for shape in found.shapes)
            assert left < right
            assert bottom < top
            # Something that matters is within the view.
            bright = [places(shape).reshape(-1)[:2] for shape in found.shapes if shape.colour in (BLUE, INK)]
            assert any(left <= x <= right and bottom <= y <= top for x, y in bright)
        assert env.draw(way, params) != env.draw(way[:1], params)
        assert len(np.unique(np.asarray(paint(found, (120, 90))).reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize("name", ["cartpole", "ferry"])
@pytest.mark.parametrize(
    "around",
    [
        lambda env: with_memory(env, 3),
        lambda env: disturbed(env, sensor_noise=0.5, action_delay=2),
        lambda env: disturbable(env, 0.1, 1, 3),
        lambda env: disturbable(with_memory(env, 2), 0.1, 1, 3),
    ],
)
def test_wrappers_show_the_environment_within(name: str, around: Callable[[Environment], Environment]) -> None:
    """Noise is on what is observed, not on what is."""
    env = made(name)
    outer = around(env)
    state, _ = outer.reset(jax.random.key(3), outer.nominal)
    inner = state
    while isinstance(inner, tuple):
        inner = inner[0]
    assert drawing(outer, state) == drawing(env, inner)


# --- painting -----------------------------------------------------------------------------------------------------


def test_a_shape_is_painted_where_it_is() -> None:
    shapes = [Circle((3.0, 1.0), 0.5, "#FF0000"), Polygon([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)], "#0000FF")]
    # Four units of 50 pixels across; the height would have room for eight of them.
    picture = np.asarray(paint(Drawing(shapes, (0.0, 0.0, 4.0, 2.0)), (200, 400)))
    red, blue = ((picture == colour).all(axis=2) for colour in ((255, 0, 0), (0, 0, 255)))
    rows, columns = np.nonzero(red)
    assert (rows.mean(), columns.mean()) == (pytest.approx(199.5, abs=1), pytest.approx(149.5, abs=1))
    assert red.sum() == pytest.approx(math.pi * 25**2, rel=0.05)
    rows, columns = np.nonzero(blue)
    np.testing.assert_allclose([rows.min(), rows.max(), columns.min(), columns.max()], [200, 249, 0, 49], atol=1)
    stretched = np.asarray(paint(Drawing(shapes[1:], (0.0, 0.0, 4.0, 2.0), stretched=True), (200, 400)))
    rows, columns = np.nonzero((stretched == (0, 0, 255)).all(axis=2))
    np.testing.assert_allclose([rows.min(), rows.max(), columns.min(), columns.max()], [200, 399, 0, 49], atol=1)


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.floats(0, 1e30))
def test_whatever_is_far_away_can_be_painted(x: float, y: float, radius: float) -> None:
    shapes = [Line([(0.0, 0.0), (x, y)]), Circle((x, y), radius), Polygon([(x, y), (1.0, 0.0), (0.0, 1.0)]), Line([])]
    assert paint(Drawing([*shapes, Text((x, y), "far")], (0.0, 0.0, 1.0, 1.0)), (30, 20)).size == (30, 20)


@pytest.mark.parametrize(
    "text", ["", "a\nb\t\x00\x1b[31m", "\u202eabc", "🙂" * 50, "ß漢字ع", "w" * 5000, "[red]x[/red]"]
)
def test_any_words_have_room_in_a_pane(text: str) -> None:
    def picture(step: int, size: tuple[int, int]) -> Image.Image:
        return paint(Drawing([Text((0.5, 0.5), text)], (0.0, 0.0, 1.0, 1.0)), size)

    subject = Subject(text, [text, text[:10]], [0.0, -1e30], "failed", 1e-9, picture)
    layout = Layout(150)
    for step in (0, 1):
        pane = np.asarray(make_pane(subject, step, layout))
        edge = layout.edge
        colour = ImageColor.getrgb(RED if step else GREY)
        for border in (pane[:edge], pane[-edge:], pane[:, :edge], pane[:, -edge:]):
            assert (border == colour).all()  # no word leaves it


# --- what is played -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on Cart-Pole: `good` balances it with its best weights, `left` falls."""
    found = tmp_path_factory.mktemp("runs")
    write_run(found / "good", horizon=60)
    write_run(found / "left", "ddqn", best=LEFT, horizon=60)
    return found


def nothing(part: float) -> None:
    pass


def test_what_is_seen_is_the_first_episode_of_an_evaluation(folder: Path) -> None:
    """The rollout is shared: of three episodes with these random numbers, the first."""
    run = deeprok.load(folder / "good")
    model = {"pole_length": 1.3, "cart_mass": 6.5, "initial_range": 0.19}
    play = cell_player(run.env, weights_policy(run.network, run.env.actions, "mean"), 3)
    watch = make_player(run, run.env, 60)
    returns = set()
    for seed in range(4):
        models = {name: np.array([value]) for name, value in model.items()}
        expected = play(run.weights[None], models, 0.0, seed)[0, 0]
        found = watch(model, seed, 0.0, nothing)
        assert found.rewards.sum() == expected
        returns.add(float(expected))
    assert len(returns) > 1


def test_a_film_shows_what_evaluate_counts(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    runs, out = [folder / "left", folder / "good"], tmp_path / "x.gif"
    words = ["--at", "pole_length=0.3,cart_mass=0.5", "--seed", "4", "--size", "100", "--out"]
    assert main(["render", *map(str, runs), *words, str(out)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    at = {"pole_length": 0.3, "cart_mass": 0.5}
    left, good = (deeprok.evaluate(run, at, episodes=1, epsilon=0.0, seed=4) for run in runs)
    assert (left.overall.success, good.overall.success) == (0.0, 1.0)
    fallen = int(left.overall.mean_return)  # the step that fails earns nothing
    assert first == f"left (ddqn): failed after {fallen + 1} steps, return {fallen}"
    assert second == f"good (rtd_dqn): succeeded after 60 steps, return {good.overall.mean_return:g}"
    assert last == f"film: {out}"
    # A frame for each step until the last episode has ended, in real time: a step of Cart-Pole lasts 0.02 s.
    assert times(out) == [20] * 60 + [1000 * HOLD]


def test_random_actions_and_steps_reach_the_episode(folder: Path) -> None:
    run = deeprok.load(folder / "good")
    watch = make_player(run, run.env, 20)
    greedy, random, again = (watch({"gravity": 9.8}, 1, epsilon, nothing) for epsilon in (0.0, 1.0, 1.0))
    assert len(greedy.rewards) == 20
    pictures = [[each.picture(step, (60, 40)).tobytes() for step in (0, 5)] for each in (greedy, random, again)]
    assert pictures[0][0] == pictures[1][0]  # the same start
    assert pictures[0][1] != pictures[1][1]
    assert pictures[1] == pictures[2]


def test_a_state_that_is_not_a_number_is_shown_as_the_one_before(folder: Path) -> None:
    run = deeprok.load(folder / "left")
    env = run.env
    assert isinstance(env, Environment)

    def broken(key: Any, state: Any, action: Any, params: Any) -> Any:
        outcome = env.step(key, state, action, params)
        bad = jnp.full_like(state, jnp.inf)
        return dataclasses.replace(outcome, state=bad, obs=bad, terminated=jnp.array(True))

    found = make_player(run, env._replace(step=broken), 5)({"gravity": 9.8}, 0, 0.0, nothing)
    assert (len(found.rewards), found.over) == (1, True)
    assert found.picture(1, (60, 40)).tobytes() == found.picture(0, (60, 40)).tobytes()


def host_run(name: str, theta: np.ndarray, env: str, **settings: Any) -> Run:
    """A run in a stateful simulator, with these weights."""
    config = deeprok.make_config("dqn", "tuned", **TINY | {"env": env} | settings)
    learner = config.make_learner()
    belief = make_estimator(config.task()).init(jnp.asarray(theta))
    return Run(Path(name), config, "best", _agent_of(learner.view, belief))


def test_a_gymnasium_environment_is_seen_as_it_draws_itself(tmp_path: Path) -> None:
    runs = [host_run(name, theta, "CartPole-v1", horizon=40) for name, theta in (("left", LEFT), ("good", GOOD))]
    at = {"pole_length": 1.4}
    found = deeprok.render(runs, at, out=tmp_path / "film.gif", seed=3, size=150)
    for run, each in zip(runs, found, strict=True):
        play = cell_player(run.env, weights_policy(run.network, run.env.actions, "mean"), 2)
        returns = play(run.weights[None], {"pole_length": np.array([1.4])}, 0.0, 3)
        assert each.total == returns[0, 0]
        assert each.steps == each.total  # Gymnasium's failing step earns, too
    assert [each.ending for each in found] == ["failed", "succeeded"]
    assert len(times(tmp_path / "film.gif")) == 41
    # Gymnasium draws poles in one colour, the longer the more of it.
    counts = []
    for length in (0.5, 1.0):
        simulator = runs[0].env.make()
        simulator.reset(0, {"pole_length": length})
        counts.append((picture_of(simulator) == (202, 152, 101)).all(axis=2).sum())
    assert counts[1] > 1.5 * counts[0]


def test_wrapped_simulators_are_seen_as_they_are() -> None:
    env = ENVIRONMENTS["CartPole-v1"].make(ENVIRONMENTS["CartPole-v1"].settings())
    around = remembering_simulator(disturbed_simulator(env, sensor_noise=0.1), 2)
    pictures = []
    for each in (env, around):
        simulator = each.make()
        simulator.reset(5, {})
        simulator.step(1)
        pictures.append(picture_of(simulator))
    assert np.array_equal(*pictures)


class Visible(Simulated):
    shown: Any = np.full((8, 12, 3), 7, np.uint8)

    def picture(self) -> Any:
        return self.shown


def test_a_simulator_of_ones_own_can_be_seen() -> None:
    simulator = Visible(cartpole())
    assert np.array_equal(picture_of(simulator), Visible.shown)
    for wrong in (np.zeros((8, 12, 3)), np.zeros((8, 12), np.uint8), np.zeros((0, 4, 3), np.uint8), None):
        simulator.shown = wrong
        with pytest.raises(DeeprokError, match=r"shows an array of .*; a picture is \[H, W, 3\] bytes"):
            picture_of(simulator)
    with pytest.raises(DeeprokError, match="a Simulated, can't be seen; give it a method picture"):
        picture_of(SIMULATED_CARTPOLE.make())
    simulator.picture = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(DeeprokError, match="can't be seen: ZeroDivisionError"):
        picture_of(simulator)


def test_a_gymnasium_environment_without_pictures_says_so() -> None:
    simulator = from_gymnasium(Boat).make()
    simulator.reset(0, {})
    with pytest.raises(DeeprokError, match="Boat can't be seen: it has no render mode rgb_array"):
        picture_of(simulator)


def test_mujoco_without_a_display_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import mujoco

    def fails(*given: Any) -> Any:
        warnings.warn_explicit("no display", UserWarning, "glfw/__init__.py", 1, module="glfw")
        raise mujoco.FatalError("no OpenGL")

    monkeypatch.setattr(mujoco, "Renderer", fails)
    part = ENVIRONMENTS["InvertedPendulum-v5"]
    simulator = part.make(part.settings()).make()  # type: ignore[union-attr]
    simulator.reset(0, {})
    with pytest.raises(DeeprokError, match=r"can't be seen: FatalError: no OpenGL; .* set MUJOCO_GL to egl"):
        picture_of(simulator)


# --- films --------------------------------------------------------------------------------------------------------


def times(path: Path) -> list[int]:
    """How long each frame of a GIF lasts, in ms."""
    found = []
    with Image.open(path) as film:
        for i in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(i)
            found.append(film.info["duration"])
    return found


def frames(path: Path) -> list[np.ndarray]:
    found = []
    with Image.open(path) as film:
        for i in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(i)
            found.append(np.asarray(film.convert("RGB")))
    return found


def subject(steps: int, ending: str = "failed") -> Subject:
    def picture(step: int, size: tuple[int, int]) -> Image.Image:
        assert step <= steps
        return Image.new("RGB", size, (step, 0, 0))

    return Subject("x", ["nominal model"], [float(i) for i in range(steps + 1)], ending, None, picture)


@pytest.mark.parametrize(
    ("fps", "steps", "lasting"),
    [
        (50, 30, [20] * 30),
        (3, 4, [330, 340, 330, 330]),
        (100, 30, [20] * 15),  # a GIF can't be faster, and leaves out every other step
    ],
)
def test_a_film_has_a_frame_for_each_step_and_lasts_as_long(
    fps: float, steps: int, lasting: list[int], tmp_path: Path
) -> None:
    parts: list[float] = []
    write_film(Film([subject(steps)], 100), tmp_path / "film.gif", fps, parts.append)
    assert times(tmp_path / "film.gif")[:-1] == lasting
    assert times(tmp_path / "film.gif")[-1] == 1000 * HOLD
    assert sum(parts) == pytest.approx(1.0)


def test_the_same_policy_is_seen_twice_alike(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "film.gif"
    deeprok.render([folder / "left"] * 2, at="cart_mass=0.5", out=out, size=120, steps=12)
    layout = Layout(120)
    width, gap = layout.pane[0], 2 * layout.edge
    shown = frames(out)
    for frame in shown:
        one, other = (frame[:, left : left + width] for left in (gap, 2 * gap + width))
        assert np.array_equal(one, other)
    assert len({frame.tobytes() for frame in shown}) == len(shown) > 5


def test_a_pane_stays_as_it_was_at_the_end_until_all_have_ended() -> None:
    film = Film([subject(2), subject(6, "succeeded")], 120)
    assert film.steps == 6
    layout = Layout(120)
    width = 2 * layout.edge + layout.pane[0]
    both = [np.asarray(film.frame(step)) for step in range(7)]
    assert both[0].shape[:2] == film.size[::-1]
    for step in range(3, 7):
        assert np.array_equal(both[step][:, :width], both[2][:, :width])
        assert not np.array_equal(both[step][:, width:], both[step - 1][:, width:])
    marks = [{tuple(pixel) for pixel in half.reshape(-1, 3)} for half in (both[6][:, :width], both[6][:, width:])]
    red, green = ImageColor.getrgb(RED), ImageColor.getrgb(GREEN)
    assert red in marks[0] - marks[1]
    assert green in marks[1] - marks[0]
    assert red not in {tuple(pixel) for pixel in both[1].reshape(-1, 3)}


@pytest.mark.parametrize(("panes", "shape"), [(1, (1, 1)), (3, (3, 1)), (4, (2, 2)), (5, (3, 2))])
def test_panes_are_beside_and_below_each_other(panes: int, shape: tuple[int, int]) -> None:
    film, layout = Film([subject(1)] * panes, 101), Layout(101)
    for size, count, side in zip(film.size, shape, layout.pane, strict=True):
        assert size % 2 == 0
        assert 0 <= size - count * side - (count + 1) * 2 * layout.edge <= 1


@given(st.integers(0, 300), st.floats(0.5, 240.0))
def test_a_gif_is_as_fast_as_it_can_be(steps: int, fps: float) -> None:
    shown = shown_steps(Film([subject(steps)], 100), fps, 50.0)
    assert (shown[0], shown[-1]) == (0, steps)
    assert sorted(set(shown)) == shown
    if fps <= 50:
        assert shown == list(range(steps + 1))
    lasting = delays(len(shown), min(fps, 50.0))
    assert len(lasting) == len(shown)
    assert min(lasting) >= 2 or fps > 49
    assert sum(lasting[:-1]) / 100 == pytest.approx(steps / fps, abs=0.026)
    assert lasting[-1] / 100 == HOLD


@pytest.mark.parametrize(
    ("steps", "seconds", "fps"), [(200, 0.02, 50), (200, None, 30), (10, None, 2.5), (3, None, 2), (9, 1e9, 0.1)]
)
def test_usual_speed(steps: int, seconds: float | None, fps: float) -> None:
    assert render_module._usual_fps(steps, seconds) == pytest.approx(fps)


def test_a_video_has_as_many_frames(tmp_path: Path) -> None:
    import imageio_ffmpeg

    out = tmp_path / "film.mp4"
    write_film(Film([subject(10)], 121), out, 20, nothing)
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(out))
    assert count == 11 + HOLD * 20
    assert seconds == pytest.approx(count / 20, abs=0.06)
    reader = imageio_ffmpeg.read_frames(str(out))
    assert next(reader)["size"] == Layout(121).frame(1)
    reader.close()


def test_a_strip_has_moments_of_each_episode(tmp_path: Path) -> None:
    out = tmp_path / "strip.png"
    write_film(Film([subject(8), subject(80, "succeeded")], 110), out, 30, nothing)
    with Image.open(out) as picture:
        strip = np.asarray(picture.convert("RGB")).astype(int)
    layout = Layout(110)
    assert strip.shape[:2] == layout.frame(10, 5)[::-1]
    gap, (width, height) = 2 * layout.edge, layout.pane
    middles = [
        [strip[gap + row * (gap + height) + height - 20, gap + column * (gap + width) + 50, 0] for column in range(5)]
        for row in range(2)
    ]
    assert middles == [[0, 2, 4, 6, 8], [0, 20, 40, 60, 80]]  # a picture is as red as its step


@pytest.mark.parametrize("name", ["new.gif", "old.gif", "new.mp4"])
def test_a_film_that_is_interrupted_leaves_no_file(name: str, tmp_path: Path) -> None:
    class Interrupted(Film):
        def frame(self, step: int) -> Image.Image:
            if step == 3:
                raise KeyboardInterrupt
            return super().frame(step)

    (tmp_path / "old.gif").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_film(Interrupted([subject(5)], 100), tmp_path / name, 30, nothing)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old.gif": b"old"}


# --- what is asked for --------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    run: Run
    env: Any
    steps: int
    model: Mapping[str, float]
    seed: int
    epsilon: float


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What is asked of each player; nothing is played."""
    found: list[Asked] = []

    def make(run: Run, env: Any, steps: int) -> Any:
        def play(model: Mapping[str, float], seed: int, epsilon: float, advance: Any) -> Any:
            found.append(Asked(run, env, steps, model, seed, epsilon))
            return render_module.Episode(np.ones(2), True, lambda step, size: Image.new("RGB", size))

        return play

    monkeypatch.setattr(render_module, "make_player", make)
    return found


def test_every_option_reaches_the_film(folder: Path, tmp_path: Path, asked: list[Asked]) -> None:
    run, out = folder / "good", tmp_path / "film.gif"
    (shown,) = deeprok.render(run, out=out)
    assert shown == ("good (rtd_dqn)", str(run), 2.0, 2, "failed")
    usual = asked.pop()
    assert (usual.run.keep, usual.steps, usual.seed, usual.epsilon) == ("best", 60, 0, 0.0)
    assert usual.model == {
        **{field.name: getattr(CartPole(), field.name) for field in dataclasses.fields(CartPole())},
        "sensor_noise": 0.0,
        "action_delay": 0.0,
    }
    assert times(out)[:-1] == [20, 20]
    words = "--at gravity=9.9,action_delay=2 --steps 7 --seed 3 --epsilon 0.25 --keep last --fps 10 --size 130 --out"
    assert main(["render", str(run), *words.split(), str(out)]) == 0
    found = asked.pop()
    assert (found.run.keep, found.steps, found.seed, found.epsilon) == ("last", 7, 3, 0.25)
    assert found.model == {**usual.model, "gravity": 9.9, "action_delay": 2.0}
    assert times(out)[:-1] == [100, 100]
    assert frames(out)[0].shape[:2] == Layout(130).frame(1)[::-1]


def test_a_loaded_run_stands_for_its_weights(folder: Path, tmp_path: Path, asked: list[Asked]) -> None:
    loaded = deeprok.load(folder / "good", keep="last")
    for keep in (None, "last", "best"):
        deeprok.render([loaded], out=tmp_path / "x.png", keep=keep)  # type: ignore[arg-type]
    assert [each.run.keep for each in asked] == ["last", "last", "best"]
    np.testing.assert_array_equal(asked[0].run.weights, LEFT)
    np.testing.assert_array_equal(asked[2].run.weights, GOOD)


def test_noise_and_delay_are_parameters_and_runs_share_their_start(
    folder: Path, tmp_path: Path, asked: list[Asked]
) -> None:
    """A run with noise begins where one without does; what `at` does not name is as in the first run."""
    noisy = write_run(tmp_path / "noisy", "dqn", horizon=60, sensor_noise=0.1, action_delay=1, nominal="gravity=9")
    deeprok.render([folder / "good", noisy], "action_delay=2", out=tmp_path / "x.png")
    deeprok.render(noisy, out=tmp_path / "x.png")
    first, second, own = asked
    assert first.model == second.model
    assert [first.model[name] for name in ("sensor_noise", "action_delay", "gravity")] == [0.0, 2.0, 9.8]
    assert [own.model[name] for name in ("sensor_noise", "action_delay", "gravity")] == [0.1, 1.0, 9.0]
    starts = []
    for each in (first, second):
        params = dataclasses.replace(each.env.nominal, **each.model)
        starts.append(jax.tree.map(np.asarray, each.env.reset(jax.random.key(0), params)))
    jax.tree.map(np.testing.assert_array_equal, *starts)


def test_labels() -> None:
    config = deeprok.make_config("dqn", "tuned")
    runs = [Run(Path(name), config, "best", None) for name in ("a/dqn", "b/dqn", "c/x")]  # type: ignore[arg-type]
    assert render_module._labels(runs[1:], runs[1:]) == ["dqn", "x (dqn)"]
    assert render_module._labels(runs, runs) == ["a/dqn (dqn)", "b/dqn (dqn)", "c/x (dqn)"]


def test_a_pane_names_what_differs_from_the_nominal_model() -> None:
    nominal = CartPole()
    usual = {field.name: float(getattr(nominal, field.name)) for field in dataclasses.fields(nominal)}
    assert render_module._changes(nominal, usual) == ["nominal model"]
    model = usual | {"pole_length": 1.4, "initial_range": 0.1, "gravity": float(np.float32(9.8))}
    assert render_module._changes(nominal, model) == [
        "pole_length 1.4 m (nominal 0.5), initial_range 0.1 (nominal 0.05)",
        "pole_length 1.4 m, initial_range 0.1",
    ]


@pytest.mark.parametrize(
    ("total", "steps", "over", "ending"),
    [(196, 200, False, "succeeded"), (150, 200, False, "failed"), (20, 21, True, "failed"), (20, 20, False, "cut off")],
)
def test_endings(total: float, steps: int, over: bool, ending: str) -> None:
    episode = render_module.Episode(np.zeros(steps), over, lambda step, size: Image.new("RGB", size))
    assert render_module._ending(cartpole(), episode, total) == ending
    unsaid = SIMULATED_CARTPOLE._replace(assumed=("success_return",), horizon=200)
    assert render_module._ending(unsaid, episode, total) == ("cut off" if ending == "cut off" else "ended")


def test_a_folder_may_have_any_name(folder: Path, tmp_path: Path, capsys: Captured, asked: list[Asked]) -> None:
    run = shutil.copytree(folder / "good", tmp_path / "[red]a\n\x1b[1m🙂:x:")
    assert main(["render", str(run), "--size", "100"]) == 0
    assert "[red]a" in capsys.readouterr().out
    assert (run / "render.gif").exists()


REFUSED = {
    "at: name": ("--at pole_lenght=1", "unknown parameter in at 'pole_lenght': did you mean 'pole_length'?"),
    "at: value": ("--at pole_length=-1", "at gives pole_length the value -1, which must be positive"),
    "at: no number": ("--at gravity=nan", "at gives gravity the value nan, which must be positive and finite"),
    "at: form": ("--at pole_length", "at: 'pole_length' can't be read; the form is name=value"),
    "at: range": ("--at gravity=1:2", "at: 'gravity=1.0:2.0' can't be read; the form is name=value"),
    "at: noise": ("--at sensor_noise=-1", "sensor_noise is -1.0; it must be a number of at least 0"),
    "at: delay": ("--at action_delay=1.5", "action_delay is 1.5; it must be a whole number from 0 to 100"),
    "ending": ("--out film.avi", "out is film.avi; it must end with .gif, .mp4 or .png"),
    "no folder": ("--out nowhere/film.gif", "out is nowhere/film.gif, but there is no folder nowhere"),
    "steps": ("--steps 0", "steps is 0; it must be from 1 to 100000"),
    "epsilon": ("--epsilon 1.5", "epsilon is 1.5; it must be a probability"),
    "fps": ("--fps 0", "fps is 0; it must be from 0.1 to 240"),
    "fps: no number": ("--fps nan", "fps is nan; it must be from 0.1 to 240"),
    "size": ("--size 5", "size is 5; it must be from 100 to 2000 pixels"),
    "seed": ("--seed -1", "seed is -1; it must be from 0 to"),
    "no run": ("nowhere", "no run folder nowhere"),
    "another environment": ("{other}", "runs are compared in the same environment only"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_mistakes_are_one_sentence(
    kind: str, folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, sentence = REFUSED[kind]
    if "{other}" in words:
        config = json.loads((folder / "good" / "config.json").read_text())
        config["environment"]["horizon"] = 61
        shutil.copytree(folder / "good", tmp_path / "other")
        (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    before = sorted(tmp_path.rglob("*"))
    given = words.format(other="other").split()
    out = [] if "--out" in given else ["--out", "x.png"]
    assert main(["render", str(folder / "good"), *given, *out]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_mistakes_in_python(folder: Path, tmp_path: Path) -> None:
    run, out = folder / "good", tmp_path / "x.gif"
    with pytest.raises(DeeprokError, match="unknown keep 'worst'"):
        deeprok.render(run, out=out, keep="worst")  # type: ignore[arg-type]
    with pytest.raises(DeeprokError, match="runs has 0 of them; it must have from 1 to 12"):
        deeprok.render([], out=out)
    with pytest.raises(DeeprokError, match="at is 3; it must be text"):
        deeprok.render(run, 3, out=out)  # type: ignore[arg-type]
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(DeeprokError, match=r"out is .*, which is a folder"):
        deeprok.render(run, out=tmp_path / "folder.gif")


def test_a_video_without_its_package_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(DeeprokError, match="MP4 videos need the extra video"):
        deeprok.render(folder / "good", out="film.mp4")
    assert set(files.ENCODERS) == {".gif", ".mp4", ".png"}


BAD_DRAWINGS: dict[str, tuple[Any, str]] = {
    "no drawing": (lambda states, params: [], r"draw of cartpole returned \[\]; it must be a Drawing"),
    "no shape": (lambda states, params: Drawing(["x"], (0, 0, 1, 1)), "has 'x'; it may have Line, Polygon"),
    "no colour": (
        lambda states, params: Drawing([Line([], "rde")], (0, 0, 1, 1)),
        "the colour 'rde'; it must be a name",
    ),
    "no view": (lambda states, params: Drawing([], (1, 0, 0, 1)), r"the view \(1, 0, 0, 1\); it must be left, bottom"),
    "no numbers": (
        lambda states, params: Drawing([Line([(math.nan, 0.0)])], (0, 0, 1, 1)),
        "no finite numbers, in the first state",
    ),
    "an error": (lambda states, params: states[0].x, "draw of cartpole fails: AttributeError"),
    "another error": (lambda states, params: math.sqrt(-1.0), "draw of cartpole fails: ValueError"),
}


@pytest.mark.parametrize("kind", BAD_DRAWINGS)
def test_a_draw_of_ones_own_that_is_wrong_says_what(kind: str) -> None:
    draw, sentence = BAD_DRAWINGS[kind]
    picture = _painter(cartpole()._replace(draw=draw), [np.zeros(4)], CartPole())
    with pytest.raises(DeeprokError, match=sentence):
        picture(0, (60, 40))


def test_an_environment_without_a_drawing_says_how_to_give_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_module, "undisturbed", lambda config: cartpole(horizon=60)._replace(draw=None))
    with pytest.raises(DeeprokError, match=r"'cartpole', which can't be seen: it has no draw; give its Environment a"):
        deeprok.render(folder / "good", out="x.png")
