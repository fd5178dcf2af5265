"""How far preconditioned SGLD is from the exact posterior of a linear regression: the table of its page.

python docs/examples/langevin_bias.py
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.estimators import psgld

R, N = 0.25, 100  # noise of a target, targets
rng = np.random.default_rng(0)
mixing = np.array([[1.0, 0.6, 0.0, 0.0], [0.0, 1.0, 0.4, 0.0], [0.0, 0.0, 0.5, 0.1], [0.0, 0.0, 0.0, 2.0]])
X = rng.normal(size=(N, 4)) @ mixing
y = X @ np.array([1.0, -0.5, 0.3, 0.0]) + np.sqrt(R) * rng.normal(size=N)

# What there is to find: under the prior N(0, I) the posterior is normal.
precision = np.eye(4) + X.T @ X / R
covariance = np.linalg.inv(precision)
mean = covariance @ X.T @ y / R


class Bias(NamedTuple):
    """Of many chains together, against the posterior."""

    shift: float  # largest distance of a weight's mean, in posterior deviations
    narrowest: float  # least ratio of a weight's deviation to the posterior's
    widest: float  # largest


def measure(batch: int, step: float, updates: int, chains: int, adapted: int = 1000, **options: Any) -> Bias:
    """Runs chains from draws of the posterior and compares where they are after each tenth update."""
    sampler = psgld(R, step, decay=0.0, data_size=N, burn_in=adapted, thinning=updates, members=1, **options)

    def chain(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        # V begins as the mean square of the gradients, so that no chain is thrown far out at first.
        start = dataclasses.replace(sampler.init(theta), V=jnp.full(4, squares))

        def one(state: Any, rows: jax.Array) -> tuple[Any, None]:
            return sampler.update(state, lambda t, x: t @ x, jnp.asarray(X)[rows], jnp.asarray(y)[rows])[0], None

        def ten(carry: Any, i: jax.Array) -> tuple[Any, None]:
            state, total, square = carry
            drawn = jax.random.randint(jax.random.fold_in(key, i), (10, batch), 0, N)
            state, _ = jax.lax.scan(one, state, drawn if batch < N else jnp.tile(jnp.arange(N), (10, 1)))
            off = jnp.where(state.updates > adapted, state.theta - mean, 0.0)
            return (state, total + off, square + off**2), None

        nothing = jnp.zeros(4)
        (_, total, square), _ = jax.lax.scan(ten, (start, nothing, nothing), jnp.arange((adapted + updates) // 10))
        return total / (updates // 10), square / (updates // 10)

    squares = float(np.mean(((y - X @ mean)[:, None] * X / R) ** 2) / batch)
    draws = rng.multivariate_normal(mean, covariance, size=chains)
    total, square = jax.jit(jax.vmap(chain))(jnp.asarray(draws), jax.random.split(jax.random.key(1), chains))
    shift, second = np.mean(total, axis=0), np.mean(square, axis=0)
    exact = np.sqrt(np.diag(covariance))
    ratio = np.sqrt(second - shift**2) / exact
    return Bias(float(np.max(np.abs(shift) / exact)), float(ratio.min()), float(ratio.max()))


ROWS: dict[str, dict[str, Any]] = {
    "frozen after the burn-in": {"frozen": True},
    "adaptive, α = 0.99": {},
    "adaptive, α = 0.99, Γ": {"gamma_term": True},
    "adaptive, α = 0.9": {"smoothing": 0.9},
    "adaptive, α = 0.9, Γ": {"smoothing": 0.9, "gamma_term": True},
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--step", type=float, default=1e-4)
    arguments = parser.parse_args()
    print("| preconditioner | B | means off by | deviations, as a ratio |")
    print("|---|---|---|---|")
    with jax.enable_x64(True):
        for batch in (N, 10):
            for name, options in ROWS.items():
                found = measure(batch, arguments.step, arguments.updates, arguments.chains, **options)
                ratios = f"{found.narrowest:.2f} – {found.widest:.2f}"
                print(f"| {name} | {batch} | {found.shift:.2f} | {ratios} |", flush=True)
