"""Tables of the pages: from the numbers of a study to headers and lines of text, and to Markdown."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from studies.statistics import Estimate, Verdict, failures, fisher

Lines = list[list[str]]
Rows = Mapping[str, Mapping[str, Any]]  # name -> summary

#: What rows are called on pages; in the JSON files, folders and terminal tables they have their short names.
TITLES: dict[str, str] = {
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
    "boot_dqn": "Bootstrapped DQN",
    "boot_rtd": "Bootstrapped RTD-DQN",
    "td3": "TD3",
    "td3_last": "TD3, last weights",
    "td3_constant": "TD3, constant rate",
    "td3_dr": "TD3, randomised",
    "rtd_td3": "RTD-TD3",
    "rok_td3": "RoK-TD3",
    "ktd_q": "KTD-Q",
    "ktd_rtd": "robust KTD-Q",
    "pg": "policy gradient, randomised",
    "epopt": "EPOpt",
    "robust_pg": "robust policy gradient",
    "deep_rok_joint": "Deep-RoK, joint update",
    "deep_rok_vote": "Deep-RoK, vote of 20 draws",
    "random": "random policy",
    "linear": "best linear policy found",
    "lqr": "LQR per cell (ceiling)",
    "sb3_dqn": "SB3 DQN",
    "sb3_dqn_dr": "SB3 DQN, randomised",
    "sb3_td3": "SB3 TD3",
    "sb3_td3_constant": "SB3 TD3, constant rate",
    "sb3_sac": "SB3 SAC",
    "sb3_sac_constant": "SB3 SAC, constant rate",
    "layer": "block per layer",
    "neuron": "block per neuron",
    "low_rank": "low rank",
    "epsilon": "ε-greedy",
    "thompson": "Thompson sampling",
    "ucb": "upper confidence bound",
    "worst from the start": "worst case from the start",
    "worst with time": "annealed over time",
    "worst with spread": "annealed with the posterior's spread",
    "ekf_dqn small": "EKF-DQN, 20 hidden units",
    "deep_rok small": "Deep-RoK, 20 hidden units",
    "deep_rok vote": "Deep-RoK, vote of 20 draws",
    "bbb_rtd vote": "BBB-RTD, vote of 20 draws",
    "psgld_rtd vote": "pSGLD-RTD, vote of 20 draws",
    "ktd_rtd vote": "robust KTD-Q, vote of 20 draws",
    "nominal model alone": "policy gradient, nominal model",
    "KL ball": "worst case over a KL ball",
    "adversary alone": "adversary only",
}

#: Success below which a seed counts as failed; three, so that no conclusion rests on the choice of one.
THRESHOLDS = (0.85, 0.90, 0.92)


def title(name: str) -> str:
    """What a row is called on pages."""
    return TITLES.get(name, name)


#: A table's columns, and what they are called in a terminal, where room is scarce.
_COLUMNS = {
    "": "",
    "success % (IQM)": "success %",
    "95 % interval": "interval",
    "mean %": "mean %",
    "worst seed %": "worst %",
    "return": "return",
    "mean regret": "regret",
    "largest regret": "largest",
    "nominal return": "nominal",
    "episodes to 95 %": "episodes",
    "seeds": "seeds",
}


def main_table(rows: Rows, short: bool = False) -> Lines:
    """A header and a line for each agent or reference.

    Args:
      rows: the agents and references.
      short: for a terminal: the names of the command line.
    """
    header = list(_COLUMNS.values() if short else _COLUMNS)
    return [header, *(_line(name if short else title(name), row) for name, row in rows.items())]


def _line(name: str, row: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{100 * row['iqm_success']:.1f}",
        interval(row["success_ci"], 100),
        f"{100 * mean_success(row):.1f}",
        f"{100 * min(row['per_seed']['success']):.1f}" if row["seeds"] > 1 else "–",
        f"{row['iqm_return']:.1f}",
        f"{row['mean_regret']:.1f}",
        f"{row['max_regret']:.1f}",
        f"{row['nominal_return']:.1f}",
        episodes_needed(row),
        _seeds(row),
    ]


def mean_success(row: Mapping[str, Any]) -> float:
    """The plain mean over seeds."""
    seeds = row["per_seed"]["success"]
    return sum(seeds) / len(seeds)


def _seeds(row: Mapping[str, Any]) -> str:
    diverged = len(row.get("broken", ()))
    return f"{row['seeds']} ({diverged} more diverged)" if diverged else str(row["seeds"])


def episodes_needed(row: Mapping[str, Any]) -> str:
    """Episodes to 95 % of the ceiling; with how many seeds got there, if not all did."""
    if row["episodes_to_95"] is None:
        return "–"
    if row["reached"] == 0:
        return "never"
    missed = "" if row["reached"] == row["seeds"] else f" ({row['reached']} of {row['seeds']})"
    at_least = "" if row["reached"] == row["seeds"] else "≥ "
    return f"{at_least}{row['episodes_to_95']:.0f}{missed}"


def interval(ends: Sequence[float] | None, factor: float = 1.0, form: str = ".1f") -> str:
    """An interval, or a dash."""
    return f"{factor * ends[0]:{form}} – {factor * ends[1]:{form}}" if ends else "–"


def with_interval(found: Mapping[str, Any], factor: float = 1.0, form: str = ".1f") -> str:
    """A number with its interval in brackets."""
    value = f"{factor * found['value']:{form}}"
    return f"{value} ({interval(found['ci'], factor, form)})" if found["ci"] else value


def signed(apart: Estimate | None, factor: float = 100.0, form: str = "+.0f") -> str:
    """A difference with its interval, bold where that excludes 0; a dash where there is none."""
    if apart is None:
        return "–"
    text = f"{factor * apart.value:{form}}"
    if not apart.interval:
        return text
    low, high = apart.interval
    text = f"{text} ({interval(apart.interval, factor, form)})"
    return f"**{text}**" if low > 0 or high < 0 else text


def in_code(names: Iterable[str]) -> str:
    """Names, each as code."""
    return ", ".join(f"`{name}`" for name in names)


def placed(verdict: Verdict) -> str:
    """On which environments an agent is above another, below it, or neither."""
    groups = {"above on": verdict.above, "below on": verdict.below, "inconclusive on": verdict.open}
    return "; ".join(f"{what} {in_code(envs)}" for what, envs in groups.items() if envs) or "too few seeds"


def success(row: Mapping[str, Any]) -> str:
    """A row's success over the grid with its interval, and how many runs diverged."""
    diverged = f", {len(row['broken'])} diverged" if row.get("broken") else ""
    return with_interval({"value": row["iqm_success"], "ci": row["success_ci"]}, 100) + diverged


def beyond_table(rows: Rows, conditions: Mapping[str, str]) -> Lines:
    """Success in environments beyond those trained on, a line for each condition and a column for each row."""
    return [
        ["success %", *(title(name) for name in rows)],
        ["the grid itself", *(success(row) for row in rows.values())],
        *(
            [what, *(with_interval(row["beyond"][name], 100) for row in rows.values())]
            for name, what in conditions.items()
        ),
    ]


def coverage_table(rows: Rows) -> Lines:
    """Empirical coverage of intervals, raw and with cross-validated temperatures, a line for each calibration."""
    levels = next(iter(rows.values()))["levels"]
    header = ["nominal coverage", *(f"{100 * level:.0f} %, raw" for level in levels), "temperature"]
    header += [*(f"{100 * level:.0f} %, scaled" for level in levels), "predicted σ", "RMS error"]
    return [
        header,
        *(
            [
                name,
                *(f"{100 * share:.0f}" for share in row["coverage"]),
                f"{min(row['temperature']):.2g} – {max(row['temperature']):.2g}",
                *([f"{100 * share:.0f}" for share in row["calibrated"]] if row["calibrated"] else ["–"] * len(levels)),
                f"{row['deviation']:.3g}",
                f"{row['error']:.3g}",
            ]
            for name, row in rows.items()
        ),
    ]


def failure_table(groups: Mapping[str, Sequence[float]]) -> Lines:
    """How many seeds end below each of the thresholds.

    Args:
      groups: title -> success of each seed.
    """
    return [
        ["", "seeds", *(f"below {100 * threshold:.0f} %" for threshold in THRESHOLDS)],
        *(
            [name, str(len(seeds)), *(str(failures(seeds, threshold)) for threshold in THRESHOLDS)]
            for name, seeds in groups.items()
        ),
    ]


def fisher_table(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Lines:
    """p of Fisher's exact test at each of the thresholds.

    Args:
      pairs: title -> success of each seed of the one and of the other.
    """
    return [
        ["p of Fisher's exact test", *(f"below {100 * threshold:.0f} %" for threshold in THRESHOLDS)],
        *([name, *(f"{fisher(*pair, threshold):.2g}" for threshold in THRESHOLDS)] for name, pair in pairs.items()),
    ]


def changed(changes: Mapping[str, Any]) -> str:
    """Settings that differ from a preset."""
    return ", ".join(f"`{name}` {shown(value)}" for name, value in changes.items()) or "none"


def shown(value: Any) -> str:
    """A setting's value."""
    if isinstance(value, list | tuple):
        return " ".join(shown(x) for x in value)
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def markdown(lines: Lines, texts: Collection[int] = ()) -> str:
    """A table: a header and its lines.

    Args:
      lines: the header and the lines.
      texts: columns that hold text, as the first does; the others hold numbers.
    """
    header, *rest = lines
    rule = ["---" if i == 0 or i in texts else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rest)) + "\n"


def figure(page: str, name: str, what: str) -> str:
    """A figure of a page, with what it shows."""
    return f"![{what}]({page}/{name}.png)\n\n[As SVG]({page}/{name}.svg)\n"


def earlier_anchor(name: str) -> str:
    """Keeps links to a heading that had another wording."""
    return f'<a id="{name}"></a>\n'


#: How lines of Markdown begin that are no prose: blank lines, tables, headings, figures, anchors and code.
_NO_PROSE = re.compile(r"$|\||#|!|<a |```")


def wrapped(page: str, width: int = 120) -> str:
    """A page with its prose wrapped anew, since numbers are not as wide as the code that gives them."""
    done: list[str] = []
    paragraph: list[str] = []
    in_code = False
    wrap = functools.partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)

    def flush() -> None:
        indent = "  " if paragraph and paragraph[0].startswith("- ") else ""
        text = " ".join(line.strip() for line in paragraph)
        done.extend(wrap(text, width, subsequent_indent=indent))
        paragraph.clear()

    for line in page.splitlines():
        verbatim = in_code or bool(_NO_PROSE.match(line))
        in_code ^= line.startswith("```")
        if verbatim or line.startswith("- "):
            flush()
        (done if verbatim else paragraph).append(line)
    flush()
    return "\n".join(done) + "\n"
