"""README's figure: success with the gravity of training and with one and a half times as much, from stored results.

python docs/examples/why.py --out docs/why.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE

RESULTS = Path(__file__).parents[1] / "results" / "results.json"
AGENTS = {
    "ddqn": ("Double-DQN", ORANGE, "s"),
    "ddqn_dr": ("Double-DQN, randomised models", PURPLE, "D"),
    "rtd_dqn": ("RTD-DQN (robust target)", GREEN, "^"),
    "deep_rok": ("Deep-RoK (robust target, Kalman filter)", BLUE, "o"),
}


def draw() -> Figure:
    results = json.loads(RESULTS.read_text())
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    panel = figure.subplots()
    for i, (name, (label, color, marker)) in enumerate(AGENTS.items()):
        row = results["agents"][name]
        strong = row["beyond"]["strong_gravity"]
        means = 100 * np.array([row["iqm_success"], strong["value"]])
        low, high = 100 * np.array([row["success_ci"], strong["ci"]]).T
        style = dict(color=color, marker=marker, capsize=3, linewidth=3 - 0.5 * i, label=label)
        panel.errorbar(np.array([0, 1]) + 0.035 * (i - 1.5), means, yerr=[means - low, high - means], **style)
    ceiling = results["references"]["lqr"]
    panel.plot(
        [-0.1, 1.1],
        [100 * ceiling["iqm_success"], 100 * ceiling["beyond"]["strong_gravity"]["value"]],
        color=BLACK,
        linestyle=":",
        label="regulator designed for each cell",
    )
    panel.set_xlim(-0.2, 1.2)
    panel.set_xticks([0, 1], ["gravity as in training, 9.8 m/s²", "gravity never seen, 14.7 m/s²"])
    panel.set_ylabel("successful episodes, %")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(loc="lower left", fontsize=8, frameon=False)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    draw().savefig(out, dpi=160)


if __name__ == "__main__":
    main()
