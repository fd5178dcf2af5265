"""The robust Bellman operator: one step of dynamic programming against nature.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research 30(2), 2005.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
matrices", Operations Research 53(5), 2005.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.tabular.layout import Block, Columns, Table, join, restrict
from deeprok.tabular.s_rectangular import by_tangents, of_policy_by_tangents
from deeprok.uncertainty.sets import AmbiguitySet, Tangent, WorstCase
from deeprok.uncertainty.sets.shared_budget import Shared

#: Outcomes to look at: nominal successors, all that are listed, nominal ones and the worst state, all states.
Reach = Literal["nominal", "listed", "worst", "every"]


class Rules(NamedTuple):
    """What the operator is compiled for."""

    set: AmbiguitySet | None  # None if nature is absent
    sign: int  # 1: nature is the enemy, −1: a friend, 0: absent
    shared: bool  # whether the actions of a state share a budget
    reach: Reach

    @property
    def by_tangents(self) -> bool:
        """Whether a shared budget is solved by tangents, as the set has no method of its own."""
        return self.set is not None and self.set.shared is None


class Backup(NamedTuple):
    """LV and what goes with it."""

    values: jax.Array  # [S]
    policy: jax.Array  # [S] or [S, A]
    q: jax.Array  # [S, A]


class Outcomes(NamedTuple):
    """What may follow a state and action."""

    p: jax.Array  # [M], or [K, M] of K models
    values: jax.Array  # [M] such that nature wants the least
    state: jax.Array  # [M] int32
    reward: jax.Array  # [M]


class Answer(NamedTuple):
    """Nature's answer in one state."""

    q: jax.Array  # [A]
    distribution: jax.Array  # [A, M]
    outcomes: Outcomes  # [A, ...]
    shared: tuple[jax.Array, jax.Array] | None  # [] the value and [A] the policy, if actions share a budget


@functools.partial(jax.tree_util.register_dataclass, data_fields=["table", "extra"], meta_fields=["rules"])
@dataclasses.dataclass(frozen=True)
class Operator:
    """The robust Bellman operator L of a problem.

    Values come in as γV, and as an array in memory rather than one about to be computed. Sets compare values with one
    another, and the compiler may compute a value anew for each comparison. It may then round a product and a
    sum once in one place and twice in another, and a value can be less than itself. A sum alone is always the same.

    Attributes:
      table: the problem on the device.
      extra: [S] weights or [S, S] costs of successors, if the set takes some.
      rules: what it is compiled for.
    """

    table: Table
    extra: jax.Array | None
    rules: Rules

    @property
    def shape(self) -> tuple[int, int]:
        """How many states there are, and the most actions that one has."""
        if isinstance(self.table, Columns):
            states, actions = self.table.valid.shape
            return states, actions
        return len(self.table.position), max(block.valid.shape[2] for block in self.table.blocks)

    @jax.jit
    def backup(self, ahead: jax.Array, policy: jax.Array | None) -> Backup:
        """LV, for the best policy or a given one.

        Args:
          ahead: [S] γV.
          policy: [S], or [S, A] as it must be if a budget is shared; if it is given.
        """
        table, rules = self.table, self.rules
        if isinstance(table, Columns):
            q = self._columns(table, ahead)
        else:

            def answers(chunk: Block) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
                answer = self.answer(chunk, ahead, policy)
                return answer.q, answer.shared

            found = [jax.lax.map(answers, block) for block in table.blocks]
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
        """The operator of a policy [S]: each state has the one action it takes."""
        return dataclasses.replace(self, table=restrict(self.table, policy))

    def blank(self, policy: jax.Array | None) -> Backup:
        """The shapes of a backup, before there is one."""
        states, actions = self.shape
        q = jnp.zeros((states, actions))
        if policy is None:
            policy = jnp.zeros_like(q) if self.rules.shared else jnp.zeros(states, int)
        return Backup(jnp.zeros(states), policy, q)

    def answer(self, chunk: Block, ahead: jax.Array, policy: jax.Array | None) -> Answer:
        """Nature's answers in the states of a chunk, [B, ...].

        Args:
          chunk: one of a block.
          ahead: [S] γV.
          policy: [S, A] if it is given and a budget is shared; else it does not matter.
        """
        rules = self.rules
        worst = jnp.argmin((rules.sign or 1) * ahead)
        given = policy[chunk.state, : chunk.valid.shape[1]] if rules.shared and policy is not None else None
        state = functools.partial(_answer, self, ahead, worst)
        return jax.vmap(state, (0, None if given is None else 0))(chunk, given)

    def _columns(self, table: Columns, ahead: jax.Array) -> jax.Array:
        """[S, A] the value of each action, all rows at once."""
        rules = self.rules
        if rules.set is None or rules.set.worst_values is None:
            raise TypeError("columns are for sets with worst_values")
        flat = table.columns.reshape(len(ahead), -1)
        worst = rules.set.worst_values(flat, rules.sign * ahead, table.radius.reshape(-1)).reshape(table.reward.shape)
        return jnp.where(table.valid, table.reward + rules.sign * worst, -jnp.inf)


def _answer(operator: Operator, ahead: jax.Array, worst: jax.Array, block: Block, given: jax.Array | None) -> Answer:
    """Nature's answer in one state.

    Args:
      operator: L.
      ahead: [S] γV.
      worst: the state that nature likes best.
      block: one state of it.
      given: [A] the policy that shares a budget, if it is given.
    """
    rules = operator.rules
    row = functools.partial(_outcomes, rules, ahead, worst)
    outcomes = jax.vmap(row)(block.length, block.successor, block.probability, block.reward)
    if rules.set is None or not rules.shared:
        q, distribution = jax.vmap(functools.partial(_worst_case, rules.set, operator.extra))(outcomes, block.radius)
        return Answer(jnp.where(block.valid, (rules.sign or 1) * q, -jnp.inf), distribution, outcomes, None)
    found = _share(rules.set, operator.extra, outcomes, block.valid, given, block.radius)
    expected = jnp.sum(found.distribution * outcomes.values, axis=1)
    q = jnp.where(block.valid, rules.sign * expected, -jnp.inf)
    return Answer(q, found.distribution, outcomes, (rules.sign * found.value, found.policy))


def _outcomes(
    rules: Rules,
    ahead: jax.Array,
    worst: jax.Array,
    length: jax.Array | None,
    successor: jax.Array,
    probability: jax.Array,
    reward: jax.Array,
) -> Outcomes:
    """The outcomes of one row. Padding is worth more than all others, so that no set moves mass there.

    Args:
      rules: of the operator.
      ahead: [S] γV.
      worst: the state that nature likes best.
      length: and what follows: one row of a `Block`.
      successor: see `Block`.
      probability: see `Block`.
      reward: see `Block`.
    """
    reward = jnp.broadcast_to(reward, successor.shape)
    sign = rules.sign or 1
    if rules.reach == "every":
        everywhere = jnp.arange(len(ahead), dtype=jnp.int32)
        p = jnp.zeros_like(ahead).at[successor].add(probability)
        rewards = jnp.full_like(ahead, reward[0]).at[successor].set(reward)
        return Outcomes(p, sign * (rewards + ahead), everywhere, rewards)
    v = sign * (reward + ahead[successor])
    if length is not None:
        real = jnp.arange(len(v)) < length
        high, low = jnp.max(jnp.where(real, v, -jnp.inf)), jnp.min(jnp.where(real, v, jnp.inf))
        v = jnp.where(real, v, high + jnp.where(high > low, high - low, 1.0))
    if rules.reach == "worst":  # its reward is that of the row, whatever the successor
        probability = jnp.append(probability, 0.0)
        v = jnp.append(v, sign * (reward[0] + ahead[worst]))
        successor = jnp.append(successor, worst.astype(successor.dtype))
        reward = jnp.append(reward, reward[0])
    return Outcomes(probability, v, successor, reward)


def _options(family: AmbiguitySet, extra: jax.Array | None, outcomes: Outcomes) -> tuple[jax.Array, ...]:
    """What a set is told of the outcomes of one row: their weights, or the costs between them."""
    state = outcomes.state
    if family.takes_cost:
        apart = jnp.abs(state[:, None] - state[None, :]).astype(outcomes.values.dtype)
        return (apart if extra is None else extra[state][:, state],)
    return () if extra is None else (extra[state],)


def _worst_case(
    family: AmbiguitySet | None, extra: jax.Array | None, outcomes: Outcomes, level: jax.Array
) -> WorstCase:
    """What nature makes of one row."""
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
    """What nature makes of a state whose actions share a budget, for the best policy or a given one.

    Args:
      family: the set.
      extra: weights or costs.
      outcomes: [A, ...].
      valid: [A] which actions there are.
      given: [A] the policy, if it is given.
      budget: the level that is shared.
    """
    third = valid if given is None else given
    if family.shared is not None:
        backup = family.shared.best_policy if given is None else family.shared.of_policy
        return backup(outcomes.p, outcomes.values, third, budget)

    def tangent(of: Outcomes, level: jax.Array) -> Tangent:
        if family.tangent is None:
            raise TypeError("the set has neither tangents nor a method for shared budgets")
        return family.tangent(of.p, of.values, level, *_options(family, extra, of))

    least = jnp.min(outcomes.values)  # nearly equal values keep their digits if they are measured from there
    moved = outcomes._replace(values=outcomes.values - least)
    tangents = functools.partial(jax.vmap(tangent), moved)
    found = (by_tangents if given is None else of_policy_by_tangents)(tangents, third, budget)
    return found._replace(value=least + found.value)
