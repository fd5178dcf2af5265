"""Whether a simulator can explain a log at all: what it does not predict must be noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from deeprok.identification.likelihood import Innovations
from deeprok.identification.log import Log

#: A misfit is worth a word if chance makes one in a log with this probability at most, and if it explains this share of
#: the innovations' variance.
_CHANCE, _SHARE = 0.01, 0.05


@dataclass(frozen=True)
class Check:
    """A test of the innovations of one coordinate, which must be independent of all that came before."""

    coordinate: str
    """Such as obs_1."""
    kind: Literal["state", "time"]
    """Of what they must be independent: of observation and action, or of the innovation one step before."""
    on: str
    """What they depend on most."""
    p: float
    """The probability of so much dependence by chance."""
    share: float
    """Of the predicted variance of the innovations, what the dependence explains."""
    misfit: bool
    """Whether it is both too large for chance, for all checks together, and large enough to matter."""

    @property
    def sentence(self) -> str:
        """What a misfit means."""
        return (
            f"{self.coordinate} differs from its prediction in a way that depends on {self.on} "
            f"({100 * self.share:.0f} % of the variance of noise, p = {self.p:.1g}): the simulator is wrong there, not "
            "its parameters"
        )


def check_fit(innovations: Innovations, log: Log) -> tuple[Check, ...]:
    """Tests the innovations at the estimate: whether they are white, and independent of observation and action.

    Args:
      innovations: [E, T, D], as arrays of numpy; T may be longer than that of the log.
      log: the log.
    """
    steps, size = log.action.shape[1], log.obs.shape[2]
    errors = np.asarray(innovations.value / np.sqrt(innovations.variance))[:, :steps]
    alive = np.arange(steps) < log.length[:, None]
    names, regressors = _regressors(log, alive)
    both = alive[:, 1:]
    found = []
    for i in range(size):
        each = errors[..., i]
        before, after = each[:, :-1][both], each[:, 1:][both]
        tests = [
            ("state", *_regression(each[alive], regressors, names)),
            ("time", *_regression(after, before[:, None], ["its error one step before"])),
        ]
        for kind, on, p, share in tests:
            misfit = p < _CHANCE / (2 * size) and share > _SHARE
            found.append(Check(f"obs_{i}", kind, on, p, share, misfit))  # type: ignore[arg-type]
    return tuple(found)


def _regressors(log: Log, alive: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Names, and [steps, K]: each observation, each action, and the squares of the observations."""
    size = log.obs.shape[2]
    obs = log.obs[:, :-1][alive]
    action = log.action[alive]
    if log.action.ndim == 2:
        kinds = np.unique(action)[1:]
        acts, of_action = (action[:, None] == kinds).astype(float), ["action"] * len(kinds)
    else:
        acts, of_action = action, [f"action_{k}" for k in range(action.shape[1])]
    centred = obs - obs.mean(axis=0)
    names = [f"obs_{k}" for k in range(size)] + of_action + [f"the square of obs_{k}" for k in range(size)]
    return names, np.hstack([centred, acts, centred**2])


def _regression(values: np.ndarray, regressors: np.ndarray, names: list[str]) -> tuple[str, float, float]:
    """What values depend on: the name of the strongest, the p-value of the F-test of all, and the share they explain.

    It is a share of 1, the mean square of values that have their predicted variance.

    Args:
      values: [n].
      regressors: [n, K].
      names: of the regressors.
    """
    count = len(values)
    deviations = regressors.std(axis=0) if count else np.zeros(len(names))
    varying = deviations > 1e-12 * (1 + np.abs(regressors).max(axis=0, initial=0.0))
    X = (regressors[:, varying] - regressors[:, varying].mean(axis=0)) / deviations[varying]
    rank = int(np.linalg.matrix_rank(X)) if X.size else 0
    freedom = count - rank - 1
    total = np.sum((values - values.mean()) ** 2) if count else 0.0
    if not rank or freedom < 2 * rank or total <= 0:  # too little to tell
        return names[0], 1.0, 0.0
    weights = np.linalg.pinv(X) @ (values - values.mean())
    rest = np.sum((values - values.mean() - X @ weights) ** 2)
    ratio = (total - rest) / rank / max(rest / freedom, 1e-300)
    share = 1 - (rest / freedom) / (total / (count - 1))
    alone = np.abs(X.T @ (values - values.mean()))  # what each explains by itself
    most = [name for name, is_varying in zip(names, varying, strict=True) if is_varying][int(np.argmax(alone))]
    return most, float(stats.f.sf(ratio, rank, freedom)), float(max(share, 0.0) * total / count)
