"""Targets: what a learner learns from a transition, or from a trajectory, given what nature may do.

| file | targets |
|---|---|
| `bootstrapped` | nominal (Eq. 4 of the paper, Double-DQN), worst_case (Eq. 14) |
| `differences` | difference (KTD-Q), robust_difference |
| `agents/policy/objectives` | mean_return, worst_trajectories (EPOpt): how much each trajectory counts |
"""

from deeprok.agents.targets.base import Target, TargetPart
from deeprok.core.registry import Registry, expect

TARGETS: Registry[TargetPart] = Registry(
    "target",
    {
        "nominal": "deeprok.agents.targets.bootstrapped:NOMINAL",
        "worst_case": "deeprok.agents.targets.bootstrapped:WORST_CASE",
        "difference": "deeprok.agents.targets.differences:DIFFERENCE",
        "robust_difference": "deeprok.agents.targets.differences:ROBUST_DIFFERENCE",
        "mean_return": "deeprok.agents.policy.objectives:MEAN_RETURN",
        "worst_trajectories": "deeprok.agents.policy.objectives:WORST_TRAJECTORIES",
    },
    expect(TargetPart, "a TargetPart"),
)

__all__ = ["TARGETS", "Target", "TargetPart"]
