"""What is known of the transitions of a log, seen or not: which are possible, and what they pay."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.counts import Counts, Possible
from deeprok.tabular.model import broadcast
from deeprok.uncertainty.radii import anytime_mean

#: What rewards depend on: state, action and successor, or state and action only.
RewardsBy = Literal["transition", "state-action"]


def check_bounds(counts: Counts, low: float | None, high: float | None) -> None:
    """Raises unless all rewards of a log lie between two bounds, of which each may be missing."""
    for name, bound in (("reward_low", low), ("reward_high", high)):
        if bound is not None and not np.isfinite(bound):
            raise DeeprokError(f"{name} is {bound:g}; it must be a finite number")
    if low is not None and high is not None and not low <= high:
        raise DeeprokError(f"reward_low is {low:g}, above reward_high, {high:g}; it must not be")
    if counts.reward is None:
        return
    least, most = float(counts.reward.min()), float(counts.reward.max())
    if low is not None and least < low:
        raise DeeprokError(f"reward_low is {low:g}, but the log has a reward of {least:g}, which is below it")
    if high is not None and most > high:
        raise DeeprokError(f"reward_high is {high:g}, but the log has a reward of {most:g}, which is above it")


def possible_successors(counts: Counts, seen: np.ndarray, support: str | ArrayLike | Possible) -> Possible:
    """The possible successors [S, A, S], and rewards that are given with them."""
    S, A, _ = counts.shape
    nothing = np.full(counts.shape, np.nan)
    if isinstance(support, str):
        if support not in ("all", "seen"):
            raise unknown("support", support, ("all", "seen"))
        possible = np.ones(counts.shape, bool) if support == "all" else counts.listed()
        # Of a state and action without rows nothing is known, also with `seen`.
        return Possible(possible | ~possible.any(-1, keepdims=True), nothing)
    if not isinstance(support, Possible):
        mask = np.asarray(support, bool)
        support = Possible(broadcast(mask[:, None] if mask.ndim == 2 else mask, (S, A, S), "support"), nothing)
    if support.possible.shape != counts.shape or support.reward.shape != counts.shape:
        raise DeeprokError(f"support has the shape {support.possible.shape}; it must be [S, A, S] = {counts.shape}")
    empty = np.argwhere(~support.possible.any(-1))
    if len(empty):
        raise DeeprokError(f"support gives (s, a) = {counts.pair(*empty[0])} no successor; it must have at least one")
    stray = np.argwhere((seen > 0) & ~support.possible)
    if len(stray):
        s, a, t = stray[0]
        raise DeeprokError(
            f"support does not have the successor {counts.states[t]} of (s, a) = {counts.pair(s, a)}, which the log"
            " shows; it must have all that were seen"
        )
    return support


class Rewards(NamedTuple):
    """The rewards of all transitions [S, A, S], NaN where they are not known."""

    mean: np.ndarray
    low: np.ndarray  # what they are at least: lower confidence bounds, if they are noisy
    noisy: bool


def known_rewards(
    counts: Counts, known: Possible, by: RewardsBy, confidence: float, low: float | None, high: float | None
) -> Rewards:
    """The rewards of all transitions.

    Args:
      counts: the log.
      known: possible successors, with rewards.
      by: what rewards depend on.
      confidence: the probability with which all lower bounds of noisy rewards hold, and half of the rest.
      low: the least reward.
      high: the largest reward.
    """
    S, A, _ = counts.shape
    given = known.reward if low is None else np.where(np.isnan(known.reward), low, known.reward)
    if counts.reward is None:
        return Rewards(given, given, False)
    pair = counts.state * A + counts.action
    group = pair if by == "state-action" else pair * S + counts.successor
    size = S * A if by == "state-action" else S * A * S
    n = np.bincount(group, counts.count, size)
    # A row that was seen 0 times says what its transition pays as long as none of its group was seen.
    weight = np.where(n[group] > 0, counts.count, 1)
    total = np.bincount(group, weight, size)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(group, weight * counts.reward, size) / total
    off = np.where(counts.count > 0, np.abs(counts.reward - mean[group]), 0.0)
    noise = off > 1e-9 * (1 + np.abs(counts.reward))
    least = mean
    if noise.any():
        if low is None or high is None:
            i = int(np.flatnonzero(noise)[0])
            s, a, t = counts.state[i], counts.action[i], counts.successor[i]
            way = "" if by == "state-action" else f" on the way to {counts.states[t]}"
            raise DeeprokError(
                f"the rewards of (s, a) = {counts.pair(s, a)}{way} differ, one is {counts.reward[i]:g} and their mean"
                f" {mean[group[i]]:g}; give reward_low and reward_high, between which all rewards lie"
            )
        groups = S * A if by == "state-action" else int(known.possible.sum())
        width = (high - low) * anytime_mean(n, 1 - (1 - confidence) / 2 / groups)
        least = np.where(n > 0, np.maximum(mean - width, low), mean)
    shape = (S, A, 1) if by == "state-action" else counts.shape

    def filled(found: np.ndarray) -> np.ndarray:
        there = np.broadcast_to(found.reshape(shape), counts.shape)
        return np.where(np.isnan(there), given, there)

    return Rewards(filled(mean), filled(least), bool(noise.any()))


def usable_actions(counts: Counts, seen: np.ndarray, possible: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """[S, A] the actions of each state: all whose rewards are known; raises if those that are not are needed."""
    open_ends = possible & np.isnan(reward)
    valid = ~open_ends.any(-1)
    wanted = (seen.sum(-1) > 0) | ~valid.any(-1, keepdims=True)
    wrong = np.argwhere(open_ends & wanted[..., None])
    if len(wrong):
        s, a, t = wrong[0]
        what = "was never seen" if not seen[s, a, t] else "has no reward in the log"
        raise DeeprokError(
            f"the reward of (s, a) = {counts.pair(s, a)} on the way to {counts.states[t]} is not known, as that {what},"
            f" and there are {len(wrong):,} such; give reward_low, the least that rewards can be, or by support the"
            " possible successors with their rewards, or say by rewards='state-action' that they do not depend on the"
            " successor"
        )
    return valid
