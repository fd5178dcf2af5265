"""Pictures of stateful simulators: what Gymnasium, MuJoCo or a simulator of one's own shows of itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError


def picture_of(simulator: Any) -> np.ndarray:
    """What a simulation looks like now, as [H, W, 3] bytes; raises where it can't be seen.

    Args:
      simulator: a `Simulator` with a method `picture`.
    """
    own = getattr(simulator, "picture", None)
    if own is None:
        raise DeeprokError(
            f"the simulator, a {type(simulator).__name__}, can't be seen; give it a method picture that returns "
            "[H, W, 3] bytes"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="glfw")  # the error says it in one sentence
            found = own()
    except DeeprokError:
        raise
    except Exception as error:  # no pygame, no OpenGL, or whatever else a simulator needs for it
        display = "; where there is no display, set MUJOCO_GL to egl" if "mujoco" in type(error).__module__ else ""
        raise DeeprokError(f"the simulator can't be seen: {type(error).__name__}: {error}{display}") from error
    picture = np.asarray(found)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or not picture.size:
        raise DeeprokError(
            f"the simulator shows an array of shape {picture.shape} and type {picture.dtype}; a picture is "
            "[H, W, 3] bytes"
        )
    return picture
