"""The robust Bellman operator: one backup of all states in the worst case.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research 30(2), 2005.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
matrices", Operations Research 53(5), 2005.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.tabular.layout import Block, Columns, Table, join, restrict
from deeprok.tabular.s_rectangular import by_tangents, of_policy_by_tangents
from deeprok.uncertainty.sets import AmbiguitySet, Tangent, WorstCase
from deeprok.uncertainty.sets.shared_budget import Shared

T = TypeVar("T")

#: Successors that may get mass: the nominal ones, all listed ones, nominal ones and the worst state, or all states.
Candidates = Literal["nominal", "listed", "worst", "every"]


class Rules(NamedTuple):
    """The static part of the operator: what it is compiled for."""

    set: AmbiguitySet | None  # None for the nominal model
    sign: int  # 1: the worst case, −1: the best case, 0: the nominal model
    shared: bool  # whether the actions of a state share a budget
    candidates: Candidates

    @property
    def by_tangents(self) -> bool:
        """Whether a shared budget is solved by cutting planes, as the set has no method of its own."""
        return self.set is not None and self.set.shared is None


class Backup(NamedTuple):
    """The result LV of a backup, with its policy and Q-values."""

    values: jax.Array  # [S]
    policy: jax.Array  # [S] or [S, A]
    q: jax.Array  # [S, A]


class Outcomes(NamedTuple):
    """Possible successors of a state and action."""

    p: jax.Array  # [M], or [K, M] of K models
    values: jax.Array  # [M] r + γV, with the sign that makes nature minimise
    state: jax.Array  # [M] int32
    reward: jax.Array  # [M]


class StateBackup(NamedTuple):
    """The worst case in one state."""

    q: jax.Array  # [A]
    distribution: jax.Array  # [A, M]
    outcomes: Outcomes  # [A, ...]
    shared: tuple[jax.Array, jax.Array] | None  # [] the value and [A] the policy, if actions share a budget


@functools.partial(jax.tree_util.register_dataclass, data_fields=["table", "extra"], meta_fields=["rules"])
@dataclasses.dataclass(frozen=True)
class Operator:
    """The robust Bellman operator L of a problem.

    Pass γV as a materialised array, not as a product inside the same jitted function. Sets compare values with each
    other, and XLA may recompute r + γV for one comparison with a fused multiply-add and for another without. Then a
    value could be less than itself.

    Attributes:
      table: the model on the device.
      extra: [S] weights or [S, S] costs of successors, if the set takes any.
      rules: the static part.
    """

    table: Table
    extra: jax.Array | None
    rules: Rules

    @property
    def shape(self) -> tuple[int, int]:
        """The number of states, and the largest number of actions of a state."""
        if isinstance(self.table, Columns):
            states, actions = self.table.valid.shape
            return states, actions
        return len(self.table.position), max(block.valid.shape[2] for block in self.table.blocks)

    @jax.jit
    def backup(self, ahead: jax.Array, policy: jax.Array | None) -> Backup:
        """LV, for the best policy or a given one.

        Args:
          ahead: [S] γV.
          policy: [S], or [S, A] (required if a budget is shared); None for the best policy.
        """
        table, rules = self.table, self.rules
        if isinstance(table, Columns):
            q = self._columns(table, ahead)
        else:

            def of_chunk(chunk: Block) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
                found = self.backup_chunk(chunk, ahead, policy)
                return found.q, found.shared

            found = [_over_chunks(of_chunk, block) for block in table.blocks]
            q = join([q for q, _ in found], table.position, -jnp.inf)
            if rules.shared:
                values, mixed = (join([shared[i] for _, shared in found if shared], table.position) for i in (0, 1))
                return Backup(values, mixed, q)
        if policy is None:
            return Backup(jnp.max(q, axis=1), jnp.argmax(q, axis=1), q)
        if policy.ndim == 1:
            return Backup(jnp.take_along_axis(q, policy[:, None], axis=1)[:, 0], policy, q)
        return Backup(jnp.sum(jnp.where(policy > 0, policy * q, 0.0), axis=1), policy, q)

    def of_policy(self, policy: jax.Array) -> Operator:
        """The operator of a policy [S]: each state has only the action that the policy takes."""
        return dataclasses.replace(self, table=restrict(self.table, policy))

    def blank(self, policy: jax.Array | None) -> Backup:
        """A backup of zeros, with the right shapes."""
        states, actions = self.shape
        values, q = np.zeros(states), np.zeros((states, actions))
        if policy is None:
            policy = jax.device_put(q if self.rules.shared else np.zeros(states, int))
        return Backup(jax.device_put(values), policy, jax.device_put(q))

    def backup_chunk(self, chunk: Block, ahead: jax.Array, policy: jax.Array | None) -> StateBackup:
        """The worst case in the states of a chunk, [B, ...].

        Args:
          chunk: a chunk of a block.
          ahead: [S] γV.
          policy: [S, A], if one is given and a budget is shared; otherwise ignored.
        """
        rules = self.rules
        worst = jnp.argmin((rules.sign or 1) * ahead)
        if rules.shared:
            given = None if policy is None else policy[chunk.state, : chunk.valid.shape[1]]
            state = functools.partial(_backup_state, self, ahead, worst)
            return jax.vmap(state, (0, None if given is None else 0))(chunk, given)
        # One `vmap` over all rows takes half as long to trace as one over states and one over actions.
        rows = (chunk.length, chunk.successor, chunk.probability, chunk.reward, chunk.radius)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        found = jax.vmap(functools.partial(_backup_row, self, ahead, worst))(*flat)
        (q, distribution), outcomes = jax.tree.map(lambda x: x.reshape(*chunk.valid.shape, *x.shape[1:]), found)
        return StateBackup(jnp.where(chunk.valid, (rules.sign or 1) * q, -jnp.inf), distribution, outcomes, None)

    def _columns(self, table: Columns, ahead: jax.Array) -> jax.Array:
        """[S, A] the value of each action, all rows at once."""
        rules = self.rules
        if rules.set is None or rules.set.worst_values is None:
            raise TypeError("columns are for sets with worst_values")
        flat = table.columns.reshape(len(ahead), -1)
        worst = rules.set.worst_values(flat, rules.sign * ahead, table.radius.reshape(-1)).reshape(table.reward.shape)
        return jnp.where(table.valid, table.reward + rules.sign * worst, -jnp.inf)


def _over_chunks(of_chunk: Callable[[Block], T], block: Block) -> T:
    """`jax.lax.map`, but a single chunk needs no loop, which takes time to trace and to compile."""
    if len(block.state) > 1:
        return jax.lax.map(of_chunk, block)
    only = jax.tree.map(lambda x: x.reshape(x.shape[1:]), block)
    return jax.tree.map(lambda x: x.reshape(1, *x.shape), of_chunk(only))


def _backup_row(
    operator: Operator,
    ahead: jax.Array,
    worst: jax.Array,
    length: jax.Array | None,
    successor: jax.Array,
    probability: jax.Array,
    reward: jax.Array,
    radius: jax.Array,
) -> tuple[WorstCase, Outcomes]:
    """The worst case of one state and action, which have a set of their own.

    Args:
      operator: L.
      ahead: [S] γV.
      worst: the worst state.
      length: see `Block`; this and the following are for one row.
      successor: see `Block`.
      probability: see `Block`.
      reward: see `Block`.
      radius: see `Block`.
    """
    outcomes = _outcomes(operator.rules, ahead, worst, length, successor, probability, reward)
    return _worst_case(operator.rules.set, operator.extra, outcomes, radius), outcomes


def _backup_state(
    operator: Operator, ahead: jax.Array, worst: jax.Array, block: Block, given: jax.Array | None
) -> StateBackup:
    """The worst case in one state whose actions share a budget.

    Args:
      operator: L.
      ahead: [S] γV.
      worst: the worst state.
      block: a block with one state.
      given: [A] the policy, if one is given.
    """
    rules = operator.rules
    if rules.set is None:
        raise TypeError("the nominal model has no budget to share")
    row = functools.partial(_outcomes, rules, ahead, worst)
    outcomes = jax.vmap(row)(block.length, block.successor, block.probability, block.reward)
    found = _share(rules.set, operator.extra, outcomes, block.valid, given, block.radius)
    expected = jnp.sum(found.distribution * outcomes.values, axis=1)
    q = jnp.where(block.valid, rules.sign * expected, -jnp.inf)
    return StateBackup(q, found.distribution, outcomes, (rules.sign * found.value, found.policy))


def _outcomes(
    rules: Rules,
    ahead: jax.Array,
    worst: jax.Array,
    length: jax.Array | None,
    successor: jax.Array,
    probability: jax.Array,
    reward: jax.Array,
) -> Outcomes:
    """The outcomes of one row. Padding gets a value above all others, so that no set moves mass there.

    Args:
      rules: the operator's static part.
      ahead: [S] γV.
      worst: the worst state.
      length: see `Block`; this and the following are for one row.
      successor: see `Block`.
      probability: see `Block`.
      reward: see `Block`.
    """
    reward = jnp.broadcast_to(reward, successor.shape)
    sign = rules.sign or 1
    if rules.candidates == "every":
        everywhere = jnp.arange(len(ahead), dtype=jnp.int32)
        p = jnp.zeros_like(ahead).at[successor].add(probability)
        rewards = jnp.full_like(ahead, reward[0]).at[successor].set(reward)
        return Outcomes(p, sign * (rewards + ahead), everywhere, rewards)
    v = sign * (reward + ahead[successor])
    if length is not None:
        real = jnp.arange(len(v)) < length
        high, low = jnp.max(jnp.where(real, v, -jnp.inf)), jnp.min(jnp.where(real, v, jnp.inf))
        v = jnp.where(real, v, high + jnp.where(high > low, high - low, 1.0))
    if rules.candidates == "worst":  # the row's reward does not depend on the successor
        probability = jnp.append(probability, 0.0)
        v = jnp.append(v, sign * (reward[0] + ahead[worst]))
        successor = jnp.append(successor, worst.astype(successor.dtype))
        reward = jnp.append(reward, reward[0])
    return Outcomes(probability, v, successor, reward)


def _options(family: AmbiguitySet, extra: jax.Array | None, outcomes: Outcomes) -> tuple[jax.Array, ...]:
    """A set's further arguments for one row: weights of its outcomes, or costs between them."""
    state = outcomes.state
    if family.takes_cost:
        apart = jnp.abs(state[:, None] - state[None, :]).astype(outcomes.values.dtype)
        return (apart if extra is None else extra[state][:, state],)
    return () if extra is None else (extra[state],)


def _worst_case(
    family: AmbiguitySet | None, extra: jax.Array | None, outcomes: Outcomes, level: jax.Array
) -> WorstCase:
    """The worst case of one row."""
    if family is None:
        return WorstCase(outcomes.p @ outcomes.values, outcomes.p)
    return family.worst_case(outcomes.p, outcomes.values, level, *_options(family, extra, outcomes))


def _share(
    family: AmbiguitySet,
    extra: jax.Array | None,
    outcomes: Outcomes,
    valid: jax.Array,
    given: jax.Array | None,
    budget: jax.Array,
) -> Shared:
    """The worst case in a state whose actions share a budget, for the best policy or a given one.

    Args:
      family: the set.
      extra: weights or costs.
      outcomes: [A, ...].
      valid: [A] which actions the state has.
      given: [A] the policy, if one is given.
      budget: the shared level.
    """
    third = valid if given is None else given
    if family.shared is not None:
        backup = family.shared.best_policy if given is None else family.shared.of_policy
        return backup(outcomes.p, outcomes.values, third, budget)

    def tangent(of: Outcomes, level: jax.Array) -> Tangent:
        if family.tangent is None:
            raise TypeError("the set has neither tangents nor a method for shared budgets")
        return family.tangent(of.p, of.values, level, *_options(family, extra, of))

    least = jnp.min(outcomes.values)  # relative to which nearly equal values lose no digits
    moved = outcomes._replace(values=outcomes.values - least)
    tangents = functools.partial(jax.vmap(tangent), moved)
    found = (by_tangents if given is None else of_policy_by_tangents)(tangents, third, budget)
    return found._replace(value=least + found.value)
