"""Models estimated from samples, and radii of sets that contain the true model."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.model import RMDP, assemble, broadcast, ids, nowhere
from deeprok.uncertainty.radii import RULES

#: What to do with actions that were never observed.
UnseenActions = Literal["refuse", "leave_out"]


def from_samples(
    state: ArrayLike,
    action: ArrayLike,
    successor: ArrayLike,
    reward: ArrayLike,
    unseen_reward: ArrayLike | None = None,
    possible: ArrayLike | None = None,
    unseen_actions: UnseenActions = "refuse",
) -> RMDP:
    """A model from samples: frequencies as probabilities, mean rewards, and `counts` [S, A].

    A successor that was not observed may still be possible. So nature may move mass to every state, or to those that
    are `possible`. `radii` gives the size of sets that contain the true transition probabilities. Rewards are taken as
    observed.

    Nothing is known of an action that was never observed in a state. `unseen_actions="leave_out"` removes it. The
    values of `solve` are then those of policies that never take it. They are still a lower bound of the optimal value,
    but with `objective="optimistic"` not an upper bound.

    Args:
      state: [N] ids from 0 to S − 1; a terminal state needs a sample of a transition to itself.
      action: [N] ids from 0 to A − 1.
      successor: [N] ids of states.
      reward: [N].
      unseen_reward: the reward of successors that were not observed, or a lower bound of it: a number, [S, A]
        or [S, A, S]. If it is not given, the observed rewards must not depend on the successor.
      possible: [S, S] or [S, A, S], which successors are possible; all if not given.
      unseen_actions: `refuse` (raise an error) or `leave_out`.
    """
    s, a, t = (ids(x, name) for x, name in ((state, "state"), (action, "action"), (successor, "successor")))
    r = np.asarray(reward, float)
    if not (s.ndim == 1 and s.shape == a.shape == t.shape == r.shape):
        shapes = ", ".join(str(x.shape) for x in (s, a, t, r))
        raise DeeprokError(f"state, action, successor and reward have the shapes {shapes}; give lists of one length")
    if unseen_actions not in get_args(UnseenActions):
        raise unknown("unseen_actions", unseen_actions, get_args(UnseenActions))
    if not s.size or min(s.min(), a.min(), t.min()) < 0:
        return assemble(s, a, t, np.ones(len(s)), r, nowhere)  # raises the right error
    pair, which = np.unique(s * (a.max() + 1) + a, return_inverse=True)
    weight = 1.0 / np.bincount(which)[which]
    model = assemble(s, a, t, weight, r, nowhere)
    counts = np.zeros(model.states * model.actions, np.int64)
    counts[pair] = np.bincount(which)
    never = np.argwhere(~model.valid)
    if len(never) and unseen_actions == "refuse":
        raise DeeprokError(
            f"(s, a) = ({never[0, 0]}, {never[0, 1]}) and {len(never) - 1} others of {model.valid.size} were never"
            " observed; unseen_actions='leave_out' finds a policy that does not take them"
        )
    full = _with_unseen(model, unseen_reward, possible)
    return dataclasses.replace(full, counts=counts.reshape(model.states, model.actions))


def _with_unseen(model: RMDP, reward: ArrayLike | None, possible: ArrayLike | None) -> RMDP:
    """A model of samples with its possible but unobserved successors; see `from_samples`."""
    S, A = model.states, model.actions
    constant = model.constant
    if reward is None and possible is None and constant.all():
        return dataclasses.replace(model, support="all")
    allowed = np.ones((S, 1, S), bool) if possible is None else np.asarray(possible, bool)
    allowed = broadcast(allowed[:, None] if allowed.ndim == 2 else allowed, (S, A, S), "possible")
    state, action = np.divmod(model.row, A)
    stray = np.flatnonzero(~allowed[state, action, model.successor])
    if stray.size:
        i = stray[0]
        raise DeeprokError(
            f"possible is false for (s, a) = ({state[i]}, {action[i]}) and its successor {model.successor[i]}, which"
            " was observed; it must be true for all observed successors"
        )
    unseen = allowed & model.valid[:, :, None]
    unseen[state, action, model.successor] = False
    if reward is None and not constant.all() and unseen.any():
        here = divmod(int(np.flatnonzero(~constant)[0]), A)
        raise DeeprokError(
            f"the rewards of (s, a) = {here} differ by successor, and {unseen.sum()} possible successors were not"
            " observed; give unseen_reward, a lower bound of their reward, or rule them out by possible"
        )
    first = model.reward[np.minimum(model.start[:-1], len(model.reward) - 1)].reshape(S, A)
    given = first if reward is None else np.asarray(reward, float)
    rewards = broadcast(given[:, :, None] if given.ndim == 2 else given, (S, A, S), "unseen_reward")
    s, a, t = np.nonzero(unseen)
    listed = assemble(
        np.concatenate([state, s]),
        np.concatenate([action, a]),
        np.concatenate([model.successor, t]),
        np.concatenate([model.probability, np.zeros(len(s))]),
        np.concatenate([model.reward, rewards[s, a, t]]),
        nowhere,
        (S, A),
    )
    return dataclasses.replace(listed, support="listed")


def radii(problem: RMDP, confidence: float, rule: str = "weissman") -> np.ndarray:
    """[S, A] radii such that the sets of all rows together contain the true model with a given probability.

    With that probability, the values of `solve` are lower bounds of the true values of its policy. This is true for any
    policy, since the sets of all rows hold at once.

    Args:
      problem: a model made by `from_samples`.
      confidence: the probability, in (0, 1). The error probability is split evenly over the rows.
      rule: a name of `deeprok.uncertainty.RULES`, which lists the sets that it is for.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if problem.counts is None:
        raise DeeprokError("the problem has no counts; make it with from_samples")
    if not 0 < confidence < 1:
        raise DeeprokError(f"confidence is {confidence:g}; it must lie between 0 and 1, both excluded")
    length = np.diff(problem.start)
    outcomes = np.where((length > 0) & (problem.support == "all"), problem.states, length)
    # A row without samples counts too: which rows are visited is random, and all of them are to hold.
    doubtful = int((outcomes != 1).sum())
    each = 1 - (1 - confidence) / max(1, doubtful)
    levels = np.zeros(len(outcomes))
    for size in np.unique(outcomes[outcomes > 0]).tolist():
        rows = np.flatnonzero(outcomes == size)
        levels[rows] = RULES[rule].level(_seen(problem, rows), each, outcomes=size)
    return levels.reshape(problem.states, problem.actions)


def _seen(problem: RMDP, rows: np.ndarray) -> np.ndarray:
    """[R, W] how often each successor of some rows was observed, padded with zeros to the longest of them."""
    first, length = problem.start[rows], np.diff(problem.start)[rows]
    place = np.arange(length.max())
    total = np.zeros(len(rows)) if problem.counts is None else problem.counts.reshape(-1)[rows]
    p = problem.probability[np.minimum(first[:, None] + place, len(problem.probability) - 1)]
    return np.where((place < length[:, None]) & (total > 0)[:, None], np.rint(p * total[:, None]), 0.0)
