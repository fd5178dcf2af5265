from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from deeprok.agents.network import ACTIVATIONS, MLP

PAPER = MLP((4, 20, 20, 2), "tanh", (1.0,) * 4)


def test_the_papers_network_has_562_weights() -> None:
    assert PAPER.num_weights == 562
    assert PAPER.init(jax.random.key(0)).shape == (562,)


@pytest.mark.parametrize("sizes", [(4, 20, 20, 2), (3, 5, 2), (1, 1, 1, 1, 4)])
def test_slices_cover_theta_in_order(sizes: tuple[int, ...]) -> None:
    network = MLP(sizes, "tanh", (1.0,) * sizes[0])
    assert [s.stop - s.start for s in network.slices] == [(i + 1) * o for i, o in itertools.pairwise(sizes)]
    theta = np.arange(network.num_weights)
    np.testing.assert_array_equal(np.concatenate([theta[s] for s in network.slices]), theta)
    for layer, where in zip(network.layers(jnp.asarray(theta)), network.slices, strict=True):
        np.testing.assert_array_equal(np.concatenate([layer.weights.reshape(-1), layer.bias]), theta[where])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_apply_equals_the_loop(x64, activation: str) -> None:
    scale = (1.0, 0.5, -2.0)
    network = MLP((3, 5, 4, 2), activation, scale)
    rng = np.random.default_rng(0)
    theta, obs = rng.normal(size=network.num_weights), rng.normal(size=(6, 3))
    expected = [oracles.mlp(theta, network.sizes, activation, np.array(scale), x) for x in obs]
    np.testing.assert_allclose(network.apply(jnp.asarray(theta), jnp.asarray(obs)), expected, rtol=1e-12)


def test_every_activation_has_an_oracle() -> None:
    assert set(ACTIVATIONS) == set(oracles.ACTIVATIONS)


def test_batched_equals_vmapped() -> None:
    theta = PAPER.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (3, 7, 4))
    batched = PAPER.apply(theta, obs)
    assert batched.shape == (3, 7, 2)
    mapped = jax.vmap(jax.vmap(lambda x: PAPER.apply(theta, x)))(obs)
    np.testing.assert_allclose(batched, mapped, rtol=1e-5, atol=1e-6)


def test_init_fills_the_range_of_each_layer() -> None:
    network = PAPER._replace(sizes=(4, 60, 50, 20))
    for layer in network.layers(network.init(jax.random.key(0))):
        bound = 1 / np.sqrt(layer.weights.shape[0])
        assert np.abs(layer.weights).max() <= bound
        assert layer.weights.max() > 0.97 * bound
        assert layer.weights.min() < -0.97 * bound
        np.testing.assert_array_equal(layer.bias, 0.0)


def test_init_differs_by_key_and_layer() -> None:
    network = MLP((5, 5, 5), "tanh", (1.0,) * 5)
    first, second = network.layers(network.init(jax.random.key(0)))
    assert not np.any(first.weights == second.weights)
    assert not np.array_equal(network.init(jax.random.key(0)), network.init(jax.random.key(1)))


def test_input_scale_multiplies_the_observation() -> None:
    theta = PAPER.init(jax.random.key(0))
    obs, scale = jnp.array([0.1, 0.2, 0.3, 0.4]), (1.0, 2.0, 3.0, 4.0)
    scaled = PAPER._replace(input_scale=scale).apply(theta, obs)
    np.testing.assert_allclose(scaled, PAPER.apply(theta, obs * jnp.array(scale)), rtol=1e-6)
    assert not np.allclose(scaled, PAPER.apply(theta, obs))
