"""Claims about the robust target: the paper's agents, the worst case against random models, the preset `default`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from studies import defaults_page, robustness_page
from studies.claims import (
    LEARNED,
    LOSS,
    NO,
    OPEN,
    PLACES,
    YES,
    Claim,
    Source,
    Stored,
    apart,
    apart_by,
    called,
    compared,
    count_of,
    kalman_source,
    less,
    listed,
    met,
    over,
    paper_source,
    percent,
    places,
    ranged,
    seeds_of,
    signed,
    table1_source,
    verdict,
)
from studies.statistics import Estimate, difference
from studies.tables import Lines

# --- the paper's agents -------------------------------------------------------------------------------


def paper_agents(stored: Stored, preset: str) -> Iterator[Claim]:
    """What the paper says of its agents, with the settings of a preset."""
    rows = stored.results["agents"] if preset == "tuned" else stored.results["studies"]["paper"]
    source = paper_source(stored)
    nominal, ceiling = (row["nominal_return"] for row in (rows["ddqn"], stored.results["references"]["lqr"]))
    does_well = nominal >= defaults_page.BAR * ceiling
    yield Claim(
        "Does Double-DQN do well on the model it was trained on?",
        met(does_well),
        f"Its return there is {nominal:.0f}, an LQR controller's is {ceiling:.0f}; the bar is "
        f"{percent(defaults_page.BAR, 0)} of that.",
        str(rows["ddqn"]["seeds"]),
        source,
    )
    poor = "" if does_well else "Double-DQN fails on the nominal model too, so this is not about other models."
    yield compared("Is RTD-DQN better than Double-DQN over all models?", rows, "rtd_dqn", "ddqn", source, more=poor)
    yield compared("… than Double-DQN trained on random models?", rows, "rtd_dqn", "ddqn_dr", source)
    yield compared("… than DQN, which differs in the target alone?", rows, "rtd_dqn", "dqn", source)
    yield compared("Is Deep-RoK better than Double-DQN?", rows, "deep_rok", "ddqn", source)
    yield compared(
        "Is Deep-RoK the most robust of the three, better than RTD-DQN?", rows, "deep_rok", "rtd_dqn", source
    )
    yield compared("… than EKF-DQN, which differs in the target alone?", rows, "deep_rok", "ekf_dqn", source)
    yield compared("Does the filter help with the nominal target?", rows, "ekf_dqn", "dqn", source)
    yield compared(
        "Is a vote of 20 draws from the posterior as good as its mean (at most a point worse)?",
        rows,
        "deep_rok_vote",
        "deep_rok",
        source,
        bar=-LOSS,
        more="The width of this posterior was chosen for it." if preset == "tuned" else "",
    )


def beyond_the_box(stored: Stored) -> Iterator[Claim]:
    """The condition with the largest gaps, of those that no agent was trained for."""
    rows = stored.results["agents"]
    found = {name: rows[name]["beyond"]["strong_gravity"] for name in ("ddqn", "ddqn_dr", "rtd_dqn", "deep_rok")}
    for first, second, question in (
        (
            "rtd_dqn",
            "ddqn",
            "At a gravity of 14.7 m/s², for which none was trained: is RTD-DQN better than Double-DQN?",
        ),
        ("rtd_dqn", "ddqn_dr", "… than randomised Double-DQN?"),
        ("deep_rok", "ddqn_dr", "… Deep-RoK than randomised Double-DQN?"),
    ):
        said = [f"{called(name)} {ranged(found[name]['value'], found[name]['ci'])}" for name in (first, second)]
        yield Claim(
            question,
            apart(found[first], found[second]),
            f"{', '.join(said)}; interquartile means. Largest gap of {len(stored.results['conditions'])} conditions.",
            str(rows[first]["seeds"]),
            paper_source(stored, "#beyond-the-box"),
        )


# --- the worst case against random models -------------------------------------------------------------


def gaps(stored: Stored, agent: str, epsilon: float, score: str | None = None) -> dict[str, Estimate]:
    """By environment, an agent's mean minus domain randomisation's, with the preset `default`.

    Args:
      stored: what is stored.
      agent: the agent.
      epsilon: the probability of random actions.
      score: of each seed; None for the share of the reference in the worst cell.
    """
    found = stored.defaults

    def scores(env: str, name: str) -> list[float]:
        if score is None:
            return defaults_page.relative(found, env, name, epsilon)
        return defaults_page.each(found, env, name, epsilon, score)

    return {env: difference(scores(env, agent), scores(env, "ddqn_dr")) for env in found["rows"]}


def _defaults_source(stored: Stored) -> Source:
    return Source(stored.defaults["command"], "defaults.md")


def worst_case_table(stored: Stored) -> Lines:
    """RTD-DQN against Double-DQN on random models, in the worst cell of each environment."""
    found, (first, last) = stored.defaults, stored.defaults["epsilons"]
    header = ["environment", "RTD-DQN", "random models", "difference, in points", "better?"]
    lines: Lines = [[*header, "without random actions", "better?"]]
    played, greedy = (gaps(stored, "rtd_dqn", epsilon) for epsilon in (first, last))
    for env in found["rows"]:
        means = [np.mean(defaults_page.relative(found, env, name, first)) for name in ("rtd_dqn", "ddqn_dr")]
        cells = [percent(float(mean), 0) for mean in means]
        for gap in (played[env], greedy[env]):
            cells += [apart_by(gap), f"**{verdict(gap)}**"]
        lines.append([PLACES[env].removeprefix("the "), *cells])
    return lines


def ends_of_shares(stored: Stored, env: str) -> tuple[float, float]:
    """The returns in the worst cell that are a share of 0 and of 1: random play's and the planner's."""
    known = stored.defaults["references"][env][f"{stored.defaults['epsilons'][0]:g}"]
    return known["random"]["worst_cell"], known["worst_case"]["worst_cell"]


def put(stored: Stored) -> str:
    """A sentence on why shares are so large on the American put."""
    random, planned = ends_of_shares(stored, "market")
    return (
        f"On the American put the planner earns only {planned - random:.2f} more than random play ({planned:.2f} and "
        f"{random:.2f}), so shares are large there."
    )


def price_table(stored: Stored) -> Lines:
    """The same agents' mean return over all cells."""
    found, epsilon = stored.defaults, stored.defaults["epsilons"][0]
    lines: Lines = [["environment", "RTD-DQN", "random models", "difference", "does it cost return?"]]
    for env, gap in gaps(stored, "rtd_dqn", epsilon, "mean_return").items():
        means = [
            np.mean(defaults_page.each(found, env, name, epsilon, "mean_return")) for name in ("rtd_dqn", "ddqn_dr")
        ]
        digits = 2 if abs(means[1]) < 10 else 1
        lines.append(
            [
                PLACES[env].removeprefix("the "),
                *(signed(f"{mean:.{digits}f}") for mean in means),
                apart_by(gap, 1.0, digits),
                f"**{less(gap)}**",
            ]
        )
    return lines


def worst_case(stored: Stored) -> Iterator[Claim]:
    """Where the worst case beats random models, of all environments together."""
    epsilons, source = stored.defaults["epsilons"], _defaults_source(stored)
    seeds = seeds_of(defaults_page.each(stored.defaults, "ferry", "rtd_dqn", epsilons[0], "worst_cell"))
    for agent in ("rtd_dqn", "deep_rok"):
        found = {how: gaps(stored, agent, epsilon) for how, epsilon in zip(("With", "Without"), epsilons, strict=True)}
        yield Claim(
            f"Does {called(agent)} beat random models in the worst model?",
            over(map(verdict, found["With"].values())),
            " ".join(f"{how} random actions: {_where(its)}." for how, its in found.items()),
            seeds,
            source,
        )


def _where(found: Mapping[str, Estimate]) -> str:
    """On which environments the answer is yes and no, with the differences in points."""
    said = []
    for word in (YES, NO):
        sure = [(env, gap) for env, gap in found.items() if verdict(gap) == word]
        if sure:
            named = [f"{PLACES[env]} ({apart_by(Estimate(gap.value, None))})" for env, gap in sure]
            said.append(f"{word} on {listed(named)}")
    return "; ".join(said) or f"{OPEN} everywhere"


# --- the study of robustness --------------------------------------------------------------------------


def _robustness_source(stored: Stored) -> Source:
    return Source(stored.robustness["command"], "robustness.md")


def _against(stored: Stored, first: str, second: str, envs: Sequence[str] | None = None) -> dict[str, Estimate]:
    """By environment, the difference of two rows of the study of robustness in the worst cell."""
    found = stored.robustness
    return {
        env: difference(*(robustness_page.share(found, env, name) for name in (first, second)))
        for env in (robustness_page.environments(found) if envs is None else envs)
        if all(robustness_page.measured(found, env, name) for name in (first, second))
    }


def _robustness_seeds(stored: Stored, name: str) -> str:
    found = stored.robustness
    return seeds_of(*(robustness_page.share(found, env, name) for env in robustness_page.environments(found)))


def _worst(stored: Stored, env: str, *names: str) -> str:
    """The worst cells of some rows on an environment."""
    found = stored.robustness
    return listed([percent(float(np.mean(robustness_page.share(found, env, name))), 0) for name in names])


def exam_error(stored: Stored, env: str) -> tuple[float, float]:
    """Least and largest standard error of one seed's share from the test episodes alone."""
    found = stored.robustness
    epsilon = f"{found['epsilons'][0]:g}"
    known = found["references"][env][epsilon]
    width = known["worst_case"]["worst_cell"] - known["random"]["worst_cell"]
    rows = [its for name, its in found["rows"][env].items() if name in _SETS]
    errors = [seed[epsilon]["worst_cell_error"] / width for its in rows for seed in its["seeds"].values()]
    return min(errors), max(errors)


#: The ambiguity sets of the study of robustness; the first is the default.
_SETS = ("cvar", "minimum", "minimum_late", "kl", "wasserstein")


def robust_targets(stored: Stored) -> Iterator[Claim]:
    """Questions about the worst case that the paper leaves."""
    found, source = stored.robustness, _robustness_source(stored)
    seeds = _robustness_seeds(stored, "cvar")
    sets = {(name, env): gap for name in _SETS[1:] for env, gap in _against(stored, name, _SETS[0]).items()}
    surely = [
        f"{robustness_page.title_of(found, name)} on {PLACES[env]}, {apart_by(gap, digits=0)} points"
        for (name, env), gap in sets.items()
        if verdict(gap) != OPEN
    ]
    low, high = exam_error(stored, "market")
    yield Claim(
        "Does another ambiguity set beat CVaR in the worst model?",
        over(verdict(gap) for gap in sets.values()),
        f"Hard minimum, KL and Wasserstein ball on five environments. Beyond chance: {'; '.join(surely) or 'none'}. On "
        f"the put a seed's share has a standard error of {100 * low:.0f} to {100 * high:.0f} points from its test "
        "episodes alone.",
        seeds,
        source,
    )
    late = _against(stored, "minimum_late", "minimum")
    yield Claim(
        "Future work: does it help to go from the mean to the worst case while training?",
        over(verdict(gap) for gap in late.values()),
        f"Hard minimum, approached or from the start. On the swing-up {apart_by(late['swing_up'], digits=0)} points.",
        seeds,
        source,
    )
    rows = stored.kalman["tables"]["confidence"]
    yield compared(
        "… on Cart-Pole, as Deep-RoK's posterior narrows?",
        rows,
        "worst with spread",
        "worst from the start",
        kalman_source(stored, "#annealing-the-robustness-level"),
    )
    for memory in ("dr_memory4", "dr_memory16"):
        each = _against(stored, memory, "dr")
        yield Claim(
            f"Does a memory of {memory.removeprefix('dr_memory')} steps improve training on random models?",
            over(verdict(gap) for gap in each.values()),
            f"In as many steps, with and without: {_worst(stored, 'market', memory, 'dr')} on the put, "
            f"{_worst(stored, 'road', memory, 'dr')} on the road.",
            seeds,
            source,
        )
    landed = {
        name: robustness_page.success(found, "rocket", name)
        for name in ("dr_mean", "dr", "dr_memory4_mean", "cvar_mean")
    }
    planned = found["references"]["rocket"][f"{found['epsilons'][0]:g}"]["mean"]["success"]
    means = {name: percent(float(np.mean(its)), 0) for name, its in landed.items()}
    yield Claim(
        "On the rocket the worst case hovers. Does it help to choose weights by the mean over models?",
        verdict(difference(landed["dr_mean"], landed["dr"])),
        f"Random models then land in {means['dr_mean']} of the episodes, chosen by the worst models in {means['dr']}. "
        f"With a memory of 4 steps {means['dr_memory4_mean']}, CVaR {means['cvar_mean']}; the planner for the mean "
        f"{percent(planned, 0)}.",
        seeds_of(landed["dr_mean"]),
        source,
    )
    yield from _policy_gradients(stored)


def _policy_gradients(stored: Stored) -> Iterator[Claim]:
    found, names = stored.robustness, ("pg", "epopt", "robust_pg")
    best = {
        env: max(float(np.mean(robustness_page.success(found, env, name))) for name in names)
        for env in robustness_page.environments(found)
    }
    learned = [env for env in best if best[env] >= LEARNED]
    failed = [env for env in best if env not in learned]
    more = f" On {places(failed)} no policy gradient learned the task in as many steps." if failed else ""
    for name, words in (
        ("epopt", "EPOpt, whose nature chooses a model for an episode"),
        ("robust_pg", "An adversary and a KL ball"),
    ):
        each = _against(stored, name, "pg", learned)
        yield Claim(
            f"{words}: better than a policy gradient on random models?",
            over(verdict(gap) for gap in each.values()),
            f"Worst model: {_worst(stored, 'market', name, 'pg')} on the put, {_worst(stored, 'ferry', name, 'pg')} on "
            f"the ferry.{more}",
            _robustness_seeds(stored, name),
            _robustness_source(stored),
        )
    rows = stored.table1["tables"]["policies"]
    for name in ("epopt", "robust_pg"):
        question = (
            "Future work: are robust policy gradients better on Cart-Pole: EPOpt?"
            if name == "epopt"
            else "… the adversary?"
        )
        yield compared(question, rows, name, "pg", table1_source(stored, "#policy-gradients"))


# --- without tuning -----------------------------------------------------------------------------------


def reached(stored: Stored, agent: str, epsilon: float) -> dict[str, list[bool]]:
    """By environment, whether each seed reaches the aim of the preset `default`."""
    found = stored.defaults
    return {
        env: [share >= defaults_page.BAR for share in defaults_page.relative(found, env, agent, epsilon)]
        for env in found["rows"]
    }


def aims(stored: Stored, agent: str, epsilon: float) -> dict[str, bool]:
    """By environment, whether the mean over seeds reaches it."""
    found = stored.defaults
    return {
        env: bool(np.mean(defaults_page.relative(found, env, agent, epsilon)) >= defaults_page.BAR)
        for env in found["rows"]
    }


def without_tuning(stored: Stored) -> Iterator[Claim]:
    """Whether the preset `default` reaches its aims."""
    found, source = stored.defaults, _defaults_source(stored)
    first, last = found["epsilons"]
    for agent in ("rtd_dqn", "deep_rok", "ddqn_dr", "ddqn"):
        by_mean = {epsilon: aims(stored, agent, epsilon) for epsilon in (first, last)}
        runs = {
            epsilon: [its for seeds in reached(stored, agent, epsilon).values() for its in seeds]
            for epsilon in (first, last)
        }
        missed = [env for env, its in by_mean[first].items() if not its]
        yield Claim(
            f"Does the mean of {called(agent)} reach {percent(defaults_page.BAR, 0)} of the planner's worst model?",
            f"on {count_of(list(by_mean[first].values()))}",
            f"{f'Not on {places(missed)}. ' if missed else ''}Without random actions on "
            f"{count_of(list(by_mean[last].values()))}. Single runs: {count_of(runs[first])} with them, "
            f"{count_of(runs[last])} without.",
            str(len(reached(stored, agent, first)["ferry"])),
            source,
        )
    tuned = found["tuned"]
    for agent in ("rtd_dqn", "deep_rok"):
        own = [seed["paper"]["success"] for seed in found["rows"][tuned["env"]][agent]["seeds"].values()]
        gap = difference(own, tuned["success"][agent])
        yield Claim(
            f"Does {called(agent)} lose at most one point against `tuned` on Cart-Pole?",
            met(gap.value >= -LOSS),
            f"{percent(float(np.mean(own)))} and {percent(float(np.mean(tuned['success'][agent])))} success on the "
            f"paper's grid: {apart_by(gap)} points.",
            seeds_of(own, tuned["success"][agent]),
            source,
        )


def rocket(stored: Stored) -> str:
    """A sentence on what reaching the aim means on the rocket."""
    found, epsilon = stored.defaults, stored.defaults["epsilons"][0]
    landed = max(
        float(np.mean(defaults_page.each(found, "rocket", agent, epsilon, "success")))
        for agent in found["rows"]["rocket"]
    )
    known = found["references"]["rocket"][f"{epsilon:g}"]["worst_case"]["success"]
    counts = [
        f"{sum(reached(stored, agent, epsilon)['rocket'])} runs of {called(agent)}" for agent in ("rtd_dqn", "deep_rok")
    ]
    return (
        f"On the rocket the agents hover, as the planner does, which lands in {percent(known, 0)} of the episodes; the "
        f"best mean of an agent is {percent(landed, 0)}. The {listed(counts)} that reach the aim there do not land."
    )


def road(stored: Stored) -> str:
    """A sentence on what the random actions change on the road."""
    first, last = stored.defaults["epsilons"]
    agents = ("ddqn_dr", "rtd_dqn", "deep_rok")
    with_them, without = (
        [its for agent in agents for its in reached(stored, agent, epsilon)["road"]] for epsilon in (first, last)
    )
    return (
        f"The planner's policy is planned without random actions. On the road {count_of(with_them)} runs of "
        f"{listed([called(agent) for agent in agents])} reach the aim with them and {count_of(without)} without."
    )
