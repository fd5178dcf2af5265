"""The holder of an American put option in a market whose drift and volatility are not known.

The option may be exercised in every step until it expires. Whoever expects the price to fall waits for a lower one;
where the market rises, the wait is paid for with the profit that was there to take. The worst market for the holder is
always the same one, the calmest and most rising of the box: the value falls with the price and is convex in it. So the
minimum over the box in every step is the worst case over whole episodes as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.fields import Count
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid, quantity
from deeprok.environments.drawing import BLUE, GREY, INK, MEADOW, Circle, Drawing, Line, Polygon, Text, rectangle
from deeprok.environments.spaces import Choices

_STARTS = (0.9, 1.1)  # prices, as shares of the strike
_HORIZON = 50


@pytree_dataclass
class Market:
    """The parameters of a price and of the option on it."""

    drift: Any = quantity(-0.2, "1/year", "expected growth rate of the price", positive=False)
    volatility: Any = quantity(0.3, "1/√year", "standard deviation of the log-price after a year")
    strike: Any = quantity(10.0, "", "price at which the option sells")
    maturity: Any = quantity(1.0, "year", "time from the start to the option's expiry")
    time_step: Any = quantity(0.02, "year", "time between two decisions")


def market(horizon: int = _HORIZON) -> Environment:
    """Hold (0) or exercise (1) an option to sell at the strike.

    Exercising earns strike − price, or nothing where the price is higher, and ends the contract. So does its expiry,
    in the last step of the maturity. A step of holding moves the price by a lognormal factor.

    An option that pays anything is a success. The holder observes log(price / strike) and the time left.

    Args:
      horizon: steps after which an episode is cut off. The nominal contract has 50.
    """

    def reset(key: jax.Array, params: Market) -> tuple[jax.Array, jax.Array]:
        low, high = _STARTS
        state = jnp.stack([jnp.log(jax.random.uniform(key, minval=low, maxval=high)), jnp.asarray(params.maturity)])
        return state, state

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Market) -> Outcome:
        moneyness, time_left = state
        exercised = action == 1
        growth = (params.drift - 0.5 * params.volatility**2) * params.time_step
        shock = params.volatility * jnp.sqrt(params.time_step) * jax.random.normal(key)
        new_moneyness = jnp.where(exercised, moneyness, moneyness + growth + shock)
        new_time_left = time_left - params.time_step
        # Half a step, since the times that are left are sums of rounded ones. Written as "not within", so that a state
        # that is not a number ends the contract, without a payoff.
        within = (new_time_left > 0.5 * params.time_step) & (jnp.abs(new_moneyness) < jnp.inf)
        terminated = exercised | ~within
        payoff = jnp.where(new_moneyness < 0.0, -params.strike * jnp.expm1(new_moneyness), 0.0)
        reward = jnp.where(terminated, payoff, 0.0).astype(state.dtype)
        new_state = jnp.stack([new_moneyness, new_time_left]).astype(state.dtype)
        return Outcome(state=new_state, obs=new_state, reward=reward, terminated=terminated)

    return Environment(
        name="market",
        reset=reset,
        step=step,
        nominal=Market(),
        box={"drift": (-0.3, 0.2), "volatility": (0.15, 0.45)},
        observation_scale=(0.2, 0.5),
        actions=Choices(("hold", "exercise")),
        horizon=horizon,
        success_return=0.0,
        grid=StateGrid((Axis("log(price / strike)", -2.0, 1.0, 601), Axis("time left", 0.0, 1.0, 51))),
        draw=draw,
    )


def draw(states: Sequence[Any], params: Market) -> Drawing:
    """The price over time. The option pays where it is below the strike, in the green area."""
    strike, maturity = float(params.strike), float(params.maturity)
    way = [(maturity - float(left), strike * math.exp(float(log))) for log, left in states]
    top = strike * max(1.6, 1.1 * max(price for _, price in way) / strike)
    time, price = way[-1]
    return Drawing(
        shapes=[
            Polygon(rectangle(0.0, 0.0, maturity, strike), MEADOW),
            Line([(0.0, strike), (maturity, strike)], GREY),
            Line([(0.0, 0.0), (maturity, 0.0)], GREY),
            Line([(maturity, 0.0), (maturity, top)], GREY, 0.3),
            Line(way, BLUE, 0.9),
            Circle((time, price), 0.016 * top, INK),
            Text((0.01 * maturity, strike - 0.035 * top), f"strike {strike:g}", INK, "left"),
            Text((0.01 * maturity, 0.97 * top), f"price {price:.2f}", INK, "left"),
            Text((0.99 * maturity, 0.97 * top), f"expiry after {maturity:g} year", GREY, "right"),
        ],
        view=(0.0, 0.0, 1.02 * maturity, top),
        stretched=True,
    )


@dataclass(frozen=True)
class MarketSettings(EpisodeSettings):
    """Settings of the market."""

    horizon: Count = _HORIZON
    """Steps after which an episode is truncated."""


PART = EnvironmentPart(settings=MarketSettings, make=lambda settings: market(settings.horizon))
