"""Textbook formulas in numpy and double precision, written without regard to speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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


def noise_matrix(noise: float | np.ndarray, n: int) -> np.ndarray:
    """A number, a vector or a matrix of noise as a matrix."""
    return np.asarray(noise) if np.ndim(noise) == 2 else np.diag(np.broadcast_to(noise, n).astype(float))


def averaged_filter(
    theta: np.ndarray,
    P: np.ndarray,
    H: np.ndarray,
    innovation: np.ndarray,
    R: float,
    process_noise: float | np.ndarray,
    keep: np.ndarray | float = 1.0,
) -> Gaussian:
    """Algorithm 2 sample by sample: the gains and the covariance's decrements are averaged.

    `keep` is 1 where an entry of P is kept and 0 where it is taken as 0.
    """
    predicted = keep * (P + noise_matrix(process_noise, len(theta)))
    step, fall, variances = np.zeros_like(theta), np.zeros_like(P), []
    for q, e in zip(H, innovation, strict=True):
        S = q @ predicted @ q + R
        K = predicted @ q / S
        step += K * e / len(H)
        fall += np.outer(K, K) * S / len(H)
        variances.append(S)
    return Gaussian(theta + step, keep * (predicted - fall), np.array(variances))


def joint_filter(
    theta: np.ndarray,
    P: np.ndarray,
    H: np.ndarray,
    innovation: np.ndarray,
    R: float,
    process_noise: float | np.ndarray,
    keep: np.ndarray | float = 1.0,
) -> Gaussian:
    """The Kalman update for a vector of observations, covariance in Joseph's form."""
    n, B = len(theta), len(H)
    predicted = keep * (P + noise_matrix(process_noise, n))
    S = H @ predicted @ H.T + R * np.eye(B)
    K = predicted @ H.T @ np.linalg.inv(S)
    left = np.eye(n) - K @ H
    # The determinants of growing corners give the variances of samples taken one after the other.
    corners = np.array([1.0, *(np.linalg.det(S[:k, :k]) for k in range(1, B + 1))])
    after = keep * (left @ predicted @ left.T + R * K @ K.T)
    return Gaussian(theta + K @ innovation, after, corners[1:] / corners[:-1])


FILTERS = {"averaged": averaged_filter, "joint": joint_filter}


def kept_in_blocks(n: int, partition: Sequence[slice]) -> np.ndarray:
    """1 where two weights are in one block, else 0."""
    keep = np.zeros((n, n))
    for members in (np.arange(n)[s] for s in partition):
        keep[np.ix_(members, members)] = 1.0
    return keep


class LowRankPrecision(NamedTuple):
    """P⁻¹ = diag(own) + shared, where `shared` has at most `rank` directions."""

    own: np.ndarray  # [n]
    shared: np.ndarray  # [n, n]

    @property
    def P(self) -> np.ndarray:
        return np.linalg.inv(np.diag(self.own) + self.shared)


def low_rank_filter(
    theta: np.ndarray,
    belief: LowRankPrecision,
    H: np.ndarray,
    innovation: np.ndarray,
    R: float,
    process_noise: float | np.ndarray,
    batching: str,
    rank: int,
    growth: float = 1.0,
) -> tuple[np.ndarray, LowRankPrecision]:
    """LO-FI: the singular vectors beyond `rank` leave their diagonal (Chang et al. 2023, Section 3.2 and Appendix).

    `growth` multiplies P before the noise is added. Averaged gains have the information that their covariance has.
    """
    n, B = len(theta), len(H)
    # Predict: the diagonal as if it stood alone, the directions as what is left of (P + Q)⁻¹.
    own = 1.0 / (growth / belief.own + process_noise)
    predicted = growth * belief.P + noise_matrix(process_noise, n)
    values, vectors = np.linalg.eigh(np.linalg.inv(predicted) - np.diag(own))
    directions = vectors * np.sqrt(np.maximum(values, 0.0))
    # Update: more directions.
    G = H @ predicted @ H.T
    if batching == "joint":
        information = np.eye(B) / R
        gains = predicted @ H.T @ np.linalg.inv(G + R * np.eye(B))
    else:
        S = np.diagonal(G) + R
        information = np.linalg.inv(np.diag(B * S) - G)
        gains = predicted @ H.T / (B * S)
    added = H.T @ np.linalg.cholesky(information)
    U, strength, _ = np.linalg.svd(np.concatenate([directions, added], axis=1))
    strength = np.concatenate([strength, np.zeros(max(0, n - len(strength)))])[:n]
    scaled = U * strength
    kept, dropped = scaled[:, :rank], scaled[:, rank:]
    return theta + gains @ innovation, LowRankPrecision(own + np.sum(dropped**2, axis=1), kept @ kept.T)


class Evolved(NamedTuple):
    P: np.ndarray
    capped: int  # variances that were kept from growing


def evolved(P: np.ndarray, process_noise: float | np.ndarray, fading: float = 0.0, cap: float = np.inf) -> Evolved:
    """P before an update: P / (1 − fading) + noise, where no variance grows above the cap, weight by weight."""
    n = len(P)
    noise = noise_matrix(process_noise, n)
    stretch, shrink, capped = np.ones(n), np.ones(n), 0
    for i in range(n):
        grown = max(P[i, i], min(P[i, i] / (1 - fading), cap))
        left = max(cap - grown, 0.0)
        stretch[i] = np.sqrt(grown / P[i, i])
        shrink[i] = 1.0 if noise[i, i] <= left else np.sqrt(left / noise[i, i])
        capped += noise[i, i] > left or grown < P[i, i] / (1 - fading) * (1 - 1e-12)
    return Evolved(P * np.outer(stretch, stretch) + noise * np.outer(shrink, shrink), capped)


def bayesian_regression(
    theta: np.ndarray, P: np.ndarray, H: np.ndarray, ys: np.ndarray, R: float
) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of y = H θ + noise under the prior N(theta, P)."""
    information = np.linalg.inv(P)
    posterior = np.linalg.inv(information + H.T @ H / R)
    return posterior @ (information @ theta + H.T @ ys / R), posterior
