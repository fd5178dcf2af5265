"""Robust dynamic programming with linear features, where states are too many for a table.

A. Tamar, S. Mannor and H. Xu, "Scaling up robust MDPs using function approximation", ICML 2014.

The value of an action is approximated by φ(s, a)·w. Robust projected value iteration evaluates a policy π on the visits
(s, a) of simulated trajectories, with Π the least-squares fit on these visits:

    φ(s, a)·w  ←  Π  min { Σ p'(s') (r(s') + γ φ(s', π(s'))·w) : p' in the set around p(·|s, a) }

It is a contraction if there is a β < 1 such that γ p'(s') π(a'|s') ≤ β p(s') b(a'|s') for every p' in the sets, where b
is the behaviour policy of the simulation. This is sufficient, not necessary. The smallest such β is computed and
returned with the result.

Robust policy iteration evaluates a policy, simulates the greedy policy of its values, and repeats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.model import RMDP
from deeprok.uncertainty import sets

#: Ambiguity sets by name. A penalty has no set of p' to compare with p.
COHERENT_SETS: dict[str, sets.AmbiguitySet] = {name: found for name, found in sets.SETS.items() if found.coherent}

_LIMIT = 20_000  # iterations of an evaluation
_RANK = 1e-10  # singular values of the features below this, relative to the largest, count as 0

#: states [n, ...] -> actions [n]; the number A, after the last action, means to stop.
PolicyFunction = Callable[[np.ndarray], np.ndarray]


class Successors(NamedTuple):
    """K possible successors for each of n states and actions; those of probability 0 are ignored."""

    state: np.ndarray  # [n, K, ...]
    probability: np.ndarray  # [n, K] in the nominal model
    reward: np.ndarray  # [n, K]
    ended: np.ndarray  # [n, K] bool


class Simulator(NamedTuple):
    """A nominal model that can list the successors of a state, with features."""

    actions: int  # A
    begin: Callable[[np.random.Generator, int], np.ndarray]  # n initial states [n, ...]
    outcomes: Callable[[np.ndarray, np.ndarray], Successors]  # of states [n, ...] and actions [n]
    features: Callable[[np.ndarray], np.ndarray]  # [n, A, D] of states
    stop: Callable[[np.ndarray], np.ndarray] | None = None  # [n] reward for stopping, if that is possible


class Visits(NamedTuple):
    """N visits of simulated trajectories, each with K successors and what the policy does there."""

    features: np.ndarray  # [N, D] of the state and the action taken
    probability: np.ndarray  # [N, K] in the nominal model
    reward: np.ndarray  # [N, K]
    following: np.ndarray  # [N, K, D] features of the successor and the policy's action; 0 if the episode ends there
    paid: np.ndarray  # [N, K] the policy's reward for stopping there
    odds: np.ndarray  # [N, K] π/b, the ratio of the policy's and the behaviour policy's probabilities; 0 if it stops


class LinearFit(NamedTuple):
    """An approximate value function.

    Attributes:
      weights: [D].
      residual: the largest change of a fitted value in the last iteration.
      iterations: number of iterations.
      beta: the smallest β such that γ p' π ≤ β p b on all visits.
    """

    weights: np.ndarray
    residual: float
    iterations: int
    beta: float

    @property
    def contracts(self) -> bool:
        """Whether the sufficient condition for convergence holds."""
        return self.beta < 1


class Improved(NamedTuple):
    """The result of policy iteration."""

    fit: LinearFit  # the values that the policy is greedy for
    policy: PolicyFunction
    rounds: int
    settled: bool  # whether the weights did not change in the last round


def greedy(simulator: Simulator, weights: np.ndarray) -> PolicyFunction:
    """The greedy policy of an approximate value function."""
    return lambda states: _best(simulator, weights, states)[0]


def values(simulator: Simulator, weights: np.ndarray, states: np.ndarray) -> np.ndarray:
    """[n] the approximate values of states for the greedy policy."""
    return _best(simulator, weights, states)[1]


def visit(
    simulator: Simulator, policy: PolicyFunction, episodes: int, steps: int, exploration: float = 0.0, seed: int = 0
) -> Visits:
    """Simulates a policy in the nominal model.

    Where the policy stops, the simulation continues with a random action, since the value of not stopping has to be
    learned too.

    Args:
      simulator: the nominal model.
      policy: the policy to evaluate.
      episodes: number of trajectories.
      steps: maximal length of a trajectory.
      exploration: the probability of a random action.
      seed: random seed.
    """
    if not 0 <= exploration <= 1:
        raise DeeprokError(f"exploration is {exploration:g}; it must lie between 0 and 1")
    rng = np.random.default_rng(seed)
    states, parts = simulator.begin(rng, episodes), []
    for _ in range(steps):
        chosen = policy(states)
        wander = (rng.random(len(states)) < exploration) | (chosen == simulator.actions)
        action = np.where(wander, rng.integers(simulator.actions, size=len(states)), chosen)
        found = simulator.outcomes(states, action)
        n, K = found.probability.shape
        after = found.state.reshape(n * K, *found.state.shape[2:])
        then = policy(after)
        stops = (then == simulator.actions) & ~found.ended.reshape(-1)
        goes_on = (then < simulator.actions) & ~found.ended.reshape(-1)
        taken = simulator.features(after)[np.arange(n * K), np.minimum(then, simulator.actions - 1)]
        paid = np.where(stops, simulator.stop(after), 0.0) if simulator.stop else np.zeros(n * K)
        odds = goes_on / (1 - exploration + exploration / simulator.actions)
        parts.append(
            Visits(
                simulator.features(states)[np.arange(n), action],
                found.probability,
                found.reward,
                (taken * goes_on[:, None]).reshape(n, K, -1),
                paid.reshape(n, K),
                odds.reshape(n, K),
            )
        )
        # Sample a successor by inverting the cumulative distribution.
        draw = (np.cumsum(found.probability, axis=1) <= rng.random((n, 1))).sum(1)
        place = np.arange(n), np.minimum(draw, K - 1)
        states = found.state[place][~found.ended[place]]
        if not len(states):
            break
    return Visits(*map(np.concatenate, zip(*parts, strict=True)))


def projected_value_iteration(
    visits: Visits, set: str = "l1", radius: float = 0.0, discount: float = 0.99, tol: float = 1e-9
) -> LinearFit:
    """Robust projected value iteration: the approximate worst-case value of the simulated policy.

    Args:
      visits: visits of the policy.
      set: the ambiguity set over the listed successors, a name of `COHERENT_SETS`.
      radius: the level of the set.
      discount: γ, above 0 and at most 1.
      tol: stop when fitted values change by less than this, relative to the largest.
    """
    if set not in COHERENT_SETS:
        raise unknown("set", set, COHERENT_SETS)
    COHERENT_SETS[set].check_level(radius, field="radius")
    if not 0 < discount <= 1:
        raise DeeprokError(f"discount is {discount:g}; it must be above 0 and at most 1")
    beta = contraction(visits, set, radius, discount)
    with jax.enable_x64(True):
        fit = np.linalg.pinv(visits.features, rcond=_RANK)
        parts = (visits.features, fit, *visits[1:5], radius, discount, tol)
        weights, change, largest, iterations = map(np.asarray, _project(set, *map(jnp.asarray, parts)))
    if not change <= tol * (1 + largest):
        raise DeeprokError(
            f"robust projected value iteration does not converge: the values change by {float(change):.2g} after"
            f" {int(iterations)} iterations, and its condition does not hold, β being {beta:.3g}; take a smaller"
            " radius, a smaller discount or other features"
        )
    return LinearFit(weights, float(change), int(iterations), beta)


def contraction(visits: Visits, set: str, radius: float, discount: float) -> float:
    """The smallest β such that γ p'(s') π(a'|s') ≤ β p(s') b(a'|s') for all p' in the sets, on all visits.

    The largest p'(s') in a set is the best case of the indicator function of s'.

    Args:
      visits: visits of the policy.
      set: the ambiguity set.
      radius: its level.
      discount: γ.
    """
    rows, which = np.unique(visits.probability, axis=0, return_inverse=True)
    with jax.enable_x64(True):
        largest = np.asarray(_largest(set, jnp.asarray(rows), jnp.asarray(radius, float)))
    ratio = np.where(rows > 0, largest / np.where(rows > 0, rows, 1.0), 0.0)
    return float(discount * np.max(visits.odds * ratio[which.reshape(-1)], initial=0.0))


def iterate(
    simulator: Simulator,
    set: str = "l1",
    radius: float = 0.0,
    discount: float = 0.99,
    episodes: int = 2000,
    steps: int = 100,
    exploration: float = 0.0,
    seed: int = 0,
    rounds: int = 30,
    first: PolicyFunction | None = None,
    advance: Callable[[float], None] | None = None,
) -> Improved:
    """Robust approximate policy iteration.

    All rounds use the same random numbers, so that only the policy differs between them.

    Args:
      simulator: the nominal model.
      set: the ambiguity set.
      radius: its level.
      discount: γ.
      episodes: number of trajectories per round.
      steps: maximal length of a trajectory.
      exploration: the probability of a random action.
      seed: random seed.
      rounds: maximal number of policies to evaluate; approximate policy iteration need not converge.
      first: the initial policy; action 0 in all states if not given.
      advance: called with the fraction of the work done since its last call.
    """
    if rounds < 1:
        raise DeeprokError(f"rounds is {rounds}; it must be at least 1")
    policy = first or (lambda states: np.zeros(len(states), int))
    before: np.ndarray | None = None
    count = 0
    for _ in range(rounds):
        visits = visit(simulator, policy, episodes, steps, exploration, seed)
        fit = projected_value_iteration(visits, set, radius, discount)
        count += 1
        settled = before is not None and bool(np.allclose(fit.weights, before, rtol=1e-6, atol=1e-9))
        policy, before = greedy(simulator, fit.weights), fit.weights
        if advance:
            advance(1 / rounds)
        if settled:
            break
    return Improved(fit, policy, count, settled)


# --- simulators ----------------------------------------------------------------------------------------


def of_problem(problem: RMDP, features: np.ndarray, begin: np.ndarray | None = None) -> Simulator:
    """A tabular model as a simulator; states are ids [n].

    Args:
      problem: a model in which every state has all actions.
      features: [S, A, D].
      begin: [S] the distribution of the initial state; uniform if not given.
    """
    if not problem.valid.all():
        s, a = np.argwhere(~problem.valid)[0]
        raise DeeprokError(f"(s, a) = ({s}, {a}) is not an action of the problem; a simulator needs all of them")
    length = np.diff(problem.start)
    K = int(length.max())
    # Rows are padded with their first successor, with probability 0.
    real = np.arange(K) < length[:, None]
    place = problem.start[:-1, None] + np.where(real, np.arange(K), 0)
    probability = np.where(real, problem.probability[place], 0.0)

    def outcomes(states: np.ndarray, actions: np.ndarray) -> Successors:
        row = states * problem.actions + actions
        at = place[row]
        return Successors(problem.successor[at], probability[row], problem.reward[at], np.zeros(at.shape, bool))

    return Simulator(
        problem.actions,
        lambda rng, n: rng.choice(problem.states, n, p=begin),
        outcomes,
        lambda states: features[states],
    )


def american_put(
    dates: int = 20,
    strike: float = 100.0,
    up: float = 1.02,
    down: float = 0.98,
    chance: float = 0.5,
    low: float = 80.0,
    high: float = 120.0,
) -> Simulator:
    """An American put as an optimal stopping problem: states are (date, price), and the only action is to wait.

    Initial prices are uniform between two bounds. The features of waiting are radial basis functions of the distance
    from the strike, in standard deviations of the final price, and a linear function below the strike; all of them also
    times the square root of the remaining dates. On the last date the value of waiting is 0.

    Args:
      dates: exercise dates, 0 to dates − 1.
      strike: the price at which the option allows to sell the share.
      up: factor of a rise.
      down: factor of a fall.
      chance: the nominal probability of a rise.
      low: lowest initial price.
      high: highest initial price.
    """
    centres = np.linspace(-4, 4, 11)
    volatility = (up - down) / 2

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.stack([np.zeros(n), rng.uniform(low, high, n)], axis=1)

    def outcomes(states: np.ndarray, actions: np.ndarray) -> Successors:
        date, price = states[:, 0, None], states[:, 1, None]
        after = np.stack(np.broadcast_arrays(date + 1, price * np.array([down, up])), axis=2)
        probability = np.broadcast_to([1 - chance, chance], after.shape[:2])
        return Successors(after, probability, np.zeros(after.shape[:2]), after[..., 0] >= dates)

    def features(states: np.ndarray) -> np.ndarray:
        date, price = states[:, 0, None], states[:, 1, None]
        root = np.sqrt(np.maximum(dates - date, 1))
        distance = (price / strike - 1) / (volatility * root)
        bumps = root * np.exp(-((distance - centres) ** 2) / 2)
        step = 1 / (1 + np.exp(np.clip(2 * distance, -50, 50)))
        joined = np.concatenate([bumps, step, step * (price / strike - 1)], axis=1)
        return np.where(date < dates - 1, np.concatenate([joined, joined * root], axis=1), 0.0)[:, None, :]

    return Simulator(1, begin, outcomes, features, lambda states: np.maximum(strike - states[:, 1], 0.0))


# --- computation ---------------------------------------------------------------------------------------


def _best(simulator: Simulator, weights: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best action of each state [n], and its value [n]."""
    q = simulator.features(states) @ weights
    if simulator.stop:
        q = np.concatenate([q, simulator.stop(states)[:, None]], axis=1)
        # Ties are broken in favour of stopping, the last action.
        action = q.shape[1] - 1 - np.argmax(q[:, ::-1], axis=1)
    else:
        action = np.argmax(q, axis=1)
    return action, np.take_along_axis(q, action[:, None], axis=1)[:, 0]


@functools.partial(jax.jit, static_argnums=0)
def _project(
    set: str,
    features: jax.Array,
    fit: jax.Array,
    probability: jax.Array,
    reward: jax.Array,
    following: jax.Array,
    paid: jax.Array,
    radius: jax.Array,
    discount: jax.Array,
    tol: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Weights, the last change of fitted values, the largest of these, and the number of iterations.

    Args:
      set: the ambiguity set.
      features: [N, D].
      fit: [D, N] the pseudo-inverse of the features.
      probability: [N, K].
      reward: [N, K].
      following: [N, K, D].
      paid: [N, K].
      radius: its level.
      discount: γ.
      tol: the relative change to stop at.
    """
    worst_case = jax.vmap(sets.on_support(COHERENT_SETS[set].worst_case), (0, 0, None))
    gain = reward + discount * paid

    def step(now: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        weights, fitted, _, _, count = now
        target = worst_case(probability, gain + discount * following @ weights, radius).value
        weights = fit @ target
        values = features @ weights
        return weights, values, jnp.max(jnp.abs(values - fitted)), jnp.max(jnp.abs(values)), count + 1

    def unfinished(now: tuple[jax.Array, ...]) -> jax.Array:
        _, _, change, largest, count = now
        return (change > tol * (1 + largest)) & (count < _LIMIT) & (largest < 1e100)

    begin = (jnp.zeros(features.shape[1]), jnp.zeros(features.shape[0]), jnp.inf, 0.0, 0)
    weights, _, change, largest, count = jax.lax.while_loop(unfinished, step, jax.tree.map(jnp.asarray, begin))
    return weights, change, largest, count


@functools.partial(jax.jit, static_argnums=0)
def _largest(set: str, rows: jax.Array, radius: jax.Array) -> jax.Array:
    """[R, K] the largest probability of each successor in the set around its row."""
    best_case = sets.optimistic(sets.on_support(COHERENT_SETS[set].worst_case))
    each = jax.vmap(jax.vmap(best_case, (None, 0, None)), (0, None, None))
    return each(rows, jnp.eye(rows.shape[1], dtype=rows.dtype), radius).value
