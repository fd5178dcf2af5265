"""Files that a page shows beside runs: solved tables, and screenings as references."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deeprok.core.errors import DeeprokError
from deeprok.core.files import as_numbers, has_shapes, parse_json, read_bytes
from deeprok.report.data import Reference, Solved

#: The policy of a screening that is the reference: one that was made for each model.
_CEILING = "each"


def read_files(paths: Iterable[Path]) -> tuple[list[Solved], list[Reference]]:
    """What `deeprok solve --out` and `deeprok screen --out` have written."""
    solved: list[Solved] = []
    references: list[Reference] = []
    for path in paths:
        content = parse_json(read_bytes(path))
        if (one := _solved(content, path)) is not None:
            solved.append(one)
        elif (reference := _reference(content, path)) is not None:
            references.append(reference)
        else:
            raise DeeprokError(
                f"{path} is neither a run folder nor a file that 'deeprok solve --out' or 'deeprok screen --out' writes"
            )
    return solved, references


def _solved(content: Any, path: Path) -> Solved | None:
    if not isinstance(content, dict) or not isinstance(content.get("nature"), list):
        return None
    radius: list[Any]
    value: list[Any]
    radius, value = ([x] if not isinstance(x, list) else x for x in (content.get("radius"), content.get("value")))
    words = all(isinstance(content.get(name), str) for name in ("name", "command", "set", "objective"))
    lists = all(isinstance(content.get(name), list) for name in ("states", "actions"))
    known = {name: content[name] for name in ("nominal_value", "unprotected") if content.get(name) is not None}
    numbers = has_shapes({**known, "value": value}, dict.fromkeys([*known, "value"], (len(radius),)))
    if not (words and lists and numbers and has_shapes(content, {"state": (), "discount": ()})):
        return None
    moves = [_moves(one, len(content["states"]), len(content["actions"])) for one in content["nature"]]
    if len(moves) != len(radius) or None in moves or not 0 <= content["state"] < len(content["states"]):
        return None
    return Solved(
        file=os.fspath(path),
        command=content["command"],
        name=content["name"],
        set=content["set"],
        objective=content["objective"],
        discount=float(content["discount"]),
        state=int(content["state"]),
        states=list(map(str, content["states"])),
        actions=list(map(str, content["actions"])),
        radius=[None if each is None else float(each) for each in radius],
        value=value,
        nominal=content.get("nominal"),
        nominal_value=content.get("nominal_value"),
        unprotected=content.get("unprotected"),
        nature=moves,
    )


def _moves(content: Any, states: int, actions: int) -> list[dict[str, Any]] | None:
    """Of one radius the successors of some states; None if JSON is something else."""
    if not isinstance(content, dict) or not isinstance(content.get("moves"), list):
        return None
    for one in content["moves"]:
        if not has_shapes(one, {"state": (), "value": (), "successors": (None,)}):
            return None
        count = (len(one["successors"]),)
        chosen = as_numbers(one.get("action"))
        if not has_shapes(one, {"nominal": count, "worst": count}) or chosen is None or chosen.ndim > 1:
            return None
        if not all(type(each) is int and 0 <= each < states for each in (one["state"], *one["successors"])):
            return None
        if chosen.ndim == 0 and not 0 <= one["action"] < actions:
            return None
    return content["moves"]


def _reference(content: Any, path: Path) -> Reference | None:
    if not isinstance(content, dict) or not isinstance(content.get("grid"), dict) or not content["grid"]:
        return None
    grid, policies = content["grid"], content.get("policies")
    if not has_shapes(grid, dict.fromkeys(grid, (None,))) or not isinstance(policies, list) or _CEILING not in policies:
        return None
    shape = (len(policies), *(len(axis) for axis in grid.values()))
    parameters: Any = content.get("parameters")
    if not has_shapes(
        content, {"success": shape, "mean_return": shape, "epsilon": (), "episodes": ()}
    ) or not has_shapes(parameters, {name: {"nominal": ()} for name in grid}):
        return None
    if not isinstance(content.get("env"), str):
        return None
    index = policies.index(_CEILING)
    cells = ",".join(f"{name}={axis[0]:g}:{axis[-1]:g}:{len(axis)}" for name, axis in grid.items())
    usual = (
        f"deeprok screen {content['env']} --grid {cells} --episodes {content['episodes']}"
        f" --epsilon {content['epsilon']:g} --json"
    )
    return Reference(
        env=content["env"],
        grid={name: [float(value) for value in axis] for name, axis in grid.items()},
        nominal={name: float(one["nominal"]) for name, one in parameters.items()},
        success=content["success"][index],
        mean_return=content["mean_return"][index],
        epsilon=float(content["epsilon"]),
        episodes=int(content["episodes"]),
        file=os.fspath(path),
        command=content["command"] if isinstance(content.get("command"), str) else usual,
    )
