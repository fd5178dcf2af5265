"""Robust dynamic programming with linear features, where states are too many for a table.

A. Tamar, S. Mannor and H. Xu, "Scaling up robust MDPs using function approximation", ICML 2014.

The value of an action is approximated by φ(s, a)·w. Robust projected value iteration evaluates a policy π
on visits (s, a) of simulated trajectories, with Π the least-squares fit to what was visited:

    φ(s, a)·w  ←  Π  min { Σ p'(s') (r(s') + γ φ(s', π(s'))·w) : p' in the set around p(·|s, a) }

It contracts if there is a β < 1 such that γ p'(s') π(a'|s') ≤ β p(s') b(a'|s') for every p' of the sets,
where b is the policy that was simulated. That is sufficient, not necessary, and it is not taken for
granted: the least β is computed, and comes with the result.

Robust policy iteration evaluates a policy, takes the greedy one, simulates that, and so on.
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

#: Sets by name. Of a penalty there are no p' that could be compared with p.
SETS: dict[str, sets.AmbiguitySet] = {name: found for name, found in sets.SETS.items() if found.coherent}

_LIMIT = 20_000  # iterations of an evaluation
_RANK = 1e-10  # directions of the features that visits hardly show, relative to the largest, are not used

#: states [n, ...] -> actions [n]; the number after the last action means to stop.
Policy = Callable[[np.ndarray], np.ndarray]


class Outcomes(NamedTuple):
    """What may follow n states and actions, K outcomes each; those of probability 0 count for nothing."""

    state: np.ndarray  # [n, K, ...]
    probability: np.ndarray  # [n, K] in the nominal model
    reward: np.ndarray  # [n, K]
    ended: np.ndarray  # [n, K] bool


class Simulator(NamedTuple):
    """A nominal model that can list what follows a state, and its features."""

    actions: int  # A
    begin: Callable[[np.random.Generator, int], np.ndarray]  # n states [n, ...]
    outcomes: Callable[[np.ndarray, np.ndarray], Outcomes]  # of states [n, ...] and actions [n]
    features: Callable[[np.ndarray], np.ndarray]  # [n, A, D] of states
    stop: Callable[[np.ndarray], np.ndarray] | None = None  # [n] what it pays to stop, where one may


class Visits(NamedTuple):
    """N visits of simulated trajectories, each with its K outcomes and what a policy does there."""

    features: np.ndarray  # [N, D] of the state and the action taken
    probability: np.ndarray  # [N, K] in the nominal model
    reward: np.ndarray  # [N, K]
    following: np.ndarray  # [N, K, D] of the successor and the policy's action; 0 if it stops or all is over
    paid: np.ndarray  # [N, K] what the policy gets for stopping there
    odds: np.ndarray  # [N, K] π/b: how much oftener the policy takes its action than the simulation; 0 if it stops


class Fit(NamedTuple):
    """An approximate value.

    Attributes:
      weights: [D].
      residual: the largest change of a fitted value in the last iteration.
      iterations: how many there were.
      beta: the least β such that γ p' π ≤ β p b on all visits.
    """

    weights: np.ndarray
    residual: float
    iterations: int
    beta: float

    @property
    def contracts(self) -> bool:
        """Whether the condition holds under which the iteration provably converges."""
        return self.beta < 1


class Improved(NamedTuple):
    """What policy iteration came to."""

    fit: Fit  # of the last policy but one, to which the last is greedy
    policy: Policy
    rounds: int
    settled: bool  # whether the last round left the weights as they were


def greedy(simulator: Simulator, weights: np.ndarray) -> Policy:
    """The policy that does what is approximately best."""
    return lambda states: _best(simulator, weights, states)[0]


def values(simulator: Simulator, weights: np.ndarray, states: np.ndarray) -> np.ndarray:
    """[n] the approximate values of states under the greedy policy."""
    return _best(simulator, weights, states)[1]


def visit(
    simulator: Simulator, policy: Policy, episodes: int, steps: int, exploration: float = 0.0, seed: int = 0
) -> Visits:
    """Follows a policy in the nominal model.

    The simulation goes on, with a random action, where the policy stops: what that would bring is what
    has to be learnt.

    Args:
      simulator: the nominal model.
      policy: the policy that will be evaluated.
      episodes: trajectories.
      steps: the most steps of each.
      exploration: the probability of a random action.
      seed: of the random numbers.
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
        # One draw for each, by the inverse of the distribution function.
        draw = (np.cumsum(found.probability, axis=1) <= rng.random((n, 1))).sum(1)
        place = np.arange(n), np.minimum(draw, K - 1)
        states = found.state[place][~found.ended[place]]
        if not len(states):
            break
    return Visits(*map(np.concatenate, zip(*parts, strict=True)))


def evaluate(visits: Visits, set: str = "l1", radius: float = 0.0, discount: float = 0.99, tol: float = 1e-9) -> Fit:
    """Robust projected value iteration.

    Args:
      visits: where the policy was simulated.
      set: the family of sets on the listed outcomes, a name of `SETS`.
      radius: the level of the set.
      discount: γ, above 0 and at most 1.
      tol: the change of fitted values to stop at, relative to the largest of them.
    """
    if set not in SETS:
        raise unknown("set", set, SETS)
    SETS[set].check_level(radius, field="radius")
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
    return Fit(weights, float(change), int(iterations), beta)


def contraction(visits: Visits, set: str, radius: float, discount: float) -> float:
    """The least β such that γ p'(s') π(a'|s') ≤ β p(s') b(a'|s') for all p' of the sets, on all visits.

    The largest p'(s') of a set is its best case of the indicator of s'.

    Args:
      visits: where the policy was simulated.
      set: the family of sets.
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
    first: Policy | None = None,
    advance: Callable[[float], None] | None = None,
) -> Improved:
    """Robust approximate policy iteration.

    All rounds use the same random numbers, so that what differs between them is the policy.

    Args:
      simulator: the nominal model.
      set: the family of sets.
      radius: its level.
      discount: γ.
      episodes: trajectories of each round.
      steps: the most steps of each.
      exploration: the probability of a random action.
      seed: of the random numbers.
      rounds: the most policies to evaluate; approximate policy iteration need not settle.
      first: the policy to begin with; action 0 in all states if not given.
      advance: called with the fraction of the work done since its last call.
    """
    if rounds < 1:
        raise DeeprokError(f"rounds is {rounds}; it must be at least 1")
    policy = first or (lambda states: np.zeros(len(states), int))
    before: np.ndarray | None = None
    count = 0
    for _ in range(rounds):
        visits = visit(simulator, policy, episodes, steps, exploration, seed)
        fit = evaluate(visits, set, radius, discount)
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
    """A table as a simulator; states are ids [n].

    Args:
      problem: a model whose states have all actions.
      features: [S, A, D].
      begin: [S] the distribution of first states; uniform if not given.
    """
    if not problem.valid.all():
        s, a = np.argwhere(~problem.valid)[0]
        raise DeeprokError(f"(s, a) = ({s}, {a}) is not an action of the problem; a simulator needs all of them")
    length = np.diff(problem.start)
    K = int(length.max())
    # Rows are padded with their first outcome, at probability 0.
    real = np.arange(K) < length[:, None]
    place = problem.start[:-1, None] + np.where(real, np.arange(K), 0)
    probability = np.where(real, problem.probability[place], 0.0)

    def outcomes(states: np.ndarray, actions: np.ndarray) -> Outcomes:
        row = states * problem.actions + actions
        at = place[row]
        return Outcomes(problem.successor[at], probability[row], problem.reward[at], np.zeros(at.shape, bool))

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
    """An American put as a problem of stopping: states are (date, price), and the only action is to wait.

    Trajectories begin at all prices between two bounds. Features of waiting are bumps over the distance from
    the strike, counted in standard deviations of the price at the end, and a line below the strike; both
    are taken once more times the root of the dates left. On the last date there is nothing to wait for.

    Args:
      dates: exercise dates, 0 to dates − 1.
      strike: what the option sells the share for.
      up: factor of a rise.
      down: factor of a fall.
      chance: the nominal probability of a rise.
      low: least first price.
      high: greatest first price.
    """
    centres = np.linspace(-4, 4, 11)
    spread = (up - down) / 2

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.stack([np.zeros(n), rng.uniform(low, high, n)], axis=1)

    def outcomes(states: np.ndarray, actions: np.ndarray) -> Outcomes:
        date, price = states[:, 0, None], states[:, 1, None]
        after = np.stack(np.broadcast_arrays(date + 1, price * np.array([down, up])), axis=2)
        probability = np.broadcast_to([1 - chance, chance], after.shape[:2])
        return Outcomes(after, probability, np.zeros(after.shape[:2]), after[..., 0] >= dates)

    def features(states: np.ndarray) -> np.ndarray:
        date, price = states[:, 0, None], states[:, 1, None]
        root = np.sqrt(np.maximum(dates - date, 1))
        distance = (price / strike - 1) / (spread * root)
        bumps = root * np.exp(-((distance - centres) ** 2) / 2)
        step = 1 / (1 + np.exp(np.clip(2 * distance, -50, 50)))
        joined = np.concatenate([bumps, step, step * (price / strike - 1)], axis=1)
        return np.where(date < dates - 1, np.concatenate([joined, joined * root], axis=1), 0.0)[:, None, :]

    return Simulator(1, begin, outcomes, features, lambda states: np.maximum(strike - states[:, 1], 0.0))


# --- parts ---------------------------------------------------------------------------------------------


def _best(simulator: Simulator, weights: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best action of each state [n], and its value [n]."""
    q = simulator.features(states) @ weights
    if simulator.stop:
        q = np.concatenate([q, simulator.stop(states)[:, None]], axis=1)
        # Of equals, to stop: the last.
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
      set: the family of sets.
      features: [N, D].
      fit: [D, N] their pseudo-inverse.
      probability: [N, K].
      reward: [N, K].
      following: [N, K, D].
      paid: [N, K].
      radius: of the sets.
      discount: γ.
      tol: relative change to stop at.
    """
    worst_case = jax.vmap(sets.on_support(SETS[set].worst_case), (0, 0, None))
    gain = reward + discount * paid

    def step(now: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        weights, fitted, _, _, count = now
        target = worst_case(probability, gain + discount * following @ weights, radius).value
        renewed = fit @ target
        seen = features @ renewed
        return renewed, seen, jnp.max(jnp.abs(seen - fitted)), jnp.max(jnp.abs(seen)), count + 1

    def unfinished(now: tuple[jax.Array, ...]) -> jax.Array:
        _, _, change, largest, count = now
        return (change > tol * (1 + largest)) & (count < _LIMIT) & (largest < 1e100)

    begin = (jnp.zeros(features.shape[1]), jnp.zeros(features.shape[0]), jnp.inf, 0.0, 0)
    weights, _, change, largest, count = jax.lax.while_loop(unfinished, step, jax.tree.map(jnp.asarray, begin))
    return weights, change, largest, count


@functools.partial(jax.jit, static_argnums=0)
def _largest(set: str, rows: jax.Array, radius: jax.Array) -> jax.Array:
    """[R, K] the largest probability that each outcome has in the set around its row."""
    best_case = sets.optimistic(sets.on_support(SETS[set].worst_case))
    each = jax.vmap(jax.vmap(best_case, (None, 0, None)), (0, None, None))
    return each(rows, jnp.eye(rows.shape[1], dtype=rows.dtype), radius).value
