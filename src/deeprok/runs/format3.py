"""Reads `config.json` of format 3, which had most settings of all parts in one flat object."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.learner import LEARNERS
from deeprok.agents.network import NETWORKS
from deeprok.agents.targets import TARGETS
from deeprok.core.errors import DeeprokError, unknown
from deeprok.environments import ENVIRONMENTS
from deeprok.estimators import ESTIMATORS

#: Settings of the extended Kalman filter that runs no longer have, and the values at which they had no effect.
DROPPED = {
    "fading": 0.0,
    "variance_cap": None,
    "noise_updates": 0,
    "observation_noise_end": None,
    "process_noise_end": None,
    "adapt_noise": 0.0,
    "iterations": 1,
}


def upgraded(fields: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The same settings in the present format.

    Args:
      fields: of format 3, without the format's number.
      origin: the file's path, for messages.
    """
    old = dict(fields)
    names = {"algorithm": str(old.get("algorithm")), "env": str(old.pop("world", None)), "network": "mlp"}
    for field, name, known in (("algorithm", "algorithm", ALGORITHMS), ("world", "env", ENVIRONMENTS)):
        if names[name] not in list(known):
            raise unknown(f"{field} in {origin}", names[name], known)
    row, env = ALGORITHMS[names["algorithm"]], ENVIRONMENTS[names["env"]]
    inner = old.pop("estimator", None)
    inner = dict(inner) if isinstance(inner, Mapping) else {}
    for name, value in DROPPED.items():
        if inner.pop(name, value) != value:
            raise DeeprokError(f"{origin} sets {name}, which runs no longer have; use deeprok.estimators.ekf for it")
    if not old.get("input_scale") and isinstance(old.get("input_scale"), list):
        old["input_scale"] = [1.0] * len(env.make(env.settings()).observation_scale)
    sections = {
        "environment": env.settings,
        "layers": NETWORKS["mlp"].settings,
        "learner": LEARNERS[row.learner].settings,
        "target": TARGETS[row.target].settings,
        "estimator": ESTIMATORS[row.estimator].settings if row.estimator else None,
    }
    flat = {**old, **inner}
    new: dict[str, Any] = {**names}
    for section, kind in sections.items():
        own = [field.name for field in dataclasses.fields(kind)] if kind else []
        new[section] = {name: flat.pop(name) for name in own if name in flat} if kind else None
    # What this algorithm never read.
    kinds: tuple[Mapping[str, Any], ...] = (ENVIRONMENTS, LEARNERS, TARGETS)
    unread = {name for kind in kinds for part in kind.values() for name in _names(part.settings)}
    return new | {name: value for name, value in flat.items() if name not in unread or name == "algorithm"}


def _names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
