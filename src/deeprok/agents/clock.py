"""When it is: what schedules of a run depend on."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Clock(NamedTuple):
    """When it is: a moment of a run."""

    t: jax.Array  # [] the driver's counter: of steps, or of iterations where whole trajectories are played
    progress: jax.Array | float  # [] the fraction of the budget that is used up
