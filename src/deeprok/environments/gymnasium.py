"""Any `gymnasium.Env` as an environment: by its id, by a class of your own, or by a function that makes one.

Gymnasium keeps parameters and state in attributes. So an action is answered for M models by setting their parameters,
stepping, and putting the state back; or by stepping copies of the whole environment.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, shown, unknown
from deeprok.environments.base import quantity
from deeprok.environments.host import Branching, HostEnvironment, make_parameters
from deeprok.environments.simulation import Access, Inside, Simulation, as_numbers, first_observation, not_restored
from deeprok.environments.spaces import ActionSpace, Choices, Interval

T = TypeVar("T")

_NUMBERS = (int, float, np.integer, np.floating)

#: Two functions, which read something of an environment and set it.
Functions = Access | tuple[Callable[[Any], dict[str, Any]], Callable[[Any, Mapping[str, Any]], None]]

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
        a setter, is a parameter. Values are set as floats, also where a whole number was.
      state: attribute paths of all that the future depends on, such as `["unwrapped.state"]`, or two functions
        `(read, write)`. What is at a path must be a number, or an array, a list or a tuple of numbers. By default the
        environment is copied, if a copy is shown to work. Gymnasium's random state is always included.
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
    library = _library()
    title = name or (env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__))
    if branching not in get_args(Branching):
        raise unknown("branching", str(branching), get_args(Branching))
    make = _maker(env, title)
    sample, limit = make()
    access = _functions(parameters, "parameters", title) or _attributes(parameters, sample, box or {}, title)
    values = _read_parameters(access, sample, title)
    if missing := [each for each in box or {} if each not in values]:
        raise DeeprokError(f"{title} has no parameter {shown(missing[0])}; it has {', '.join(values)}")
    derived = derive and _told(derive, f"derive of {title}")
    try:
        # Some attributes exist only then: of the state, but no parameters.
        first = first_observation(sample.reset(seed=0))
    except DeeprokError:
        raise
    except Exception as error:  # whatever the user's class says
        raise DeeprokError(f"{title} can't be reset with a seed: {type(error).__name__}: {error}") from error
    functions = _functions(state, "state", title)
    saved = functions or (None if state is None else _state_at(state, sample, title))
    paths: Any = () if functions or state is None else state
    spec = getattr(sample, "spec", None)
    limit = horizon or limit or getattr(spec, "max_episode_steps", None)
    flatten, scale = _observations(library, sample.observation_space, title)
    success = success_return if success_return is not None else getattr(spec, "reward_threshold", None)
    within = Inside(
        make=lambda: make()[0],
        parameters=access,
        state=saved,
        begun=_begun(saved, sample, title) if saved else {},
        derive=derived,
        flatten=flatten,
        take=_taker(library, sample.action_space),
        branching=branching,
    )

    def branched(made: HostEnvironment, way: Branching) -> HostEnvironment:
        inside = within._replace(branching=way)
        made = made._replace(make=lambda: Simulation(inside), branching=way, problem="")
        if way == "restored" and (problem := not_restored(Simulation(inside), made.actions)):
            return made._replace(branching="none", problem=problem)
        return made

    made = HostEnvironment(
        name=title,
        make=lambda: Simulation(within),
        nominal=nominal if nominal is not None else _parameters(values),
        box=dict(box or {}),
        observation_scale=tuple(observation_scale) or scale,
        actions=_actions(library, sample.action_space, actions, title),
        horizon=limit or _HORIZON,
        success_return=float(success or 0.0),
        assumed=tuple(name for name, known in (("horizon", limit), ("success_return", success)) if known is None),
        branched=branched,
        place=_placing(state_of or _where_seen(paths, sample, flatten(first)), paths, title) if saved else None,
    )
    return branched(made, branching)


def _library() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise extra_missing("Gymnasium's environments need", "gymnasium") from error
    return gymnasium


def known_ids() -> Collection[str]:
    """The ids that Gymnasium knows; none if it is not installed."""
    try:
        return _library().registry.keys()
    except DeeprokError:
        return ()


def _maker(env: str | Callable[[], Any], title: str) -> Callable[[], tuple[Any, int | None]]:
    """A function that makes the environment without a time limit, and what the limit was."""
    library = _library()

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
        for layer in _layers(made):
            if isinstance(layer, library.wrappers.TimeLimit):  # time is the driver's
                limit, layer._max_episode_steps = layer._max_episode_steps, sys.maxsize
        # Outside of everything else these two change nothing, and take time in each step.
        while type(made) in (library.wrappers.TimeLimit, library.wrappers.OrderEnforcing):
            made = made.env
        return made, limit

    return make


def refuse_several(found: Any, title: str) -> None:
    """Raises if something is several environments at once, or a class of such."""
    several = _library().vector.VectorEnv
    if isinstance(found, several) or (isinstance(found, type) and issubclass(found, several)):
        raise DeeprokError(
            f"{title} is a gymnasium.vector.VectorEnv, several environments at once; give the single environment, and "
            "--simulators N to run N of them, each in a process of its own"
        )


def _layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps."""
    yield env
    while env is not env.unwrapped and hasattr(env, "env"):
        env = env.env
        yield env


# --- parameters and state ------------------------------------------------------------------------------


def _functions(given: Any, field: str, title: str) -> Access | None:
    """The two functions that parameters or a state are given by; None if they are given in another way."""
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(callable(each) for each in given)):
        return None
    read, write = given
    return Access(
        _told(read, f"the function that reads the {field} of {title}"),
        _told(write, f"the function that sets the {field} of {title}"),
    )


def _told(call: Callable[..., T], what: str) -> Callable[..., T]:
    """A user's function that, where it fails, says which one it is."""

    def run(*given: Any) -> T:
        try:
            return call(*given)
        except Exception as error:  # whatever the user's function says
            raise DeeprokError(f"{what} fails with {type(error).__name__}: {error}") from error

    return run


def _read_parameters(access: Access, sample: Any, title: str) -> Mapping[str, Any]:
    """The parameters that an environment has; raises unless they are numbers with names."""
    found: Any = access.read(sample)
    if not isinstance(found, Mapping):
        raise DeeprokError(
            f"the function that reads the parameters of {title} gives {shown(found)}; it must give a dictionary, "
            "name -> number"
        )
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise DeeprokError(f"{title}: the parameter {name} is {shown(value)}; it must be a number")
    return found


class _Attribute(NamedTuple):
    """An attribute at a path such as `unwrapped.masscart`."""

    name: str
    owner: Callable[[Any], Any]
    get: Callable[[Any], Any]

    def put(self, env: Any, value: Any) -> None:
        """Sets it."""
        setattr(self.owner(env), self.name, value)


def _attribute(path: str, sample: Any, title: str) -> _Attribute:
    way, _, name = path.rpartition(".")
    get = operator.attrgetter(path)
    try:
        get(sample)
    except AttributeError:
        raise DeeprokError(f"{title} has no attribute {shown(path)}, so it is no parameter and no state") from None
    return _Attribute(name, operator.attrgetter(way) if way else lambda env: env, get)


def _attributes(paths: Any, sample: Any, box: Mapping[str, Any], title: str) -> Access:
    """Parameters that are attributes; by default the numbers that the unwrapped environment has."""
    if paths is not None and not (isinstance(paths, Mapping) and all(isinstance(each, str) for each in paths.values())):
        raise DeeprokError(
            f"parameters is {shown(paths)}; it must be a dictionary, name -> attribute path, such as "
            "{'mass': 'unwrapped.mass'}, or two functions, (read, write)"
        )
    chosen = paths or {each: f"unwrapped.{each}" for each in (*_numbers(sample.unwrapped), *box)}
    found = {each: _attribute(path, sample, title) for each, path in chosen.items()}
    for each, attribute in found.items():
        value = attribute.get(sample)
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise DeeprokError(f"{title}: {chosen[each]} is {shown(value)}, which is no number, so it is no parameter")
        try:
            attribute.put(sample, value)
        except Exception as error:  # as of a property without a setter
            why = f"{type(error).__name__}: {error}"
            raise DeeprokError(f"{title}: {chosen[each]} can't be set, so it is no parameter ({why})") from error

    def read(env: Any) -> dict[str, Any]:
        return {each: attribute.get(env) for each, attribute in found.items()}

    def write(env: Any, values: Mapping[str, Any]) -> None:
        for each, value in values.items():
            found[each].put(env, value)

    return Access(read, _told(write, f"setting parameters of {title}"))


def _numbers(env: Any) -> list[str]:
    """The public attributes of an environment that are finite numbers and can be set."""
    base = _library().Env
    own = [vars(kind) for kind in type(env).__mro__ if kind not in base.__mro__]
    names = {name: None for place in (*reversed(own), vars(env)) for name in place}
    return [name for name in names if not name.startswith("_") and _is_number(env, name)]


def _is_number(env: Any, name: str) -> bool:
    try:
        value = getattr(env, name)
        if not isinstance(value, _NUMBERS) or isinstance(value, bool) or not math.isfinite(value):
            return False
        setattr(env, name, value)
    except Exception:  # of a property, which may have no setter or need a reset
        return False
    return True


def _parameters(values: Mapping[str, Any]) -> Any:
    """Nominal parameters with the values that an environment has, of which nothing else is known."""
    fields = {name: quantity(float(value), "", "", positive=False) for name, value in values.items()}
    return make_parameters("Parameters", fields)


def _state_at(paths: Any, sample: Any, title: str) -> Access:
    """A state that is attributes: numbers, arrays, lists and tuples of numbers, or None.

    What is read from a checkpoint is an array. It is put back as a list where a list was, which others may append to.
    """
    if isinstance(paths, str) or not (isinstance(paths, Sequence) and all(isinstance(path, str) for path in paths)):
        raise DeeprokError(
            f"state is {shown(paths)}; it must be a list of attribute paths, such as ['unwrapped.state'], or two "
            "functions, (read, write)"
        )
    found = {path: _attribute(path, sample, title) for path in paths}
    for path, attribute in found.items():
        _check_state(attribute.get(sample), f"{title}: {path}")
    lists = {path for path, attribute in found.items() if isinstance(attribute.get(sample), list)}

    def read(env: Any) -> dict[str, Any]:
        return {path: _copied(attribute.get(env)) for path, attribute in found.items()}

    def write(env: Any, state: Mapping[str, Any]) -> None:
        for path, attribute in found.items():
            value = state[path]
            attribute.put(env, list(value) if path in lists and value is not None else _copied(value))

    return Access(read, write)


def _where_seen(paths: Sequence[str], sample: Any, obs: np.ndarray) -> Callable[[Any], Any] | None:
    """The state that an observation stands for, if one of the paths holds the observation itself."""
    for path in paths:
        there = operator.attrgetter(path)(sample)
        if np.shape(there) == obs.shape and np.allclose(np.asarray(there, float), obs, rtol=1e-5, atol=1e-7):
            return lambda obs: {path: obs}
    return None


def _placing(
    state_of: Callable[[np.ndarray], Any] | None, paths: Sequence[str], title: str
) -> Callable[[Simulation, np.ndarray], None] | None:
    """What puts a simulation where an observation says; None if nothing says where that is."""
    if state_of is None:
        return None
    read = _told(state_of, f"state_of of {title}")

    def place(simulation: Simulation, obs: np.ndarray) -> None:
        found = read(obs)
        if not isinstance(found, Mapping) and len(paths) != 1:
            raise DeeprokError(
                f"state_of of {title} gives {shown(found)}; it must give a dictionary with the names of the state"
            )
        simulation.put(found if isinstance(found, Mapping) else {paths[0]: found})

    return place


def _check_state(value: Any, what: str) -> None:
    """Raises unless a checkpoint can hold a value, and its environment goes on with an array in its place."""
    plain = value is None or isinstance(value, (*_NUMBERS, np.ndarray, list, tuple))
    if not plain or as_numbers(value) is None:
        raise DeeprokError(
            f"{what} is a {type(value).__name__}; attribute paths of a state may hold numbers, and arrays, lists and "
            "tuples of numbers; for anything else give two functions as the state, Access(read, write)"
        )


def _begun(access: Access, sample: Any, title: str) -> dict[str, np.ndarray]:
    """The state after a reset, as arrays; raises unless it is numbers with names."""
    found: Any = access.read(sample)
    if not isinstance(found, Mapping):
        raise DeeprokError(
            f"the function that reads the state of {title} gives {shown(found)}; it must give a dictionary of numbers "
            "and arrays"
        )
    arrays = {name: as_numbers(value) for name, value in found.items()}
    for name, array in arrays.items():
        if array is None:
            raise DeeprokError(
                f"{title}: {name} of the state is a {type(found[name]).__name__}; it must be a number or an array"
            )
    return {name: array for name, array in arrays.items() if array is not None}


def _copied(value: Any) -> Any:
    """A copy of what may be changed in place."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if value is None or isinstance(value, _NUMBERS) else copy.deepcopy(value)


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
