"""The page of claims, made of nothing but the stored numbers of the studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deeprok.core.files import write_atomically
from studies import calibration_page, claims_filter, claims_targets
from studies.claims import LEVEL, NO, YES, Claim, Stored, count_of, less, percent, places, ranged, read, verdict
from studies.statistics import failures, fisher
from studies.tables import Lines, markdown, mean_success, success, title, wrapped

#: Success below which a seed counts as failed.
_FAILED = 0.9
_NOMINAL, _ROBUST = ("dqn", "ekf_dqn", "bbb_dqn", "psgld_dqn"), ("rtd_dqn", "deep_rok", "bbb_rtd", "psgld_rtd")
_TUNED = ("dqn", "ddqn", "ddqn_dr", "rtd_dqn", "ekf_dqn", "deep_rok")


def table(of: Iterable[Claim]) -> str:
    """Claims as a table, a line each."""
    lines: Lines = [["question", "verdict", "numbers", "seeds", "measured by"]]
    for one in of:
        measured = f"[`{one.source.command}`]({one.source.page})"
        lines.append([one.question, f"**{one.verdict}**", one.numbers, one.seeds, measured])
    return markdown(lines, texts=(1, 2, 4))


def tuned_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The tuned agents with their failed seeds."""
    lines: Lines = [["agent", "interquartile mean %", "mean over seeds %", "worst seed %", "seeds below 90 %"]]
    for name in _TUNED:
        seeds = rows[name]["per_seed"]["success"]
        failed = f"{failures(seeds, _FAILED)} of {len(seeds)}"
        means = [success(rows[name]), f"{100 * mean_success(rows[name]):.1f}", f"{100 * min(seeds):.1f}", failed]
        lines.append([title(name), *means])
    return markdown(lines)


def _summary(stored: Stored) -> str:
    """The main verdicts in a few lines."""
    by_preset = {preset: list(claims_targets.paper_agents(stored, preset)) for preset in ("paper", "tuned")}
    orders = {preset: one.verdict for preset, its in by_preset.items() for one in its if "most robust" in one.question}
    rtd, rok = claims_targets.worst_case(stored)
    costs = claims_targets.gaps(stored, "rtd_dqn", stored.defaults["epsilons"][0], "mean_return")
    dear = [env for env, gap in costs.items() if less(gap) == YES]
    own, corrected, _, _, robust, nominal, bound, *_ = claims_filter.covariance(stored)
    tuned, _, other, time = claims_filter.speed(stored)
    aims = [one.verdict for one in claims_targets.without_tuning(stored)]
    return f"""- **Is Deep-RoK more robust than RTD-DQN?** With the paper's settings: {orders["paper"]}. With tuned
  ones: {orders["tuned"]}.
- **Does the worst case beat random models in the worst model?** RTD-DQN: {rtd.verdict}. Deep-RoK: {rok.verdict}.
- **What does it cost?** RTD-DQN has a lower mean return on {places(dear) if dear else "none"}.
- **Does it work without tuning?** RTD-DQN reaches its aim {aims[0]} environments, Deep-RoK {aims[1]}.
- **Does the filter save episodes or time?** Episodes against RTD-DQN's tuned learning rate: {tuned.verdict}; against
  another rate: {other.verdict}. Time: {time.verdict}.
- **Is the covariance worth anything?** Intervals for Q are within bounds {own.verdict}, after a correction
  {corrected.verdict}. σ shows where a policy fails: {robust.verdict} environments with the robust target,
  {nominal.verdict} with the nominal one. Acting on a lower confidence bound raises success {bound.verdict}. Better
  exploration or a better critic was not found.
"""


def _failing(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[float]:
    return [share for name in names for share in rows[name]["per_seed"]["success"]]


def _fisher(first: Sequence[float], second: Sequence[float]) -> str:
    return f"p = {fisher(first, second, _FAILED):.2g}"


def _bounds() -> str:
    """Between what the empirical coverage of intervals should be."""
    bars = calibration_page.BARS.items()
    return ", ".join(
        f"{100 * low:.0f} to {100 * high:.0f} % for intervals of {100 * level:.0f} %" for level, (low, high) in bars
    )


def _worst_case(stored: Stored) -> str:
    """A sentence on the environments between yes and no."""
    verdicts = {
        env: verdict(gap) for env, gap in claims_targets.gaps(stored, "rtd_dqn", stored.defaults["epsilons"][0]).items()
    }
    better = [env for env, word in verdicts.items() if word == YES]
    worse = [env for env, word in verdicts.items() if word == NO]
    said = f"RTD-DQN beats random models on {len(better)} of {len(verdicts)} environments"
    said += f": {places(better)}." if better else "."
    said += f" It loses on {places(worse)}." if worse else ""
    return f"{said} On the others the interval includes 0, which does not show that the two are equal."


def page(stored: Stored) -> str:
    """Markdown of all claims.

    Args:
      stored: what the JSON files hold.
    """
    tuned, paper = stored.results["agents"], stored.results["studies"]["paper"]
    ablation, systems = stored.results["studies"]["ablation"], stored.table1["tables"]["beliefs"]
    lqr, linear = (stored.results["references"][name]["iqm_success"] for name in ("lqr", "linear"))
    first = stored.defaults["epsilons"][0]
    robust, nominal = (_failing(systems, names) for names in (_ROBUST, _NOMINAL))
    online = [share >= 0.91 for share in systems["ktd_q"]["per_seed"]["success"]]
    coverage = stored.table1["calibration"]["bbb_dqn"]
    own = coverage["coverage"][coverage["levels"].index(0.95)]
    low, high = claims_filter.coverages(stored, "raw", "bbb")

    def iqm(change: str) -> str:
        row = ablation[f"rtd_dqn {change}"]
        return ranged(row["iqm_success"], row["success_ci"])

    return wrapped(
        f"""# Which claims hold?

The paper[^paper] trains Double-DQN, RTD-DQN and Deep-RoK on Cart-Pole once each and shows figures. It names its
network, learning rate, noises, batch and discount. It does not name the size of the replay, the period of the target
network, the exploration schedule, how five values of each parameter become models, or which model the robust agents act
on while they train. The preset `paper` uses what it names, with the plainest reading of the rest. `tuned` is the best
that we found on Cart-Pole. `default`, which `deeprok train` uses, has the same numbers for every environment.

This page is generated from the stored numbers of the studies, verdicts included, by `python -m studies pages`.

## In short

{_summary(stored)}
## How a verdict is reached

- **Two agents** are compared by the difference of their means over seeds, failed seeds included, with Welch's 95 %
  interval. *Yes*: the interval is above 0. *No*: it is below 0. *Inconclusive*: it includes 0; that does not show that
  the two are equal.
- **A ratio, a probability or an AUROC** is judged in the same way, with its own interval: against 1 or one half.
- **Counts of seeds** are compared by Fisher's exact test at {LEVEL:g}.
- **Where only intervals are stored**, two numbers differ if these do not overlap.
- **Aims** that were set beforehand are judged by the mean over seeds, and **times** by one measurement.
- **Several environments** are counted, and so are cases without an interval. Of twenty comparisons without any
  difference about one comes out as *yes* or *no*.
- The intervals cover the choice of seeds. The agents of a study play the same test episodes, but for the study of
  robustness, whose seeds have their own: {stored.results["test_episodes"]} a model in the paper's experiment,
  {stored.kalman["test_episodes"]} in the studies `kalman` and `table1`, {stored.defaults["episodes"]} with `default`,
  {stored.robustness["episodes"]} in `robustness`, {stored.critic["episodes"]} in `critic` and
  {stored.calibration["episodes"]} for alarms.

## The paper's agents

Success over the 49 models of the paper's grid of Cart-Poles, *last* weights after 700 episodes, means over seeds.
(`deeprok evaluate` takes the *best* weights by default.) A regulator designed for each model succeeds in
{percent(lqr)}, and one fixed linear policy in {percent(linear)}.

### With the paper's settings

{table(claims_targets.paper_agents(stored, "paper"))}

To learn and to keep it are two things: on the way {paper["ddqn_dr"]["reached"]} of {paper["ddqn_dr"]["seeds"]} seeds of
randomised Double-DQN had come within 5 % of the ceiling's return, and {paper["rtd_dqn"]["reached"]} of RTD-DQN's.

### With tuned settings

{table(claims_targets.paper_agents(stored, "tuned"))}

Interquartile means leave out the seeds that fail:

{tuned_table(tuned)}

Of the two pairs that differ in the target alone, one differs in its failures: Deep-RoK against EKF-DQN
({_fisher(_failing(tuned, ["deep_rok"]), _failing(tuned, ["ekf_dqn"]))}), not RTD-DQN against DQN
({_fisher(_failing(tuned, ["rtd_dqn"]), _failing(tuned, ["dqn"]))}; Fisher's exact test of seeds below 90 %).

{table(claims_targets.beyond_the_box(stored))}

## What the robust target buys

The paper's Cart-Pole leaves little room, so the question was asked on [nine environments](environments.md), with the
preset `default` and nothing tuned for any of them. RTD-DQN learns from the worst case over sampled models; *random
models* is Double-DQN on a model drawn in each episode. Both choose their weights by the worst held-out models. The
score is the return on the worst model of a grid: 0 % is random play, 100 % a planner for the worst case that knows the
model. Actions are random with probability {first:g}, or not at all in the last two columns.

{_worst_case(stored)} On the hard Cart-Pole the regulator for the nominal model is as good as any, so a difference there
is one of learning, not of robustness. {claims_targets.put(stored)} An interval without width means that all seeds of
both agents do equally well, on test episodes that they share.

{markdown(claims_targets.worst_case_table(stored), texts=(4, 6))}

**The price** is the mean return over all models of the grid:

{markdown(claims_targets.price_table(stored), texts=(4,))}

{table(claims_targets.worst_case(stored))}

Further questions, in the worst model of five of these environments unless said otherwise:

{table(claims_targets.robust_targets(stored))}

## What the Kalman filter buys

{table(claims_filter.theory(stored))}

### Episodes and time

{table(claims_filter.speed(stored))}

So it is not shown yet that the filter saves episodes: the ratio depends on Adam's learning rate. With the fastest
settings it is one tick of an evaluation every 20 episodes, at a lower final success of both.

### The covariance

{table(claims_filter.covariance(stored))}

A case is an environment and a target. Bounds of the coverage: {_bounds()}.

## Does it work without tuning?

The aim of the preset `default`, set beforehand: the mean over seeds reaches 95 % of the way from random play to the
planner, in the worst model of each of {len(stored.defaults["rows"])} environments.

{table(claims_targets.without_tuning(stored))}

{claims_targets.road(stored)} {claims_targets.rocket(stored)}

## What else matters

Of the choices that the paper leaves open, the size of the replay matters most for RTD-DQN: with 10,000 transitions its
success falls from {iqm("base")} to {iqm("replay_size=10000")}. A target
period of 100 changes little ({iqm("target_period=100")}). To act on a member of the set
({iqm("acting=member")}) and slower exploration
({iqm("epsilon_steps=30000")}) raise it; these intervals overlap. (Interquartile means;
[ablation](results.md#ablation-choices-that-the-paper-leaves-open).) Which of the differences between `paper` and
`tuned` is the decisive one was not measured.

## Beside the other systems of the paper's Table 1

[{len(systems["rtd_dqn"]["per_seed"]["seed"])} seeds of each](table1.md), preset `tuned`. With every estimator that
learns from a replay (Adam, the Kalman filter, Bayes by Backprop, preconditioned SGLD) the robust target has been
compared with the nominal one. Seeds below 90 %: {failures(robust, _FAILED)} of {len(robust)} with the robust target,
{failures(nominal, _FAILED)} of {len(nominal)} with the nominal one ({_fisher(robust, nominal)}). KTD learns online from
each transition once: {count_of(online)} seeds of `ktd_q` end at 91 % or better, the others lower; `ktd_rtd` never
became reliable.

The 95 % intervals of Bayes by Backprop have an empirical coverage of {percent(own, 0)} with `tuned`, the best of these
systems. With `default` it is {100 * low:.0f} to {100 * high:.0f} % ([measured](calibration.md)).

Policy gradients are not directly comparable: they train for 3,000 episodes with a discount of 0.99, the Q-learning
agents for 700 with 0.9.

## Limits of this evidence

- **Saturated task.** On Cart-Pole the best controller succeeds almost always in most models and a single linear policy
  matches it, so there is little room between agents.
- **Tuned on the test grid.** All tuning of `tuned` maximised success on the reported 49 models, on seeds of its own.
  `dqn`, `rtd_dqn`, `ekf_dqn` and `deep_rok` had 15 trials each; Double-DQN, domain randomisation, the policy gradients
  and stable-baselines3 had none.
- **`default` was chosen with RTD-DQN and Deep-RoK**, on other seeds and on models further inside the box. Domain
  randomisation and the policy gradients had no trials of their own.
- **The ceiling is no proof.** A linear-quadratic regulator for each model is a strong reference, not an upper bound;
  agents exceed it in some. So is the planner of the nine environments, which is exact for some of them only.
- **EPOpt** here is inspired by its paper, which was not at hand ([what was not checked](algorithms/epopt.md)).
- **Few seeds.** Five in the studies `robustness` and `calibration`, whose trainings take hours.

[^paper]: S. Di-Castro Shashua and S. Mannor, "Deep Robust Kalman Filter", 2017, arXiv:1703.02310.
"""
    )


def write(docs: Path) -> Path:
    """Writes the page from what is stored beside it."""
    path = docs / "claims.md"
    write_atomically(path, page(read(docs.parent)).encode())
    return path
