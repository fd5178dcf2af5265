"""The factors of a network's inputs: what a user may give for them, and what that stands for."""

from __future__ import annotations

import numpy as np

from deeprok.environments.base import AnyEnvironment


def resolve(env: AnyEnvironment, given: tuple[float, ...]) -> tuple[float, ...]:
    """A factor for each input: as given, one for all, one for each observation, or one over its typical size.

    Args:
      env: the environment.
      given: what the user gave; what can't be read is returned as it is, for the check of the settings.
    """
    if np.ndim(given) != 1:
        return given
    if len(given) > 1:
        return env.past.widen(given) if env.past and len(given) == env.past.observations else given
    sizes = env.observation_scale
    return tuple(given) * len(sizes) if given else tuple(1.0 / size for size in sizes)


def unresolved(env: AnyEnvironment, scale: tuple[float, ...]) -> tuple[float, ...]:
    """What these factors were resolved from, so that they can be resolved again where the inputs are others."""
    own = (scale[: env.past.observations],) if env.past and np.ndim(scale) == 1 else ()
    return next((given for given in ((), *own) if resolve(env, given) == scale), scale)
