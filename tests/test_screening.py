"""Screening: environments on grids, solved by dynamic programming and played."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import deeprok
from deeprok.cli import screen as command
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.environments import Axis, Choices, Environment, Outcome, StateGrid, pytree_dataclass, quantity
from deeprok.environments.ferry import exact_robust_q, ferry
from deeprok.evaluation.screening import discretise
from deeprok.evaluation.screening.discretise import Table, corners, grid_points, tabulate
from deeprok.evaluation.screening.planning import plan, worst_mean
from deeprok.evaluation.screening.result import POLICIES, Screening, Summary, judge
from deeprok.tabular import from_transitions, solve
from deeprok.uncertainty import cvar

Captured = pytest.CaptureFixture[str]

# --- a walk on a line between a cliff and a goal --------------------------------------------------------


@pytree_dataclass
class Walk:
    wind: Any = quantity(0.02, "", "drift of a step", positive=False)
    gust: Any = quantity(0.0, "", "size of a random push", positive=False)
    prize: Any = quantity(1.0, "", "reward of the goal")


def reset_walk(key: jax.Array, params: Walk) -> tuple[jax.Array, jax.Array]:
    place = jax.random.uniform(key, (1,), minval=0.1, maxval=0.5)
    return place, place


def step_walk(key: jax.Array, state: jax.Array, action: jax.Array, params: Walk) -> Outcome:
    push = params.gust * jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
    place = state + jnp.where(action == 1, 0.13, -0.07) + params.wind * (1 - state) + push
    goal, fell = place[0] > 1.0, place[0] < 0.0
    reward = jnp.where(goal, params.prize, jnp.where(fell, -1.0, -0.01)) - 0.3 * (action == 1) * (state[0] > 0.5)
    return Outcome(place, place, reward, goal | fell)


POINTS = 31
WALK = Environment(
    name="walk",
    reset=reset_walk,
    step=step_walk,
    nominal=Walk(),
    box={"wind": (-0.1, 0.05)},
    observation_scale=(1.0,),
    actions=Choices(("left", "right")),
    horizon=60,
    success_return=0.0,
    grid=StateGrid((Axis("place", 0.0, 1.0, POINTS),)),
)
WINDS = np.linspace(-0.1, 0.05, 5)


def walk_oracle(winds: np.ndarray, discount: float, level: float) -> np.ndarray:
    """Q [S, A] by value iteration in numpy, interpolated by numpy, CVaR as the mean of the worst by a weight each."""
    x = np.linspace(0, 1, POINTS)
    inside = np.clip(level * len(winds) - np.arange(len(winds)), 0, 1) / (level * len(winds))
    values = np.zeros(POINTS)
    for _ in range(800):
        q = np.zeros((POINTS, 2))
        for action, own in enumerate((-0.07, 0.13)):
            place = x + own + winds[:, None] * (1 - x)
            cost = 0.3 * action * (x > 0.5)
            reward = np.where(place > 1, 1.0, np.where(place < 0, -1.0, -0.01)) - cost
            ahead = np.where((place > 1) | (place < 0), 0.0, np.interp(place, x, values))
            q[:, action] = inside @ np.sort(reward + discount * ahead, axis=0)
        values = q.max(axis=1)
    return q


@pytest.fixture(scope="module")
def walk_table() -> Table:
    return tabulate(WALK, {"wind": WINDS}, draws=8)


@pytest.mark.parametrize("level", [1.0, 0.5, 0.25, 0.2, 0.01])
def test_values_are_those_of_value_iteration(walk_table: Table, level: float) -> None:
    found = plan(walk_table, 0.99, level, tolerance=1e-12)
    np.testing.assert_allclose(found, walk_oracle(WINDS, 0.99, level), rtol=0, atol=1e-9)


def test_one_model_alone(walk_table: Table) -> None:
    found = plan(walk_table.of_model(3), 0.9, 1.0, tolerance=1e-12)
    np.testing.assert_allclose(found, walk_oracle(WINDS[3:4], 0.9, 1.0), rtol=0, atol=1e-9)


def test_tolerance_is_relative_to_the_largest_value(walk_table: Table) -> None:
    larger = Table(walk_table.transition, 1000 * walk_table.reward)
    rough, exact = (plan(larger, 0.99, 0.25, tolerance=t) for t in (1e-3, 1e-12))
    assert 0 < np.abs(rough - exact).max() <= 1e-3 * np.abs(exact).max()


def test_progress_adds_up_to_one(walk_table: Table) -> None:
    parts: list[float] = []
    plan(walk_table, 0.99, 0.25, advance=parts.append)
    assert min(parts) > 0
    assert math.isclose(sum(parts), 1.0)


def test_the_ferrys_worst_case_is_its_exact_robust_q() -> None:
    currents = np.array([0.0, 1.0, 2.0])
    table = tabulate(ferry(), {"current": currents}, draws=2)
    for discount in (0.9, 0.99):
        exact = exact_robust_q(ferry(), {"current": currents}, discount)
        np.testing.assert_allclose(plan(table, discount, 1 / 3, tolerance=1e-13), exact.q, rtol=0, atol=1e-12)
    assert all(set(np.unique(matrix.data)) == {1.0} for matrix in table.transition)  # on the grid, not between


def as_rmdp(table: Table, discount: float) -> Any:
    """The same problem for `deeprok.tabular`, whose models share their rewards: chance states in between.

    An action in state s leads to one of M chance states, which then lead on as model m does. A step is two steps there,
    so the discount is √γ, and rewards of the second half are divided by it.
    """
    models, rows = table.reward.shape
    states = table.transition[0].shape[1]
    actions = rows // states
    end, half = states, math.sqrt(discount)
    found = [(end, 0, end, 1.0, 0.0)]
    for row in range(rows):
        for m in range(models):
            chance = states + 1 + row * models + m
            found.append((row // actions, row % actions, chance, 1 / models, 0.0))
            dense = table.transition[m].toarray()[row]
            for successor, p in [*enumerate(dense), (end, 1 - dense.sum())]:
                if p > 1e-12:
                    found.append((chance, 0, successor, p, table.reward[m, row] / half))
    return from_transitions(*(np.array(column) for column in zip(*found, strict=True)))


def test_values_are_those_of_the_tabular_solver() -> None:
    rng = np.random.default_rng(3)
    states, actions, models = 4, 2, 3
    dense = rng.dirichlet(np.full(states, 0.5), (models, states * actions)) * rng.uniform(0.5, 1, (models, 8, 1))
    table = Table(tuple(csr_array(matrix) for matrix in dense), rng.normal(size=(models, states * actions)))
    problem = as_rmdp(table, 0.95)
    for level in (1.0, 0.6, 1 / models):
        levels = np.where(np.arange(problem.states) < states, level, 1.0)  # what model m does is no choice of nature
        expected = solve(problem, "cvar", levels, math.sqrt(0.95), tol=1e-11)
        found = plan(table, 0.95, level, tolerance=1e-13)
        np.testing.assert_allclose(found, expected.q[:states, :actions], rtol=0, atol=1e-9)


def test_worst_mean_is_cvar() -> None:
    values = np.random.default_rng(0).normal(size=(7, 5))
    with jax.enable_x64(True):
        uniform = jnp.full(7, 1 / 7)
        of = jax.jit(jax.vmap(lambda v, level: cvar(uniform, v, level).value, (1, None)))
        for level in (1.0, 0.7, 3 / 7, 0.3, 1 / 7, 0.05):
            np.testing.assert_allclose(worst_mean(values, level), of(values, level), rtol=0, atol=1e-12)


# --- interpolation --------------------------------------------------------------------------------------

AXES = (Axis("x", -1.0, 2.0, 7), Axis("y", 0.0, 10.0, 2), Axis("z", 5.0, 6.0, 4))
CIRCLE = (Axis("angle", -math.pi, math.pi, 12, periodic=True), Axis("speed", -1.0, 1.0, 3))


@functools.cache
def interpolate(axes: tuple[Axis, ...]) -> Any:
    """`point -> (index, weight)` in double precision, compiled once."""
    compiled = jax.jit(lambda point: corners(axes, point))

    def at(point: Any) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            index, weight = compiled(np.asarray(point, float))
            return np.asarray(index), np.asarray(weight)

    return at


@given(x=st.floats(-1.5, 2.5), y=st.floats(-3.0, 13.0), z=st.floats(4.5, 6.5))
def test_weights_reproduce_linear_functions(x: float, y: float, z: float) -> None:
    index, weight = interpolate(AXES)((x, y, z))
    assert len(index) == 8
    assert (weight >= 0).all()
    assert math.isclose(weight.sum(), 1.0, rel_tol=1e-12)
    inside = np.clip((x, y, z), [axis.low for axis in AXES], [axis.high for axis in AXES])
    np.testing.assert_allclose(weight @ grid_points(AXES)[index], inside, rtol=0, atol=1e-12)
    product = weight @ np.prod(grid_points(AXES)[index], axis=1)  # of the coordinates: multilinear too
    assert math.isclose(product, np.prod(inside), rel_tol=0, abs_tol=1e-11)


def test_grid_states_are_their_own_corners() -> None:
    for axes in (AXES, CIRCLE):
        for state, point in enumerate(grid_points(axes)):
            index, weight = interpolate(axes)(point)
            assert math.isclose(weight[index == state].sum(), 1.0, rel_tol=1e-12)


@given(angle=st.floats(-20.0, 20.0))
def test_a_circle_has_no_ends(angle: float) -> None:
    index, weight = interpolate(CIRCLE)((angle, 0.0))
    points = grid_points(CIRCLE)
    assert len(points) == 36
    around = weight @ np.exp(1j * points[index, 0])
    # Between two points of a circle in twelve parts, the chord is within 1 − cos(15°) of the arc.
    assert abs(around - np.exp(1j * angle)) <= 1 - math.cos(math.pi / 12) + 1e-9
    again, weights = interpolate(CIRCLE)((angle + 2 * math.pi, 0.0))
    dense, turned = np.zeros((2, 36))
    np.add.at(dense, index, weight)
    np.add.at(turned, again, weights)
    np.testing.assert_allclose(dense, turned, rtol=0, atol=1e-9)


# --- noise, and what can't be tabulated -----------------------------------------------------------------


def test_noise_is_averaged_and_its_absence_found() -> None:
    gusts = {"wind": np.zeros(2), "gust": np.array([0.0, 1 / (POINTS - 1)])}
    draws = 64
    table = tabulate(WALK, gusts, draws, seed=1)
    calm, windy = (matrix.toarray() for matrix in table.transition)
    middle = 2 * (POINTS // 2)  # the row of going left in the middle
    assert np.flatnonzero(calm[middle]).tolist() == [12, 13]
    # A gust goes one grid state to either side: a share k / 64 up and the rest down.
    up, down = np.roll(calm[middle], 1), np.roll(calm[middle], -1)
    share = windy[middle, 14] / calm[middle, 13]
    assert math.isclose(share * draws, round(share * draws), rel_tol=1e-9)
    assert 0.25 < share < 0.75
    np.testing.assert_allclose(windy[middle], share * up + (1 - share) * down, rtol=0, atol=1e-12)
    # Every state has gusts of its own, so that what they lack of a mean of 0 does not add up along an episode.
    shares = np.array([windy[row, row // 2 - 1] / calm[row, row // 2 - 2] for row in range(12, 2 * POINTS - 2, 2)])
    assert len(set(np.round(shares * draws))) > 5
    assert abs(shares.mean() - 0.5) < 3.5 * 0.5 / math.sqrt(draws * len(shares))
    other = tabulate(WALK, gusts, 2, seed=2).transition[1].toarray()
    assert not np.array_equal(other, windy)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"grid": None}, "walk has no grid of states"),
        ({"grid": StateGrid((Axis("place", 0.0, 1.0, 1),))}, "the axis place of walk's grid has 1 points"),
        ({"grid": StateGrid((Axis("place", 1.0, 0.0, 5),))}, "from 1 to 0"),
        (
            {"step": lambda key, state, action, params: Outcome(state / 0.0, state, params.prize, jnp.bool_(False))},
            "action 0 of walk at place = 0 leads to a state that is not a number",
        ),
        (
            {"step": lambda key, state, action, params: Outcome(state, state, params.prize / 0.0, jnp.bool_(True))},
            "has the reward inf, with wind = 0",
        ),
    ],
)
def test_what_cannot_be_tabulated_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(deeprok.DeeprokError, match=sentence):
        tabulate(WALK._replace(**change), {"wind": np.zeros(1)}, 1)


def test_tables_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discretise, "_MOST_TRANSITIONS", 50)
    with pytest.raises(deeprok.DeeprokError, match=r"1 of 5 models of walk have .* more than 50; give fewer models"):
        tabulate(WALK, {"wind": WINDS}, 1)


# --- a whole screening ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walked() -> Screening:
    return deeprok.screen(WALK, episodes=30, seed=3)


def test_policies_of_the_ferry_do_what_is_known_of_them() -> None:
    """With a current of 2 the nominal policy can't land, and the robust one always does."""
    parts: list[float] = []
    found = deeprok.screen("ferry", grid={"current": [0, 1, 2]}, episodes=20, epsilon=0.0, advance=parts.append)
    assert math.isclose(sum(parts), 1.0)
    np.testing.assert_array_equal(found.of("worst_case")[0], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(found.of("each")[0], [1.0, 1.0, 1.0])
    assert found.of("nominal")[0][1] == 1.0
    assert found.of("nominal")[0][2] == 0.0
    assert (found.of("each")[1] >= found.of("worst_case")[1]).all()
    assert found.verdict.room == "robustness"
    exact = exact_robust_q(ferry(), {"current": np.array([0.0, 1.0, 2.0])}, 0.99)
    at_start = exact.q[:7].max(axis=1)  # of the near bank
    assert at_start.min() <= found.start_values["worst_case"] <= at_start.max()
    assert found.start_values["each"] > found.start_values["worst_case"]


def test_command_gives_what_python_gives(walked: Screening, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "walk.json"
    words = ["test_screening:WALK", "--episodes", "30", "--seed", "3", "--out", str(out), "--json"]
    assert main(["screen", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed == walked.to_dict()
    assert list(tmp_path.iterdir()) == [out]


def test_json_has_everything(walked: Screening) -> None:
    found = json.loads(json.dumps(walked.to_dict(), allow_nan=False))
    assert found["env"] == "walk"
    assert found["states"] == {"place": POINTS}
    assert found["grid"] == {"wind": WINDS.tolist()}
    assert found["parameters"] == {"wind": {"unit": "", "nominal": 0.02}}
    assert found["policies"] == list(POLICIES)
    assert np.shape(found["success"]) == np.shape(found["mean_return"]) == (6, 5)
    assert set(found["start_values"]) == set(POLICIES) - {"random"}
    assert set(found["summary"]) == set(POLICIES)
    assert {k: found[k] for k in ("discount", "cvar", "episodes", "epsilon", "draws", "seed")} == {
        "discount": 0.99,
        "cvar": 0.25,
        "episodes": 30,
        "epsilon": 0.05,
        "draws": 32,
        "seed": 3,
    }
    assert found["room"] in ("robustness", "adaptation", "margin", "none")
    assert found["verdict"] == walked.verdict.sentence


def test_summary_is_over_the_cells(walked: Screening) -> None:
    success, returns = walked.of("mean")
    one = walked.summary()["mean"]
    assert math.isclose(one.mean_success, success.mean())
    assert one.worst_success == success.min()
    assert one.worst_return == one.tail_return == returns.min()  # a tenth of 5 cells is less than one


def test_frame_and_figures(walked: Screening) -> None:
    frame = walked.to_frame()
    assert list(frame.columns) == ["policy", "wind", "success", "mean_return"]
    assert len(frame) == 30
    row = frame[(frame.policy == "cvar") & (frame.wind == WINDS[1])].iloc[0]
    assert row.success == walked.of("cvar")[0][1]
    (panel,) = walked.plot().axes
    assert [line.get_label() for line in panel.lines[:6]] == list(POLICIES)
    square = {name: getattr(walked, name) for name in walked.__dataclass_fields__}
    square["grid"] = {"wind": WINDS, "prize": np.array([1.0])}
    square |= {"success": walked.success[..., None], "mean_return": walked.mean_return[..., None]}
    titles = [panel.get_title() for panel in Screening(**square).plot().axes]
    assert titles[:6] == [f"{p}: {100 * walked.of(p)[0].mean():.1f} % success" for p in POLICIES]
    square["grid"] |= {"gust": np.array([0.0])}
    with pytest.raises(deeprok.DeeprokError, match="one or two parameters; this has 3"):
        Screening(**square).plot()


def test_table_fits_80_columns(walked: Screening, capsys: Captured) -> None:
    command._print(walked, WordConsole(width=80, force_terminal=True, color_system=None))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = {line.split()[0]: line.split() for line in lines if line.split() and line.split()[0] in POLICIES}
    assert shown.keys() == set(POLICIES)
    assert "value" in out
    assert " ".join(walked.verdict.sentence.split()) in " ".join(out.split())


def summary_of(**means: tuple[float, float, float]) -> dict[str, Summary]:
    """Success on average, success in the worst cell and mean return of each policy."""
    return {name: Summary(mean, worst, worst, back, back, back) for name, (mean, worst, back) in means.items()}


@pytest.mark.parametrize(
    ("policies", "room", "words"),
    [
        (
            {"each": (1.0, 1.0, 1.0), "mean": (0.8, 0.3, 0.8), "cvar": (0.9, 0.7, 0.9), "worst_case": (0.9, 0.8, 0.9)},
            "robustness",
            "Robust training can pay here. "
            "The success of the policy worst_case is 80 % in its worst cell and 90 % on average, that of the policy"
            " nominal 10 % and 50 %. The policy mean does worse",
        ),
        (
            {"each": (0.6, 0.6, 1.0), "mean": (0.9, 0.8, 0.9), "cvar": (0.9, 0.8, 0.9), "worst_case": (0.9, 0.8, 0.9)},
            "robustness",
            "The policy mean does as well: random models in training may be enough. Even the policy each does worse",
        ),
        (
            {"each": (1.0, 1.0, 1.0), "mean": (0.5, 0.1, 0.5), "cvar": (0.5, 0.19, 0.5), "worst_case": (0.4, 0.0, 0.5)},
            "adaptation",
            "knowing the model would. The success of the policy each is 100 %",
        ),
        (
            {"each": (1.0, 1.0, 1.0), "mean": (0.6, 0.1, 0.5), "cvar": (0.5, 0.1, 0.5), "worst_case": (0.4, 0.0, 0.5)},
            "adaptation",
            "nominal 10 % and 50 %. Of the policies for all models only mean is better than nominal.",
        ),
        (
            {"each": (0.5, 0.1, 0.52), "mean": (0.5, 0.1, 0.5), "cvar": (0.5, 0.1, 0.5), "worst_case": (0.5, 0.1, 0.5)},
            "none",
            "Robust training can not pay here. The nominal policy does as well as one made for each model",
        ),
        (
            {"each": (0.5, 0.1, 1.0), "mean": (0.9, 0.8, 0.9), "cvar": (0.9, 0.8, 0.9), "worst_case": (0.9, 0.8, 0.9)},
            "robustness",  # by returns
            "Robust training can pay here. The return of the policy worst_case is 0.9",
        ),
        (
            {"each": (0.5, 0.1, 0.5), "mean": (0.9, 0.8, 0.9), "cvar": (0.9, 0.8, 0.9), "worst_case": (0.9, 0.7, 0.9)},
            "margin",
            "Inconclusive. The success of the policy cvar is 80 % in its worst cell",
        ),
        (  # success says nothing, returns do: 0.2 of a range of 1.5
            {"each": (0.5, 0.1, 1.0), "mean": (0.5, 0.1, 0.5), "cvar": (0.5, 0.1, 0.7), "worst_case": (0.5, 0.1, 0.6)},
            "robustness",
            "The return of the policy cvar is 0.7 in its worst cell and 0.7 on average",
        ),
    ],
)
def test_verdicts(policies: dict[str, tuple[float, float, float]], room: str, words: str) -> None:
    found = judge(summary_of(nominal=(0.5, 0.1, 0.5), random=(0.0, 0.0, -0.5), **policies))
    assert found.room == room
    assert words in found.sentence


# --- mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("pendulum", "pendulum has continuous actions; screening needs actions to choose from"),
        ("cartpole", "cartpole has no grid of states (Environment.grid is None)"),
        ("fery", "unknown env 'fery': did you mean 'ferry'?"),
        ("nowhere:ENV", "env is 'nowhere:ENV', but there is no module 'nowhere'"),
        ("", "ENV must be given"),
        ("ferry --episodes 0", "episodes is 0; it must be at least 1"),
        ("ferry --draws 0", "draws is 0; it must be at least 1"),
        ("ferry --discount 1", "discount is 1; it must be at least 0 and below 1"),
        ("ferry --discount nan", "discount is nan; it must be at least 0 and below 1"),
        ("ferry --cvar 0", "cvar is 0; it must be a fraction above 0 and at most 1"),
        ("ferry --epsilon 2", "epsilon is 2; it must be a probability between 0 and 1"),
        ("ferry --seed -1", "seed is -1; it must be from 0 to 4294967295"),
        ("ferry --episodes many", "--episodes is 'many'; it must be a whole number"),
        ("ferry --grid curent=0:2:3", "unknown parameter in grid 'curent': did you mean 'current'?"),
        ("ferry --grid current=0:2", "grid: 'current=0:2' can't be read"),
        ("ferry --grid current=0:2:20000", "grid has 20,000 models; a screening takes at most 10,000"),
        ("ferry --box current=2:0", "box: the range current=2:0 is reversed"),
        ("ferry --box current=0:2 --grid current=0:2:3", "both grid and box are given"),
        ("ferry --out nowhere/ferry.json", "out is nowhere/ferry.json, but there is no folder nowhere"),
        ("ferry --out .", "out is ., which is a folder"),
        ("ferry --plot ferry.txt", "plot is ferry.txt; it must end with .png, .svg or .pdf"),
        ("ferry --plot a.png --grid current=0,fare=1,delay=1", "plot draws one or two parameters, but there are 3"),
        ("ferry --policy mean", "unknown option '--policy'"),
    ],
)
def test_mistakes_are_one_sentence(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["screen", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"deeprok: {sentence}")
    assert list(tmp_path.iterdir()) == []


def test_help_teaches(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["screen", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "before training anything" in said
    assert "the nominal policy does as well as one for each model" in said
