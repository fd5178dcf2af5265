"""The page of the study `logs`, made of nothing but the numbers of `logs.json`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE
from studies.defaults_page import diverged, missing
from studies.statistics import Estimate, estimate, mean_of, verdict
from studies.tables import Lines, figure, interval, markdown, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]

#: What the others are compared with: trained on the true parameters.
REFERENCE = "truth"
_COLOURS = {"truth": BLACK, "prior": GREEN, "estimate": ORANGE, "box": BLUE, "models": PURPLE}
#: Pairs of ways whose differences are shown.
_PAIRS = (("box", "estimate"), ("box", "prior"), ("estimate", "prior"), ("models", "box"))
_SCORES = {"success": ("success, in percentage points", 100, "+.0f"), "mean_return": ("return", 1, "+.3g")}


def row_name(found: Found, way: str, episodes: int) -> str:
    """The name of a row: that of its way and, if it uses a log, of the number of its episodes."""
    return f"{way}-{episodes}" if found["ways"][way]["logged"] else way


def title_of(found: Found, name: str) -> str:
    """What a row is called."""
    way, _, episodes = name.partition("-")
    title = found["ways"][way]["title"]
    return f"{title}, {episodes} episode{'s' * (episodes != '1')}" if episodes else title


def each(found: Found, env: str, name: str, score: str) -> dict[str, float]:
    """A score of each seed."""
    epsilon = f"{found['epsilon']:g}"
    return {seed: its[epsilon][score] for seed, its in found["rows"][env][name]["seeds"].items()}


def apart(found: Found, env: str, first: str, second: str, score: str) -> Estimate | None:
    """The first row minus the second, over the seeds that both have; they share true system and log."""
    one, other = (each(found, env, name, score) for name in (first, second))
    both = [one[seed] - other[seed] for seed in one if seed in other]
    return mean_of(both) if both else None


def measured(found: Found, env: str) -> list[str]:
    """The rows that have numbers on an environment."""
    return [name for name, its in found["rows"][env].items() if its["seeds"]]


def environments(found: Found) -> list[str]:
    """Those on which any row has numbers."""
    return [env for env in found["rows"] if measured(found, env)]


# --- tables --------------------------------------------------------------------------------------------


def _shown(value: Estimate | None, factor: float, form: str, bold: bool = False) -> str:
    """A number with its interval; of differences those whose interval excludes 0 may be bold."""
    if value is None:
        return "–"
    text = f"{factor * value.value:{form}}"
    if value.interval:
        text = f"{text} ({interval(value.interval, factor, form)})"
        if bold and (value.interval[0] > 0 or value.interval[1] < 0):
            return f"**{text}**"
    return text


def level(found: Found, env: str, name: str, score: str) -> Estimate:
    """The mean of a score over seeds; its interval stays within what is possible."""
    scores = [*each(found, env, name, score).values()]
    if score != "success":
        return estimate(np.mean, scores)
    mean = mean_of(scores)
    return Estimate(mean.value, mean.interval and (max(0.0, mean.interval[0]), min(1.0, mean.interval[1])))


def table(found: Found, env: str, short: bool = False) -> Lines:
    """A header and a line for each row that has numbers on an environment."""
    header = ["trained on", "success %", "worst seed %", "return", "success − reference", "return − reference", "seeds"]
    if short:
        header = ["", "success %", "worst", "return", "success − ref.", "return − ref.", "seeds"]
    lines: Lines = [header]
    for name in measured(found, env):
        success = each(found, env, name, "success")
        differences = [
            "–" if name == REFERENCE else _shown(apart(found, env, name, REFERENCE, score), factor, form)
            for score, (_, factor, form) in _SCORES.items()
        ]
        lines.append(
            [
                name if short else title_of(found, name),
                _shown(level(found, env, name, "success"), 100, ".0f"),
                f"{100 * min(success.values()):.0f}",
                _shown(level(found, env, name, "mean_return"), 1, ".3g"),
                *differences,
                str(len(success)),
            ]
        )
    return lines


def difference_table(found: Found, env: str, score: str) -> Lines:
    """Paired differences between two ways, a column for each number of episodes; bold where 0 is outside."""
    what, factor, form = _SCORES[score]
    counts, rows = found["log_episodes"], set(measured(found, env))
    lines: Lines = [[what, *(f"{count} episode{'s' * (count > 1)}" for count in counts)]]
    for first, second in _PAIRS:
        names = [(row_name(found, first, count), row_name(found, second, count)) for count in counts]
        if not any(rows >= {*pair} for pair in names):
            continue
        titles = [found["ways"][way]["title"] for way in (first, second)]
        cells = (
            _shown(apart(found, env, *pair, score), factor, form, bold=True) if rows >= {*pair} else "–"
            for pair in names
        )
        lines.append([" − ".join(titles), *cells])
    return lines


def verdicts(found: Found, env: str) -> str:
    """What the differences say on an environment: a sentence for each pair of ways on returns, and one on success."""
    counts, rows, said = found["log_episodes"], set(measured(found, env)), []
    for first, second in _PAIRS:
        names = {count: (row_name(found, first, count), row_name(found, second, count)) for count in counts}
        apart_at = {
            f"{count}": apart(found, env, *pair, "mean_return") for count, pair in names.items() if rows >= {*pair}
        }
        found_out = verdict(apart_at)
        parts = [
            f"{word} with {_listed(map(int, its))} episode{'s' * (its != ['1'])}"
            for word, its in (("better", found_out.above), ("worse", found_out.below), ("inconclusive", found_out.open))
            if its
        ]
        if parts:
            one, other = (found["ways"][way]["title"] for way in (first, second))
            said.append(f"- {one[0].upper()}{one[1:]} against {other}: {'; '.join(parts)}.")
    success = [
        apart(found, env, *pair, "success")
        for first, second in _PAIRS
        for count in counts
        if rows >= {*(pair := (row_name(found, first, count), row_name(found, second, count)))}
    ]
    clear = [one for one in success if one and one.interval and not one.interval[0] <= 0 <= one.interval[1]]
    said.append(f"- In success, the intervals of {len(clear)} of {len(success)} differences exclude 0.")
    return "\n".join(said)


def _told(found: Found, env: str, count: int) -> list[Mapping[str, Any]]:
    """What the logs with so many episodes told, by seed."""
    seeds: dict[str, Mapping[str, Any]] = {}
    for way, its in found["ways"].items():
        if its["logged"]:
            seeds |= found["rows"][env][row_name(found, way, count)]["seeds"]
    return [*seeds.values()]


def _width(its: Mapping[str, Any], own: Mapping[str, Any], name: str) -> float:
    """The width of an identified range, as a share of the environment's own."""
    low, high = its["box"][name]
    return float((high - low) / (own[name][1] - own[name][0]))


def _holds(its: Mapping[str, Any]) -> bool:
    return all(low <= its["truth"][name] <= high for name, (low, high) in its["box"].items())


def log_table(found: Found) -> Lines:
    """How much logs tell: medians of widths and errors over seeds, as shares of the environment's own ranges."""
    lines: Lines = [["environment", "episodes", "parameter", "width of the range %", "error of the estimate %", "hold"]]
    for env in environments(found):
        own = found["envs"][env]["box"]
        for count in found["log_episodes"]:
            told = _told(found, env, count)
            for name, (low, high) in own.items() if told else ():
                widths = [_width(its, own, name) for its in told]
                errors = [abs(its["estimate"][name] - its["truth"][name]) / (high - low) for its in told]
                lines.append(
                    [
                        f"`{env}`",
                        str(count),
                        f"`{name}`",
                        f"{100 * np.median(widths):.0f}",
                        f"{100 * np.median(errors):.0f}",
                        f"{sum(map(_holds, told))} of {len(told)}",
                    ]
                )
    return lines


def short_tables(found: Found) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[env, *table(found, env, short=True)] for env in environments(found)]


# --- the page ------------------------------------------------------------------------------------------


def _listed(numbers: Any) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def recorded_table(found: Found) -> Lines:
    """How logs are recorded: how often each action is taken, and the noise in each observation."""
    return [
        ["environment", "share of each action", "noise of the system", "noise of the sensors"],
        *(
            [f"`{env}`", *map(_listed, (its["actions"], its["noise"]["process"], its["noise"]["sensor"]))]
            for env, its in found["envs"].items()
        ),
    ]


def _steps(found: Found) -> str:
    return " and ".join(f"{its['steps']:,} on `{env}`" for env, its in found["envs"].items())


def _few_models(found: Found) -> str:
    """How many logs gave fewer plausible models than were asked for."""
    told = [its for env in environments(found) for count in found["log_episodes"] for its in _told(found, env, count)]
    few = sum(its["models"] < found["models"] for its in told)
    return f"{few} of {len(told)} logs gave fewer." if few else "Every log gave as many."


def page(found: Found) -> str:
    """Markdown of the tables and the figure.

    Args:
      found: what `logs.json` holds.
    """
    envs, ways = environments(found), found["ways"]
    called = functools.partial(title_of, found)
    differences = "\n".join(
        f"### `{env}`: differences\n\nIn return on the true system:\n\n{verdicts(found, env)}\n\n"
        + "\n".join(markdown(difference_table(found, env, score)) for score in _SCORES)
        for env in envs
    )
    tables = "\n".join(f"### `{env}`\n\n{markdown(table(found, env))}" for env in envs)
    return wrapped(
        f"""# What is a log worth?

A system is known by a log of a few episodes, or not at all. Which policy does well on it? Three ways to use a log are
compared with none, for logs of {_listed(found["log_episodes"][:-1])} and {found["log_episodes"][-1]} episodes:

- **{ways["estimate"]["title"]}**: Double-DQN on [the identified estimate](how-to/identify.md) alone.
- **{ways["box"]["title"]}**: RTD-DQN on the ranges that the log leaves, as `deeprok train rtd_dqn --box FILE` does.
- **{ways["models"]["title"]}**: RTD-DQN on a sample of {found["models"]} models that the log does not contradict, as
  `--models FILE` does.
- **{ways["prior"]["title"]}**: RTD-DQN on the environment's own box, without a log.
- **{ways["truth"]["title"]}**: Double-DQN on the true system's parameters, which is the reference.

{figure("logs", "logs", "Success and return on the true system against the number of logged episodes")}

Lines are means over seeds, bands their 95 % intervals: Student's for success, the bootstrap's for returns. Each seed
has its own true system, its own log of it and its own training; all ways share the system and the log. So some systems
are harder than others, and the bands hold that too. Differences between two ways are paired, by seed, and can be clear
where bands overlap.

## What the numbers say

Differences of means over seeds with Student's 95 % intervals; bold where 0 is outside, as one in twenty would be by
chance if all ways were alike. *Return* is in the environment's own units.

{differences}

## All numbers

*Reference*: {ways["truth"]["title"]}. Differences to it are paired too.

{tables}

## How much the logs tell

Medians over seeds. Widths and errors are shares of the environment's own range. An estimate may lie beyond that range,
since the search goes further. *Hold*: seeds whose ranges hold all true parameters; the nominal coverage is
{100 * found["confidence"]:.0f} %.

{markdown(log_table(found), texts=(2,))}

## How it was measured

This page is generated, with its figure and [logs.json](logs/logs.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. {diverged(found, called)}{missing(found, called)}

- **True systems** are drawn uniformly from the environment's box, one for each seed. The environments are those of the
  [others' pages](environments.md) on which a policy for the wrong model fails: the road, with unknown friction and
  drag, and the hard Cart-Pole, with unknown gravity and force.
- **Logs** are of random actions, for at most {found["log_steps"]} steps an episode. A log of fewer episodes is the
  beginning of one with more. Normal noise is added to the system itself in each step and to what is seen of it. Shares
  of actions and noise are below. They were chosen by the ranges alone, so that one episode leaves most of a range open
  and {found["log_episodes"][-1]} episodes little of it. On the road the throttle is open in most steps: a car that
  stands still is not what the filter assumes, and with equal shares ranges were too narrow.
- **Identification** has a confidence of {100 * found["confidence"]:.0f} % and knows nothing of the noise. A sample of
  {found["models"]} plausible models is as large as what RTD-DQN draws from a box. {_few_models(found)}
- **Training** is the preset `default`, with fewer environment steps for every row: {_steps(found)}. Half as many
  were too few in first runs of some of these seeds. A large set takes longer to learn than a small one, so part of what
  the wide box loses may be the budget: with the preset's own steps RTD-DQN succeeds on
  [nearly all models](defaults.md) of both boxes. Weights are chosen on held-out models of the run's
  box; where a row knows one model only, its box is that model.
- **The test** is {found["episodes"]} episodes on the true system, without noise and without random actions (ε =
  {found["epsilon"]:g}), with the weights that a run ends with. So what differs from training is the parameters alone.

Shares of actions, and standard deviations of the noise in the order and units of the observations:

{markdown(recorded_table(found), texts=(1, 2, 3))}
"""
    )


# --- the figure ----------------------------------------------------------------------------------------


def figures(found: Found) -> dict[str, Figure]:
    """Every figure, by name."""
    return {"logs": lines_figure(found)} if environments(found) else {}


def lines_figure(found: Found) -> Figure:
    """Success and return against the number of logged episodes: a column for each environment, a line for each way."""
    from matplotlib.figure import Figure

    envs, counts = environments(found), found["log_episodes"]
    chart = Figure(figsize=(4.8 * len(envs), 6.6), layout="constrained")
    panels = chart.subplots(2, len(envs), sharex=True, squeeze=False)
    labels = {"success": "success on the true system in %", "mean_return": "return on the true system"}
    for column, env in enumerate(envs):
        for row, (score, (_, factor, _)) in enumerate(_SCORES.items()):
            panel = panels[row][column]
            for way, colour in _COLOURS.items():
                _draw(panel, found, env, way, score, factor, colour)
            panel.set_xscale("log")
            panel.set_xticks(counts, [str(count) for count in counts])
            panel.minorticks_off()
            panel.grid(linewidth=0.5, alpha=0.5)
            if score == "success":
                panel.set_ylim(-3, 103)
                panel.set_title(env, fontsize=10)
            else:
                panel.set_xlabel("logged episodes")
        for row, label in enumerate(labels.values()):
            panels[row][0].set_ylabel(label)
    drawn = [way for way in _COLOURS if any(_points(found, env, way, "success") for env in envs)]
    styles = ["-" if found["ways"][way]["logged"] else "--" for way in drawn]
    marks = [
        panels[0][0].plot([], [], color=_COLOURS[way], linestyle=style)[0]
        for way, style in zip(drawn, styles, strict=True)
    ]
    words = [found["ways"][way]["title"] for way in drawn]
    chart.legend(marks, words, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return chart


def _points(found: Found, env: str, way: str, score: str) -> dict[int, Estimate]:
    """The mean of a way for each number of episodes that has been measured."""
    names = {count: row_name(found, way, count) for count in found["log_episodes"]}
    rows = set(measured(found, env))
    return {count: level(found, env, name, score) for count, name in names.items() if name in rows}


def _draw(panel: Any, found: Found, env: str, way: str, score: str, factor: float, colour: str) -> None:
    points = _points(found, env, way, score)
    if not points:
        return
    counts, means = [*points], [factor * mean.value for mean in points.values()]
    logged = found["ways"][way]["logged"]
    panel.plot(
        counts, means, color=colour, linestyle="-" if logged else "--", marker="o" if logged else "", markersize=4
    )
    if all(mean.interval for mean in points.values()):
        low, high = np.array([factor * np.array(mean.interval) for mean in points.values()]).T
        panel.fill_between(counts, low, high, color=colour, alpha=0.12, linewidth=0)
