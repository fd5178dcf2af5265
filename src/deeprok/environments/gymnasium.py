"""Any `gymnasium.Env` as an environment: by its id, by a class of your own, or by a function that makes one.

Gymnasium keeps parameters and state in attributes. So an action is answered for M models by setting their parameters,
stepping, and putting the state back; or by stepping copies of the whole environment.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, shown, unknown
from deeprok.environments.gymnasium_access import (
    Description,
    Functions,
    attributes,
    begun_state,
    derived,
    functions_of,
    gymnasium_library,
    host_environment,
    joined,
    layers,
    nominal_parameters,
    placing,
    read_parameters,
    reset_once,
    saved_state,
    where_seen,
)
from deeprok.environments.gymnasium_spaces import actions_of, observations_of, taker_of
from deeprok.environments.gymnasium_vector import first_rows, from_batch, taken_apart, without_processes
from deeprok.environments.host import Branching, HostEnvironment
from deeprok.environments.mujoco_gymnasium import physics_of
from deeprok.environments.simulation import Inside, Simulation, not_restored


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
      env: an id such as `Acrobot-v1`, a class, or a function that makes an environment; or several at once, a
        `gymnasium.vector.VectorEnv`. If that simulates in batch, and the class or the function has an argument
        `num_envs`, it is made with as many rows as it is asked for.
      box: the ranges of the uncertain parameters, by name; a run may give its own.
      parameters: name -> attribute path, such as `{"cart_mass": "unwrapped.masscart"}`, or two functions
        `(read, write)`. By default every number that is an attribute of the unwrapped environment, or a property with
        a setter, is a parameter, and so are those of its MuJoCo model, if it has one. Values are set as floats, also
        where a whole number was.
      state: attribute paths of all that the future depends on, such as `["unwrapped.state"]`, or two functions
        `(read, write)`. What is at a path must be a number, or an array, a list or a tuple of numbers. By default it
        is MuJoCo's, with all numbers beside it; else the environment is copied, if a copy is shown to work. Of one that
        simulates in batch it is all arrays with an axis of `num_envs`; two functions have that axis first.
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
    maker = env.func if isinstance(env, functools.partial) else env
    title = name or (maker if isinstance(maker, str) else getattr(maker, "__name__", type(maker).__name__))
    if branching not in get_args(Branching):
        raise unknown("branching", str(branching), get_args(Branching))
    box, actions, observation_scale = dict(box or {}), tuple(actions), tuple(observation_scale)
    description = Description(
        *(title, box, parameters, state, state_of, derive),
        *(nominal, actions, observation_scale, horizon, success_return, branching),
    )
    make = _maker(env, title)
    sample = make(**first_rows(env))
    if not isinstance(sample, gymnasium_library().vector.VectorEnv):
        return _single(make, sample, description)
    if singles := taken_apart(sample, title):
        return _single(_maker(singles.make, title), singles.sample, description)._replace(
            simulators=singles.number, processes=singles.processes
        )
    return from_batch(env, make, sample, description)


def _single(make: Callable[[], Any], sample: Any, description: Description) -> HostEnvironment:
    """An environment of a single one of Gymnasium's.

    Args:
      make: makes it.
      sample: one that it made.
      description: what a user says of it.
    """
    library, title, box, state = gymnasium_library(), description.title, description.box, description.state
    sample, limit = _without_limit(sample)
    physics = physics_of(sample) if description.parameters is None else None
    own = [each for each in box if not physics or each not in physics.quantities]
    access = functions_of(description.parameters, "parameters", title) or attributes(
        description.parameters, sample, own, title
    )
    if physics:
        access = joined(physics.parameters, access)
    values = read_parameters(access, sample, description)
    first = reset_once(sample, title)  # some attributes exist only then: of the state, but no parameters
    functions = functions_of(state, "state", title)
    saved = functions or saved_state(state, physics, sample, title)
    paths: Any = () if functions or state is None else state
    flatten, scale = observations_of(library, sample.observation_space, title)
    within = Inside(
        make=lambda: _without_limit(make())[0],
        parameters=access,
        state=saved,
        begun=begun_state(saved, sample, title) if saved else {},
        derive=derived(description),
        flatten=flatten,
        take=taker_of(library, sample.action_space),
        branching=description.branching,
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

    actions, nominal = (
        actions_of(library, sample.action_space, description.actions, title),
        nominal_parameters(values, physics),
    )
    made = host_environment(description, sample, limit, scale, actions, nominal, lambda: Simulation(within))._replace(
        branched=branched,
        place=placing(description.state_of or where_seen(paths, sample, flatten(first)), paths, title)
        if saved
        else None,
    )
    return branched(made, description.branching)


def known_ids() -> Collection[str]:
    """The ids that Gymnasium knows; none if it is not installed."""
    try:
        return gymnasium_library().registry.keys()
    except DeeprokError:
        return ()


def _maker(env: str | Callable[[], Any], title: str) -> Callable[[], Any]:
    """A function that makes the environment; what can't be made is a sentence."""
    library = gymnasium_library()

    def make(**given: Any) -> Any:
        try:
            made = (
                library.make(env, disable_env_checker=True) if isinstance(env, str) else without_processes(env, **given)
            )
        except library.error.DependencyNotInstalled as error:
            extras = [extra for extra in ("box2d", "mujoco") if extra in str(error).lower()]
            if extras:
                raise extra_missing(f"{title} needs", extras[0]) from error
            raise DeeprokError(f"{title} can't be made: {error}") from error
        except Exception as error:  # whatever the user's class says
            if isinstance(error, TypeError) and "gymnasium.vector" in str(error):  # an id that makes several
                raise DeeprokError(
                    f"{title} makes a gymnasium.vector.VectorEnv; give a function that returns "
                    f"gymnasium.make_vec({shown(title)}, num_envs=N)"
                ) from error
            raise DeeprokError(f"{title} can't be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, library.Env | library.vector.VectorEnv):
            raise DeeprokError(
                f"{title} made an object of type {type(made).__name__}; it must be a gymnasium.Env or a "
                "gymnasium.vector.VectorEnv"
            )
        return made

    return make


def _without_limit(made: Any) -> tuple[Any, int | None]:
    """The environment without a time limit, and what the limit was."""
    library, limit = gymnasium_library(), None
    for layer in layers(made):
        if isinstance(layer, library.wrappers.TimeLimit):  # time is the driver's
            limit, layer._max_episode_steps = layer._max_episode_steps, sys.maxsize
    # Outside of everything else these two change nothing, and take time in each step.
    while type(made) in (library.wrappers.TimeLimit, library.wrappers.OrderEnforcing):
        made = made.env
    return made, limit
