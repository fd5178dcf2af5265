"""Gymnasium's environments by their ids. For some, what is uncertain of them and how to set it is written here.

Parameters have the names, units and ranges of the environments in JAX that the package has of the same systems; their
nominal values are Gymnasium's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, added
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import EnvironmentPart, EpisodeSettings, as_part, quantity
from deeprok.environments.gymnasium import from_gymnasium, known_ids
from deeprok.environments.gymnasium_vector import without_processes
from deeprok.environments.host import Branching, HostEnvironment
from deeprok.environments.mujoco_tasks import PARTS as MUJOCO_PARTS
from deeprok.environments.simulation import Access
from deeprok.environments.toy_text import toy_text


@pytree_dataclass
class CartPoleParameters:
    """The parameters of Gymnasium's Cart-Pole."""

    cart_mass: Any = quantity(1.0, "kg", "mass of the cart")
    pole_length: Any = quantity(0.5, "m", "from the pivot to the pole's centre")
    pole_mass: Any = quantity(0.1, "kg", "mass of the pole")
    gravity: Any = quantity(9.8, "m/s²", "gravitational acceleration")
    force: Any = quantity(10.0, "N", "push of either action")
    time_step: Any = quantity(0.02, "s", "time between two decisions")


def _derive_cartpole(env: Any) -> None:
    pole = env.unwrapped
    pole.total_mass = pole.masspole + pole.masscart
    pole.polemass_length = pole.masspole * pole.length


def _cartpole(branching: Branching) -> HostEnvironment:
    paths = {
        "cart_mass": "masscart",
        "pole_length": "length",
        "pole_mass": "masspole",
        "gravity": "gravity",
        "force": "force_mag",
        "time_step": "tau",
    }
    return from_gymnasium(
        "CartPole-v1",
        box={"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)},
        parameters={name: f"unwrapped.{path}" for name, path in paths.items()},
        state=("unwrapped.state", "unwrapped.steps_beyond_terminated"),
        derive=_derive_cartpole,
        nominal=CartPoleParameters(),
        actions=("left", "right"),
        observation_scale=(2.4, 2.0, 0.2, 2.0),
        branching=branching,
    )


@pytree_dataclass
class AcrobotParameters:
    """The parameters of Gymnasium's Acrobot."""

    link_length_1: Any = quantity(1.0, "m", "length of the upper link")
    link_mass_1: Any = quantity(1.0, "kg", "mass of the upper link")
    link_mass_2: Any = quantity(1.0, "kg", "mass of the lower link")
    link_centre_1: Any = quantity(0.5, "m", "from the pivot to the upper link's centre of mass")
    link_centre_2: Any = quantity(0.5, "m", "from the elbow to the lower link's centre of mass")
    link_inertia: Any = quantity(1.0, "kg·m²", "moment of inertia of either link about its centre of mass")
    torque: Any = quantity(1.0, "N·m", "the motor's torque")
    time_step: Any = quantity(0.2, "s", "time between two decisions")


_ACROBOT = {
    "link_length_1": "LINK_LENGTH_1",
    "link_mass_1": "LINK_MASS_1",
    "link_mass_2": "LINK_MASS_2",
    "link_centre_1": "LINK_COM_POS_1",
    "link_centre_2": "LINK_COM_POS_2",
    "link_inertia": "LINK_MOI",
    "time_step": "dt",
}


def _read_acrobot(env: Any) -> dict[str, float]:
    values = {name: getattr(env.unwrapped, path) for name, path in _ACROBOT.items()}
    return {**values, "torque": env.unwrapped.AVAIL_TORQUE[-1]}


def _write_acrobot(env: Any, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if name == "torque":
            env.unwrapped.AVAIL_TORQUE = [-value, 0.0, value]
        else:
            setattr(env.unwrapped, _ACROBOT[name], value)


def _acrobot(branching: Branching) -> HostEnvironment:
    return from_gymnasium(
        "Acrobot-v1",
        box={"link_mass_2": (0.5, 2.0), "torque": (0.5, 1.5)},
        parameters=Access(_read_acrobot, _write_acrobot),
        state=("unwrapped.state",),
        state_of=lambda obs: np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]]),
        nominal=AcrobotParameters(),
        actions=("clockwise", "none", "anticlockwise"),
        observation_scale=(1.0, 1.0, 1.0, 1.0, 4.0, 9.0),
        branching=branching,
    )


@pytree_dataclass
class MountainCarParameters:
    """The parameters of Gymnasium's Mountain Car."""

    force: Any = quantity(0.001, "1/step²", "acceleration by the engine")
    gravity: Any = quantity(0.0025, "1/step²", "acceleration by the slope, at its steepest")


def _mountain_car(branching: Branching) -> HostEnvironment:
    return from_gymnasium(
        "MountainCar-v0",
        box={"force": (0.0004, 0.0011), "gravity": (0.0022, 0.0028)},
        parameters={"force": "unwrapped.force", "gravity": "unwrapped.gravity"},
        state=("unwrapped.state",),
        nominal=MountainCarParameters(),
        actions=("left", "roll", "right"),
        observation_scale=(1.0, 0.07),
        branching=branching,
    )


@pytree_dataclass
class ContinuousCarParameters:
    """The parameters of Gymnasium's Mountain Car with a throttle; its gravity is fixed."""

    power: Any = quantity(0.0015, "1/step²", "acceleration by the engine at full throttle")
    max_speed: Any = quantity(0.07, "1/step", "the speed that the car can't exceed")


def _continuous_car(branching: Branching) -> HostEnvironment:
    return from_gymnasium(
        "MountainCarContinuous-v0",
        box={"power": (0.0008, 0.0018), "max_speed": (0.05, 0.07)},
        parameters={"power": "unwrapped.power", "max_speed": "unwrapped.max_speed"},
        state=("unwrapped.state",),
        nominal=ContinuousCarParameters(),
        observation_scale=(1.0, 0.07),
        branching=branching,
    )


@pytree_dataclass
class PendulumParameters:
    """The parameters of Gymnasium's pendulum."""

    mass: Any = quantity(1.0, "kg", "mass of the rod")
    length: Any = quantity(1.0, "m", "length of the rod")
    gravity: Any = quantity(10.0, "m/s²", "gravitational acceleration")
    torque: Any = quantity(2.0, "N·m", "the motor's largest torque")
    time_step: Any = quantity(0.05, "s", "time between two decisions")


def _pendulum(branching: Branching) -> HostEnvironment:
    paths = {"mass": "m", "length": "l", "gravity": "g", "torque": "max_torque", "time_step": "dt"}
    return from_gymnasium(
        "Pendulum-v1",
        box={"mass": (0.7, 1.3), "length": (0.7, 1.3)},
        parameters={name: f"unwrapped.{path}" for name, path in paths.items()},
        state=("unwrapped.state",),
        state_of=lambda obs: np.array([np.arctan2(obs[1], obs[0]), obs[2]]),
        nominal=PendulumParameters(),
        observation_scale=(1.0, 1.0, 8.0),
        branching=branching,
    )


@pytree_dataclass
class LunarLanderParameters:
    """The parameters of Gymnasium's Lunar Lander."""

    gravity: Any = quantity(10.0, "m/s²", "gravitational acceleration")
    density: Any = quantity(5.0, "kg/m²", "density of the lander, which its mass is proportional to")


def _read_lander(env: Any) -> dict[str, float]:
    body = env.unwrapped.lander
    return {"gravity": -env.unwrapped.gravity, "density": body.fixtures[0].density if body else 5.0}


def _write_lander(env: Any, values: Mapping[str, float]) -> None:
    lander = env.unwrapped
    if "gravity" in values:
        lander.gravity = -values["gravity"]
        lander.world.gravity = (0.0, lander.gravity)
    if "density" in values and lander.lander:
        lander.lander.fixtures[0].density = values["density"]
        lander.lander.ResetMassData()


def _lunar_lander(branching: Branching) -> HostEnvironment:
    """Its state can't be restored: Box2D keeps the impulses of contacts and the time at rest to itself."""
    return from_gymnasium(
        "LunarLander-v3",
        box={"gravity": (6.0, 12.0), "density": (3.0, 8.0)},
        parameters=Access(_read_lander, _write_lander),
        nominal=LunarLanderParameters(),
        actions=("none", "left engine", "main engine", "right engine"),
        observation_scale=(1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0),
        branching=branching,
    )


# --- by name -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SimulatorSettings(EpisodeSettings):
    """Settings of any Gymnasium environment."""

    branching: Branching = "restored"
    """How it answers for several models: its state is restored; `copies`, an environment for each model, all stepped
    from a common reset; or `none`, for algorithms without a robust target."""


def _settings(horizon: int, branching: Branching) -> type[SimulatorSettings]:
    fields = [
        ("horizon", Count, dataclasses.field(default=horizon)),
        ("branching", Branching, dataclasses.field(default=branching)),
    ]
    return dataclasses.make_dataclass("SimulatorSettings", fields, bases=(SimulatorSettings,), frozen=True)


def _part(
    make: Callable[[Branching], HostEnvironment],
    horizon: int,
    branching: Branching = "restored",
    success_return: Callable[[int], float] | None = None,
) -> EnvironmentPart:
    """A part whose environment is inspected once.

    Args:
      make: makes the environment.
      horizon: its own.
      branching: what is the default.
      success_return: the return above which an episode of a horizon succeeds; by default the environment's own.
    """
    made = functools.cache(make)

    def of(settings: SimulatorSettings) -> HostEnvironment:
        env = made(settings.branching)
        if success_return:
            env = env._replace(success_return=success_return(settings.horizon), assumed=())
        return env._replace(horizon=settings.horizon)

    return EnvironmentPart(_settings(horizon, branching), of)


def _toy_text(name: str, horizon: int, success_return: Callable[[int], float]) -> EnvironmentPart:
    return _part(functools.partial(toy_text, name), horizon, success_return=success_return)


def _in_time(horizon: int) -> float:
    """Above what is earned by −1 in each step."""
    return -float(horizon)


#: Those that come with their parameters, boxes and what a success is.
READY_MADE = {
    "Acrobot-v1": _part(_acrobot, 500, success_return=_in_time),
    "CartPole-v1": _part(_cartpole, 500, success_return=lambda horizon: 0.975 * horizon),
    "CliffWalking-v1": _toy_text("CliffWalking-v1", 200, _in_time),
    "CliffWalkingSlippery-v1": _toy_text("CliffWalkingSlippery-v1", 200, _in_time),
    "FrozenLake-v1": _toy_text("FrozenLake-v1", 100, lambda horizon: 0.5),
    "FrozenLake8x8-v1": _toy_text("FrozenLake8x8-v1", 200, lambda horizon: 0.5),
    "LunarLander-v3": _part(_lunar_lander, 1000, "copies", lambda horizon: 200.0),
    "MountainCar-v0": _part(_mountain_car, 200, success_return=_in_time),
    "MountainCarContinuous-v0": _part(_continuous_car, 999, success_return=lambda horizon: 90.0),
    "Pendulum-v1": _part(_pendulum, 200, success_return=lambda horizon: -400.0),
    "Taxi-v4": _toy_text("Taxi-v4", 200, _in_time),
}


@functools.cache
def find(name: str) -> EnvironmentPart | None:
    """The part of a Gymnasium id; None if there is none of this name, or Gymnasium is not installed."""
    if part := READY_MADE.get(name) or MUJOCO_PARTS.get(name):
        return part
    return _inspected(name) if name in known_ids() else None


def _inspected(env: str | Callable[[], Any]) -> EnvironmentPart:
    """The part of an environment that the package knows nothing of."""
    make = functools.cache(lambda branching: from_gymnasium(env, branching=branching))
    return _part(make, make("restored").horizon)


def _with_branching(part: EnvironmentPart) -> EnvironmentPart:
    """The part of an environment that a user has made, with its branching as a setting where it can be chosen."""
    usual = part.make(part.settings())
    if not isinstance(usual, HostEnvironment) or usual.branched is None:
        return part
    fields = [("branching", Branching, added(usual.branching))]
    settings = dataclasses.make_dataclass(
        "SimulatorSettings", fields, bases=(part.settings, SimulatorSettings), frozen=True
    )

    @functools.cache  # whether its state can be restored is tried once
    def make(chosen: Any) -> Any:
        env: Any = part.make(chosen)
        return env if chosen.branching == usual.branching else env.branched(env, chosen.branching)

    return EnvironmentPart(settings, make)


def accept(found: Any) -> EnvironmentPart:
    """The part that an object named by a user stands for: what `as_part` takes, or a Gymnasium environment.

    Args:
      found: a class of environments, a `functools.partial`, or a function that makes one, without arguments or with
        `num_envs`; or what `as_part` takes, or a function without arguments that makes it.
    """
    library = sys.modules.get("gymnasium")  # imported by whoever has a class of its environments
    kinds = (library.Env, library.vector.VectorEnv) if library else ()
    if isinstance(found, kinds):
        raise DeeprokError(
            f"that object is a {type(found).__name__} that has been made; give the class, or a function that makes it, "
            "so that every process can make its own"
        )
    if isinstance(found, functools.partial) or (isinstance(found, type) and issubclass(found, kinds)):
        return _inspected(found)
    arguments = tuple(inspect.signature(found).parameters) if inspect.isfunction(found) else None
    if arguments == ("num_envs",):
        return _inspected(found)
    if arguments == ():
        made = without_processes(found)
        return _inspected(found) if isinstance(made, kinds) else accept(made)
    part = as_part(found)
    return part if part is found else _with_branching(part)
