"""Are the posterior's intervals for Q as wide as they should be?

An interval that claims 95 % should hold the truth in 95 % of all cases. The truth here is what the
policy really earns, by simulation, or an exact Q* where one is known. For a robust target it is what the policy earns
against models that are the worst in every step.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from deeprok.agents.correction import Correction, fit_correction, no_correction
from deeprok.agents.learner import View
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, with_model
from deeprok.environments.base import Model, in_jax
from deeprok.environments.rollout import rollout
from deeprok.evaluation.findings import make_finding
from deeprok.evaluation.nature import against_nature
from deeprok.evaluation.policies import Policy, ensemble_policy
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import Config
from deeprok.uncertainty import sample_box

#: Shares that the reported intervals claim.
LEVELS = (0.5, 0.8, 0.95)

#: A run corrects its intervals by the values in so many states, averaged over so many models; a seed of its own keeps
#: them apart from those that the intervals are checked by.
_HELD_OUT_STATES, _HELD_OUT_MODELS, _HELD_OUT_SEED = 64, 8, 20170309


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
    surprise: float
    """Mean negative logarithm of the density that the belief, a normal distribution, gives to the truths."""
    raw: list[float] | None
    """`coverage` before the run's own correction of its intervals; None if it has none."""
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


def surprise(found: Intervals) -> float:
    """The mean negative log density of the truths under the belief."""
    return float(np.mean(np.log(found.deviation) + 0.5 * np.log(2 * np.pi)) + 0.5 * np.mean(found.errors**2))


def summarise(found: Mapping[int, Intervals], raw: Mapping[int, Intervals] | None = None) -> Calibration:
    """What several seeds' intervals come to.

    Args:
      found: seed -> its intervals.
      raw: the same without the runs' own corrections, if they have any.
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
        surprise=float(np.mean([surprise(intervals) for intervals in found.values()])),
        raw=coverage(np.concatenate([own.errors for own in raw.values()])).tolist() if raw else None,
        points=len(every),
    )


def earned_values(
    env: Environment,
    act: Policy,
    models: Model,
    discount: float,
    states: int,
    key: jax.Array,
    against: tuple[Environment, Any] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """States that a greedy policy visits, and what each action in them earns on average over models.

    Args:
      env: the environment.
      act: the policy.
      models: name -> [C, K]; the first of a state's models is the one that it is met on, all K are in its values.
      discount: γ.
      states: C, how many states.
      key: decides where episodes start, which of their states are taken, and the environment's noise.
      against: an environment with the same states, and its parameters [C, K], that values are earned in instead.

    Returns:
      Observations [C, D] and values [C, A]. The return is followed until γ has made it negligible,
      whatever the horizon: time is not part of the state.
    """
    count = next(iter(models.values())).shape[1]
    actions = len(env.actions)
    start_key, when_key, value_key = jax.random.split(key, 3)
    lengths = jax.random.randint(when_key, (states,), 0, env.horizon)

    def greedy(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, None]:
        return act(obs), None

    # A state of each episode: after a random number of steps, or the last before its end.
    every = jax.vmap(jax.vmap(lambda one: with_model(env.nominal, one)))(models)
    params = jax.tree.map(lambda leaf: leaf[:, 0], every)
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
    played, params = against or (env, every)
    params = jax.tree.map(lambda leaf: leaf[state, model], params)
    keys = jax.random.split(value_key, (states, count))[state, model]

    def after_first(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, None]:
        return jnp.where(t == 0, first, act(obs)), None

    values, _ = rollout(
        played,
        after_first,
        params,
        jax.tree.map(lambda leaf: leaf[state], (visited, obs)),
        int(np.ceil(np.log(1e-4) / np.log(discount))),
        lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys, t),
        discount=discount,
    )
    return obs, jnp.mean(values.reshape(states, actions, count), axis=-1)


def calibrate(
    folder: str | os.PathLike[str],
    states: int = 200,
    models: int = 32,
    keep: Keep | None = None,
    seed: int = 0,
    save: bool = False,
) -> Calibration:
    """Compares the intervals of trained agents for Q with what their greedy policies earn.

    The truth is the discounted return after each action, then greedily on, averaged over models of
    the run's box (the nominal one alone if the run acted on it alone). For a robust target a model set takes the place
    of each model, and nature goes on in every step with one of its models that are worst by the agent's own values.
    A memory tells which models are likely, so a run with memory must have acted on the nominal one.

    Args:
      folder: a loaded run, a run folder or a folder of seeds.
      states: states visited by the greedy policy, for each seed.
      models: models, or model sets, drawn from the box.
      keep: the `best` or the `last` weights; by default those of the loaded run, and the last ones of a folder.
      seed: seed of the simulation's random numbers.
      save: also keep the result in the folder, in the file `calibrate.json`.

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
    with config.arithmetic():
        learner = config.make_learner()
        if learner.view.posterior is None:
            raise DeeprokError(f"{config.algorithm} has no posterior, so it gives no intervals")
        if learner.view.values is None:
            raise DeeprokError(f"{config.algorithm} has no actions to choose from, whose values could be measured")
        if learner.view.env.past and config.acting != "nominal":
            raise DeeprokError(
                f"acting is '{config.acting}' and the run has a memory, which tells something of the model, so that a "
                "mean over all models of the box is not its truth; calibrate a run without memory, or one with acting "
                "nominal"
            )
        measure = make_intervals(config, learner.view, states, models, seed)
        found, raw = {}, {}
        for path, each in zip(folders, configs, strict=True):
            belief = runs.load_belief(path, learner, kept)
            if learner.corrected:
                found[each.seed] = measure(belief, belief.correction.level)
                raw[each.seed] = measure(learner.corrected(belief, no_correction()), belief.correction.level)
            else:
                found[each.seed] = measure(belief, getattr(config.target, "robust_level", 0.0))
        result = summarise(found, raw)
    if save:
        options = f"--states {states} --models {models} --keep {kept} --seed {seed} --json"
        command = f"deeprok calibrate {shlex.quote(os.fspath(folder))} {options}"
        make_finding("calibrate", command, kept, folders, result.to_dict()).save(Path(folder))
    return result


def make_intervals(
    config: Config, view: View, states: int, models: int, seed: int
) -> Callable[[Any, jax.Array | float], Intervals]:
    """A function `(belief, level) -> Intervals`, compiled once for all seeds.

    Args:
      config: the settings of a run.
      view: of its learner.
      states: states visited by the greedy policy.
      models: models, or model sets, that the values in a state are averaged over.
      seed: seed of the simulation's random numbers.
    """
    env, values, discount = in_jax(view.env, "the truth of its intervals"), view.values, config.discount
    models_key, sets_key, play_key = jax.random.split(jax.random.key(seed), 3)
    box = config.make_box(env)
    if config.acting == "nominal":
        shape = (states, models if view.worst_case else 1)
        drawn = {name: jnp.full(shape, getattr(env.nominal, name), float) for name in box or vars(env.nominal)}
    else:
        drawn = sample_box(models_key, box, (states, models))

    @jax.jit
    def compute(belief: Any, level: jax.Array) -> tuple[jax.Array, ...]:
        theta = view.mean(belief)
        against = None
        if view.worst_case:
            sets = jax.vmap(jax.vmap(config.make_models(env).draw))(jax.random.split(sets_key, (states, models)))
            opponents = jax.vmap(jax.vmap(jax.vmap(lambda one: with_model(env.nominal, one))))(sets)
            against = against_nature(env, state_value(theta), discount, view.worst_case, level), opponents
        act = ensemble_policy(view.network, env.actions, theta[None], "mean")
        obs, truth = earned_values(env, act, drawn, discount, states, play_key, against)
        assert values
        return (*values(belief, obs), truth)

    def state_value(theta: jax.Array) -> Callable[[jax.Array], jax.Array]:
        return lambda obs: jnp.max(view.network.apply(theta, obs), axis=-1)

    def measure(belief: Any, level: jax.Array | float) -> Intervals:
        return Intervals(*(np.asarray(part, float) for part in compute(belief, jnp.asarray(level, float))))

    return measure


def make_correction(config: Config, view: View) -> Callable[[Any, jax.Array], Correction]:
    """A function `(belief, level) -> Correction` that makes the intervals of a trained agent hold what they claim.

    Args:
      config: the settings of a run.
      view: of its learner.
    """
    measure = make_intervals(config, view, _HELD_OUT_STATES, _HELD_OUT_MODELS, _HELD_OUT_SEED)

    def correction(belief: Any, level: jax.Array) -> Correction:
        numbers = (*fit_correction(*measure(belief, level)), level)
        return Correction(*(jnp.asarray(number, float) for number in numbers))

    return correction
