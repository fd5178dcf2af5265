"""Figures of your own runs: success maps, returns, learning curves, coverage, and the price of robustness.

Every function returns a matplotlib `Figure`, which notebooks show and `figure.savefig("file.png")` writes. Matplotlib
is imported when a figure is drawn, not before, and pyplot is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.figure_files import check_file as check_file
from deeprok.core.figure_files import save as save
from deeprok.runs import folder as runs
from deeprok.runs import metrics
from deeprok.runs.folder import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deeprok.evaluation.calibration import Calibration
    from deeprok.evaluation.result import Evaluation, Parameter
    from deeprok.evaluation.trained import Run

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000"
RED = "#D55E00"  # their vermilion, a reddish orange: the nominal values

#: Colour, line and marker.
Style = tuple[str, str, str]

#: Each of the three tells curves apart by itself, so that print without colour does too.
STYLES: tuple[Style, ...] = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    (PURPLE, ":", "D"),
    (SKY, "--", "v"),
    (BLACK, "-", "x"),
)


def success_map(*results: Evaluation | Run, names: Sequence[str] = ()) -> Figure:
    """Success rate over two parameters: a panel for each result, with one colour scale.

    The first parameter of the grid is on the horizontal axis, the second on the vertical one. An orange square marks
    the nominal model, which may lie between the values of the grid; the legend has its own success rate.

    Args:
      results: evaluations on grids of two parameters, or runs whose evaluation is stored.
      names: what to call them, instead of their algorithms.

    Example:
      >>> figure = deeprok.plot.success_map(deeprok.evaluate("runs/rok"), deeprok.evaluate("runs/ddqn"))
    """
    found = [_evaluation_of(result, 2) for result in results]
    figure, panels = panels_of(len(found))
    for panel, result, name in zip(panels, found, _named(found, names), strict=True):
        image = draw_map(panel, result.success, result.grid, result.parameters, size=8 if len(found) == 1 else 6)
        panel.set_title(f"{name}: {100 * result.overall.success:.1f} % success", fontsize=10)
    for i, panel in enumerate(panels):
        label_axes(panel, found[i].grid, found[i].parameters, up=i == 0 or found[i].grid.keys() != found[0].grid.keys())
    figure.colorbar(image, ax=panels, label="success in %", pad=0.02)
    marked = [each for each in zip(_named(found, names), found, panels, strict=True) if each[-1].get_lines()]
    if marked:
        rates = [(name, f"{100 * result.nominal.success:.1f} %") for name, result, _ in marked]
        said = ", ".join(f"{name} {rate}" for name, rate in rates) if len(found) > 1 else rates[0][1]
        square = marked[0][-1].get_lines()[0]
        figure.legend(
            [square], [f"nominal model: {said} success"], loc="outside lower center", frameon=False, fontsize=8
        )
    return figure


def return_curve(*results: Evaluation | Run, names: Sequence[str] = ()) -> Figure:
    """Return against one parameter: the mean over all episodes, and one standard deviation either side.

    An orange line marks the nominal model.

    Args:
      results: evaluations on grids of one parameter, the same for all, or runs whose evaluation is stored.
      names: what to call them, instead of their algorithms.

    Example:
      >>> figure = deeprok.plot.return_curve(deeprok.evaluate("runs/rok", grid={"gravity": [5, 10, 15, 20]}))
    """
    found = [_evaluation_of(result, 1) for result in results]
    varied = list(dict.fromkeys(name for result in found for name in result.grid))
    if len(varied) > 1:
        raise DeeprokError(f"the evaluations vary different parameters, {' and '.join(varied)}; draw them one by one")
    figure, panel = _one_panel()
    for style, result, name in zip(_styles(len(found)), found, _named(found, names), strict=True):
        (values,) = result.grid.values()
        mean, spread = result.mean_return, result.std_return
        draw_band(panel, values, mean, mean - spread, mean + spread, style, name)
    parameters = found[0].parameters
    if varied[0] in parameters:
        mark_nominal(panel, parameters[varied[0]].nominal)
    panel.set_xlabel(axis_label(varied[0], parameters))
    panel.set_ylabel("return: mean ± one s.d. of the episodes")
    _legend(figure, len(found))
    return figure


def learning_curve(*agents: Runs, window: int = 20, names: Sequence[str] = ()) -> Figure:
    """Return of the training episodes, as a moving mean; of several seeds their mean and standard deviation.

    Markers are the mean returns of the trials on held-out models, which decide the best weights.

    Args:
      agents: a curve each: a `Run`, a run folder, a folder of seeds, or a list of runs that are the seeds of one agent.
      window: episodes that the moving mean is taken over.
      names: what to call them, instead of their algorithms.

    Example:
      >>> figure = deeprok.plot.learning_curve("runs/rok", "runs/ddqn")
    """
    if window < 1:
        raise DeeprokError(f"window is {window}; it must be at least 1")
    figure, panel = _one_panel()
    groups = [runs.find_all(agent) for agent in agents]
    called = _named([runs.read_config(folders[0]) for folders in groups], names)
    for style, folders, name in zip(_styles(len(groups)), groups, called, strict=True):
        found = [metrics.read(folder) for folder in folders]
        curves = [_moving_mean(each.returns, window) for each in found if len(each.returns)]
        if not curves:
            raise DeeprokError(f"{folders[0]} has no finished episode yet, so there is no curve to draw")
        length = max(map(len, curves))
        returns = np.array([np.pad(curve, (0, length - len(curve)), constant_values=np.nan) for curve in curves])
        mean, spread = np.nanmean(returns, axis=0), np.nanstd(returns, axis=0)
        label = f"{name}, {len(curves)} seeds" if len(curves) > 1 else name
        draw_band(panel, np.arange(1, length + 1), mean, mean - spread, mean + spread, style, label, markers=False)
        trials = [
            (x, y) for each in found for x, y in zip(each["episodes"], each.get("trial_return", ()), strict=False)
        ]
        tried = np.array([pair for pair in trials if np.isfinite(pair[1])]).reshape(-1, 2)
        colour, _, marker = style
        label += ": trials on held-out models"
        panel.plot(*tried.T, linestyle="", marker=marker, markersize=5, color=colour, fillstyle="none", label=label)
    panel.set_xlabel("episodes of training")
    panel.set_ylabel(f"return: mean of {window} episodes" if window > 1 else "return of each episode")
    _legend(figure, 2)
    return figure


def coverage(*calibrations: Calibration, names: Sequence[str] = ()) -> Figure:
    """Nominal against empirical coverage of the posterior's intervals for Q; on the diagonal they are right.

    Args:
      calibrations: results of `deeprok.calibrate`, a panel each.
      names: a title for each panel.

    Example:
      >>> figure = deeprok.plot.coverage(deeprok.calibrate("runs/ekf"), names=["EKF-DQN"])
    """
    figure, panels = panels_of(len(calibrations))
    for panel, title, found in zip(panels, _given(names, [""] * len(calibrations)), calibrations, strict=True):
        nominal = 100 * np.array(found.levels)
        panel.plot([0, 100], [0, 100], color="grey", linewidth=1)
        shown = 100 * np.array(found.coverage)
        panel.plot(nominal, shown, color=ORANGE, marker="s", label="as estimated")
        if found.calibrated:
            scaled = 100 * np.array(found.calibrated)
            label = "with the temperature of the other seeds"
            panel.plot(nominal, scaled, color=BLUE, marker="o", linestyle="--", label=label)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("nominal coverage in %")
        panel.set_xticks(nominal)
        panel.set_xlim(min(nominal) - 10, 102)
        panel.set_ylim(0, 102)
    panels[0].set_ylabel("empirical coverage in %")
    handles, labels = max((panel.get_legend_handles_labels() for panel in panels), key=lambda pair: len(pair[0]))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def radius_sweep(
    radius: np.ndarray,
    value: np.ndarray,
    nominal: float,
    unprotected: np.ndarray | None,
    nominal_value: np.ndarray | None,
    title: str,
    axis: str,
) -> Figure:
    """Values against the radius of a set; and, if it is known, what robustness costs against what it buys.

    Args:
      radius: [R].
      value: [R] of the policy for each radius, against nature.
      nominal: of the nominal policy in the nominal model.
      unprotected: [R] of the nominal policy against nature.
      nominal_value: [R] of the policy for each radius in the nominal model.
      title: what it is of.
      axis: the radius and its set.
    """
    from matplotlib.figure import Figure

    judged = unprotected is not None and nominal_value is not None
    figure = Figure(figsize=(9.2 if judged else 5.2, 3.6), layout="constrained")
    panels = list(figure.subplots(1, 2 if judged else 1, squeeze=False)[0])
    size = 3.5 if len(radius) <= 40 else 0
    hollow = {"markerfacecolor": "none"}  # so that lines show where they coincide
    left = panels[0]
    left.set_title(title, fontsize=10)
    if nominal_value is not None:
        label = "robust policy, nominal model"
        left.plot(
            radius,
            nominal_value,
            color=GREEN,
            linestyle="-.",
            marker="^",
            markersize=2.2 * size,
            **hollow,
            label=label,
        )
    label = "robust policy, worst case" if judged else "value"
    left.plot(radius, value, color=BLUE, marker="o", markersize=size, label=label)
    if unprotected is not None:
        label = "nominal policy, worst case"
        left.plot(
            radius, unprotected, color=ORANGE, linestyle="--", marker="s", markersize=1.8 * size, **hollow, label=label
        )
    left.set_xlabel(axis)
    left.set_ylabel("value")
    if unprotected is not None and nominal_value is not None:
        right = panels[1]
        price, protection = nominal - nominal_value, value - unprotected
        right.plot(price, protection, color="grey", linewidth=0.8, zorder=1)
        shades = right.scatter(price, protection, c=radius, cmap="cividis", s=28, zorder=2)
        right.set_xlabel("price: loss in the nominal model")
        right.set_ylabel("protection: gain in the worst case")
        if not price.any() and not protection.any():
            right.annotate(
                "the nominal policy is best at every radius",
                (0.5, 0.55),
                xycoords="axes fraction",
                ha="center",
                fontsize=9,
            )
        right.set_title("what robustness costs and buys", fontsize=10)
        figure.colorbar(shades, ax=right, label=axis)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


# --- parts of figures, drawn into a panel -------------------------------------------------------------------------


def panels_of(count: int) -> tuple[Figure, list[Any]]:
    """A figure with panels side by side."""
    from matplotlib.figure import Figure

    if not count:
        raise DeeprokError("there is nothing to draw; give at least one result")
    figure = Figure(figsize=(3.4 * count, 3.2) if count > 1 else (5.2, 4.2), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def draw_map(
    panel: Any,
    success: np.ndarray,
    grid: Mapping[str, Sequence[float] | np.ndarray],
    parameters: Mapping[str, Parameter],
    size: int = 6,
) -> Any:
    """Draws success rates over two parameters, as colours and numbers; returns the image, for a colour bar.

    Args:
      panel: where to.
      success: [X, Y].
      grid: the two parameters and their values: X on the horizontal axis, Y on the vertical one.
      parameters: their nominal values, where they are known.
      size: of the numbers, in points.
    """
    return draw_cells(panel, 100 * np.asarray(success), grid, parameters, (0, 100), "cividis", lambda x: x < 55, size)


def draw_cells(
    panel: Any,
    values: np.ndarray,
    grid: Mapping[str, Sequence[float] | np.ndarray],
    parameters: Mapping[str, Parameter],
    scale: tuple[float, float],
    colours: str,
    is_dark: Callable[[float], bool],
    size: int = 6,
) -> Any:
    """Draws any numbers [X, Y] as `draw_map` does; `is_dark` tells where they are written in white."""
    (across, xs), (up, ys) = grid.items()
    cells = np.asarray(values).T
    image = panel.pcolormesh(xs, ys, cells, vmin=scale[0], vmax=scale[1], cmap=colours, shading="nearest")
    if max(cells.shape) <= _MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(cells):
            ink = "white" if is_dark(value) else "black"
            panel.text(xs[column], ys[row], f"{value:z.0f}", ha="center", va="center", fontsize=size, color=ink)
    if across in parameters and up in parameters:
        x, y = parameters[across].nominal, parameters[up].nominal
        if xs[0] <= x <= xs[-1] and ys[0] <= y <= ys[-1]:
            square = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.8}
            panel.plot(x, y, **square, linestyle="", markeredgecolor=RED)
    return image


#: The most values of a parameter whose cells are numbered, and which all have a tick.
_MOST_WRITTEN = 14


def label_axes(
    panel: Any,
    grid: Mapping[str, Sequence[float] | np.ndarray],
    parameters: Mapping[str, Parameter],
    up: bool = True,
) -> None:
    """Labels the axes of a map; the vertical one, which panels may share, only if `up` is set."""
    (across, xs), (above, ys) = grid.items()
    panel.set_xlabel(axis_label(across, parameters))
    if len(xs) <= _MOST_WRITTEN:
        labels = [f"{x:.3g}" for x in xs]
        panel.set_xticks(xs, labels, rotation=_rotation(panel, labels))
    if up:
        panel.set_ylabel(axis_label(above, parameters))
        if len(ys) <= _MOST_WRITTEN:
            panel.set_yticks(ys, [f"{y:.3g}" for y in ys])


#: Width of a character and height of a line of a tick's label, in inches.
_CHARACTER, _LINE = 0.085, 0.2


def _rotation(panel: Any, labels: Sequence[str]) -> int:
    """By how many degrees labels below a panel must be turned so that none is written over another."""
    width = panel.get_position().width * panel.get_figure().get_figwidth()
    if len(labels) * _CHARACTER * (max(map(len, labels)) + 1) <= width:
        return 0
    return 45 if len(labels) * _LINE / np.sin(np.pi / 4) <= width else 90


def draw_band(
    panel: Any,
    x: Sequence[float] | np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    style: Style,
    label: str | None = None,
    markers: bool = True,
) -> None:
    """Draws a curve with a band around it."""
    colour, line, marker = style
    panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    dots = {"marker": marker, "markersize": 3.5} if markers else {}
    panel.plot(x, mean, color=colour, linestyle=line, linewidth=1.4, label=label, **dots)


def mark_nominal(panel: Any, value: float) -> None:
    """Marks the nominal value of the parameter on the horizontal axis."""
    panel.axvline(value, color=RED, linestyle="--", linewidth=1)
    place: dict[str, Any] = {"xycoords": panel.get_xaxis_transform(), "xytext": (3, 0), "textcoords": "offset points"}
    panel.annotate("nominal", (value, 0.02), **place, color=RED, fontsize=8)


def axis_label(name: str, parameters: Mapping[str, Parameter]) -> str:
    """A parameter as an axis has it: its name and unit."""
    unit = parameters[name].unit if name in parameters else ""
    return name.replace("_", " ") + (f" ({unit})" if unit else "")


def _one_panel() -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Figure, curves: int) -> None:
    """A legend below the panel, where it hides nothing; one curve needs none but for its name."""
    figure.legend(loc="outside lower center", ncols=min(curves, 3), frameon=False, fontsize=8)


def _styles(count: int) -> list[Style]:
    if not count:
        raise DeeprokError("there is nothing to draw; give at least one result")
    return [STYLES[i % len(STYLES)] for i in range(count)]


class _HasAlgorithm(Protocol):
    @property
    def algorithm(self) -> str: ...


def _named(of: Sequence[_HasAlgorithm], names: Sequence[str]) -> Sequence[str]:
    """The names that were given, or those of the algorithms."""
    return _given(names, [each.algorithm for each in of])


def _given(names: Sequence[str], usual: Sequence[str]) -> Sequence[str]:
    if names and len(names) != len(usual):
        raise DeeprokError(f"names are {len(names)}, but {len(usual)} are drawn; give one for each")
    return names or usual


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each value and those before it, `window` in all, or as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _evaluation_of(result: Evaluation | Run, parameters: int) -> Evaluation:
    """The evaluation itself, or the one that a run has stored, if it varies so many parameters."""
    found: Evaluation | None = result.evaluation if hasattr(result, "evaluation") else result
    if found is None:
        raise DeeprokError(f"{result} has no stored evaluation; give the result of deeprok.evaluate")
    if len(found.grid) != parameters:
        kind, instead = ("a success map", "two") if parameters == 2 else ("a return curve", "one")
        names = ", ".join(found.grid)
        raise DeeprokError(f"{kind} takes a grid of {instead}, but this one has {len(found.grid)}: {names}")
    return found
