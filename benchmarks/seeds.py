"""Why seeds of a Kalman agent go to processes: vmapped, their covariances no longer fit the cache."""

from __future__ import annotations

from functools import partial

from contenders import training
from harness import Progress, Result, race


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    contenders = {
        "deep_rok, 1 seed": partial(training, "deep_rok", seeds=1, chunks=1, chunk_steps=500),
        "deep_rok, 4 seeds": partial(training, "deep_rok", seeds=4, chunks=1, chunk_steps=500),
    }
    one, four = contenders
    result = Result("Seeds of a Kalman agent", race(contenders, repeats, progress))
    result.compare("4 seeds vmapped, times the throughput of 1", one, four)
    return result
