"""Estimators: beliefs over flat weights, updated from labels."""

from deeprok.estimators import bayes_by_backprop as _bbb
from deeprok.estimators import gradient as _gradient
from deeprok.estimators import kalman as _kalman
from deeprok.estimators import psgld as _psgld
from deeprok.estimators import unscented as _unscented
from deeprok.estimators.base import (
    Context,
    Estimator,
    Fit,
    Health,
    Keeper,
    Memory,
    Observation,
    Part,
    Posterior,
    Prediction,
    predict,
    stack_outputs,
)
from deeprok.estimators.bayes_by_backprop import (
    BackpropConfig,
    MeanFieldBelief,
    bayes_by_backprop,
    gaussian_prior,
    mixture_prior,
)
from deeprok.estimators.covariance import Covariance, block, diagonal, full, low_rank
from deeprok.estimators.gradient import GradientConfig, PointBelief, gradient
from deeprok.estimators.kalman import GaussianBelief, KalmanConfig, averaged_gains, ekf, float32_risk, joint_update
from deeprok.estimators.psgld import ChainBelief, LangevinConfig, psgld
from deeprok.estimators.unscented import UnscentedBelief, UnscentedConfig, ukf

#: The estimators that an algorithm can name.
ESTIMATORS: dict[str, Part] = {
    "gradient": _gradient.PART,
    "kalman": _kalman.PART,
    "backprop": _bbb.PART,
    "langevin": _psgld.PART,
    "unscented": _unscented.PART,
}

__all__ = [
    "ESTIMATORS",
    "BackpropConfig",
    "ChainBelief",
    "Context",
    "Covariance",
    "Estimator",
    "Fit",
    "GaussianBelief",
    "GradientConfig",
    "Health",
    "KalmanConfig",
    "Keeper",
    "LangevinConfig",
    "MeanFieldBelief",
    "Memory",
    "Observation",
    "Part",
    "PointBelief",
    "Posterior",
    "Prediction",
    "UnscentedBelief",
    "UnscentedConfig",
    "averaged_gains",
    "bayes_by_backprop",
    "block",
    "diagonal",
    "ekf",
    "float32_risk",
    "full",
    "gaussian_prior",
    "gradient",
    "joint_update",
    "low_rank",
    "mixture_prior",
    "predict",
    "psgld",
    "stack_outputs",
    "ukf",
]
