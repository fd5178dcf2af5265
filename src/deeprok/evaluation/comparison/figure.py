"""A comparison as a figure: a map for each agent, or a curve, and its difference to the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deeprok import plot as figures
from deeprok.core.errors import DeeprokError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deeprok.evaluation.comparison.result import ComparedRun, Comparison

_DIFFERENCES = "PRGn"  # colour-blind readers can tell its ends apart; white is no difference
_WHITE_FROM = 0.6  # of the largest difference on, numbers are written in white


def draw(found: Comparison) -> Figure:
    """The figure of a comparison on a grid of one or two parameters."""
    check_drawable(list(found.grid))
    return _curves(found) if len(found.grid) == 1 else _maps(found)


def check_drawable(names: list[str]) -> None:
    """Raises unless a grid of these parameters can be drawn."""
    if len(names) > 2:
        raise DeeprokError(
            f"plot draws one or two parameters, but the grid has {len(names)}: {', '.join(names)}; "
            "'deeprok stress' searches all of them together, and draws that"
        )


def _scores(found: Comparison, run: ComparedRun) -> np.ndarray:
    """What is drawn of each cell: success in %, or the return where success is the same everywhere."""
    if found.measure == "success":
        return 100 * run.evaluation.success
    return run.evaluation.mean_return


def _titles(found: Comparison) -> tuple[str, str]:
    """What the scores and their differences are."""
    if found.measure == "success":
        return "success in %", "difference in success, in points"
    return "return", "difference in return"


def _maps(found: Comparison) -> Figure:
    """The maps of two agents and their difference in a row; of more, the differences below their maps."""
    from matplotlib.figure import Figure

    count = len(found.runs)
    rows, columns = (1, 3) if count == 2 else (2, count)
    figure = Figure(figsize=(3.6 * columns, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    maps, gaps = (panels[0, :2], panels[0, 2:]) if rows == 1 else (panels[0], panels[1, 1:])
    if rows == 2:
        panels[1, 0].axis("off")
    scores = np.stack([_scores(found, run) for run in found.runs])
    low, high = (0.0, 100.0) if found.measure == "success" else (float(scores.min()), float(scores.max()))
    ink = low + 0.55 * (high - low)
    limit = float(np.abs(scores - scores[0]).max()) or 1.0
    parameters, (shown, compared) = found.runs[0].evaluation.parameters, _titles(found)
    for panel, run, cells in zip(maps, found.runs, scores, strict=True):
        image = figures.draw_cells(panel, cells, found.grid, parameters, (low, high), "cividis", lambda x: x < ink)
        panel.set_title(f"{run.label}: {cells.mean():.1f}{' %' if found.measure == 'success' else ''}", fontsize=10)
    for panel, run, cells in zip(gaps, found.runs[1:], scores[1:] - scores[0], strict=True):
        gap = figures.draw_cells(
            panel, cells, found.grid, parameters, (-limit, limit), _DIFFERENCES, lambda x: abs(x) > _WHITE_FROM * limit
        )
        panel.set_title(f"{run.label} − {found.runs[0].label}: {cells.mean():+.1f}", fontsize=10)
    for i, panel in enumerate((*maps, *gaps)):
        figures.label_axes(panel, found.grid, parameters, up=i in ((0,) if rows == 1 else (0, count)))
        if panel.get_ylabel() == "":
            panel.set_yticks([])
    figure.colorbar(image, ax=list(maps), label=shown, pad=0.02)
    figure.colorbar(gap, ax=list(gaps), label=compared, pad=0.02)
    return figure


def _curves(found: Comparison) -> Figure:
    """The scores of all agents along one parameter, and how far they are from the first one's."""
    from matplotlib.figure import Figure

    ((name, values),) = found.grid.items()
    parameters, (shown, compared) = found.runs[0].evaluation.parameters, _titles(found)
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    first = _scores(found, found.runs[0])
    for i, run in enumerate(found.runs):
        style = figures.STYLES[i % len(figures.STYLES)]
        scores, spread = _scores(found, run), _spread(found, run)
        figures.draw_band(left, values, scores, scores - spread, scores + spread, style, run.label)
        if i:
            figures.draw_band(right, values, scores - first, scores - first, scores - first, style)
    right.axhline(0.0, color=figures.STYLES[0][0], linewidth=1)
    for panel in (left, right):
        if name in parameters:
            figures.mark_nominal(panel, parameters[name].nominal)
        panel.set_xlabel(figures.axis_label(name, parameters))
    several = any(len(run.seeds) > 1 for run in found.runs)
    left.set_title("mean ± one s.d. of the seeds" if several else "", fontsize=10)
    left.set_ylabel(shown)
    right.set_title(f"minus {found.runs[0].label}", fontsize=10)
    right.set_ylabel(compared)
    figure.legend(loc="outside lower center", ncols=min(len(found.runs), 3), frameon=False, fontsize=8)
    return figure


def _spread(found: Comparison, run: ComparedRun) -> np.ndarray:
    """The standard deviation over seeds, in each cell; 0 of a single one."""
    scale = 100 if found.measure == "success" else 1
    return scale * np.std([getattr(one, found.measure) for one in run.evaluation.per_seed], axis=0)
