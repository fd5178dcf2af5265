"""The worst-case model: the worst-case distribution of every row, as a model of its own."""

from __future__ import annotations

import jax
import numpy as np

from deeprok.tabular.layout import Block, Layout
from deeprok.tabular.model import RMDP, from_transitions
from deeprok.tabular.operator import Operator


@jax.jit
def _worst_rows(
    operator: Operator, block: Block, i: jax.Array, ahead: jax.Array, policy: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The worst-case probabilities in chunk i of a block, the successors and the rewards, [B, A, M]."""
    found = operator.backup_chunk(jax.tree.map(lambda x: x[i], block), ahead, policy)
    return found.distribution, found.outcomes.state, found.outcomes.reward


def worst_model(operator: Operator, layout: Layout, ahead: jax.Array, policy: jax.Array | None) -> RMDP:
    """The worst-case model for given values.

    Args:
      operator: L.
      layout: the model in blocks.
      ahead: [S] γV of the successors.
      policy: the policy, if one is given; else the best one.
    """
    position, begin = np.asarray(layout.position), 0
    found: list[tuple[np.ndarray, ...]] = []
    for block in layout.blocks:
        state, valid = np.asarray(block.state), np.asarray(block.valid)
        for i in range(len(state)):
            p, successor, reward = map(np.asarray, _worst_rows(operator, block, i, ahead, policy))
            once = position[state[i]] == begin + np.arange(len(state[i]))  # not the padding of the last chunk
            used = np.nonzero((p > 0) & (valid[i] & once[:, None])[:, :, None])
            found.append((state[i][used[0]], used[1], successor[used], p[used], reward[used]))
            begin += len(state[i])
    return from_transitions(*(np.concatenate(column) for column in zip(*found, strict=True)))


def elsewhere_nominal(model: RMDP, problem: RMDP, policy: np.ndarray) -> RMDP:
    """The given model for the policy's actions, the nominal model for all others."""

    def part(of: RMDP, taken: bool) -> tuple[np.ndarray, ...]:
        state, action = np.divmod(of.row, of.actions)
        used = (action == policy[state]) == taken
        return tuple(x[used] for x in (state, action, of.successor, of.probability, of.reward))

    return from_transitions(*map(np.concatenate, zip(part(model, True), part(problem, False), strict=True)))
