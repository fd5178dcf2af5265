"""The model that nature answers with: the worst case of every row, as a model of its own."""

from __future__ import annotations

import jax
import numpy as np

from deeprok.tabular.layout import Block, Layout
from deeprok.tabular.model import RMDP, from_transitions
from deeprok.tabular.operator import Operator


@jax.jit
def _answers(
    operator: Operator, block: Block, i: jax.Array, ahead: jax.Array, policy: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Nature's probabilities in chunk i of a block, the successors and the rewards, [B, A, M]."""
    answer = operator.answer(jax.tree.map(lambda x: x[i], block), ahead, policy)
    return answer.distribution, answer.outcomes.state, answer.outcomes.reward


def worst_model(operator: Operator, layout: Layout, ahead: jax.Array, policy: jax.Array | None) -> RMDP:
    """The model that nature answers with.

    Args:
      operator: L.
      layout: the problem in blocks.
      ahead: [S] γV of successors.
      policy: that nature answers, if one is given.
    """
    position, begin = np.asarray(layout.position), 0
    found: list[tuple[np.ndarray, ...]] = []
    for block in layout.blocks:
        state, valid = np.asarray(block.state), np.asarray(block.valid)
        for i in range(len(state)):
            p, successor, reward = map(np.asarray, _answers(operator, block, i, ahead, policy))
            once = position[state[i]] == begin + np.arange(len(state[i]))  # the last chunk is filled up with one state
            kept = np.nonzero((p > 0) & (valid[i] & once[:, None])[:, :, None])
            found.append((state[i][kept[0]], kept[1], successor[kept], p[kept], reward[kept]))
            begin += len(state[i])
    return from_transitions(*(np.concatenate(column) for column in zip(*found, strict=True)))


def elsewhere_nominal(model: RMDP, problem: RMDP, policy: np.ndarray) -> RMDP:
    """A model where the policy's actions are taken, the nominal problem where they are not."""

    def part(of: RMDP, taken: bool) -> tuple[np.ndarray, ...]:
        state, action = np.divmod(of.row, of.actions)
        kept = (action == policy[state]) == taken
        return tuple(x[kept] for x in (state, action, of.successor, of.probability, of.reward))

    return from_transitions(*map(np.concatenate, zip(part(model, True), part(problem, False), strict=True)))
