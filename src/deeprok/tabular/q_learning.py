"""Tabular robust Q-learning: the robust values of dynamic programming, learned from one transition at a time.

A reference implementation of two learners. Both use the step size α = 1 / (1 + (1 − γ) n) at the n-th visit of a state
and action, whose sum diverges while the sum of its squares does not (Wainwright's rescaled linear step).

- **A finite set of models.** Each step is simulated in every model k, as for the deep agents. The minimum over models
  must be taken over expectations, not over samples, so each model has its own table,

      Q_k(s, a) ← Q_k(s, a) + α ( r_k + γ max_b min_j Q_j(s'_k, b) − Q_k(s, a) ).

  In expectation this is a γ-contraction, so the theory of asynchronous stochastic approximation applies, and
  min_k Q_k converges to the robust Q. For deterministic models the minimum over samples is the same: it is the target
  of RTD-DQN.
- **A ball around the nominal model**, from which the learner observes samples. It stores the frequencies p̂ and mean
  rewards r̂ of the successors of each state and action:

      Q(s, a) ← Q(s, a) + α ( min { Σ p' (r̂ + γ max_b Q(·, b)) : p' in the ball around p̂ } − Q(s, a) ).

  As p̂ converges to p, this asynchronous iteration converges to the fixed point of the robust Bellman operator.

J. N. Tsitsiklis, "Asynchronous stochastic approximation and Q-learning", Machine Learning 16, 1994.
A. Roy, H. Xu and S. Pokutta, "Reinforcement learning under model mismatch", NeurIPS, 2017.
M. J. Wainwright, "Stochastic approximation with cone-contractive operators: sharp ℓ∞-bounds for
Q-learning", 2019, arXiv:1905.06265.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.pytree import pytree_dataclass
from deeprok.tabular.model import RMDP
from deeprok.tabular.setting import TABULAR_SETS, check_radius
from deeprok.uncertainty import WorstCase, on_support

_CHUNK = 10_000  # steps between progress reports


@pytree_dataclass
class BallLearner:
    """Statistics of the nominal model, and the robust Q-values."""

    q: jax.Array  # [S, A], −∞ for actions that a state does not have
    ahead: jax.Array  # [S] γ max_a q
    counts: jax.Array  # [S, A, S] how often each successor was observed
    reward: jax.Array  # [S, A, S] their mean rewards


@pytree_dataclass
class ModelsLearner:
    """A table for each of K models."""

    q: jax.Array  # [K, S, A], −∞ for actions that a state does not have
    visits: jax.Array  # [S, A]


def start_ball(valid: jax.Array) -> BallLearner:
    """The initial learner, for states that have the actions `valid` [S, A]."""
    nothing = jnp.zeros((*valid.shape, valid.shape[0]))
    return BallLearner(jnp.where(valid, 0.0, -jnp.inf), jnp.zeros(len(valid)), nothing, nothing)


def update_ball(
    learner: BallLearner,
    state: jax.Array,
    action: jax.Array,
    reward: jax.Array,
    successor: jax.Array,
    discount: float | jax.Array,
    worst_case: Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase],
    radius: float | jax.Array,
) -> BallLearner:
    """Updates a learner from one transition.

    Args:
      learner: the learner.
      state: s.
      action: a.
      reward: r.
      successor: s'.
      discount: γ.
      worst_case: of the ambiguity set, from `deeprok.uncertainty`.
      radius: the level of the set at this state and action.
    """
    here = (state, action, successor)
    counts = learner.counts.at[here].add(1.0)
    mean = learner.reward.at[here].add((reward - learner.reward[here]) / counts[here])
    n = jnp.sum(counts[state, action])
    # γ max Q is stored, not computed here: see `operator.Operator` for the reason.
    target = on_support(worst_case)(counts[state, action] / n, mean[state, action] + learner.ahead, radius).value
    old = learner.q[state, action]
    q = learner.q.at[state, action].set(old + (target - old) / (1 + (1 - discount) * n))
    return BallLearner(q, learner.ahead.at[state].set(discount * jnp.max(q[state])), counts, mean)


def start_models(models: int, valid: jax.Array) -> ModelsLearner:
    """The initial learner, for K models whose states have the actions `valid` [S, A]."""
    q = jnp.broadcast_to(jnp.where(valid, 0.0, -jnp.inf), (models, *valid.shape))
    return ModelsLearner(q, jnp.zeros(valid.shape))


def update_models(
    learner: ModelsLearner,
    state: jax.Array,
    action: jax.Array,
    reward: jax.Array,
    successor: jax.Array,
    discount: float | jax.Array,
) -> ModelsLearner:
    """Updates a learner from one step, simulated in all models.

    Args:
      learner: the learner.
      state: s.
      action: a.
      reward: [K] the reward in each model.
      successor: [K] the successor in each model.
      discount: γ.
    """
    visits = learner.visits.at[state, action].add(1.0)
    targets = reward + discount * jnp.max(jnp.min(learner.q[:, successor], axis=0), axis=1)
    old = learner.q[:, state, action]
    rate = 1 / (1 + (1 - discount) * visits[state, action])
    return ModelsLearner(learner.q.at[:, state, action].set(old + rate * (targets - old)), visits)


class Learnt(NamedTuple):
    """The result of `learn`."""

    q: np.ndarray  # [S, A], −∞ for actions that a state does not have
    values: np.ndarray  # [S]
    policy: np.ndarray  # [S]
    visits: np.ndarray  # [S, A]


def learn(
    problem: RMDP,
    set: str = "l1",
    radius: ArrayLike | None = None,
    discount: float = 0.99,
    steps: int = 100_000,
    seed: int = 0,
    exploration: float = 0.3,
    restart: float = 0.1,
    advance: Callable[[float], None] | None = None,
) -> Learnt:
    """Robust Q-learning on a simulation of a model.

    The simulation follows the nominal model. For the set `finite` every step is simulated in all models, with the same
    random number, and continues in one of them, drawn at each step. Balls are restricted to observed successors.

    Args:
      problem: the model to simulate; dense tables of size S×A×S are created.
      set: the family of sets, a name of `deeprok.tabular.TABULAR_SETS`.
      radius: the level of the set: a number, [S] or [S, A]; not needed for sets without a level.
      discount: γ, above 0 and below 1.
      steps: number of transitions.
      seed: random seed.
      exploration: the probability of a random action.
      restart: the probability of a restart from a random state, so that all states are visited.
      advance: called with the fraction of the work done since its last call.
    """
    if set not in TABULAR_SETS:
        raise unknown("set", set, TABULAR_SETS)
    if not 0 < discount < 1:
        raise DeeprokError(f"discount is {discount:g}; it must be above 0 and below 1")
    for field, value in (("exploration", exploration), ("restart", restart)):
        if not 0 <= value <= 1:
            raise DeeprokError(f"{field} is {value:g}; it must lie between 0 and 1")
    if steps < 1:
        raise DeeprokError(f"steps is {steps}; it must be at least 1")
    of_models = TABULAR_SETS[set].of_models
    if of_models and problem.models is None:
        raise DeeprokError(f"set is '{set}', but the problem has no models; make it with from_models")
    level = check_radius(problem, set, radius, "sa")
    with jax.enable_x64(True):
        env = _env(problem, of_models)
        valid = jnp.asarray(problem.valid)
        learner = start_models(len(env.cumulative), valid) if of_models else start_ball(valid)
        play = functools.partial(_play, set, jnp.float64(discount), jnp.asarray(level), env)
        carry, key = (learner, jnp.int64(0)), jax.random.key(seed)
        for begin in range(0, steps, _CHUNK):
            count = min(_CHUNK, steps - begin)
            draws = jax.random.uniform(jax.random.fold_in(key, begin), (_CHUNK, 6))
            carry = play(carry, draws, jnp.float64(exploration), jnp.float64(restart), jnp.int64(count))
            jax.block_until_ready(carry)
            if advance:
                advance(count / steps)
        learner = carry[0]
        q = np.asarray(jnp.min(learner.q, axis=0) if isinstance(learner, ModelsLearner) else learner.q)
        visits = np.asarray(
            learner.visits if isinstance(learner, ModelsLearner) else jnp.sum(learner.counts, axis=-1)
        ).astype(int)
    return Learnt(q, q.max(1), q.argmax(1), visits)


class _Environment(NamedTuple):
    """The simulated model or models."""

    cumulative: jax.Array  # [K, S, A, S]
    reward: jax.Array  # [S, A, S]


def _env(problem: RMDP, models: bool) -> _Environment:
    _, reward = problem.dense()
    table = problem.models if models and problem.models is not None else problem.probability[None]
    dense = np.zeros((len(table), *reward.shape))
    dense[:, *np.divmod(problem.row, problem.actions), problem.successor] = table
    return _Environment(jnp.cumsum(jnp.asarray(dense), axis=-1), jnp.asarray(reward))


_Carry = tuple[BallLearner | ModelsLearner, jax.Array]  # learner and state


@functools.partial(jax.jit, static_argnums=0)
def _play(
    set: str,
    discount: jax.Array,
    level: jax.Array,
    env: _Environment,
    carry: _Carry,
    draws: jax.Array,
    exploration: jax.Array,
    restart: jax.Array,
    count: jax.Array,
) -> _Carry:
    """The first `count` steps of a chunk, one for each row of random numbers."""
    models, S, *_ = env.cumulative.shape

    def step(t: jax.Array, carry: _Carry) -> _Carry:
        learner, state = carry
        explores, which, lands, member, restarts, where = draws[t]
        q = jnp.min(learner.q[:, state], axis=0) if isinstance(learner, ModelsLearner) else learner.q[state]
        has = q > -jnp.inf
        drawn = jnp.argmax(jnp.cumsum(has) > which * jnp.sum(has))
        action = jnp.where(explores < exploration, drawn, jnp.argmax(q))
        cumulative = env.cumulative[:, state, action]
        successor = jnp.argmax(cumulative > lands * cumulative[:, -1:], axis=1)
        if isinstance(learner, ModelsLearner):
            reward = env.reward[state, action, successor]
            learner = update_models(learner, state, action, reward, successor, discount)
        else:
            reward = env.reward[state, action, successor[0]]
            ball = TABULAR_SETS[set].worst_case
            learner = update_ball(learner, state, action, reward, successor[0], discount, ball, level[state, action])
        on = successor[jnp.minimum((member * models).astype(int), models - 1)]
        return learner, jnp.where(restarts < restart, jnp.minimum((where * S).astype(on.dtype), S - 1), on)

    return jax.lax.fori_loop(0, count, step, carry)
