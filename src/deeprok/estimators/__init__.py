"""Estimators: beliefs over flat weights, updated from labels."""

from deeprok.estimators.base import Estimator, Fit, Observation
from deeprok.estimators.gradient import PointBelief, gradient
from deeprok.estimators.kalman import GaussianBelief, averaged_gains, ekf, joint_update

__all__ = [
    "Estimator",
    "Fit",
    "GaussianBelief",
    "Observation",
    "PointBelief",
    "averaged_gains",
    "ekf",
    "gradient",
    "joint_update",
]
