"""Stored evaluations in place of play, where they are the same test of the weights that the runs have now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deeprok.core.errors import DeeprokError
from deeprok.evaluation.grid import GridTest, hash_of
from deeprok.evaluation.result import Evaluation, same_axes
from deeprok.evaluation.stored import read_stored, stored_files
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import DISTURBANCES, Config


def find_played(folders: Sequence[Path], configs: Sequence[Config], test: GridTest) -> Evaluation | None:
    """The stored evaluation that is this very test of the weights that the runs have now, if there is one.

    Args:
      folders: run folders that differ by their seeds.
      configs: the settings of each.
      test: the test, with its grid, its weights and its disturbances given.
    """
    wanted: dict[str, Any] = {name: getattr(test, name) for name in ("episodes", "epsilon", "policy", "keep", "seed")}
    wanted |= {"disturbances": {name: value for name in DISTURBANCES if (value := getattr(test, name))}}
    assert isinstance(test.grid, Mapping)
    assert test.keep
    weights: list[tuple[int, str]] | None = None
    for file in stored_files(folders):
        try:
            found = read_stored(folders, file)
        except DeeprokError:  # it is played instead
            continue
        if same_axes(found.grid, test.grid) and all(getattr(found, name) == value for name, value in wanted.items()):
            weights = weights or _weights(folders, configs, test.keep)
            if [(one.seed, one.weights) for one in found.per_seed] == weights:
                return found
    return None


def _weights(folders: Sequence[Path], configs: Sequence[Config], keep: Keep) -> list[tuple[int, str]]:
    """Seed and hash of the weights of each run."""
    with configs[0].arithmetic():
        learner = configs[0].make_learner()
        beliefs = [runs.load_belief(folder, learner, keep, "part") for folder in folders]
        return [(config.seed, hash_of(learner.view, belief)) for config, belief in zip(configs, beliefs, strict=True)]
