"""Sweeps whose trainings take seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Short chunks and many of them, so that there is time to stop a run half way.
FAST: dict[str, Any] = dict(
    preset="tuned", hidden=[[4]], episodes=250, horizon=40, models=3, batch_size=4, warm_up=20, target_period=50,
    epsilon_steps=300, chunk_steps=20, trial_every=20, trial_models=4,
)  # fmt: skip


def as_toml(spec: Mapping[str, Any]) -> str:
    """The file that says the same; JSON and TOML write such values alike."""
    tables = {name: value for name, value in spec.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in spec.items() if name not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"
