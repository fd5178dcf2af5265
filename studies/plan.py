"""What is trained and how it is evaluated: every row of every table, as data.

A row is an algorithm, a preset and the settings that differ from it. Rows that stand in one table form
a comparison. Seeds that settings were tuned on are never seeds that are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.targets import TARGETS
from deeprok.evaluation.policies import PolicyKind
from deeprok.runs.settings import Config, make_config
from studies.exam import Exam

#: {nominal, robust target} × {Adam, Kalman filter}, all with plain max and the same acting models.
SQUARE = ("dqn", "rtd_dqn", "ekf_dqn", "deep_rok")

#: The agents of the paper and those between them.
PAPER_AGENTS = ("dqn", "ddqn", "ddqn_dr", "rtd_dqn", "ekf_dqn", "deep_rok")

TUNING_SEEDS = (1000, 1001, 1002)
FEWER_SEEDS = 10  # at most, beside the main table
SB3_SEEDS = 3


@dataclass(frozen=True)
class Row:
    """One line of a table: an agent with its settings, and how its weights act."""

    name: str
    algorithm: str
    preset: str = "tuned"
    changes: Mapping[str, Any] = field(default_factory=dict)
    policy: PolicyKind = "mean"
    runs: str = ""  # comparison/row whose runs it shares, if they are not its own
    prior: str = ""  # comparison/row whose last posteriors its runs start from

    def config(self, seed: int) -> Config:
        """The settings of one of its runs."""
        return make_config(self.algorithm, self.preset, seed=seed, **self.changes)


class Comparison(NamedTuple):
    """The rows of one table."""

    name: str
    rows: list[Row]
    seeds: Sequence[int]
    exam: Exam  # with no episodes on the grid, the runs are trained but not examined

    def exam_of(self, row: Row) -> Exam:
        """How a row is examined: an ensemble takes the time of all its members, so it plays fewer episodes."""
        return self.exam if row.policy == "mean" else Exam(max(1, self.exam.grid // 5))


def agents(preset: str, seeds: int, episodes: int, every: bool) -> Comparison:
    """The agents of the paper and those between them.

    Args:
      preset: `tuned` or `paper`.
      seeds: how many, from 0 on.
      episodes: test episodes in each cell.
      every: with the joint update and an ensemble from Deep-RoK's posterior.
    """
    rows = [Row(name, name, preset) for name in PAPER_AGENTS]
    if every:
        rows.append(Row("deep_rok_joint", "deep_rok", preset, {"batching": "joint"}))
        rows.append(Row("deep_rok_vote", "deep_rok", preset, policy="vote", runs=f"{preset}/deep_rok"))
    return Comparison(
        preset,
        rows,
        range(seeds),
        Exam(episodes, episodes, beyond=max(1, episodes // 10), curve=max(1, episodes // 25)),
    )


#: What the paper leaves open. Each choice is changed alone.
CHOICES: dict[str, list[dict[str, Any]]] = {
    "replay size": [{"replay_size": 10_000}, {"replay_size": 150_000}],
    "target period": [{"target_period": 100}, {"target_period": 1000}],
    "exploration": [{"epsilon_steps": 10_000}, {"epsilon_steps": 30_000}],
    "models": [{"models": 5, "draw": "pairs"}, {"models": 5, "draw": "product"}],
    "acting model": [{"acting": "nominal"}, {"acting": "member"}, {"acting": "sampled"}],
    "failing reward": [{"failing_reward": 0.0}, {"failing_reward": 1.0}],
}
ABLATED = ("ddqn", "rtd_dqn", "deep_rok")


def ablation(seeds: int, episodes: int) -> Comparison:
    """Each open choice at each of its values, the others as in preset `paper`, which is `base`."""
    rows = []
    for algorithm in ABLATED:
        base = make_config(algorithm, "paper")
        rows.append(Row(f"{algorithm} base", algorithm, "paper", runs=f"paper/{algorithm}"))
        for values in CHOICES.values():
            for changes in values:
                if applies(algorithm, changes) and make_config(algorithm, "paper", **changes) != base:
                    rows.append(Row(row_name(algorithm, changes), algorithm, "paper", changes))
    return Comparison("ablation", rows, range(seeds), Exam(max(1, episodes // 5)))


def applies(algorithm: str, changes: Mapping[str, Any]) -> bool:
    """Whether an algorithm has that choice: a nominal target has no set of models and no member of it."""
    robust = TARGETS[ALGORITHMS[algorithm].target].robust
    return robust or not ("models" in changes or changes.get("acting") == "member")


def tuning(episodes: int) -> Comparison:
    """Fifteen settings for each corner of the square: the same budget for each."""
    rates = {
        "gradient": ("learning_rate", (1e-4, 3e-4, 1e-3)),
        "kalman": ("observation_noise", (0.12, 0.04, 0.012)),
    }
    schedules: tuple[dict[str, Any], ...] = (
        {"input_scale": (1.0, 1.0, 1.0, 1.0)},
        {},
        {"epsilon_steps": 10_000},
        {"epsilon_steps": 10_000, "target_period": 500},
        {"epsilon_steps": 3_000, "target_period": 200},
    )
    rows = []
    for algorithm in SQUARE:
        name, values = rates[ALGORITHMS[algorithm].estimator]
        for schedule in schedules:
            for value in values:
                changes = {name: value, **schedule}
                rows.append(Row(row_name(algorithm, changes), algorithm, changes=changes))
    return Comparison("tuning", rows, TUNING_SEEDS, Exam(max(1, episodes // 5), curve=max(1, episodes // 25)))


#: The settings of the tuning with which each of the two learned fastest.
_FASTEST: dict[str, dict[str, Any]] = {
    "rtd_dqn": {"learning_rate": 1e-3, "epsilon_steps": 3_000, "target_period": 200},
    "deep_rok": {"observation_noise": 0.012, "epsilon_steps": 3_000, "target_period": 200},
}


def fastest(seeds: int, episodes: int) -> Comparison:
    """The robust target with Adam and with the filter, each at its own fastest settings."""
    rows = [Row(name, name, changes=changes) for name, changes in _FASTEST.items()]
    return Comparison("fastest", rows, range(seeds), Exam(max(1, episodes // 5), curve=max(1, episodes // 25)))


#: The settings of the tuning with which each corner of the square had the highest mean success.
_BEST: dict[str, dict[str, Any]] = {
    "dqn": {"epsilon_steps": 10_000},
    "rtd_dqn": {},
    "ekf_dqn": {"observation_noise": 0.04, "epsilon_steps": 3_000, "target_period": 200},
    "deep_rok": {},
}


def best(seeds: int, episodes: int) -> Comparison:
    """The square, each corner at its own best settings."""
    rows = [
        Row(name, name, changes=changes, runs="" if changes else f"tuned/{name}") for name, changes in _BEST.items()
    ]
    return Comparison("best", rows, range(seeds), Exam(max(1, episodes // 5), curve=max(1, episodes // 25)))


#: Structures of the covariance, each with the observation noise, of three, that had the highest
#: mean success on the tuning seeds.
STRUCTURES: dict[str, float] = {"full": 0.12, "layer": 0.4, "neuron": 0.04, "diagonal": 0.04, "low_rank": 0.4}


def structures(seeds: int, episodes: int) -> Comparison:
    """Deep-RoK with each structure of the covariance."""
    rows = [
        Row(name, "deep_rok", changes={"covariance": name, "observation_noise": noise})
        for name, noise in STRUCTURES.items()
    ]
    return Comparison("structures", rows, range(min(seeds, FEWER_SEEDS)), _kalman_exam(episodes))


def structure_tuning(episodes: int) -> Comparison:
    """Three observation noises for each structure."""
    rows = [
        Row(row_name("deep_rok", changes), "deep_rok", changes=changes)
        for name in STRUCTURES
        for noise in (0.4, 0.12, 0.04)
        for changes in ({"covariance": name, "observation_noise": noise},)
    ]
    return Comparison("structure_tuning", rows, TUNING_SEEDS, Exam(max(1, episodes // 10)))


#: Factors of the posterior's standard deviation in Cart-Pole, the best of those tried on the tuning seeds.
SCALES = {"thompson": 3.0, "ucb": 30.0}


def exploration(seeds: int, episodes: int) -> Comparison:
    """Deep-RoK with ε-greedy exploration, Thompson sampling, and an upper confidence bound."""
    full = {"covariance": "full", "observation_noise": STRUCTURES["full"]}
    rows = [Row("epsilon", "deep_rok", changes=full, runs="structures/full")]
    rows += [Row(name, "deep_rok", changes={"explore": name, "explore_scale": scale}) for name, scale in SCALES.items()]
    return Comparison("exploration", rows, range(seeds), _kalman_exam(episodes))


def confidence(seeds: int, episodes: int) -> Comparison:
    """The worst of 20 models from the start, or annealed to: with time, or as the posterior's spread falls."""
    hard: dict[str, Any] = {"robust_level": 0.05}  # of 20 models the worst one
    rows = [
        Row("worst from the start", "deep_rok", changes=hard),
        Row("worst with time", "deep_rok", changes={**hard, "confidence": "time", "level_steps": 15_000}),
        Row("worst with spread", "deep_rok", changes={**hard, "confidence": "spread"}),
    ]
    return Comparison("confidence", rows, range(min(seeds, FEWER_SEEDS)), _kalman_exam(episodes))


def ferry(seeds: int) -> Comparison:
    """Deep-RoK on an environment whose robust Q* is known."""
    changes: dict[str, Any] = {
        "env": "ferry",
        "fixed_models": "current=0; current=1; current=2",
        "robust_set": "minimum",
        "acting": "member",
        "observation_noise": 0.01,
        "prior_covariance": 0.1,
        "process_noise": 1e-7,
    }
    rows = [Row(name, "deep_rok", changes={**changes, "covariance": name}) for name in ("full", "diagonal")]
    return Comparison("ferry", rows, range(min(seeds, FEWER_SEEDS)), Exam(0))


def nominal_filter(seeds: int, episodes: int) -> Comparison:
    """EKF-DQN, whose Q can be compared with what its policy earns."""
    return Comparison(
        "nominal", [Row("ekf_dqn", "ekf_dqn")], range(min(seeds, FEWER_SEEDS)), Exam(max(1, episodes // 10))
    )


def warm_start(seeds: int, episodes: int) -> Comparison:
    """A few episodes at 1.5 times the gravity, from scratch and from a posterior."""
    changed: dict[str, Any] = {"nominal": "gravity=14.7", "episodes": 40, "epsilon_start": 0.1}
    rows = [
        Row("afresh", "deep_rok", changes=changed | {"epsilon_start": 1.0, "epsilon_steps": 3000}),
        Row("from a posterior", "deep_rok", changes=changed, prior="structures/full"),
    ]
    exam = Exam(max(1, episodes // 10), beyond=max(1, episodes // 10))
    return Comparison("warm_start", rows, range(min(seeds, FEWER_SEEDS)), exam)


#: Seeds that policies on Q − κσ are examined with.
CAUTIOUS_SEEDS = 3


def cautious_exam(episodes: int) -> Exam:
    """How policies on Q − κσ are examined: few episodes, as each step needs the variance of every action."""
    return Exam(max(1, episodes // 50))


def sb3_exam(episodes: int) -> Exam:
    """How stable-baselines3 is examined."""
    return Exam(max(1, episodes // 5), beyond=max(1, episodes // 25))


def _kalman_exam(episodes: int) -> Exam:
    return Exam(max(1, episodes // 5), beyond=max(1, episodes // 25), curve=max(1, episodes // 25))


#: Estimators of the weights, each with its agent of the nominal and of the robust target.
PAIRS: dict[str, tuple[str, str]] = {
    "Adam": ("dqn", "rtd_dqn"),
    "extended Kalman filter": ("ekf_dqn", "deep_rok"),
    "Bayes by Backprop": ("bbb_dqn", "bbb_rtd"),
    "preconditioned SGLD": ("psgld_dqn", "psgld_rtd"),
    "KTD: unscented filter, online": ("ktd_q", "ktd_rtd"),
}
#: The network that KTD has, for one of the others too.
_KTD_NETWORK: dict[str, Any] = {"hidden": (20,)}


def beliefs(seeds: int, episodes: int) -> Comparison:
    """Every estimator with either target, and the filters with the same small network."""
    rows = [Row(name, name) for pair in PAIRS.values() for name in pair]
    rows += [Row(f"{name} small", name, changes=_KTD_NETWORK) for name in ("ekf_dqn", "deep_rok")]
    rows += [
        Row(f"{robust} vote", robust, policy="vote", runs=f"beliefs/{robust}") for _, robust in list(PAIRS.values())[1:]
    ]
    return Comparison("beliefs", rows, range(min(seeds, FEWER_SEEDS)), _kalman_exam(episodes))


#: Weightings of the trajectories of a policy gradient, beside those that are algorithms of their own.
_WEIGHED: dict[str, dict[str, Any]] = {
    "KL ball": {"adversary": 0.0},
    "worst of 12 models": {
        "acting": "member",
        "models": 12,
        "weigh": "models",
        "trajectory_set": "minimum",
        "adversary": 0.0,
    },
    "adversary alone": {"trajectory_level": 0.0},
}


def policies(seeds: int, episodes: int) -> Comparison:
    """Policy gradients: domain randomisation, EPOpt, and the parts of the robust one."""
    rows = [Row(name, name) for name in ("pg", "epopt", "robust_pg")]
    rows.append(Row("nominal model alone", "pg", changes={"acting": "nominal"}))
    rows += [Row(name, "robust_pg", changes=changes) for name, changes in _WEIGHED.items()]
    return Comparison("policies", rows, range(min(seeds, FEWER_SEEDS)), _kalman_exam(episodes))


def belief_tuning(episodes: int) -> Comparison:
    """A few settings of each estimator that the paper's experiment does not have."""
    rates: dict[str, tuple[str, tuple[float, ...]]] = {
        "bbb_rtd": ("learning_rate", (1e-4, 3e-4)),
        "psgld_rtd": ("learning_rate", (1e-4, 3e-4)),
        "ktd_q": ("prior_covariance", (0.1,)),
        "ktd_rtd": ("prior_covariance", (0.1,)),
    }
    noises = {
        "bbb_rtd": (1.0, 0.1, 0.01),
        "psgld_rtd": (1.0, 0.1, 0.01),
        "ktd_q": (0.1, 0.01, 0.001),
        "ktd_rtd": (1.0, 0.1, 0.01),
    }
    rows = [
        Row(row_name(algorithm, changes), algorithm, changes=changes)
        for algorithm, (rate, values) in rates.items()
        for value in values
        for noise in noises[algorithm]
        for changes in ({rate: value, "observation_noise": noise},)
    ]
    return Comparison("belief_tuning", rows, TUNING_SEEDS, Exam(max(1, episodes // 10)))


def row_name(algorithm: str, changes: Mapping[str, Any]) -> str:
    """A row's name, which is also its folder's."""
    return " ".join([algorithm, *(f"{name}={_short(value)}" for name, value in changes.items())])


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_short, value))
    return value if isinstance(value, str) else f"{value:g}"
