"""A stress test as a figure: margins around the nominal model, failing models, and sensitivities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok import plot as figures
from deeprok.evaluation.stress.space import Dimension

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deeprok.evaluation.stress.result import Stress, StressedRun

_BAR = 0.7  # of the room that a parameter has, for the bars of all runs
_ROOM = 0.15  # of the panel, for a number
_LARGEST_INDEX = 1.3  # that is drawn; what is estimated from few failures may be larger
_JITTER = 0.25  # of a step, so that models with the same whole number do not hide each other


def draw(found: Stress) -> Figure:
    """The figure of a stress test: margins, a panel of models for each run, and sensitivities."""
    from matplotlib.figure import Figure

    names = list(found.runs[0].sensitivity)  # the most sensitive first
    count = len(found.runs)
    figure = Figure(figsize=(3.9 * (2 + count), max(3.4, 1.6 + 0.5 * len(names))), layout="constrained")
    left, *middle, right = figure.subplots(1, 2 + count, squeeze=False)[0]
    _draw_margins(left, found, names)
    for panel, run in zip(middle, found.runs, strict=True):
        _draw_models(panel, found, run, names[:2])
    _draw_sensitivities(right, found, names)
    handles, labels = zip(
        *{
            label: (handle, label)
            for panel in (left, *middle, right)
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }.values(),
        strict=True,
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=min(9, len(labels)), frameon=False, fontsize=8)
    return figure


def _rows(panel: Any, names: list[str]) -> None:
    """Gives each parameter a row, the first one on top."""
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    panel.set_ylim(len(names) - 0.5, -0.5)


def _bars(found: Stress) -> list[tuple[StressedRun, str, float, float, str]]:
    """For each run its label, where its bar is within a row, how high, and its colour."""
    height = _BAR / len(found.runs)
    return [
        (run, label, (i + 0.5) * height - _BAR / 2, 0.85 * height, figures.STYLES[i % len(figures.STYLES)][0])
        for i, (run, label) in enumerate(zip(found.runs, found.labels, strict=True))
    ]


def _draw_margins(panel: Any, found: Stress, names: list[str]) -> None:
    """Bars from the lowest to the highest value at which a run works, in the range that was searched."""
    ranges = {each.name: each for each in found.space.dimensions}
    for row, name in enumerate(names):
        each = ranges[name]

        def place(value: float, each: Dimension = each) -> float:
            return (value - each.low) / (each.high - each.low)

        first = row == 0
        left, right = map(place, each.box)
        panel.barh(row, right - left, 0.95, left, color="0.9", zorder=0, label="box" if first else None)
        for run, label, offset, height, colour in _bars(found):
            margin = run.margin[name]
            start = 0.0 if margin.low is None else place(margin.low)
            end = 1.0 if margin.high is None else place(margin.high)
            called = label if first and len(found.runs) > 1 else None
            panel.barh(row + offset, end - start, height, start, color=colour, zorder=2, label=called)
            for value, x, outwards in ((margin.low, start, -1), (margin.high, end, 1)):
                if value is not None:
                    _write_end(panel, f"{value:.3g}", x, row + offset, outwards, end - start)
            marker = {"marker": "d", "markersize": 5, "color": figures.RED, "linestyle": "", "zorder": 5}
            panel.plot(np.clip(place(run.nominal.parameters[name]), 0, 1), row + offset, **marker)
    _rows(panel, names)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xticks([0, 1], ["lowest\nsearched", "highest\nsearched"])
    panel.set_title(f"success of at least {100 * found.threshold:g} %, others nominal", fontsize=9)


def _write_end(panel: Any, text: str, x: float, y: float, outwards: int, length: float) -> None:
    """Writes the value at an end of a bar: beside the bar, or within it where there is no room beside."""
    room = x if outwards < 0 else 1 - x
    inside = room < _ROOM and length > _ROOM
    towards = -outwards if inside else outwards
    style = {"color": "white" if inside else "black", "fontsize": 7, "va": "center", "zorder": 6}
    away = {"xytext": (3 * towards, 0), "textcoords": "offset points", "ha": "left" if towards > 0 else "right"}
    panel.annotate(text, (x, y), **away, **style)


def _draw_models(panel: Any, found: Stress, run: StressedRun, names: list[str]) -> None:
    """The models that fill the space evenly, in the two most sensitive parameters; with one, success along it."""
    index = [found.space.names.index(name) for name in names]
    spread = [found.space.dimensions[i] for i in index]
    even = run.tried.uniform()
    models, success = run.tried.models[even], run.tried.success[even]
    fails = success < found.threshold
    across = _spread(models[:, index[0]], spread[0])
    up = _spread(models[:, index[1]], spread[1]) if len(index) > 1 else 100 * success
    for which, colour, marker, size, label in (
        (~fails, figures.SKY, "o", 6, "works"),
        (fails, figures.BLACK, "x", 10, "fails"),
    ):
        panel.scatter(across[which], up[which], color=colour, marker=marker, s=size, linewidths=0.9, label=label)
    for model, colour, marker, size, label in (
        (run.nominal, figures.RED, "d", 7, "nominal"),
        (run.worst, figures.PURPLE, "*", 12, "worst found"),
    ):
        at = [model.parameters[name] for name in names] + ([] if len(index) > 1 else [100 * model.success.value])
        panel.plot(*at, marker=marker, color=colour, markersize=size, linestyle="", label=label, zorder=5)
    if len(index) > 1:
        (left, right), (low, high) = (each.box for each in spread)
        panel.plot([left, right, right, left, left], [low, low, high, high, low], color="0.4", linewidth=1)
        panel.set_ylabel(_axis(spread[1]))
    else:
        panel.axvspan(*spread[0].box, color="0.9", zorder=0)
        panel.set_ylabel("success in %")
    for each, ticks in zip(spread, (panel.set_xticks, panel.set_yticks), strict=False):
        if each.whole:
            ticks(np.arange(each.low, each.high + 1))
    panel.set_xlabel(_axis(spread[0]))
    label = found.labels[found.runs.index(run)] + ": " if len(found.runs) > 1 else ""
    panel.set_title(f"{label}fails on {100 * run.failing.value:.1f} % of the models", fontsize=9)


def _spread(values: np.ndarray, dimension: Dimension) -> np.ndarray:
    """Values as they are drawn: whole numbers a little apart."""
    if not dimension.whole:
        return values
    return values + _JITTER * (2 * np.random.default_rng(0).random(len(values)) - 1)


def _axis(dimension: Dimension) -> str:
    return dimension.name.replace("_", " ") + (f" ({dimension.unit})" if dimension.unit else "")


def _draw_sensitivities(panel: Any, found: Stress, names: list[str]) -> None:
    """Total indices as bars with their intervals, first-order ones as markers on them."""
    for row, name in enumerate(names):
        for run, _, place, height, colour in _bars(found):
            one = run.sensitivity[name]
            once = row == 0 and run is found.runs[0]
            panel.barh(row + place, one.total, height, color=colour, alpha=0.55)
            panel.plot(
                [one.low, one.high],
                [row + place] * 2,
                color=figures.BLACK,
                linewidth=1.2,
                label="95 % interval" if once else None,
            )
            hollow = {"marker": "o", "markersize": 5, "markerfacecolor": "white", "color": figures.BLACK}
            panel.plot(one.first, row + place, **hollow, linestyle="", label="first order" if once else None, zorder=4)
    _rows(panel, names)
    panel.axvline(0, color="0.4", linewidth=0.8)
    panel.set_xlim(
        -0.05, min(_LARGEST_INDEX, 1.05 * max(one.high for run in found.runs for one in run.sensitivity.values()))
    )
    of = {run.sensitivity_of for run in found.runs}
    panel.set_title(f"total Sobol index of {' or '.join(sorted(of)).replace('_', ' ')}", fontsize=9)
