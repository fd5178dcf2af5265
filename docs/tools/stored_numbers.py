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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # some numbers are computed as the studies' pages do
MARKED = re.compile(r"<!--n (.+?)-->(.*?)<!--/n-->", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may hold such numbers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@functools.cache
def values() -> dict[str, Any]:
    """What the comments may name: the stored results, and the ways to write them."""
    import tunings

    from studies import claims, claims_filter, claims_targets
    from studies.defaults_page import each

    stored = claims.read(ROOT)
    results, table1 = stored.results, stored.table1
    epsilon = stored.defaults["epsilons"][0]
    gaps = functools.cache(lambda agent: claims_targets.gaps(stored, agent, epsilon))
    return {
        "results": results,
        "table1": table1,
        "guard_time": functools.partial(guard_time, json.loads((ROOT / "benchmarks" / "guard.json").read_text())),
        "benchmarks": stored.benchmarks,
        "tuned": results["agents"],  # 20 seeds
        "paper": results["studies"]["paper"],  # 10 seeds
        "references": results["references"],
        "tuning": results["studies"]["tuning"],
        "beliefs": table1["tables"]["beliefs"],  # 10 seeds
        "policies": table1["tables"]["policies"],
        "success": success,
        "percent": percent,
        "tunings": tunings.described,
        "beyond": beyond,
        "mean": mean,
        "worst": worst,
        "each_seed": each_seed,
        "interval": interval,
        "ratio": ratio,
        "slower": lambda one, other: f"{_micros(*one) / _micros(*other):.1f}",
        "episodes": episodes,
        "table_row": table_row,
        "covered": covered,
        "coverages": lambda kind, *posterior: between(claims_filter.coverages(stored, kind, *posterior), 100, 0) + " %",
        "within_bounds": lambda kind: within_bounds(stored.calibration, kind),
        "alarms": lambda target: between([its.value for its in claims_filter.alarms(stored, target).values()], 1, 2),
        "failing": lambda env, target: between(claims_filter.failing(stored, env, target), 100, 0) + " %",
        "cautious": lambda env, target: cautious(stored.calibration, env, target),
        "solved": lambda agent, depth: solved(stored.deep_sea, agent, depth),
        "regression": regression,
        "share": lambda agent, env: share(stored.defaults, env, agent),
        "shares": lambda env, *agents: shares(stored, env, *agents),
        "gap": lambda agent, env, digits=0: claims.apart_by(gaps(agent)[env], digits=digits),
        "better": lambda agent: claims.count_of([claims.verdict(gap) == claims.YES for gap in gaps(agent).values()]),
        "mean_return": lambda agent, env: (
            f"{statistics.mean(each(stored.defaults, env, agent, epsilon, 'mean_return')):.2f}"
        ),
        "reached": lambda agent, env, at: claims.count_of(claims_targets.reached(stored, agent, at)[env]),
        "runs_reached": lambda agent: claims.count_of(
            [one for its in claims_targets.reached(stored, agent, epsilon).values() for one in its]
        ),
        "planner_gain": lambda env: f"{float(np.diff(claims_targets.ends_of_shares(stored, env))[0]):.2f}",
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


def between(found: Iterable[float], factor: float, digits: int) -> str:
    """From the least to the largest."""
    each = [factor * number for number in found]
    return f"{min(each):.{digits}f} to {max(each):.{digits}f}"


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


def within_bounds(calibration: dict[str, Any], kind: str) -> str:
    """How many of the filter's rows have coverages within the bounds, of how many."""
    from studies import calibration_page

    said = calibration_page.verdicts(calibration)
    return f"{said[kind]} of {said['cases']}"


def cautious(calibration: dict[str, Any], env: str, target: str) -> str:
    """The filter's success beyond the box when it acts on its mean, and on the lowest bound that was tried."""
    found = list(calibration["rows"][env][target]["filter"]["cautious"].values())
    return f"{100 * found[0]:.0f} to {100 * found[-1]:.0f} %"


def regression(name: str) -> str:
    """The error of online regression after 2000 samples, one at a time, in the table that the example prints."""
    page = (ROOT / "docs" / "regression.md").read_text()
    (found,) = re.findall(rf"^\| {name} \| 1 \|.*\| ([\d.]+) \([^|]*\| [^|]*\|$", page, re.MULTILINE)
    return f"{found} mm"


def interval(found: dict[str, Any], digits: int = 2) -> str:
    low, high = found["ci"]
    return f"{found['value']:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def ratio(benchmark: str, name: str, digits: int = 1) -> str:
    """A measured ratio, by the beginning of its name."""
    stored = values()["benchmarks"][benchmark]["ratios"]
    (found,) = [entry["value"] for entry in stored if entry["name"].startswith(name)]
    return f"{found:.{digits}f}"


def _micros(benchmark: str, name: str) -> float:
    """The median time of a stored benchmark."""
    return float(values()["benchmarks"][benchmark]["times"][name]["median_us"])


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


def solved(deep_sea: dict[str, Any], agent: str, depth: int) -> str:
    """How many seeds have solved the deep sea of a depth."""
    seeds = deep_sea["rows"][agent][str(depth)]["seeds"].values()
    return f"{sum(seed['solved'] is not None for seed in seeds)} of {len(seeds)}"


def covered(calibration: dict[str, Any]) -> str:
    """Empirical coverage of the 95 % intervals."""
    return f"{100 * calibration['coverage'][calibration['levels'].index(0.95)]:.0f} %"


def share(defaults: dict[str, Any], env: str, agent: str) -> str:
    """Mean over seeds of the worst model's share of the planner's."""
    from studies.defaults_page import relative

    found = relative(defaults, env, agent, defaults["epsilons"][0])
    return percent(statistics.mean(found), 0).replace("-", "−")


def shares(stored: Any, env: str, *agents: str) -> str:
    """The same of several agents, a cell each, with how many seeds reach the aim."""
    from studies.claims import count_of
    from studies.claims_targets import reached

    epsilon = stored.defaults["epsilons"][0]
    return " | ".join(
        f"{share(stored.defaults, env, agent)}, {count_of(reached(stored, agent, epsilon)[env])}" for agent in agents
    )


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
