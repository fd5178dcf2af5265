"""Evidence against a hypothesis that may be looked at after every step.

An e-value is a number that is 1 or less on average while the hypothesis holds, whatever came before. The product of
the e-values of one segment after the other ever reaches 1/α with a probability of α at most (J. Ville, "Étude critique
de la notion de collectif", 1939). A product that starts with the first segment shrinks while all is well, and would be
slow to grow later. So products that start with each segment are added up, with weights that sum to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Evidence(NamedTuple):
    """Σ w(j) E(j) E(j+1) …, with w(j) = 1 / j(j+1); the product that starts with a segment to come is 1."""

    log_sum: float = -np.inf  # of the segments that are over
    segments: int = 0  # how many are over

    @property
    def _log_staked(self) -> float:
        """What the present segment multiplies, with the product that starts with it."""
        j = self.segments + 1
        return float(np.logaddexp(self.log_sum, -np.log(j * (j + 1))))

    def log_with(self, log_value: float) -> float:
        """The logarithm of all evidence, with the e-value of the present segment so far."""
        return float(np.logaddexp(self._log_staked + log_value, -np.log(self.segments + 2)))

    def after(self, log_value: float) -> Evidence:
        """The evidence when the present segment is over."""
        return Evidence(self._log_staked + log_value, self.segments + 1)
