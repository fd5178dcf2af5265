"""Parameters of a MuJoCo model by name: masses, lengths, friction, damping, gears and gravity.

A name is a kind and what it belongs to, as the model calls it: `mass_torso`, `damping_hinge`. With `scale` in place of
that it is a factor of all of a kind: `mass_scale`.

| name | unit | what it is |
|---|---|---|
| `gravity` | m/s² | gravitational acceleration, downwards |
| `mass_BODY` | kg | mass of a body; its inertia changes in proportion |
| `length_BODY` | | factor of a body's size, about its joint; its mass stays, and what is attached to it moves along |
| `friction_GEOM` | | sliding friction of a shape; two that touch have the larger of theirs |
| `damping_JOINT` | N·s/m or N·m·s | damping of a joint |
| `gear_ACTUATOR` | | force or torque of an actuator at a control of 1; one without a name has that of its joint |
| `mass_scale`, `friction_scale`, `damping_scale`, `gear_scale` | | factor of all masses, … |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, unknown
from deeprok.environments.base import quantity

#: Arrays of a model that its parameters change.
_CHANGED = (
    *("body_mass", "body_inertia", "body_ipos", "body_pos", "bvh_aabb", "jnt_pos", "site_pos"),
    *("geom_pos", "geom_size", "geom_rbound", "geom_aabb", "geom_friction", "dof_damping", "actuator_gear"),
)

#: Factors of all of a kind, and the kind's name.
_SCALES = {"mass_scale": "masses", "friction_scale": "frictions", "damping_scale": "dampings", "gear_scale": "gears"}

#: MuJoCo's numbers of types of joints (mjtJoint), of shapes without a size to multiply (mjtGeom: planes, height
#: fields, meshes and signed distance fields), and of actuators that move a joint (mjtTrn).
_BALL, _SLIDE, _HINGE = 1, 2, 3
_NO_SIZE = (0, 1, 7, 8)
_OF_JOINT = 0


class Parameters(NamedTuple):
    """The parameters of a model, and what is needed to set them.

    Attributes:
      nominal: name -> its value in the model as it was loaded.
      quantities: name -> a field of the nominal parameters, as `quantity` gives it.
      indices: name -> which body, shape, joint or actuator it belongs to.
      arrays: the arrays that parameters change, as they were loaded.
    """

    nominal: dict[str, float]
    quantities: dict[str, Any]
    indices: dict[str, int]
    arrays: dict[str, np.ndarray]


def parameters_of(model: Any) -> Parameters:
    """The parameters that a model has.

    Args:
      model: an `MjModel`.
    """
    found: dict[str, tuple[float, str, str, bool, int]] = {
        "gravity": (-float(model.opt.gravity[2]), "m/s²", "gravitational acceleration, downwards", False, 0)
    }
    for body in range(1, model.nbody):
        name = _word(model.body(body).name) or str(body)
        if model.body_mass[body] > 0:
            found[f"mass_{name}"] = (float(model.body_mass[body]), "kg", f"mass of {name}", True, body)
        if _can_be_scaled(model, body):
            found[f"length_{name}"] = (1.0, "", f"factor of the size of {name}, at equal mass", True, body)
    for geom in range(model.ngeom):
        if name := _word(model.geom(geom).name):
            sliding = float(model.geom_friction[geom, 0])
            found[f"friction_{name}"] = (sliding, "", f"sliding friction of {name}", False, geom)
    for joint in range(model.njnt):
        if name := _word(model.jnt(joint).name):
            damping = float(model.dof_damping[model.jnt_dofadr[joint]])
            unit = "N·s/m" if model.jnt_type[joint] == _SLIDE else "N·m·s"
            found[f"damping_{name}"] = (damping, unit, f"damping of {name}", False, joint)
    for actuator in range(model.nu):
        of_joint = model.actuator_trntype[actuator] == _OF_JOINT
        joint_name = model.jnt(int(model.actuator_trnid[actuator, 0])).name if of_joint else ""
        name = _word(model.actuator(actuator).name or joint_name) or str(actuator)
        gear = float(model.actuator_gear[actuator, 0])
        found[f"gear_{name}"] = (gear, "", f"force or torque of {name} at a control of 1", False, actuator)
    for kind, many in _SCALES.items():
        found[kind] = (1.0, "", f"factor of all {many}", kind == "mass_scale", 0)
    return Parameters(
        nominal={name: value for name, (value, *_) in found.items()},
        quantities={name: quantity(value, unit, what, own) for name, (value, unit, what, own, _) in found.items()},
        indices={name: index for name, (*_, index) in found.items()},
        arrays={name: getattr(model, name).copy() for name in _CHANGED},
    )


def set_parameters(model: Any, known: Parameters, values: Mapping[str, float]) -> None:
    """Gives a model these parameters; all others are as they were loaded.

    What MuJoCo has computed from them in advance, such as the mass of a subtree, is left stale: `mj_setConst` is to
    be called next.

    Args:
      model: an `MjModel` of the same kind.
      known: its parameters.
      values: name -> value.
    """
    for name, value in values.items():
        if name not in known.nominal:
            raise unknown("parameter", name, known.nominal)
        positive = known.quantities[name].metadata["positive"]
        if not np.isfinite(value) or (value <= 0 if positive else value < 0 and name != "gravity"):
            least = "above 0" if positive else "of at least 0"
            raise DeeprokError(f"{name} is {value:g}; it must be {'' if name == 'gravity' else least + ' and '}finite")
    arrays = {name: loaded.copy() for name, loaded in known.arrays.items()}
    # Lengths first: an inertia is that of the new size, and then changes with the mass.
    for name, value in values.items():
        if name.startswith("length_"):
            _scale_body(model, arrays, known.indices[name], float(value))
    factor = np.full(model.nbody, float(values.get("mass_scale", 1.0)))
    for name, value in values.items():
        kind, index = name.partition("_")[0], known.indices[name]
        if name in _SCALES:
            continue
        if kind == "mass":
            factor[index] *= value / known.nominal[name]
        elif kind == "friction":
            arrays["geom_friction"][index, 0] = value
        elif kind == "damping":
            arrays["dof_damping"][model.dof_jntid == index] = value
        elif kind == "gear":
            arrays["actuator_gear"][index, 0] = value
    arrays["body_mass"] *= factor
    arrays["body_inertia"] *= factor[:, None]
    arrays["geom_friction"] *= values.get("friction_scale", 1.0)
    arrays["dof_damping"] *= values.get("damping_scale", 1.0)
    arrays["actuator_gear"] *= values.get("gear_scale", 1.0)
    for name, array in arrays.items():
        getattr(model, name)[:] = array
    model.opt.gravity[2] = -values.get("gravity", known.nominal["gravity"])


def _scale_body(model: Any, arrays: dict[str, np.ndarray], body: int, size: float) -> None:
    """Multiplies the size of a body; the place where it is hinged stays, and what hangs on it moves along.

    All is multiplied in the body's own frame, which then is moved: what lies in the frame's origin stays there, as
    MuJoCo's flags of bodies and shapes that share a frame say.
    """
    geoms, sites = model.geom_bodyid == body, model.site_bodyid == body
    joints = model.jnt_bodyid == body
    boxes = slice(int(model.body_bvhadr[body]), int(model.body_bvhadr[body] + model.body_bvhnum[body]))
    hinge = _anchor(model, body)
    for child in np.flatnonzero(model.body_parentid == body).tolist():
        attached = arrays["body_pos"][child] + _rotated(model.body_quat[child], _anchor(model, child))
        arrays["body_pos"][child] += (size - 1.0) * attached
    arrays["body_pos"][body] += _rotated(model.body_quat[body], (1.0 - size) * hinge)
    arrays["body_ipos"][body] *= size
    arrays["body_inertia"][body] *= size**2
    arrays["bvh_aabb"][boxes] *= size
    arrays["jnt_pos"][joints] *= size
    arrays["site_pos"][sites] *= size
    for name in ("geom_pos", "geom_size", "geom_rbound", "geom_aabb"):
        arrays[name][geoms] *= size


def _anchor(model: Any, body: int) -> np.ndarray:
    """Where a body is hinged, in its own frame: its first joint that turns, else its origin."""
    first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    turning = [joint for joint in range(first, first + count) if model.jnt_type[joint] in (_BALL, _HINGE)]
    return np.array(model.jnt_pos[turning[0]]) if turning else np.zeros(3)


def _rotated(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A vector turned by a unit quaternion (w, x, y, z)."""
    w, axis = quaternion[0], quaternion[1:]
    turned = 2.0 * np.cross(axis, vector)
    return vector + w * turned + np.cross(axis, turned)


def _can_be_scaled(model: Any, body: int) -> bool:
    shapes = model.geom_type[model.geom_bodyid == body]
    return len(shapes) > 0 and not np.isin(shapes, _NO_SIZE).any()


def _word(name: str) -> str:
    """A name of the model as part of a parameter's name."""
    return re.sub(r"\W", "_", name)
