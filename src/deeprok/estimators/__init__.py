"""Estimators: beliefs over flat weights, updated from labels."""

from deeprok.estimators.base import Estimator, Fit, Health, Observation, Posterior, Prediction, predict, stack_outputs
from deeprok.estimators.covariance import Covariance, block, diagonal, full, low_rank
from deeprok.estimators.gradient import PointBelief, gradient
from deeprok.estimators.kalman import GaussianBelief, averaged_gains, ekf, float32_risk, joint_update

__all__ = [
    "Covariance",
    "Estimator",
    "Fit",
    "GaussianBelief",
    "Health",
    "Observation",
    "PointBelief",
    "Posterior",
    "Prediction",
    "averaged_gains",
    "block",
    "diagonal",
    "ekf",
    "float32_risk",
    "full",
    "gradient",
    "joint_update",
    "low_rank",
    "predict",
    "stack_outputs",
]
