"""The parts of a run, found by the names that its settings have."""

from __future__ import annotations

from typing import Any, NamedTuple

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.learner import LEARNERS, LearnerPart
from deeprok.agents.network import NETWORKS, NetworkPart
from deeprok.agents.targets import TARGETS, TargetPart
from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import hints
from deeprok.environments import ENVIRONMENTS, EnvironmentPart
from deeprok.estimators import ESTIMATORS, EstimatorPart
from deeprok.runs.run_settings import RunSettings


class Parts(NamedTuple):
    """The parts of a run, in the order of the sections of its settings."""

    environment: EnvironmentPart
    layers: NetworkPart
    learner: LearnerPart
    target: TargetPart
    estimator: EstimatorPart | None


SECTIONS = Parts._fields


def find_parts(algorithm: str, env: str, network: str) -> Parts:
    """The parts of these names; raises a `DeeprokError` for one that is not known."""
    row = ALGORITHMS[algorithm]
    target, learner = TARGETS[row.target], LEARNERS[row.learner]
    if target.learner != (learner.like or row.learner):
        raise DeeprokError(
            f"algorithm {shown(algorithm)} has the learner {row.learner} and the target {row.target}, "
            f"which is one of {target.learner}"
        )
    return Parts(
        ENVIRONMENTS.find(env, "env"),
        NETWORKS[network],
        learner,
        target,
        ESTIMATORS[row.estimator] if row.estimator else None,
    )


def setting_types(algorithm: str, env: str, network: str) -> dict[str, Any]:
    """The settings that a run of these parts has, by name, and the type of each."""
    kinds = (part.settings for part in find_parts(algorithm, env, network) if part is not None)
    return {name: hint for kind in (RunSettings, *kinds) for name, hint in hints(kind).items()}
