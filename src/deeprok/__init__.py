"""deeprok: reinforcement learning that keeps working when the world differs from the model."""

from importlib.metadata import version

from deeprok.config import ALGORITHMS, Config, GradientConfig, KalmanConfig, make_config
from deeprok.errors import DeeprokError
from deeprok.evaluation import Evaluation, evaluate
from deeprok.jobs import resume, train

__version__ = version("deeprok")

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
