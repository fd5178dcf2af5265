"""Run folders: the interface between training and everything that looks at it.

A run folder holds `config.json`, `metrics.jsonl`, `checkpoint.safetensors` and, once evaluated,
`evaluation.json`; one that began with another run's belief holds that as `prior.safetensors`.
`group.json` names the seeds that it is trained together with. A folder of seeds holds run folders
named `seed-0`, `seed-1`, … While a folder is written to, its `.lock` is held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import Learner
from deeprok.agents.scaling import ScaledBelief
from deeprok.core.errors import DeeprokError, shortened, shown
from deeprok.core.files import as_numbers, parse_json, partial, read_bytes, write_atomically
from deeprok.estimators.randomness import stream_after
from deeprok.runs import checkpoint
from deeprok.runs.lock import hold as hold
from deeprok.runs.names import CHECKPOINT as CHECKPOINT
from deeprok.runs.names import CONFIG as CONFIG
from deeprok.runs.names import EVALUATION as EVALUATION
from deeprok.runs.names import GROUP as GROUP
from deeprok.runs.names import LOCK as LOCK
from deeprok.runs.names import METRICS as METRICS
from deeprok.runs.names import PRIOR as PRIOR
from deeprok.runs.settings import Config, check, from_json

Keep = Literal["best", "last"]
KEEPS: tuple[str, ...] = get_args(Keep)

#: A run folder or a folder of seeds, by its path or as a loaded run; or a list of them, the seeds of one agent.
Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def create(folder: Path, config: Config, group: Sequence[int] = ()) -> None:
    """Makes a run folder; refuses one that already holds something.

    Args:
      folder: the folder.
      config: the settings of the run.
      group: the seeds that it is trained together with, if that is decided already.
    """
    _refuse_full(folder)
    belief = _read_prior(config) if config.prior else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeeprokError(f"can't make the folder {folder}: {error.strerror}") from error
    try:
        if belief is not None:
            checkpoint.save(folder / PRIOR, {"belief": belief})
        if group:
            write_group(folder, group)
        # The last of them: with it, the folder is a run.
        write_atomically(folder / CONFIG, config.to_json().encode())
    except DeeprokError:
        discard_unstarted([folder])
        raise


def ensure(folder: Path, config: Config, group: Sequence[int] = ()) -> None:
    """Makes a run folder where there is none, as `create` does; refuses one of other settings."""
    if not (folder / CONFIG).exists():
        create(folder, config, group)
    elif read_config(folder) != config:
        raise DeeprokError(f"{folder} was trained with other settings; choose another --out or remove it")


def _read_prior(config: Config) -> Any:
    """The last estimate of another run, which these settings begin with; of several seeds the one with this seed."""
    found = find(Path(config.prior))
    if len(found) > 1:
        found = [folder for folder in found if folder.name == f"seed-{config.seed}"]
        if not found:
            raise DeeprokError(f"prior is {config.prior}, which has no seed-{config.seed}; name one of its runs")
    only_mean = getattr(config.learner, "prior_part", "all") == "mean"
    if not only_mean:
        _check_alike(found[0], config)
    with config.arithmetic():
        begun = _begun_at_mean(found[0], config) if only_mean else load_belief(found[0], config.make_learner(), "last")
        return _renewed(begun, config)


def _check_alike(folder: Path, config: Config) -> None:
    """Raises if a run's estimate of the weights is not one of these settings, of which it could be the beginning."""
    source = read_config(folder)
    kinds: list[Any] = []
    for each in (source, config):
        with each.arithmetic():
            leaves, structure = jax.tree.flatten(belief_template(each.make_learner()))
            kinds.append((structure, [(leaf.shape, leaf.dtype) for leaf in leaves]))
    if kinds[0] == kinds[1]:
        return
    theirs, ours = source.flat(), config.flat()
    deciding = [*vars(config.estimator), *vars(config.layers), "normalise", "precision"]
    names = [name for name in deciding if name in theirs and name in ours and theirs[name] != ours[name]]
    if type(source.estimator) is not type(config.estimator):
        names = ["algorithm"]
    differing = ", ".join(f"{name} {_plain(theirs[name])}, here {_plain(ours[name])}" for name in names)
    raise DeeprokError(
        f"prior is {folder}, whose estimate of the weights is of another kind ({differing}); give the same settings, "
        "or take its mean alone with --prior-part mean"
    )


def _plain(value: Any) -> str:
    """A setting as the command line has it."""
    return shortened(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _begun_at_mean(folder: Path, config: Config) -> Any:
    """The estimate before any observation, at the mean weights of a run, whatever its estimator was."""
    source = read_config(folder)
    if type(source.learner) is not type(config.learner):
        raise DeeprokError(
            f"prior is {folder}, a run of {source.algorithm}; {config.algorithm} needs one of a Q-learner"
        )
    with source.arithmetic():
        learner = source.make_learner()
        belief = load_belief(folder, learner, "last")
        theta, scales = np.asarray(learner.view.mean(belief)), getattr(belief, "scales", None)
    learner, given = config.make_learner(), learner.view.network
    own = learner.view.network
    if (given.num_weights, given.slices, given.neurons) != (own.num_weights, own.slices, own.neurons):
        raise DeeprokError(
            f"prior is {folder}, whose network has {given.num_weights} weights; this run's has {own.num_weights}, and "
            "both must have the same layers"
        )
    assert learner.begin_at
    return learner.begin_at(*jax.tree.map(lambda leaf: jnp.asarray(leaf, config.precision), (theta, scales)))


def _renewed(belief: Any, config: Config) -> Any:
    """The estimate at the beginning of another run: schedules begin again, and random numbers are other ones."""
    if isinstance(belief, ScaledBelief):
        return dataclasses.replace(belief, inner=_renewed(belief.inner, config))
    renewed = {}
    if hasattr(belief, "updates"):
        renewed["updates"] = np.zeros_like(belief.updates)
    if hasattr(belief, "stream"):
        renewed["stream"] = np.asarray(stream_after(belief.stream, config.seed))
    return dataclasses.replace(belief, **renewed)


def load_prior(folder: Path, learner: Learner) -> Any:
    """The estimate that a run begins with, if it was given one."""
    path = folder / PRIOR
    return checkpoint.load(path, "belief", belief_template(learner)) if path.exists() else None


@contextlib.contextmanager
def own_folder(out: Path) -> Iterator[None]:
    """A folder for many runs, made where it is missing, that only this process works in.

    If a `DeeprokError` ends it before anything is in the folder, it is removed again.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeeprokError(f"can't make the folder {out}: {error.strerror}") from error
    with hold([out]):
        try:
            yield
        except DeeprokError:
            if os.listdir(out) == [LOCK]:
                discard_unstarted([out])
            raise


def refuse_foreign(out: Path, summary: str, what: str) -> None:
    """Raises if a folder for many runs holds something else: anything without this summary."""
    try:
        inside = [name for name in os.listdir(out) if not name.startswith(".")] if out.is_dir() else []
    except OSError as error:
        raise DeeprokError(f"can't look into the folder {out}: {error.strerror}") from error
    if inside and summary not in inside:
        raise DeeprokError(f"{out} is not empty and holds no {summary}; choose another folder for the {what}")


def read_group(folder: Path) -> tuple[int, ...] | None:
    """The seeds that a run is trained together with, its own among them, in order; None before its training."""
    path = folder / GROUP
    if not path.exists():
        return None
    try:
        seeds = json.loads(path.read_bytes())["seeds"]
        if not isinstance(seeds, list) or not all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds):
            raise TypeError(seeds)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeeprokError(f"{path} is damaged: it must hold the seeds that were trained together") from error
    return tuple(seeds)


def write_group(folder: Path, seeds: Sequence[int]) -> None:
    """Notes the seeds that a run is trained together with."""
    write_atomically(folder / GROUP, (json.dumps({"seeds": list(seeds)}) + "\n").encode())


def discard_unstarted(folders: Sequence[Path]) -> None:
    """Removes new run folders, and what they alone were in, if none of them has come to its first metrics."""
    if not all(map(_unstarted, folders)):
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            if folder.name.startswith("seed-"):
                folder.parent.rmdir()


def _unstarted(folder: Path) -> bool:
    """Whether a folder holds nothing but what the start of a run leaves, whole or cut short."""
    own = {CONFIG, PRIOR, GROUP, LOCK}
    own |= {partial(Path(name)).name for name in own}
    return not folder.exists() or (folder.is_dir() and own.issuperset(os.listdir(folder)))


def create_seeds(out: Path, config: Config, seeds: Sequence[int], groups: Sequence[Sequence[int]] = ()) -> list[Path]:
    """Makes a folder of run folders, one for each seed.

    Args:
      out: the folder.
      config: the settings of the runs.
      seeds: their seeds.
      groups: which seeds are trained together, if that is decided already.
    """
    _refuse_full(out)
    if len(set(seeds)) < len(seeds):
        raise DeeprokError(f"seeds are {list(seeds)}; each may be given once")
    configs = {out / f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in seeds}
    for each in configs.values():
        check(each)
    try:
        for folder, each in configs.items():
            create(folder, each, next((group for group in groups if each.seed in group), ()))
    except DeeprokError:
        discard_unstarted(list(configs))
        raise
    return list(configs)


def _refuse_full(folder: Path) -> None:
    """Raises unless a run can begin in this folder; what a start that was killed has left is removed."""
    try:
        if folder.is_file():
            raise DeeprokError(f"{folder} is a file; a run needs a new folder")
        if not folder.is_dir() or not any(folder.iterdir()):
            return
        inner = list(folder.iterdir())
        starts = inner if all(path.name.startswith("seed-") for path in inner) else [folder]
        if all(map(_unstarted, starts)):
            with hold(starts):
                discard_unstarted(starts)
            return
        with hold([path for path in (folder, *folder.glob("seed-*")) if (path / LOCK).exists()]):
            pass  # refused, if it is in use
    except OSError as error:
        raise DeeprokError(f"can't make the folder {folder}: {error.strerror}") from error
    raise DeeprokError(
        f"{folder} already exists and is not empty; resume it with 'deeprok train --resume {folder}' or choose another"
    )


def find(folder: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or the seeds in it."""
    try:
        if not folder.exists():
            raise DeeprokError(f"there is no run folder {folder}")
        if (folder / CONFIG).exists():
            return [folder]
        seeds = [path.parent for path in folder.glob(f"seed-*/{CONFIG}")]
    except OSError as error:
        raise DeeprokError(f"can't look into the folder {folder}: {error.strerror}") from error
    if not seeds:
        raise DeeprokError(f"{folder} is not a run folder: it holds neither {CONFIG} nor seed-*/{CONFIG}")
    return sorted(seeds, key=lambda path: (len(path.name), path.name))


def find_all(given: Runs) -> list[Path]:
    """The run folders that one or several paths or loaded runs stand for."""
    several: Any = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(several, Sequence) or not all(isinstance(one, str | os.PathLike) for one in several):
        raise DeeprokError(f"run is {shown(given)}; it must be a run or its path, or a list of them")
    if not several:
        raise DeeprokError("run is an empty list; give at least one run")
    return [folder for one in several for folder in find(Path(one))]


def read_config(folder: Path) -> Config:
    """The settings of a run."""
    path = folder / CONFIG
    return from_json(read_bytes(path), str(path))


def belief_template(learner: Learner) -> Any:
    """Shapes of the learner's estimate of the weights."""
    return jax.eval_shape(learner.init, jax.random.key(0)).belief


def load_belief(folder: Path, learner: Learner, keep: Keep, verify: Literal["file", "part"] = "file") -> Any:
    """The best or the last estimate of the weights of a run.

    Args:
      folder: the run folder.
      learner: that of its settings.
      keep: which of them.
      verify: compare the checksums of the whole checkpoint, or of the estimate alone.
    """
    path, template = folder / CHECKPOINT, belief_template(learner)
    if keep == "best":
        if best_trial(folder, learner) == -np.inf:
            raise DeeprokError(
                f"{folder} has had no trial on held-out models yet, so no weights are its best; keep the last"
            )
        return checkpoint.load(path, "best.belief", template, verify)
    return checkpoint.load(path, "run.agent.belief", template, verify)


def verify_checkpoint(folder: Path) -> None:
    """Raises if the checkpoint of a run is damaged."""
    checkpoint.verify(folder / CHECKPOINT)


def best_trial(folder: Path, learner: Learner) -> float:
    """The mean return of a run's best trial."""
    theta = jax.eval_shape(learner.view.mean, belief_template(learner))
    score: Any = jax.ShapeDtypeStruct((), theta.dtype)
    return float(checkpoint.load(folder / CHECKPOINT, "best.trial_return", score, verify="part"))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`; a last line cut short by a crash is left out."""
    path = folder / METRICS
    lines = [_read_line(text) for text in read_bytes(path).splitlines()] if path.exists() else []
    if lines and lines[-1] is None:
        lines.pop()
    whole = [line for line in lines if line is not None]
    if len(whole) < len(lines):
        raise DeeprokError(
            f"{path} is damaged: line {lines.index(None) + 1} is not what training writes; remove it, or the file"
        )
    return whole


def _read_line(text: bytes) -> dict[str, Any] | None:
    """A line of `metrics.jsonl`: numbers, and lists of numbers, by name; None if it is something else."""
    line = parse_json(text)
    if (
        not isinstance(line, dict)
        or not isinstance(line.get("steps"), int)
        or not isinstance(line.get("episodes"), int)
    ):
        return None
    ranks = {name: None if (numbers := as_numbers(value)) is None else numbers.ndim for name, value in line.items()}
    is_right = ranks.get("returns") == 1 and ranks.get("trial_return", 0) == 0 and None not in ranks.values()
    return line if is_right else None


def trim_metrics(folder: Path, steps: int) -> None:
    """Forgets what `metrics.jsonl` tells of later steps, and all from the first damaged line on."""
    path = folder / METRICS
    if not path.exists():
        return
    kept = 0
    for text in read_bytes(path).splitlines(keepends=True):
        line = _read_line(text)
        if line is None or not text.endswith(b"\n") or line["steps"] > steps:
            break
        kept += len(text)
    try:
        os.truncate(path, kept)
    except OSError as error:
        raise DeeprokError(f"can't write {path}: {error.strerror}") from error


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Adds a line to `metrics.jsonl`."""
    try:
        with open(folder / METRICS, "a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise DeeprokError(f"can't write {folder / METRICS}: {error.strerror}; the last checkpoint is kept") from error
