"""The physical parameters and the state of a Gymnasium environment that MuJoCo simulates, such as Walker2d-v5.

Any will do whose unwrapped object has a `model` that is an `MjModel`, a user's own too. Gymnasium goes on stepping it.
Those of `mujoco_tasks` are written anew, and answer for all models in one call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from deeprok.environments.mujoco import library
from deeprok.environments.mujoco_parameters import parameters_of, set_parameters
from deeprok.environments.simulation import Access

#: What MuJoCo computes from the state and leaves in its data. Rewards are computed from it before a step moves on: that
#: of Ant from where the torso was. MuJoCo last computed it within a step, so that it can't be had from the state alone.
_COMPUTED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("subtree_com", "subtree_linvel", "subtree_angmom", "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext"),
    *("ten_length", "ten_velocity", "actuator_length", "actuator_velocity", "actuator_force", "act_dot"),
    *("qacc", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "qfrc_constraint", "qfrc_inverse", "sensordata", "energy"),
)


class Physics(NamedTuple):
    """What MuJoCo has of an environment.

    Attributes:
      parameters: those of `mujoco_parameters`.
      quantities: name -> a field of the nominal parameters, as `quantity` gives it.
      state: MuJoCo's own; None if the environment has no `data` beside its model.
    """

    parameters: Access
    quantities: dict[str, Any]
    state: Access | None


def physics_of(env: Any) -> Physics | None:
    """The physics of an environment that was just made; None if it has no MuJoCo model."""
    mujoco = sys.modules.get("mujoco")  # imported by whoever has a model
    if not mujoco or not isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
        return None
    library()  # whose warnings are not printed
    has_data = isinstance(getattr(env.unwrapped, "data", None), mujoco.MjData)
    known = parameters_of(env.unwrapped.model)

    def read(env: Any) -> dict[str, float]:
        given = getattr(env.unwrapped, "_given", None)
        return {**known.nominal, **given.values} if given else dict(known.nominal)

    def write(env: Any, values: Mapping[str, float]) -> None:
        inner = env.unwrapped
        # An unstable simulation would start again from the model's own state, as if nothing had happened.
        inner.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        if not values:
            return
        if not hasattr(inner, "_given"):
            inner._given = _Given({}, mujoco.MjData(inner.model))
        inner._given = inner._given._replace(values={**inner._given.values, **values})
        set_parameters(inner.model, known, inner._given.values)
        mujoco.mj_setConst(inner.model, inner._given.scratch)

    state = _state(mujoco, env.unwrapped.data) if has_data else None
    return Physics(Access(read, write), known.quantities, state)


class _Given(NamedTuple):
    """What was set of an environment's parameters, which can't be read from its model: factors, for example.

    It is an attribute of the environment, so that a copy of that has it, too.
    """

    values: dict[str, float]
    scratch: Any  # an `MjData` that MuJoCo computes with, so that the episode's own is left as it is


def _state(mujoco: Any, data: Any) -> Access:
    """All that MuJoCo's future depends on, and what it has computed so far."""
    spec, names = mujoco.mjtState.mjSTATE_INTEGRATION, [name for name in _COMPUTED if hasattr(data, name)]
    ends = np.cumsum([getattr(data, name).size for name in names])[:-1]

    def read(env: Any) -> dict[str, np.ndarray]:
        model, data = env.unwrapped.model, env.unwrapped.data
        state = np.empty(mujoco.mj_stateSize(model, spec))
        mujoco.mj_getState(model, data, state, spec)
        return {"integration": state, "computed": np.concatenate([getattr(data, name).ravel() for name in names])}

    def write(env: Any, saved: Mapping[str, Any]) -> None:
        model, data = env.unwrapped.model, env.unwrapped.data
        mujoco.mj_setState(model, data, np.asarray(saved["integration"], float), spec)
        for name, numbers in zip(names, np.split(saved["computed"], ends), strict=True):
            getattr(data, name).flat[:] = numbers

    return Access(read, write)
