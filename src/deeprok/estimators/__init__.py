"""Estimators: beliefs over flat weights, updated from labels."""

from deeprok.estimators.base import (
    Estimator,
    Fit,
    Health,
    Keeper,
    Observation,
    Posterior,
    Prediction,
    predict,
    stack_outputs,
)
from deeprok.estimators.bayes_by_backprop import MeanFieldBelief, bayes_by_backprop, gaussian_prior, mixture_prior
from deeprok.estimators.covariance import Covariance, block, diagonal, full, low_rank
from deeprok.estimators.gradient import PointBelief, gradient
from deeprok.estimators.kalman import GaussianBelief, averaged_gains, ekf, float32_risk, joint_update
from deeprok.estimators.psgld import ChainBelief, psgld
from deeprok.estimators.unscented import UnscentedBelief, ukf

__all__ = [
    "ChainBelief",
    "Covariance",
    "Estimator",
    "Fit",
    "GaussianBelief",
    "Health",
    "Keeper",
    "MeanFieldBelief",
    "Observation",
    "PointBelief",
    "Posterior",
    "Prediction",
    "UnscentedBelief",
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
