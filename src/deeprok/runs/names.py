"""The names of the files that a run folder keeps. Quick to import, for commands that only have to know them."""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
PRIOR = "prior.safetensors"
EVALUATION = "evaluation.json"
GROUP = "group.json"
LOCK = ".lock"

#: All of them but evaluations, which have names of their own behind the first word.
KEPT = frozenset({CONFIG, METRICS, CHECKPOINT, PRIOR, GROUP, LOCK, "stress.json", "calibrate.json"})


def is_own_file(path: Path) -> bool:
    """Whether a path is that of a file that a run folder keeps, in a run folder or a folder of seeds."""
    is_evaluation = path.name.startswith("evaluation") and path.suffix == ".json"
    if path.name not in KEPT and not is_evaluation:
        return False
    return (path.parent / CONFIG).exists() or any(path.parent.glob(f"seed-*/{CONFIG}"))
