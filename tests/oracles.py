"""Textbook formulas in numpy and double precision, written without regard to speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def mlp(theta: np.ndarray, sizes: tuple[int, ...], activation: str, scale: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """Q(s, ·) unit by unit; a layer's weights stand input by input in θ, then its biases."""
    x, used = obs * scale, 0
    for depth, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        out = np.zeros(outputs)
        for j in range(outputs):
            out[j] = theta[used + inputs * outputs + j]
            for i in range(inputs):
                out[j] += x[i] * theta[used + i * outputs + j]
        used += (inputs + 1) * outputs
        x = ACTIVATIONS[activation](out) if depth < len(sizes) - 2 else out
    assert used == len(theta)
    return x


def cvar(p: np.ndarray, values: np.ndarray, level: float) -> float:
    """min p'·v over distributions with p' ≤ p / level, as a linear program."""
    solved = linprog(values, A_eq=np.ones((1, len(p))), b_eq=[1.0], bounds=[(0.0, q / level) for q in p])
    assert solved.status == 0, solved.message
    return float(solved.fun)


def label(
    reward: np.ndarray, terminated: np.ndarray, next_q: np.ndarray, discount: float, level: float | None
) -> float:
    """The robust label from rewards [M], flags [M] and target values [M, A]; level None is the minimum."""
    values = np.array(
        [r if over else r + discount * max(q) for r, over, q in zip(reward, terminated, next_q, strict=True)]
    )
    return min(values) if level is None else cvar(np.full(len(values), 1 / len(values)), values, level)


class Gaussian(NamedTuple):
    theta: np.ndarray
    P: np.ndarray
    variances: np.ndarray  # what the update called the innovation variances


def averaged_filter(
    theta: np.ndarray, P: np.ndarray, H: np.ndarray, innovation: np.ndarray, R: float, process_noise: float
) -> Gaussian:
    """Algorithm 2 sample by sample: the gains and the covariance's decrements are averaged."""
    predicted = P + process_noise * np.eye(len(theta))
    step, fall, variances = np.zeros_like(theta), np.zeros_like(P), []
    for q, e in zip(H, innovation, strict=True):
        S = q @ predicted @ q + R
        K = predicted @ q / S
        step += K * e / len(H)
        fall += np.outer(K, K) * S / len(H)
        variances.append(S)
    return Gaussian(theta + step, predicted - fall, np.array(variances))


def joint_filter(
    theta: np.ndarray, P: np.ndarray, H: np.ndarray, innovation: np.ndarray, R: float, process_noise: float
) -> Gaussian:
    """The Kalman update for a vector of observations, covariance in Joseph's form."""
    n, B = len(theta), len(H)
    predicted = P + process_noise * np.eye(n)
    S = H @ predicted @ H.T + R * np.eye(B)
    K = predicted @ H.T @ np.linalg.inv(S)
    left = np.eye(n) - K @ H
    # The determinants of growing corners give the variances of samples taken one after the other.
    corners = np.array([1.0, *(np.linalg.det(S[:k, :k]) for k in range(1, B + 1))])
    return Gaussian(theta + K @ innovation, left @ predicted @ left.T + R * K @ K.T, corners[1:] / corners[:-1])


FILTERS = {"averaged": averaged_filter, "joint": joint_filter}


def bayesian_regression(
    theta: np.ndarray, P: np.ndarray, H: np.ndarray, ys: np.ndarray, R: float
) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of y = H θ + noise under the prior N(theta, P)."""
    information = np.linalg.inv(P)
    posterior = np.linalg.inv(information + H.T @ H / R)
    return posterior @ (information @ theta + H.T @ ys / R), posterior
