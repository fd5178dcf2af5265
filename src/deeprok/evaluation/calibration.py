"""Are the posterior's intervals for Q as wide as they should be?

An interval that claims 95 % should hold the truth in 95 % of all cases. The truth here is what the
policy really earns, by simulation, or an exact Q* where one is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from deeprok.core.errors import DeeprokError
from deeprok.environments import World, with_model
from deeprok.environments.base import Model
from deeprok.evaluation.grid import Policy, ensemble_policy
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import Config
from deeprok.training.scan import Program, make_program
from deeprok.uncertainty import sample_box

#: Shares that the reported intervals claim.
LEVELS = (0.5, 0.8, 0.95)


class Intervals(NamedTuple):
    """What a belief says of Q(s, ·) in C states, beside the truth."""

    mean: np.ndarray  # [C, A]
    deviation: np.ndarray  # [C, A]
    truth: np.ndarray  # [C, A]

    @property
    def errors(self) -> np.ndarray:
        """[C·A] how far the truth is away, in standard deviations."""
        return ((self.truth - self.mean) / self.deviation).reshape(-1)


@dataclass(frozen=True)
class Calibration:
    """Coverage of a belief's intervals, over several seeds."""

    levels: list[float]
    coverage: list[float]
    """Share of the truths within the interval of each level."""
    calibrated: list[float] | None
    """The same with each seed's deviations multiplied by the temperature of the other seeds; None for one seed."""
    temperature: list[float]
    """What each seed's deviations must be multiplied by, by its own errors."""
    deviation: float
    """Mean standard deviation that the belief claims."""
    error: float
    """Root mean square error of its means."""
    points: int
    """States times actions, of all seeds."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `calibrate --json` prints."""
        return dataclasses.asdict(self)


def coverage(errors: np.ndarray, levels: Sequence[float] = LEVELS) -> np.ndarray:
    """The share of errors, in standard deviations, that lie within the central interval of each level."""
    bounds = ndtri(0.5 + 0.5 * np.asarray(levels))
    return np.mean(np.abs(errors)[:, None] <= bounds, axis=0)


def fit_temperature(errors: np.ndarray, levels: Sequence[float] = LEVELS) -> float:
    """What deviations must be multiplied by so that intervals of these levels hold what they claim.

    Each level asks for a factor of its own; the geometric mean is taken.
    """
    bounds = ndtri(0.5 + 0.5 * np.asarray(levels))
    asked = np.quantile(np.abs(errors), levels) / bounds
    return float(np.exp(np.mean(np.log(np.maximum(asked, np.finfo(float).tiny)))))


def summarise(found: Mapping[int, Intervals]) -> Calibration:
    """What several seeds' intervals come to.

    Args:
      found: seed -> its intervals.
    """
    for seed, intervals in found.items():
        if not np.all(intervals.deviation > 0):
            raise DeeprokError(
                f"the belief of seed {seed} is still a point, whose deviations are 0; train it for longer "
                "(Langevin dynamics keep nothing before burn_in + thinning updates)"
            )
    errors = {seed: intervals.errors for seed, intervals in found.items()}
    calibrated = None
    if len(errors) > 1:
        scaled = []
        for seed, own in errors.items():
            others = np.concatenate([other for name, other in errors.items() if name != seed])
            scaled.append(own / fit_temperature(others))
        calibrated = coverage(np.concatenate(scaled)).tolist()
    every = np.concatenate(list(errors.values()))
    return Calibration(
        levels=list(LEVELS),
        coverage=coverage(every).tolist(),
        calibrated=calibrated,
        temperature=[fit_temperature(own) for own in errors.values()],
        deviation=float(np.mean([intervals.deviation.mean() for intervals in found.values()])),
        error=float(np.sqrt(np.mean([(intervals.mean - intervals.truth) ** 2 for intervals in found.values()]))),
        points=len(every),
    )


def earned_values(
    world: World, act: Policy, models: Model, discount: float, states: int, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """States that a greedy policy visits, and what each action in them earns on average over models.

    Args:
      world: the world.
      act: the policy.
      models: name -> [M]; one of them is met in each visited state, all of them in its values.
      discount: γ.
      states: C, how many states.
      key: decides where episodes start, which of their states are taken, and the world's noise.

    Returns:
      Observations [C, D] and values [C, A]. The return is followed until γ has made it negligible,
      whatever the horizon: time is not part of the state.
    """
    count = len(next(iter(models.values())))
    actions = len(world.actions)
    start_key, when_key, value_key = jax.random.split(key, 3)
    lengths = jax.random.randint(when_key, (states,), 0, world.horizon)

    def visit(key: jax.Array, length: jax.Array, i: jax.Array) -> tuple[Any, jax.Array]:
        params = with_model(world.nominal, {name: values[i % count] for name, values in models.items()})
        reset_key, step_key = jax.random.split(key)

        def step(carry: Any, t: jax.Array) -> Any:
            state, obs, alive = carry
            outcome = world.step(jax.random.fold_in(step_key, t), state, act(obs), params)
            going = alive & (t < length) & ~outcome.terminated
            moved = jax.tree.map(lambda a, b: jnp.where(going, a, b), (outcome.state, outcome.obs), (state, obs))
            return (*moved, going), None

        first = world.reset(reset_key, params)
        (state, obs, _), _ = jax.lax.scan(step, (*first, jnp.array(True)), jnp.arange(world.horizon))
        return state, obs

    visited, obs = jax.vmap(visit)(jax.random.split(start_key, states), lengths, jnp.arange(states))
    steps = int(np.ceil(np.log(1e-4) / np.log(discount)))

    def value(state: Any, action: jax.Array, model: Model, key: jax.Array) -> jax.Array:
        params = with_model(world.nominal, model)

        def step(carry: Any, t: jax.Array) -> Any:
            state, action, worth, earned = carry
            outcome = world.step(jax.random.fold_in(key, t), state, action, params)
            earned = earned + worth * outcome.reward
            worth = discount * worth * (1.0 - outcome.terminated)
            return (outcome.state, act(outcome.obs), worth, earned), None

        one = jnp.ones((), float)
        start = (state, action, one, jnp.zeros((), float))
        return jax.lax.scan(step, start, jnp.arange(steps))[0][-1]

    over_models = jax.vmap(value, (None, None, 0, 0))
    over_actions = jax.vmap(over_models, (None, 0, None, None))
    keys = jax.random.split(value_key, count)
    values = jax.vmap(over_actions, (0, None, None, None))(visited, jnp.arange(actions), models, keys)
    return obs, jnp.mean(values, axis=-1)


def calibrate(
    folder: str | Path, states: int = 200, models: int = 32, keep: Keep = "last", seed: int = 0
) -> Calibration:
    """Compares the intervals of trained agents for Q with what their greedy policies earn.

    The truth is the discounted return after each action, then greedily on, averaged over models of
    the run's box (the nominal one alone if the run acted on it alone).

    Args:
      folder: a run folder or a folder of seeds.
      states: states visited by the greedy policy, for each seed.
      models: models drawn from the box.
      keep: the `best` or the `last` weights.
      seed: seed of the simulation's random numbers.
    """
    for name, value in (("states", states), ("models", models)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    folders = runs.find(Path(folder))
    configs = [runs.read_config(path) for path in folders]
    if len({config.digest() for config in configs}) > 1:
        raise DeeprokError(f"the runs in {folder} differ in more than their seed; calibrate them one by one")
    config = configs[0]
    if config.row.robust:
        raise DeeprokError(
            f"{config.algorithm} learns the worst case, which simulation on one model does not show; "
            "calibrate an agent with a nominal label"
        )
    with config.arithmetic():
        program = make_program(config)
        if program.estimator.posterior is None:
            raise DeeprokError(f"{config.algorithm} has no posterior, so it gives no intervals")
        intervals = _make_intervals(config, program, states, models, seed)
        return summarise(
            {c.seed: intervals(runs.load_belief(path, program, keep)) for path, c in zip(folders, configs, strict=True)}
        )


def _make_intervals(config: Config, program: Program, states: int, models: int, seed: int) -> Any:
    """A function `belief -> Intervals`, compiled once for all seeds."""
    world = program.world
    models_key, play_key = jax.random.split(jax.random.key(seed))
    if config.acting == "nominal":
        drawn = {name: jnp.full(1, getattr(world.nominal, name), float) for name in config.make_box(world)}
    else:
        drawn = sample_box(models_key, config.make_box(world), (models,))

    @jax.jit
    def compute(belief: Any) -> tuple[jax.Array, ...]:
        act = ensemble_policy(program.network, program.estimator.mean(belief)[None], "mean")
        obs, truth = earned_values(world, act, drawn, config.discount, states, play_key)
        assert program.values
        return (*program.values(belief, obs), truth)

    return lambda belief: Intervals(*(np.asarray(part, float) for part in compute(belief)))
