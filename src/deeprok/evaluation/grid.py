"""Evaluation: where in the space of physics a policy works.

Every cell of a grid of parameters is played with the same random numbers, so that cells and
policies differ by what they do and not by luck.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.exploration import epsilon_greedy, epsilon_uniform
from deeprok.agents.network import QNetwork
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.environments import Interval, World, with_model
from deeprok.environments.base import Model
from deeprok.estimators import Estimator, Keeper
from deeprok.evaluation.predictive import q_distribution
from deeprok.runs import folder as runs
from deeprok.runs.folder import KEEPS, Keep
from deeprok.training.scan import make_program
from deeprok.uncertainty.models import grid_models, parse_grid

PolicyKind = Literal["mean", "vote", "mean_q", "sample", "lcb"]
POLICIES: tuple[str, ...] = get_args(PolicyKind)

#: `obs [E, D] -> action [E]`, or [E, A] where actions are numbers.
Policy = Callable[[jax.Array], jax.Array]

#: `(weights, params) -> Policy`: what weights do in a world of these parameters, which most don't look at.
PolicyOf = Callable[[Any, Any], Policy]


def ensemble_policy(network: QNetwork, thetas: jax.Array, kind: PolicyKind) -> Policy:
    """What K weight vectors choose together.

    Args:
      network: the Q-network.
      thetas: [K, n]; K = 1 for the policies `mean` and `sample`.
      kind: `vote` for the action that most members prefer (of equals the first), `mean_q` for the
        best on average; with one member both are its greedy action.
    """

    def act(obs: jax.Array) -> jax.Array:
        q = jax.vmap(network.apply, (0, None))(thetas, obs)  # [K, E, A]
        if kind == "vote":  # of Q-networks only
            votes = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1])
            return jnp.argmax(jnp.sum(votes, axis=0), axis=-1)
        return network.choose(jnp.mean(q, axis=0))

    return act


def network_policy(network: QNetwork, kind: PolicyKind) -> PolicyOf:
    """What weight vectors [K, n] of a Q-network choose together, whatever the parameters."""
    return lambda thetas, params: ensemble_policy(network, thetas, kind)


def draw_members(estimator: Estimator | Keeper, belief: Any, kind: PolicyKind, members: int, seed: int) -> np.ndarray:
    """The weights [K, n] that a policy acts on: the mean's, or draws from the posterior."""
    if kind == "mean" or estimator.posterior is None:
        return np.asarray(estimator.mean(belief))[None]
    keys = jax.random.split(jax.random.key(seed), members)
    return np.asarray(jax.jit(jax.vmap(estimator.posterior.sample, (None, 0)))(belief, keys))


def cautious_policy(network: QNetwork, estimator: Estimator | Keeper, kappa: float) -> PolicyOf:
    """What a belief chooses when each action is worth Q − κσ to it; the belief takes the place of weights.

    Args:
      network: the Q-network.
      estimator: keeper of the belief, with a posterior.
      kappa: κ; 0 is the greedy action of the mean, below 0 the belief is optimistic.
    """

    def policy_of(belief: Any, params: Any) -> Policy:
        q = q_distribution(network, estimator, belief)

        def act(obs: jax.Array) -> jax.Array:
            mean, deviation = q(obs)
            return jnp.argmax(mean - kappa * deviation, axis=1)

        return act

    return policy_of


def play_episodes(world: World, act: Policy, models: Model, key: jax.Array, epsilon: float | jax.Array) -> jax.Array:
    """Plays one episode on each model, all at once.

    Args:
      world: the world.
      act: the policy.
      models: name -> [E].
      key: decides the initial states, the exploration and the world's noise.
      epsilon: probability of a random action.

    Returns:
      [E] the returns.
    """
    episodes = len(next(iter(models.values())))
    reset_key, explore_key, world_key = jax.random.split(key, 3)
    params = jax.vmap(lambda model: with_model(world.nominal, model))(models)
    states, obs = jax.vmap(world.reset)(jax.random.split(reset_key, episodes), params)
    numbers = world.actions if isinstance(world.actions, Interval) else None
    explore = jax.random.uniform(explore_key, (world.horizon, episodes, 1 + (len(numbers) if numbers else 1)))

    def choose(draw: jax.Array, greedy: jax.Array) -> jax.Array:
        if numbers:
            return epsilon_uniform(draw, epsilon, greedy, numbers)
        return epsilon_greedy(draw, epsilon, greedy, len(world.actions))

    def step(carry: Any) -> Any:
        t, states, obs, alive, earned = carry
        actions = jax.vmap(choose)(explore[t], act(obs))
        keys = jax.random.split(jax.random.fold_in(world_key, t), episodes)
        outcome = jax.vmap(world.step)(keys, states, actions, params)
        earned = earned + jnp.where(alive, outcome.reward, 0.0)
        return t + 1, outcome.state, outcome.obs, alive & ~outcome.terminated, earned

    start = (jnp.int32(0), states, obs, jnp.ones(episodes, bool), jnp.zeros(episodes, obs.dtype))
    *_, earned = jax.lax.while_loop(lambda c: (c[0] < world.horizon) & jnp.any(c[3]), step, start)
    return earned


@dataclass(frozen=True)
class Score:
    """How a policy did on some episodes."""

    mean_return: float
    success: float


@dataclass(frozen=True)
class SeedScores:
    """One run on the grid; nested lists in the order of the grid's names."""

    seed: int
    mean_return: Any
    std_return: Any
    success: Any
    overall: Score
    nominal: Score


@dataclass(frozen=True)
class Evaluation:
    """A map of where a policy works, for one run or the mean of several seeds."""

    algorithm: str
    grid: dict[str, list[float]]
    """Name of each parameter -> its values."""
    episodes: int
    """Episodes in each cell, for each seed (and member, if each is tested alone)."""
    epsilon: float
    policy: str
    members: int
    kappa: float
    """How many standard deviations the policy lcb goes below the mean; 0 for the others."""
    keep: str
    mean_return: Any
    """Nested lists in the grid's order, averaged over seeds; so are the next four."""
    std_return: Any
    success: Any
    success_low: Any
    """Lower end of the 95 % Wilson interval of a cell's success, over all its episodes."""
    success_high: Any
    overall: Score
    nominal: Score
    per_seed: list[SeedScores]
    file: str = ""
    """Name of the file that keeps it, in the folder of each run."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `evaluate --json` prints."""
        return dataclasses.asdict(self)


def wilson(successes: np.ndarray, trials: int, z: float = 1.959963984540054) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval for a success rate, 95 % by default."""
    p = successes / trials
    centre = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


class GridReturns(NamedTuple):
    """Returns of one run on the models of `grid_cells`."""

    cells: np.ndarray  # [cells, episodes]
    nominal: np.ndarray  # [episodes], at the nominal parameters


def cell_player(world: World, policy_of: PolicyOf, episodes: int) -> Callable[..., np.ndarray]:
    """Makes a function that plays a policy on any list of models, with the same random numbers on each.

    Args:
      world: the world.
      policy_of: what weights do on a model.
      episodes: episodes on each model.

    Returns:
      `play(weights, models, epsilon, seed=0, advance=None) -> returns [models, episodes]`, compiled
      once for all calls, with `models` name -> values, `epsilon` the probability of a random
      action, and `advance` called with the fraction of the work done since its last call.
    """

    @jax.jit
    def play_some(weights: Any, models: Model, key: jax.Array, epsilon: jax.Array) -> jax.Array:
        def cell(model: Model) -> jax.Array:
            same = {name: jnp.broadcast_to(value, (episodes,)) for name, value in model.items()}
            act = policy_of(weights, with_model(world.nominal, model))
            return play_episodes(world, act, same, key, epsilon)

        return jax.vmap(cell)(models)

    def play(
        weights: Any,
        models: Mapping[str, np.ndarray],
        epsilon: float,
        seed: int = 0,
        advance: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        count = len(next(iter(models.values())))
        # A few models at a time: enough to fill the machine, and short enough to show progress.
        groups = math.ceil(count / max(1, 4096 // episodes))
        size = math.ceil(count / groups)  # alike, so that filling up the last one wastes little
        starts = range(0, count, size)
        rows = []
        for start in starts:
            index = np.arange(start, start + size) % count  # the last group is filled up
            some = {name: jnp.asarray(values[index], float) for name, values in models.items()}
            rows.append(np.asarray(play_some(weights, some, jax.random.key(seed), jnp.asarray(epsilon, float))))
            if advance:
                advance(1 / len(starts))
        return np.concatenate(rows)[:count].astype(float)

    return play


def grid_cells(world: World, axes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The models of a grid's cells and, last, the nominal one.

    Every parameter is given, so that one program plays grids that vary different ones.
    """
    varied = grid_models(axes)
    count = len(next(iter(varied.values())))
    nominal = {f.name: getattr(world.nominal, f.name) for f in dataclasses.fields(world.nominal)}
    return {name: np.append(varied.get(name, np.full(count, value)), value) for name, value in nominal.items()}


def summarise(
    algorithm: str,
    world: World,
    axes: Mapping[str, np.ndarray],
    returns: Mapping[int, GridReturns],
    epsilon: float,
    policy: str,
    members: int,
    kappa: float,
    keep: str,
    file: str = "",
) -> Evaluation:
    """Makes an `Evaluation` of the returns of several seeds.

    Args:
      algorithm: name of the algorithm.
      world: the world, which says what a success is.
      axes: the grid.
      returns: seed -> what the grid player gave.
      epsilon: probability of a random action.
      policy: how the weights acted.
      members: size of the ensemble.
      kappa: κ of the policy `lcb`.
      keep: whether the weights were the `best` or the `last`.
      file: name of the file that keeps it.
    """
    shape = tuple(len(values) for values in axes.values())

    def grid(values: np.ndarray) -> Any:
        return values.reshape(shape).tolist()

    def score(values: np.ndarray) -> Score:
        return Score(float(values.mean()), float((values > world.success_return).mean()))

    per_seed = [
        SeedScores(
            seed=seed,
            mean_return=grid(played.cells.mean(axis=1)),
            std_return=grid(played.cells.std(axis=1)),
            success=grid((played.cells > world.success_return).mean(axis=1)),
            overall=score(played.cells),
            nominal=score(played.nominal),
        )
        for seed, played in returns.items()
    ]
    cells = np.concatenate([played.cells for played in returns.values()], axis=1)
    nominal = np.concatenate([played.nominal for played in returns.values()])
    won = (cells > world.success_return).sum(axis=1)
    low, high = wilson(won, cells.shape[1])
    return Evaluation(
        algorithm=algorithm,
        grid={name: np.asarray(values).tolist() for name, values in axes.items()},
        episodes=cells.shape[1] // len(returns) // (members if policy == "sample" else 1),
        epsilon=epsilon,
        policy=policy,
        members=members,
        kappa=kappa,
        keep=keep,
        mean_return=grid(cells.mean(axis=1)),
        std_return=grid(cells.std(axis=1)),
        success=grid(won / cells.shape[1]),
        success_low=grid(low),
        success_high=grid(high),
        overall=score(cells),
        nominal=score(nominal),
        per_seed=per_seed,
        file=file,
    )


def file_name(axes: Mapping[str, np.ndarray], box: Mapping[str, Any], **options: Any) -> str:
    """The file that keeps an evaluation: a question's own, so that no other question's answer is lost.

    It is `evaluation.json` for the default options and else names those that differ, such as
    `evaluation-policy=lcb,episodes=100.json`.

    Args:
      axes: the grid.
      box: the run's box, which the default grid covers.
      options: the other arguments of `evaluate` that decide the result.
    """
    usual = inspect.signature(evaluate).parameters
    changed = [f"{name}={value}" for name, value in options.items() if value != usual[name].default]
    if not _same_axes(axes, default_axes(box)):
        changed += [
            f"{name}={values[0]:g}" + (f"-{values[-1]:g}-{len(values)}" if len(values) > 1 else "")
            for name, values in axes.items()
        ]
    stem, suffix = runs.EVALUATION.rsplit(".", 1)
    return f"{stem}-{','.join(changed)}.{suffix}" if changed else runs.EVALUATION


def default_axes(box: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The grid that covers a box: 7 values of each parameter."""
    return {name: np.linspace(low, high, 7) for name, (low, high) in box.items()}


def _same_axes(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


#: The paper's grid.
PAPER_GRID = "pole_length=0.2:1.4:7,cart_mass=0.1:7:7"


def evaluate(
    folder: str | Path | Sequence[Path],
    grid: str | None = None,
    episodes: int = 500,
    epsilon: float = 0.1,
    policy: PolicyKind = "mean",
    members: int = 20,
    kappa: float = 1.0,
    keep: Keep = "best",
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> Evaluation:
    """Plays trained policies on a grid of physics, and keeps the result in each run's folder, see `file_name`.

    Args:
      folder: a run folder, a folder of seeds, or several run folders that differ by their seeds.
      grid: parameters to vary, as name=low:high:count,…; both edges are included. By default the
        run's own box, 7 values of each parameter, which for the world's box is the paper's grid.
      episodes: episodes in a cell.
      epsilon: probability of a random action.
      policy: `mean` acts on the belief's mean. For agents with a posterior, an ensemble drawn from
        it acts by majority (`vote`), by its mean Q-values (`mean_q`), or each member alone
        (`sample`); `lcb` acts on Q − κσ.
      members: size of the ensemble.
      kappa: κ of `lcb`: the larger, the less it dares what it knows little of.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones.
      seed: seed of the evaluation's random numbers.
      advance: called with the fraction of the work done since its last call.
    """
    for name, value in (("episodes", episodes), ("members", members)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")
    if not 0 <= epsilon <= 1:
        raise DeeprokError(f"epsilon is {epsilon:g}; it must be a probability between 0 and 1")
    if not np.isfinite(kappa):
        raise DeeprokError(f"kappa is {kappa:g}; it must be a finite number")
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    if keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)
    if not isinstance(folder, str | Path | Sequence):
        raise DeeprokError(f"folder is {folder!r}; it must be a path, or a list of run folders")
    folders = runs.find(Path(folder)) if isinstance(folder, str | Path) else list(folder)
    configs = [runs.read_config(path) for path in folders]
    if len({config.digest() for config in configs}) > 1:
        raise DeeprokError(f"the runs in {folders[0].parent} differ in more than their seed; evaluate them one by one")
    with configs[0].arithmetic():
        config = configs[0]
        program = make_program(config)
        estimator = program.estimator
        if policy != "mean" and not estimator.posterior:
            raise DeeprokError(f"policy is {policy}, but {config.algorithm} has no posterior; use policy mean")
        if grid is None:
            axes = default_axes(config.make_box(program.world))
        elif isinstance(grid, str):
            axes = parse_grid(grid, program.world.nominal)
        else:
            raise DeeprokError(f"grid is {grid!r}; it must be text, as name=low:high:count,…")
        policy_of = (
            cautious_policy(program.network, estimator, kappa)
            if policy == "lcb"
            else network_policy(program.network, policy)
        )
        play = cell_player(program.world, policy_of, episodes)
        cells = grid_cells(program.world, axes)
        size = 1 if policy in ("mean", "lcb") else members
        alone = size if policy == "sample" else 1
        share = (lambda part: advance(part / (len(folders) * alone))) if advance else None
        world, played, beliefs = program.world, {}, [runs.load_belief(path, program, keep) for path in folders]
        for config, belief in zip(configs, beliefs, strict=True):
            if policy == "lcb":
                acting = [belief]
            else:
                acting = np.split(draw_members(estimator, belief, policy, size, seed), alone)
            parts = [play(weights, cells, epsilon, seed, share) for weights in acting]
            returns = np.concatenate(parts, axis=1)
            played[config.seed] = GridReturns(returns[:-1], returns[-1])
        facts = (epsilon, policy, size, kappa if policy == "lcb" else 0.0, keep)
        options = {"policy": policy, "episodes": episodes, "epsilon": epsilon, "keep": keep, "seed": seed}
        options |= {"kappa": kappa} if policy == "lcb" else {"members": members} if policy != "mean" else {}
        name = file_name(axes, config.make_box(world), **options)
        for path, config in zip(folders, configs, strict=True):
            one = summarise(config.algorithm, world, axes, {config.seed: played[config.seed]}, *facts, name)
            write_atomically(path / name, (json.dumps(one.to_dict()) + "\n").encode())
        return summarise(config.algorithm, world, axes, played, *facts, name)
