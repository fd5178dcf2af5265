"""What a tuning has found, for a page: made of the `tuning.json` that it wrote, which stands in `docs/tuning/`."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import deeprok
from deeprok.tuning.record import read_rerun
from deeprok.tuning.result import SHOWN, said, score_of

STORED = Path(__file__).parents[1] / "tuning"


def described() -> str:
    """All tunings that are stored."""
    found = [section(json.loads(path.read_text())) for path in sorted(STORED.glob("*.json"))]
    return "\n\n" + ("\n\n".join(found) or "No measurement is stored.") + "\n\n"


def section(found: dict[str, Any]) -> str:
    """The command, what was tried, the scores on fresh seeds, and what follows from them."""
    metric, trials = found["task"]["metric"], found["trials"]
    finished = sum(trial["state"] == "finished" for trial in trials)
    winner = read_rerun(found["winner"])
    rows = [(f"winner, {winner.name}", winner)]
    rows += [(f"preset `{preset['name']}`", read_rerun(preset)) for preset in found["presets"]]
    lines = [
        "```text",
        command(found),
        "```",
        "",
        f"{len(trials)} trials in {found['seconds'] / 60:.0f} minutes, {finished} of them with all of their steps.",
        "",
        f"| on {len(winner.seeds)} fresh seeds | {SHOWN[metric][0]} (95 %) | steps |",
        "|---|---:|---:|",
    ]
    lines += [f"| {name} | {said(score_of(rerun), metric)} | {rerun.steps:,} |" for name, rerun in rows]
    lines += ["", *(f"- {_sentence(one['sentence'])}" for one in found["comparisons"])]
    before = found["score_while_tuning"]
    if before is not None and math.isfinite(before):
        lines.append(f"- While tuning the winner scored {SHOWN[metric][1] * before:.3g}, with few seeds.")
    return "\n".join(lines)


def command(found: dict[str, Any]) -> str:
    """The command of a tuning."""
    task, stop = found["task"], found["stop"]
    given = {
        "metric": task["metric"],
        "preset": task["preset"],
        "seeds": task["rungs"][-1]["seeds"],
        "rungs": len(task["rungs"]),
        "finalists": stop["finalists"],
        "fresh": stop["fresh"],
        "seed": task["seed"],
    }
    usual = inspect.signature(deeprok.tune).parameters
    words = ["deeprok", "tune", task["algorithm"], "--env", task["env"]]
    words += ["--budget", f"{stop['budget'] / 60:g}m"] if stop["budget"] else ["--trials", str(stop["trials"])]
    for name, value in given.items():
        words += [f"--{name}", str(value)] if value != usual[name].default else []
    if task["fixed"]:
        words += ["--fix", *(f"{name}={value}" for name, value in task["fixed"].items())]
    return " ".join(words)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
