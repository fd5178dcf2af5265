"""The cost of Kalman Temporal Differences against the number of weights, beside the extended Kalman filter's."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from harness import Measure, Prepare, Progress, Result, race, scan_measure

#: Units of each of the two hidden layers -> updates in a repeat, and where an update takes n³ operations.
WIDTHS = {5: (400, 100), 10: (100, 20), 20: (20, 2), 30: (8, 1), 41: (3, 1)}
INPUTS, OUTPUTS = 4, 2
DISCOUNT = 0.9
EKF, SCALED, ADDED = NAMES = ("EKF", "KTD, noise ηP", "KTD, noise added")

FIGURE = Path(__file__).parent.parent / "docs" / "benchmarks" / "ktd.png"


def weights(width: int) -> int:
    """n of a network."""
    sizes = (INPUTS, width, width, OUTPUTS)
    return sum((i + 1) * o for i, o in pairwise(sizes))


def update(name: str, width: int, steps: int) -> Measure:
    """Updates inside one scan. All observe rewards through Q(s, a) − γ max Q(s', ·), one transition at a time."""
    import jax
    import jax.numpy as jnp

    from deeprok.agents.ktd import ktd
    from deeprok.agents.network import MLP
    from deeprok.agents.targets import q_difference
    from deeprok.environments.base import Transition
    from deeprok.estimators import ekf

    network = MLP((INPUTS, width, width, OUTPUTS), "tanh", (1.0,) * INPUTS)
    rng = np.random.default_rng(0)
    data = Transition(
        obs=jnp.asarray(rng.normal(size=(steps, INPUTS)), jnp.float32),
        action=jnp.asarray(rng.integers(0, OUTPUTS, steps), jnp.int32),
        reward=jnp.asarray(rng.uniform(0, 1, (steps, 1)), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(steps, 1, INPUTS)), jnp.float32),
        terminated=jnp.zeros((steps, 1), bool),
    )
    difference = q_difference(network.apply)
    learner: Any
    if name == EKF:
        learner = ekf(observation_noise=1.0, process_noise=1e-6, prior_covariance=0.1, batching="joint")

        def step(belief: Any, x: Transition) -> tuple[Any, Any]:
            one = jax.tree.map(lambda leaf: leaf[None], x)
            return learner.update(belief, lambda theta, x: difference.h(theta, x, DISCOUNT), one, x.reward)

    else:
        noise = {"adaptive_noise": 1e-6} if name == SCALED else {"process_noise": 1e-6}
        learner = ktd(difference, DISCOUNT, observation_noise=1.0, prior_covariance=0.1, **noise)
        step = learner.update

    return scan_measure(step, learner, network.init(jax.random.key(0)), data, steps)


def title(name: str, n: int) -> str:
    """How a contender is called."""
    return f"n = {n:,}: {name}"


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    result = Result("One update from one transition, 4-w-w-2 tanh", {})
    for width, (many, few) in WIDTHS.items():
        n = weights(width)
        contenders: dict[str, Prepare] = {
            title(name, n): partial(update, name, width, few if name == ADDED else many) for name in NAMES
        }
        result.times |= race(contenders, repeats, progress, result.memory)
        for name in (SCALED, ADDED):
            result.compare(f"n = {n:,}: {name}, time over that of the EKF", title(name, n), title(EKF, n))
    draw(result)
    return result


def draw(result: Result) -> None:
    """Saves the figure: time and memory against n."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Okabe and Ito's colours; line and marker tell the curves apart without them.
    styles = dict(zip(NAMES, [("#0072B2", "-", "o"), ("#D55E00", "--", "s"), ("#009E73", "-.", "^")], strict=True))
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    units = {
        "time of an update (ms)": (result.best, 1e3),
        "memory of an update (MB)": (result.memory.__getitem__, 1e-6),
    }
    ns = [weights(width) for width in WIDTHS]
    for panel, (label, (value, unit)) in zip(panels, units.items(), strict=True):
        for name, (colour, line, marker) in styles.items():
            ys = [unit * value(title(name, n)) for n in ns]
            panel.plot(ns, ys, color=colour, linestyle=line, marker=marker, markersize=5)
        panel.set(xscale="log", yscale="log", xlabel="weights n", ylabel=label)
        panel.grid(which="major", alpha=0.3)
    words = ("extended Kalman filter", "KTD, noise in proportion to P", "KTD, noise added")
    figure.legend(panels[0].get_lines(), words, loc="outside lower center", ncols=len(words), frameon=False, fontsize=9)
    figure.suptitle("One update from one transition, on one core", fontsize=11)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
