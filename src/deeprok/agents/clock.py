"""When it is: what schedules of a run depend on."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Clock(NamedTuple):
    """When it is: a moment of a run."""

    t: jax.Array  # [] the driver's counter: of steps, or of iterations where whole trajectories are played
    progress: jax.Array | float  # [] the fraction of the budget that is used up
    held: jax.Array | float = -1.0  # [] the progress at which the ambiguity set's size is held; negative if it is not

    @property
    def level_progress(self) -> jax.Array:
        """The progress that the ambiguity set's size follows."""
        return jnp.where(jnp.asarray(self.held) < 0, self.progress, self.held)
