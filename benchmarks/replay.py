"""Training does not slow down as the replay fills."""

from __future__ import annotations

from functools import partial

from contenders import training
from harness import Progress, Result, race

CAPACITY = 140_000
EARLY = 20_000
LATE = 100_000


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    agents = {"ddqn": {}, "rtd_dqn, M = 20": {"models": 20}}
    contenders = {}
    for name, settings in agents.items():
        ours = partial(training, name.split(",")[0], replay_size=CAPACITY, **settings)
        contenders[f"{name}: first {EARLY:,} steps"] = partial(ours, span=EARLY)
        contenders[f"{name}: after {LATE:,} steps"] = partial(ours, ahead=LATE)
    result = Result(f"Training as a replay of {CAPACITY:,} fills", race(contenders, repeats, progress))
    names = list(contenders)
    for name, early, late in zip(agents, names[::2], names[1::2], strict=True):
        result.compare(f"{name}: speed with a full replay over that at first", early, late, ">=", 0.9)
    return result
