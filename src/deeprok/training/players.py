"""Simulators that are played side by side: in this process, or each in a process of its own.

Gymnasium's `AsyncVectorEnv` would fork a process that has JAX's threads, or run the caller's script once more in each
worker, and it serves Gymnasium's simulators alone. So the workers are those of `jobs`: processes that import this
package, and end with the one that started them.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from deeprok.agents.learner import PlaysSteps
from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostEnvironment, Simulator, asked, model_of
from deeprok.runs import checkpoint
from deeprok.runs.settings import Config, from_json


class Fresh(NamedTuple):
    """What decides an episode that begins; of a chunk, with a first axis of steps."""

    acting: Mapping[str, Any]  # name -> []
    models: Mapping[str, Any]  # name -> [M]
    seed: Any  # [] of the simulator's reset


class Moved(NamedTuple):
    """What a step of a simulator came to."""

    ended: bool  # the episode
    failed: int  # simulations
    earned: float  # the reward on the model acted on
    obs: np.ndarray  # [D] that the next action is taken on: of the next episode, if this one has ended
    reward: np.ndarray  # [M] of each model; [1] of the model acted on without a robust target
    terminated: np.ndarray  # [M]
    outcomes: np.ndarray  # [M · D] the observations


def fresh_at(fresh: Fresh, k: int) -> Fresh:
    """What decides an episode that begins with the k-th step of a chunk; quicker than a map over a tree."""
    acting, models = ({name: values[k] for name, values in part.items()} for part in fresh[:2])
    return Fresh(acting, models, fresh.seed[k])


def rows_of(moved: Sequence[Moved], dtype: np.dtype[Any]) -> np.ndarray:
    """What the device is told of a step of each simulator.

    Whether the episode ended, the observation that follows, and of each model the reward, whether it terminated, and
    the observation.
    """
    seen, models = moved[0].obs.size, moved[0].reward.size
    rewards, flags = 1 + seen + models, 1 + seen + 2 * models  # where they end
    rows = np.empty((len(moved), flags + seen * models), dtype)
    for row, one in zip(rows, moved, strict=True):
        row[0], row[1 : 1 + seen], row[1 + seen : rewards] = one.ended, one.obs, one.reward
        row[rewards:flags], row[flags:] = one.terminated, one.outcomes
    return rows


#: The words of a state that could not be read, in a run in which others can: no numbers of a simulator are all so.
_UNREAD = np.uint32(2**32 - 1)


def was_read(words: np.ndarray) -> bool:
    """Whether words are a state."""
    return bool((np.asarray(words) != _UNREAD).any())


class Player:
    """A simulator, and what is to be known of the episode in it."""

    def __init__(self, env: HostEnvironment, robust: bool) -> None:
        self._env, self._robust, self.simulator = env, robust, env.make()
        self._models: Mapping[str, Any] = {}
        self._step = 0
        self._form: _Form | None = None  # that all states of a run have

    def begin(self, fresh: Fresh) -> np.ndarray:
        """Begins an episode; the first observation [D]."""
        if self._form is None:
            self._form = _form_of(self.simulator, model_of(self._env, {}))
        # The very same record until its end: by it a simulator knows the models again.
        self._models, self._step = fresh.models, 0
        return self.simulator.reset(int(fresh.seed), model_of(self._env, fresh.acting))

    @property
    def models(self) -> Mapping[str, Any]:
        """The models that an action is answered for; none without a robust target."""
        return self._models if self._robust else {}

    def play(self, action: np.ndarray, fresh: Fresh) -> Moved:
        """Takes a step and, if it ends the episode, begins the next one."""
        simulator = self.simulator
        before = sum(simulator.failures.values())
        outcomes = simulator.outcomes(action, self.models) if self._robust else None
        happened = simulator.step(action)
        told = outcomes or happened
        self._step += 1
        truncated = self._step >= self._env.horizon or getattr(simulator, "truncated", False)
        ended = bool(happened.terminated) or truncated
        failed = sum(simulator.failures.values()) - before
        obs = self.begin(fresh) if ended else happened.obs
        reward, terminated = np.ravel(told.reward), np.ravel(told.terminated)
        return Moved(ended, failed, float(happened.reward), obs, reward, terminated, told.obs.ravel())

    def pack(self) -> np.ndarray:
        """The bits [W] uint32 of the simulator's state, which no arithmetic rounds; none if it can't be read.

        They are as many in all of a run. A state of another form than the run's first one counts as not read.
        """
        assert self._form is not None
        arrays = {name: np.asarray(value) for name, value in sorted((self.simulator.read() or {}).items())}
        if {name: _shape_and_kind(array) for name, array in arrays.items()} != self._form:
            return np.full(_length(self._form), _UNREAD)
        every = (np.ascontiguousarray(arrays[name], kind) for name, (_, kind) in self._form.items())
        return np.concatenate([np.zeros(0, np.uint32), *(array.reshape(-1).view(np.uint32) for array in every)])

    def put(self, words: np.ndarray, fresh: Fresh, step: int) -> None:
        """Puts the simulator where it was when `pack` was called, in an episode of these models after some steps."""
        model = model_of(self._env, fresh.acting)
        self._models, self._step = fresh.models, step
        if self._form is None:
            self._form = _form_of(self.simulator, model_of(self._env, {}))
        if _length(self._form) != len(words):
            raise DeeprokError(
                "the simulator's state has another size than at its last checkpoint; train the run again"
            )
        state, place = {}, 0
        for name, (shape, kind) in self._form.items():
            size = 2 * math.prod(shape)
            state[name] = np.ascontiguousarray(words[place : place + size]).view(kind).reshape(shape)
            place += size
        self.simulator.write(state, model)


#: What a checkpoint holds of a simulator: name -> shape, and whether double precision or whole numbers; in order.
_Form = Mapping[str, tuple[tuple[int, ...], str]]


def _form_of(simulator: Simulator, model: Mapping[str, float]) -> _Form:
    """The form of the state after a reset that is the same in every process; empty if it can't be read."""
    simulator.reset(0, model)
    state = simulator.read() or {}
    return {name: _shape_and_kind(np.asarray(value)) for name, value in sorted(state.items())}


def words_of(env: HostEnvironment) -> int:
    """W, the words that a checkpoint holds of one of its simulators; 0 if its state can't be read."""
    return _length(asked(_form_of, env.make(), model_of(env, {})))


def where_resumed(config: Config, path: Path) -> str:
    """Where a run in a stateful simulator that was stopped goes on.

    Args:
      config: its settings.
      path: its checkpoint.
    """
    env, count = config.make_env(), config.simulators
    assert isinstance(env, HostEnvironment)
    if not isinstance(config.make_learner().plays, PlaysSteps):
        return "with its next trajectories"
    name, shape = ("run.episode.state", ()) if count == 1 else ("run.episode.each.state", (count,))
    words: Any = jax.ShapeDtypeStruct((*shape, words_of(env)), np.uint32)
    states = checkpoint.load(path, name, words, verify="part").reshape(count, -1)
    if not all(was_read(state) for state in states):
        return "from its next episode, since the simulator's state could not be stored"
    return "within its episode, with the simulator's state"


def _shape_and_kind(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    return array.shape, "float64" if array.dtype.kind == "f" else "int64"


def _length(form: _Form) -> int:
    """How many words of 32 bits it is."""
    return 2 * sum(math.prod(shape) for shape, _ in form.values())


class Players(NamedTuple):
    """Several simulators.

    Attributes:
      ask: `(name, arguments) -> answers`, of the method of that name of each `Player`, given its own arguments.
      close: ends what was begun for them. They can be asked again, and then are new.
    """

    ask: Callable[[str, Sequence[tuple[Any, ...]]], list[Any]]
    close: Callable[[], None]


def players_here(env: HostEnvironment, robust: bool, count: int) -> Players:
    """Simulators that are stepped one after the other, or all at once, where they can be."""
    players = [Player(env, robust) for _ in range(count)]

    def ask(name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if name == "play" and env.ahead:
            simulators, models = [player.simulator for player in players], [player.models for player in players]
            asked(env.ahead, simulators, [action for action, _ in arguments], models)
        return [asked(getattr(player, name), *given) for player, given in zip(players, arguments, strict=True)]

    return Players(ask, lambda: None)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]


def players_in_processes(config: Config) -> Players:
    """The simulators of a run, each in a process of its own, which is started when it is first asked."""
    workers: list[_Worker] = []

    def close() -> None:
        """A worker ends when it can't be asked any more."""
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(_PATIENCE)
            worker.process.kill()
            worker.process.wait()
        workers.clear()

    def ask(name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            if not workers:
                workers.extend(_start() for _ in arguments)
                for i in range(len(workers)):
                    _send(workers, i, config.to_json())
                for i in range(len(workers)):
                    _receive(workers, i)
            for i, given in enumerate(arguments):
                _send(workers, i, (name, given))
            return [_receive(workers, i) for i in range(len(workers))]
        except BaseException:  # none of them may be left with an answer that nobody has taken
            close()
            raise

    return Players(ask, close)


#: Seconds that a worker has to end by itself.
_PATIENCE = 2.0

# On Linux the kernel ends a worker with its parent, also within a step of the simulator.
_WORKER = """
import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from deeprok.training.players import serve
serve(int(sys.argv[1]))
"""


def _start() -> _Worker:
    ours, theirs = Pipe()
    # A session of its own, so that the terminal's Ctrl-C does not reach it: the training decides when to stop.
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return _Worker(process, ours)


def _send(workers: Sequence[_Worker], i: int, what: Any) -> None:
    try:
        workers[i].connection.send(what)
    except OSError:
        raise _ended(workers, i) from None


def _receive(workers: Sequence[_Worker], i: int) -> Any:
    try:
        fine, answer = workers[i].connection.recv()
    except (EOFError, OSError):
        raise _ended(workers, i) from None
    if not fine:
        raise DeeprokError(f"simulator {i + 1} of {len(workers)} has failed: {answer}")
    return answer


def _ended(workers: Sequence[_Worker], i: int) -> DeeprokError:
    with contextlib.suppress(subprocess.TimeoutExpired):
        workers[i].process.wait(_PATIENCE)
    code = workers[i].process.returncode
    return DeeprokError(f"the process of simulator {i + 1} of {len(workers)} has ended with code {code}")


def serve(handle: int) -> None:
    """What a worker does: makes the simulator of the settings that it is sent, then answers until nobody asks.

    Args:
      handle: of the connection to the process that started it.
    """
    connection: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError, OSError):
        try:
            config = from_json(connection.recv(), "the settings")
            with config.arithmetic():
                env = config.make_env()
                assert isinstance(env, HostEnvironment)
                player = Player(env, config.robust)
                connection.send((True, None))
                while True:
                    name, given = connection.recv()
                    connection.send((True, getattr(player, name)(*given)))
        except (EOFError, OSError):
            raise
        except DeeprokError as error:
            connection.send((False, str(error)))
        except Exception as error:  # of the user's simulator, most likely
            connection.send((False, f"{type(error).__name__}: {error}"))
