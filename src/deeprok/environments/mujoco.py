"""MuJoCo models as environments: all outcomes of an action are one threaded call of `mujoco.rollout`.

E. Todorov, T. Erez and Y. Tassa, "MuJoCo: a physics engine for model-based control", IROS 2012. The parameters of a
model are described in `mujoco_parameters`; Gymnasium's models are in `mujoco_tasks`. It needs the extra `mujoco`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, unknown
from deeprok.environments.host import HostEnvironment, HostOutcome, make_parameters
from deeprok.environments.mujoco_parameters import Parameters, parameters_of, set_parameters
from deeprok.environments.spaces import Interval

#: A simulation with a larger position or speed has failed: MuJoCo itself gives up at accelerations of 1e10.
_LARGEST = 1e6

#: Height and width of pictures, which Gymnasium's models allow without a change.
_PICTURE = (440, 640)


class Moved(NamedTuple):
    """What an action did under each of M models."""

    action: np.ndarray  # [U] the controls
    seconds: float  # from the state before to the one after
    start: np.ndarray  # [nq] the positions before
    qpos: np.ndarray  # [M, nq] the positions after
    qvel: np.ndarray  # [M, nv] the velocities after
    bodies: np.ndarray  # [M, B, 3] where the task's bodies are; see `MujocoTask.bodies`


class MujocoTask(NamedTuple):
    """What is to be done with a model.

    Attributes:
      start: `(generator, qpos, qvel) -> (qpos, qvel)`, a random start near the model's own.
      observe: `(qpos [M, nq], qvel [M, nv], bodies [M, B, 3]) -> [M, D]`.
      reward: `Moved -> [M]`.
      terminated: `(qpos, qvel) -> [M] bool`.
      frame_skip: steps of the simulation for each action.
      failing_reward: the reward of a step in which a simulation fails, in place of one that can't be computed.
      bodies: names of bodies whose positions are seen, as MuJoCo last computed them in a step; Gymnasium takes them so.
        They are not the end's: MuJoCo computes them before it moves on. With any, the models are stepped one by
        one, since `mujoco.rollout` gives states alone.
      state_of: `obs [D] -> (qpos, qvel)`, the state that an observation stands for; None if there is none.
    """

    start: Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    observe: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    reward: Callable[[Moved], np.ndarray]
    terminated: Callable[[np.ndarray, np.ndarray], np.ndarray]
    frame_skip: int
    failing_reward: float = 0.0
    bodies: tuple[str, ...] = ()
    state_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None


def mujoco_environment(
    name: str,
    load: Callable[[], Any],
    task: MujocoTask,
    box: Mapping[str, tuple[float, float]],
    observation_scale: tuple[float, ...],
    horizon: int,
    success_return: float,
    threads: int | None = None,
) -> HostEnvironment:
    """An environment from a MuJoCo model.

    Args:
      name: what figures and exported policies call it.
      load: makes the `MjModel`.
      task: what is to be done with it.
      box: ranges of the uncertain parameters, by the names of `deeprok.environments.mujoco_parameters`.
      observation_scale: a typical size of each observation.
      horizon: steps after which an episode is truncated.
      success_return: an episode succeeds when its return is above this.
      threads: that simulate the models of a step; by default one for each core, at most one for each model.
    """
    library()
    model = load()
    known = parameters_of(model)
    if unnamed := [parameter for parameter in box if parameter not in known.nominal]:
        raise unknown(f"parameter in the box of {name}", unnamed[0], known.nominal)
    low, high = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, (-1.0, 1.0)).T
    return HostEnvironment(
        name=name,
        make=lambda: MujocoSimulator(load(), task, threads),
        nominal=make_parameters("MujocoParameters", known.quantities),
        box=box,
        observation_scale=observation_scale,
        actions=Interval(tuple(low.tolist()), tuple(high.tolist())),
        horizon=horizon,
        success_return=success_return,
        place=(lambda simulator, obs: simulator.put(*task.state_of(obs))) if task.state_of else None,  # type: ignore[misc]
    )


def library() -> Any:
    """The package `mujoco`; a clear error where it is not installed.

    Its warnings are not printed, nor written to a file in the present folder, unless someone else handles them: an
    unstable simulation is a failure of that model, which is counted.
    """
    try:
        mujoco = import_module("mujoco")
        import_module("mujoco.rollout")
    except ImportError as error:
        raise extra_missing("MuJoCo's environments need", "mujoco") from error
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_ignore)
    return mujoco


def _ignore(message: str) -> None:
    del message


class MujocoSimulator:
    """A simulation of a model; a `Simulator`."""

    failures: dict[str, int]

    def __init__(self, model: Any, task: MujocoTask, threads: int | None = None) -> None:
        """Makes a simulation.

        Args:
          model: an `MjModel`, which is this simulation's own.
          task: what is to be done with it.
          threads: as for `mujoco_environment`.
        """
        self._mujoco = mujoco = library()
        # An unstable simulation would start again from the model's own state, as if nothing had happened.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._task, self._known = task, parameters_of(model)
        self._model, self._data = model, mujoco.MjData(model)
        self._branches = _Branches(mujoco, model, self._known, _cores() if threads is None else threads)
        self._own = (self._data.qpos.copy(), self._data.qvel.copy())
        self._bodies = [model.body(name).id for name in task.bodies]
        self._values: dict[str, float] = {}
        self._seen = np.zeros(0)
        self._renderer: Any = None
        self.failures = {"unstable": 0}

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; Gymnasium begins with the same seed in the same state."""
        mujoco, data = self._mujoco, self._data
        self._set(model)
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = self._task.start(np.random.default_rng(seed), *self._own)
        mujoco.mj_forward(self._model, data)
        self._seen = self._task.observe(data.qpos[None], data.qvel[None], self._places(data)[None])[0]
        return self._seen.copy()

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action, after which the simulation is where it led to."""
        data, controls, start = self._data, np.asarray(action, float).reshape(-1), self._data.qpos.copy()
        data.ctrl[:] = controls
        self._mujoco.mj_step(self._model, data, nstep=self._task.frame_skip)
        stable = np.array([not data.warning.number.any()])
        found = self._outcome(controls, start, data.qpos[None], data.qvel[None], self._places(data)[None], stable)
        self._seen = found.obs[0]
        return HostOutcome(found.obs[0].copy(), found.reward[0], found.terminated[0])

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes of the action in the present state under each of M models; the simulation is left as it was.

        Parameters that `models` does not name are those of the episode.
        """
        controls = np.asarray(action, float).reshape(-1)
        self._branches.set(self._values, models)
        move = self._branches.step_each if self._bodies else self._branches.roll
        found = move(self._data, controls, self._task.frame_skip, self._bodies)
        return self._outcome(controls, self._data.qpos, *found)

    def read(self) -> dict[str, np.ndarray]:
        """All that the future depends on: the state of MuJoCo's integration, and the last observation."""
        spec = self._mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(self._mujoco.mj_stateSize(self._model, spec))
        self._mujoco.mj_getState(self._model, self._data, state, spec)
        return {"state": state, "seen": self._seen.copy()}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""
        mujoco, spec = self._mujoco, self._mujoco.mjtState.mjSTATE_INTEGRATION
        self._set(model)
        size = mujoco.mj_stateSize(self._model, spec)
        numbers, seen = np.asarray(state["state"], float), np.array(state["seen"], float)
        if numbers.shape != (size,):
            raise DeeprokError(f"the state of the simulation has shape {numbers.shape}; this model's has ({size},)")
        mujoco.mj_resetData(self._model, self._data)
        mujoco.mj_setState(self._model, self._data, numbers, spec)
        self._seen = seen

    def picture(self) -> Any:
        """What it looks like now: [H, W, 3] bytes."""
        mujoco, model = self._mujoco, self._model
        # It takes longer to make than a picture.
        self._renderer = self._renderer or mujoco.Renderer(model, *_PICTURE)
        # Models that move along have a camera that follows them.
        self._renderer.update_scene(self._data, camera=mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track"))
        return self._renderer.render()

    def put(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Puts the simulation into a state, within the episode."""
        mujoco, data = self._mujoco, self._data
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self._model, data)
        self._seen = self._task.observe(data.qpos[None], data.qvel[None], self._places(data)[None])[0]

    def _set(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)
        set_parameters(self._model, self._known, values)
        self._mujoco.mj_setConst(self._model, self._data)

    def _places(self, data: Any) -> np.ndarray:
        """Where the task's bodies are [B, 3], as MuJoCo has last computed it."""
        return data.xpos[self._bodies]

    def _outcome(
        self,
        action: np.ndarray,
        start: np.ndarray,
        qpos: np.ndarray,
        qvel: np.ndarray,
        bodies: np.ndarray,
        stable: np.ndarray,
    ) -> HostOutcome:
        """What the task makes of states after a step; a simulation that failed has ended where it was last seen."""
        stable = stable & (np.abs(np.hstack([qpos, qvel])) < _LARGEST).all(axis=1)  # what is no number is not below
        if stable.all():
            return self._valued(action, start, qpos, qvel, bodies)
        self.failures["unstable"] += int((~stable).sum())
        models = len(qpos)
        obs = np.tile(self._seen, (models, 1))
        reward, terminated = np.full(models, self._task.failing_reward), np.ones(models, bool)
        if stable.any():
            found = self._valued(action, start, qpos[stable], qvel[stable], bodies[stable])
            obs[stable], reward[stable], terminated[stable] = found
        return HostOutcome(obs, reward, terminated)

    def _valued(
        self, action: np.ndarray, start: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, bodies: np.ndarray
    ) -> HostOutcome:
        task = self._task
        moved = Moved(action, self._model.opt.timestep * task.frame_skip, start, qpos, qvel, bodies)
        obs = np.asarray(task.observe(qpos, qvel, bodies), float)
        return HostOutcome(obs, np.asarray(task.reward(moved), float), np.asarray(task.terminated(qpos, qvel), bool))


class _Branches:
    """The models that a simulation answers for, made once and given new parameters when they change."""

    def __init__(self, mujoco: Any, model: Any, known: Parameters, threads: int) -> None:
        self._mujoco, self._original, self._known, self._most = mujoco, model, known, threads
        self._spec = mujoco.mjtState.mjSTATE_FULLPHYSICS
        self._size = mujoco.mj_stateSize(model, self._spec)
        self._models: list[Any] = []
        self._values: dict[str, np.ndarray] = {}
        self._pool: Any = None
        self._data: list[Any] = []

    def set(self, episode: Mapping[str, float], models: Mapping[str, np.ndarray]) -> None:
        """Gives the models these parameters, name -> [M], and else those of the episode, unless they have them."""
        count = len(next(iter(models.values())))
        values = {name: np.full(count, value) for name, value in episode.items()}
        values |= {name: np.array(numbers, float) for name, numbers in models.items()}
        if values.keys() == self._values.keys() and all(
            np.array_equal(numbers, self._values[name]) for name, numbers in values.items()
        ):
            return
        if count != len(self._models):
            threads = min(self._most, count)
            self._models = [copy.copy(self._original) for _ in range(count)]
            self._data = [self._mujoco.MjData(self._original) for _ in range(max(threads, 1))]
            # One thread is the caller's own.
            self._pool = self._mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._values = {}  # should one of the models be refused
        for i, model in enumerate(self._models):
            set_parameters(model, self._known, {name: float(numbers[i]) for name, numbers in values.items()})
            self._mujoco.mj_setConst(model, self._data[0])
        self._values = values

    def roll(
        self, data: Any, controls: np.ndarray, steps: int, bodies: list[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Positions, velocities and bodies after some steps from the state of `data`, and which models were stable."""
        count, model = len(self._models), self._original
        state = np.empty(self._size)
        self._mujoco.mj_getState(model, data, state, self._spec)
        moved = np.empty((count, steps, self._size))
        self._pool.rollout(
            self._models,
            self._data,
            np.tile(state, (count, 1)),
            np.tile(controls, (count, steps, 1)),
            nstep=steps,
            initial_warmstart=np.tile(data.qacc_warmstart, (count, 1)),
            state=moved,
            skip_checks=True,
        )
        last = moved[:, -1]  # time, positions, velocities and what else a model has
        # After a warning a rollout stands still, and with it the time.
        stable = last[:, 0] > state[0] + (steps - 0.5) * model.opt.timestep
        return last[:, 1 : 1 + model.nq], last[:, 1 + model.nq :][:, : model.nv], np.empty((count, 0, 3)), stable

    def step_each(
        self, data: Any, controls: np.ndarray, steps: int, bodies: list[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The same by one model after the other, with the bodies' positions."""
        mujoco, branch = self._mujoco, self._data[0]
        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self._original, spec))
        mujoco.mj_getState(self._original, data, state, spec)
        found = []
        for model in self._models:
            mujoco.mj_resetData(model, branch)
            mujoco.mj_setState(model, branch, state, spec)
            branch.ctrl[:] = controls
            mujoco.mj_step(model, branch, nstep=steps)
            stable = not branch.warning.number.any()
            found.append((branch.qpos.copy(), branch.qvel.copy(), branch.xpos[bodies], stable))
        qpos, qvel, places, steady = zip(*found, strict=True)
        return np.stack(qpos), np.stack(qvel), np.stack(places), np.array(steady)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
