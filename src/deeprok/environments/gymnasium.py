"""Any `gymnasium.Env` as an environment: by its id, by a class of your own, or by a function that makes one.

Gymnasium keeps parameters and state in attributes. So an action is answered for M models by setting their parameters,
stepping, and putting the state back; or by stepping copies of the whole environment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, shown, unknown
from deeprok.environments.gymnasium_access import (
    Functions,
    attributes,
    begun_state,
    functions_of,
    gymnasium_library,
    joined,
    layers,
    nominal_parameters,
    placing,
    read_parameters,
    saved_state,
    told,
    where_seen,
)
from deeprok.environments.host import Branching, HostEnvironment
from deeprok.environments.mujoco_gymnasium import physics_of
from deeprok.environments.simulation import Inside, Simulation, first_observation, not_restored
from deeprok.environments.spaces import ActionSpace, Choices, Interval

#: Steps after which an episode is truncated where nothing else says so.
_HORIZON = 200


def from_gymnasium(
    env: str | Callable[[], Any],
    box: Mapping[str, tuple[float, float]] | None = None,
    *,
    parameters: Mapping[str, str] | Functions | None = None,
    state: Sequence[str] | Functions | None = None,
    state_of: Callable[[np.ndarray], Any] | None = None,
    derive: Callable[[Any], None] | None = None,
    name: str = "",
    nominal: Any = None,
    actions: Sequence[str] = (),
    observation_scale: Sequence[float] = (),
    horizon: int | None = None,
    success_return: float | None = None,
    branching: Branching = "restored",
) -> HostEnvironment:
    """Makes an environment of a Gymnasium one.

    Args:
      env: an id such as `Acrobot-v1`, a class, or a function that makes an environment.
      box: the ranges of the uncertain parameters, by name; a run may give its own.
      parameters: name -> attribute path, such as `{"cart_mass": "unwrapped.masscart"}`, or two functions
        `(read, write)`. By default every number that is an attribute of the unwrapped environment, or a property with
        a setter, is a parameter, and so are those of its MuJoCo model, if it has one. Values are set as floats, also
        where a whole number was.
      state: attribute paths of all that the future depends on, such as `["unwrapped.state"]`, or two functions
        `(read, write)`. What is at a path must be a number, or an array, a list or a tuple of numbers. By default it
        is MuJoCo's, with all numbers beside it; else the environment is copied, if a copy is shown to work.
        Gymnasium's random state is always included.
      state_of: `obs -> state`, the state that an observation stands for, by which `deeprok identify` compares logs of a
        real system with the simulator: a dictionary with the names of `state`, or what is at its only path. By default
        the path where the observation itself is found.
      derive: called with the environment after parameters were set, to compute what follows from them.
      name: what figures and exported policies call it; by default its id or the name of its class.
      nominal: the parameters' nominal values with their units, a `pytree_dataclass` of `quantity` fields; by default
        those that the environment has.
      actions: names of its discrete actions.
      observation_scale: a typical size of each observation; by default the ends of the space, where they are finite.
      horizon: steps after which an episode is truncated; by default that of its `TimeLimit`, else 200.
      success_return: an episode succeeds above this return; by default the threshold that Gymnasium states, else 0.
      branching: `restored`, which becomes `none` where the state can't be restored; or `copies`, or `none`. A run may
        choose another one.

    Example:
      >>> env = from_gymnasium("Pendulum-v1", box={"m": (0.7, 1.3)}, state=["unwrapped.state"])
      >>> env.horizon
      200
    """
    library = gymnasium_library()
    title = name or (env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__))
    if branching not in get_args(Branching):
        raise unknown("branching", str(branching), get_args(Branching))
    make = _maker(env, title)
    sample, limit = make()
    physics = physics_of(sample) if parameters is None else None
    own = [each for each in box or {} if not physics or each not in physics.quantities]
    access = functions_of(parameters, "parameters", title) or attributes(parameters, sample, own, title)
    if physics:
        access = joined(physics.parameters, access)
    values = read_parameters(access, sample, title)
    if missing := [each for each in box or {} if each not in values]:
        raise DeeprokError(f"{title} has no parameter {shown(missing[0])}; it has {', '.join(values)}")
    derived = derive and told(derive, f"derive of {title}")
    try:
        # Some attributes exist only then: of the state, but no parameters.
        first = first_observation(sample.reset(seed=0))
    except DeeprokError:
        raise
    except Exception as error:  # whatever the user's class says
        raise DeeprokError(f"{title} can't be reset with a seed: {type(error).__name__}: {error}") from error
    functions = functions_of(state, "state", title)
    saved = functions or saved_state(state, physics, sample, title)
    paths: Any = () if functions or state is None else state
    spec = getattr(sample, "spec", None)
    limit = horizon or limit or getattr(spec, "max_episode_steps", None)
    flatten, scale = _observations(library, sample.observation_space, title)
    success = success_return if success_return is not None else getattr(spec, "reward_threshold", None)
    within = Inside(
        make=lambda: make()[0],
        parameters=access,
        state=saved,
        begun=begun_state(saved, sample, title) if saved else {},
        derive=derived,
        flatten=flatten,
        take=_taker(library, sample.action_space),
        branching=branching,
    )

    def branched(made: HostEnvironment, way: Branching) -> HostEnvironment:
        inside = within._replace(branching=way)
        made = made._replace(make=lambda: Simulation(inside), branching=way, problem="")
        if way != "restored" or not (problem := not_restored(Simulation(inside), made.actions)):
            return made
        if physics and state is None:  # a step may depend on more of what MuJoCo has computed
            copied = inside._replace(state=None, begun={})
            if not not_restored(Simulation(copied), made.actions):
                return made._replace(make=lambda: Simulation(copied))
        return made._replace(branching="none", problem=problem)

    made = HostEnvironment(
        name=title,
        make=lambda: Simulation(within),
        nominal=nominal if nominal is not None else nominal_parameters(values, physics),
        box=dict(box or {}),
        observation_scale=tuple(observation_scale) or scale,
        actions=_actions(library, sample.action_space, actions, title),
        horizon=limit or _HORIZON,
        success_return=float(success or 0.0),
        assumed=tuple(name for name, known in (("horizon", limit), ("success_return", success)) if known is None),
        branched=branched,
        place=placing(state_of or where_seen(paths, sample, flatten(first)), paths, title) if saved else None,
    )
    return branched(made, branching)


def known_ids() -> Collection[str]:
    """The ids that Gymnasium knows; none if it is not installed."""
    try:
        return gymnasium_library().registry.keys()
    except DeeprokError:
        return ()


def _maker(env: str | Callable[[], Any], title: str) -> Callable[[], tuple[Any, int | None]]:
    """A function that makes the environment without a time limit, and what the limit was."""
    library = gymnasium_library()

    def make() -> tuple[Any, int | None]:
        limit = None
        try:
            if isinstance(env, str):
                made = library.make(env, disable_env_checker=True)
            else:
                made = env()
        except library.error.DependencyNotInstalled as error:
            extras = [extra for extra in ("box2d", "mujoco") if extra in str(error).lower()]
            if extras:
                raise extra_missing(f"{title} needs", extras[0]) from error
            raise DeeprokError(f"{title} can't be made: {error}") from error
        except Exception as error:  # whatever the user's class says
            if isinstance(error, TypeError) and "gymnasium.vector" in str(error):  # an id that makes several
                refuse_several(library.vector.VectorEnv, title)
            raise DeeprokError(f"{title} can't be made: {type(error).__name__}: {error}") from error
        refuse_several(made, title)
        if not isinstance(made, library.Env):
            raise DeeprokError(f"{title} made an object of type {type(made).__name__}; it must be a gymnasium.Env")
        for layer in layers(made):
            if isinstance(layer, library.wrappers.TimeLimit):  # time is the driver's
                limit, layer._max_episode_steps = layer._max_episode_steps, sys.maxsize
        # Outside of everything else these two change nothing, and take time in each step.
        while type(made) in (library.wrappers.TimeLimit, library.wrappers.OrderEnforcing):
            made = made.env
        return made, limit

    return make


def refuse_several(found: Any, title: str) -> None:
    """Raises if something is several environments at once, or a class of such."""
    several = gymnasium_library().vector.VectorEnv
    if isinstance(found, several) or (isinstance(found, type) and issubclass(found, several)):
        raise DeeprokError(
            f"{title} is a gymnasium.vector.VectorEnv, several environments at once; give the single environment, and "
            "--simulators N to run N of them, each in a process of its own"
        )


# --- spaces --------------------------------------------------------------------------------------------


def _observations(library: Any, space: Any, title: str) -> tuple[Callable[[Any], np.ndarray], tuple[float, ...]]:
    """What makes a flat array of an observation, and the typical size of each number."""
    if isinstance(space, library.spaces.Discrete):
        rows = np.eye(int(space.n))
        return lambda obs: rows[int(obs) - int(space.start)], (1.0,) * len(rows)
    if not isinstance(space, library.spaces.Box):
        raise DeeprokError(
            f"{title} has observations in a {type(space).__name__} space; they must be a flat Box of numbers or "
            "Discrete, as gymnasium.wrappers.FlattenObservation makes them"
        )
    if len(space.shape) > 1 or space.dtype == np.uint8:
        kind = "images" if space.dtype == np.uint8 or len(space.shape) == 3 else "arrays"
        raise DeeprokError(
            f"{title} has {kind} of shape {space.shape} as observations; they must be a flat list of numbers"
        )
    ends = np.maximum(np.abs(space.low.astype(float)), np.abs(space.high.astype(float))).reshape(-1)
    scale = np.where((ends > 0) & (ends < 1e6), ends, 1.0)

    def flatten(obs: Any) -> np.ndarray:
        flat = np.array(obs, float).ravel()
        if flat.size != scale.size:
            raise DeeprokError(
                f"{title} gives an observation of {flat.size} numbers, but its observation_space has {scale.size}"
            )
        return flat

    return flatten, tuple(scale.tolist())


def _actions(library: Any, space: Any, names: Sequence[str], title: str) -> ActionSpace:
    """The actions of a space."""
    if isinstance(space, library.spaces.Discrete):
        if names and len(names) != space.n:
            raise DeeprokError(f"actions are {shown(list(names))}; {title} has {space.n}, give as many names")
        return Choices(tuple(names) or tuple(str(int(space.start) + i) for i in range(int(space.n))))
    if not isinstance(space, library.spaces.Box):
        raise DeeprokError(f"{title} has actions in a {type(space).__name__} space; they must be Discrete or a Box")
    low, high = space.low.reshape(-1).astype(float), space.high.reshape(-1).astype(float)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DeeprokError(f"{title} has actions without ends; a Box of actions must be bounded")
    return Interval(tuple(low.tolist()), tuple(high.tolist()))


def _taker(library: Any, space: Any) -> Callable[[Any], Any]:
    """What makes the environment's own action of an agent's."""
    if isinstance(space, library.spaces.Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    return lambda action: np.asarray(action, space.dtype).reshape(space.shape)
