"""Multilayer perceptrons trained by the extended Kalman filter and by back-propagation, a sample at a time.

Run it with

    python docs/examples/singhal_wu.py --out docs/algorithms/singhal_wu.png

It prints the tables of docs/algorithms/singhal_wu.md and draws its figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from deeprok.agents.network import MLP
from deeprok.estimators import Estimator, ekf, gradient, stack_outputs

# The problems: points of a square, and the class of each.


def corners(key, count):
    return jax.random.rademacher(key, (count, 2), float)


def square(key, count):
    return jax.random.uniform(key, (count, 2), minval=-1.0, maxval=1.0)


def xor(x):
    return (x[..., 0] * x[..., 1] < 0).astype(int)


def disjoint(x):
    """Two discs are of class 1, two of class 2, and what is around them of class 0."""
    in_disc = jnp.sum((jnp.abs(x) - 0.5) ** 2, axis=-1) < 0.4**2
    return jnp.where(in_disc, 1 + xor(x), 0)


def meshed(x):
    """Three bands whose square teeth mesh."""
    tooth = jnp.where(jnp.floor(2.0 * (x[..., 0] + 1.0)) % 2 == 0, 0.25, -0.25)
    return jnp.digitize(x[..., 1] + tooth, jnp.array([-1 / 3, 1 / 3]))


class Problem(NamedTuple):
    """Samples, their classes, and a network: one output where there are two classes, else one for each."""

    draw: Callable[..., jax.Array]
    label: Callable[[jax.Array], jax.Array]
    network: MLP
    tests: np.ndarray  # [T, 2] where errors are counted

    def outputs(self, theta, x):
        """What the network says of each class, 0 to 1."""
        return jax.nn.sigmoid(self.network.apply(theta, x))

    def targets(self, xs):
        """What it should say [B, O]."""
        classes, outputs = self.label(xs), self.network.sizes[-1]
        return classes[:, None].astype(float) if outputs == 1 else jax.nn.one_hot(classes, outputs)

    def decide(self, theta, xs):
        """The class [B] that it finds."""
        found = jax.vmap(self.outputs, (None, 0))(theta, xs)
        return (found[:, 0] > 0.5).astype(int) if found.shape[1] == 1 else jnp.argmax(found, axis=1)


def lattice(points):
    """Centres [points², 2] of the square's cells, row by row."""
    ticks = (np.arange(points) + 0.5) / points * 2.0 - 1.0
    return np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)


PROBLEMS = {
    "XOR, two hidden units": Problem(corners, xor, MLP((2, 2, 1), "tanh", (1.0, 1.0)), 2.0 * lattice(2)),
    "XOR, four hidden units": Problem(corners, xor, MLP((2, 4, 1), "tanh", (1.0, 1.0)), 2.0 * lattice(2)),
    "disjoint regions": Problem(square, disjoint, MLP((2, 10, 10, 3), "tanh", (1.0, 1.0)), lattice(60)),
    "meshed regions": Problem(square, meshed, MLP((2, 10, 10, 3), "tanh", (1.0, 1.0)), lattice(60)),
}


# What is compared: a grid of settings for each.


class Method(NamedTuple):
    """An estimator for each setting of a grid."""

    make: Callable[[Any], Estimator]
    settings: tuple[float, ...]


METHODS = {
    "Kalman filter": Method(lambda noise: ekf(lambda _: noise, 1e-5, 1.0, "joint"), (0.01, 0.03, 0.1, 0.3)),
    "Adam": Method(lambda rate: gradient("adam", rate), (0.001, 0.003, 0.01, 0.03, 0.1)),
    "SGD": Method(lambda rate: gradient("sgd", rate), (0.1, 0.3, 1.0, 3.0, 10.0)),
}


class Learnt(NamedTuple):
    """What became of each setting and seed."""

    errors: np.ndarray  # [settings, seeds, looks] share of the test points in a wrong class
    thetas: np.ndarray  # [settings, seeds, n] weights at the end


def learn(problem: Problem, method: Method, samples: int, every: int, seeds) -> Learnt:
    """Shows a stream of samples, each once and by itself, and looks at the error after every so many."""

    def run(setting, seed):
        estimator = method.make(setting)
        theta_key, stream_key = jax.random.split(jax.random.key(seed))
        xs = problem.draw(stream_key, samples)
        stream = [a.reshape(-1, every, 1, a.shape[1]) for a in (xs, problem.targets(xs))]

        def update(state, sample):
            return estimator.update(state, *stack_outputs(problem.outputs, *sample))[0], None

        def look(state, part):
            state, _ = jax.lax.scan(update, state, part)
            wrong = problem.decide(estimator.mean(state), problem.tests) != problem.label(problem.tests)
            return state, jnp.mean(wrong.astype(float))

        state, errors = jax.lax.scan(look, estimator.init(problem.network.init(theta_key)), stream)
        return errors, estimator.mean(state)

    def all_seeds(setting):
        return jax.vmap(run, (None, 0))(setting, seeds)

    return Learnt(*map(np.asarray, jax.jit(lambda grid: jax.lax.map(all_seeds, grid))(jnp.array(method.settings))))


def learnt_after(errors):
    """Presentations [...] after which no look [..., looks] finds an error any more; infinite where the last does."""
    looks = errors.shape[-1]
    last = np.where(errors > 0, np.arange(1, looks + 1), 0).max(axis=-1)
    return np.where(last < looks, last + 1.0, np.inf)


# What is reported. Settings are chosen on other seeds than those that are shown.


class Shown(NamedTuple):
    """One method on one problem, with the settings that did best on other seeds."""

    errors: np.ndarray  # [seeds, looks]
    theta: np.ndarray  # [n] of the seed in the middle, at the end
    setting: float  # that was best at the end


def merits(name: str, errors):
    """How bad each setting is at each look [settings, looks], from errors [settings, seeds, looks]."""
    if PROBLEMS[name].draw is not corners:
        return np.log(floored(errors)).mean(axis=1)
    steps = np.minimum(learnt_after(errors), 2 * errors.shape[-1])  # a failure counts as twice the run
    return np.repeat(np.log(steps).mean(axis=1)[:, None], errors.shape[-1], axis=1)


def floored(errors):
    """No error is below half a point of the lattice, for its logarithm's sake."""
    return np.maximum(errors, 0.5 / len(lattice(60)))


def chosen(name: str, method: str, learnt: Learnt) -> Shown:
    """The first half of the seeds, with settings chosen on the second.

    Back-propagation has at each look the rate that is best there; the filter keeps one setting all along.
    """
    tested, tuning = np.split(learnt.errors, 2, axis=1)
    bad = merits(name, tuning)
    at_end = int(bad[:, -1].argmin())
    best = np.full(bad.shape[1], at_end) if method == "Kalman filter" else bad.argmin(axis=0)
    errors = tested[best, :, np.arange(len(best))].T
    middle = np.argsort(tested[at_end, :, -1], kind="stable")[(errors.shape[0] - 1) // 2]
    return Shown(errors, learnt.thetas[at_end, middle], METHODS[method].settings[at_end])


def interval(logs):
    """exp of the mean over seeds, and its 95 % interval by resampling seeds: [3, ...]."""
    drawn = np.random.default_rng(0).integers(len(logs), size=(2000, len(logs)))
    return np.exp(np.stack([logs.mean(axis=0), *np.quantile(logs[drawn].mean(axis=1), [0.025, 0.975], axis=0)]))


def wilson(successes: int, trials: int):
    """95 % interval of a success rate (Wilson's)."""
    z, share = 1.96, successes / trials
    middle, half = share + z**2 / (2 * trials), z * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return (middle - half) / (1 + z**2 / trials), (middle + half) / (1 + z**2 / trials)


def corner_table(name: str, rows):
    print(f"| {name} | setting | learnt | 95 % interval | presentations until learnt | at most |")
    print("|---|---|---|---|---|---|")
    for method, shown in rows.items():
        after = learnt_after(shown.errors)
        low, high = wilson(int(np.isfinite(after).sum()), len(after))
        steps = after[np.isfinite(after)]
        cells = ["–", "–"]
        if len(steps):
            mean, least, most = interval(np.log(steps))
            cells = [f"{mean:.0f} ({least:.0f} – {most:.0f})", f"{steps.max():.0f}"]
        cells = [f"{shown.setting:g}", f"{len(steps)} of {len(after)}", f"{low:.2f} – {high:.2f}", *cells]
        print(f"| {method} | " + " | ".join(cells) + " |")


def region_table(name: str, rows, every: int):
    looks = next(iter(rows.values())).errors.shape[1]
    columns = [n for n in (500, 1000, 3000) if n <= looks * every]
    print(f"| {name} | setting | " + " | ".join(f"error after {n}, %" for n in columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for method, shown in rows.items():
        mean, low, high = 100 * interval(np.log(floored(shown.errors)))
        cells = [f"{mean[i]:.1f} ({low[i]:.1f} – {high[i]:.1f})" for i in np.array(columns) // every - 1]
        print(f"| {method} | {shown.setting:g} | " + " | ".join(cells) + " |")


# Okabe and Ito's colours, which colour-blind readers can tell apart, and a line for each.
STYLES = {"Kalman filter": ("#0072B2", "-"), "Adam": ("#000000", "--"), "SGD": ("#D55E00", "-.")}
CLASSES = ListedColormap(["#F4F0D0", "#56B4E9", "#E69F00"])


def draw(results, every, out):
    """A row for each problem: learning, what there is to find, and what each method has found in the end."""
    width = [2.1] + [1] * (1 + len(METHODS))
    figure, axes = plt.subplots(
        len(results), len(width), figsize=(11, 2.3 * len(results)), width_ratios=width, layout="constrained"
    )
    fine = lattice(120)
    for row, (name, rows) in zip(axes, results.items(), strict=True):
        problem, curve = PROBLEMS[name], row[0]
        for method, shown in rows.items():
            color, line = STYLES[method]
            seen = every[name] * np.arange(1, shown.errors.shape[1] + 1)
            if problem.draw is corners:
                share = np.mean(learnt_after(shown.errors)[:, None] <= seen, axis=0)
                curve.step(seen, 100 * share, color=color, linestyle=line, label=method, where="post")
            else:
                mean, low, high = 100 * interval(np.log(floored(shown.errors)))
                curve.plot(seen, mean, color=color, linestyle=line, label=method)
                curve.fill_between(seen, low, high, color=color, alpha=0.2, linewidth=0)
        curve.grid(alpha=0.3)
        if problem.draw is corners:
            curve.set(xscale="log", ylabel="seeds that have learnt, %", ylim=(-4, 104))
            ticks = [n for n in (1, 10, 100, 1000, 10000) if n <= seen[-1]]
            curve.set_xticks(ticks, [str(n) for n in ticks])
            curve.legend(frameon=False, loc="upper left")
        else:
            curve.set(yscale="log", ylabel="points in a wrong class, %", ylim=(1.5, 80))
            curve.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
        curve.minorticks_off()
        curve.set_title(name, loc="left", fontsize="medium")
        reach = 1.5 if problem.draw is corners else 1.0  # its samples are the corners
        found = {"the truth": problem.label(reach * fine)}
        found |= {method: problem.decide(shown.theta, reach * fine) for method, shown in rows.items()}
        for axis, (title, classes) in zip(row[1:], found.items(), strict=True):
            image = np.asarray(classes).reshape(120, 120)
            axis.imshow(image, cmap=CLASSES, vmin=0, vmax=2, origin="lower", extent=(-reach, reach, -reach, reach))
            if problem.draw is corners:
                axis.scatter(*problem.tests.T, c="black", s=12)
            axis.set(xticks=[], yticks=[])
            if name == next(iter(results)):
                axis.set_title(title, fontsize="medium")
    axes[-1][0].set_xlabel("samples seen")
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description="Compare the Kalman filter with back-propagation, sample by sample.")
    parser.add_argument("--out", type=Path, default=Path("singhal_wu.png"), help="where the figure goes")
    parser.add_argument("--samples", type=int, default=3000, help="length of a stream, a multiple of 100")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    seeds = jnp.concatenate([jnp.arange(args.seeds), 1000 + jnp.arange(args.seeds)])
    every = {name: 1 if problem.draw is corners else 100 for name, problem in PROBLEMS.items()}
    results = {
        name: {
            method: chosen(name, method, learn(problem, grid, args.samples, every[name], seeds))
            for method, grid in METHODS.items()
        }
        for name, problem in PROBLEMS.items()
    }
    for name, rows in results.items():
        if PROBLEMS[name].draw is corners:
            corner_table(name, rows)
        else:
            region_table(name, rows, every[name])
        print()
    draw(results, every, args.out)


if __name__ == "__main__":
    main()
