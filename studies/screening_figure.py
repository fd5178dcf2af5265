"""The figure of the page on environments, drawn from the numbers of `environments.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deeprok.evaluation.screening.result import WORST_CELL
from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from studies.screening_page import POLICIES, answer, ordered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of each policy, from the bottom up.
_COLOURS = dict(zip(POLICIES, (BLACK, ORANGE, SKY, PURPLE, BLUE, GREEN), strict=True))
_COLUMNS = 4


def of_environments(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"worst-cell": worst_cells(found)}


def worst_cells(found: Mapping[str, Any]) -> Figure:
    """The worst cell of each policy, a panel for each environment: filled with random actions, hollow without.

    Args:
      found: what `environments.json` holds.
    """
    from matplotlib.figure import Figure

    names = ordered(found)
    rows = math.ceil(len(names) / _COLUMNS)
    figure = Figure(figsize=(9.6, 2.1 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharey=True, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, names, strict=False):
        its = found["environments"][name]
        judged = its[f"{found['epsilons'][0]:g}"]
        measure, label, factor = _measure_of(judged["summary"])
        for epsilon, style in zip(found["epsilons"], _STYLES, strict=True):
            summary = its[f"{epsilon:g}"]["summary"]
            for i, policy in enumerate(POLICIES):
                panel.plot(factor * summary[policy][measure], i, **style(_COLOURS[policy]))
        panel.set_title(f"{name}: {answer(judged)}", fontsize=10)
        panel.set_xlabel(label, fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", linewidth=0.6, alpha=0.5)
        panel.margins(x=0.12)
        if factor != 1:
            panel.set_xlim(-6, 106)
    panels[0, 0].set_yticks(range(len(POLICIES)), [policy.replace("_", " ") for policy in POLICIES])
    panels[0, 0].set_ylim(-0.6, len(POLICIES) - 0.4)
    marks = [panels[0, 0].plot([], [], **style("grey"))[0] for style in _STYLES]
    words = [
        f"ε = {epsilon:g}" + (" (verdicts in the titles)" if i == 0 else "")
        for i, epsilon in enumerate(found["epsilons"])
    ]
    figure.legend(marks, words, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _filled(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "o", "markersize": 6, "linestyle": "none"}


def _hollow(colour: str) -> dict[str, Any]:
    # Larger, so that both are seen where they are equal.
    return _filled(colour) | {"markersize": 10, "fillstyle": "none", "markeredgewidth": 1.2}


_STYLES = (_filled, _hollow)


def _measure_of(summary: Mapping[str, Any]) -> tuple[str, str, float]:
    """The score of an environment's panel, its label and unit: success where policies differ in it, else return."""
    success = [scores["worst_success"] for scores in summary.values()]
    if max(success) - min(success) >= WORST_CELL:
        return "worst_success", "success in the worst cell, %", 100.0
    return "worst_return", "return in the worst cell", 1.0
