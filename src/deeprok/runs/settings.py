"""Settings: one record that is the command line, the JSON of a run, and their documentation.

An algorithm is a row of `ALGORITHMS`. A preset gives every setting a value for each row; any of
them can then be replaced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import jax
import numpy as np
import tyro

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.estimators.gradient import OPTIMIZERS, Optimizer
from deeprok.estimators.kalman import BATCHINGS, Batching, float32_risk
from deeprok.agents.network import ACTIVATIONS, QNetwork
from deeprok.core.files import as_numbers, parse_json
from deeprok.uncertainty import SETS
from deeprok.uncertainty.models import DRAWS, Box, Draw, ModelSet, from_box, from_list, parse_box, parse_models, parse_values
from deeprok.environments import WORLDS, Interval, World, with_model
from deeprok.environments.cartpole import INTEGRATORS, Integrator

#: Version of the run folder's files; raised when an older folder can't be read any more.
FORMAT = 3

Acting = Literal["nominal", "sampled", "member"]
ACTINGS: tuple[str, ...] = get_args(Acting)

Explore = Literal["epsilon", "thompson", "ucb"]
EXPLORES: tuple[str, ...] = get_args(Explore)

Confidence = Literal["fixed", "time", "spread"]
CONFIDENCES: tuple[str, ...] = get_args(Confidence)

Covariance = Literal["full", "layer", "neuron", "diagonal", "low_rank"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)

WeightPrior = Literal["gaussian", "mixture"]
WEIGHT_PRIORS: tuple[str, ...] = get_args(WeightPrior)

Inner = Literal["natural", "ppo"]
INNERS: tuple[str, ...] = get_args(Inner)

Weigh = Literal["trajectories", "models"]
WEIGHS: tuple[str, ...] = get_args(Weigh)

Precision = Literal["float32", "float64"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

Preset = Literal["paper", "tuned"]
PRESETS: tuple[str, ...] = get_args(Preset)

#: P₀ or Pᵥ: a variance shared by all weights, one for each, or a full covariance.
Variances = float | tuple[float, ...] | tuple[tuple[float, ...], ...]


def read_variances(text: str, field: str) -> Variances:
    """A covariance from a number, or from a .json or .npy file with a vector or a matrix."""
    try:
        return float(text)
    except ValueError:
        pass
    path = Path(text)
    try:
        with open(path, "rb") as file:
            read: Any = np.lib.format.read_array(file) if path.suffix == ".npy" else json.load(file)
        values = as_numbers(read)
        if values is None:
            raise TypeError(type(read))
        variances: Variances = _tuples(values.astype(float).tolist())
    except Exception as error:  # whatever Python and numpy say of a file that is missing or damaged
        missing = " (there is no such file)" if isinstance(error, FileNotFoundError) else ""
        raise DeeprokError(
            f"{field} is '{text}'{missing}; it must be a number, or a .json or .npy file with a vector or a matrix"
        ) from error
    return variances


def _variances_option(field: str) -> Any:
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER|FILE",
        instance_from_str=lambda words: read_variances(words[0], field),
        is_instance=lambda value: isinstance(value, float | tuple),
        str_from_instance=lambda value: [str(value) if isinstance(value, float) else "…"],
    )


class Algorithm(NamedTuple):
    """A row of the table: how labels are formed and how the belief over the weights is kept."""

    robust: bool  # the label, or what a policy's trajectories are weighed for, is the worst case over a set of models
    double: bool  # the online network chooses the successor's action
    estimator: Literal["gradient", "kalman", "backprop", "langevin", "unscented", "policy"]
    acting: Acting | None  # the model it acts on, where that is part of the algorithm
    summary: str


ALGORITHMS: dict[str, Algorithm] = {
    "dqn": Algorithm(False, False, "gradient", None, "Q-learning with a network: the nominal label, plain max"),
    "ddqn": Algorithm(False, True, "gradient", "nominal", "Double-DQN on the nominal model: the paper's baseline"),
    "ddqn_dr": Algorithm(False, True, "gradient", "sampled", "Double-DQN with domain randomisation"),
    "rtd_dqn": Algorithm(True, False, "gradient", None, "RTD-DQN: the worst-case label"),
    "ekf_dqn": Algorithm(False, False, "kalman", None, "the nominal label, an extended Kalman filter over the weights"),
    "deep_rok": Algorithm(True, False, "kalman", None, "Deep-RoK: the worst-case label and the Kalman filter"),
    "bbb_dqn": Algorithm(False, False, "backprop", None, "the nominal label, Bayes by Backprop over the weights"),
    "bbb_rtd": Algorithm(True, False, "backprop", None, "the worst-case label and Bayes by Backprop"),
    "psgld_dqn": Algorithm(False, False, "langevin", None, "the nominal label, preconditioned Langevin dynamics"),
    "psgld_rtd": Algorithm(True, False, "langevin", None, "the worst-case label and preconditioned Langevin dynamics"),
    "ktd_q": Algorithm(False, False, "unscented", None, "KTD-Q: on line from rewards, an unscented Kalman filter"),
    "ktd_rtd": Algorithm(True, False, "unscented", None, "KTD-Q with the worst case over models in its observation"),
    "pg": Algorithm(False, False, "policy", "sampled", "policy gradient with domain randomisation"),
    "epopt": Algorithm(True, False, "policy", "sampled", "EPOpt: policy gradient on the worst trajectories"),
    "robust_pg": Algorithm(True, False, "policy", "sampled", "policy gradient against a set and an adversary"),
}


@dataclass(frozen=True)
class GradientConfig:
    """A point estimate of the weights, by gradient descent."""

    learning_rate: float = 1e-3
    """Step size α."""
    optimizer: Optimizer = "adam"
    """Adam, or plain SGD as Algorithm 1 of the paper is written."""


@dataclass(frozen=True)
class KalmanConfig:
    """A normal distribution over the weights, by the extended Kalman filter."""

    observation_noise: float = 1e-3
    """Pₙ, the variance of a label's noise; the joint update uses R = B·Pₙ for each observation."""
    process_noise: Annotated[Variances, _variances_option("process_noise")] = 0.01
    """Pᵥ, what P grows by before an update: a number for every weight's variance, or a file with a vector or matrix."""
    prior_covariance: Annotated[Variances, _variances_option("prior_covariance")] = 1.0
    """P₀: a number, or a .json or .npy file with a vector (its diagonal) or a full matrix."""
    batching: Batching = "averaged"
    """A mini-batch's gains averaged as the paper writes it, or its joint update."""
    learning_rate: float = 1.0
    """Step size α, multiplies the step of the mean; 1 is the filter."""
    covariance: Covariance = "full"
    """How P is kept: whole, in blocks by layer or by neuron, its diagonal, or a diagonal and --rank directions."""
    rank: int = 10
    """Directions that low_rank keeps."""
    fading: float = 0.0
    """η of a fading memory: P becomes P/(1 − η) before an update."""
    variance_cap: float | None = None
    """Above it no weight's variance grows, neither by noise nor by fading."""
    noise_updates: int = 0
    """Updates over which the noises go, in equal factors, to their ends; 0 keeps them as they are."""
    observation_noise_end: float | None = None
    """Where Pₙ goes."""
    process_noise_end: float | None = None
    """Where Pᵥ goes, if it is a number."""
    adapt_noise: float = 0.0
    """Rate at which Pₙ follows the squared residuals; 0 keeps it as given."""
    iterations: int = 1
    """Linearisations of an update, each at the result of the last."""


@dataclass(frozen=True)
class BackpropConfig:
    """A normal distribution of independent weights, by Bayes by Backprop."""

    observation_noise: float = 0.1
    """R, the variance of a label's noise."""
    learning_rate: float = 1e-3
    """Adam's step size, for means and deviations."""
    initial_deviation: float = 0.05
    """Deviation of every weight before any label."""
    weight_prior: WeightPrior = "gaussian"
    """N(0, prior_variance) for every weight, or its mixture with a narrow one, N(0, narrow_variance)."""
    prior_variance: float = 1.0
    """Variance of the prior; of its wide part, if it is a mixture."""
    narrow_variance: float = 0.0025
    """Variance of the mixture's narrow part."""
    wide_share: float = 0.5
    """Probability of the mixture's wide part."""
    samples: int = 1
    """Draws of the weights in an update."""


@dataclass(frozen=True)
class LangevinConfig:
    """A bank of weights along a chain, by preconditioned stochastic gradient Langevin dynamics."""

    observation_noise: float = 0.1
    """R, the variance of a label's noise."""
    learning_rate: float = 1e-3
    """α: the step size ε is 2α/N for a replay of N transitions, which moves weights as RMSprop with the rate α does."""
    decay: float = 0.0
    """γ: the step size falls with the number t of updates, as (1 + t / decay_updates)^(−γ)."""
    decay_updates: float = 10_000.0
    """Updates after which the step size begins to fall, if it does."""
    prior_variance: float = 1.0
    """The prior of every weight is N(0, prior_variance)."""
    smoothing: float = 0.99
    """α of the preconditioner, a running mean of squared gradients."""
    damping: float = 1e-5
    """λ of the preconditioner."""
    gamma_term: bool = False
    """Add Γ, the drift due to the preconditioner's change; it takes n times the work of a gradient."""
    frozen: bool = False
    """Keep the preconditioner as it is when the burn-in ends."""
    burn_in: int = 1000
    """Updates before any weights are kept."""
    thinning: int = 50
    """Of the weights after these, one in so many is kept."""
    members: int = 20
    """How many the bank holds; then the oldest go."""


@dataclass(frozen=True)
class UnscentedConfig:
    """A normal distribution over the weights, by the unscented Kalman filter of KTD."""

    observation_noise: float = 1.0
    """Pₙ, the variance of a reward's noise."""
    prior_covariance: Annotated[Variances, _variances_option("prior_covariance")] = 1.0
    """P₀: a number, or a .json or .npy file with a vector (its diagonal) or a full matrix."""
    adaptive_noise: float = 0.0
    """η: P becomes (1 + η) P before an update."""
    process_noise: float = 0.0
    """Pᵥ, what every weight's variance grows by before an update; it makes an update cost n³ instead of n²."""
    kappa: float = 0.0
    """κ of the unscented transform, the weight of its centre."""


@dataclass(frozen=True)
class PolicyConfig:
    """A policy instead of values, by gradients of what trajectories on an ensemble of models earn."""

    inner: Inner = "natural"
    """How the policy moves: along the natural gradient within a KL bound (TRPO), or by PPO."""
    trajectories: int = 240
    """Trajectories in an iteration."""
    learning_rate: float = 1e-3
    """PPO's step size α, for Adam."""
    clip: float = 0.2
    """How far PPO lets an action's probability move before it stops, as a factor above and below 1."""
    epochs: int = 10
    """PPO's passes over an iteration's trajectories."""
    minibatches: int = 4
    """Mini-batches in a pass, of whole trajectories."""
    entropy: float = 0.0
    """What PPO adds for each nat of the actions' entropy."""
    kl_bound: float = 0.01
    """Mean KL divergence that a natural step may go."""
    gae_lambda: float = 0.97
    """λ of the advantages: 1 takes the rewards that came, 0 the next one and the baseline."""
    trajectory_set: str = "cvar"
    """Set of distributions over the trajectories, as robust_set is over outcomes: cvar is EPOpt."""
    trajectory_level: float = 0.1
    """Size of that set: for cvar EPOpt's ε, the worst fraction; 1 is all trajectories alike, as 0 is for a radius."""
    level_iterations: int = 100
    """Iterations in which all trajectories count alike, before the set does."""
    weigh: Weigh = "trajectories"
    """Take the worst over single trajectories or, with acting member, over the models' mean returns."""
    adversary: float = 0.0
    """Share of the models that an adversary chooses, which searches the box for the policy's worst."""
    source_spread: float = 0.0
    """Deviation, in widths of the box, of the normal distributions that models are drawn from; 0 is uniform."""
    target: str = ""
    """Physics of a target to adapt the source of models to, as name=value,…; if empty it stays."""
    adapt_every: int = 10
    """Iterations between looks at the target."""
    target_trajectories: int = 2
    """Trajectories on the target at each look."""
    particles: int = 500
    """Models weighed by how well they foretell the target."""
    target_noise: float = 0.01
    """Deviation of the target's next observation from a model's, in units of typical observations."""

    @property
    def neutral(self) -> bool:
        """Whether all trajectories count alike: the set holds nothing but the uniform distribution."""
        return self.trajectory_level == SETS[self.trajectory_set].nominal_level


EstimatorConfig = GradientConfig | KalmanConfig | BackpropConfig | LangevinConfig | UnscentedConfig | PolicyConfig

ESTIMATOR_KINDS: dict[str, type[EstimatorConfig]] = {
    "gradient": GradientConfig,
    "kalman": KalmanConfig,
    "backprop": BackpropConfig,
    "langevin": LangevinConfig,
    "unscented": UnscentedConfig,
    "policy": PolicyConfig,
}


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; with the package's version it can be repeated from this alone."""

    algorithm: tyro.conf.Suppress[str] = "deep_rok"
    """A row of the table that `deeprok algorithms` prints."""
    preset: Preset = "tuned"
    """Where the settings not given come from: `paper` or `tuned`."""
    seed: int = 0
    """Seed of every random number of the run."""
    episodes: int = 700
    """Episodes to train for."""

    world: str = "cartpole"
    """A world that `deeprok worlds` prints."""
    integrator: Integrator = "euler"
    """How Cart-Pole is integrated, as in Gymnasium."""
    failing_reward: float = 0.0
    """Reward of the failing step: 0 in the paper, 1 in Gymnasium."""
    horizon: int = 200
    """Steps after which an episode is cut off."""
    nominal: str = ""
    """Nominal parameters that differ from the world's own, as name=value,…"""

    box: str = ""
    """Ranges of the uncertain parameters, as name=low:high,…; if empty the world's own."""
    models: int = 5
    """Values drawn of each uncertain parameter at an episode's start."""
    draw: Draw = "pairs"
    """Join the drawn values to pairs (M = models), or take their full product."""
    fixed_models: str = ""
    """Models to use in every episode instead of drawing: a grid name=low:high:count,… or a list of them joined by ;"""
    acting: Acting = "sampled"
    """The model acted on: the nominal one, a fresh draw from the box each episode, or one of the set."""
    robust_set: str = "minimum"
    """Set of distributions over the models' outcomes: minimum (the paper's hard minimum), cvar, contamination,
    l1, tv, linf, l2, chi2, kl, burg, wasserstein or entropic."""
    robust_level: float = 0.4
    """Size of that set: its radius; for cvar the worst fraction that is averaged."""
    confidence: Confidence = "fixed"
    """The level stays, or goes from level_start to robust_level: with time, or as the posterior's spread falls."""
    level_start: float = 1.0
    """The level at first, if it changes; for cvar 1 is the mean over the models, for a radius 0 is."""
    level_steps: int = 30_000
    """Steps over which it changes with time."""

    discount: float = 0.9
    """Discount γ."""
    double: bool = False
    """Let the online network choose the successor's action (Double-Q) instead of the plain max."""
    hidden: tuple[int, ...] = (20, 20)
    """Units of each hidden layer."""
    activation: str = "tanh"
    """Activation of the hidden layers: tanh, relu, sigmoid, elu or silu."""
    input_scale: tuple[float, ...] = ()
    """What each observation is multiplied by before the network; if empty 1."""
    estimator: EstimatorConfig = GradientConfig()
    """How the weights are learned."""
    prior: str = ""
    """Run folder whose last belief is where this run begins: mean and covariance."""
    precision: Precision = "float32"
    """Arithmetic of the whole run."""

    batch_size: int = 10
    """Transitions in a mini-batch."""
    replay_size: int = 150_000
    """Transitions kept; the oldest go first."""
    warm_up: int = 100
    """Steps before learning starts."""
    train_every: int = 1
    """Steps between updates."""
    target_period: int = 1000
    """Steps between copies of the weights to the target network."""
    epsilon_start: float = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: float = 0.1
    """Probability of a random action after epsilon_steps steps."""
    epsilon_steps: int = 10_000
    """Steps over which that probability falls."""
    explore: Explore = "epsilon"
    """ε-greedy, or directed by the posterior without ε: act on a draw from it, one each episode, or on Q + scale·σ."""
    explore_scale: float = 1.0
    """What the posterior's standard deviation is multiplied by when it directs exploration."""

    chunk_steps: int = 2000
    """Steps between looks at the run: metrics, checks, checkpoints."""
    snapshot_every: int = 20
    """Episodes between snapshots of the weights, kept in the checkpoint for learning curves; 0 keeps none."""
    trial_every: int = 2
    """Chunks between trials of the policy on held-out models, which decide the best weights."""
    trial_models: int = 64
    """Held-out models, drawn from the box, that a trial plays one episode on each."""
    trial_epsilon: float = 0.1
    """Probability of a random action in a trial."""

    @property
    def row(self) -> Algorithm:
        """The algorithm's row of the table."""
        return ALGORITHMS[self.algorithm]

    @property
    def in_step(self) -> bool:
        """Whether seeds go in step: small states leave a core idle, a covariance fills its cache by itself."""
        settings = self.estimator
        if isinstance(settings, KalmanConfig):
            return settings.covariance == "diagonal"
        return not isinstance(settings, UnscentedConfig)

    @property
    def has_posterior(self) -> bool:
        """Whether the belief is more than a point."""
        return not isinstance(self.estimator, GradientConfig | PolicyConfig)

    @property
    def online(self) -> bool:
        """Whether each transition is learned from once, when it happens."""
        return isinstance(self.estimator, UnscentedConfig)

    @property
    def snapshots(self) -> int:
        """How many snapshots of the weights a run takes."""
        return self.episodes // self.snapshot_every if self.snapshot_every else 0

    def make_world(self) -> World:
        """The world, with this run's nominal parameters."""
        world = WORLDS[self.world](self.integrator, self.failing_reward, self.horizon)
        if self.nominal:
            changed: Any = parse_values(self.nominal, world.nominal, "nominal")
            world = world._replace(nominal=with_model(world.nominal, changed))
        return world

    def make_box(self, world: World) -> Box:
        """The uncertain parameters' ranges."""
        return parse_box(self.box, world.nominal) if self.box else world.box

    def count_models(self, world: World) -> int:
        """The number of models in the set, without making it."""
        if self.fixed_models:
            return self.make_models(world).size
        return self.models ** len(self.make_box(world)) if self.draw == "product" else self.models

    def make_models(self, world: World) -> ModelSet:
        """The set of models."""
        if self.fixed_models:
            return from_list(parse_models(self.fixed_models, world.nominal))
        return from_box(self.make_box(world), self.models, self.draw)

    def make_network(self, world: World) -> QNetwork:
        """The network: of Q-values, or of a policy."""
        sizes = (len(world.observation_scale), *self.hidden, len(world.actions))
        interval = world.actions if isinstance(world.actions, Interval) else None
        return QNetwork(sizes, self.activation, self.input_scale or (1.0,) * sizes[0], interval)

    def arithmetic(self) -> AbstractContextManager[None]:
        """A context in which JAX computes with this run's precision."""
        return jax.enable_x64(self.precision == "float64")

    def warning(self) -> str | None:
        """What a user should know of these settings before training, if anything."""
        settings = self.estimator
        if not isinstance(settings, KalmanConfig) or self.precision == "float64":
            return None
        if settings.covariance in ("diagonal", "low_rank"):
            return None
        drift = np.diagonal(settings.process_noise) if np.ndim(settings.process_noise) == 2 else settings.process_noise
        noise = min(x for x in (settings.observation_noise, settings.observation_noise_end) if x is not None)
        least, most = float(np.min(drift)), float(np.max(settings.prior_covariance))
        copies = self.batch_size if settings.batching == "joint" else 1
        updates = self.episodes * self.horizon // self.train_every
        weights = self.make_network(self.make_world()).num_weights
        if not float32_risk(copies * noise, least, most, updates, weights, self.batch_size, settings.batching):
            return None
        return (
            f"an observation noise of {noise:g} with a process noise of {least:g} and a prior covariance of {most:g} "
            "asks for more certainty than float32 can carry, so the filter will hold itself back; "
            "raise --observation-noise or --process-noise, or use --precision float64"
        )

    def to_json(self) -> str:
        """The text of `config.json`."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n"

    def digest(self) -> str:
        """A short name of these settings, whatever the seed."""
        return hashlib.sha256(dataclasses.replace(self, seed=0).to_json().encode()).hexdigest()[:12]


_PAPER: dict[str, Any] = {"acting": "nominal"}

#: Shared by all algorithms; the noises and rates are each estimator's own.
_TUNED: dict[str, Any] = {
    "models": 20,
    "robust_set": "cvar",
    "robust_level": 0.15,
    "target_period": 2000,
    "epsilon_steps": 30_000,
}

#: What a preset adds for a world.
_WORLDS: dict[tuple[str, str], dict[str, Any]] = {
    ("tuned", "cartpole"): {"input_scale": (0.5, 0.5, 5.0, 0.5)},
    ("tuned", "deep_sea"): {
        "horizon": 10,
        "episodes": 500,
        "discount": 0.99,
        "warm_up": 20,
        "target_period": 200,
        "epsilon_steps": 3000,
        "acting": "nominal",
    },
    ("tuned", "pendulum"): {"discount": 0.95},
    ("tuned", "ferry"): {"horizon": 40, "episodes": 2000, "target_period": 200, "epsilon_steps": 5000},
}

#: What policy gradients don't read: they have neither labels nor a replay, and an iteration is a chunk.
NOT_FOR_POLICIES = frozenset(
    (
        *("robust_set", "robust_level", "confidence", "level_start", "level_steps", "double", "prior"),
        *("batch_size", "replay_size", "warm_up", "train_every", "target_period", "chunk_steps"),
        *("epsilon_start", "epsilon_end", "epsilon_steps", "explore", "explore_scale"),
    )
)

#: What a preset is for policy gradients.
_POLICIES: dict[str, dict[str, Any]] = {
    "paper": {"hidden": (64, 64), "discount": 0.99, "episodes": 36_000, "snapshot_every": 240},
    "tuned": {"discount": 0.99, "episodes": 3000, "snapshot_every": 60},
}

#: What an algorithm's estimator has of its own, whatever the preset.
_OWN: dict[str, dict[str, Any]] = {
    "ktd_rtd": {"observation_noise": 0.1},  # the worst of models that change with the episode is noisier than a reward
    "pg": {"trajectory_level": 1.0},
    "robust_pg": {"trajectory_set": "kl", "trajectory_level": 0.5, "adversary": 0.25},
}

_ESTIMATORS: dict[str, dict[str, EstimatorConfig]] = {
    "paper": {name: kind() for name, kind in ESTIMATOR_KINDS.items()},
    "tuned": {
        "policy": PolicyConfig(inner="ppo", trajectories=60, minibatches=2, level_iterations=10),
        "gradient": GradientConfig(learning_rate=1e-4),
        # The mean depends on the ratios 30 : 1e-6 : 1 alone. This scale makes Pₙ about the square
        # of what labels miss by, so that draws from N(θ, P) are policies too.
        "kalman": KalmanConfig(observation_noise=0.12, process_noise=4e-9, prior_covariance=0.004),
        "backprop": BackpropConfig(learning_rate=1e-4),
        "langevin": LangevinConfig(learning_rate=1e-4),
        "unscented": UnscentedConfig(observation_noise=0.01, prior_covariance=0.1),
    },
}

#: What learning on line means for the settings of a replay.
_ONLINE: dict[str, Any] = {"batch_size": 1, "replay_size": 1, "train_every": 1}


def make_config(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    """The settings of a preset for an algorithm, with changes.

    Args:
      algorithm: a row of `ALGORITHMS`.
      preset: `paper` or `tuned`.
      changes: fields of `Config`, or of its estimator, to replace.
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    row = ALGORITHMS[algorithm]
    config = Config(
        algorithm=algorithm,
        preset=cast(Preset, preset),
        double=row.double,
        estimator=dataclasses.replace(_ESTIMATORS[preset][row.estimator], **_OWN.get(algorithm, {})),
    )
    world = {key: changes["world"] for key in ("world",) if key in changes}
    own_settings = _WORLDS.get((preset, world.get("world", config.world)), {})
    shared = _PAPER if preset == "paper" else _TUNED
    if row.estimator == "policy":
        shared = _POLICIES[preset]
        own_settings = _WORLDS.get(("tuned", world.get("world", config.world)), {})  # scales of the inputs
        own_settings = {k: v for k, v in own_settings.items() if k not in NOT_FOR_POLICIES | {"episodes", "acting"}}
    config = dataclasses.replace(config, **{**shared, **own_settings, **world})
    if row.acting is not None:
        config = dataclasses.replace(config, acting=row.acting)
    if config.online:
        config = dataclasses.replace(config, **_ONLINE, hidden=(20,))  # each weight costs two evaluations a step
    own = {f.name for f in dataclasses.fields(config.estimator)}
    top = {f.name for f in dataclasses.fields(config)}
    for name in changes:
        if name not in own | top:
            raise unknown("setting", name, own | top)
    inner = {name: value for name, value in changes.items() if name in own}
    outer = {name: value for name, value in changes.items() if name in top}
    if inner:
        outer["estimator"] = dataclasses.replace(outer.get("estimator", config.estimator), **inner)
    config = dataclasses.replace(config, **outer)
    check(config)
    return config


def from_json(text: str | bytes, origin: str) -> Config:
    """Reads `config.json`.

    Args:
      text: its contents.
      origin: its path, for messages.
    """
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise DeeprokError(f"{origin} is not a JSON object; the run folder is damaged")
    version = fields.pop("format", None)
    if version != FORMAT:
        raise DeeprokError(f"{origin} has format {shown(version)}; this version of deeprok reads format {FORMAT}")
    algorithm = str(fields.get("algorithm"))
    if algorithm not in ALGORITHMS:
        raise unknown(f"algorithm in {origin}", algorithm, ALGORITHMS)
    kind = ESTIMATOR_KINDS[ALGORITHMS[algorithm].estimator]
    fields["estimator"] = _build(kind, fields.get("estimator"), origin)
    config: Config = _build(Config, fields, origin)
    check(config)
    return config


def _build(kind: Any, fields: Any, origin: str) -> Any:
    """A dataclass from a JSON object that must have its fields and no others; lists become tuples."""
    expected = {f.name for f in dataclasses.fields(kind)}
    found = set(fields) if isinstance(fields, Mapping) else set()
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected))
        raise DeeprokError(f"{origin} lacks or has unknown settings: {wrong}; was it written by another version?")
    return kind(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any, depth: int = 2) -> Any:
    """Lists as tuples, down to those of a matrix's rows."""
    return tuple(_tuples(v, depth - 1) for v in value) if isinstance(value, list) and depth else value


def check(config: Config) -> None:
    """Raises a `DeeprokError` that names the field, its value and what is allowed."""
    fields = {**vars(config), **vars(config.estimator)}
    for name in _CHOICES.keys() & fields:
        if not isinstance(fields[name], str) or fields[name] not in _CHOICES[name]:
            raise unknown(name, str(fields[name]), _CHOICES[name])
    for name, rule in _RULES.items():
        if name in fields:
            _check_rule(name, fields[name], rule, config.precision)
    if not isinstance(config.estimator, ESTIMATOR_KINDS[config.row.estimator]):
        kind = type(config.estimator).__name__
        raise DeeprokError(f"estimator is a {kind}; {config.algorithm} takes a {config.row.estimator} one")
    if config.chunk_steps % config.train_every:
        raise DeeprokError(
            f"chunk_steps is {config.chunk_steps}; it must be a multiple of train_every, which is {config.train_every}"
        )
    SETS[config.robust_set].check_level(config.robust_level, "robust_level")
    world = config.make_world()
    _check_memory(config, world)
    inputs = len(world.observation_scale)
    if config.input_scale and len(config.input_scale) != inputs:
        raise DeeprokError(
            f"input_scale is {shown(config.input_scale)}; {config.world} has {inputs} observations, give as many"
        )
    if config.confidence != "fixed":
        SETS[config.robust_set].check_level(config.level_start, "level_start")
    if isinstance(world.actions, Interval) and config.row.estimator != "policy":
        raise DeeprokError(
            f"world is '{config.world}', where actions are numbers; {config.algorithm} needs actions to choose from, "
            "take pg, epopt or robust_pg"
        )
    settings, weights = config.estimator, config.make_network(world).num_weights
    if isinstance(settings, PolicyConfig):
        _check_unread(config)
        _check_policy(config, settings, world)
    if isinstance(settings, KalmanConfig):
        _check_kalman(settings, weights, config.precision)
    if isinstance(settings, BackpropConfig):
        _check_backprop(settings)
    if isinstance(settings, UnscentedConfig):
        _check_variances("prior_covariance", settings.prior_covariance, weights, config.precision, definite=True)
        _check_rule("process_noise", settings.process_noise, _NOT_NEGATIVE, config.precision)
    if config.online:
        for name, only in {**_ONLINE, "double": False}.items():
            if getattr(config, name) != only:
                raise DeeprokError(
                    f"{name} is {getattr(config, name)}; {config.algorithm} learns from each transition once, when it "
                    f"happens, and {name} must be {only}"
                )
    if not config.has_posterior:
        for name, plain in (("explore", "epsilon"), ("prior", "")):
            if getattr(config, name) != plain:
                raise DeeprokError(f"{name} is {shown(getattr(config, name))}, but {config.algorithm} has no posterior")
        if config.confidence == "spread":
            raise DeeprokError(f"confidence is 'spread', but {config.algorithm} has no posterior; use 'time' instead")


def _check_rule(name: str, value: Any, rule: Rule, precision: Precision) -> None:
    """Raises unless a rule allows a value, also as the run's arithmetic holds it: 1e39 is infinite in float32."""
    if not rule.allows(value):
        raise DeeprokError(f"{name} is {shown(value)}; it must be {rule.words}")
    held = tuple(_held(x, precision) for x in value) if isinstance(value, tuple) else _held(value, precision)
    if not rule.allows(held):
        raise DeeprokError(f"{name} is {shown(value)}, in {precision} {shown(held)}; it must be {rule.words}")


def _held(value: Any, precision: Precision) -> Any:
    """A number as arithmetic of this precision holds it; whole numbers as they are, unless they are too large."""
    if _whole(value):
        return value if abs(value) <= float(np.finfo(precision).max) else math.inf
    with np.errstate(over="ignore"):
        return float(np.dtype(precision).type(value)) if isinstance(value, float) else value


def _check_memory(config: Config, world: World) -> None:
    """Refuses settings whose replay, snapshots, covariance, and models drawn for a chunk, are gigabytes."""
    if isinstance(config.estimator, PolicyConfig):
        _check_batch(config, config.estimator, world)
        return
    models = config.count_models(world)
    observations = len(world.observation_scale)
    rows = min(config.replay_size, config.episodes * config.horizon)
    width = observations + 1 + (models if config.row.robust else 1) * (observations + 2)
    network, settings = config.make_network(world), config.estimator
    size = 8 if config.precision == "float64" else 4
    if (gigabytes := size * _numbers(settings, network) / 10**9) > 4:
        what, instead = "the belief over", "use fewer hidden units"
        if isinstance(settings, KalmanConfig):
            what = f"the covariance {settings.covariance} of"
            instead = "use the covariance neuron, low_rank or diagonal, or fewer hidden units"
        raise DeeprokError(
            f"{what} {network.num_weights} weights would take {gigabytes:.1f} GB, more than the 4 allowed; {instead}"
        )
    kept = config.snapshots * network.num_weights
    numbers = rows * width + config.chunk_steps * models * len(config.make_box(world)) + kept
    if (gigabytes := size * numbers / 10**9) > 4:
        raise DeeprokError(
            f"{models} models, a replay of {rows} transitions and {config.snapshots} snapshots would take "
            f"{gigabytes:.1f} GB a seed, more than the 4 allowed; lower models, replay_size or chunk_steps, or raise "
            "snapshot_every"
        )


def _check_batch(config: Config, settings: PolicyConfig, world: World) -> None:
    """Refuses settings whose trajectories, with what is computed of each step, and snapshots are gigabytes."""
    observations = len(world.observation_scale)
    features = observations * (observations + 5) // 2 + 4
    a_step = 3 * observations + 3 * len(world.actions) + 2 * features + 4 * sum(config.hidden)
    numbers = settings.trajectories * config.horizon * a_step
    numbers += config.snapshots * config.make_network(world).num_weights
    if (gigabytes := (8 if config.precision == "float64" else 4) * numbers / 10**9) > 4:
        raise DeeprokError(
            f"{settings.trajectories} trajectories of {config.horizon} steps and {config.snapshots} snapshots would "
            f"take {gigabytes:.1f} GB a seed, more than the 4 allowed; lower trajectories or horizon, or raise "
            "snapshot_every"
        )


def _numbers(settings: EstimatorConfig, network: QNetwork) -> int:
    """How many numbers the belief is kept in, with some for each weight."""
    n = network.num_weights
    some = 4 * n  # the weights, those of the target, and two moments of a gradient or as much
    if isinstance(settings, UnscentedConfig):
        return some + 3 * n * n  # with the points of its transform
    if isinstance(settings, LangevinConfig):
        return some + n * settings.members
    if not isinstance(settings, KalmanConfig) or settings.covariance == "diagonal":
        return some
    if settings.covariance == "low_rank":
        return some + n * settings.rank
    if settings.covariance == "neuron":
        return some + sum(units * (inputs + 1) ** 2 for inputs, units in itertools.pairwise(network.sizes))
    layers = network.slices if settings.covariance == "layer" else (slice(0, n),)
    return some + sum((layer.stop - layer.start) ** 2 for layer in layers)


def _check_backprop(settings: BackpropConfig) -> None:
    narrow, wide = settings.narrow_variance, settings.prior_variance
    if settings.weight_prior == "mixture" and narrow >= wide:
        raise DeeprokError(f"narrow_variance is {narrow:g}; it must be below prior_variance, which is {wide:g}")


def _check_unread(config: Config) -> None:
    """Refuses changes of settings that a policy gradient would not read."""
    for field in dataclasses.fields(config):
        if field.name in NOT_FOR_POLICIES and (value := getattr(config, field.name)) != field.default:
            raise DeeprokError(
                f"{field.name} is {shown(value)}, but {config.algorithm} learns a policy from whole trajectories and "
                f"has no {field.name}; leave it out"
            )


def _check_policy(config: Config, settings: PolicyConfig, world: World) -> None:
    SETS[settings.trajectory_set].check_level(settings.trajectory_level, "trajectory_level")
    if config.algorithm == "pg" and not settings.neutral:
        alike = SETS[settings.trajectory_set].nominal_level
        allowed = "which needs another set" if alike is None else f"which is level {alike:g}"
        raise DeeprokError(
            f"trajectory_level is {settings.trajectory_level:g} for the set {settings.trajectory_set}; for pg all "
            f"trajectories count alike, {allowed}; take epopt or robust_pg for others"
        )
    if settings.inner == "ppo" and settings.trajectories % settings.minibatches:
        raise DeeprokError(
            f"trajectories is {settings.trajectories}; it must be a multiple of minibatches, "
            f"which is {settings.minibatches}"
        )
    models = config.count_models(world)
    if config.acting == "member" and settings.trajectories % models:
        raise DeeprokError(
            f"trajectories is {settings.trajectories}; with acting member it must be a multiple of the number of "
            f"models, which is {models}"
        )
    if settings.weigh == "models" and config.acting != "member":
        raise DeeprokError(f"weigh is 'models', but acting is '{config.acting}'; use acting 'member'")
    for name, value in (("target", settings.target), ("source_spread", settings.source_spread)):
        if value and config.acting != "sampled":
            raise DeeprokError(f"{name} is {shown(value)}, but acting is '{config.acting}'; use acting 'sampled'")
    if settings.target:
        parse_values(settings.target, world.nominal, "target")


def _check_kalman(settings: KalmanConfig, n: int, precision: Precision) -> None:
    _check_variances("prior_covariance", settings.prior_covariance, n, precision, definite=True)
    _check_variances("process_noise", settings.process_noise, n, precision, definite=False)
    for name in ("prior_covariance", "process_noise"):
        if np.ndim(getattr(settings, name)) == 2 and settings.covariance in ("diagonal", "low_rank"):
            raise DeeprokError(
                f"{name} is a matrix, which the covariance {settings.covariance} can't hold; give a vector, "
                "or use the covariance full, layer or neuron"
            )
    ends = (settings.observation_noise_end, settings.process_noise_end)
    if any(end is not None for end in ends) != (settings.noise_updates > 0):
        raise DeeprokError(
            f"noise_updates is {settings.noise_updates}; it must be positive if, and only if, "
            "observation_noise_end or process_noise_end is given"
        )
    if settings.process_noise_end is not None and not (_number(settings.process_noise) and settings.process_noise):
        raise DeeprokError("process_noise_end is given; then process_noise must be a positive number")


def _check_variances(name: str, given: Variances, n: int, precision: Precision, definite: bool) -> None:
    """Raises unless this is a covariance of n weights, positive (`definite`) or at least not negative."""
    allowed = f"a number, a vector of {n} or a matrix of {n} × {n}"
    numbers = as_numbers(given)
    if numbers is None and isinstance(given, list | tuple):
        raise DeeprokError(f"{name} has rows of unequal length or entries that are no numbers; it must be {allowed}")
    if numbers is None:
        raise DeeprokError(f"{name} is {shown(given)}; it must be {allowed}")
    if numbers.shape not in ((), (n,), (n, n)):
        raise DeeprokError(f"{name} has shape {shown(numbers.shape)}; for this network it must be {allowed}")
    P = numbers.astype(float)
    with np.errstate(over="ignore"):
        held = P.astype(precision)  # by the run's arithmetic, in which 1e39 may be infinite
    if P.ndim < 2:
        right = np.isfinite(held) & ((held > 0) if definite else (held >= 0))
        if not right.all():
            which = f"is {shown(given)}; it" if P.ndim == 0 else f"has a variance of {P[~right][0]:g}; every variance"
            sign = "positive" if definite else "at least 0"
            raise DeeprokError(f"{name} {which} must be finite and {sign} in {precision}")
        return
    if not np.isfinite(held).all():
        raise DeeprokError(f"{name} has an entry that is infinite or not a number in {precision}")
    if not np.allclose(P, P.T, rtol=1e-6, atol=0):
        raise DeeprokError(f"{name} is not symmetric")
    least = np.linalg.eigvalsh(P).min()
    if not (least > 0 if definite else least >= -1e-9 * np.abs(P).max()):
        kind, word = ("definite", "positive") if definite else ("semidefinite", "at least 0")
        raise DeeprokError(f"{name} is not positive {kind}; all its eigenvalues must be {word}")


_CHOICES: dict[str, Any] = {
    "algorithm": ALGORITHMS,
    "preset": PRESETS,
    "world": WORLDS,
    "integrator": INTEGRATORS,
    "draw": DRAWS,
    "acting": ACTINGS,
    "robust_set": SETS,
    "activation": ACTIVATIONS,
    "optimizer": OPTIMIZERS,
    "batching": BATCHINGS,
    "covariance": COVARIANCES,
    "explore": EXPLORES,
    "confidence": CONFIDENCES,
    "precision": PRECISIONS,
    "weight_prior": WEIGHT_PRIORS,
    "inner": INNERS,
    "trajectory_set": SETS,
    "weigh": WEIGHS,
}


class Rule(NamedTuple):
    """What a setting may be, as a test and in words."""

    allows: Callable[[Any], bool]
    words: str


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _at_least(least: int) -> Rule:
    """Counts, which arrays hold as int32."""
    most = 2**31 - 1
    return Rule(lambda x: _whole(x) and least <= x <= most, f"a whole number of at least {least} and at most {most}")


_COUNT = _at_least(1)
_NATURAL = _at_least(0)
_FINITE = Rule(_number, "a finite number")
_POSITIVE = Rule(lambda x: _number(x) and x > 0, "a positive number")
_POSITIVE_OR_NONE = Rule(lambda x: x is None or (_number(x) and x > 0), "a positive number, or None")
_NOT_NEGATIVE = Rule(lambda x: _number(x) and x >= 0, "a number of at least 0")
_BOOLEAN = Rule(lambda x: isinstance(x, bool), "true or false")
_FRACTION = Rule(lambda x: _number(x) and 0 <= x < 1, "at least 0 and below 1")
_PROBABILITY = Rule(lambda x: _number(x) and 0 <= x <= 1, "a probability between 0 and 1")
_TEXT = Rule(lambda x: isinstance(x, str), "text")

_RULES: dict[str, Rule] = {
    "seed": Rule(lambda x: _whole(x) and 0 <= x < 2**32, "a whole number from 0 to 4294967295"),
    "episodes": _COUNT,
    "failing_reward": _FINITE,
    "horizon": _COUNT,
    "nominal": _TEXT,
    "box": _TEXT,
    "models": _COUNT,
    "fixed_models": _TEXT,
    "robust_level": _FINITE,
    "discount": _FRACTION,
    "double": _BOOLEAN,
    "hidden": Rule(
        lambda x: isinstance(x, tuple) and len(x) > 0 and all(map(_COUNT.allows, x)),
        "at least one hidden layer, each of at least 1 unit",
    ),
    "input_scale": Rule(
        lambda x: isinstance(x, tuple) and all(_number(n) and n != 0 for n in x), "finite numbers other than 0"
    ),
    "batch_size": _COUNT,
    "replay_size": _COUNT,
    "warm_up": _NATURAL,
    "train_every": _COUNT,
    "target_period": _COUNT,
    "epsilon_start": _PROBABILITY,
    "epsilon_end": _PROBABILITY,
    "epsilon_steps": _NATURAL,
    "chunk_steps": _COUNT,
    "snapshot_every": _NATURAL,
    "trial_every": _COUNT,
    "trial_models": _COUNT,
    "trial_epsilon": _PROBABILITY,
    "learning_rate": _POSITIVE,
    "observation_noise": _POSITIVE,
    "rank": _COUNT,
    "fading": _FRACTION,
    "variance_cap": _POSITIVE_OR_NONE,
    "noise_updates": _NATURAL,
    "observation_noise_end": _POSITIVE_OR_NONE,
    "process_noise_end": _POSITIVE_OR_NONE,
    "adapt_noise": _PROBABILITY,
    "iterations": _COUNT,
    "level_start": _FINITE,
    "level_steps": _COUNT,
    "explore_scale": _NOT_NEGATIVE,
    "prior": _TEXT,
    "initial_deviation": _POSITIVE,
    "prior_variance": _POSITIVE,
    "narrow_variance": _POSITIVE,
    "wide_share": Rule(lambda x: _number(x) and 0 < x < 1, "above 0 and below 1"),
    "samples": _COUNT,
    "decay": _NOT_NEGATIVE,
    "decay_updates": _POSITIVE,
    "smoothing": _FRACTION,
    "damping": _POSITIVE,
    "gamma_term": _BOOLEAN,
    "frozen": _BOOLEAN,
    "burn_in": _NATURAL,
    "thinning": _COUNT,
    "members": _COUNT,
    "adaptive_noise": _NOT_NEGATIVE,
    "kappa": _NOT_NEGATIVE,
    "trajectories": _at_least(2),
    "clip": Rule(lambda x: _number(x) and 0 < x < 1, "above 0 and below 1"),
    "epochs": _COUNT,
    "minibatches": _COUNT,
    "entropy": _NOT_NEGATIVE,
    "kl_bound": _POSITIVE,
    "gae_lambda": _PROBABILITY,
    "trajectory_level": _FINITE,
    "level_iterations": _NATURAL,
    "adversary": _PROBABILITY,
    "source_spread": _NOT_NEGATIVE,
    "target": _TEXT,
    "adapt_every": _COUNT,
    "target_trajectories": _COUNT,
    "particles": _at_least(10),
    "target_noise": _POSITIVE,
}
