"""Run folders: the interface between training and everything that looks at it.

A run folder holds `config.json`, `metrics.jsonl`, `checkpoint.safetensors` and, once evaluated,
`evaluation.json`; one that began with another run's belief holds that as `prior.safetensors`. A
folder of seeds holds run folders named `seed-0`, `seed-1`, …
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from deeprok import checkpoint
from deeprok.config import Config, check, from_json
from deeprok.errors import DeeprokError
from deeprok.estimators.randomness import stream_after
from deeprok.training import Program, RunState, make_program
from deeprok.types import record

Keep = Literal["best", "last"]
KEEPS: tuple[str, ...] = get_args(Keep)

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
PRIOR = "prior.safetensors"
EVALUATION = "evaluation.json"


@record
class Best:
    """The belief that did best in the trials on held-out models."""

    belief: Any  # the estimator's record
    trial_return: jax.Array  # [] mean return of that trial; −∞ before the first
    steps: jax.Array  # [] int32, when it was


def create(folder: Path, config: Config) -> None:
    """Makes a run folder; refuses one that already holds something."""
    _refuse_full(folder)
    belief = _read_prior(config) if config.prior else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeeprokError(f"can't make the folder {folder}: {error.strerror}") from error
    if belief is not None:
        checkpoint.save(folder / PRIOR, {"belief": belief})
    checkpoint.write_atomically(folder / CONFIG, config.to_json().encode())


def _read_prior(config: Config) -> Any:
    """The last belief of the run that these settings begin with; of several seeds the one with this seed."""
    found = find(Path(config.prior))
    if len(found) > 1:
        found = [folder for folder in found if folder.name == f"seed-{config.seed}"]
        if not found:
            raise DeeprokError(f"prior is {config.prior}, which has no seed-{config.seed}; name one of its runs")
    with config.arithmetic():
        belief = load_belief(found[0], make_program(config), "last")
        renewed = {"updates": np.zeros_like(belief.updates)}
        if hasattr(belief, "stream"):  # its random numbers would come again
            renewed["stream"] = np.asarray(stream_after(belief.stream, config.seed))
        return dataclasses.replace(belief, **renewed)


def load_prior(folder: Path, program: Program) -> Any:
    """The belief that a run begins with, if it was given one."""
    template = templates(program)[0].agent.belief
    return checkpoint.load(folder / PRIOR, "belief", template) if (folder / PRIOR).exists() else None


def create_seeds(out: Path, config: Config, seeds: Sequence[int]) -> list[Path]:
    """Makes a folder of run folders, one for each seed."""
    _refuse_full(out)
    if len(set(seeds)) < len(seeds):
        raise DeeprokError(f"seeds are {list(seeds)}; each may be given once")
    configs = {out / f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in seeds}
    for each in configs.values():
        check(each)
    for folder, each in configs.items():
        create(folder, each)
    return list(configs)


def _refuse_full(folder: Path) -> None:
    if folder.is_file():
        raise DeeprokError(f"{folder} is a file; a run needs a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise DeeprokError(
            f"{folder} already exists and is not empty; go on with 'deeprok train --resume {folder}' or choose another"
        )


def find(folder: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or the seeds in it."""
    if not folder.exists():
        raise DeeprokError(f"there is no run folder {folder}")
    if (folder / CONFIG).exists():
        return [folder]
    seeds = [path.parent for path in folder.glob(f"seed-*/{CONFIG}")]
    if not seeds:
        raise DeeprokError(f"{folder} is not a run folder: it holds neither {CONFIG} nor seed-*/{CONFIG}")
    return sorted(seeds, key=lambda path: (len(path.name), path.name))


def read_config(folder: Path) -> Config:
    """The settings of a run."""
    path = folder / CONFIG
    try:
        return from_json(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DeeprokError(f"can't read {path}: {error}") from error


def templates(program: Program) -> tuple[RunState, Best]:
    """Shapes of what a checkpoint of this program holds."""
    run = jax.eval_shape(program.init, jax.random.key(0))
    theta = jax.eval_shape(program.estimator.mean, run.agent.belief)
    best = Best(
        belief=run.agent.belief,
        trial_return=jax.ShapeDtypeStruct((), theta.dtype),  # type: ignore[arg-type]
        steps=run.steps,
    )
    return run, best


def load_belief(folder: Path, program: Program, keep: Keep) -> Any:
    """The best or the last belief of a run."""
    run, best = templates(program)
    path = folder / CHECKPOINT
    if keep == "best":
        found = checkpoint.load(path, "best", best)
        if found.trial_return == -np.inf:
            raise DeeprokError(
                f"{folder} has had no trial on held-out models yet, so no weights are its best; keep the last"
            )
        return found.belief
    return checkpoint.load(path, "run.agent.belief", run.agent.belief)


def best_trial(folder: Path, program: Program) -> float:
    """The mean return of a run's best trial."""
    score = templates(program)[1].trial_return
    return float(checkpoint.load(folder / CHECKPOINT, "best.trial_return", score))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`; a line cut short by a crash is left out."""
    path = folder / METRICS
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def trim_metrics(folder: Path, steps: int) -> None:
    """Forgets what `metrics.jsonl` tells of later steps, and half a line that a crash left."""
    path = folder / METRICS
    if not path.exists():
        return
    kept = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            if not line.endswith(b"\n") or json.loads(line)["steps"] > steps:
                break
        except ValueError:
            break
        kept += len(line)
    os.truncate(path, kept)


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Adds a line to `metrics.jsonl`."""
    try:
        with open(folder / METRICS, "a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise DeeprokError(f"can't write {folder / METRICS}: {error.strerror}; the last checkpoint is kept") from error
