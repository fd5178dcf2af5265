"""A `gymnasium.vector.VectorEnv` as an environment: several of Gymnasium's at once, for one agent.

`SyncVectorEnv` and `AsyncVectorEnv` are lists of single environments, and are taken as such. Any other one simulates in
batch, and its rows are simulators.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.gymnasium_access import (
    Description,
    attribute_at,
    attributes,
    begun_state,
    derived,
    functions_of,
    gymnasium_library,
    host_environment,
    is_seen,
    layers,
    no_paths,
    nominal_parameters,
    numbers_of,
    placing,
    read_parameters,
    reset_once,
)
from deeprok.environments.gymnasium_spaces import actions_of, observations_of, taker_of
from deeprok.environments.host import HostEnvironment
from deeprok.environments.simulation import Access, as_numbers, random_action
from deeprok.environments.vector_rows import Batch, InBatch, autoreset_mode, not_put_back
from deeprok.environments.vector_simulation import VectorSimulation, look_ahead

#: Rows of a sample: so many that the axis of rows is known by its size.
_SAMPLE = 97

#: Attributes without which nothing can be made of a vector environment.
_NEEDED = ("num_envs", "single_observation_space", "single_action_space", "action_space")

#: Steps in which putting rows back is tried.
_TRIED_STEPS = 100

#: Steps that no episode has.
_NO_LIMIT = 2**31 - 1


class Singles(NamedTuple):
    """Single environments that a vector environment was made of."""

    make: Callable[[], Any]
    sample: Any
    number: int
    processes: bool  # whether each has one


def first_rows(env: Any) -> dict[str, int]:
    """The arguments that a first environment is made with: a number of rows, where there is no default."""
    rows = _rows_argument(env)
    return {"num_envs": 1} if rows and rows.default is inspect.Parameter.empty else {}


def _rows_argument(env: Any) -> inspect.Parameter | None:
    """The argument that says how many rows are made; None if there is none."""
    try:
        return inspect.signature(env).parameters.get("num_envs")
    except (TypeError, ValueError):  # an id, or a class that is not written in Python
        return None


def without_processes(make: Callable[..., Any], **given: Any) -> Any:
    """What a user's function makes; of an `AsyncVectorEnv` the processes are not started.

    It is a list of functions to us, as a `SyncVectorEnv` is. To fork a process that has JAX's threads may not end.
    """
    library = sys.modules.get("gymnasium")
    if library is None:
        return make(**given)
    kind, alike = library.vector.AsyncVectorEnv, library.vector.SyncVectorEnv
    usual = kind.__init__

    def listed(self: Any, env_fns: Any, *others: Any, **more: Any) -> None:
        vars(self).update(vars(alike(env_fns)), closed=True)

    kind.__init__ = listed
    try:
        return make(**given)
    finally:
        kind.__init__ = usual


def taken_apart(several: Any, title: str) -> Singles | None:
    """What a vector environment is made of; None if it simulates in batch."""
    vector = gymnasium_library().vector
    lists = (vector.SyncVectorEnv, vector.AsyncVectorEnv)
    if not isinstance(several.unwrapped, lists):
        return None
    if several is not several.unwrapped:
        raise DeeprokError(
            f"{title} is {type(several).__name__} around a list of single environments; wrap the single environment "
            "instead"
        )
    makers, samples = several.env_fns, several.envs
    for one in samples[1:]:
        for name in numbers_of(samples[0].unwrapped):
            values = [getattr(each.unwrapped, name, None) for each in (samples[0], one)]
            if values[0] != values[1]:
                raise DeeprokError(
                    f"{title} has environments that differ in {name}, {values[0]} and {values[1]}; they must be alike: "
                    "give a range of it as the box, of which each episode draws a value"
                )
    return Singles(makers[0], samples[0], len(makers), isinstance(several, vector.AsyncVectorEnv))


def from_batch(env: Any, make: Callable[..., Any], sample: Any, description: Description) -> HostEnvironment:
    """An environment of one that simulates in batch.

    Args:
      env: what the user gave.
      make: makes one; with `num_envs`, if the user's does so.
      sample: one that it made.
      description: what a user says of it.
    """
    library, title, by_number = gymnasium_library(), description.title, _rows_argument(env) is not None
    if description.branching == "copies":
        raise DeeprokError(f"branching is 'copies', but {title} simulates in batch; it must be 'restored' or 'none'")
    if missing := [name for name in _NEEDED if not hasattr(sample, name)]:
        raise DeeprokError(f"{title} has no {missing[0]}, which a gymnasium.vector.VectorEnv must have")
    if not autoreset_mode(sample):
        raise DeeprokError(
            f"{title} does not say when it resets rows that have ended; its metadata must have an autoreset_mode, "
            "a gymnasium.vector.AutoresetMode"
        )
    count = sample.num_envs

    def of_rows(rows: int) -> Any:
        made = make(num_envs=rows) if by_number else make()
        if made.num_envs != rows:
            raise DeeprokError(f"{title} was asked for {rows} rows and made {made.num_envs}")
        if hasattr(made.unwrapped, "max_episode_steps"):  # time is the driver's
            made.unwrapped.max_episode_steps = _NO_LIMIT
        return made

    limit = getattr(sample.unwrapped, "max_episode_steps", None)
    sample = of_rows(_SAMPLE if by_number else count)
    rows = sample.num_envs
    access = functions_of(description.parameters, "parameters", title) or attributes(
        description.parameters, sample, description.box, title, rows
    )
    values = read_parameters(access, sample, description)
    first = reset_once(sample, title)
    state = functions_of(description.state, "state", title) or _state_of_rows(description.state, sample, title)
    begun = begun_state(state, sample, title)
    if wrong := [name for name, array in begun.items() if array.shape[:1] != (rows,)]:
        raise DeeprokError(
            f"the function that reads the state of {title} gives {wrong[0]} of shape {begun[wrong[0]].shape}; its "
            f"first axis must be that of the {rows} rows"
        )
    space = sample.single_action_space
    flatten, scale = observations_of(library, sample.single_observation_space, title)
    actions = actions_of(library, space, description.actions, title)
    batch = Batch(
        InBatch(
            title=title,
            make=of_rows,
            rows=0 if by_number else count,
            parameters=access,
            nominal=values,
            state=state,
            derive=derived(description),
            flatten=flatten,
            take=taker_of(library, space),
        )
    )
    if problem := _not_put_back(batch, functools.partial(random_action, actions, np.random.default_rng(0)), title):
        raise DeeprokError(
            f"the rows of {title} can't be put back ({problem}), which playing it takes; say which arrays its state is "
            "by state=[…], or give a single environment"
        )
    seen = _where_seen(begun, flatten(first[0]))
    nominal = nominal_parameters(values, None)
    return host_environment(
        description, sample, limit, scale, actions, nominal, lambda: VectorSimulation(batch)
    )._replace(
        branching=description.branching,
        simulators=count,
        processes=False,
        ahead=look_ahead,
        place=placing(description.state_of or seen, tuple(begun), title),
    )


def _not_put_back(batch: Batch, action: Callable[[], Any], title: str) -> str:
    try:
        return not_put_back(batch, action, _TRIED_STEPS)
    except DeeprokError:
        raise
    except Exception as error:  # whatever the user's class says
        raise DeeprokError(f"{title} can't be stepped: {type(error).__name__}: {error}") from error


def _where_seen(begun: Mapping[str, np.ndarray], obs: np.ndarray) -> Callable[[Any], Any] | None:
    """The state that an observation stands for, if an array holds the observations themselves."""
    for name, array in begun.items():
        if is_seen(array[0], obs):
            return lambda obs: {name: obs}
    return None


def _state_of_rows(given: Any, sample: Any, title: str) -> Access:
    """The state of a vector environment: arrays, whose axis of rows comes first where they are read.

    Args:
      given: attribute paths; by default all arrays with such an axis that it and its wrappers hold after a reset.
      sample: an environment that was reset.
      title: what messages call it.
    """
    rows = sample.num_envs
    if given is None:
        held = {
            "env." * depth + name: value
            for depth, layer in enumerate(layers(sample))
            for name, value in vars(layer).items()
        }
        arrays = {
            path: value for path, value in held.items() if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        }
        given = [path for path, value in arrays.items() if rows in value.shape]
    elif isinstance(given, str) or not (isinstance(given, Sequence) and all(isinstance(path, str) for path in given)):
        raise no_paths(given)
    found = {path: attribute_at(path, sample, title) for path in given}
    # The axes in the order in which they are read, with that of the rows first, and how to go back from there.
    orders = {path: _rows_first(each.get(sample), rows, f"{title}: {path}") for path, each in found.items()}
    backs = {path: tuple(np.argsort(order)) for path, order in orders.items()}

    def read(env: Any) -> dict[str, Any]:
        return {path: np.array(found[path].get(env)).transpose(order) for path, order in orders.items()}

    def write(env: Any, state: Mapping[str, Any]) -> None:
        for path, back in backs.items():
            found[path].put(env, np.ascontiguousarray(state[path].transpose(back)))

    return Access(read, write)


def _rows_first(value: Any, rows: int, what: str) -> tuple[int, ...]:
    """The axes of an array with that of the rows first; raises unless one is known by its size."""
    array = as_numbers(value)
    shape = None if array is None else array.shape
    if shape is None or shape.count(rows) != 1:
        is_like = f"a {type(value).__name__}" if shape is None else f"of shape {shape}"
        raise DeeprokError(
            f"{what} is {is_like}; the state of a vector environment with num_envs {rows} is arrays with exactly one "
            "axis of this size; for anything else give two functions as the state, (read, write)"
        )
    first = shape.index(rows)
    return (first, *(axis for axis in range(len(shape)) if axis != first))
