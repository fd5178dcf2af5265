"""An American put with an uncertain probability of a rise: linear ADP against exact dynamic programming.

Writes put.png and put.svg into docs/adp, and prints the numbers of the page.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from deeprok.plot import save
from deeprok.tabular import adp, evaluate, problems, solve

DATES, DISCOUNT, STRIKE = 20, 0.998, 100.0


def exact(prices: np.ndarray, dates: int, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """The value of the put at each price, and that of waiting, on the tree that begins there.

    A put is worth less at a higher share price; so the worst of an L1 ball raises the probability of a
    rise by half its radius, everywhere.
    """
    chance, value = 0.5 + radius / 2, np.zeros((len(prices), dates + 1))
    for t in range(dates - 1, -1, -1):
        price = prices[:, None] * 1.02 ** np.arange(t + 1) * 0.98 ** (t - np.arange(t + 1.0))
        wait = DISCOUNT * (chance * value[:, 1 : t + 2] + (1 - chance) * value[:, : t + 1])
        value = np.maximum(np.maximum(STRIKE - price, 0), wait)
    return value[:, 0], wait[:, 0]


simulator = adp.american_put()
tree = problems.make("american_put")
lattice = np.array([(t, 100 * 1.02**k * 0.98 ** (t - k)) for t in range(DATES) for k in range(t + 1)])
grid, shown = np.arange(80, 100, 0.01), np.linspace(82, 118, 19)
figure = Figure(figsize=(9.2, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)

for radius, colour, marker, name in ((0.0, "#E69F00", "s", "nominal"), (0.2, "#0072B2", "o", "robust, L1 0.2")):
    found = adp.iterate(simulator, "l1", radius, DISCOUNT, episodes=2000, steps=DATES)
    value, _ = exact(shown, DATES, radius)
    fitted = adp.values(simulator, found.fit.weights, np.stack([0 * shown, shown], axis=1))

    best = solve(tree.model, "l1", radius, DISCOUNT, horizon=DATES).values[0, 0]
    rule = np.append(found.policy(lattice), 0)  # on the tree from 100; when all is over there is only action 0
    earned = evaluate(tree.model, rule, set="l1", radius=radius, discount=DISCOUNT, horizon=DATES).values[0, 0]
    at = adp.values(simulator, found.fit.weights, np.array([[0.0, 100.0]]))[0]
    print(f"{name}: {found.rounds} rounds, {found.fit.iterations} iterations, β = {found.fit.beta:.4f}")
    print(f"  largest error over prices {np.abs(fitted - value).max():.3f}")
    print(f"  at 100: exact {best:.4f}, ADP {at:.4f}, what its policy earns {earned:.4f}")

    left.plot(shown, value, color=colour, label=f"{name}: exact")
    left.plot(shown, fitted, color=colour, marker=marker, markersize=4.5, linestyle="", label=f"{name}: ADP")
    dates, bounds, learnt = np.arange(DATES - 1), [], []
    for t in dates:
        _, wait = exact(grid, DATES - t, radius)
        bounds.append(grid[STRIKE - grid >= wait].max(initial=0.0))
        stops = found.policy(np.stack([np.full(len(grid), float(t)), grid], axis=1)) == simulator.actions
        learnt.append(grid[stops].max(initial=0.0))
    right.plot(dates, bounds, color=colour, drawstyle="steps-mid")
    right.plot(dates, learnt, color=colour, marker=marker, markersize=4.5, linestyle="")

left.set_xlabel("price at date 0")
left.set_ylabel("value of the put")
left.set_title("value", fontsize=10)
right.set_xlabel("date")
right.set_ylabel("exercised up to this price")
right.set_xticks(range(0, DATES, 3))
right.set_title("exercise boundary", fontsize=10)
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
save(figure, Path(__file__).parent.parent / "adp" / "put")
