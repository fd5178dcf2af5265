"""Models that were found during a training, and how they join the sets of the episodes that follow.

`deeprok.training.adversary` looks for them. A run's set gains the model on which its policy does worst, as a
cutting-set method adds the constraint that is violated most, instead of waiting for a draw to meet it.

A. Mutapcic and S. Boyd, "Cutting-set methods for robust convex optimization with pessimizing oracles", Optimization
  Methods and Software, 2009.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.agents.learner import Task
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Model
from deeprok.uncertainty.models import Box

#: Found models that are kept; of a run that is made longer again and again the newest.
KEPT = 8

#: The least share of a set that found models have, and the probability that a model which would be drawn to be acted on
#: is one of them; and their largest share. The others are drawn as ever: what was found for the policy of a moment is
#: not all that it must do well on.
LEAST_SHARE, LARGEST_SHARE = 0.25, 0.5

#: What random keys are folded with for what is found; others are split from the same keys.
_OWN_KEYS = 2**30


@pytree_dataclass
class Found:
    """What a run's searches have found."""

    models: jax.Array  # [KEPT, P] that have joined, in the order of the box; the nominal one where there is none yet
    count: jax.Array  # [] int32, how many have joined, also those that newer ones have replaced
    searches: jax.Array  # [] int32
    episodes: jax.Array  # [] int32, finished at the last search
    steps: jax.Array  # [] int32, taken at the last search
    worst: jax.Array  # [P] the model that the last search has found
    success: jax.Array  # [] of the policy on it, share of episodes
    mean_return: jax.Array  # []
    joined: jax.Array  # [] bool, whether it was worse than those that had joined before

    @property
    def there(self) -> Any:
        """How many models have joined and are kept."""
        return jnp.minimum(self.count, KEPT)


def nothing_found(task: Task) -> Found | None:
    """The record at the beginning of a run; None without an adversary."""
    if not task.searches:
        return None
    nominal = jnp.array([getattr(task.env.nominal, name) for name in task.box], float)
    return Found(
        models=jnp.tile(nominal, (KEPT, 1)),
        count=jnp.int32(0),
        searches=jnp.int32(0),
        episodes=jnp.int32(0),
        steps=jnp.int32(0),
        worst=nominal,
        success=jnp.zeros(()),
        mean_return=jnp.zeros(()),
        joined=jnp.array(False),
    )


def with_found(found: Found | None, box: Box, drawn: Model, key: jax.Array) -> Model:
    """A set of M models in which found ones take the last places.

    They have as many places as there are found models, but at least a quarter, where some are there several times, and
    at most half, where chance decides which are there.
    """
    if found is None:
        return drawn
    size = len(next(iter(drawn.values())))
    most = int(LARGEST_SHARE * size)
    places = jnp.where(found.count > 0, jnp.clip(found.there, math.ceil(LEAST_SHARE * size), most), 0)
    taken = jnp.arange(size) >= size - places
    rows = _some(found, box, key, most)
    return {
        name: jnp.where(taken, jnp.concatenate([values[: size - most], rows[name][::-1]]), values)
        for name, values in drawn.items()
    }


def or_found(found: Found | None, box: Box, drawn: Model, key: jax.Array) -> Model:
    """A model [] or, now and then, a found one in its place."""
    if found is None:
        return drawn
    chance_key, which_key = jax.random.split(jax.random.fold_in(key, _OWN_KEYS))
    takes = (found.count > 0) & (jax.random.uniform(chance_key) < LEAST_SHARE)
    row = _some(found, box, which_key, 1)
    return {name: jnp.where(takes, row[name][0], value) for name, value in drawn.items()}


def _some(found: Found, box: Box, key: jax.Array, count: int) -> Model:
    """Found models that follow each other, from a random one on: name -> [count]."""
    there = jnp.maximum(found.there, 1)
    first = jax.random.randint(jax.random.fold_in(key, _OWN_KEYS), (), 0, there)
    rows = found.models[(first + jnp.arange(count)) % there]
    return {name: rows[:, i] for i, name in enumerate(box)}


def news(found: Found | None, i: int, steps: int, box: Box) -> dict[str, float]:
    """What a line of metrics says of the i-th run's search after so many steps; nothing if there was none."""
    if found is None or not found.searches[i] or found.steps[i] != steps:
        return {}
    return {
        "found_at": steps,
        **{f"found_{name}": float(value) for name, value in zip(box, found.worst[i], strict=True)},
        "found_success": float(found.success[i]),
        "found_return": float(found.mean_return[i]),
        "found_joined": int(found.joined[i]),
    }
