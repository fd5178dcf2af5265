"""The runs below folders, the settings in which they differ, and the groups that these make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.evaluation.grid import keep_of
from deeprok.runs import folder as runs
from deeprok.runs.collections import run_folders
from deeprok.runs.folder import Keep, Runs
from deeprok.runs.settings import Config

#: Every setting that varies.
ALL = "all"


class Cost(NamedTuple):
    """What training has taken so far."""

    steps: int
    episodes: int
    seconds: float  # with compilation; seeds that train together share it
    processor_seconds: float | None  # its own part; None if the run was trained before this was noted


class Member(NamedTuple):
    """A run that is compared."""

    folder: Path
    config: Config
    settings: Mapping[str, Any]  # by name, without the seed
    keep: Keep
    cost: Cost


class Found(NamedTuple):
    """The runs below some folders."""

    members: list[Member]
    remarks: list[str]  # what a user may not expect


def find_members(given: Sequence[Runs], keep: Keep | None) -> Found:
    """The runs of folders of any kind, each once; those that have no weights yet are left out.

    Args:
      given: run folders, folders of seeds, folders of sweeps, or folders that hold any of them.
      keep: the `best` or the `last` weights; by default those of each loaded run, and the best ones of a folder.
    """
    members: list[Member] = []
    seen: set[Path] = set()
    alike: set[tuple[str, int]] = set()
    unready, twice, unfinished = [], [], []
    for one in given:
        for folder in run_folders(one):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            config = runs.read_config(folder)
            same = (config.digest(), config.seed)
            kept = keep or keep_of(one)
            cost = _cost_of(folder)
            if same in alike:
                twice.append(folder)
            elif not _has_weights(folder, config, kept):
                unready.append(folder)
            else:
                alike.add(same)
                if config.budget.lasts(cost.episodes, cost.steps):
                    unfinished.append(folder)
                settings = {name: value for name, value in config.flat().items() if name != "seed"}
                members.append(Member(folder, config, settings, kept, cost))
    remarks = [
        _remark(unready, "has no weights yet and is left out", "have no weights yet and are left out"),
        _remark(twice, "has settings and a seed that another has too, and is left out",
                "have settings and seeds that others have too, and are left out"),
        _remark(unfinished, "is unfinished", "are unfinished"),
    ]  # fmt: skip
    if not members:
        raise DeeprokError(f"no run below {shown(', '.join(map(str, given)))} has been trained; train one first")
    return Found(members, [remark for remark in remarks if remark])


def _has_weights(folder: Path, config: Config, keep: Keep) -> bool:
    """Whether a run has come to its first checkpoint and, for its best weights, to its first trial."""
    if not (folder / runs.CHECKPOINT).exists():
        return False
    with config.arithmetic():
        return keep == "last" or runs.best_trial(folder, config.make_learner()) > -np.inf


def _cost_of(folder: Path) -> Cost:
    lines = runs.read_metrics(folder)
    last: Mapping[str, Any] = lines[-1] if lines else {"steps": 0, "episodes": 0}
    used = [line.get("processor_seconds") for line in lines]
    known = [seconds for seconds in used if seconds is not None]
    return Cost(
        last["steps"],
        last["episodes"],
        float(sum(line.get("seconds", 0.0) for line in lines)),
        float(sum(known)) if known and len(known) == len(used) else None,
    )


def _remark(folders: Sequence[Path], one: str, several: str) -> str:
    if len(folders) < 2:
        return f"{folders[0]} {one}" if folders else ""
    return f"{folders[0]} and {len(folders) - 1} more {several}"


def settings_by(members: Sequence[Member], by: str | Sequence[str]) -> tuple[str, ...]:
    """The settings that runs are grouped by, in order.

    Args:
      members: the runs.
      by: their names, as a list or as text, name,name,…; or `all`.
    """
    if by == ALL:
        return _varying(members)
    names: Any = by.split(",") if isinstance(by, str) else by
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise DeeprokError(f"by is {shown(by)}; it must be names of settings, or {ALL}")
    known = dict.fromkeys(name for member in members for name in member.settings)
    found = []
    for name in names:
        if name.strip().replace("-", "_") not in known:
            raise unknown("by", name, known, more=f"or {ALL}, for every setting that varies")
        found.append(name.strip().replace("-", "_"))
    if len(set(found)) < len(found):
        raise DeeprokError(f"by is {shown(by)}; each setting may be named once")
    return tuple(found)


def _varying(members: Sequence[Member]) -> tuple[str, ...]:
    """The settings that were varied: what an environment, an algorithm or a preset brings with it was not.

    The environment is none of them. Runs in several environments are of one group, which each environment is a task of.
    """
    classes: dict[tuple[str, ...], list[Member]] = {("env",): list(members)}
    varying = []
    for first in ("env", "algorithm", "preset"):
        split: dict[tuple[str, ...], list[Member]] = {}
        for key, its in classes.items():
            for member in its:
                split.setdefault((*key, str(member.settings[first])), []).append(member)
        if first != "env" and len(split) > len(classes):
            varying.append(first)
        classes = split
    names = dict.fromkeys(name for member in members for name in member.settings)
    for its in classes.values():
        for name in names:
            if name not in varying and any(one.settings.get(name) != its[0].settings.get(name) for one in its):
                varying.append(name)
    return tuple(name for name in names if name in varying)


def grouped(members: Sequence[Member], by: Sequence[str]) -> dict[tuple[Any, ...], list[Member]]:
    """The runs by their values of some settings, in order; None is that of a run that has no such setting."""
    found: dict[tuple[Any, ...], list[Member]] = {}
    for member in members:
        found.setdefault(tuple(member.settings.get(name) for name in by), []).append(member)
    return found
