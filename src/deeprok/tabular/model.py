"""Robust Markov decision processes as sparse tables, and their CSV files.

A model is its list of transitions, sorted by state, action and successor. Nothing of size S×A×S is
ever made of a sparse one. The columns of the CSV files are those of craam2:

    idstatefrom,idaction,idstateto,probability,reward
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.core.pytree import record
from deeprok.uncertainty.radii import RULES

#: Where nature may move mass: to successors of positive probability, to all that are listed, or to all states.
Support = Literal["nominal", "listed", "all"]
#: What becomes of actions that samples don't show.
UnseenActions = Literal["refuse", "leave_out"]

COLUMNS = ("idstatefrom", "idaction", "idstateto", "probability", "reward")

#: Rows may miss 1 by as much as numbers rounded to six digits do; they are then scaled to sum to 1.
_SLACK = 1e-5
#: Rounding of sums, which is left as it is: a file that is written and read again is the same model.
_ROUNDING = 1e-12

#: Lines made at once when a file is written: a hundred bytes each is all the memory it takes.
_LINES = 1 << 18

#: How the sentence about transition i of the input begins: its line in a file, or nothing.
_Place = Callable[[int], str]


@dataclasses.dataclass(frozen=True, eq=False)
class RMDP:
    """A model with S states and A actions around which sets of models are drawn.

    Transitions of (s, a) are those from `start[s·A + a]` up to `start[s·A + a + 1]`; there are none if
    the state does not have the action. A transition of probability 0 says what reward it would have.

    Attributes:
      states: S.
      actions: A, the most that a state has.
      start: [S·A + 1].
      successor: [N].
      probability: [N], those of a state and action sum to 1.
      reward: [N], by successor.
      models: [K, N], the probabilities in each of K models for the set `finite`; `probability` is their mean.
      counts: [S, A], how often each action was seen, if the model is made of samples.
      support: where nature may move mass if solvers are not told. The successors of a model that is known
        are known; samples need not show all there are.
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
        """[N] the row s·A + a that each transition belongs to."""
        return np.repeat(np.arange(self.states * self.actions), np.diff(self.start))

    @property
    def constant(self) -> np.ndarray:
        """[S·A] whether the rewards of a row are the same for all its successors."""
        filled = np.diff(self.start) > 0
        first = self.start[:-1][filled]
        same = np.ones(len(filled), bool)
        same[filled] = np.maximum.reduceat(self.reward, first) == np.minimum.reduceat(self.reward, first)
        return same

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """[S, A, S] probabilities and rewards; rewards of transitions that are not listed are 0."""
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
    """A model from its transitions in any order.

    Equal transitions are joined: probabilities are added, rewards averaged by probability.

    Args:
      state: [N] ids from 0 to S − 1; every state needs an action (a terminal one moves to itself).
      action: [N] ids from 0 to A − 1; a state need not have all.
      successor: [N] ids of states.
      probability: [N].
      reward: [N], or one number.
    """
    s, a, t = (_ids(x, name) for x, name in ((state, "state"), (action, "action"), (successor, "successor")))
    p, r = np.asarray(probability, float), np.asarray(reward, float)
    if not (s.ndim == 1 and s.shape == a.shape == t.shape == p.shape):
        shapes = ", ".join(str(x.shape) for x in (s, a, t, p))
        raise DeeprokError(
            f"state, action, successor and probability have the shapes {shapes}; give lists of one length"
        )
    return _assemble(s, a, t, p, _broadcast(r, s.shape, "reward"), lambda i: "")


def from_arrays(probability: ArrayLike, reward: ArrayLike, valid: ArrayLike | None = None) -> RMDP:
    """A model from dense arrays.

    Args:
      probability: [S, A, S], the last axis is the successor.
      reward: [S], [S, A] or [S, A, S].
      valid: [S, A], which actions each state has; all if not given.
    """
    p, r = np.asarray(probability, float), np.asarray(reward, float)
    if p.ndim != 3 or p.shape[0] != p.shape[2]:
        raise DeeprokError(
            f"probability has the shape {p.shape}; it must be [S, A, S], with the state first and its successor last"
        )
    by_successor = r.ndim == 3
    rewards = _broadcast(r[:, None, None] if r.ndim == 1 else r[:, :, None] if r.ndim == 2 else r, p.shape, "reward")
    mask = _mask(valid, p.shape[:2])
    _refuse_empty(p, mask)
    # A reward by successor matters where the nominal probability is 0 too, if support is on all states.
    listed = np.broadcast_to(mask[:, :, None], p.shape) if by_successor else mask[:, :, None] & (p != 0)
    if not (p.min() >= 0 and p.max() <= 1 + _SLACK and np.isfinite(r).all()):
        s, a, t = np.nonzero(listed)
        return _assemble(s, a, t, p[listed], rewards[listed], lambda i: "", p.shape[:2])  # which says what is wrong
    # Rows that stand in order already: of a large model nothing is sorted, and ids of states are made once.
    S, A, _ = p.shape
    length = np.count_nonzero(listed, axis=2).reshape(-1)
    t = np.tile(np.arange(S, dtype=np.int32), S * A)
    if length.min() < S:
        t, p, rewards = t[listed.reshape(-1)], p[listed], rewards[listed]
    return _of_rows(S, A, np.concatenate([[0], np.cumsum(length)]), t, p, rewards, lambda i: "")


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
    t, p, r = _ids(successor, "successor"), np.asarray(probability, float), np.asarray(reward, float)
    if p.ndim != 3 or t.shape != p.shape:
        raise DeeprokError(f"successor and probability have the shapes {t.shape} and {p.shape}; both must be [S, A, K]")
    rewards = _broadcast(r[:, None, None] if r.ndim == 1 else r[:, :, None] if r.ndim == 2 else r, p.shape, "reward")
    mask = _mask(valid, p.shape[:2])
    _refuse_empty(p, mask)
    listed = mask[:, :, None] & (p != 0)
    s, a, _ = np.nonzero(listed)
    return _assemble(s, a, t[listed], p[listed], rewards[listed], lambda i: "", p.shape[:2])


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

    That a successor was not seen does not mean that there is none: nature may move mass to every state, or
    to those that are `possible`. `radii` gives the sets that then hold the true model, which
    is about transitions alone: rewards are taken as they were seen.

    An action that a state was never seen to take can't be judged. It is left out only if that is asked for.
    The values of `solve` are then those of policies that never take it, which is all that a lower bound needs;
    an upper one (`objective="optimistic"`) knows nothing of it either.

    Args:
      state: [N] ids from 0 to S − 1; a terminal state needs a sample that stays where it is.
      action: [N] ids from 0 to A − 1.
      successor: [N] ids of states.
      reward: [N].
      unseen_reward: the reward of successors that were not seen, or the least that it may be: a number, [S, A]
        or [S, A, S]. If it is not given, rewards must not depend on the successor in any sample.
      possible: [S, S] or [S, A, S], the successors that there may be; all if not given.
      unseen_actions: `refuse`, or `leave_out`.
    """
    s, a, t = (_ids(x, name) for x, name in ((state, "state"), (action, "action"), (successor, "successor")))
    r = np.asarray(reward, float)
    if not (s.ndim == 1 and s.shape == a.shape == t.shape == r.shape):
        shapes = ", ".join(str(x.shape) for x in (s, a, t, r))
        raise DeeprokError(f"state, action, successor and reward have the shapes {shapes}; give lists of one length")
    if unseen_actions not in get_args(UnseenActions):
        raise unknown("unseen_actions", unseen_actions, get_args(UnseenActions))
    if not s.size or min(s.min(), a.min(), t.min()) < 0:
        return _assemble(s, a, t, np.ones(len(s)), r, lambda i: "")  # which says what is wrong
    pair, seen = np.unique(s * (a.max() + 1) + a, return_inverse=True)
    weight = 1.0 / np.bincount(seen)[seen]
    model = _assemble(s, a, t, weight, r, lambda i: "")
    counts = np.zeros(model.states * model.actions, np.int64)
    counts[pair] = np.bincount(seen)
    never = np.argwhere(~model.valid)
    if len(never) and unseen_actions == "refuse":
        raise DeeprokError(
            f"the samples show no (s, a) = ({never[0, 0]}, {never[0, 1]}), nor {len(never) - 1} others of"
            f" {model.valid.size}; unseen_actions='leave_out' finds a policy that does not take them"
        )
    full = _with_unseen(model, unseen_reward, possible)
    return dataclasses.replace(full, counts=counts.reshape(model.states, model.actions))


def _with_unseen(model: RMDP, reward: ArrayLike | None, possible: ArrayLike | None) -> RMDP:
    """A model of samples with the successors that it may have besides; see `from_samples`."""
    S, A = model.states, model.actions
    constant = model.constant
    if reward is None and possible is None and constant.all():
        return dataclasses.replace(model, support="all")
    allowed = np.ones((S, 1, S), bool) if possible is None else np.asarray(possible, bool)
    allowed = _broadcast(allowed[:, None] if allowed.ndim == 2 else allowed, (S, A, S), "possible")
    state, action = np.divmod(model.row, A)
    stray = np.flatnonzero(~allowed[state, action, model.successor])
    if stray.size:
        i = stray[0]
        raise DeeprokError(
            f"possible is false for (s, a) = ({state[i]}, {action[i]}) and its successor {model.successor[i]}, which"
            " the samples show; it must be true for all that they show"
        )
    unseen = allowed & model.valid[:, :, None]
    unseen[state, action, model.successor] = False
    if reward is None and not constant.all() and unseen.any():
        here = divmod(int(np.flatnonzero(~constant)[0]), A)
        raise DeeprokError(
            f"the rewards of (s, a) = {here} differ by successor, and {unseen.sum()} successors that there may be were"
            " not seen; give unseen_reward, the least that they may bring, or rule them out by possible"
        )
    first = model.reward[np.minimum(model.start[:-1], len(model.reward) - 1)].reshape(S, A)
    given = first if reward is None else np.asarray(reward, float)
    rewards = _broadcast(given[:, :, None] if given.ndim == 2 else given, (S, A, S), "unseen_reward")
    s, a, t = np.nonzero(unseen)
    listed = _assemble(
        np.concatenate([state, s]),
        np.concatenate([action, a]),
        np.concatenate([model.successor, t]),
        np.concatenate([model.probability, np.zeros(len(s))]),
        np.concatenate([model.reward, rewards[s, a, t]]),
        lambda i: "",
        (S, A),
    )
    return dataclasses.replace(listed, support="listed")


def radii(problem: RMDP, confidence: float, rule: str = "weissman") -> np.ndarray:
    """[S, A] radii such that all sets together hold the true model, with a given probability.

    Then the values of `solve` are lower bounds of what its policy is worth in the true model, with that
    probability: whichever policy it is, since all rows are held at once.

    Args:
      problem: a model made by `from_samples`.
      confidence: the probability, in (0, 1). What is missing to 1 is shared by all rows.
      rule: a name of `deeprok.uncertainty.RULES`, which says for which sets it is.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if problem.counts is None:
        raise DeeprokError("the problem has no counts; make it with from_samples")
    if not 0 < confidence < 1:
        raise DeeprokError(f"confidence is {confidence:g}; it must lie between 0 and 1, both excluded")
    length = np.diff(problem.start).reshape(problem.counts.shape)
    outcomes = np.where(problem.valid & (problem.support == "all"), problem.states, length)
    each = 1 - (1 - confidence) / max(1, int((outcomes > 1).sum()))
    levels = np.zeros(outcomes.shape)
    for size in np.unique(outcomes[outcomes > 0]).tolist():
        rows = outcomes == size
        levels[rows] = RULES[rule].level(problem.counts[rows][:, None], each, outcomes=size)
    return levels


def from_models(models: Sequence[RMDP]) -> RMDP:
    """A finite set of models for the set `finite`; the nominal one is their mean.

    Args:
      models: K models of the same states and actions, whose rewards agree.
    """
    if not models:
        raise DeeprokError("models is empty; give at least one model")
    first = models[0]
    for k, model in enumerate(models[1:], 1):
        if model.valid.shape != first.valid.shape or (model.valid != first.valid).any():
            raise DeeprokError(f"models[{k}] has not the states and actions of models[0]; all must have the same")
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


def read_csv(path: str | Path) -> RMDP:
    """Reads a model from a file with the columns `COLUMNS`, in any order."""
    path = Path(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = [name.strip() for name in file.readline().split(",")]
            missing = [name for name in COLUMNS if name not in header]
            surplus = [name for name in header if name not in COLUMNS]
            if missing or surplus or len(header) != len(COLUMNS):
                surplus_name = _shown((surplus or header)[-1])
                wrong = f"no column {missing[0]}" if missing else f"the column '{surplus_name}' too many"
                seen = f"the columns {_shown(','.join(header))}" if any(header) else "an empty first line"
                raise DeeprokError(f"{path}, line 1: there is {wrong} in {seen}; needed are {','.join(COLUMNS)}")
            kinds = np.dtype([(name, np.int64 if name.startswith("id") else np.float64) for name in header])
            body = itertools.dropwhile(lambda line: not line.strip(), file)
            first = next(body, None)
            if first is None:
                raise DeeprokError(f"{path} has no transitions; each line after the first is one")
            try:
                table = np.loadtxt(itertools.chain([first], body), kinds, comments=None, delimiter=",", ndmin=1)
            except ValueError as error:
                raise _unreadable(path, header) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DeeprokError(f"can't read {path}: {reason}") from error
    s, a, t, p, r = (table[name] for name in COLUMNS)
    return _assemble(s, a, t, p, r, lambda i: f"{path}, line {_line(path, i)}: ")


def write_csv(problem: RMDP, path: str | Path) -> None:
    """Writes the nominal model to a file that `read_csv` reads as the same."""
    state, action = np.divmod(problem.row, problem.actions)
    columns = (state, action, problem.successor, problem.probability, problem.reward)
    parts = [",".join(COLUMNS).encode()]
    for i in range(0, len(state), _LINES):
        texts = (map(repr, column[i : i + _LINES].tolist()) for column in columns)
        parts.append("\n".join(map(",".join, zip(*texts, strict=True))).encode())
    write_atomically(Path(path), b"\n".join([*parts, b""]))


def _assemble(
    s: np.ndarray,
    a: np.ndarray,
    t: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    place: _Place,
    shape: tuple[int, ...] | None = None,
) -> RMDP:
    """Checks transitions, sorts them and joins equal ones.

    Args:
      s: [N] states.
      a: [N] actions.
      t: [N] successors.
      p: [N] probabilities.
      r: [N] rewards.
      place: how the sentence about a transition begins.
      shape: (S, A) if known; else all ids that occur.
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
    return _of_rows(S, A, start, t, p, r, place if order is None else lambda i: place(int(order[i])))


def _of_rows(S: int, A: int, start: np.ndarray, t: np.ndarray, p: np.ndarray, r: np.ndarray, place: _Place) -> RMDP:
    """A model of rows [S·A] in order, if they sum to 1; those that nearly do are scaled."""
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
    """How many states or actions there are; raises if an id is left out."""
    found = np.unique(ids)
    last = int(max(found[-1], found[-1] if successors is None else successors.max()))
    if len(found) <= last:
        gap = next((i for i, x in enumerate(found.tolist()) if i != x), len(found))
        end = ", and a terminal state moves to itself with reward 0" if kind == "state" else ""
        raise DeeprokError(
            f"{kind} {gap} has no transitions though ids go up to {last}; ids count from 0 without gaps{end}"
        )
    return last + 1


def _ids(values: ArrayLike, field: str) -> np.ndarray:
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise DeeprokError(f"{field} holds numbers of the type {array.dtype}; ids are whole numbers")
    return array.astype(np.int64)


def _broadcast(array: np.ndarray, shape: tuple[int, ...], field: str) -> np.ndarray:
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


def _line(path: Path, index: int) -> int:
    """The line of a transition; empty lines don't count."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip() and number > 1)
        return next(itertools.islice(lines, index, None))


def _shown(text: str) -> str:
    """What a sentence shows of a text from a file: one line of 80 characters at most."""
    plain = " ".join(text.split())
    return plain if len(plain) <= 80 else plain[:79] + "…"


def _unreadable(path: Path, header: list[str]) -> DeeprokError:
    """Looks for the line that could not be read."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(file, 1):
            cells = line.split(",")
            if number == 1 or not line.strip():
                continue
            if len(cells) != len(header):
                return DeeprokError(
                    f"{path}, line {number}: there are {len(cells)} values; there must be {len(header)}"
                )
            for name, text in zip(header, cells, strict=True):
                kind, convert = ("a whole number", int) if name.startswith("id") else ("a number", float)
                try:
                    convert(text)
                except ValueError:
                    return DeeprokError(f"{path}, line {number}: {name} is '{_shown(text)}'; it must be {kind}")
    return DeeprokError(f"can't read {path}: its lines are not those of a model")


# --- rows of one length, for the device ----------------------------------------------------------------


@record
class Block:
    """States whose rows are padded to one length W, in chunks that fit the cache: C chunks of B states.

    Padding repeats the first outcome with probability 0. A state that lacks an action has a row of one
    outcome there, which counts for nothing.
    """

    state: jax.Array  # [C, B] int32
    valid: jax.Array  # [C, B, A] bool
    length: jax.Array | None  # [C, B, A] int32, outcomes that are no padding, if some are
    successor: jax.Array  # [C, B, A, W] int32
    probability: jax.Array  # [C, B, A, W], or [C, B, A, K, W] of K models
    reward: jax.Array  # [C, B, A, W], or [C, B, A, 1] where it does not depend on the successor
    radius: jax.Array  # [C, B, A], or [C, B] if shared over the actions


@record
class Layout:
    """All states, in blocks of similar size: one long row does not pad all the others."""

    blocks: tuple[Block, ...]
    position: jax.Array  # [S] int32, where each state stands when blocks are joined


_CELLS = 1 << 12  # outcomes in a chunk: all that is computed of them stays near the processor


def lay_out(problem: RMDP, radius: np.ndarray, models: bool, zeros: bool, everywhere: bool) -> Layout:
    """The model as blocks.

    Args:
      problem: the model.
      radius: [S, A] or [S].
      models: whether to lay out the K models instead of the nominal one.
      zeros: whether to keep transitions of nominal probability 0.
      everywhere: whether to make chunks small enough for rows as long as there are states.
    """
    table = problem.models if models and problem.models is not None else problem.probability[None]
    kept = np.flatnonzero(np.ones(len(problem.reward), bool) if zeros else (table > 0).any(0))
    row, successor, reward, table = problem.row[kept], problem.successor[kept], problem.reward[kept], table[:, kept]
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
        blocks.append(
            Block(
                jnp.asarray(padded, jnp.int32),
                jnp.asarray(length[rows] > 0),
                None if real.all() else jnp.asarray(np.maximum(length[rows], 1), jnp.int32),
                jnp.asarray(successor[place], jnp.int32),
                jnp.asarray(probability if models else probability[..., 0, :]),
                jnp.asarray(rewards[..., :1] if constant else rewards),
                jnp.asarray(radius[padded] if radius.ndim == 1 else radius[padded, :actions]),
            )
        )
        places.append(padded.reshape(-1))
    joined = np.concatenate(places)
    position = np.zeros(S, np.int32)
    position[joined[::-1]] = np.arange(len(joined))[::-1]
    return Layout(tuple(blocks), jnp.asarray(position))


def _groups(actions: np.ndarray, width: np.ndarray) -> list[np.ndarray]:
    """States of similar size together, in as few groups as a quarter more padding allows, or a chunk of it.

    Each group is compiled for, which takes longer than to work on some padding.

    Args:
      actions: [S] how many actions each state has.
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
