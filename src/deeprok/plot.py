"""Figures: returns, maps of success, learning curves, coverage, and the price of robustness.

Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deeprok.environments import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000"
RED = "#D55E00"  # the nominal values, as in the paper

NAMES: dict[str, str] = {
    "dqn": "DQN",
    "ddqn": "Double-DQN",
    "ddqn_dr": "Double-DQN, randomised",
    "rtd_dqn": "RTD-DQN",
    "ekf_dqn": "EKF-DQN",
    "deep_rok": "Deep-RoK",
    "bbb_dqn": "BBB-DQN",
    "bbb_rtd": "BBB-RTD",
    "psgld_dqn": "pSGLD-DQN",
    "psgld_rtd": "pSGLD-RTD",
    "ktd_q": "KTD-Q",
    "ktd_rtd": "robust KTD-Q",
    "pg": "policy gradient, randomised",
    "epopt": "EPOpt",
    "robust_pg": "robust policy gradient",
    "deep_rok_joint": "Deep-RoK, joint update",
    "deep_rok_vote": "Deep-RoK, vote of 20",
    "random": "random play",
    "linear": "best linear policy",
    "lqr": "LQR by cell (ceiling)",
    "sb3_dqn": "SB3 DQN",
    "sb3_dqn_dr": "SB3 DQN, randomised",
}

#: Colour, line and marker: each tells the agents apart by itself, so that print without colour does too.
STYLES: dict[str, tuple[str, str, str]] = {
    "dqn": (SKY, "--", "v"),
    "ddqn": (ORANGE, ":", "s"),
    "ddqn_dr": (PURPLE, "-.", "D"),
    "rtd_dqn": (GREEN, "-", "^"),
    "ekf_dqn": (BLACK, "--", "x"),
    "deep_rok": (BLUE, "-", "o"),
}


class Band(NamedTuple):
    """A curve and its spread."""

    mean: Sequence[float]
    deviation: Sequence[float]


def return_curves(
    results: Mapping[str, Band],
    parameter: str,
    values: Sequence[float],
    world: World,
    first_letter: str | None = "a",
) -> Figure:
    """Return against one parameter: mean over all episodes and one standard deviation, a panel an agent.

    Args:
      results: agent -> its returns, for each value.
      parameter: what varies.
      values: its values.
      world: the world, for the nominal value.
      first_letter: of the first panel, if panels have letters.
    """
    figure, panels = panels_of(len(results))
    for i, (panel, (name, band)) in enumerate(zip(panels, results.items(), strict=True)):
        mean, spread = np.asarray(band.mean), np.asarray(band.deviation)
        panel.fill_between(values, mean - spread, mean + spread, color=BLUE, alpha=0.25, linewidth=0)
        panel.plot(values, mean, color=BLUE, marker="o", markersize=3)
        nominal = float(getattr(world.nominal, parameter))
        panel.axvline(nominal, color=RED, linestyle="--", linewidth=1)
        panel.annotate(
            "nominal",
            (nominal, 0.02),
            xycoords=panel.get_xaxis_transform(),
            xytext=(3, 0),
            textcoords="offset points",
            color=RED,
            fontsize=8,
        )
        panel.set_ylim(0, world.horizon * 1.05)
        panel.set_title(f"{_letter(first_letter, i)}{NAMES.get(name, name)}")
        panel.set_xlabel(_axis_name(world, parameter))
    panels[0].set_ylabel("return: mean ± one s.d.")
    return figure


def success_maps(
    results: Mapping[str, Any], grid: Mapping[str, Sequence[float]], world: World, first_letter: str | None = "d"
) -> Figure:
    """Share of successful episodes over two parameters, one colour scale, a panel an agent.

    Args:
      results: agent -> [X, Y] share of successes.
      grid: the two parameters and their values.
      world: the world, for the nominal values.
      first_letter: of the first panel, if panels have letters.
    """
    figure, panels = panels_of(len(results))
    (across, xs), (up, ys) = grid.items()
    for i, (panel, (name, shares)) in enumerate(zip(panels, results.items(), strict=True)):
        success = np.asarray(shares).T * 100
        image = panel.pcolormesh(xs, ys, success, vmin=0, vmax=100, cmap="cividis", shading="nearest")
        for (row, column), value in np.ndenumerate(success):
            ink = "white" if value < 55 else "black"
            panel.text(xs[column], ys[row], f"{value:.0f}", ha="center", va="center", fontsize=6, color=ink)
        nominal = float(getattr(world.nominal, across)), float(getattr(world.nominal, up))
        if xs[0] <= nominal[0] <= xs[-1] and ys[0] <= nominal[1] <= ys[-1]:
            panel.plot(
                *nominal, marker="s", markersize=9, markerfacecolor="none", markeredgecolor=RED, markeredgewidth=1.8
            )
        panel.set_title(f"{_letter(first_letter, i)}{NAMES.get(name, name)}: {success.mean():.0f} %", fontsize=10)
        panel.set_xlabel(_axis_name(world, across))
        panel.set_xticks(xs, [f"{x:.3g}" for x in xs])
    panels[0].set_yticks(ys, [f"{y:.3g}" for y in ys])
    panels[0].set_ylabel(_axis_name(world, up))
    figure.colorbar(image, ax=panels, label="success in %", pad=0.02)
    return figure


def learning_curves(
    agents: Mapping[str, Mapping[str, Any]],
    ceiling: float,
    styles: Mapping[str, tuple[str, str, str]] = STYLES,
) -> Figure:
    """Return over the grid as training goes on: interquartile mean over seeds, with the quartiles.

    Args:
      agents: agent -> its summary, with `curve`.
      ceiling: the ceiling's return.
      styles: colour, line and marker of each agent; others take what comes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    panel = figure.subplots()
    for i, (name, summary) in enumerate(agents.items()):
        curve = summary["curve"]
        colour, line, marker = styles.get(name, list(STYLES.values())[-1 - i % len(STYLES)])
        panel.fill_between(curve["episodes"], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
        panel.plot(
            curve["episodes"],
            curve["iqm_return"],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=3.5,
            linewidth=1.4,
            label=NAMES.get(name, name),
        )
    panel.axhline(ceiling, color="grey", linewidth=1)
    panel.annotate("ceiling", (0, ceiling), xytext=(2, 3), textcoords="offset points", fontsize=8, color="dimgrey")
    panel.axhline(0.95 * ceiling, color="grey", linewidth=1, linestyle=":")
    panel.annotate(
        "95 %", (0, 0.95 * ceiling), xytext=(2, -10), textcoords="offset points", fontsize=8, color="dimgrey"
    )
    panel.set_ylim(0, ceiling * 1.08)
    panel.set_xlabel("episodes of training")
    panel.set_ylabel("return over the grid")
    panel.legend(loc="lower right", frameon=False, fontsize=8)
    return figure


def coverage_plot(calibrations: Mapping[str, Mapping[str, Any]]) -> Figure:
    """What intervals claim to hold against what they hold, as they come and with a fitted temperature.

    Args:
      calibrations: title -> calibration, as `kalman.json` has it; a panel each.
    """
    figure, panels = panels_of(len(calibrations))
    for panel, (title, found) in zip(panels, calibrations.items(), strict=True):
        claimed = 100 * np.array(found["levels"])
        panel.plot([40, 100], [40, 100], color="grey", linewidth=1)
        panel.plot(claimed, 100 * np.array(found["coverage"]), color=ORANGE, marker="s", label="as it comes")
        if found["calibrated"]:
            scaled = 100 * np.array(found["calibrated"])
            panel.plot(claimed, scaled, color=BLUE, marker="o", linestyle="--", label="temperature of other seeds")
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("interval claims to hold, in %")
        panel.set_xticks(claimed)
        panel.set_ylim(0, 102)
    panels[0].set_ylabel("truths it holds, in %")
    panels[0].legend(loc="lower right", frameon=False, fontsize=8)
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


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG and as SVG.

    Args:
      figure: the figure.
      path: without an ending.
    """
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "deeprok"}):  # and no date: the same figure gives the same file
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def panels_of(count: int) -> tuple[Figure, list[Any]]:
    """A figure with panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * count, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _letter(first: str | None, panel: int) -> str:
    return f"({chr(ord(first) + panel)}) " if first else ""


def _axis_name(world: World, parameter: str) -> str:
    unit = {f.name: f.metadata["unit"] for f in world.nominal.__dataclass_fields__.values()}[parameter]
    return parameter.replace("_", " ") + (f" ({unit})" if unit else "")
