"""Robust Markov decision processes as sparse tables.

A model is a list of transitions, sorted by state, action and successor. For a sparse model no array of size S×A×S is
ever created.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError

#: Where nature may move mass: to successors of positive probability, to all listed ones, or to all states.
Support = Literal["nominal", "listed", "all"]

#: Rows whose sum differs from 1 by less than this, as with numbers rounded to six digits, are scaled to sum to 1.
_SLACK = 1e-5
#: Smaller differences are left as they are, so that a file written and read again is the same model.
_ROUNDING = 1e-12

#: The prefix of an error message about transition i of the input: its line in a file, or nothing.
Place = Callable[[int], str]


def nowhere(i: int) -> str:
    """The prefix for transitions that don't come from a file: none."""
    del i
    return ""


@dataclasses.dataclass(frozen=True, eq=False)
class RMDP:
    """A nominal model with S states and A actions, the centre of ambiguity sets.

    The transitions of (s, a) are those from `start[s·A + a]` up to `start[s·A + a + 1]`; there are none if the state
    does not have the action. A transition of probability 0 defines the reward of a successor that nature may choose.

    Attributes:
      states: S.
      actions: A, the largest number of actions of a state.
      start: [S·A + 1].
      successor: [N].
      probability: [N]; those of a state and action sum to 1.
      reward: [N], by successor.
      models: [K, N], the probabilities in each of K models for the set `finite`; `probability` is their mean.
      counts: [S, A], how often each action was observed, if the model comes from samples.
      support: where nature may move mass by default. Samples may lack some possible successors.
    """

    states: int
    actions: int
    start: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    models: np.ndarray | None = None
    counts: np.ndarray | None = None
    support: Support = "nominal"

    @property
    def valid(self) -> np.ndarray:
        """[S, A] which actions each state has."""
        return np.reshape(np.diff(self.start) > 0, (self.states, self.actions))

    @property
    def row(self) -> np.ndarray:
        """[N] the row s·A + a of each transition."""
        return np.repeat(np.arange(self.states * self.actions), np.diff(self.start))

    @property
    def constant(self) -> np.ndarray:
        """[S·A] whether a row has the same reward for all its successors."""
        filled = np.diff(self.start) > 0
        first = self.start[:-1][filled]
        same = np.ones(len(filled), bool)
        same[filled] = np.maximum.reduceat(self.reward, first) == np.minimum.reduceat(self.reward, first)
        return same

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """[S, A, S] probabilities and rewards; rewards of unlisted transitions are 0."""
        index = (*np.divmod(self.row, self.actions), self.successor)
        shape = (self.states, self.actions, self.states)
        probability, reward = np.zeros(shape), np.zeros(shape)
        probability[index], reward[index] = self.probability, self.reward
        return probability, reward


def from_transitions(
    state: ArrayLike,
    action: ArrayLike,
    successor: ArrayLike,
    probability: ArrayLike,
    reward: ArrayLike,
) -> RMDP:
    """A model from a list of transitions in any order.

    Equal transitions are merged: their probabilities are added, their rewards averaged by probability.

    Args:
      state: [N] ids from 0 to S − 1; every state needs an action (a terminal state moves to itself).
      action: [N] ids from 0 to A − 1; a state need not have all actions.
      successor: [N] ids of states.
      probability: [N].
      reward: [N], or one number.
    """
    s, a, t = (ids(x, name) for x, name in ((state, "state"), (action, "action"), (successor, "successor")))
    p, r = np.asarray(probability, float), np.asarray(reward, float)
    if not (s.ndim == 1 and s.shape == a.shape == t.shape == p.shape):
        shapes = ", ".join(str(x.shape) for x in (s, a, t, p))
        raise DeeprokError(
            f"state, action, successor and probability have the shapes {shapes}; give lists of one length"
        )
    return assemble(s, a, t, p, broadcast(r, s.shape, "reward"), nowhere)


def from_arrays(probability: ArrayLike, reward: ArrayLike, valid: ArrayLike | None = None) -> RMDP:
    """A model from dense arrays.

    Args:
      probability: [S, A, S]; the last axis is the successor.
      reward: [S], [S, A] or [S, A, S].
      valid: [S, A], which actions each state has; all if not given.
    """
    p, r = np.asarray(probability, float), np.asarray(reward, float)
    if p.ndim != 3 or p.shape[0] != p.shape[2]:
        raise DeeprokError(
            f"probability has the shape {p.shape}; it must be [S, A, S], with the state first and its successor last"
        )
    by_successor = r.ndim == 3
    rewards = broadcast(r[:, None, None] if r.ndim == 1 else r[:, :, None] if r.ndim == 2 else r, p.shape, "reward")
    mask = _mask(valid, p.shape[:2])
    _refuse_empty(p, mask)
    # Rewards by successor are needed where the nominal probability is 0 too, if nature may move mass to all states.
    listed = np.broadcast_to(mask[:, :, None], p.shape) if by_successor else mask[:, :, None] & (p != 0)
    if not (p.min() >= 0 and p.max() <= 1 + _SLACK and np.isfinite(r).all()):
        s, a, t = np.nonzero(listed)
        return assemble(s, a, t, p[listed], rewards[listed], nowhere, p.shape[:2])  # raises the right error
    # The rows are in order already: a large model need not be sorted.
    S, A, _ = p.shape
    length = np.count_nonzero(listed, axis=2).reshape(-1)
    t = np.tile(np.arange(S, dtype=np.int32), S * A)
    if length.min() < S:
        t, p, rewards = t[listed.reshape(-1)], p[listed], rewards[listed]
    return of_rows(S, A, np.concatenate([[0], np.cumsum(length)]), t, p, rewards, nowhere)


def from_successors(
    successor: ArrayLike, probability: ArrayLike, reward: ArrayLike, valid: ArrayLike | None = None
) -> RMDP:
    """A model from lists of successors, padded to one length with probability 0.

    Args:
      successor: [S, A, K] ids of states.
      probability: [S, A, K].
      reward: [S], [S, A] or [S, A, K].
      valid: [S, A], which actions each state has; all if not given.
    """
    t, p, r = ids(successor, "successor"), np.asarray(probability, float), np.asarray(reward, float)
    if p.ndim != 3 or t.shape != p.shape:
        raise DeeprokError(f"successor and probability have the shapes {t.shape} and {p.shape}; both must be [S, A, K]")
    rewards = broadcast(r[:, None, None] if r.ndim == 1 else r[:, :, None] if r.ndim == 2 else r, p.shape, "reward")
    mask = _mask(valid, p.shape[:2])
    _refuse_empty(p, mask)
    listed = mask[:, :, None] & (p != 0)
    s, a, _ = np.nonzero(listed)
    return assemble(s, a, t[listed], p[listed], rewards[listed], nowhere, p.shape[:2])


def from_models(models: Sequence[RMDP]) -> RMDP:
    """A finite set of models, for the ambiguity set `finite`; the nominal model is their mean.

    Args:
      models: K models with the same states, actions and rewards.
    """
    if not models:
        raise DeeprokError("models is empty; give at least one model")
    first = models[0]
    for k, model in enumerate(models[1:], 1):
        if model.valid.shape != first.valid.shape or (model.valid != first.valid).any():
            raise DeeprokError(f"models[{k}] has other states and actions than models[0]; all must have the same")
    keys = [model.row * first.states + model.successor for model in models]
    union = np.unique(np.concatenate(keys))
    probability, reward = np.zeros((len(models), len(union))), np.full(len(union), np.nan)
    for k, (model, key) in enumerate(zip(models, keys, strict=True)):
        place = np.searchsorted(union, key)
        probability[k, place] = model.probability
        clash = np.flatnonzero(np.abs(reward[place] - model.reward) > 1e-12 * (1 + np.abs(model.reward)))
        if clash.size:
            s, a = divmod(int(model.row[clash[0]]), first.actions)
            raise DeeprokError(
                f"models[{k}] has the reward {model.reward[clash[0]]:g} where an earlier one has"
                f" {reward[place[clash[0]]]:g}, at (s, a) = ({s}, {a}); models of one set share their rewards"
            )
        reward[place] = model.reward
    row, successor = np.divmod(union, first.states)
    start = np.searchsorted(row, np.arange(first.states * first.actions + 1))
    return RMDP(
        first.states, first.actions, start, successor.astype(np.int32), probability.mean(0), reward, models=probability
    )


def assemble(
    s: np.ndarray,
    a: np.ndarray,
    t: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    place: Place,
    shape: tuple[int, ...] | None = None,
) -> RMDP:
    """Checks transitions, sorts them and merges equal ones.

    Args:
      s: [N] states.
      a: [N] actions.
      t: [N] successors.
      p: [N] probabilities.
      r: [N] rewards.
      place: the prefix of an error message about a transition.
      shape: (S, A), if known; else the largest ids decide.
    """
    if not s.size:
        raise DeeprokError("the model has no transitions; give at least one")

    def fail(bad: np.ndarray, sentence: Callable[[int], str]) -> None:
        found = np.flatnonzero(bad)
        if found.size:
            i = int(found[0])
            raise DeeprokError(f"{place(i)}(s, a) = ({s[i]}, {a[i]}) {sentence(i)}")

    fail((s < 0) | (a < 0) | (t < 0), lambda i: f"goes to {t[i]}; ids of states and actions count from 0")
    fail(
        ~((p >= 0) & (p <= 1 + _SLACK)),
        lambda i: f"goes to state {t[i]} with probability {p[i]:g}; probabilities lie between 0 and 1",
    )
    fail(~np.isfinite(r), lambda i: f"has the reward {r[i]:g} on the way to state {t[i]}; rewards are finite numbers")
    S, A = shape or (_count(s, "state", t), _count(a, "action"))
    fail(t >= S, lambda i: f"goes to state {t[i]}; there are only the states 0 to {S - 1}")
    row = s * A + a
    key = row * S + t
    order = None if (np.diff(key) > 0).all() else np.argsort(key, kind="stable")
    if order is not None:
        key, row, t, p, r = (x[order] for x in (key, row, t, p, r))
        first = np.flatnonzero(np.diff(key, prepend=-1))
        if len(first) < len(key):
            mass = np.add.reduceat(p, first)
            mean = np.add.reduceat(p * r, first) / np.where(mass > 0, mass, 1.0)
            r = np.where(mass > 0, mean, r[first])
            row, t, p = row[first], t[first], mass
            order = order[first]
    start = np.searchsorted(row, np.arange(S * A + 1))
    return of_rows(S, A, start, t, p, r, place if order is None else lambda i: place(int(order[i])))


def of_rows(S: int, A: int, start: np.ndarray, t: np.ndarray, p: np.ndarray, r: np.ndarray, place: Place) -> RMDP:
    """A model from rows [S·A] in order; raises unless they sum to 1, up to rounding."""
    listed = np.flatnonzero(np.diff(start))
    p, r = (np.array(x, float).reshape(-1) for x in (p, r))
    total = np.add.reduceat(p, start[listed])
    wrong = np.flatnonzero(np.abs(total - 1) > _SLACK)
    if wrong.size:
        row = listed[wrong[0]]
        here = divmod(int(row), A)
        raise DeeprokError(
            f"{place(int(start[row]))}the probabilities of (s, a) = {here} sum to {total[wrong[0]]:.9g};"
            " they must sum to 1"
        )
    rounded = np.abs(total - 1) > _ROUNDING
    if rounded.any():
        p /= np.repeat(np.where(rounded, total, 1.0), np.diff(start)[listed])
    return RMDP(S, A, start, t.astype(np.int32, copy=False), p, r)


def _count(ids: np.ndarray, kind: str, successors: np.ndarray | None = None) -> int:
    """The number of states or actions; raises if an id is missing."""
    found = np.unique(ids)
    last = int(max(found[-1], found[-1] if successors is None else successors.max()))
    if len(found) <= last:
        gap = next((i for i, x in enumerate(found.tolist()) if i != x), len(found))
        end = ", and a terminal state moves to itself with reward 0" if kind == "state" else ""
        raise DeeprokError(
            f"{kind} {gap} has no transitions though ids go up to {last}; ids count from 0 without gaps{end}"
        )
    return last + 1


def ids(values: ArrayLike, field: str) -> np.ndarray:
    """Ids of states or actions as int64; raises unless they are whole numbers."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise DeeprokError(f"{field} holds numbers of the type {array.dtype}; ids are whole numbers")
    return array.astype(np.int64)


def broadcast(array: np.ndarray, shape: tuple[int, ...], field: str) -> np.ndarray:
    """Broadcasts an array; raises with the name of the field if it does not fit."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise DeeprokError(f"{field} has the shape {array.shape}, which does not fit {shape}") from error


def _mask(valid: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.ones(shape, bool) if valid is None else np.asarray(valid, bool)
    if mask.shape != shape:
        raise DeeprokError(f"valid has the shape {mask.shape}; it must be [S, A], here {shape}")
    bare = np.flatnonzero(~mask.any(1))
    if bare.size:
        raise DeeprokError(f"valid gives state {bare[0]} no action; a terminal state moves to itself with reward 0")
    return mask


def _refuse_empty(p: np.ndarray, mask: np.ndarray) -> None:
    empty = np.argwhere(mask & ~(p != 0).any(-1))
    if len(empty):
        s, a = empty[0]
        raise DeeprokError(f"the probabilities of (s, a) = ({s}, {a}) sum to 0; they must sum to 1, or valid be false")
