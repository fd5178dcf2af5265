"""Learning where a robot's hand is, from a stream of samples: the Kalman filter and Adam by error per sample seen.

Run it with

    python docs/examples/regression.py --out docs/regression.png

It prints the table of docs/regression.md and draws its figure.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from deeprok.estimators import Estimator, block, diagonal, ekf, gradient, low_rank, predict, stack_outputs

# The task: three joint angles give the place of the hand, two coordinates; the arm is 1 m long.

LINKS = jnp.array([0.5, 0.3, 0.2])
NOISE = 0.05  # standard deviation of a measurement


def hand(joints):
    angles = jnp.cumsum(joints, axis=-1)
    return jnp.stack([jnp.sum(LINKS * jnp.cos(angles), -1), jnp.sum(LINKS * jnp.sin(angles), -1)], -1)


def measure(key, count):
    """Joint angles [count, 3], where the hand is [count, 2], and where a camera sees it."""
    place_key, noise_key = jax.random.split(key)
    joints = jax.random.uniform(place_key, (count, 3), minval=-jnp.pi / 2, maxval=jnp.pi / 2)
    truth = hand(joints)
    return joints, truth, truth + NOISE * jax.random.normal(noise_key, truth.shape)


# The network: any function of a flat θ will do.

SIZES = (3, 16, 16, 2)
SHAPES = [(inputs + 1, outputs) for inputs, outputs in itertools.pairwise(SIZES)]  # weights and, last, biases
ENDS = np.cumsum([rows * columns for rows, columns in SHAPES])
LAYERS = [slice(end - rows * columns, end) for end, (rows, columns) in zip(ENDS, SHAPES, strict=True)]


def network(theta, x):
    for layer, shape in zip(LAYERS, SHAPES, strict=True):
        weights = theta[layer].reshape(shape)
        y = x @ weights[:-1] + weights[-1]
        x = jnp.tanh(y)
    return y  # without the last tanh


# What is known of a weight before any sample: about 0, and small where a unit has many inputs.
PRIOR = np.concatenate([np.full(rows * columns, 1.0 / rows) for rows, columns in SHAPES])


def start(key):
    return jnp.sqrt(PRIOR) * jax.random.normal(key, PRIOR.shape)


# What is compared. Nothing of the filters is tuned: prior and noise are those of the task.

FILTERS = {
    "Kalman, full": ekf(NOISE**2, 0.0, PRIOR, "joint"),
    "Kalman, a block for each layer": ekf(NOISE**2, 0.0, PRIOR, "joint", covariance=block(*LAYERS)),
    "Kalman, low rank 20": ekf(NOISE**2, 0.0, PRIOR, "joint", covariance=low_rank(20)),
    "Kalman, diagonal": ekf(NOISE**2, 0.0, PRIOR, "joint", covariance=diagonal),
}
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
EVERY = 50  # samples between two looks at the error


def learn(estimator: Estimator, batch: int, samples: int, seeds):
    """Goes once through a stream, for each seed.

    Returns:
      errors [seeds, looks], and the share [seeds] of test measurements that lie in their 95 % intervals at the end.
    """

    def run(seed):
        stream_key, test_key, theta_key = jax.random.split(jax.random.key(seed), 3)
        joints, _, seen = measure(stream_key, samples)
        test_joints, truth, test_seen = measure(test_key, 1000)

        def update(state, sample):
            return estimator.update(state, *stack_outputs(network, *sample))[0], None

        def look(state, part):
            state, _ = jax.lax.scan(update, state, part)
            miss = jax.vmap(network, (None, 0))(estimator.mean(state), test_joints) - truth
            return state, jnp.sqrt(jnp.mean(miss**2))

        parts = [a.reshape(-1, EVERY // batch, batch, a.shape[-1]) for a in (joints, seen)]
        state, errors = jax.lax.scan(look, estimator.init(start(theta_key)), parts)
        h, pairs, targets = stack_outputs(network, test_joints, test_seen)
        prediction = predict(estimator, state, h, pairs)
        within = jnp.abs(targets - prediction.mean) < 1.96 * jnp.sqrt(prediction.variance + NOISE**2)
        return errors, jnp.mean(within)

    return jax.tree.map(np.asarray, jax.jit(lambda seeds: jax.lax.map(run, seeds))(seeds))


def adam(batch: int, samples: int, seeds):
    """The same of Adam, at each look with the rate that did best there on as many other seeds."""
    both = jnp.concatenate([seeds, seeds + 1000])
    errors = np.stack([learn(gradient("adam", rate), batch, samples, both)[0] for rate in RATES])
    tested, tuning = np.split(errors, 2, axis=1)  # [rates, seeds, looks]
    best = np.log(tuning).mean(axis=1).argmin(axis=0)
    return tested[best, :, np.arange(len(best))].T, None


def interval(errors):
    """Geometric mean over seeds, and its 95 % interval by resampling seeds: [3, looks]."""
    logs = np.log(errors)
    drawn = np.random.default_rng(0).integers(len(logs), size=(2000, len(logs)))
    return np.exp(np.stack([logs.mean(axis=0), *np.quantile(logs[drawn].mean(axis=1), [0.025, 0.975], axis=0)]))


def table(results):
    """The error in mm after so many samples, for each batch size and estimator."""
    looks = next(iter(results[1].values()))[0].shape[1]
    columns = [n for n in (100, 500, 2000) if n <= looks * EVERY]
    print("| | batch | " + "".join(f"error after {n} | " for n in columns) + "in their 95 % interval |")
    print("|---|---|" + "---|" * (len(columns) + 1))
    for batch, rows in results.items():
        for name, (errors, covered) in rows.items():
            mean, low, high = 1000 * interval(errors)
            cells = [f"{mean[i]:.1f} ({low[i]:.1f} – {high[i]:.1f})" for i in np.array(columns) // EVERY - 1]
            share = "" if covered is None else f"{100 * covered.mean():.1f} %"
            print(f"| {name} | {batch} | " + " | ".join([*cells, share]) + " |")


# Okabe and Ito's colours, which colour-blind readers can tell apart, and a line for each.
STYLES = [
    ("#0072B2", "-"),
    ("#009E73", "--"),
    ("#CC79A7", "-."),
    ("#E69F00", (0, (1, 1))),
    ("#000000", (0, (4, 1, 1, 1))),
]


def draw(results, out):
    """Error against samples seen, a panel for each batch size."""
    figure, axes = plt.subplots(1, len(results), figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, (batch, rows) in zip(axes, results.items(), strict=True):
        for (name, (errors, _)), (color, line) in zip(rows.items(), STYLES, strict=True):
            mean, low, high = 1000 * interval(errors)
            seen = EVERY * np.arange(1, len(mean) + 1)
            axis.plot(seen, mean, color=color, linestyle=line, label=name)
            axis.fill_between(seen, low, high, color=color, alpha=0.2, linewidth=0)
        axis.set(yscale="log", xlabel="samples seen", title="one at a time" if batch == 1 else f"{batch} at a time")
        axis.grid(alpha=0.3, which="both")
        axis.set_yticks([20, 50, 100, 200, 400], ["20", "50", "100", "200", "400"])
        axis.minorticks_off()
    axes[0].set_ylabel("error of a coordinate, mm")
    axes[-1].legend(frameon=False)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description="Compare the Kalman filter and Adam by error per sample seen.")
    parser.add_argument("--out", type=Path, default=Path("regression.png"), help="where the figure goes")
    parser.add_argument("--samples", type=int, default=2000, help=f"length of the stream, a multiple of {EVERY}")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    seeds = jnp.arange(args.seeds)
    results = {
        batch: {
            **{name: learn(estimator, batch, args.samples, seeds) for name, estimator in FILTERS.items()},
            "Adam, best rate at each point": adam(batch, args.samples, seeds),
        }
        for batch in (1, 10)
    }
    table(results)
    draw(results, args.out)


if __name__ == "__main__":
    main()
