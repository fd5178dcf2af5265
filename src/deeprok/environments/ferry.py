"""A ferry on a river with an unknown current: few cells, so that the robust optimum is known exactly.

Each model of the river is deterministic. The worst case over a list of models is then a plain
minimum for each cell and action, and the robust Q* comes from value iteration over the cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import (
    Axis,
    Environment,
    EnvironmentPart,
    EpisodeSettings,
    Outcome,
    StateGrid,
    branch,
    quantity,
)
from deeprok.environments.drawing import (
    BLUE,
    GREY,
    INK,
    MEADOW,
    ORANGE,
    RED,
    WATER,
    Circle,
    Drawing,
    Line,
    Polygon,
    Text,
    rectangle,
)
from deeprok.environments.spaces import Choices

_FAR_BANK = 4  # the near bank is row 0; between them is water
_FALLS = 7  # places along the river, and the place of the falls
_DOCK = 4  # its place on the far bank
_STROKE = 2  # places that the ferry goes along the river in a step; on the bank it is one
_TOLERANCE = 1e-12


@pytree_dataclass
class Ferry:
    """The river and what a passage brings."""

    current: Any = quantity(
        1.0, "places/step", "drift downstream on the water, rounded to whole places", positive=False
    )
    fare: Any = quantity(1.0, "", "reward of landing at the dock")
    detour: Any = quantity(0.2, "", "what landing costs for each place between it and the dock")
    delay: Any = quantity(0.02, "", "cost of a step")
    wreck: Any = quantity(1.0, "", "cost of going over the falls")


def ferry(horizon: int = 40) -> Environment:
    """Cross a river and land near the dock: go upstream (0), across (1) or downstream (2).

    Four rows of seven places: the near bank, where a passage begins at any place, and three rows of
    water. Going along takes the ferry one place on the bank and two on the water, where the current
    then takes it downstream. A passage ends on the far bank, or over the falls below the last place.

    With currents of 0, 1 and 2 the robust policy embarks further upstream than the nominal one,
    which can't land when the current is 2.

    Args:
      horizon: steps after which an episode is cut off.
    """

    def reset(key: jax.Array, params: Ferry) -> tuple[jax.Array, jax.Array]:
        del params
        cell = jnp.stack([jnp.int32(0), jax.random.randint(key, (), 0, _FALLS, jnp.int32)])
        return cell, _observe(cell)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Ferry) -> Outcome:
        del key  # each river is deterministic
        row, place = state
        row = row + (action == 1)
        landed = row >= _FAR_BANK
        afloat = (row > 0) & ~landed
        own = jnp.where(afloat, _STROKE, 1) * (action.astype(jnp.int32) - 1)
        drift = jnp.where(afloat, jnp.round(params.current), 0.0).astype(jnp.int32)
        place = jnp.clip(place + own + drift, 0, jnp.where(afloat, _FALLS, _FALLS - 1))
        wrecked = place == _FALLS
        earned = params.fare - params.detour * jnp.abs(place - _DOCK)
        reward = jnp.where(landed, earned, 0.0) - jnp.where(wrecked, params.wreck, 0.0) - params.delay
        cell = jnp.stack([row, place])
        return Outcome(state=cell, obs=_observe(cell), reward=jnp.asarray(reward, float), terminated=landed | wrecked)

    return Environment(
        name="ferry",
        reset=reset,
        step=step,
        nominal=Ferry(),
        box={"current": (0.0, 2.0)},
        observation_scale=(1.0, 1.0),
        actions=Choices(("upstream", "across", "downstream")),
        horizon=horizon,
        success_return=0.0,
        grid=StateGrid(
            axes=(Axis("row", 0, _FAR_BANK - 1, _FAR_BANK), Axis("place", 0, _FALLS - 1, _FALLS)),
            to_state=lambda coordinates: jnp.round(coordinates).astype(jnp.int32),
            from_state=lambda cell: cell.astype(float),
        ),
        draw=draw,
    )


def draw(states: Sequence[Any], params: Ferry) -> Drawing:
    """The river from above, which flows to the right, and the way of the ferry."""
    way = [(float(place), float(row)) for row, place in states]
    edge, bank = _FALLS - 0.5, _FAR_BANK - 0.5
    water = [(float(place), float(row)) for row in range(1, _FAR_BANK) for place in range(_FALLS)]
    return Drawing(
        shapes=[
            Polygon(rectangle(-1.0, -0.8, _FALLS + 1.0, 0.5), MEADOW),
            Polygon(rectangle(-1.0, 0.5, edge, bank), WATER),
            Polygon(rectangle(edge, 0.5, _FALLS + 1.0, bank), GREY),
            Polygon(rectangle(-1.0, bank, _FALLS + 1.0, _FAR_BANK + 0.8), MEADOW),
            *(Circle(at, 0.05, GREY) for at in water),
            Polygon(rectangle(_DOCK - 0.4, bank, _DOCK + 0.4, _FAR_BANK + 0.4), ORANGE),
            Line(way, BLUE, 1.0),
            Circle(way[-1], 0.28, RED if way[-1][0] >= _FALLS else BLUE),
            Text((float(_DOCK), _FAR_BANK + 0.62), "dock", INK, size=4.0),
            Text((_FALLS + 0.25, _FAR_BANK / 2), "falls", "#FFFFFF"),
            Text((-0.9, 0.72), f"current {round(float(params.current))} ▸", BLUE, "left", 4.0),
        ],
        view=(-1.0, -0.8, _FALLS + 1.0, _FAR_BANK + 0.8),
    )


def _observe(cell: jax.Array) -> jax.Array:
    return cell * (2.0 / np.array([_FAR_BANK, _FALLS])) - 1.0


class ExactQ(NamedTuple):
    """The robust Q* of every cell in which an action can be taken."""

    cells: np.ndarray  # [C, D] their observations
    q: np.ndarray  # [C, A]
    reachable: np.ndarray  # [C] bool; whether a passage on these rivers can come there


def exact_robust_q(env: Environment, models: Mapping[str, Any], discount: float) -> ExactQ:
    """Q*(s, a) = min over the models m of r_m + γ max Q*(s'_m, ·), by value iteration in double precision.

    The minimum is taken anew in each step, as in a robust target: nature may choose another river
    each time.

    Args:
      env: a ferry.
      models: name -> [M] values.
      discount: γ, below 1.
    """
    if not 0.0 <= discount < 1.0:
        raise DeeprokError(f"discount is {discount:g}; it must be at least 0 and below 1")
    cells = np.indices((_FAR_BANK, _FALLS), dtype=np.int32).reshape(2, -1).T
    with jax.enable_x64(True):
        rivers = {name: jnp.asarray(values, float) for name, values in models.items()}
        key, actions = jax.random.key(0), jnp.arange(len(env.actions))
        each_action = jax.vmap(lambda cell, action: branch(env, key, cell, action, rivers), (None, 0))
        outcome = jax.tree.map(np.asarray, jax.jit(jax.vmap(each_action, (0, None)))(jnp.asarray(cells), actions))
        seen = np.asarray(_observe(jnp.asarray(cells)))
    # [C, A, M] the cell where each model leads; of those that end the passage any number will do.
    goes_on = ~outcome.terminated
    successor = np.where(goes_on, outcome.state @ [_FALLS, 1], 0)

    q = np.zeros((len(cells), len(env.actions)))
    change = np.inf
    while change > _TOLERANCE * (1.0 - discount):
        before, values = q, q.max(axis=1)
        q = (outcome.reward + discount * np.where(goes_on, values[successor], 0.0)).min(axis=2)
        change = np.abs(q - before).max()

    reachable = cells[:, 0] == 0  # where passages begin
    for _ in cells:
        reachable[successor[goes_on & reachable[:, None, None]]] = True
    return ExactQ(seen, q, reachable)


@dataclass(frozen=True)
class FerrySettings(EpisodeSettings):
    """Settings of the ferry, besides its parameters."""

    horizon: Count = 40
    """Steps after which a passage is truncated."""


PART = EnvironmentPart(
    settings=FerrySettings,
    make=lambda settings: ferry(settings.horizon),
    presets={("tuned", "q_learning"): {"episodes": 2000, "target_period": 200, "epsilon_steps": 5000}},
)
