"""Parameters and state of a Gymnasium environment: at attribute paths, by users' functions, or MuJoCo's."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, shown
from deeprok.environments.base import quantity
from deeprok.environments.host import Branching, HostEnvironment, Simulator, make_parameters
from deeprok.environments.mujoco_gymnasium import Physics
from deeprok.environments.simulation import Access, as_numbers, first_observation
from deeprok.environments.spaces import ActionSpace

T = TypeVar("T")

_NUMBERS = (int, float, np.integer, np.floating)

#: Two functions, which read something of an environment and set it.
Functions = Access | tuple[Callable[[Any], dict[str, Any]], Callable[[Any, Mapping[str, Any]], None]]


#: Steps after which an episode is truncated where nothing else says so.
_HORIZON = 200


class Description(NamedTuple):
    """What a user says of an environment, as `from_gymnasium` describes it."""

    title: str
    box: Mapping[str, tuple[float, float]]
    parameters: Mapping[str, str] | Functions | None
    state: Sequence[str] | Functions | None
    state_of: Callable[[np.ndarray], Any] | None
    derive: Callable[[Any], None] | None
    nominal: Any
    actions: Sequence[str]
    observation_scale: Sequence[float]
    horizon: int | None
    success_return: float | None
    branching: Branching


def gymnasium_library() -> Any:
    """The package `gymnasium`; a clear error where it is not installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise extra_missing("Gymnasium's environments need", "gymnasium") from error
    return gymnasium


def layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps."""
    yield env
    while env is not env.unwrapped and hasattr(env, "env"):
        env = env.env
        yield env


def functions_of(given: Any, field: str, title: str) -> Access | None:
    """The two functions that parameters or a state are given by; None if they are given in another way."""
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(callable(each) for each in given)):
        return None
    read, write = given
    return Access(
        with_named_errors(read, f"the function that reads the {field} of {title}"),
        with_named_errors(write, f"the function that sets the {field} of {title}"),
    )


def with_named_errors(call: Callable[..., T], what: str) -> Callable[..., T]:
    """A user's function whose errors say which one it is."""

    def run(*given: Any) -> T:
        try:
            return call(*given)
        except Exception as error:  # whatever the user's function says
            raise DeeprokError(f"{what} fails with {type(error).__name__}: {error}") from error

    return run


def derived(description: Description) -> Callable[[Any], None] | None:
    """What computes what follows from parameters."""
    return description.derive and with_named_errors(description.derive, f"derive of {description.title}")


def host_environment(
    description: Description,
    sample: Any,
    limit: int | None,
    scale: Sequence[float],
    actions: ActionSpace,
    nominal: Any,
    make: Callable[[], Simulator],
) -> HostEnvironment:
    """An environment with what a user says of it, and otherwise what Gymnasium does.

    Args:
      description: what a user says.
      sample: one of Gymnasium's, whose specification says more.
      limit: the steps of an episode, where the sample itself limits them.
      scale: the typical size of each observation, as its space has it.
      actions: its actions.
      nominal: its parameters.
      make: makes a simulation.
    """
    spec = getattr(sample, "spec", None)
    limit = description.horizon or limit or getattr(spec, "max_episode_steps", None)
    success = (
        description.success_return
        if description.success_return is not None
        else getattr(spec, "reward_threshold", None)
    )
    return HostEnvironment(
        name=description.title,
        make=make,
        nominal=description.nominal if description.nominal is not None else nominal,
        box=description.box,
        observation_scale=tuple(description.observation_scale) or tuple(scale),
        actions=actions,
        horizon=limit or _HORIZON,
        success_return=float(success or 0.0),
        assumed=tuple(name for name, known in (("horizon", limit), ("success_return", success)) if known is None),
    )


def reset_once(sample: Any, title: str) -> Any:
    """The first observation of an environment that has just been made."""
    try:
        return first_observation(sample.reset(seed=0))
    except DeeprokError:
        raise
    except Exception as error:  # whatever the user's class says
        raise DeeprokError(f"{title} can't be reset with a seed: {type(error).__name__}: {error}") from error


def read_parameters(access: Access, sample: Any, description: Description) -> Mapping[str, Any]:
    """The parameters that an environment has; raises unless they are numbers with names, and the box is of them."""
    found: Any = access.read(sample)
    title = description.title
    if not isinstance(found, Mapping):
        raise DeeprokError(
            f"the function that reads the parameters of {title} gives {shown(found)}; it must give a dictionary, "
            "name -> number"
        )
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise DeeprokError(f"{title}: the parameter {name} is {shown(value)}; it must be a number")
    if missing := [each for each in description.box if each not in found]:
        raise DeeprokError(f"{title} has no parameter {shown(missing[0])}; it has {', '.join(found)}")
    return found


class Placed(Protocol):
    """A simulation whose state can be changed by names."""

    def put(self, state: Mapping[str, Any]) -> None:
        """Changes a part of the state within the episode."""


class _Attribute(NamedTuple):
    """An attribute at a path such as `unwrapped.masscart`."""

    name: str
    owner: Callable[[Any], Any]
    get: Callable[[Any], Any]

    def put(self, env: Any, value: Any) -> None:
        """Sets it."""
        setattr(self.owner(env), self.name, value)


def attribute_at(path: str, sample: Any, title: str) -> _Attribute:
    """The attribute at a path; raises if there is none."""
    way, _, name = path.rpartition(".")
    get = operator.attrgetter(path)
    try:
        get(sample)
    except AttributeError:
        raise DeeprokError(f"{title} has no attribute {shown(path)}, so it is no parameter and no state") from None
    return _Attribute(name, operator.attrgetter(way) if way else lambda env: env, get)


def attributes(paths: Any, sample: Any, box: Collection[str], title: str, rows: int = 0) -> Access:
    """Parameters that are attributes; by default the numbers that the unwrapped environment has.

    Args:
      paths: name -> attribute path; None for the default.
      sample: an environment.
      box: names that are parameters, too, by default.
      title: what messages call it.
      rows: of a vector environment how many it has; an array of so many equal numbers may be a parameter, too.
    """
    if paths is not None and not (isinstance(paths, Mapping) and all(isinstance(each, str) for each in paths.values())):
        raise DeeprokError(
            f"parameters is {shown(paths)}; it must be a dictionary, name -> attribute path, such as "
            "{'mass': 'unwrapped.mass'}, or two functions, (read, write)"
        )
    chosen = paths or {each: f"unwrapped.{each}" for each in (*numbers_of(sample.unwrapped), *box)}
    found = {each: attribute_at(path, sample, title) for each, path in chosen.items()}
    for each, attribute in found.items():
        held = attribute.get(sample)
        value = _one_number(held, rows)
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise DeeprokError(f"{title}: {chosen[each]} is {shown(value)}, which is no number, so it is no parameter")
        try:
            attribute.put(sample, held)
        except Exception as error:  # as of a property without a setter
            why = f"{type(error).__name__}: {error}"
            raise DeeprokError(f"{title}: {chosen[each]} can't be set, so it is no parameter ({why})") from error

    def read(env: Any) -> dict[str, Any]:
        return {each: _one_number(attribute.get(env), rows) for each, attribute in found.items()}

    def write(env: Any, values: Mapping[str, Any]) -> None:
        for each, value in values.items():
            found[each].put(env, value)

    return Access(read, with_named_errors(write, f"setting parameters of {title}"))


def _one_number(value: Any, rows: int) -> Any:
    """The number that all rows have, where each has its own; any other value as it is."""
    if rows and isinstance(value, np.ndarray) and value.shape == (rows,) and (value == value[0]).all():
        return value[0].item()
    return value


#: Numbers of a vector environment that say how it is made.
_MADE_WITH = ("num_envs", "max_episode_steps")


def numbers_of(env: Any) -> list[str]:
    """The public attributes of an environment that are finite numbers and can be set."""
    library = gymnasium_library()
    several = isinstance(env, library.vector.VectorEnv)
    base = library.vector.VectorEnv if several else library.Env
    own = [vars(kind) for kind in type(env).__mro__ if kind not in base.__mro__]
    names = {name: None for place in (*reversed(own), vars(env)) for name in place}
    hidden = _MADE_WITH if several else ()
    return [name for name in names if not name.startswith("_") and name not in hidden and _is_number(env, name)]


def _is_number(env: Any, name: str) -> bool:
    try:
        value = getattr(env, name)
        if not isinstance(value, _NUMBERS) or isinstance(value, bool) or not math.isfinite(value):
            return False
        setattr(env, name, value)
    except Exception:  # of a property, which may have no setter or need a reset
        return False
    return True


def nominal_parameters(values: Mapping[str, Any], physics: Physics | None) -> Any:
    """Nominal parameters with the values that an environment has; nothing else is known of its attributes."""
    fields = {name: quantity(float(value), "", "", positive=False) for name, value in values.items()}
    return make_parameters("Parameters", {**fields, **(physics.quantities if physics else {})})


def joined(one: Access, other: Access) -> Access:
    """Two things of an environment as one; a name that both have is the first one's."""

    def read(env: Any) -> dict[str, Any]:
        found = one.read(env)
        return {**found, **{name: value for name, value in other.read(env).items() if name not in found}}

    def write(env: Any, values: Mapping[str, Any]) -> None:
        names = one.read(env)
        one.write(env, {name: value for name, value in values.items() if name in names})
        other.write(env, {name: value for name, value in values.items() if name not in names})

    return Access(read, write)


def saved_state(given: Any, physics: Physics | None, sample: Any, title: str) -> Access | None:
    """The state at the paths that a user gave; else MuJoCo's and all numbers that the environment has beside it."""
    if given is not None:
        return _state_at(given, sample, title)
    paths = _numbers_held(sample) if physics else None
    if not physics or not physics.state or paths is None:
        return None
    return joined(physics.state, _state_at(paths, sample, title))


#: Attributes of Gymnasium's classes that are more than numbers and do not change.
_FIXED = (
    *("metadata", "spec", "_np_random", "model", "data", "mujoco_renderer", "observation_structure"),
    *("_ezpickle_args", "_ezpickle_kwargs"),
)


def _numbers_held(env: Any) -> list[str] | None:
    """Paths of all numbers that a MuJoCo environment and its wrappers hold; None if they hold more that may change."""
    library, paths = gymnasium_library(), list[str]()
    for depth, layer in enumerate(layers(env)):
        for name, value in vars(layer).items():
            if _can_be_stored(value):
                paths.append("env." * depth + name)
            elif name not in _FIXED and not isinstance(value, str | library.Env | library.Space):
                return None
    return paths


def no_paths(given: Any) -> DeeprokError:
    """What is said of a state that is neither paths nor functions."""
    return DeeprokError(
        f"state is {shown(given)}; it must be a list of attribute paths, such as ['unwrapped.state'], or two "
        "functions, (read, write)"
    )


def _state_at(paths: Any, sample: Any, title: str) -> Access:
    """A state that is attributes: numbers, arrays, lists and tuples of numbers, or None.

    What is read from a checkpoint is an array. It is put back as a list or a tuple where such a one was.
    """
    if isinstance(paths, str) or not (isinstance(paths, Sequence) and all(isinstance(path, str) for path in paths)):
        raise no_paths(paths)
    found = {path: attribute_at(path, sample, title) for path in paths}
    for path, attribute in found.items():
        _check_state(attribute.get(sample), f"{title}: {path}")
    kinds = {path: type(attribute.get(sample)) for path, attribute in found.items()}

    def read(env: Any) -> dict[str, Any]:
        return {path: _copied(attribute.get(env)) for path, attribute in found.items()}

    def write(env: Any, state: Mapping[str, Any]) -> None:
        for path, attribute in found.items():
            value = state[path]
            arrayed = isinstance(value, np.ndarray) and kinds[path] in (list, tuple)
            attribute.put(env, kinds[path](value) if arrayed else _copied(value))

    return Access(read, write)


def where_seen(paths: Sequence[str], sample: Any, obs: np.ndarray) -> Callable[[Any], Any] | None:
    """The state that an observation stands for, if one of the paths holds the observation itself."""
    for path in paths:
        there = operator.attrgetter(path)(sample)
        if is_seen(there, obs):
            shape = np.shape(there)
            return lambda obs: {path: np.reshape(obs, shape)[()]}  # of a single number no array
    return None


def is_seen(value: Any, obs: np.ndarray) -> bool:
    """Whether a part of a state is what is observed."""
    return np.size(value) == obs.size and bool(np.allclose(np.ravel(value).astype(float), obs, rtol=1e-5, atol=1e-7))


def placing(
    state_of: Callable[[np.ndarray], Any] | None, paths: Sequence[str], title: str
) -> Callable[[Placed, np.ndarray], None] | None:
    """What puts a simulation where an observation says; None if nothing says where that is."""
    if state_of is None:
        return None
    read = with_named_errors(state_of, f"state_of of {title}")

    def place(simulation: Placed, obs: np.ndarray) -> None:
        found = read(obs)
        if not isinstance(found, Mapping) and len(paths) != 1:
            raise DeeprokError(
                f"state_of of {title} gives {shown(found)}; it must give a dictionary with the names of the state"
            )
        simulation.put(found if isinstance(found, Mapping) else {paths[0]: found})

    return place


def _check_state(value: Any, what: str) -> None:
    """Raises unless a checkpoint can hold a value, and its environment goes on with an array in its place."""
    if not _can_be_stored(value):
        raise DeeprokError(
            f"{what} is a {type(value).__name__}; attribute paths of a state may hold numbers, and arrays, lists and "
            "tuples of numbers; for anything else give two functions as the state, Access(read, write)"
        )


def begun_state(access: Access, sample: Any, title: str) -> dict[str, np.ndarray]:
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


def _can_be_stored(value: Any) -> bool:
    plain = value is None or isinstance(value, (*_NUMBERS, np.ndarray, list, tuple))
    return plain and as_numbers(value) is not None


def _copied(value: Any) -> Any:
    """A copy of what may be changed in place."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if value is None or isinstance(value, _NUMBERS) else copy.deepcopy(value)
