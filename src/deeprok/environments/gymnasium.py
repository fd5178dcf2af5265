"""Any `gymnasium.Env` as an environment: by its id, by a class of your own, or by a function that makes one.

Gymnasium keeps parameters and state in attributes. So an action is answered for M models by setting their parameters,
stepping, and putting the state back; or by stepping copies of the whole environment.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing, shown
from deeprok.environments.base import quantity
from deeprok.environments.host import Branching, HostEnvironment, make_parameters
from deeprok.environments.mujoco_gymnasium import Physics, physics_of
from deeprok.environments.simulation import Access, Inside, Simulation, not_restored
from deeprok.environments.spaces import ActionSpace, Choices, Interval

_NUMBERS = (int, float, np.integer, np.floating)

#: Steps after which an episode is truncated where nothing else says so.
_HORIZON = 200


def from_gymnasium(
    env: str | Callable[[], Any],
    box: Mapping[str, tuple[float, float]] | None = None,
    *,
    parameters: Mapping[str, str] | Access | None = None,
    state: Sequence[str] | Access | None = None,
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
      parameters: name -> attribute path, such as `{"cart_mass": "unwrapped.masscart"}`, or two functions. By default
        every number that is an attribute of the unwrapped environment is a parameter, and so are those of its MuJoCo
        model, if it has one.
      state: attribute paths of all that the future depends on, such as `["unwrapped.state"]`, or two functions. What is
        at a path must be a number, or an array, a list or a tuple of numbers. By default it is MuJoCo's, with all
        numbers beside it; else the environment is copied, if a copy is shown to work. Gymnasium's random state is
        always included.
      derive: called with the environment after parameters were set, to compute what follows from them.
      name: what figures and exported policies call it; by default its id or the name of its class.
      nominal: the parameters' nominal values with their units, a `pytree_dataclass` of `quantity` fields; by default
        those that the environment has.
      actions: names of its discrete actions.
      observation_scale: a typical size of each observation; by default the ends of the space, where they are finite.
      horizon: steps after which an episode is truncated; by default that of its `TimeLimit`, else 200.
      success_return: an episode succeeds above this return; by default the threshold that Gymnasium states, else 0.
      branching: `restored`, which becomes `none` where the state can't be restored; or `copies`, or `none`.

    Example:
      >>> env = from_gymnasium("Pendulum-v1", box={"m": (0.7, 1.3)}, state=["unwrapped.state"])
      >>> env.horizon
      200
    """
    library = _library()
    title = name or (env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__))
    make = _maker(env, title)
    sample, limit = make()
    physics = physics_of(sample) if parameters is None else None
    own = [each for each in box or {} if not physics or each not in physics.quantities]
    access = parameters if isinstance(parameters, Access) else _attributes(parameters, sample, own, title)
    if physics:
        access = _joined(physics.parameters, access)
    values = access.read(sample)
    if missing := [each for each in box or {} if each not in values]:
        raise DeeprokError(f"{title} has no parameter {shown(missing[0])}; it has {', '.join(values)}")
    try:
        sample.reset(seed=0)  # some attributes exist only then: of the state, but no parameters
    except Exception as error:  # whatever the user's class says
        raise DeeprokError(f"{title} can't be reset with a seed: {type(error).__name__}: {error}") from error
    spec = getattr(sample, "spec", None)
    limit = horizon or limit or getattr(spec, "max_episode_steps", None)
    flatten, scale = _observations(library, sample.observation_space, title)
    success = success_return if success_return is not None else getattr(spec, "reward_threshold", None)
    within = Inside(
        make=lambda: make()[0],
        parameters=access,
        state=_state(state, physics, sample, title),
        derive=derive,
        flatten=flatten,
        take=_taker(library, sample.action_space),
        branching=branching,
    )
    made = HostEnvironment(
        name=title,
        make=lambda: Simulation(within),
        nominal=nominal if nominal is not None else _parameters(values, physics),
        box=dict(box or {}),
        observation_scale=tuple(observation_scale) or scale,
        actions=_actions(library, sample.action_space, actions, title),
        horizon=limit or _HORIZON,
        success_return=float(success or 0.0),
        branching=branching,
        assumed=tuple(name for name, known in (("horizon", limit), ("success_return", success)) if known is None),
    )
    if branching != "restored" or not (problem := not_restored(Simulation(within), made.actions)):
        return made
    if physics and state is None:  # a step may depend on more of what MuJoCo has computed
        copied = within._replace(state=None)
        if not not_restored(Simulation(copied), made.actions):
            return made._replace(make=lambda: Simulation(copied))
    return made._replace(branching="none", problem=problem)


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
            raise DeeprokError(f"{title} can't be made: {type(error).__name__}: {error}") from error
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


def _layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps."""
    yield env
    while env is not env.unwrapped and hasattr(env, "env"):
        env = env.env
        yield env


# --- parameters and state ------------------------------------------------------------------------------


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


def _attributes(paths: Mapping[str, str] | None, sample: Any, box: Collection[str], title: str) -> Access:
    """Parameters that are attributes; by default the numbers that the unwrapped environment has."""
    chosen = paths or {each: f"unwrapped.{each}" for each in (*_numbers(sample.unwrapped), *box)}
    found = {each: _attribute(path, sample, title) for each, path in chosen.items()}
    for each, attribute in found.items():
        value = attribute.get(sample)
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise DeeprokError(f"{title}: {chosen[each]} is {shown(value)}, which is no number, so it is no parameter")

    def read(env: Any) -> dict[str, Any]:
        return {each: attribute.get(env) for each, attribute in found.items()}

    def write(env: Any, values: Mapping[str, Any]) -> None:
        for each, value in values.items():
            found[each].put(env, value)

    return Access(read, write)


def _numbers(env: Any) -> list[str]:
    """The public attributes of an environment that are finite numbers."""
    base = _library().Env
    own = [vars(kind) for kind in type(env).__mro__ if kind not in base.__mro__]
    names = {name: None for place in (*reversed(own), vars(env)) for name in place}
    return [
        name
        for name in names
        if not name.startswith("_")
        and not inspect.isdatadescriptor(getattr(type(env), name, None))
        and isinstance(value := getattr(env, name), _NUMBERS)
        and not isinstance(value, bool)
        and math.isfinite(value)
    ]


def _parameters(values: Mapping[str, Any], physics: Physics | None) -> Any:
    """Nominal parameters with the values that an environment has; nothing else is known of its attributes."""
    fields = {name: quantity(float(value), "", "", positive=False) for name, value in values.items()}
    return make_parameters("Parameters", {**fields, **(physics.quantities if physics else {})})


def _joined(one: Access, other: Access) -> Access:
    """Two things of an environment as one; a name that both have is the first one's."""

    def read(env: Any) -> dict[str, Any]:
        found = one.read(env)
        return {**found, **{name: value for name, value in other.read(env).items() if name not in found}}

    def write(env: Any, values: Mapping[str, Any]) -> None:
        names = one.read(env)
        one.write(env, {name: value for name, value in values.items() if name in names})
        other.write(env, {name: value for name, value in values.items() if name not in names})

    return Access(read, write)


def _state(given: Sequence[str] | Access | None, physics: Physics | None, sample: Any, title: str) -> Access | None:
    """What a user gave as the state; else MuJoCo's and all numbers that the environment has beside it."""
    if isinstance(given, Access):
        return given
    if given is not None:
        return _state_at(given, sample, title)
    paths = _numbers_held(sample) if physics else None
    if not physics or not physics.state or paths is None:
        return None
    return _joined(physics.state, _state_at(paths, sample, title))


#: Attributes of Gymnasium's classes that are more than numbers and do not change.
_FIXED = (
    *("metadata", "spec", "_np_random", "model", "data", "mujoco_renderer", "observation_structure"),
    *("_ezpickle_args", "_ezpickle_kwargs"),
)


def _numbers_held(env: Any) -> list[str] | None:
    """Paths of all numbers that a MuJoCo environment and its wrappers hold; None if they hold more that may change."""
    library, paths = _library(), list[str]()
    for depth, layer in enumerate(_layers(env)):
        for name, value in vars(layer).items():
            if _can_be_stored(value):
                paths.append("env." * depth + name)
            elif name not in _FIXED and not isinstance(value, str | library.Env | library.Space):
                return None
    return paths


def _state_at(paths: Sequence[str], sample: Any, title: str) -> Access:
    """A state that is attributes: numbers, arrays, lists and tuples of numbers, or None.

    What is read from a checkpoint is an array. It is put back as a list or a tuple where such a one was.
    """
    found = {path: _attribute(path, sample, title) for path in paths}
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


def _check_state(value: Any, what: str) -> None:
    """Raises unless a checkpoint can hold a value, and its environment goes on with an array in its place."""
    if not _can_be_stored(value):
        raise DeeprokError(
            f"{what} is a {type(value).__name__}; attribute paths of a state may hold numbers, and arrays, lists and "
            "tuples of numbers; for anything else give two functions as the state, Access(read, write)"
        )


def _can_be_stored(value: Any) -> bool:
    plain = value is None or isinstance(value, (*_NUMBERS, np.ndarray, list, tuple))
    try:
        return plain and (value is None or np.asarray(value).dtype.kind in "biuf")
    except ValueError:  # lists of different lengths
        return False


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
    return lambda obs: np.array(obs, float).ravel(), tuple(scale.tolist())


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
