"""A `gymnasium.vector.VectorEnv` that simulates in batch, as a function of states, actions and models.

The state of a row is put back before every step, so that any row can be any episode under any model, and so that the
environment's own resets have no effect. So one step of the environment answers an action for all models, and that of
several episodes, each with the state, parameters and observations that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostOutcome
from deeprok.environments.simulation import (
    Access,
    drawn,
    first_observation,
    random_state,
    set_random_state,
)

#: How often rows that were stepped together are stepped one by one as well, of each set of parameters, and compared.
_COMPARED = 10


class Row(NamedTuple):
    """All that the future of a row depends on."""

    arrays: Mapping[str, np.ndarray]  # of the state, without the axis of rows
    random: Any  # as `random_state` gives it


class Ask(NamedTuple):
    """An action in one state under m models. The episode goes on with the last of them."""

    row: Row
    obs: np.ndarray  # [D] the last one, which is finite
    action: Any
    models: Mapping[str, np.ndarray]  # name -> [m]
    size: int  # m


class Answer(NamedTuple):
    """What became of an `Ask`."""

    outcome: HostOutcome  # [m, …]
    truncated: np.ndarray  # [m] bool
    failed: np.ndarray  # [m] bool, whose numbers were not finite
    row: Row  # after the last one


class InBatch(NamedTuple):
    """All that a batch is made of.

    Attributes:
      title: what messages call it.
      make: `rows -> VectorEnv`.
      rows: the rows that it always has; 0 if it is made with as many as are asked for.
      parameters: as for a single environment, but values are set as arrays, one for each row.
      nominal: the parameters' own values.
      state: reads and sets arrays whose first axis is that of the rows.
      derive: called with the environment after parameters were set.
      flatten: a row's observation as an array [D].
      take: the environment's own action of an agent's.
    """

    title: str
    make: Callable[[int], Any]
    rows: int
    parameters: Access
    nominal: Mapping[str, Any]
    state: Access
    derive: Callable[[Any], None] | None
    flatten: Callable[[Any], np.ndarray]
    take: Callable[[Any], Any]


class _Taken(NamedTuple):
    """A step of some rows."""

    obs: list[np.ndarray]  # n of [D]
    reward: np.ndarray  # [n]
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool
    arrays: Mapping[str, np.ndarray]  # [n, …] the state after it
    random: Any  # after it
    drew: bool  # random numbers
    ended: bool  # some row


class Batch:
    """Vector environments that answer for rows; those of one kind share it. It is not shared between threads."""

    def __init__(self, within: InBatch) -> None:
        self._within = within
        self._made: dict[int, Any] = {}  # rows -> environment
        self._set: dict[int, set[str]] = {}  # rows -> parameters that have been set
        self._apart = False  # whether a step draws random numbers, of which each row has its own
        self._compared: dict[frozenset[str], int] = {}

    def begin(self, seed: int, model: Mapping[str, float]) -> tuple[Row, np.ndarray]:
        """The first state of an episode, and its observation [D]."""
        rows = self._within.rows or 1
        env, each = self._env(rows), {name: np.full(rows, float(value)) for name, value in model.items()}
        self._set_parameters(env, rows, each)  # which the first state may depend on
        obs = first_observation(env.reset(seed=seed))
        self._set_parameters(env, rows, each)  # which a reset may replace
        state = self._within.state.read(env)
        row = Row({name: np.array(array[0]) for name, array in state.items()}, random_state(env))
        return row, self._within.flatten(obs[0])

    def picture(self, row: Row, model: Mapping[str, float]) -> Any:
        """What a row looks like, as the environment draws it."""
        rows = self._within.rows or 1
        env = self._env(rows)
        self._within.state.write(
            env, {name: np.repeat(array[None], rows, axis=0) for name, array in row.arrays.items()}
        )
        self._set_parameters(env, rows, model)
        return drawn(env)[0]

    def nominal(self, name: str) -> float:
        """A parameter's own value."""
        return float(self._within.nominal[name])

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """What becomes of each: in one step of the environment, unless steps draw random numbers."""
        names = asks[0].models.keys()
        if any(ask.models.keys() != names for ask in asks):
            return [self.answer([ask])[0] for ask in asks]
        try:
            if self._apart or sum(ask.size for ask in asks) == 1:
                return [self._one_by_one(ask) for ask in asks]
            return self._together(asks)
        except DeeprokError:
            raise
        except Exception as error:  # whatever the user's class says
            if names:
                # A new one, of which no parameter has been set, fails as well if it is not the parameters.
                Batch(self._within)._one_by_one(asks[0]._replace(models={}, size=1))
                raise self._no_rows(f"{type(error).__name__}: {error}") from error
            raise

    def _together(self, asks: Sequence[Ask]) -> list[Answer]:
        names = frozenset(asks[0].models)
        try:
            with np.errstate(all="ignore"):  # what is not finite is counted
                taken = self._step(
                    {name: _repeated(asks, [ask.row.arrays[name] for ask in asks]) for name in asks[0].row.arrays},
                    [self._within.take(ask.action) for ask in asks for _ in range(ask.size)],
                    {name: np.concatenate([ask.models[name] for ask in asks]) for name in names},
                )
        except (ArithmeticError, np.linalg.LinAlgError):  # of some row
            return [self._one_by_one(ask) for ask in asks]
        if taken.drew:
            # Where some row has ended, they may be those of the environment's own reset.
            self._apart = not taken.ended
            return [self._one_by_one(ask) for ask in asks]
        found = _answers(asks, taken)
        if self._compared.get(names, 0) < _COMPARED:
            self._compared[names] = self._compared.get(names, 0) + 1
            alone = [self._one_by_one(ask) for ask in asks]
            if not all(_alike(one, other) for one, other in zip(found, alone, strict=True)):
                raise self._no_rows("rows that are stepped together have other outcomes than each alone")
        return found

    def _no_rows(self, why: str) -> DeeprokError:
        return DeeprokError(
            f"the rows of {self._within.title} can't have parameters and states of their own ({why}); a row must "
            "depend on its own numbers alone, and a parameter is set as an array with a number for each of num_envs: "
            "compute with it so, or give two functions, parameters=(read, write)"
        )

    def _one_by_one(self, ask: Ask) -> Answer:
        """In a step for each model, all with the same random numbers."""
        found, action = [], self._within.take(ask.action)
        for i in range(ask.size):
            arrays = {name: array[None] for name, array in ask.row.arrays.items()}
            models = {name: values[i : i + 1] for name, values in ask.models.items()}
            try:
                with np.errstate(all="ignore"):
                    taken = self._step(arrays, [action], models, ask.row.random)
            except (ArithmeticError, np.linalg.LinAlgError):  # as by a mass of zero
                flag = np.ones(1, bool)
                taken = _Taken([ask.obs * np.nan], np.full(1, np.nan), flag, ~flag, arrays, ask.row.random, False, True)
            found.extend(_answers([ask._replace(size=1)], taken))
        columns = zip(*(one.outcome for one in found), strict=True)
        return Answer(
            HostOutcome(*(np.concatenate(column) for column in columns)),
            np.concatenate([one.truncated for one in found]),
            np.concatenate([one.failed for one in found]),
            found[-1].row,
        )

    def _step(
        self, arrays: Mapping[str, np.ndarray], actions: list[Any], models: Mapping[str, np.ndarray], random: Any = None
    ) -> _Taken:
        """Steps n rows, in as many steps of the environment as it takes; `random` is for one."""
        count, most = len(actions), self._within.rows
        if most and count > most:
            parts = [slice(first, first + most) for first in range(0, count, most)]
            return _joined([self._step(_cut(arrays, part), actions[part], _cut(models, part)) for part in parts])
        # Those that are made by number come in few sizes. Rows that nobody asked for repeat the first one.
        rows = most or 1 << (count - 1).bit_length()
        spare = np.minimum(np.arange(rows), rows if count == rows else count - 1)
        env = self._env(rows)
        self._within.state.write(env, {name: array[spare] for name, array in arrays.items()})
        self._set_parameters(env, rows, {name: values[spare] for name, values in models.items()})
        set_random_state(env, random)
        before = random_state(env)
        given = np.array([actions[i] for i in spare], env.action_space.dtype)
        obs, reward, terminated, truncated, info = _results(env.step(given), rows)
        ended = terminated | truncated
        after, state = random_state(env), self._within.state.read(env)
        seen = [self._within.flatten(last) for last in _last_observations(env, obs, ended, info, count)]
        cut = slice(count)
        return _Taken(
            obs=seen,
            reward=reward[cut].astype(float),
            terminated=terminated[cut],
            truncated=truncated[cut],
            arrays=_cut(state, cut),
            random=after,
            drew=after != before,
            ended=bool(ended.any()),
        )

    def _env(self, rows: int) -> Any:
        if rows not in self._made:
            env = self._made[rows] = self._within.make(rows)
            env.reset(seed=0)  # what is stepped only after
        return self._made[rows]

    def _set_parameters(self, env: Any, rows: int, values: Mapping[str, Any]) -> None:
        """Sets these, and puts back those that were set before."""
        known = self._set.setdefault(rows, set())
        others = {name: np.full(rows, self.nominal(name)) for name in known if name not in values}
        self._within.parameters.write(env, {**others, **values})
        known.update(values)
        if self._within.derive and known:
            self._within.derive(env)


def not_put_back(batch: Batch, action: Callable[[], Any], steps: int) -> str:
    """What shows that rows can't be put back; empty if they can.

    Some episodes are played until one ends. Then their steps are asked for once more, in another order.

    Args:
      batch: the rows.
      action: draws an action.
      steps: how many are played at most.
    """
    begun = [batch.begin(seed, {}) for seed in range(3)]
    history = list[tuple[list[Ask], list[Answer]]]()
    for _ in range(steps):
        asks = [Ask(row, obs, action(), {}, 1) for row, obs in begun]
        answers = batch.answer(asks)
        history.append((asks, answers))
        if any(answer.outcome.terminated[0] or answer.truncated[0] for answer in answers):
            break
        begun = [(answer.row, answer.outcome.obs[0]) for answer in answers]
    for asks, answers in reversed(history):
        again = batch.answer(asks[::-1])[::-1]
        if not all(_alike(one, other) for one, other in zip(again, answers, strict=True)):
            return "the same action from a restored state has another outcome"
    return ""


def _answers(asks: Sequence[Ask], taken: _Taken) -> list[Answer]:
    """What became of each ask; their rows were stepped one after the other."""
    obs, reward, terminated, truncated = np.array(taken.obs), taken.reward, taken.terminated, taken.truncated
    failed = ~(np.isfinite(obs).all(axis=1) & np.isfinite(reward))
    if failed.any():
        last = _repeated(asks, [ask.obs for ask in asks])
        obs, reward = np.where(failed[:, None], last, obs), np.where(np.isfinite(reward), reward, 0.0)
        terminated, truncated = terminated | failed, truncated & ~failed
    found, end = [], 0
    for ask in asks:
        part, end = slice(end, end + ask.size), end + ask.size
        random = taken.random if taken.drew else ask.row.random
        row = Row({name: array[end - 1] for name, array in taken.arrays.items()}, random)
        outcome = HostOutcome(obs[part], reward[part], terminated[part])
        found.append(Answer(outcome, truncated[part], failed[part], row))
    return found


def _alike(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same, to rounding."""
    flags = np.array_equal(one.outcome.terminated, other.outcome.terminated) and np.array_equal(
        one.truncated, other.truncated
    )
    return flags and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one.outcome, other.outcome, strict=True)
    )


def _repeated(asks: Sequence[Ask], values: Sequence[np.ndarray]) -> np.ndarray:
    """A value of each ask, for each of its models."""
    return np.repeat(np.stack(values), [ask.size for ask in asks], axis=0)


def _cut(arrays: Mapping[str, np.ndarray], part: slice) -> dict[str, np.ndarray]:
    return {name: array[part] for name, array in arrays.items()}


def _joined(parts: Sequence[_Taken]) -> _Taken:
    return _Taken(
        obs=[obs for part in parts for obs in part.obs],
        reward=np.concatenate([part.reward for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        arrays={name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays},
        random=None,
        drew=any(part.drew for part in parts),
        ended=any(part.ended for part in parts),
    )


def _results(found: Any, rows: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
    """What a step gave; raises unless it is what Gymnasium asks for."""
    if not isinstance(found, tuple) or len(found) != 5:
        what = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise DeeprokError(
            f"the simulator's step gives {what}; it must give five: observations, rewards, terminations, truncations, "
            "infos"
        )
    obs, *columns, info = found
    for name, column in zip(("rewards", "terminations", "truncations"), columns, strict=True):
        if np.shape(column) != (rows,):
            raise DeeprokError(
                f"the simulator's step gives {name} of shape {np.shape(column)}; it must give one for each of its "
                f"{rows} rows"
            )
    reward, terminated, truncated = (np.asarray(column) for column in columns)
    return obs, reward, terminated.astype(bool), truncated.astype(bool), info


def _last_observations(env: Any, obs: Any, ended: np.ndarray, info: Mapping[str, Any], count: int) -> list[Any]:
    """The observations that a step led to. One that resets a row within the step has put the last one elsewhere."""
    if autoreset_mode(env) != "SAME_STEP" or not ended[:count].any():
        return [obs[i] for i in range(count)]
    if "final_obs" not in info:
        raise DeeprokError(
            "the simulator begins an episode in the step that ends another (autoreset mode SAME_STEP), but its infos "
            "have no final_obs, the observation that the last one ended with"
        )
    return [info["final_obs"][i] if ended[i] else obs[i] for i in range(count)]


def autoreset_mode(env: Any) -> str:
    """When it resets rows that have ended, as Gymnasium names it; empty if it does not say."""
    return getattr(env.metadata.get("autoreset_mode"), "name", "")
