"""Claims about the Kalman filter over the weights: its theory, its speed and its covariance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from studies import calibration_page, critic_page, deep_sea_page
from studies.claims import (
    BENCH,
    LEARNED,
    LOSS,
    PLACES,
    Claim,
    Source,
    Stored,
    apart,
    compared,
    count_of,
    kalman_source,
    less,
    listed,
    met,
    oftener,
    over,
    paper_source,
    percent,
    places,
    ranged,
    seeds_of,
    verdict,
)
from studies.results import needed
from studies.statistics import Estimate, difference, estimate, mean_of, probability_of_improvement
from studies.tables import episodes_needed, title, with_interval

#: A filter's update is to take no more than this many times Adam's.
_TIMES_ADAM = 10.0

#: The two settings of the trials of the preset `tuned` that are compared in episodes.
_RATES = ("rtd_dqn learning_rate=0.0003", "deep_rok observation_noise=0.12")
#: Benchmarks of a step of training.
_STEPS = (("replay", "rtd_dqn, M = 20: after 100,000 steps"), ("seeds", "deep_rok, 1 seed"))


def _ratio(stored: Stored, benchmark: str, name: str) -> float:
    """A measured ratio, by the beginning of its name."""
    (found,) = [its["value"] for its in stored.benchmarks[benchmark]["ratios"] if its["name"].startswith(name)]
    return float(found)


def _ratios(stored: Stored, noise: str) -> list[float]:
    return [its["value"] for its in stored.benchmarks["ktd"]["ratios"] if f"KTD, {noise}" in its["name"]]


def theory(stored: Stored) -> Iterator[Claim]:
    """The theorems, and what the filter costs."""
    tests = Source("pytest tests/test_agents.py -k theorem", "algorithms/deep_rok.md#theorems-1-and-2")
    yield Claim(
        "Theorems 1 and 2: does the update minimise the (robust) EKF objective?",
        "yes for a batch of one",
        "Proved, and tested in float64. For larger batches the paper's averaged gains do not minimise it; the joint "
        "update does.",
        "–",
        tests,
    )
    for rows, question in (
        (stored.results["studies"]["paper"], "Is the joint update better with the paper's noises?"),
        (stored.results["agents"], "… with tuned ones?"),
    ):
        yield compared(question, rows, "deep_rok_joint", "deep_rok", paper_source(stored))
    rows = stored.kalman["tables"]["structures"]
    yield compared(
        "Is a diagonal covariance as good as the full one (at most a point worse)?",
        rows,
        "diagonal",
        "full",
        kalman_source(stored, "#structures-of-the-covariance"),
        bar=-LOSS,
        more=f"Episodes needed: {' and '.join(episodes_needed(rows[name]) for name in ('diagonal', 'full'))}.",
    )
    own, added = (_ratios(stored, noise) for noise in ("noise ηP", "noise added"))
    yield Claim(
        "Is the unscented filter more expensive than the extended one?",
        met(min(own) > 1),
        f"{min(own):.0f} to {max(own):.0f} times its time with noise in proportion to P, {min(added):.0f} to "
        f"{max(added):.0f} times with the paper's added noise (n³ operations), from 67 to 2,011 weights.",
        "–",
        BENCH,
    )
    one, ten = (_ratio(stored, "structures", f"n = 1,001,987, B = {batch}: diagonal") for batch in (1, 10))
    yield Claim(
        f"Does it scale: a million weights, diagonal covariance, in at most {_TIMES_ADAM:.0f} times Adam's time?",
        f"{met(one <= _TIMES_ADAM)} for one sample, {met(ten <= _TIMES_ADAM)} for ten",
        f"{one:.1f} and {ten:.1f} times. A full covariance has n² entries, 4 TB in float32. All agents here have small "
        "networks.",
        "–",
        BENCH,
    )


def speed(stored: Stored) -> Iterator[Claim]:
    """Whether the filter saves episodes or time."""
    source = paper_source(stored, "#learning-speed")
    for name, question in (
        ("tuned", "Does Deep-RoK need fewer episodes than RTD-DQN, preset `tuned`?"),
        ("fastest", "… each with the fastest settings of its trials?"),
    ):
        its = stored.results["speed"][name]
        seeds = stored.results["agents"] if name == "tuned" else stored.results["studies"]["fastest"]
        yield Claim(
            question,
            less(Estimate(its["value"], (its["ci"][0], its["ci"][1])), 1.0),
            f"It needs {with_interval(its, form='.2f')} of RTD-DQN's episodes to reach 95 % of the ceiling's return.",
            str(seeds["deep_rok"]["seeds"]),
            source,
        )
    rows = [stored.results["studies"]["tuning"][name] for name in _RATES]
    adam, filtered = (needed(row["per_seed_episodes_to_95"], row["curve"]["episodes"]) for row in rows)
    yield Claim(
        "… when RTD-DQN's learning rate is 0.0003 instead of 0.0001?",
        verdict(difference(adam, filtered)),
        f"Deep-RoK {np.mean(filtered):.0f} episodes, RTD-DQN {np.mean(adam):.0f}, on the seeds of the tuning.",
        str(len(adam)),
        paper_source(stored, "#tuning"),
    )
    times = [stored.benchmarks[name]["times"][what]["median_us"] for name, what in _STEPS]
    yield Claim(
        "Does it need less time?",
        met(times[1] * stored.results["speed"]["tuned"]["value"] < times[0]),
        f"A step takes {times[1]:.0f} µs instead of {times[0]:.0f} µs, {times[1] / times[0]:.1f} times as long.",
        "–",
        BENCH,
    )


def _calibration_seeds(stored: Stored, posterior: str) -> str:
    counts = sorted({row["seeds"] for *_, its, row in calibration_page.rows_of(stored.calibration) if its == posterior})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def alarms(stored: Stored, target: str) -> dict[str, Estimate]:
    """By environment the AUROC of the filter's σ for models on which the policy fails, over agents with both kinds."""
    return {
        env: mean_of([agent["auroc"] for agent in row["agents"].values() if agent["auroc"] is not None])
        for env, its, posterior, row in calibration_page.rows_of(stored.calibration)
        if its == target and posterior == "filter"
    }


def failing(stored: Stored, env: str, target: str) -> tuple[float, float]:
    """Least and largest share of failing models, over the filter's agents."""
    shares = [agent["failing"] for agent in stored.calibration["rows"][env][target]["filter"]["agents"].values()]
    return min(shares), max(shares)


def coverages(stored: Stored, kind: str, posterior: str = "filter") -> tuple[float, float]:
    """Least and largest empirical coverage of a posterior's 95 % intervals, over environments and targets."""
    found = stored.calibration
    each = [
        calibration_page.covered(found, row, kind, 0.95)
        for *_, its, row in calibration_page.rows_of(found)
        if its == posterior
    ]
    return min(each), max(each)


def covariance(stored: Stored) -> Iterator[Claim]:
    """Is the covariance worth anything?"""
    found, said = stored.calibration, calibration_page.verdicts(stored.calibration)
    source, seeds = Source(found["command"], "calibration.md"), _calibration_seeds(stored, "filter")
    for kind, question in (
        ("raw", "Are the filter's own 80 and 95 % intervals for Q within their bounds?"),
        ("corrected", "… after the correction by held-out play that `default` makes?"),
    ):
        low, high = coverages(stored, kind)
        yield Claim(
            question,
            f"in {said[kind]} of {said['cases']} cases",
            f"Empirical coverage of the 95 % intervals: {100 * low:.0f} to {100 * high:.0f} %.",
            seeds,
            source,
        )
    for other, words in (("bbb", "Bayes by Backprop"), ("ensemble", "five Q-networks")):
        yield Claim(
            f"Are the true values likelier under the corrected filter than under {words}?",
            f"in {said[f'less than {other} raw']} cases",
            f"If {'that is' if other == 'bbb' else 'those are'} corrected in the same way, in "
            f"{said[f'less than {other} corrected']}.",
            f"{seeds} and {_calibration_seeds(stored, other)}",
            source,
        )
    for target, question in (
        ("robust", "Is σ larger beyond the box where Deep-RoK fails (AUROC above 0.5)?"),
        ("nominal", "… where EKF-DQN, with the nominal target, fails?"),
    ):
        each = alarms(stored, target)
        few, many = failing(stored, "cartpole", target)
        yield Claim(
            question,
            over(verdict(its, 0.5) for its in each.values()),
            f"{', '.join(f'{its.value:.2f} on {PLACES[env]}' for env, its in each.items())}. On Cart-Pole "
            f"{100 * few:.0f} to {100 * many:.0f} % of the models fail.",
            seeds,
            Source(found["command"], "calibration.md#as-an-alarm"),
        )
    yield _lower_bound(stored, seeds)
    yield from _exploration(stored)
    yield _critic(stored)
    yield _warm_start(stored)


def _lower_bound(stored: Stored, seeds: str) -> Claim:
    rows = [
        (f"{title(row['agent'])} on {PLACES[env]}", row["cautious"])
        for env, _, _, row in calibration_page.rows_of(stored.calibration)
        if row["cautious"]
    ]
    first, last = next(iter(rows[0][1])), list(rows[0][1])[-1]
    changes = {name: its[last] - its[first] for name, its in rows}
    rises = [change > 0 for change in changes.values()]
    worst, best = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)
    by_name = dict(rows)
    said = [f"{name} {percent(by_name[name][first])} → {percent(by_name[name][last])}" for name in (worst, best)]
    return Claim(
        f"Does acting on a lower confidence bound (κ = {last}) raise success beyond the box?",
        f"in {count_of(rises)} cases",
        f"Largest fall: {said[0]}. {'Largest rise' if any(rises) else 'Smallest fall'}: {said[1]}. Means, without "
        "intervals.",
        seeds,
        Source(stored.calibration["command"], "calibration.md#acting-on-a-lower-confidence-bound"),
    )


def _solved(stored: Stored, agent: str, depth: int) -> list[bool]:
    return [bool(np.isfinite(episodes)) for episodes in deep_sea_page.solved(stored.deep_sea, agent, str(depth))]


def _exploration(stored: Stored) -> Iterator[Claim]:
    yield compared(
        "Future work, exploration by the posterior: is Thompson sampling better than ε-greedy on Cart-Pole?",
        stored.kalman["tables"]["exploration"],
        "thompson",
        "epsilon",
        kalman_source(stored, "#exploration"),
    )
    source = Source(stored.deep_sea["command"], "deep_sea.md")
    for depth in (10, 15):
        thompson, greedy = (_solved(stored, agent, depth) for agent in ("ekf_dqn", "dqn"))
        word, p = oftener(thompson, greedy)
        yield Claim(
            f"… does it solve bsuite's deep sea of depth {depth} more often?",
            word,
            f"{count_of(thompson)} and {count_of(greedy)} seeds (p = {p:.2g}). Bootstrapped DQN: "
            f"{count_of(_solved(stored, 'boot_dqn', depth))}.",
            str(len(thompson)),
            source,
        )


def _critic(stored: Stored) -> Claim:
    found = stored.critic
    success = {
        env: max(float(np.mean(critic_page.each(found, env, critic, "success"))) for critic in rows)
        for env, rows in found["rows"].items()
    }
    failed = [env for env, best in success.items() if best < LEARNED]
    better = {
        env: estimate(
            probability_of_improvement,
            *(critic_page.each(found, env, critic, "worst_cell") for critic in ("kalman", "adam")),
        )
        for env in found["rows"]
        if env not in failed
    }
    said = listed([f"{percent(its.value, 0)} on {PLACES[env]}" for env, its in better.items()])
    more = f" On {places(failed)} no policy learned the task." if failed else ""
    return Claim(
        "Later work of the authors (KOVA): is the filter a better critic of a policy gradient than Adam?",
        over(verdict(its, 0.5) for its in better.values()),
        f"Pairs of seeds in which the filter's has the better worst model: {said}.{more}",
        seeds_of(critic_page.each(found, "road", "kalman", "worst_cell")),
        Source(found["command"], "critic.md"),
    )


def _warm_start(stored: Stored) -> Claim:
    tables = stored.kalman["tables"]
    before, after = (
        row["beyond"]["strong_gravity"]
        for row in (tables["structures"]["full"], tables["warm_start"]["from a posterior"])
    )
    words = listed([ranged(its["value"], its["ci"]) for its in (before, after)])
    return Claim(
        "Is the posterior a start for the next task, when gravity rises by half?",
        apart(after, before),
        f"Success there before and after forty more episodes: {words}. Adam from the same weights was not measured.",
        str(tables["warm_start"]["from a posterior"]["seeds"]),
        kalman_source(stored, "#a-posterior-as-the-next-prior"),
    )
