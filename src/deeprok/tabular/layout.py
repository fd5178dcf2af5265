"""Memory layout of models on the device: padded rows in chunks that fit the cache, or dense columns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass
from deeprok.tabular.model import RMDP


@pytree_dataclass
class Block:
    """States whose rows are padded to one length W, in C chunks of B states that fit the cache.

    Padding repeats the first outcome with probability 0. For an action that a state does not have there is a dummy row
    with one outcome, which `valid` masks.
    """

    state: jax.Array  # [C, B] int32
    valid: jax.Array  # [C, B, A] bool
    length: jax.Array | None  # [C, B, A] int32, outcomes without padding; None if there is no padding
    successor: jax.Array  # [C, B, A, W] int32
    probability: jax.Array  # [C, B, A, W], or [C, B, A, K, W] of K models
    reward: jax.Array  # [C, B, A, W], or [C, B, A, 1] if it does not depend on the successor
    radius: jax.Array  # [C, B, A], or [C, B] if shared by the actions


@pytree_dataclass
class Layout:
    """All states, in blocks of similar row lengths, so that one long row does not pad all others."""

    blocks: tuple[Block, ...]
    position: jax.Array  # [S] int32, the position of each state in the concatenated blocks


@pytree_dataclass
class Columns:
    """A dense model whose rewards don't depend on the successor, as `AmbiguitySet.worst_values` needs it."""

    columns: jax.Array  # [S', S, A] probabilities, the successor first
    reward: jax.Array  # [S, A]
    radius: jax.Array  # [S, A]
    valid: jax.Array  # [S, A]


#: A model on the device, in either layout.
Table = Layout | Columns

_CELLS = 1 << 12  # outcomes in a chunk, so that intermediate results stay in the cache


def lay_out(problem: RMDP, radius: np.ndarray, models: bool, zeros: bool, everywhere: bool) -> Layout:
    """The model as blocks.

    Args:
      problem: the model.
      radius: [S, A] or [S].
      models: whether to use the K models instead of the nominal one.
      zeros: whether to include transitions of nominal probability 0.
      everywhere: whether chunks must be small enough for rows of all S states.
    """
    table = problem.models if models and problem.models is not None else problem.probability[None]
    used = np.flatnonzero(np.ones(len(problem.reward), bool) if zeros else (table > 0).any(0))
    row, successor, reward, table = problem.row[used], problem.successor[used], problem.reward[used], table[:, used]
    S, A = problem.states, problem.actions
    start = np.searchsorted(row, np.arange(S * A))
    length = np.bincount(row, minlength=S * A)
    by_state = length.reshape(S, A)
    blocks, places = [], []
    for states in _groups(A - np.argmax(by_state[:, ::-1] > 0, axis=1), by_state.max(1)):
        actions = int(A - np.argmax(by_state[states].any(0)[::-1]))
        width = int(by_state[states].max())
        size = max(1, min(len(states), _CELLS // (actions * (S if everywhere else width))))
        chunks = -(-len(states) // size)
        padded = np.pad(states, (0, chunks * size - len(states)), mode="edge").reshape(chunks, size)
        rows = padded[..., None] * A + np.arange(actions)
        real = np.arange(width) < length[rows][..., None]
        place = np.minimum(start[rows][..., None] + np.where(real, np.arange(width), 0), len(row) - 1)
        probability = np.where(real[..., None, :], np.moveaxis(table[:, place], 0, -2), 0.0)
        probability[length[rows] == 0, :, 0] = 1.0
        rewards = reward[place]
        constant = (rewards == rewards[..., :1]).all()
        parts = (
            padded.astype(np.int32),
            length[rows] > 0,
            None if real.all() else np.maximum(length[rows], 1).astype(np.int32),
            successor[place].astype(np.int32),
            probability if models else probability[..., 0, :],
            rewards[..., :1] if constant else rewards,
            radius[padded] if radius.ndim == 1 else radius[padded, :actions],
        )
        blocks.append(Block(*jax.device_put(parts)))  # unlike `jnp.asarray` it compiles nothing
        places.append(padded.reshape(-1))
    joined = np.concatenate(places)
    position = np.zeros(S, np.int32)
    position[joined[::-1]] = np.arange(len(joined))[::-1]
    return Layout(tuple(blocks), jax.device_put(position))


def as_columns(problem: RMDP, radius: np.ndarray) -> Columns:
    """The model as dense columns; its rewards must not depend on the successor.

    Args:
      problem: the model.
      radius: [S, A].
    """
    S, A = problem.states, problem.actions
    if len(problem.reward) == S * A * S:
        rows = problem.probability.reshape(S * A, S)
    else:
        rows = np.zeros((S * A, S))
        rows[problem.row, problem.successor] = problem.probability
    columns = np.ascontiguousarray(rows.T).reshape(S, S, A)
    reward = problem.reward[np.minimum(problem.start[:-1], len(problem.reward) - 1)].reshape(S, A)
    return Columns(*map(jnp.asarray, (columns, reward, radius, problem.valid)))


def join(parts: list[jax.Array], position: jax.Array, missing: float = 0.0) -> jax.Array:
    """Results of the blocks, [C, B, ...] each, in the order of the states [S, ...]."""
    flat = [x.reshape(-1, *x.shape[2:]) for x in parts]
    if flat[0].ndim == 2:
        most = max(x.shape[1] for x in flat)
        flat = [
            x if x.shape[1] == most else jnp.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=missing)
            for x in flat
        ]
    if len(flat) == 1:  # already in order
        return flat[0][: len(position)]
    return jnp.concatenate(flat)[position]


@jax.jit
def restrict(table: Table, policy: jax.Array) -> Table:
    """The model under a policy [S]: each state has only the action that the policy takes."""
    if isinstance(table, Columns):
        states = jnp.arange(len(policy))
        columns = table.columns[:, states, policy][:, :, None]
        reward, radius, valid = (x[states, policy][:, None] for x in (table.reward, table.radius, table.valid))
        return Columns(columns, reward, radius, valid)

    def of(block: Block) -> Block:
        taken = jnp.minimum(policy[block.state], block.valid.shape[2] - 1)

        def pick(x: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x, taken.reshape(taken.shape + (1,) * (x.ndim - 2)), axis=2)

        rows = (block.valid, block.length, block.successor, block.probability, block.reward, block.radius)
        return Block(block.state, *jax.tree.map(pick, rows))

    return Layout(tuple(map(of, table.blocks)), table.position)


def _groups(actions: np.ndarray, width: np.ndarray) -> list[np.ndarray]:
    """Groups of states with similar numbers of actions and outcomes.

    Each group costs a compilation. So groups are merged as long as the additional padding is at most a quarter of all
    outcomes, or one chunk.

    Args:
      actions: [S] the number of actions of each state.
      width: [S] the length of its longest row.
    """
    octave = np.ceil(np.log2(actions)).astype(int) * 64 + np.ceil(np.log2(width)).astype(int)
    classes = [np.flatnonzero(octave == code) for code in np.unique(octave)]

    def cells(states: np.ndarray) -> int:
        return len(states) * int(actions[states].max()) * int(width[states].max())

    classes.sort(key=lambda states: cells(states) / len(states))
    room = max(sum(map(cells, classes)) // 4, _CELLS)
    groups = [classes[0]]
    for states in classes[1:]:
        together = np.union1d(groups[-1], states)
        waste = cells(together) - cells(groups[-1]) - cells(states)
        if waste <= room:
            room -= waste
            groups[-1] = together
        else:
            groups.append(states)
    return groups
