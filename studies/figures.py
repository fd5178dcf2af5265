"""Figures of the studies, by name: those of the paper, and the square of labels and beliefs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.environments import cartpole
from deeprok.plot import (
    BLUE,
    GREEN,
    NAMES,
    ORANGE,
    PURPLE,
    SKY,
    STYLES,
    Band,
    coverage_plot,
    learning_curves,
    panels_of,
    return_curves,
    success_maps,
)
from studies.plan import PAIRS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The same for the beliefs of Table 1, whatever their label.
_BELIEF_STYLES = [(SKY, "--", "v"), (BLUE, "-", "o"), (ORANGE, "-.", "s"), (GREEN, ":", "^"), (PURPLE, "-", "D")]

#: The agents of the paper's figures.
_PAPER_AGENTS = ("ddqn", "rtd_dqn", "deep_rok")


def square(tables: Mapping[str, Mapping[str, Mapping[str, Any]]], ceiling: float) -> Figure:
    """{nominal, robust label} × {Adam, Kalman filter}: every seed, the interquartile mean and its interval.

    Args:
      tables: title -> agent -> its summary; a panel each.
      ceiling: the ceiling's share of successes.
    """
    figure, panels = panels_of(len(tables))
    lines = {
        "nominal label": (("dqn", "ekf_dqn"), ORANGE, "s", -0.06),
        "robust label": (("rtd_dqn", "deep_rok"), BLUE, "o", 0.06),
    }
    for panel, (title, agents) in zip(panels, tables.items(), strict=True):
        for label, (corners, colour, marker, offset) in lines.items():
            places = np.arange(2) + offset
            for place, name in zip(places, corners, strict=True):
                seeds = 100 * np.asarray(agents[name]["per_seed"]["success"])
                jitter = np.linspace(-0.03, 0.03, len(seeds))
                panel.scatter(place + np.sign(offset) * 0.08 + jitter, seeds, s=7, color=colour, alpha=0.4, linewidth=0)
            means = 100 * np.array([agents[name]["iqm_success"] for name in corners])
            ends = 100 * np.array([agents[name]["success_ci"] for name in corners])
            errors = [means - ends[:, 0], ends[:, 1] - means]
            panel.errorbar(places, means, np.abs(errors), color=colour, marker=marker, capsize=3, label=label)
        panel.axhline(100 * ceiling, color="grey", linewidth=1)
        panel.annotate(
            "ceiling", (-0.45, 100 * ceiling), xytext=(0, 3), textcoords="offset points", fontsize=8, color="dimgrey"
        )
        panel.set_xticks([0, 1], ["Adam", "Kalman filter"])
        panel.set_xlim(-0.5, 1.5)
        panel.set_ylim(0, 105)
        panel.set_title(title, fontsize=10)
    panels[0].set_ylabel("success over the grid in %")
    panels[0].legend(loc="lower center", frameon=False, fontsize=8)
    return figure


def squares(found: Mapping[str, Any]) -> dict[str, Any]:
    """The squares among the tables of `results.json`, each under a title."""
    tables = {found["preset"]: found["agents"], **found["studies"]}
    titles = {"best": "each at its best settings", "tuned": "preset tuned", "paper": "preset paper"}
    return {title: tables[name] for name, title in titles.items() if name in tables}


def of_results(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers of `results.json` allow, by name."""
    world = cartpole()
    ceiling = found["references"]["lqr"]
    presets = {found["preset"]: found["agents"]}
    presets |= {name: table for name, table in found["studies"].items() if name in ("paper", "tuned")}
    drawn = {}
    for preset, agents in presets.items():
        bands = {name: Band(*(agents[name]["lengths"][k] for k in ("mean", "deviation"))) for name in _PAPER_AGENTS}
        drawn[f"returns-{preset}"] = return_curves(bands, "pole_length", found["lengths"], world)
        maps = {name: agents[name]["cell_success"] for name in _PAPER_AGENTS} | {"lqr": ceiling["cell_success"]}
        drawn[f"success-{preset}"] = success_maps(maps, found["grid"], world)
        shown = {name: agents[name] for name in STYLES if name in agents}
        drawn[f"learning-{preset}"] = learning_curves(shown, ceiling["iqm_return"])
    drawn["square"] = square(squares(found), ceiling["iqm_success"])
    if "fastest" in found["studies"]:
        drawn["learning-fastest"] = learning_curves(found["studies"]["fastest"], ceiling["iqm_return"])
    return drawn


def dives(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """When each seed found the treasure first, for each depth and way to explore; never is on the top line.

    Args:
      found: depth -> way -> `first` of each seed, as `kalman.json` has it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    panel = figure.subplots()
    ways = list(next(iter(found.values())))
    for k, way in enumerate(ways):
        colour, _, marker = list(STYLES.values())[(1, 5, 3)[k % 3]]
        for i, rows in enumerate(found.values()):
            never = rows[way]["episodes"] * 1.6
            first = np.array([never if x is None else x for x in rows[way]["first"]], float)
            place = i + 0.27 * (k - 1) + np.linspace(-0.09, 0.09, len(first))
            label = ways[k] if i == 0 else None
            panel.scatter(place, first, s=14, color=colour, marker=marker, alpha=0.7, linewidth=0, label=label)
    panel.set_yscale("log")
    panel.axhline(never, color="grey", linewidth=0.8, linestyle=":", zorder=0)
    panel.annotate("never", (-0.45, never), xytext=(0, 3), textcoords="offset points", fontsize=8, color="dimgrey")
    panel.set_ylim(0.7, never * 1.6)
    panel.set_xticks(range(len(found)), [f"depth {depth}" for depth in found])
    panel.set_xlim(-0.5, len(found) - 0.5)
    panel.set_ylabel("episode of the first treasure")
    figure.legend(loc="outside upper center", ncols=len(ways), frameon=False, fontsize=8)
    return figure


def of_filters(found: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of `kalman.json`, by name."""
    ceiling = found["ceiling"]["iqm_return"]
    titles = {"ekf_dqn": "EKF-DQN on Cart-Pole", "ferry full": "Deep-RoK, ferry, full P"}
    titles |= {"ferry diagonal": "Deep-RoK, ferry, diagonal P"}
    learned = [name for name in ("structures", "exploration", "confidence") if name in found["tables"]]
    drawn = {name: learning_curves(found["tables"][name], ceiling) for name in learned}
    drawn["calibration"] = coverage_plot(
        {title: found["calibration"][name] for name, title in titles.items() if name in found["calibration"]}
    )
    drawn["deep-sea"] = dives(found["deep_sea"])
    return drawn


def beliefs(pairs: Mapping[str, Sequence[str]], agents: Mapping[str, Mapping[str, Any]], ceiling: float) -> Figure:
    """Success of every belief with either label: every seed, the interquartile mean and its interval; also enlarged.

    Args:
      pairs: belief -> its agent with the nominal label and with the robust one.
      agents: agent -> its summary.
      ceiling: the ceiling's share of successes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 0.75 * len(pairs) + 1.3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    labels = (("nominal label", ORANGE, "s", -0.16), ("robust label", BLUE, "o", 0.16))
    for panel in panels:
        for i, (label, colour, marker, offset) in enumerate(labels):
            names = [pair[i] for pair in pairs.values()]
            places = np.arange(len(pairs)) + offset
            for place, name in zip(places, names, strict=True):
                seeds = 100 * np.asarray(agents[name]["per_seed"]["success"])
                panel.scatter(seeds, np.full(len(seeds), place + 0.1), s=9, color=colour, alpha=0.45, linewidth=0)
            means = 100 * np.array([agents[name]["iqm_success"] for name in names])
            ends = 100 * np.array([agents[name]["success_ci"] for name in names])
            errors = np.abs([means - ends[:, 0], ends[:, 1] - means])
            shown = label if panel is panels[0] else None
            panel.errorbar(
                means, places, xerr=errors, color=colour, marker=marker, linestyle="none", capsize=3, label=shown
            )
        panel.axvline(100 * ceiling, color="grey", linewidth=1)
        panel.set_xlabel("success over the grid in %")
    where = (100 * ceiling, -0.45)
    panels[0].annotate(
        "ceiling", where, xytext=(-3, 0), textcoords="offset points", ha="right", fontsize=8, color="dimgrey"
    )
    panels[0].set_yticks(range(len(pairs)), list(pairs))
    panels[0].set_ylim(len(pairs) - 0.5, -0.6)
    panels[0].set_xlim(-2, 102)
    panels[1].set_xlim(100 * ceiling - 10, 100 * ceiling + 1)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def of_systems(found: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of `table1.json`, by name."""
    table, ceiling = found["tables"]["beliefs"], found["ceiling"]
    drawn = {"beliefs": beliefs(PAIRS, table, ceiling["iqm_success"])}
    for i, label in enumerate(("nominal", "robust")):
        names = [pair[i] for pair in PAIRS.values()]
        styles = dict(zip(names, _BELIEF_STYLES, strict=True))
        drawn[f"learning-{label}"] = learning_curves(
            {name: table[name] for name in names}, ceiling["iqm_return"], styles
        )
    policies = found["tables"]["policies"]
    maps = {name: row["cell_success"] for name, row in policies.items() if name in NAMES}
    drawn["policies"] = success_maps(maps | {"lqr": ceiling["cell_success"]}, found["grid"], cartpole(), "a")
    drawn["calibration"] = coverage_plot({NAMES[name]: row for name, row in found["calibration"].items()})
    return drawn
