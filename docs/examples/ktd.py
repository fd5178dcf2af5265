"""Kalman Temporal Differences on a corridor: what is known of the values where it walks, and beyond.

Run it with

    python docs/examples/ktd.py --out docs/algorithms/ktd.png

It draws the figure of docs/algorithms/ktd.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from deeprok.agents.ktd import ktd
from deeprok.agents.targets import v_difference
from deeprok.environments.base import Transition
from deeprok.estimators.unscented import predict

DISCOUNT, STRIDE, DOOR = 0.9, 0.02, 0.6
CENTRES, WIDTH = np.linspace(0, 1, 21), 0.06


def value(theta, x):
    """V(x), linear in Gaussians along the corridor."""
    return jnp.exp(-0.5 * ((x - CENTRES) / WIDTH) ** 2) @ theta


def reward(x):
    return jnp.sin(10.0 * x)


def walk(key, steps):
    """Steps to the right from anywhere before the door, behind which the episode is over."""
    x = jax.random.uniform(key, (steps,), maxval=DOOR)
    after = x + STRIDE
    return Transition(
        obs=x,
        action=jnp.zeros(steps, jnp.int32),
        reward=reward(x)[:, None],
        next_obs=after[:, None],
        terminated=(after > DOOR)[:, None],
    )


def returns(x):
    """The rewards from x to the door, discounted."""
    ahead = jnp.arange(round(DOOR / STRIDE) + 1)
    places = x[:, None] + STRIDE * ahead
    return jnp.sum(jnp.where(places <= DOOR, DISCOUNT**ahead * reward(places), 0.0), axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("ktd.png"), help="PNG file of the figure")
    out = parser.parse_args().out

    learner = ktd(v_difference(value), DISCOUNT, observation_noise=0.01, prior_covariance=4.0)
    data = walk(jax.random.key(0), 400)
    places = jnp.linspace(0, 1, 201)
    seen = places <= DOOR - STRIDE
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    for panel, steps in zip(panels, (0, 12, 400), strict=True):
        walked = jax.tree.map(lambda leaf, steps=steps: leaf[:steps], data)
        state, _ = jax.lax.scan(learner.update, learner.init(jnp.zeros(len(CENTRES))), walked)
        mean, variance = predict(value, state, places)
        deviation = jnp.sqrt(variance)
        print(
            f"{steps:4d} steps: deviation {deviation[seen].mean():.2f} where it walks, "
            f"{deviation[places >= 0.8].mean():.2f} beyond 0.8; "
            f"error {jnp.sqrt(jnp.mean((mean - returns(places))[seen] ** 2)):.2f}"
        )
        panel.axvspan(DOOR, 1, color="0.93", zorder=0)
        panel.fill_between(places, mean - 2 * deviation, mean + 2 * deviation, color="#56B4E9", alpha=0.4, lw=0)
        panel.plot(places, mean, color="#0072B2", label="mean, ± 2 deviations")
        panel.plot(places[seen], returns(places)[seen], color="black", linestyle="--", label="true value")
        panel.plot(walked.obs, np.full(steps, -11.5), "|", color="#D55E00", markersize=5, label="steps")
        panel.set(title=f"{steps} steps", xlabel="place", xlim=(0, 1), ylim=(-12.5, 12.5))
        panel.title.set_fontsize(11)
    panels[0].set_ylabel("value")
    panels[-1].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
