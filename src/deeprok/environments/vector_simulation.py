"""Rows of a vector environment as `Simulator`s, which can be asked all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deeprok.environments.host import HostOutcome
from deeprok.environments.simulation import NO_WORDS, RANDOM, SEEN, random_words, state_of_words
from deeprok.environments.vector_rows import Answer, Ask, Batch, Row


class VectorSimulation:
    """A `Simulator` that is a row of a vector environment."""

    def __init__(self, batch: Batch) -> None:
        self.failures: dict[str, int] = {}
        self.truncated = False
        self.unread = ""  # as in `Simulation`
        self._batch = batch
        self._model: dict[str, float] = {}
        self._row, self._obs = Row({}, None), np.zeros(0)
        self._ahead: tuple[Any, Any, Answer] | None = None  # an action, models, and what becomes of it

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; the first observation [D]."""
        self._model, self.truncated, self._ahead = dict(model), False, None
        self._row, self._obs = self._batch.begin(seed, model)
        return self._obs

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action on the model of the episode, which moves on."""
        answer = self._looked(action) or self._look(action, {})
        self.truncated, self._row, self._ahead = bool(answer.truncated[-1]), answer.row, None
        self._count(answer.failed[-1:])
        obs, reward, terminated = (column[-1] for column in answer.outcome)
        self._obs = obs
        return HostOutcome(obs, reward, terminated)

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes of the action under each of M models; the simulation is left as it was."""
        answer = self._looked(action, models) or self._look(action, models)
        self._count(answer.failed[:-1])
        return HostOutcome(*(column[:-1] for column in answer.outcome))

    def set(self, model: Mapping[str, float]) -> None:
        """Changes parameters within the episode."""
        self._model, self._ahead = {**self._model, **model}, None

    def put(self, state: Mapping[str, Any]) -> None:
        """Changes a part of the state within the episode, which is named as the state's access names it."""
        own = self._row.arrays
        changed = {name: np.asarray(value, own[name].dtype).reshape(own[name].shape) for name, value in state.items()}
        self._row, self._ahead = self._row._replace(arrays={**own, **changed}), None

    def read(self) -> dict[str, np.ndarray] | None:
        """The state as arrays; None if its random numbers can't be stored."""
        words, self.unread = random_words(self._row.random), ""
        if words is None:
            self.unread = NO_WORDS
            return None
        return {**self._row.arrays, RANDOM: words, SEEN: self._obs.copy()}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""
        self.reset(0, model)
        self.put({name: array for name, array in state.items() if name not in (RANDOM, SEEN)})
        self._row = self._row._replace(random=state_of_words(np.asarray(state[RANDOM])))
        self._obs = np.array(state[SEEN], float)

    def picture(self) -> Any:
        """What it looks like now: [H, W, 3] bytes."""
        return self._batch.picture(self._row, self._model)

    def ask(self, action: Any, models: Mapping[str, np.ndarray]) -> Ask:
        """The action under each of some models, and under that of the episode."""
        count = len(next(iter(models.values()))) if models else 0
        own = self._model | {name: self._batch.nominal(name) for name in models if name not in self._model}
        each = {name: np.full(count + 1, float(value)) for name, value in own.items()}
        for name, values in models.items():
            each[name][:count] = values
        return Ask(self._row, self._obs, action, each, count + 1)

    def _look(self, action: Any, models: Mapping[str, np.ndarray]) -> Answer:
        look_ahead([self], [action], [models])
        assert self._ahead
        return self._ahead[2]

    def _looked(self, action: Any, models: Mapping[str, np.ndarray] | None = None) -> Answer | None:
        """What was found out of this action, and of these models; None if nothing was."""
        if self._ahead and np.array_equal(self._ahead[0], action) and (models is None or models is self._ahead[1]):
            return self._ahead[2]
        return None

    def _count(self, failed: np.ndarray) -> None:
        if failed.any():
            self.failures["not finite"] = self.failures.get("not finite", 0) + int(failed.sum())


def look_ahead(
    simulations: Sequence[VectorSimulation], actions: Sequence[Any], models: Sequence[Mapping[str, np.ndarray]]
) -> None:
    """Finds out, for all at once, what becomes of an action in each simulation, under some models and its own.

    Each then has its answers: its next `outcomes` and `step` compute nothing.
    """
    asks = [one.ask(action, some) for one, action, some in zip(simulations, actions, models, strict=True)]
    found = simulations[0]._batch.answer(asks)
    for one, action, some, answer in zip(simulations, actions, models, found, strict=True):
        one._ahead = np.copy(action), some, answer
