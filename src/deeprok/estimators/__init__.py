"""Estimators: how the weights are learned from targets, as a point estimate or as a posterior.

| file | what it is |
|---|---|
| `base` | the protocol of an estimator, and how one is registered |
| `gradient` | a point estimate by Adam or SGD |
| `averaging` | a moving average of the weights of any of them |
| `kalman`, `gains`, `covariance/` | the extended Kalman filter: its loop, the gains of a mini-batch, structures of P |
| `unscented` | the unscented Kalman filter |
| `bayes_by_backprop` | a variational posterior with independent weights |
| `psgld` | samples of the weights by Langevin dynamics |
| `variances`, `randomness` | covariances as settings; random numbers that can be resumed |
"""

from deeprok.core.registry import Registry, expect
from deeprok.estimators import bayes_by_backprop as _bbb
from deeprok.estimators import gradient as _gradient
from deeprok.estimators import kalman as _kalman
from deeprok.estimators import psgld as _psgld
from deeprok.estimators import unscented as _unscented
from deeprok.estimators.averaging import AveragedBelief, averaged
from deeprok.estimators.base import (
    Context,
    Estimator,
    EstimatorPart,
    Fit,
    Health,
    Memory,
    Observation,
    Posterior,
    Prediction,
    predict,
    stack_outputs,
)
from deeprok.estimators.bayes_by_backprop import (
    BayesByBackpropConfig,
    MeanFieldBelief,
    bayes_by_backprop,
    gaussian_prior,
    mixture_prior,
)
from deeprok.estimators.covariance import Covariance, block, diagonal, full, low_rank
from deeprok.estimators.gains import averaged_gains, float32_risk, joint_update
from deeprok.estimators.gradient import GradientConfig, PointBelief, gradient
from deeprok.estimators.kalman import GaussianBelief, KalmanConfig, ekf
from deeprok.estimators.psgld import ChainBelief, PSGLDConfig, psgld
from deeprok.estimators.unscented import UnscentedBelief, UnscentedConfig, ukf

#: The estimators that an algorithm can name.
ESTIMATORS: Registry[EstimatorPart] = Registry(
    "estimator",
    {
        "gradient": _gradient.PART,
        "kalman": _kalman.PART,
        "bayes_by_backprop": _bbb.PART,
        "psgld": _psgld.PART,
        "unscented": _unscented.PART,
    },
    expect(EstimatorPart, "an EstimatorPart"),
)

__all__ = [
    "ESTIMATORS",
    "AveragedBelief",
    "BayesByBackpropConfig",
    "ChainBelief",
    "Context",
    "Covariance",
    "Estimator",
    "EstimatorPart",
    "Fit",
    "GaussianBelief",
    "GradientConfig",
    "Health",
    "KalmanConfig",
    "MeanFieldBelief",
    "Memory",
    "Observation",
    "PSGLDConfig",
    "PointBelief",
    "Posterior",
    "Prediction",
    "UnscentedBelief",
    "UnscentedConfig",
    "averaged",
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
