from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deeprok.core.errors import DeeprokError
from deeprok.environments import CartPole
from deeprok.uncertainty import (
    cvar,
    from_box,
    from_list,
    grid_models,
    minimum,
    parse_box,
    parse_grid,
    parse_models,
    parse_values,
    sample_box,
)

BOX = {"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)}


def test_box_is_read() -> None:
    assert parse_box("pole_length=0.2:1.4, cart_mass = 0.1:7", CartPole()) == BOX


def test_values_are_read() -> None:
    assert parse_values("gravity=1.6,force=2", CartPole(), "nominal") == {"gravity": 1.6, "force": 2.0}


def test_grid_has_both_edges() -> None:
    grid = parse_grid("pole_length=0.2:1.4:7,cart_mass=0.1:7:3,gravity=9", CartPole())
    np.testing.assert_allclose(grid["pole_length"], [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4])
    np.testing.assert_allclose(grid["cart_mass"], [0.1, 3.55, 7.0])
    assert grid["pole_length"][-1] == 1.4
    assert grid["gravity"].tolist() == [9.0]
    assert list(grid) == ["pole_length", "cart_mass", "gravity"]


def test_grid_models_vary_the_last_axis_fastest() -> None:
    models = grid_models({"pole_length": np.array([1.0, 2.0]), "cart_mass": np.array([3.0, 4.0, 5.0])})
    pairs = list(zip(models["pole_length"], models["cart_mass"], strict=True))
    assert pairs == list(itertools.product([1.0, 2.0], [3.0, 4.0, 5.0]))


def test_list_fills_with_nominal() -> None:
    models = parse_models("pole_length=0.4,cart_mass=2; pole_length=1:1.2:2; gravity=1", CartPole())
    assert {name: values.tolist() for name, values in models.items()} == {
        "pole_length": [0.4, 1.0, 1.2, 0.5],
        "cart_mass": [2.0, 1.5, 1.5, 1.5],
        "gravity": [9.8, 9.8, 9.8, 1.0],
    }


PARSERS = {
    "box": parse_box,
    "grid": parse_grid,
    "models": parse_models,
    "values": lambda text, params: parse_values(text, params, "nominal"),
}
BAD = [
    ("box", "pole_lenght=1:2", "pole_lenght.*did you mean 'pole_length'"),
    ("grid", "cart_mas=1:2:3", "cart_mas.*did you mean 'cart_mass'"),
    ("models", "cart_mass=1;polelength=1", "did you mean 'pole_length'"),
    ("values", "mass=1", "'mass'"),
    ("box", "xyzzy=1:2", "'xyzzy': known are"),
    ("box", "pole_length=2:1", "pole_length=2:1 is reversed"),
    ("grid", "pole_length=2:1:3", "pole_length=2:1 is .*reversed"),
    ("box", "pole_length=1:1", "pole_length=1:1 is empty"),
    ("grid", "pole_length=1:1:3", "pole_length=1:1 is empty"),
    ("box", "pole_length=1:2,pole_length=1:3", "pole_length twice"),
    ("grid", "pole_length=1,pole_length=2", "pole_length twice"),
    ("box", "cart_mass=0:7", "cart_mass the value 0.*positive"),
    ("grid", "cart_mass=-1:7:3", "cart_mass the value -1.*positive"),
    ("models", "cart_mass=-1", "positive"),
    ("values", "cart_mass=nan", "nan"),
    ("box", "cart_mass=1:inf", "inf"),
    ("grid", "pole_length=1:2:1", "1 points.*at least 2"),
    ("grid", "pole_length=1:2:0", "0 points"),
    ("grid", "pole_length=1:2:2.5", "2.5 points"),
    ("grid", "pole_length=1:2:-3", "-3 points"),
    ("grid", "pole_length=1:2:nan", "nan"),
    ("grid", "pole_length=1:2:inf", "inf"),
    *((kind, text, "can't be read") for kind in PARSERS for text in ["", "pole_length", "=1", "pole_length=a", ","]),
    ("box", "pole_length=1", "can't be read"),
    ("box", "pole_length=1:2:3", "can't be read"),
    ("grid", "pole_length=1:2", "can't be read"),
    ("grid", "pole_length=1:2:3:4", "can't be read"),
    ("values", "pole_length=1:2", "can't be read"),
    ("models", "pole_length=1;", "can't be read"),
    ("box", "pole_length=0.2:1.4;cart_mass=1:2", "can't be read"),
]


@pytest.mark.parametrize(("kind", "text", "said"), BAD)
def test_bad_text_gets_one_sentence(kind: str, text: str, said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        PARSERS[kind](text, CartPole())
    assert "\n" not in str(error.value)


def inside(models: dict[str, jax.Array]) -> bool:
    return all(((low <= models[name]) & (models[name] <= high)).all() for name, (low, high) in BOX.items())


def test_pairs() -> None:
    models = from_box(BOX, 5)
    drawn = models.draw(jax.random.key(0))
    assert models.size == 5
    assert {name: values.shape for name, values in drawn.items()} == dict.fromkeys(BOX, (5,))
    assert inside(drawn)
    assert len(np.unique(drawn["pole_length"])) == len(np.unique(drawn["cart_mass"])) == 5


def test_product_has_every_combination() -> None:
    models = from_box(BOX, 4, "product")
    drawn = models.draw(jax.random.key(0))
    assert models.size == 16
    assert inside(drawn)
    values = [np.unique(drawn[name]) for name in BOX]
    assert [len(v) for v in values] == [4, 4]
    found = set(zip(*(np.asarray(drawn[name]).tolist() for name in BOX), strict=True))
    assert found == set(itertools.product(*(v.tolist() for v in values)))


@pytest.mark.parametrize("draw", ["pairs", "product"])
def test_draws_differ_by_key_alone(draw: str) -> None:
    models = from_box(BOX, 3, draw)
    first, again, other = (models.draw(jax.random.key(k)) for k in (0, 0, 1))
    for name in BOX:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.any(first[name] == other[name])
    # Nor by the order of the names, which JAX sorts in what it compiles, nor by who names the numbers.
    assert list(BOX) != sorted(BOX)
    compiled = jax.jit(models.sample)(jax.random.key(0), models.numbers)
    wider = models._replace(numbers={name: (low, 2 * high) for name, (low, high) in BOX.items()})
    for name in BOX:
        np.testing.assert_allclose(compiled[name], first[name], rtol=1e-6)
        assert np.all(wider.draw(jax.random.key(0))[name] > first[name])


def test_box_is_filled_and_quantities_are_independent() -> None:
    drawn = {name: np.asarray(v) for name, v in sample_box(jax.random.key(0), BOX, (20_000,)).items()}
    for name, (low, high) in BOX.items():
        counts, _ = np.histogram(drawn[name], bins=10, range=(low, high))
        assert counts.sum() == 20_000
        np.testing.assert_allclose(counts, 2000, atol=200)
    assert abs(np.corrcoef(*drawn.values())[0, 1]) < 0.03


@pytest.mark.parametrize("edges", [0.1, 0.5, 0.9])
def test_ends_are_drawn_as_often_as_set(edges: float) -> None:
    """The ends themselves, each in half of the cases; all else is uniform between, in each quantity by itself."""
    count = 40_000
    drawn = {name: np.asarray(v) for name, v in sample_box(jax.random.key(1), BOX, (count,), edges).items()}
    for name, (low, high) in BOX.items():
        for end in (low, high):
            np.testing.assert_allclose(np.mean(drawn[name] == np.float32(end)), edges / 2, atol=0.01)
        between = drawn[name][~np.isin(drawn[name], np.float32([low, high]))]
        assert (between > low).all()
        assert (between < high).all()
        counts, _ = np.histogram(between, bins=8, range=(low, high))
        np.testing.assert_allclose(counts / count, (1 - edges) / 8, atol=0.005)
    at_ends = [np.isin(drawn[name], np.float32(BOX[name])) for name in BOX]
    np.testing.assert_allclose(np.mean(at_ends[0] & at_ends[1]), edges**2, atol=0.015)


@pytest.mark.bits
def test_without_edges_draws_are_the_plain_ones() -> None:
    keys = jax.random.split(jax.random.key(3), 2)
    plain = {
        name: jax.random.uniform(key, (50,), minval=low, maxval=high)
        for key, (name, (low, high)) in zip(keys, BOX.items(), strict=True)
    }
    for drawn in (sample_box(jax.random.key(3), BOX, (50,)), sample_box(jax.random.key(3), BOX, (50,), 0.0)):
        assert {name: values.tobytes() for name, values in drawn.items()} == {
            name: values.tobytes() for name, values in plain.items()
        }


@pytest.mark.parametrize("draw", ["pairs", "product"])
def test_sets_of_models_have_edges(draw: str) -> None:
    drawn = from_box(BOX, 30, draw, 0.4).draw(jax.random.key(2))
    values = sample_box(jax.random.key(2), BOX, (30,), 0.4)
    assert {float(low) for low, _ in BOX.values()} <= {round(float(v.min()), 6) for v in drawn.values()}
    for name in BOX:
        np.testing.assert_array_equal(np.unique(drawn[name]), np.unique(values[name]))


def test_fixed_list_is_always_the_same() -> None:
    models = from_list({"cart_mass": np.array([1.0, 2.0, 3.0])})
    assert models.size == 3
    for key in range(2):
        assert models.draw(jax.random.key(key))["cart_mass"].tolist() == [1.0, 2.0, 3.0]


CRAAM_P, CRAAM_Z = np.array([0.1, 0.2, 0.3, 0.1, 0.3, 0.0]), np.array([4.0, 5.0, 1.0, 2.0, -1.0, -2.0])


@pytest.mark.parametrize(("level", "value"), [(0.5, -0.2), (0.6, 0.0), (1.0, 1.6)])
@pytest.mark.parametrize("padding", [0, 70])  # both ways of ordering the outcomes
def test_known_cvar(x64, level: float, value: float, padding: int) -> None:
    p, z = np.pad(CRAAM_P, (0, padding)), np.pad(CRAAM_Z, (0, padding), constant_values=-9.0)
    worst = cvar(jnp.asarray(p), jnp.asarray(z), level)
    np.testing.assert_allclose(worst.value, value, atol=1e-12)
    np.testing.assert_allclose(worst.distribution @ z, value, atol=1e-12)


fast_cvar = jax.jit(cvar)
fast_minimum = jax.jit(minimum)
cvar_curve = jax.jit(jax.vmap(lambda p, values, level: cvar(p, values, level).value, (None, None, 0)))


@st.composite
def problems(draw) -> tuple[np.ndarray, np.ndarray]:
    """A distribution, often with empty outcomes, and values, often equal ones."""
    size = draw(st.sampled_from([1, 2, 5, 9]))  # few, since each is compiled
    mass = draw(hnp.arrays(float, size, elements=st.one_of(st.just(0.0), st.floats(0.01, 1.0))))
    mass[draw(st.integers(0, size - 1))] = 1.0
    elements = st.one_of(st.integers(-2, 2).map(float), st.floats(-10, 10, width=32))
    return mass / mass.sum(), draw(hnp.arrays(float, size, elements=elements))


@given(problem=problems(), level=st.floats(0.01, 1.0))
def test_cvar_solves_the_linear_program(problem: tuple[np.ndarray, np.ndarray], level: float) -> None:
    p, values = problem
    with jax.enable_x64(True):
        value, distribution = map(np.asarray, fast_cvar(p, values, level))
        # Outcomes without mass that push the size over the limit of the other way of ordering.
        many = [np.pad(x, (0, 70)) for x in (p, values)]
        long_value, long_distribution = map(np.asarray, fast_cvar(*many, level))
    np.testing.assert_allclose(value, oracles.cvar(p, values, level), atol=1e-8)
    np.testing.assert_allclose(distribution @ values, value, atol=1e-9)
    np.testing.assert_allclose(distribution.sum(), 1.0, atol=1e-9)
    assert (distribution >= 0).all()
    assert (distribution <= p / level + 1e-12).all()
    np.testing.assert_allclose(long_value, value, atol=1e-9)
    np.testing.assert_allclose(long_distribution[: len(p)], distribution, atol=1e-9)


@given(problem=problems())
def test_cvar_grows_from_the_minimum_to_the_mean(problem: tuple[np.ndarray, np.ndarray]) -> None:
    p, values = problem
    with jax.enable_x64(True):
        levels = np.linspace(0.005, 1.0, 40)
        curve = np.asarray(cvar_curve(p, values, levels))
    assert (np.diff(curve) >= -1e-9).all()
    np.testing.assert_allclose(curve[-1], p @ values, atol=1e-9)
    heavy = p[values == values[p > 0].min()].sum() >= levels[0]
    if heavy:
        np.testing.assert_allclose(curve[0], values[p > 0].min(), atol=1e-9)


@pytest.mark.parametrize("size", [1, 5, 20, 65, 100])
def test_a_small_fraction_is_the_minimum(size: int) -> None:
    values = jax.random.normal(jax.random.key(size), (size,))
    p = jnp.full(size, 1 / size)
    for level in (1 / size, 0.5 / size):
        np.testing.assert_allclose(cvar(p, values, level).value, values.min(), rtol=1e-5)
    if size > 1:
        assert cvar(p, values, 1.5 / size).value > values.min() + 1e-6


@pytest.mark.parametrize("size", [4, 80])
def test_ties_share_no_more_than_the_mass(size: int) -> None:
    value, distribution = cvar(jnp.full(size, 1 / size), jnp.ones(size), 0.4)
    np.testing.assert_allclose(value, 1.0, rtol=1e-6)
    np.testing.assert_allclose(distribution.sum(), 1.0, rtol=1e-6)
    assert (distribution <= 1 / size / 0.4 * 1.00001).all()


@given(problem=problems())
def test_minimum_is_attained(problem: tuple[np.ndarray, np.ndarray]) -> None:
    p, values = (np.asarray(x, np.float32) for x in problem)
    value, distribution = map(np.asarray, fast_minimum(p, values))
    assert value == min(values)
    assert distribution.sum() == 1
    assert distribution @ values == value
