"""Numbers in prose come from stored results.

A number on a page stands between two comments, which browsers do not show. The first says how it is computed:

    Deep-RoK succeeds in <!--n success(tuned["deep_rok"])-->94.0 % (93.8 – 94.1)<!--/n--> of the episodes.

`python docs/tools/stored_numbers.py` writes all of them anew from the JSON files; a test compares them.
"""

from __future__ import annotations

import functools
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # some numbers are computed as the studies' pages do
MARKED = re.compile(r"<!--n (.+?)-->(.*?)<!--/n-->", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may hold such numbers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@functools.cache
def values() -> dict[str, Any]:
    """What the comments may name: the stored results, and the ways to write them."""
    results, kalman, table1, defaults, calibration, deep_sea, critic, robustness = (
        json.loads((ROOT / "docs" / name / f"{name}.json").read_text())
        for name in ("results", "kalman", "table1", "defaults", "calibration", "deep_sea", "critic", "robustness")
    )
    return {
        "results": results,
        "kalman": kalman,
        "table1": table1,
        "defaults": defaults,
        "calibration": calibration["rows"],
        "worst_cell": lambda env, row: worst_cell(robustness, env, row),
        "succeeded": lambda env, row: succeeded(robustness, env, row),
        "critic_won": lambda env, other: critic_won(critic, env, other),
        "solved": lambda agent, depth: solved(deep_sea, agent, depth),
        "guard_time": functools.partial(guard_time, json.loads((ROOT / "benchmarks" / "guard.json").read_text())),
        "benchmarks": json.loads((ROOT / "benchmarks" / "results.json").read_text()),
        "tuned": results["agents"],  # 20 seeds
        "paper": results["studies"]["paper"],  # 10 seeds
        "references": results["references"],
        "tuning": results["studies"]["tuning"],
        "ablation": results["studies"]["ablation"],
        "beliefs": table1["tables"]["beliefs"],  # 10 seeds
        "policies": table1["tables"]["policies"],
        "success": success,
        "percent": percent,
        "low_high": low_high,
        "beyond": beyond,
        "mean": mean,
        "worst": worst,
        "each_seed": each_seed,
        "below": below,
        "interval": interval,
        "fisher": lambda one, other, share: fisher([one], [other], share),
        "fisher_all": lambda ones, others, share: fisher(*_rows(table1, ones, others), share),
        "failed": lambda names, share: " of ".join(map(str, _failures(_rows(table1, names)[0], share))),
        "ratio": ratio,
        "improvement": lambda one, other: interval(results["improvement"][one][other]),
        "micros": micros,
        "episodes": episodes,
        "table_row": table_row,
        "covered": covered,
        "held": lambda kind: held(calibration, kind),
        "alarm": alarm,
        "held_within": lambda kind: held_within(calibration, kind),
        "share": share,
        "shares": shares,
        "reach": reach,
        "default_success": default_success,
        "on_paper_grid": on_paper_grid,
        "seeds_of": lambda row: str(row["seeds"]),
        "min": min,
        "max": max,
        "round": round,
        "sum": sum,
        "len": len,
    }


def guard_time(found: dict[str, Any], kind: str, *envs: str) -> str:
    """How long a check of a guard takes, `median`, `p99` or `max`, in the slowest environment; by default of JAX."""
    rows = [found["rows"][env] for env in envs or ("cartpole", "swing_up")]
    slowest = max(row["microseconds"][kind] for row in rows) / 1000
    return f"{float(f'{slowest:.2g}'):g} ms"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def low_high(ci: list[float], digits: int = 1) -> str:
    return " – ".join(f"{100 * end:.{digits}f}" for end in ci)


def success(row: dict[str, Any]) -> str:
    """Interquartile mean over seeds, with its 95 % interval."""
    return f"{percent(row['iqm_success'])} ({low_high(row['success_ci'])})"


def beyond(row: dict[str, Any], condition: str) -> str:
    found = row["beyond"][condition]
    return percent(found["value"]) + (f" ({low_high(found['ci'])})" if found["ci"] else "")


def mean(row: dict[str, Any]) -> str:
    """Mean over seeds, failed ones included."""
    return percent(statistics.mean(row["per_seed"]["success"]))


def worst(row: dict[str, Any]) -> str:
    """The worst seed."""
    return percent(min(row["per_seed"]["success"]))


def each_seed(row: dict[str, Any]) -> str:
    """The success of each seed in %."""
    return ", ".join(f"{100 * x:.0f}" for x in row["per_seed"]["success"])


def below(row: dict[str, Any], share: float) -> str:
    """How many seeds end below this success."""
    found = row["per_seed"]["success"]
    return f"{sum(x < share for x in found)} of {len(found)}"


def fisher(ones: list[dict[str, Any]], others: list[dict[str, Any]], share: float) -> str:
    """Fisher's exact test of whether two groups of runs fail, by ending below a success, equally often."""
    from scipy.stats import fisher_exact

    table = [[failed, runs - failed] for failed, runs in (_failures(ones, share), _failures(others, share))]
    p = fisher_exact(table).pvalue
    return f"{p:.3f}" if p < 0.01 else f"{p:.2f}"


def _rows(table1: dict[str, Any], *groups: list[str]) -> list[list[dict[str, Any]]]:
    return [[table1["tables"]["beliefs"][name] for name in names] for names in groups]


def _failures(rows: list[dict[str, Any]], share: float) -> tuple[int, int]:
    found = [x for row in rows for x in row["per_seed"]["success"]]
    return sum(x < share for x in found), len(found)


def held(found: dict[str, Any], kind: str) -> str:
    """The empirical coverages of the filter's 95 % intervals, `raw` or `corrected`, from the least to the largest."""
    rows = [row["filter"] for targets in found["rows"].values() for row in targets.values() if "filter" in row]
    shares = [100 * statistics.mean(agent[kind]["coverage"][-1] for agent in row["agents"].values()) for row in rows]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


def held_within(found: dict[str, Any], kind: str) -> str:
    """How many of the filter's rows have coverages within the bounds, of how many."""
    from studies import calibration_page

    said = calibration_page.verdicts(found)
    return f"{said[kind]} of {said['cases']}"


def alarm(row: dict[str, Any]) -> str:
    """The mean AUROC of σ for failing cells, over agents that have both kinds."""
    return f"{statistics.mean(agent['auroc'] for agent in row['agents'].values() if agent['auroc'] is not None):.2f}"


def interval(found: dict[str, Any], digits: int = 2) -> str:
    low, high = found["ci"]
    return f"{found['value']:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def ratio(benchmark: str, name: str, digits: int = 1) -> str:
    """A measured ratio, by the beginning of its name."""
    stored = values()["benchmarks"][benchmark]["ratios"]
    (found,) = [entry["value"] for entry in stored if entry["name"].startswith(name)]
    return f"{found:.{digits}f}"


def micros(benchmark: str, name: str) -> str:
    return f"{values()['benchmarks'][benchmark]['times'][name]['best_us']:.0f} µs"


def episodes(row: dict[str, Any]) -> str:
    """Mean episodes to 95 % of the ceiling's return; a bound where some seeds never get there."""
    reached, seeds = row["reached"], len(row["per_seed"]["seed"])
    if not reached:
        return "never"
    at_least = "" if reached == seeds else "≥ "
    some = "" if reached == seeds else f" ({reached} of {seeds} seeds)"
    return f"{at_least}{row['episodes_to_95']:.0f}{some}"


def table_row(row: dict[str, Any]) -> str:
    """Success, mean over seeds, seeds below 90 %, return, largest regret and episodes, as cells of a table."""
    cells = [success(row), mean(row), below(row, 0.9), f"{row['iqm_return']:.1f}", f"{row['max_regret']:.1f}"]
    return " | ".join([*cells, episodes(row)])


def critic_won(critic: dict[str, Any], env: str, other: str) -> str:
    """How often a seed with the Kalman critic is better in the worst cell than one with another."""
    from studies.critic_page import each
    from studies.statistics import estimate, probability_of_improvement

    better = estimate(probability_of_improvement, *(each(critic, env, its, "worst_cell") for its in ("kalman", other)))
    return f"{100 * better.value:.0f} %"


def worst_cell(robustness: dict[str, Any], env: str, row: str) -> str:
    """The mean return in the worst cell of a row of the study of robustness, as a share of the reference's."""
    from studies.robustness_page import share

    return f"{100 * statistics.mean(share(robustness, env, row)):.0f} %".replace("-", "−")


def succeeded(robustness: dict[str, Any], env: str, row: str) -> str:
    """The mean success of a row of the same study, or of a reference."""
    from studies.robustness_page import success

    known = robustness["references"][env]["0.05"]
    share = known[row]["success"] if row in known else statistics.mean(success(robustness, env, row))
    return f"{100 * share:.0f} %"


def solved(deep_sea: dict[str, Any], agent: str, depth: int) -> str:
    """How many seeds have solved the deep sea of a depth."""
    seeds = deep_sea["rows"][agent][str(depth)]["seeds"].values()
    return f"{sum(seed['solved'] is not None for seed in seeds)} of {len(seeds)}"


def covered(calibration: dict[str, Any]) -> str:
    """Empirical coverage of the 95 % intervals."""
    return f"{100 * calibration['coverage'][calibration['levels'].index(0.95)]:.0f} %"


def _shares(agent: str, *envs: str) -> list[float]:
    """Of each seed on these environments the worst cell's share, from 0 for random play to 1 for the reference."""
    found = values()["defaults"]
    epsilon = f"{found['epsilons'][0]:g}"
    each = []
    for env in envs:
        known = found["references"][env][epsilon]
        random, reference = known["random"]["worst_cell"], known["worst_case"]["worst_cell"]
        seeds = found["rows"][env][agent]["seeds"].values()
        each += [(seed[epsilon]["worst_cell"] - random) / (reference - random) for seed in seeds]
    return each


def share(agent: str, env: str) -> str:
    """Mean over seeds of the worst cell's share of the reference."""
    return percent(statistics.mean(_shares(agent, env)), 0).replace("-", "−")


def shares(env: str, *agents: str) -> str:
    """The same of several agents, as cells of a table, with how many seeds reach 95 %."""
    return " | ".join(f"{share(agent, env)}, {reach(agent, env)}" for agent in agents)


def reach(agent: str, *envs: str) -> str:
    """How many seeds reach 95 % of the reference's worst cell."""
    found = _shares(agent, *envs)
    return f"{sum(one >= 0.95 for one in found)} of {len(found)}"


def default_success(agent: str, env: str) -> str:
    """Mean success of an agent with the preset `default`, over all cells and seeds."""
    found = values()["defaults"]
    epsilon = f"{found['epsilons'][0]:g}"
    seeds = found["rows"][env][agent]["seeds"].values()
    return percent(statistics.mean(seed[epsilon]["success"] for seed in seeds), 0)


def on_paper_grid(agent: str) -> str:
    """Mean success over seeds on the paper's grid, with the preset `default` and with `tuned`."""
    found = values()["defaults"]
    tuned = found["tuned"]
    seeds = found["rows"][tuned["env"]][agent]["seeds"].values()
    each = [seed["paper"]["success"] for seed in seeds], tuned["success"][agent]
    return " and ".join(percent(statistics.mean(one), 1) for one in each)


def computed(expression: str) -> str:
    """What the stored results give for an expression."""
    return str(eval(expression, {**values(), "__builtins__": {}}))


def stated(text: str) -> Iterator[tuple[str, str]]:
    """Each marked number of a page: its expression, and what the page says."""
    for found in MARKED.finditer(text):
        yield found[1], found[2]


def main() -> None:
    for page in pages():
        text = page.read_text()
        new = MARKED.sub(lambda found: f"<!--n {found[1]}-->{computed(found[1])}<!--/n-->", text)
        if new != text:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: numbers written anew")


if __name__ == "__main__":
    main()
