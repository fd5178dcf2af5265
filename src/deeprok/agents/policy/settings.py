"""Settings of policy gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from deeprok.core.fields import (
    Count,
    Finite,
    InnerFraction,
    Natural,
    NotNegative,
    OneOf,
    Positive,
    Probability,
    at_least,
)
from deeprok.estimators.base import Part, lower_rate, memory_of_vectors
from deeprok.uncertainty import SETS

Inner = Literal["natural", "ppo"]
Weigh = Literal["trajectories", "models"]


@dataclass(frozen=True)
class PolicyConfig:
    """A policy instead of values, by gradients of what trajectories on an ensemble of models earn."""

    inner: Inner = "natural"
    """How the policy moves: along the natural gradient within a KL bound (TRPO), or by PPO."""
    trajectories: Annotated[int, at_least(2)] = 240
    """Trajectories in an iteration."""
    learning_rate: Positive = 1e-3
    """PPO's step size α, for Adam."""
    clip: InnerFraction = 0.2
    """How far PPO lets an action's probability move before it stops, as a factor above and below 1."""
    epochs: Count = 10
    """PPO's passes over an iteration's trajectories."""
    minibatches: Count = 4
    """Mini-batches in a pass, of whole trajectories."""
    entropy: NotNegative = 0.0
    """What PPO adds for each nat of the actions' entropy."""
    kl_bound: Positive = 0.01
    """Mean KL divergence that a natural step may go."""
    gae_lambda: Probability = 0.97
    """λ of the advantages: 1 takes the rewards that came, 0 the next one and the baseline."""
    trajectory_set: Annotated[str, OneOf(SETS)] = "cvar"
    """Set of distributions over the trajectories, as robust_set is over outcomes: cvar is EPOpt."""
    trajectory_level: Finite = 0.1
    """Size of that set: for cvar EPOpt's ε, the worst fraction; 1 is all trajectories alike, as 0 is for a radius."""
    level_iterations: Natural = 100
    """Iterations in which all trajectories count alike, before the set does."""
    weigh: Weigh = "trajectories"
    """Take the worst over single trajectories or, with acting member, over the models' mean returns."""
    adversary: Probability = 0.0
    """Share of the models that an adversary chooses, which searches the box for the policy's worst."""
    source_spread: NotNegative = 0.0
    """Deviation, in widths of the box, of the normal distributions that models are drawn from; 0 is uniform."""
    target: str = ""
    """Physics of a target to adapt the source of models to, as name=value,…; if empty it stays."""
    adapt_every: Count = 10
    """Iterations between looks at the target."""
    target_trajectories: Count = 2
    """Trajectories on the target at each look."""
    particles: Annotated[int, at_least(10)] = 500
    """Models weighed by how well they foretell the target."""
    target_noise: Positive = 0.01
    """Deviation of the target's next observation from a model's, in units of typical observations."""

    @property
    def neutral(self) -> bool:
        """Whether all trajectories count alike: the set holds nothing but the uniform distribution."""
        return self.trajectory_level == SETS[self.trajectory_set].nominal_level


def _remedy(settings: PolicyConfig) -> str:
    return f"lower --kl-bound (now {settings.kl_bound:g})" if settings.inner == "natural" else lower_rate(settings)


PART = Part(
    settings=PolicyConfig,
    make=None,
    presets={
        "paper": PolicyConfig(),
        "tuned": PolicyConfig(inner="ppo", trajectories=60, minibatches=2, level_iterations=10),
    },
    posterior=False,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: 0),
    remedy=_remedy,
)
