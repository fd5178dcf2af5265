"""The algorithms: each is a learner, a target and an estimator.

Nothing here imports JAX, so that the table can be printed at once. An algorithm of your own is an `Algorithm`, named
`module:object`; so are its target and its estimator, if they are your own too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deeprok.core.registry import Registry, expect
from deeprok.core.search import Range, Searched


class Algorithm(NamedTuple):
    """A row of the table.

    Attributes:
      summary: what it is, in a few words.
      target: what it learns from: a name of `TARGETS`.
      estimator: how the weights are estimated: a name of `ESTIMATORS`; empty if the learner has its own way.
      learner: what does the learning: a name of `LEARNERS`.
      settings: settings that are its own, whatever the preset.
      env: the environment it learns in unless another is given.
      search: what `deeprok tune` tries for some of its own settings; the others stay.
    """

    summary: str
    target: str
    estimator: str = ""
    learner: str = "q_learning"
    settings: Mapping[str, Any] = {}
    env: str = "cartpole"
    search: Mapping[str, Searched] = {}


#: KTD is a Q-learner with a replay buffer of one transition. Each weight costs two evaluations a step.
_ONLINE = {"batch_size": 1, "replay_size": 1, "train_every": 1, "hidden": (20,)}
_RANDOMISED = {"acting": "sampled"}
#: TD3's target networks follow the weights slowly, and the weights themselves act.
_SOFT_TARGETS = {"learning_rate": 1e-3, "target_period": 2, "target_rate": 0.005, "averaging": 0.0}
_SOFT_SEARCH = {"learning_rate": Range(1e-4, 3e-3, log=True), "target_rate": Range(1e-3, 0.05, log=True)}
#: The filter's noises are meant in units in which observations and targets are of size one.
_KALMAN_CRITICS = {
    "normalise": True,
    "observation_noise": 3e-5,
    "process_noise": 0.0,
    "prior_covariance": 0.015,
    "remembered": 0.1,
    "batching": "joint",
    "window": 100,
    "noise_share": 0.2,
    "covariance": "full",
    "hidden": (20, 20),
    "batch_size": 16,
    "train_every": 1,
    "target_period": 2,
    "target_rate": 0.005,
    "averaging": 0.0,
}

ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    {
        "dqn": Algorithm("deep Q-learning: nominal target, plain max", "nominal", "gradient"),
        "ddqn": Algorithm(
            "Double-DQN on the nominal model: the paper's baseline",
            "nominal",
            "gradient",
            settings={"double": True, "acting": "nominal"},
        ),
        "ddqn_dr": Algorithm(
            "Double-DQN with domain randomisation",
            "nominal",
            "gradient",
            settings={"double": True, **_RANDOMISED},
        ),
        "rtd_dqn": Algorithm("RTD-DQN: worst-case target", "worst_case", "gradient"),
        "ekf_dqn": Algorithm("nominal target, extended Kalman filter over the weights", "nominal", "kalman"),
        "deep_rok": Algorithm("Deep-RoK: worst-case target, extended Kalman filter", "worst_case", "kalman"),
        "bbb_dqn": Algorithm("nominal target, Bayes by Backprop", "nominal", "bayes_by_backprop"),
        "bbb_rtd": Algorithm("worst-case target, Bayes by Backprop", "worst_case", "bayes_by_backprop"),
        "psgld_dqn": Algorithm("nominal target, preconditioned SGLD", "nominal", "psgld"),
        "psgld_rtd": Algorithm("worst-case target, preconditioned SGLD", "worst_case", "psgld"),
        "boot_dqn": Algorithm(
            "Bootstrapped DQN: an ensemble with random priors, one member acts an episode",
            "nominal",
            "gradient",
            "bootstrap",
        ),
        "boot_rtd": Algorithm("Bootstrapped DQN, worst-case targets", "worst_case", "gradient", "bootstrap"),
        "td3": Algorithm(
            "TD3 on the nominal model: an actor and two critics, for continuous actions",
            "nominal",
            "gradient",
            "actor_critic",
            {**_SOFT_TARGETS, "acting": "nominal"},
            "pendulum",
            _SOFT_SEARCH,
        ),
        "td3_dr": Algorithm(
            "TD3 with domain randomisation",
            "nominal",
            "gradient",
            "actor_critic",
            {**_SOFT_TARGETS, **_RANDOMISED},
            "pendulum",
            _SOFT_SEARCH,
        ),
        "rtd_td3": Algorithm(
            "TD3 with worst-case targets",
            "worst_case",
            "gradient",
            "actor_critic",
            _SOFT_TARGETS,
            "pendulum",
            _SOFT_SEARCH,
        ),
        "rok_td3": Algorithm(
            "TD3 with worst-case targets, extended Kalman filter over the critics' weights",
            "worst_case",
            "kalman",
            "actor_critic",
            _KALMAN_CRITICS,
            "pendulum",
            {"observation_noise": Range(1e-6, 1.0, log=True), "prior_covariance": Range(1e-4, 1.0, log=True)},
        ),
        "ktd_q": Algorithm(
            "KTD-Q: online, rewards observed by an unscented Kalman filter",
            "difference",
            "unscented",
            settings=_ONLINE,
        ),
        "ktd_rtd": Algorithm(
            "KTD-Q with the worst case over models",
            "robust_difference",
            "unscented",
            # The worst of models that change with the episode is noisier than a reward.
            settings={**_ONLINE, "observation_noise": 0.1},
        ),
        "pg": Algorithm(
            "policy gradient with domain randomisation",
            "mean_return",
            learner="policy_gradient",
            settings=_RANDOMISED,
        ),
        "epopt": Algorithm(
            "EPOpt: policy gradient on the worst trajectories",
            "worst_trajectories",
            learner="policy_gradient",
            settings=_RANDOMISED,
        ),
        "robust_pg": Algorithm(
            "policy gradient against a KL ball and an adversary",
            "worst_trajectories",
            learner="policy_gradient",
            settings={**_RANDOMISED, "trajectory_set": "kl", "trajectory_level": 0.5, "adversary": 0.25},
        ),
    },
    expect(Algorithm, "an Algorithm"),
)
