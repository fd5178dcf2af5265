"""Pictures of stateful simulators: what Gymnasium, MuJoCo or a simulator of one's own shows of itself."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.mujoco import MujocoSimulator, library
from deeprok.environments.simulation import Simulation

_MODE = "rgb_array"

#: Height and width of MuJoCo's pictures, which its models allow without a change.
_MUJOCO_SIZE = (440, 640)

#: MuJoCo's renderer of each simulation, which takes longer to make than a picture.
_RENDERERS: weakref.WeakKeyDictionary[MujocoSimulator, Any] = weakref.WeakKeyDictionary()


def picture_of(simulator: Any) -> np.ndarray:
    """What a simulation looks like now, as [H, W, 3] bytes; raises where it can't be seen.

    Args:
      simulator: a `Simulator`; one of a user's own has a method `picture` for this.
    """
    own = getattr(simulator, "picture", None)
    if own is None and not isinstance(simulator, Simulation | MujocoSimulator):
        raise DeeprokError(
            f"the simulator, a {type(simulator).__name__}, can't be seen; give it a method picture that returns "
            "[H, W, 3] bytes"
        )
    try:
        if own:
            found = own()
        elif isinstance(simulator, MujocoSimulator):
            found = _of_mujoco(simulator)
        else:
            found = _of_gymnasium(simulator._env)
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


def _of_gymnasium(env: Any) -> Any:
    bare = env.unwrapped
    if _MODE not in bare.metadata.get("render_modes", ()):
        raise DeeprokError(f"{type(bare).__name__} can't be seen: it has no render mode {_MODE}")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # It was made to be stepped; what it needs to be drawn it makes with the first picture.
    bare.render_mode = _MODE
    return bare.render()


def _of_mujoco(simulator: MujocoSimulator) -> Any:
    mujoco, model = library(), simulator._model
    if simulator not in _RENDERERS:
        _RENDERERS[simulator] = mujoco.Renderer(model, *_MUJOCO_SIZE)
    renderer = _RENDERERS[simulator]
    # Models that move along have a camera that follows them.
    tracked = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    renderer.update_scene(simulator._data, camera=tracked)
    return renderer.render()
