"""deeprok: reinforcement learning that keeps working when the world differs from the model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeprok.core.errors import DeeprokError
    from deeprok.estimators import GradientConfig, KalmanConfig
    from deeprok.evaluation.grid import Evaluation, evaluate
    from deeprok.runs.settings import ALGORITHMS, Config, make_config
    from deeprok.training.jobs import resume, train

__all__ = [
    "ALGORITHMS",
    "Config",
    "DeeprokError",
    "Evaluation",
    "GradientConfig",
    "KalmanConfig",
    "evaluate",
    "make_config",
    "resume",
    "train",
]

#: Public name -> its module, imported when the name is asked for: JAX takes a second that no help text needs.
_MODULES = {
    "ALGORITHMS": "runs.settings",
    "Config": "runs.settings",
    "DeeprokError": "core.errors",
    "Evaluation": "evaluation.grid",
    "GradientConfig": "estimators",
    "KalmanConfig": "estimators",
    "evaluate": "evaluation.grid",
    "make_config": "runs.settings",
    "resume": "training.jobs",
    "train": "training.jobs",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("deeprok")
    if name not in _MODULES:
        raise AttributeError(f"module 'deeprok' has no attribute '{name}'")
    return getattr(import_module(f"deeprok.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
