"""Settings: one record that is the command line, the JSON of a run, and their documentation.

An algorithm is a row of `ALGORITHMS`. A preset gives every setting a value for each row; any of
them can then be replaced.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import tyro

from deeprok.agents.network import ACTIVATIONS, QNetwork
from deeprok.agents.policy import settings as policy_settings
from deeprok.agents.policy.settings import PolicyConfig
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.fields import (
    Count,
    Finite,
    Fraction,
    Natural,
    NotNegative,
    OneOf,
    Precision,
    Probability,
    Rule,
    Seed,
    check_fields,
)
from deeprok.core.files import as_tuples, parse_json
from deeprok.environments import WORLDS, Interval, World, with_model
from deeprok.environments.cartpole import Integrator
from deeprok.estimators import ESTIMATORS, Context, Part
from deeprok.uncertainty import SETS
from deeprok.uncertainty.models import (
    Box,
    Draw,
    ModelSet,
    from_box,
    from_list,
    parse_box,
    parse_models,
    parse_values,
)

#: Version of the run folder's files; raised when an older folder can't be read any more.
FORMAT = 3

Acting = Literal["nominal", "sampled", "member"]
Explore = Literal["epsilon", "thompson", "ucb"]
Confidence = Literal["fixed", "time", "spread"]
Preset = Literal["paper", "tuned"]
PRESETS: tuple[str, ...] = get_args(Preset)
PRECISIONS: tuple[str, ...] = get_args(Precision)


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


#: How the weights are learned, by the name that a row of the table has for it.
PARTS: dict[str, Part] = {**ESTIMATORS, "policy": policy_settings.PART}

if TYPE_CHECKING:
    EstimatorConfig = Any
else:  # the settings of any of them, as tyro needs to know
    EstimatorConfig = functools.reduce(operator.or_, (part.settings for part in PARTS.values()))


Hidden = Annotated[
    tuple[Count, ...], Rule(lambda layers: len(layers) > 0, "at least one hidden layer, each of at least 1 unit")
]
InputScale = Annotated[tuple[float, ...], Rule(lambda scale: 0 not in scale, "finite numbers other than 0")]


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; with the package's version it can be repeated from this alone."""

    algorithm: Annotated[tyro.conf.Suppress[str], OneOf(ALGORITHMS)] = "deep_rok"
    """A row of the table that `deeprok algorithms` prints."""
    preset: Preset = "tuned"
    """Where the settings not given come from: `paper` or `tuned`."""
    seed: Seed = 0
    """Seed of every random number of the run."""
    episodes: Count = 700
    """Episodes to train for."""

    world: Annotated[str, OneOf(WORLDS)] = "cartpole"
    """A world that `deeprok worlds` prints."""
    integrator: Integrator = "euler"
    """How Cart-Pole is integrated, as in Gymnasium."""
    failing_reward: Finite = 0.0
    """Reward of the failing step: 0 in the paper, 1 in Gymnasium."""
    horizon: Count = 200
    """Steps after which an episode is cut off."""
    nominal: str = ""
    """Nominal parameters that differ from the world's own, as name=value,…"""

    box: str = ""
    """Ranges of the uncertain parameters, as name=low:high,…; if empty the world's own."""
    models: Count = 5
    """Values drawn of each uncertain parameter at an episode's start."""
    draw: Draw = "pairs"
    """Join the drawn values to pairs (M = models), or take their full product."""
    fixed_models: str = ""
    """Models to use in every episode instead of drawing: a grid name=low:high:count,… or a list of them joined by ;"""
    acting: Acting = "sampled"
    """The model acted on: the nominal one, a fresh draw from the box each episode, or one of the set."""
    robust_set: Annotated[str, OneOf(SETS)] = "minimum"
    """Set of distributions over the models' outcomes: minimum (the paper's hard minimum), cvar, contamination,
    l1, tv, linf, l2, chi2, kl, burg, wasserstein or entropic."""
    robust_level: Finite = 0.4
    """Size of that set: its radius; for cvar the worst fraction that is averaged."""
    confidence: Confidence = "fixed"
    """The level stays, or goes from level_start to robust_level: with time, or as the posterior's spread falls."""
    level_start: Finite = 1.0
    """The level at first, if it changes; for cvar 1 is the mean over the models, for a radius 0 is."""
    level_steps: Count = 30_000
    """Steps over which it changes with time."""

    discount: Fraction = 0.9
    """Discount γ."""
    double: bool = False
    """Let the online network choose the successor's action (Double-Q) instead of the plain max."""
    hidden: Hidden = (20, 20)
    """Units of each hidden layer."""
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "tanh"
    """Activation of the hidden layers: tanh, relu, sigmoid, elu or silu."""
    input_scale: InputScale = ()
    """What each observation is multiplied by before the network; if empty 1."""
    estimator: EstimatorConfig = PARTS["gradient"].presets["paper"]
    """How the weights are learned."""
    prior: str = ""
    """Run folder whose last belief is where this run begins: mean and covariance."""
    precision: Precision = "float32"
    """Arithmetic of the whole run."""

    batch_size: Count = 10
    """Transitions in a mini-batch."""
    replay_size: Count = 150_000
    """Transitions kept; the oldest go first."""
    warm_up: Natural = 100
    """Steps before learning starts."""
    train_every: Count = 1
    """Steps between updates."""
    target_period: Count = 1000
    """Steps between copies of the weights to the target network."""
    epsilon_start: Probability = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: Probability = 0.1
    """Probability of a random action after epsilon_steps steps."""
    epsilon_steps: Natural = 10_000
    """Steps over which that probability falls."""
    explore: Explore = "epsilon"
    """ε-greedy, or directed by the posterior without ε: act on a draw from it, one each episode, or on Q + scale·σ."""
    explore_scale: NotNegative = 1.0
    """What the posterior's standard deviation is multiplied by when it directs exploration."""

    chunk_steps: Count = 2000
    """Steps between looks at the run: metrics, checks, checkpoints."""
    snapshot_every: Natural = 20
    """Episodes between snapshots of the weights, kept in the checkpoint for learning curves; 0 keeps none."""
    trial_every: Count = 2
    """Chunks between trials of the policy on held-out models, which decide the best weights."""
    trial_models: Count = 64
    """Held-out models, drawn from the box, that a trial plays one episode on each."""
    trial_epsilon: Probability = 0.1
    """Probability of a random action in a trial."""

    @property
    def row(self) -> Algorithm:
        """The algorithm's row of the table."""
        return ALGORITHMS[self.algorithm]

    @property
    def part(self) -> Part:
        """How the weights are learned."""
        return PARTS[self.row.estimator]

    @property
    def in_step(self) -> bool:
        """Whether several seeds share a compiled program."""
        return self.part.vmap_seeds(self.estimator)

    @property
    def has_posterior(self) -> bool:
        """Whether the belief is more than a point."""
        return self.part.posterior

    @property
    def online(self) -> bool:
        """Whether each transition is learned from once, when it happens."""
        return self.part.online

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

    def context(self, network: QNetwork) -> Context:
        """What the estimator may know of this run."""
        capacity = min(self.replay_size, self.episodes * self.horizon)
        return Context(
            network=network,
            batch_size=self.batch_size,
            updates=self.episodes * self.horizon // self.train_every,
            data_size=lambda updates: jnp.minimum(self.warm_up + self.train_every * (updates + 1.0), capacity),
        )

    def warning(self) -> str | None:
        """What a user should know of these settings before training, if anything."""
        if self.precision == "float64":
            return None
        return self.part.warning(self.estimator, self.context(self.make_network(self.make_world())))

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
        estimator=dataclasses.replace(PARTS[row.estimator].presets[preset], **_OWN.get(algorithm, {})),
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
        estimator: Any = outer.get("estimator", config.estimator)
        outer["estimator"] = dataclasses.replace(estimator, **inner)
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
    kind = PARTS[ALGORITHMS[algorithm].estimator].settings
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
    return kind(**{name: as_tuples(value) for name, value in fields.items()})


def check(config: Config) -> None:
    """Raises a `DeeprokError` that names the field, its value and what is allowed."""
    if config.algorithm in ALGORITHMS and not isinstance(config.estimator, config.part.settings):
        kind = type(config.estimator).__name__
        raise DeeprokError(f"estimator is a {kind}; {config.algorithm} takes a {config.row.estimator} one")
    precision = config.precision if config.precision in PRECISIONS else "float32"
    check_fields(config, precision)
    check_fields(config.estimator, precision)
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
    config.part.check(config.estimator, config.make_network(world), config.precision)
    if config.row.estimator == "policy":
        _check_unread(config)
        _check_policy(config, config.estimator, world)
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


def _check_memory(config: Config, world: World) -> None:
    """Refuses settings whose replay, snapshots, covariance, and models drawn for a chunk, are gigabytes."""
    if config.row.estimator == "policy":
        _check_batch(config, config.estimator, world)
        return
    models = config.count_models(world)
    observations = len(world.observation_scale)
    rows = min(config.replay_size, config.episodes * config.horizon)
    width = observations + 1 + (models if config.row.robust else 1) * (observations + 2)
    network = config.make_network(world)
    size = 8 if config.precision == "float64" else 4
    belief = config.part.memory(config.estimator, network)
    if (gigabytes := size * belief.numbers / 10**9) > 4:
        raise DeeprokError(
            f"{belief.what} {network.num_weights} weights would take {gigabytes:.1f} GB, more than the 4 allowed; "
            f"{belief.instead}"
        )
    kept = config.snapshots * network.num_weights
    numbers = rows * width + config.chunk_steps * models * len(config.make_box(world)) + kept
    if (gigabytes := size * numbers / 10**9) > 4:
        raise DeeprokError(
            f"{models} models, a replay of {rows} transitions and {config.snapshots} snapshots would take "
            f"{gigabytes:.1f} GB a seed, more than the 4 allowed; lower models, replay_size or chunk_steps, or raise "
            "snapshot_every"
        )


def _check_unread(config: Config) -> None:
    """Refuses changes of settings that a policy gradient would not read."""
    for field in dataclasses.fields(config):
        if field.name in NOT_FOR_POLICIES and (value := getattr(config, field.name)) != field.default:
            raise DeeprokError(
                f"{field.name} is {shown(value)}, but {config.algorithm} learns a policy from whole trajectories and "
                f"has no {field.name}; leave it out"
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
