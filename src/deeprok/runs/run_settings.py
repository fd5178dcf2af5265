"""The settings that every run has, whatever its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import tyro
from msgspec import Meta

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.learner import Acting
from deeprok.agents.network import NETWORKS
from deeprok.core.fields import (
    Count,
    Fraction,
    Natural,
    NotNegative,
    OneOf,
    Precision,
    Probability,
    Rule,
    Seed,
    Share,
    added,
)
from deeprok.core.search import Range, Space
from deeprok.environments import ENVIRONMENTS
from deeprok.uncertainty.models import Draw

Preset = Literal["default", "paper", "tuned"]
PRESETS: tuple[str, ...] = get_args(Preset)

Delay = Annotated[int, Meta(ge=0, le=100, description="a whole number from 0 to 100")]
Simulators = Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")]
InputScale = Annotated[tuple[float, ...], Rule(lambda scale: 0 not in scale, "finite numbers other than 0")]


@dataclass(frozen=True)
class RunSettings:
    """Settings of every run."""

    algorithm: Annotated[tyro.conf.Suppress[str], OneOf(ALGORITHMS)] = "deep_rok"
    """An algorithm that `deeprok algorithms` lists, or your own module:object."""
    preset: Preset = "default"
    """Where the settings that are not given come from: `default`, the same for every environment; `paper`; or `tuned`,
    which was tuned on Cart-Pole."""
    seed: Seed = 0
    """Seed of all random numbers of the run."""
    episodes: Natural = 700
    """Episodes to train for; 0 for no limit. Given alone, it replaces a limit of steps."""
    steps: Natural = added(0)
    """Environment steps to train for; 0 for no limit. Given alone, it replaces a limit of episodes."""

    env: Annotated[str, OneOf(ENVIRONMENTS)] = "cartpole"
    """An environment that `deeprok environments` lists, any id of Gymnasium, or your own module:object."""
    nominal: str = ""
    """Nominal parameters that differ from the environment's own, as name=value,…"""
    box: str = ""
    """Ranges of the uncertain parameters, as name=low:high,…; by default the environment's own. On the command line
    also a .json file of `deeprok identify`."""
    models: Count = 5
    """How many values of each uncertain parameter are drawn at the start of an episode. On the command line also a
    .json file of `deeprok identify`, whose plausible models are then the set."""
    draw: Draw = "pairs"
    """pairs: the i-th values of all parameters make the i-th model (M = models); product: every combination."""
    edges: Fraction = added(0.0)
    """Probability that a value drawn from its range is one of the two ends. Uniform draws hardly ever come near the
    corners of the box, where policies fail first."""
    fixed_models: str = ""
    """Models to use in every episode instead of drawing: a grid name=low:high:count,… or a list of them joined by ;"""
    sensor_noise: NotNegative = added(0.0)
    """Standard deviation of the Gaussian noise on each observation, as a multiple of the observation's typical size; 0
    for none."""
    action_delay: Delay = added(0)
    """Steps by which each action is late; until the first one arrives, actions are random."""
    parameter_noise: str = added("")
    """Parameters that are multiplied by a fresh Gaussian factor of mean 1 in each step, and the factor's standard
    deviation, as name=deviation,…"""
    memory: Natural = added(0)
    """Past steps whose observations and actions the network sees too; 0 for none."""
    simulators: Simulators = added(1)
    """Simulators that the agent learns in at once, each in a process of its own, or rows of a vector environment; for
    environments that are stateful simulators."""
    acting: Acting = "sampled"
    """The model acted on: the nominal one, a fresh draw from the box each episode, or a member of the model set."""

    discount: Fraction = 0.9
    """Discount γ."""
    network: Annotated[str, OneOf(NETWORKS)] = "mlp"
    """The network: a multilayer perceptron, or your own module:object."""
    input_scale: InputScale = ()
    """What each observation is multiplied by before the network: a factor for each, or a single one; by default
    1 / typical size. Remembered ones have the same factors."""
    precision: Precision = "float32"
    """Floating-point precision of the whole run."""

    snapshot_every: Natural = 20
    """Episodes between snapshots of the weights, stored in the checkpoint for learning curves; none are stored with 0,
    or without a limit of episodes."""
    trial_every: Count = 2
    """Chunks between trials of the policy on held-out models, which decide the best weights."""
    trial_models: Count = 64
    """Held-out models, drawn from the box, that are played in a trial."""
    trial_episodes: Count = added(1)
    """Episodes on each of them."""
    trial_epsilon: Probability = 0.1
    """Probability of a random action in a trial."""
    trial_tail: Share = added(1.0)
    """Worst fraction of the held-out models whose mean return is a trial's score; 1 for all of them."""
    refine_from: Probability = added(0.0)
    """Fraction of the budget after which the run goes back, once, to the weights that did best in the trials so far. It
    keeps the robust level that the schedule of level_fraction had given them; 0 for never."""
    settle: bool = added(False)
    """End with the better of the last weights and those that did best in the trials, on more held-out models."""


def search_run(settings: RunSettings) -> Space:
    """What `deeprok tune` tries for the settings of every run."""
    drawn = {"edges": Range(0.0, 0.6)} if settings.acting == "sampled" else {}
    return {"discount": (0.95, 0.98, 0.99, 0.995), **drawn}
