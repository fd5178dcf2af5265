"""Figures of the studies, by name, drawn from the numbers of their JSON files.

Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.environments import cartpole
from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, panels_of
from studies.plan import PAIRS
from studies.tables import Rows, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour, line and marker: each tells agents apart by itself, so that print without colour does too.
Style = tuple[str, str, str]

#: Of the agents of the paper's experiment, which the pages show in this order.
STYLES: dict[str, Style] = {
    "dqn": (SKY, "--", "v"),
    "ddqn": (ORANGE, ":", "s"),
    "ddqn_dr": (PURPLE, "-.", "D"),
    "rtd_dqn": (GREEN, "-", "^"),
    "ekf_dqn": (BLACK, "--", "x"),
    "deep_rok": (BLUE, "-", "o"),
}
#: Of the estimators of Table 1, with either target, and of policy gradients beside them.
_ESTIMATOR_STYLES: tuple[Style, ...] = (
    (SKY, "--", "v"),
    (BLUE, "-", "o"),
    (ORANGE, "-.", "s"),
    (GREEN, ":", "^"),
    (PURPLE, "-", "D"),
    (BLACK, "--", "x"),
    (RED, "-.", "P"),
)
#: Of rows that are no agents of their own.
_OTHER_STYLES: tuple[Style, ...] = tuple(reversed(STYLES.values()))

#: The nominal target and the robust one, wherever both are drawn.
_TARGETS = (("nominal target", ORANGE, "s", -1), ("robust target", BLUE, "o", 1))

#: The agents of the paper's figures.
PAPER_AGENTS = ("ddqn", "rtd_dqn", "deep_rok")

_AXES = {"pole_length": "pole length (m)", "cart_mass": "cart mass (kg)"}


def success_maps(results: Mapping[str, Any], grid: Mapping[str, Sequence[float]]) -> Figure:
    """Mean success rate in each cell of the grid, a panel for each agent.

    Args:
      results: agent -> [X, Y] success rates.
      grid: the two parameters and their values.
    """
    percent = {name: 100 * np.asarray(success) for name, success in results.items()}
    titles = [f"{title(name)}: mean {values.mean():.1f} %" for name, values in percent.items()]
    return _maps(percent.values(), titles, grid, 100.0, "cividis", "success in %")


def shortfall_maps(results: Mapping[str, Any], ceiling: Any, grid: Mapping[str, Sequence[float]]) -> Figure:
    """How far the mean success rate in each cell is below the ceiling's, a panel for each agent.

    Args:
      results: agent -> [X, Y] success rates.
      ceiling: [X, Y] of the ceiling.
      grid: the two parameters and their values.
    """
    gaps = {name: 100 * (np.asarray(ceiling) - np.asarray(success)) for name, success in results.items()}
    titles = [f"{title(name)}: mean {gap.mean():.1f}" for name, gap in gaps.items()]
    largest = max(float(gap.max()) for gap in gaps.values())
    return _maps(gaps.values(), titles, grid, largest, "cividis_r", "points of success below the ceiling")


def _maps(
    maps: Collection[np.ndarray],
    titles: Sequence[str],
    grid: Mapping[str, Sequence[float]],
    largest: float,
    colours: str,
    scale: str,
) -> Figure:
    """Draws [X, Y] values as colours, from 0 to the largest, and numbers; a red square is the nominal model."""
    figure, panels = panels_of(len(maps))
    (across, xs), (up, ys) = grid.items()
    nominal = cartpole().nominal
    square = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.8}
    for panel, values, text in zip(panels, maps, titles, strict=True):
        image = panel.pcolormesh(xs, ys, values.T, vmin=0, vmax=largest, cmap=colours, shading="nearest")
        for (column, row), value in np.ndenumerate(values):
            red, green, blue, _ = image.cmap(image.norm(value))
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            number = str(round(float(value)))
            panel.text(xs[column], ys[row], number, ha="center", va="center", fontsize=6, color=ink)
        panel.plot(float(getattr(nominal, across)), float(getattr(nominal, up)), **square, markeredgecolor=RED)
        panel.set_title(text, fontsize=9)
        panel.set_xlabel(_AXES[across])
        panel.set_xticks(xs, [f"{x:.3g}" for x in xs])
    panels[0].set_yticks(ys, [f"{y:.3g}" for y in ys])
    panels[0].set_ylabel(_AXES[up])
    figure.colorbar(image, ax=panels, label=scale, pad=0.02)
    return figure


def return_curves(agents: Rows, lengths: Sequence[float]) -> Figure:
    """Return against pole length: mean and standard deviation over the episodes of all seeds, a panel for each agent.

    Two lines and no band around the mean: returns end at the horizon, which a mean and a deviation may exceed.

    Args:
      agents: the agents, whose `lengths` has both for each pole length.
      lengths: the pole lengths.
    """
    env = cartpole()
    nominal = float(env.nominal.pole_length)
    figure, panels = panels_of(len(agents))
    for panel, (name, row) in zip(panels, agents.items(), strict=True):
        mean, spread = (np.asarray(row["lengths"][kind]) for kind in ("mean", "deviation"))
        first = panel is panels[0]
        panel.plot(lengths, mean, color=BLUE, marker="o", markersize=3, label="mean" if first else None)
        style: dict[str, Any] = {"color": ORANGE, "marker": "s", "markersize": 3, "linestyle": ":"}
        panel.plot(lengths, spread, **style, label="standard deviation" if first else None)
        panel.axvline(nominal, color=RED, linestyle="--", linewidth=1)
        where: dict[str, Any] = {"xycoords": panel.get_xaxis_transform(), "textcoords": "offset points"}
        panel.annotate("nominal", (nominal, 0.4), xytext=(3, 0), **where, color=RED, fontsize=8)
        panel.set_ylim(0, env.horizon * 1.05)
        panel.set_title(title(name), fontsize=10)
        panel.set_xlabel(_AXES["pole_length"])
    panels[0].set_ylabel("return over the episodes\nof all seeds", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def learning_curves(
    agents: Rows, ceiling: float, styles: Mapping[str, Style] = STYLES, episodes: int | None = None
) -> Figure:
    """Return over the grid during training: interquartile mean over seeds, with the quartiles as a band.

    Args:
      agents: the agents, with `curve`.
      ceiling: the ceiling's return.
      styles: of each agent; others take what comes.
      episodes: where the horizontal axis ends, if before the curves do.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    last = episodes or max(row["curve"]["episodes"][-1] for row in agents.values())
    for i, (name, row) in enumerate(agents.items()):
        shown = np.asarray(row["curve"]["episodes"]) <= last
        times, mean, low, high = (
            np.asarray(row["curve"][key])[shown] for key in ("episodes", "iqm_return", "low", "high")
        )
        colour, line, marker = styles.get(name, _OTHER_STYLES[i % len(_OTHER_STYLES)])
        panel.fill_between(times, low, high, color=colour, alpha=0.12, linewidth=0)
        panel.plot(
            times,
            mean,
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=3.5,
            linewidth=1.4,
            label=title(name),
        )
    for height, line, text in ((ceiling, "-", "ceiling"), (0.95 * ceiling, ":", "95 % of it")):
        panel.axhline(height, color="grey", linewidth=1, linestyle=line)
        below = (2, 3) if text == "ceiling" else (2, -10)
        panel.annotate(text, (0, height), xytext=below, textcoords="offset points", fontsize=8, color="dimgrey")
    panel.set_xlim(0, last)
    panel.set_ylim(0, ceiling * 1.08)
    panel.set_xlabel("episodes of training")
    panel.set_ylabel("return over the grid: IQM and quartiles of seeds")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def learning_panels(agents: Rows, ceiling: float) -> Figure:
    """Return over the grid during training: a panel for each agent with its quartiles, the others in grey.

    Args:
      agents: the agents, with `curve`.
      ceiling: the ceiling's return.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(agents))
    rows = -(-len(agents) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.3 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, name in zip(panels, agents, strict=False):
        for other, row in agents.items():
            if other != name:
                panel.plot(row["curve"]["episodes"], row["curve"]["iqm_return"], color="lightgrey", linewidth=0.8)
        times, mean, low, high = (agents[name]["curve"][key] for key in ("episodes", "iqm_return", "low", "high"))
        colour = STYLES[name][0] if name in STYLES else BLUE
        panel.fill_between(times, low, high, color=colour, alpha=0.25, linewidth=0)
        panel.plot(times, mean, color=colour, linewidth=1.6)
        panel.axhline(ceiling, color="grey", linewidth=1)
        panel.axhline(0.95 * ceiling, color="grey", linewidth=1, linestyle=":")
        panel.set_title(title(name), fontsize=9)
        panel.set_ylim(0, ceiling * 1.08)
        panel.set_xlim(0, times[-1])
    for panel in panels[len(agents) :]:
        panel.set_visible(False)
    figure.supxlabel("episodes of training", fontsize=9)
    figure.supylabel("return over the grid: IQM and quartiles of seeds", fontsize=9)
    return figure


def coverage_plot(calibrations: Rows) -> Figure:
    """Empirical against nominal coverage of intervals for Q, raw and with a cross-validated temperature.

    Args:
      calibrations: title -> calibration; a panel each.
    """
    figure, panels = panels_of(len(calibrations))
    for i, (panel, (name, found)) in enumerate(zip(panels, calibrations.items(), strict=True)):
        nominal = 100 * np.array(found["levels"])
        panel.plot([0, 100], [0, 100], color="grey", linewidth=1, label="empirical = nominal" if i == 0 else None)
        raw = 100 * np.array(found["coverage"])
        panel.plot(nominal, raw, color=ORANGE, marker="s", label="raw" if i == 0 else None)
        if found["calibrated"]:
            scaled = 100 * np.array(found["calibrated"])
            label = "cross-validated temperature" if i == 0 else None
            panel.plot(nominal, scaled, color=BLUE, marker="o", linestyle="--", label=label)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("nominal coverage in %")
        panel.set_xticks(nominal)
        panel.set_xlim(40, 100)
        panel.set_ylim(-4, 104)
    panels[0].set_ylabel("empirical coverage in %")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def square(tables: Mapping[str, Rows], ceiling: float) -> Figure:
    """{nominal, robust target} × {Adam, Kalman filter}: every seed, the interquartile mean and its interval.

    Args:
      tables: title -> agents; a panel each.
      ceiling: the ceiling's success rate.
    """
    figure, panels = panels_of(len(tables))
    corners = (("dqn", "ekf_dqn"), ("rtd_dqn", "deep_rok"))
    for panel, (text, agents) in zip(panels, tables.items(), strict=True):
        for names, (label, colour, marker, side) in zip(corners, _TARGETS, strict=True):
            places = np.arange(2) + 0.12 * side
            for place, name in zip(places, names, strict=True):
                seeds = 100 * np.asarray(agents[name]["per_seed"]["success"])
                jitter = np.linspace(-0.05, 0.05, len(seeds))
                panel.scatter(place + 0.14 * side + jitter, seeds, s=8, color=colour, alpha=0.4, linewidth=0)
            _means(panel, places, [agents[name] for name in names], colour, marker, label, upright=True)
        panel.axhline(100 * ceiling, color="grey", linewidth=1)
        panel.annotate(
            "ceiling", (-0.45, 100 * ceiling), xytext=(0, 3), textcoords="offset points", fontsize=8, color="dimgrey"
        )
        panel.set_xticks([0, 1], ["Adam", "Kalman filter"])
        panel.set_xlim(-0.5, 1.5)
        panel.set_ylim(-4, 105)
        panel.set_title(text, fontsize=10)
    panels[0].set_ylabel("success over the grid in %")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    return figure


def _means(
    panel: Any,
    places: np.ndarray,
    rows: Sequence[Mapping[str, Any]],
    colour: str,
    marker: str,
    label: str,
    upright: bool,
) -> None:
    """Draws interquartile means with their intervals."""
    means = 100 * np.array([row["iqm_success"] for row in rows])
    ends = 100 * np.array([row["success_ci"] for row in rows])
    errors = np.abs([means - ends[:, 0], ends[:, 1] - means])
    style: dict[str, Any] = dict(color=colour, marker=marker, capsize=3, label=label)
    style["linestyle"] = "-" if upright else "none"
    if upright:
        panel.errorbar(places, means, yerr=errors, **style)
    else:
        panel.errorbar(means, places, xerr=errors, **style)


def squares(found: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of `results.json` with all four corners, each under a title."""
    tables = {found["preset"]: found["agents"], **found["studies"]}
    titles = {"best": "each at its best settings", "tuned": "preset tuned", "paper": "preset paper"}
    return {title: tables[name] for name, title in titles.items() if name in tables}


def of_results(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers of `results.json` allow, by name."""
    ceiling = found["references"]["lqr"]
    presets = {found["preset"]: found["agents"]}
    presets |= {name: table for name, table in found["studies"].items() if name in ("paper", "tuned")}
    drawn = {}
    for preset, agents in presets.items():
        shown = {name: agents[name] for name in PAPER_AGENTS if name in agents}
        learned = {name: agents[name] for name in STYLES if name in agents}
        if preset == "tuned":  # where success and return are near the ceiling nearly everywhere
            maps = {name: row["cell_success"] for name, row in learned.items() if name != "ekf_dqn"}
            drawn[f"shortfall-{preset}"] = shortfall_maps(maps, ceiling["cell_success"], found["grid"])
            drawn[f"learning-{preset}"] = learning_curves(learned, ceiling["iqm_return"])
        else:
            drawn[f"returns-{preset}"] = return_curves(shown, found["lengths"])
            maps = {name: row["cell_success"] for name, row in shown.items()}
            drawn[f"success-{preset}"] = success_maps(maps | {"lqr": ceiling["cell_success"]}, found["grid"])
            drawn[f"learning-{preset}"] = learning_panels(learned, ceiling["iqm_return"])
    drawn["square"] = square(squares(found), ceiling["iqm_success"])
    if "fastest" in found["studies"]:
        drawn["learning-fastest"] = learning_curves(found["studies"]["fastest"], ceiling["iqm_return"], episodes=100)
    return drawn


def of_filters(found: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of `kalman.json`, by name."""
    ceiling = found["ceiling"]["iqm_return"]
    titles = {"ekf_dqn": "EKF-DQN on Cart-Pole", "ferry full": "Deep-RoK, ferry, full P"}
    titles |= {"ferry diagonal": "Deep-RoK, ferry, diagonal P"}
    drawn = {name: learning_curves(found["tables"][name], ceiling) for name in ("structures", "exploration")}
    drawn["calibration"] = coverage_plot(
        {text: found["calibration"][name] for name, text in titles.items() if name in found["calibration"]}
    )
    return drawn


def estimators(pairs: Mapping[str, Sequence[str]], agents: Rows, ceiling: float) -> Figure:
    """Success of every estimator with either target: every seed, interquartile mean and interval; also enlarged.

    Args:
      pairs: estimator -> its agent with the nominal target and with the robust one.
      agents: the agents.
      ceiling: the ceiling's success rate.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 0.75 * len(pairs) + 1.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel in panels:
        for i, (label, colour, marker, side) in enumerate(_TARGETS):
            rows = [agents[pair[i]] for pair in pairs.values()]
            places = np.arange(len(pairs)) + 0.16 * side
            for place, row in zip(places, rows, strict=True):
                seeds = 100 * np.asarray(row["per_seed"]["success"])
                panel.scatter(seeds, np.full(len(seeds), place + 0.1), s=9, color=colour, alpha=0.45, linewidth=0)
            _means(panel, places, rows, colour, marker, label, upright=False)
        panel.axvline(100 * ceiling, color="grey", linewidth=1)
        panel.set_xlabel("success over the grid in %")
    where = (100 * ceiling, -0.45)
    panels[0].annotate(
        "ceiling", where, xytext=(-3, 0), textcoords="offset points", ha="right", fontsize=8, color="dimgrey"
    )
    panels[0].set_yticks(range(len(pairs)), list(pairs))
    panels[0].set_ylim(len(pairs) - 0.5, -0.6)
    low, high = 100 * ceiling - 10, 100 * ceiling + 1
    shown = {"all seeds": (-2, 102), "zoom: near the ceiling": (low, high)}
    for panel, (text, limits) in zip(panels, shown.items(), strict=True):
        panel.set_title(text, fontsize=9)
        panel.set_xlim(*limits)
    panels[0].axvspan(low, high, color="grey", alpha=0.12, linewidth=0)  # what the zoom shows
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def of_systems(found: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of `table1.json`, by name."""
    table, policies, ceiling = found["tables"]["beliefs"], found["tables"]["policies"], found["ceiling"]
    drawn = {"beliefs": estimators(PAIRS, table, ceiling["iqm_success"])}
    for i, (target, gradients) in enumerate((("nominal", ("pg",)), ("robust", ("epopt", "robust_pg")))):
        rows = {pair[i]: table[pair[i]] for pair in PAIRS.values()} | {name: policies[name] for name in gradients}
        styles = dict(zip(rows, _ESTIMATOR_STYLES, strict=False))
        # Policy gradients are trained for longer; the figure ends where the others do.
        episodes = max(table[pair[i]]["curve"]["episodes"][-1] for pair in PAIRS.values())
        drawn[f"learning-{target}"] = learning_curves(rows, ceiling["iqm_return"], styles, episodes)
    named = {name: policies[name]["cell_success"] for name in ("pg", "epopt", "robust_pg", "nominal model alone")}
    drawn["policies"] = shortfall_maps(named, ceiling["cell_success"], found["grid"])
    drawn["calibration"] = coverage_plot({title(name): row for name, row in found["calibration"].items()})
    return drawn
