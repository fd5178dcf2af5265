"""A part of each kind as a user writes it, to be named `own_parts:OBJECT`: short, whole and ready to be copied.

| kind | object | what it is |
|---|---|---|
| environment | `DRIFT` | a boat in a current, with a setting of its own; `CALM` is a plain `Environment` |
| ambiguity set | `HAZARD` | a proportional-hazards distortion of the probabilities |
| target | `MELLOWMAX` | a soft maximum instead of the plain one |
| estimator | `SWAG` | gradient steps whose moving averages are a posterior |
| network | `POLYNOMIAL` | values that are linear in powers of the observations |
| learner | `EVOLUTION` | evolution strategies, with `RANKS` as its target |
| algorithm | `SOFT_RTD`, `RTD_SWAG`, `SOFT_SWAG`, `RANKED_EVOLUTION` | which parts, and settings that go with them |
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.algorithms import Algorithm
from deeprok.agents.clock import Clock
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysTrajectories, Task, View
from deeprok.agents.network import Network, NetworkPart
from deeprok.agents.targets.base import (
    AmbiguitySettings,
    Level,
    Target,
    TargetPart,
    action_value,
    check_ambiguity,
    level_schedule,
)
from deeprok.agents.targets.bootstrapped import robust_target
from deeprok.core.fields import Count, InnerFraction, Positive, at_least
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.environments import Choices, Environment, EnvironmentPart, EpisodeSettings, Model, Outcome, quantity
from deeprok.environments.base import Transition
from deeprok.estimators import Context, Estimator, EstimatorPart, Fit, Observation, Posterior
from deeprok.estimators.base import lower_rate, memory_of_vectors
from deeprok.uncertainty import SETS, AmbiguitySet, WorstCase, sample_box
from deeprok.uncertainty.sets.base import radius_check

# --- an environment ------------------------------------------------------------------------------------


@pytree_dataclass
class Water:
    """The parameters: nominal value, unit and meaning of each."""

    current: Any = quantity(0.05, "m/step", "how far the current carries the boat", positive=False)
    power: Any = quantity(0.4, "m/step", "how far its engine does")


def drift(width: float = 1.0, horizon: int = 20) -> Environment:
    """A boat earns 1 for each step in its lane, whose middle is 0; the episode ends where it leaves the lane.

    Args:
      width: from the middle of the lane to its edge, in metres.
      horizon: steps after which an episode is truncated.
    """

    def reset(key: jax.Array, params: Water) -> tuple[jax.Array, jax.Array]:
        place = jax.random.uniform(key, (1,), minval=-0.1, maxval=0.1)
        return place, place

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Water) -> Outcome:
        place = state + params.current + jnp.where(action == 1, params.power, -params.power)
        left = jnp.abs(place[0]) > width
        return Outcome(state=place, obs=place, reward=jnp.where(left, 0.0, 1.0), terminated=left)

    return Environment(
        name="drift",
        reset=reset,
        step=step,
        nominal=Water(),
        box={"current": (-0.3, 0.3)},
        observation_scale=(width,),
        actions=Choices(("left", "right")),
        horizon=horizon,
        success_return=0.9 * horizon,
    )


@dataclass(frozen=True)
class DriftSettings(EpisodeSettings):
    """Each field is an option of the command line; the docstring below it is its help."""

    horizon: Count = 20
    """Steps after which an episode is truncated."""
    width: Positive = 1.0
    """From the middle of the lane to its edge, in metres."""


DRIFT = EnvironmentPart(
    settings=DriftSettings,
    make=lambda settings: drift(settings.width, settings.horizon),
    presets={("tuned", "q_learning"): {"discount": 0.95, "warm_up": 10}},
)

#: Without settings of its own an environment needs no part: only its horizon can be set.
CALM = drift(width=2.0)._replace(name="calm")

#: Nothing of it is uncertain.
UNBOXED = CALM._replace(box={})


def calm(horizon: int = 20) -> Environment:
    """The same for any horizon, on which depends what a success is."""
    return drift(width=2.0, horizon=horizon)


# --- an ambiguity set ----------------------------------------------------------------------------------


def hazard(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """The expectation under the distorted distribution F(v)^(1 / (1 + level)), which makes bad outcomes likelier.

    S. Wang, "Insurance pricing and increased limits ratemaking by proportional hazards transforms", 1995.

    Args:
      p: [M] the distribution that the set is built on.
      values: [M] the value of each outcome.
      level: 0 leaves p as it is.
    """
    order = jnp.argsort(values)  # the worst first
    distorted = jnp.minimum(jnp.cumsum(p[order]), 1.0) ** (1.0 / (1.0 + level))
    q = jnp.zeros_like(p).at[order].set(jnp.diff(distorted, prepend=0.0))
    return WorstCase(jnp.sum(q * values), q)


HAZARD = AmbiguitySet(hazard, radius_check("hazard"), nominal_level=0.0, reach="support")


# --- a target ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MellowmaxSettings(AmbiguitySettings):
    """Those of the ambiguity set, and its own."""

    omega: Positive = 5.0
    """Sharpness of the soft maximum."""
    target_period: Count = 100
    """Environment steps between copies of the weights to the target network."""


def mellowmax(q: jax.Array, omega: float) -> jax.Array:
    """log mean exp(ω q) / ω over the actions, the last axis.

    K. Asadi and M. L. Littman, "An alternative softmax operator for reinforcement learning", ICML, 2017.
    """
    return (jax.nn.logsumexp(omega * q, axis=-1) - jnp.log(q.shape[-1])) / omega


def mellowmax_target(settings: MellowmaxSettings, network: Network, discount: float) -> Target:
    """Q(s, a) is regressed on the worst case of r + γ mellowmax Q(s', ·)."""
    worst_case = SETS[settings.robust_set].worst_case

    def observe(
        theta: jax.Array, target_theta: jax.Array, batch: Transition, level: Level
    ) -> tuple[Observation, Any, jax.Array]:
        next_value = mellowmax(network.apply(target_theta, batch.next_obs), settings.omega)  # [B, M]
        targets = jax.vmap(lambda r, end, v: robust_target(r, end, v, discount, worst_case, level))(
            batch.reward, batch.terminated, next_value
        )
        return action_value(network), (batch.obs, batch.action), targets

    return Target(observe, level_schedule(settings), settings.target_period, settings.confidence == "spread")


MELLOWMAX = TargetPart(
    settings=MellowmaxSettings,
    make=mellowmax_target,
    robust=True,
    presets={"tuned": MellowmaxSettings(omega=8.0, robust_set="own_parts:HAZARD", robust_level=0.5)},
    check=check_ambiguity,
)


# --- an estimator --------------------------------------------------------------------------------------


@pytree_dataclass
class Averages:
    """What the estimator carries from one update to the next."""

    theta: jax.Array  # [n] where the gradient steps are
    mean: jax.Array  # [n] moving average of θ
    variance: jax.Array  # [n] moving average of (θ − mean)²
    updates: jax.Array  # [] int32


def swag(learning_rate: float, averaging: float) -> Estimator:
    """Gradient steps on ½ mean (y − h(θ, x))²; the moving averages of θ are a Gaussian posterior.

    W. J. Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning", NeurIPS, 2019.

    Args:
      learning_rate: α.
      averaging: rate of the moving averages.
    """

    def init(theta: jax.Array) -> Averages:
        return Averages(theta=theta, mean=jnp.copy(theta), variance=jnp.full_like(theta, 1e-2), updates=jnp.int32(0))

    def update(
        belief: Averages,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[Averages, Fit]:
        def loss(theta: jax.Array) -> jax.Array:
            return 0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(theta, xs)) ** 2)

        value, slope = jax.value_and_grad(loss)(belief.theta)
        theta = belief.theta - learning_rate * slope
        moved = theta - belief.mean
        after = Averages(
            theta=theta,
            mean=belief.mean + averaging * moved,
            variance=(1.0 - averaging) * (belief.variance + averaging * moved**2),
            updates=belief.updates + 1,
        )
        return select(jnp.asarray(active), after, belief), Fit(value, None)

    def sample(belief: Averages, key: jax.Array) -> jax.Array:
        return belief.mean + jnp.sqrt(belief.variance) * jax.random.normal(key, belief.mean.shape, belief.mean.dtype)

    posterior = Posterior(
        sample=sample,
        predictive_variance=lambda belief, H: H**2 @ belief.variance,
        variances=lambda belief: belief.variance,
        covariance=lambda belief: jnp.diag(belief.variance),
        definite=lambda belief: jnp.all(jnp.isfinite(belief.variance) & (belief.variance > 0)),
    )
    return Estimator(init, update, lambda belief: belief.mean, posterior)


@dataclass(frozen=True)
class SwagSettings:
    """The bounds of a setting are its type."""

    learning_rate: Positive = 1e-3
    """Step size α."""
    averaging: InnerFraction = 0.05
    """Rate of the moving averages of the weights."""


def make_swag(settings: SwagSettings, context: Context) -> Estimator:
    """The estimator of these settings; what it may know of the run, such as the number of updates, is the context."""
    return swag(settings.learning_rate, settings.averaging)


SWAG = EstimatorPart(
    settings=SwagSettings,
    make=make_swag,
    presets={"tuned": SwagSettings(learning_rate=0.05)},
    posterior=True,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: 1),
    remedy=lower_rate,
)


# --- a network -----------------------------------------------------------------------------------------


class Polynomial(NamedTuple):
    """Q(s, ·; θ) = Wᵀ (1, x, x², …), with powers of each observation up to a degree."""

    degree: int
    outputs: int
    input_scale: tuple[float, ...]

    @property
    def num_weights(self) -> int:
        """n, the length of θ."""
        return (1 + self.degree * len(self.input_scale)) * self.outputs

    @property
    def slices(self) -> tuple[slice, ...]:
        """One layer."""
        return (slice(0, self.num_weights),)

    @property
    def neurons(self) -> tuple[slice, ...]:
        """The weights of each output."""
        return tuple(slice(i, self.num_weights, self.outputs) for i in range(self.outputs))

    def init(self, key: jax.Array) -> jax.Array:
        """Small weights."""
        return 0.1 * jax.random.normal(key, (self.num_weights,))

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """The outputs [..., A] for observations [..., D]."""
        x = obs * jnp.asarray(self.input_scale, obs.dtype)
        powers = [jnp.ones_like(x[..., :1]), *(x**k for k in range(1, self.degree + 1))]
        return jnp.concatenate(powers, axis=-1) @ theta.reshape(-1, self.outputs)


@dataclass(frozen=True)
class PolynomialSettings:
    """What can be set of the network."""

    degree: Count = 3
    """Highest power of an observation."""


POLYNOMIAL = NetworkPart(
    settings=PolynomialSettings,
    make=lambda settings, input_scale, outputs: Polynomial(settings.degree, outputs, input_scale),
)


# --- an algorithm --------------------------------------------------------------------------------------

SOFT_RTD = Algorithm("RTD-DQN with a soft maximum", target="own_parts:MELLOWMAX", estimator="gradient")
RTD_SWAG = Algorithm("RTD-DQN by averaged gradient steps", target="worst_case", estimator="own_parts:SWAG")
SOFT_SWAG = Algorithm(
    "both of them",
    target="own_parts:MELLOWMAX",
    estimator="own_parts:SWAG",
    settings={"batch_size": 4, "averaging": 0.1},  # whatever the preset
)


# --- a learner -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvolutionSettings:
    """What can be set of evolution strategies."""

    population: Annotated[int, at_least(2)] = 16
    """Trajectories in an iteration, each of its own weights."""
    mutation: Positive = 0.5
    """Standard deviation of the weights around their mean."""
    learning_rate: Positive = 0.5
    """Step size of the mean, in mutations."""


@pytree_dataclass
class Mean:
    """The weights that are learned."""

    theta: jax.Array  # [n]


@pytree_dataclass
class EvolutionState:
    """The mean, and how each member of the population differs from it."""

    belief: Mean
    noise: jax.Array  # [N, n] standard normal


def evolution(task: Task) -> Learner:
    """Evolution strategies: the mean weights move towards those of the members that earned more.

    T. Salimans et al., "Evolution strategies as a scalable alternative to reinforcement learning", 2017.
    """
    settings: EvolutionSettings = task.settings
    network, count = task.network, settings.population
    fitness = task.target.make(task.target_settings)

    def init(key: jax.Array, belief: Any = None) -> EvolutionState:
        start = Mean(theta=network.init(key)) if belief is None else belief
        return EvolutionState(belief=start, noise=jnp.zeros((count, network.num_weights)))

    def models(state: EvolutionState, keys: jax.Array, t: jax.Array) -> tuple[EvolutionState, Model]:
        """New members, each on a model of its own from the box."""
        noise = jax.random.normal(keys[0], state.noise.shape)
        return dataclasses.replace(state, noise=noise), sample_box(keys[1], task.box, (count,))

    def act(state: EvolutionState, draw: None, obs: jax.Array, clock: Clock) -> tuple[jax.Array, None]:
        members = state.belief.theta + settings.mutation * state.noise
        return task.env.actions.choose(jax.vmap(network.apply)(members, obs)), None

    def learn(
        state: EvolutionState, draw: Any, clock: Clock, active: jax.Array, played: Played | None
    ) -> tuple[EvolutionState, Fit]:
        assert played
        returns = jnp.sum(played.steps.reward, axis=0)
        step = fitness(returns) @ state.noise / count
        theta = state.belief.theta + settings.learning_rate * settings.mutation * step
        return dataclasses.replace(state, belief=Mean(theta=theta)), Fit(-jnp.mean(returns), None)

    return Learner(
        plays=PlaysTrajectories(models, count),
        init=init,
        draw=lambda key, shape: None,
        act=act,
        learn=learn,
        view=View(task.env, network, mean=lambda belief: belief.theta, posterior=None, values=None),
        seeds="loop",
        batch=count,
        remedy=f"lower --learning-rate (now {settings.learning_rate:g})",
    )


EVOLUTION = LearnerPart(settings=EvolutionSettings, make=evolution)


@dataclass(frozen=True)
class RanksSettings:
    """It has none."""


def centred_ranks(returns: jax.Array) -> jax.Array:
    """From −1 for the least return to 1 for the largest, so that no single one decides."""
    ranks = jnp.argsort(jnp.argsort(returns))
    return 2.0 * ranks / (returns.size - 1) - 1.0


RANKS = TargetPart(
    settings=RanksSettings, make=lambda settings: centred_ranks, robust=False, learner="own_parts:EVOLUTION"
)

RANKED_EVOLUTION = Algorithm("evolution strategies with ranks", target="own_parts:RANKS", learner="own_parts:EVOLUTION")
