"""The cost of each covariance structure against the number of weights, beside Adam's: time and memory of an update."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from harness import Measure, Prepare, Progress, Result, race, scan_measure

#: Units of each of the two hidden layers -> updates in a repeat.
WIDTHS = {20: 200, 53: 100, 96: 20, 312: 20, 997: 20}
INPUTS, OUTPUTS = 4, 2
#: Weights that `full` is measured up to: P takes 400 MB.
FULL = 10_000
#: Weights in a block.
BLOCKS = {"blocks of 100": 100, "blocks of 20": 20, "blocks of 10": 10}
#: Those held to the bar, each with a batch of one.
HELD = ("blocks of 10", "diagonal", "low_rank(10)")
NAMES = ("Adam", "full", *BLOCKS, "low_rank(10)", "diagonal")
BATCHES = (1, 10)
BAR = 10.0

FIGURE = Path(__file__).parent.parent / "docs" / "benchmarks" / "structures.png"


def weights(width: int) -> int:
    """n of a network."""
    sizes = (INPUTS, width, width, OUTPUTS)
    return sum((i + 1) * o for i, o in pairwise(sizes))


def estimator_of(name: str, n: int, batch: int) -> Any:
    """An estimator by its name in the table."""
    from deeprok.estimators import block, diagonal, ekf, full, gradient, low_rank

    if name == "Adam":
        return gradient("adam", 3e-4)
    if name in BLOCKS:
        size = BLOCKS[name]
        structure = block(*(slice(start, min(start + size, n)) for start in range(0, n, size)))
    else:
        structure = {"full": full, "diagonal": diagonal, "low_rank(10)": low_rank(10)}[name]
    return ekf(30.0 * batch, 1e-6, 1.0, "joint", covariance=structure)


def update(name: str, width: int, batch: int, steps: int) -> Measure:
    """Updates inside one scan, as in training: the belief stays where it is, and memory is warm."""
    import jax
    import jax.numpy as jnp

    from deeprok.agents.network import MLP

    network = MLP((INPUTS, width, width, OUTPUTS), "tanh", (1.0,) * INPUTS)
    estimator = estimator_of(name, network.num_weights, batch)
    rng = np.random.default_rng(0)
    batches = (
        jnp.asarray(rng.normal(size=(steps, batch, INPUTS)), jnp.float32),
        jnp.asarray(rng.integers(0, OUTPUTS, (steps, batch)), jnp.int32),
        jnp.asarray(rng.uniform(0, 10, (steps, batch)), jnp.float32),
    )

    def h(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        obs, action = x
        return network.apply(theta, obs)[action]

    def step(belief: Any, data: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        obs, action, label = data
        return estimator.update(belief, h, (obs, action), label)

    return scan_measure(step, estimator, network.init(jax.random.key(0)), batches, steps)


def title(name: str, n: int, batch: int) -> str:
    """How a contender is called."""
    return f"n = {n:,}, B = {batch}: {name}"


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    result = Result("One update, gradients included, in joint batches of B", {})
    largest = max(WIDTHS)
    for width, steps in WIDTHS.items():
        n = weights(width)
        for batch in BATCHES if width == largest else BATCHES[:1]:
            contenders: dict[str, Prepare] = {
                title(name, n, batch): partial(update, name, width, batch, steps)
                for name in NAMES
                if name != "full" or n <= FULL
            }
            result.times |= race(contenders, repeats, progress, result.memory)
    n = weights(largest)
    for batch in BATCHES:
        for name in NAMES[2:]:
            held = batch == 1 and name in HELD
            result.compare(
                f"n = {n:,}, B = {batch}: {name}, time over that of Adam",
                title(name, n, batch),
                title("Adam", n, batch),
                *(("<=", BAR) if held else ()),
            )
    some, many = sorted(n for n in map(weights, WIDTHS) if n <= FULL)[-2:]
    result.compare(
        f"full: time with {many:,} weights over that with {some:,}, over (n / n)²",
        title("full", many, 1),
        title("full", some, 1),
        scale=(some / many) ** 2,
    )
    draw(result)
    return result


def draw(result: Result) -> None:
    """Saves the figure: time and memory against n, with a batch of one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Okabe and Ito's colours; line and marker tell the curves apart without them.
    styles = dict(
        zip(
            NAMES,
            [
                ("#000000", "--", "x"),
                ("#D55E00", "-", "s"),
                ("#CC79A7", "-.", "D"),
                ("#56B4E9", "-.", "P"),
                ("#E69F00", "-", "v"),
                ("#0072B2", "-", "o"),
                ("#009E73", "-", "^"),
            ],
            strict=True,
        )
    )
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    units = {
        "time of an update (ms)": (result.best, 1e3),
        "memory of an update (MB)": (result.memory.__getitem__, 1e-6),
    }
    for panel, (label, (value, unit)) in zip(panels, units.items(), strict=True):
        for name, (colour, line, marker) in styles.items():
            ns = [n for n in map(weights, WIDTHS) if title(name, n, 1) in result.times]
            ys = [unit * value(title(name, n, 1)) for n in ns]
            panel.plot(ns, ys, color=colour, linestyle=line, marker=marker, markersize=5)
        panel.set(xscale="log", yscale="log", xlabel="weights n", ylabel=label)
        panel.grid(which="major", alpha=0.3)
    names = {"low_rank(10)": "low rank (10)"}
    lines = panels[0].get_lines()
    words = [names.get(name, name) for name in NAMES]
    figure.legend(lines, words, loc="outside lower center", ncols=len(NAMES), frameon=False, fontsize=9)
    figure.suptitle("One update with one sample, gradients included, on one core", fontsize=11)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
