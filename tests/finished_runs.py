"""Finished runs with weights that are known, written without training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.replaying import make_estimator
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.best import Best
from deeprok.training.scan import make_program

#: a = 1{w·s > 0}, which succeeds on 94 % of the paper's grid at ε = 0.1.
LINEAR = (0.0217, 0.0464, 1.0, 0.1881)
#: Weights of a 4-1-2 network: Q = (−tanh(w·s), tanh(w·s)) acts as that policy.
GOOD = np.array([*LINEAR, 0.0, -1.0, 1.0, 0.0, 0.0], np.float32)
#: The same network, always left.
LEFT = np.array([0.0] * 7 + [1.0, 0.0], np.float32)
TINY: dict[str, Any] = dict(hidden=(1,), input_scale=(1.0,) * 4, episodes=3)


def write_run(
    folder: Path, algorithm: str = "rtd_dqn", best: Any = GOOD, last: Any = LEFT, spread: float = 1e-10, **changes: Any
) -> Path:
    """A finished run with the given weights."""
    prior = {"prior_covariance": spread} if algorithm in ("ekf_dqn", "deep_rok") else {}
    config = make_config(algorithm, "tuned", **TINY | prior | changes)
    runs.create(folder, config)
    with config.arithmetic():
        run = make_program(config).init(jax.random.key(config.seed))
        estimator = make_estimator(config.task())

        def belief(theta: Any) -> Any:
            return estimator.init(jnp.asarray(theta, config.precision))

        run = dataclasses.replace(
            run,
            agent=dataclasses.replace(run.agent, belief=belief(last)),
            episodes=np.int32(config.episodes),
            steps=np.int32(60),
        )
        score = np.dtype(config.precision).type(100 + config.seed)
        kept = Best(belief=belief(best), trial_return=score, steps=np.int32(40), progress=run.held)
        checkpoint.save(folder / runs.CHECKPOINT, {"run": run, "best": kept})
    line = {"steps": 60, "episodes": 3, "returns": [20.0] * 3, "epsilon": 1.0, "seconds": 1.0, "trial_return": 100.0}
    runs.append_metrics(folder, line)
    return folder
