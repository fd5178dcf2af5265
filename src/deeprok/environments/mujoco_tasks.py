"""Gymnasium's MuJoCo environments, version 5: its models, rewards, terminations, observations and starts.

M. Towers et al., "Gymnasium: a standard interface for reinforcement learning environments", 2024, arXiv:2407.17032.
The models are Gymnasium's own files. It need not be imported: parameters are set on the model, and all models of a step
are simulated at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import extra_missing
from deeprok.core.fields import Count
from deeprok.environments.base import EnvironmentPart, EpisodeSettings
from deeprok.environments.host import HostEnvironment
from deeprok.environments.mujoco import Moved, MujocoTask, library, mujoco_environment


def load(file: str) -> Callable[[], Any]:
    """A function that loads one of Gymnasium's models by the name of its file."""

    def loaded() -> Any:
        mujoco = library()
        found = find_spec("gymnasium")
        if not found or not found.origin:
            raise extra_missing(f"{file} is a model of Gymnasium, which is missing: it needs", "mujoco")
        return mujoco.MjModel.from_xml_path(str(Path(found.origin).parent / "envs" / "mujoco" / "assets" / file))

    return loaded


def _uniform_start(size: float) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def start(random: np.random.Generator, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return qpos + random.uniform(-size, size, qpos.shape), qvel + random.uniform(-size, size, qvel.shape)

    return start


def _read_off(count: int, unseen: int = 0) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The state of a model with so many positions, of which the first few, that nothing depends on, are not seen."""
    return lambda obs: (np.concatenate([np.zeros(unseen), obs[: count - unseen]]), obs[count - unseen :])


def _never(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    del qvel
    return np.zeros(len(qpos), bool)


def _speed(moved: Moved) -> np.ndarray:
    """The mean speed along the first coordinate [M]."""
    return (moved.qpos[:, 0] - moved.start[0]) / moved.seconds


# --- Inverted Pendulum ---------------------------------------------------------------------------------


def _has_fallen(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    return ~np.isfinite(np.hstack([qpos, qvel])).all(axis=1) | (np.abs(qpos[:, 1]) > 0.2)


_INVERTED_PENDULUM = MujocoTask(
    start=_uniform_start(0.01),
    observe=lambda qpos, qvel, bodies: np.hstack([qpos, qvel]),
    reward=lambda moved: np.where(_has_fallen(moved.qpos, moved.qvel), 0.0, 1.0),
    terminated=_has_fallen,
    frame_skip=2,
    state_of=_read_off(2),
)


@functools.cache
def _inverted_pendulum() -> HostEnvironment:
    return mujoco_environment(
        "InvertedPendulum-v5",
        load("inverted_pendulum.xml"),
        _INVERTED_PENDULUM,
        box={"mass_pole": (1.0, 20.0), "length_pole": (0.5, 2.0)},
        observation_scale=(0.5, 0.1, 1.0, 1.0),
        horizon=1000,
        success_return=0.0,
    )


def inverted_pendulum(horizon: int = 1000) -> HostEnvironment:
    """Balance a pole by pushing the cart that it stands on: InvertedPendulum-v5."""
    # Gymnasium's threshold, 950 of 1000.
    return _inverted_pendulum()._replace(horizon=horizon, success_return=0.95 * horizon)


# --- Hopper --------------------------------------------------------------------------------------------


def _is_down(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    wild = (np.abs(np.hstack([qpos, qvel])[:, 2:]) >= 100.0).any(axis=1)
    return wild | (qpos[:, 1] <= 0.7) | (np.abs(qpos[:, 2]) >= 0.2)


_HOPPER = MujocoTask(
    start=_uniform_start(5e-3),
    observe=lambda qpos, qvel, bodies: np.hstack([qpos[:, 1:], np.clip(qvel, -10.0, 10.0)]),
    reward=lambda moved: (
        _speed(moved) + np.where(_is_down(moved.qpos, moved.qvel), 0.0, 1.0) - 1e-3 * np.square(moved.action).sum()
    ),
    terminated=_is_down,
    frame_skip=4,
    state_of=_read_off(6, unseen=1),
)


@functools.cache
def _hopper() -> HostEnvironment:
    return mujoco_environment(
        "Hopper-v5",
        load("hopper.xml"),
        _HOPPER,
        box={"mass_torso": (2.0, 7.0), "friction_scale": (0.4, 1.6)},
        observation_scale=(1.3, 0.2, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 5.0, 5.0, 5.0),
        horizon=1000,
        success_return=0.0,
    )


def hopper(horizon: int = 1000) -> HostEnvironment:
    """Hop forward on one leg without falling: Hopper-v5."""
    # Of standing through the whole episode; it has to move to be above.
    return _hopper()._replace(horizon=horizon, success_return=1.0 * horizon)


# --- Half Cheetah --------------------------------------------------------------------------------------


def _cheetah_start(random: np.random.Generator, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return qpos + random.uniform(-0.1, 0.1, qpos.shape), qvel + 0.1 * random.standard_normal(qvel.shape)


_HALF_CHEETAH = MujocoTask(
    start=_cheetah_start,
    observe=lambda qpos, qvel, bodies: np.hstack([qpos[:, 1:], qvel]),
    reward=lambda moved: _speed(moved) - 0.1 * np.square(moved.action).sum(),
    terminated=_never,
    frame_skip=5,
    failing_reward=-300.0,  # about what random actions earn in an episode: to end it must not pay
    state_of=_read_off(9, unseen=1),
)


@functools.cache
def _half_cheetah() -> HostEnvironment:
    return mujoco_environment(
        "HalfCheetah-v5",
        load("half_cheetah.xml"),
        _HALF_CHEETAH,
        box={"mass_scale": (0.6, 1.6), "friction_scale": (0.4, 1.6)},
        observation_scale=(*(0.2, 0.5), *(0.5,) * 6, *(2.0, 1.0, 2.0), *(10.0,) * 6),
        horizon=1000,
        success_return=0.0,
    )


def half_cheetah(horizon: int = 1000) -> HostEnvironment:
    """Run forward on two legs: HalfCheetah-v5."""
    # Gymnasium's threshold, 4800 of 1000 steps.
    return _half_cheetah()._replace(horizon=horizon, success_return=4.8 * horizon)


# --- Reacher -------------------------------------------------------------------------------------------


def _reacher_start(random: np.random.Generator, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    place = random.uniform(-0.1, 0.1, qpos.shape) + qpos
    goal = random.uniform(-0.2, 0.2, 2)
    while np.linalg.norm(goal) >= 0.2:
        goal = random.uniform(-0.2, 0.2, 2)
    place[-2:] = goal
    speed = qvel + random.uniform(-0.005, 0.005, qvel.shape)
    speed[-2:] = 0.0
    return place, speed


def _to_target(bodies: np.ndarray) -> np.ndarray:
    """[M, 3] from the target to the fingertip."""
    return bodies[:, 0] - bodies[:, 1]


def _reacher_state(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.arctan2(obs[2:4], obs[:2]), obs[4:6]]), np.concatenate([obs[6:8], np.zeros(2)])


_REACHER = MujocoTask(
    start=_reacher_start,
    observe=lambda qpos, qvel, bodies: np.hstack(
        [np.cos(qpos[:, :2]), np.sin(qpos[:, :2]), qpos[:, 2:], qvel[:, :2], _to_target(bodies)[:, :2]]
    ),
    reward=lambda moved: -np.linalg.norm(_to_target(moved.bodies), axis=1) - np.square(moved.action).sum(),
    terminated=_never,
    frame_skip=2,
    failing_reward=-40.0,  # about what random actions earn in an episode: to end it must not pay
    bodies=("fingertip", "target"),
    state_of=_reacher_state,
)


@functools.cache
def _reacher() -> HostEnvironment:
    return mujoco_environment(
        "Reacher-v5",
        load("reacher.xml"),
        _REACHER,
        box={"damping_scale": (0.5, 3.0), "gear_scale": (0.5, 1.5)},
        observation_scale=(1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 5.0, 5.0, 0.2, 0.2),
        horizon=50,
        success_return=0.0,
    )


def reacher(horizon: int = 50) -> HostEnvironment:
    """Move the tip of an arm with two joints to a target: Reacher-v5."""
    # Gymnasium's threshold.
    return _reacher()._replace(horizon=horizon, success_return=-3.75 * horizon / 50)


#: Gymnasium's id -> a function of the horizon.
MUJOCO: dict[str, Callable[..., HostEnvironment]] = {
    "HalfCheetah-v5": half_cheetah,
    "Hopper-v5": hopper,
    "InvertedPendulum-v5": inverted_pendulum,
    "Reacher-v5": reacher,
}


def _part(make: Callable[..., HostEnvironment], horizon: int) -> EnvironmentPart:
    field = ("horizon", Count, dataclasses.field(default=horizon))
    settings = dataclasses.make_dataclass("EpisodeSettings", [field], bases=(EpisodeSettings,), frozen=True)
    return EnvironmentPart(settings, lambda chosen: make(chosen.horizon))


#: The same as the settings of a run name them.
PARTS = {name: _part(make, 50 if make is reacher else 1000) for name, make in MUJOCO.items()}
