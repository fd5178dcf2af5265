"""Are the posterior's intervals for Q as wide as they should be?

An interval that claims 95 % should hold the truth in 95 % of all cases. The truth here is what the
policy really earns, by simulation, or an exact Q* where one is known.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from deeprok.agents.learner import View
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, with_model
from deeprok.environments.base import Model
from deeprok.environments.rollout import rollout
from deeprok.evaluation.policies import Policy, ensemble_policy
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import Config
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
    env: Environment, act: Policy, models: Model, discount: float, states: int, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """States that a greedy policy visits, and what each action in them earns on average over models.

    Args:
      env: the environment.
      act: the policy.
      models: name -> [M]; one of them is met in each visited state, all of them in its values.
      discount: γ.
      states: C, how many states.
      key: decides where episodes start, which of their states are taken, and the environment's noise.

    Returns:
      Observations [C, D] and values [C, A]. The return is followed until γ has made it negligible,
      whatever the horizon: time is not part of the state.
    """
    count = len(next(iter(models.values())))
    actions = len(env.actions)
    start_key, when_key, value_key = jax.random.split(key, 3)
    lengths = jax.random.randint(when_key, (states,), 0, env.horizon)

    def greedy(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, None]:
        return act(obs), None

    # A state of an episode on each of the models in turn: after a random number of steps, or the last before its end.
    met = jnp.arange(states) % count
    params = jax.vmap(lambda i: with_model(env.nominal, {name: values[i] for name, values in models.items()}))(met)
    reset_keys, step_keys = jax.vmap(jax.random.split, out_axes=1)(jax.random.split(start_key, states))
    start = jax.vmap(env.reset)(reset_keys, params)
    _, (passed, seen, alive) = rollout(
        env,
        greedy,
        params,
        start,
        env.horizon,
        lambda t: jax.vmap(jax.random.fold_in, (0, None))(step_keys, t),
        collect=lambda step: (step.state, step.obs, step.alive),
    )
    when = jnp.minimum(lengths, jnp.sum(alive, axis=0) - 1)
    visited, obs = jax.tree.map(lambda leaf: leaf[when, jnp.arange(states)], (passed, seen))

    # From there each action on each model, then greedily on.
    each = jnp.stack(jnp.meshgrid(jnp.arange(states), jnp.arange(actions), jnp.arange(count), indexing="ij"), axis=-1)
    state, first, model = each.reshape(-1, 3).T
    params = jax.vmap(lambda i: with_model(env.nominal, {name: values[i] for name, values in models.items()}))(model)
    keys = jax.random.split(value_key, count)[model]

    def after_first(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, None]:
        return jnp.where(t == 0, first, act(obs)), None

    values, _ = rollout(
        env,
        after_first,
        params,
        jax.tree.map(lambda leaf: leaf[state], (visited, obs)),
        int(np.ceil(np.log(1e-4) / np.log(discount))),
        lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys, t),
        discount=discount,
    )
    return obs, jnp.mean(values.reshape(states, actions, count), axis=-1)


def calibrate(
    folder: str | os.PathLike[str], states: int = 200, models: int = 32, keep: Keep | None = None, seed: int = 0
) -> Calibration:
    """Compares the intervals of trained agents for Q with what their greedy policies earn.

    The truth is the discounted return after each action, then greedily on, averaged over models of
    the run's box (the nominal one alone if the run acted on it alone). A memory tells which of them are likely,
    so a run with memory must have acted on the nominal one.

    Args:
      folder: a loaded run, a run folder or a folder of seeds.
      states: states visited by the greedy policy, for each seed.
      models: models drawn from the box.
      keep: the `best` or the `last` weights; by default those of the loaded run, and the last ones of a folder.
      seed: seed of the simulation's random numbers.

    Example:
      >>> found = deeprok.calibrate("runs/ekf")
      >>> shares = dict(zip(found.levels, found.coverage))
    """
    kept: Keep = getattr(folder, "keep", "last") if keep is None else keep
    for name, value in (("states", states), ("models", models)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    folders = runs.find(Path(folder))
    configs = [runs.read_config(path) for path in folders]
    if len({config.digest() for config in configs}) > 1:
        raise DeeprokError(f"the runs in {folder} differ in more than their seed; calibrate them one by one")
    config = configs[0]
    if config.robust:
        raise DeeprokError(
            f"{config.algorithm} learns the worst case, which simulation on one model does not show; "
            "calibrate an agent with a nominal target"
        )
    with config.arithmetic():
        learner = config.make_learner()
        if learner.view.posterior is None:
            raise DeeprokError(f"{config.algorithm} has no posterior, so it gives no intervals")
        if learner.view.env.past and config.acting != "nominal":
            raise DeeprokError(
                f"acting is '{config.acting}' and the run has a memory, which tells something of the model, so that a "
                "mean over all models of the box is not its truth; calibrate a run without memory, or one with acting "
                "nominal"
            )
        intervals = _make_intervals(config, learner.view, states, models, seed)
        return summarise(
            {c.seed: intervals(runs.load_belief(path, learner, kept)) for path, c in zip(folders, configs, strict=True)}
        )


def _make_intervals(config: Config, view: View, states: int, models: int, seed: int) -> Any:
    """A function `belief -> Intervals`, compiled once for all seeds."""
    env = view.env
    models_key, play_key = jax.random.split(jax.random.key(seed))
    if config.acting == "nominal":
        drawn = {name: jnp.full(1, getattr(env.nominal, name), float) for name in config.make_box(env)}
    else:
        drawn = sample_box(models_key, config.make_box(env), (models,))

    @jax.jit
    def compute(belief: Any) -> tuple[jax.Array, ...]:
        act = ensemble_policy(view.network, env.actions, view.mean(belief)[None], "mean")
        obs, truth = earned_values(env, act, drawn, config.discount, states, play_key)
        assert view.values
        return (*view.values(belief, obs), truth)

    return lambda belief: Intervals(*(np.asarray(part, float) for part in compute(belief)))
