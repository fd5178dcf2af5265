"""Environments so small that what should be learned in them is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import Choices, Environment, EnvironmentPart, EpisodeSettings, Interval, Outcome, quantity


@pytree_dataclass
class Weather:
    wind: Any = quantity(0.5, "", "from 1 on it blows whoever goes to the wrong place")
    prize: Any = quantity(1.0, "", "reward at the right place")


def fork(horizon: int = 10) -> Environment:
    """Three states, seen one-hot: a way that is safe and one that depends on the weather.

    State 0: action 0 earns 0.3 and leads to 1; action 1 earns 0 and leads to 2, in strong wind to 1.
    State 1: action 0 earns 0.2, action 1 0.1; state 2: action 0 earns the prize, action 1 0.6. Both end.
    """
    last_rewards = jnp.array([[0.3, 0.0], [0.2, 0.1], [0.0, 0.6]])

    def reset(key: jax.Array, params: Weather) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jax.nn.one_hot(0, 3)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Weather) -> Outcome:
        goal = jnp.where((action == 1) & (params.wind < 1), 2, 1)
        prize = jnp.where((state == 2) & (action == 0), params.prize, 0.0)
        return Outcome(
            state=goal,
            obs=jax.nn.one_hot(goal, 3),
            reward=last_rewards[state, action] + prize,
            terminated=state > 0,
        )

    box = {"wind": (0.5, 1.5), "prize": (0.5, 1.5)}
    return Environment("fork", reset, step, Weather(), box, (1.0,) * 3, Choices(("left", "right")), horizon, 0.0)


@pytree_dataclass
class Life:
    lifetime: Any = quantity(1e9, "steps", "after which the environment ends")


def treadmill(horizon: int = 10) -> Environment:
    """One thing to see, one reward for ever, or until the lifetime is over."""

    def reset(key: jax.Array, params: Life) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Life) -> Outcome:
        age = state + 1
        return Outcome(state=age, obs=jnp.ones(1), reward=jnp.ones(()), terminated=age >= params.lifetime)

    box = {"lifetime": (5.0, 20.0)}
    return Environment("treadmill", reset, step, Life(), box, (1.0,), Choices(("a", "b")), horizon, 0.0)


@pytree_dataclass
class Noise:
    size: Any = quantity(1.0, "", "standard deviation of a step")


def drift(horizon: int = 10) -> Environment:
    """A random walk."""

    def reset(key: jax.Array, params: Noise) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(1), jnp.zeros(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Noise) -> Outcome:
        moved = state + params.size * jax.random.normal(key, (1,))
        return Outcome(state=moved, obs=moved, reward=moved[0], terminated=jnp.array(False))

    return Environment("drift", reset, step, Noise(), {"size": (0.5, 2.0)}, (1.0,), Choices(("a", "b")), horizon, 0.0)


@pytree_dataclass
class Air:
    wind: Any = quantity(1.0, "", "blows one way round if it is positive, else the other way", positive=False)


def ring(horizon: int = 10) -> Environment:
    """Three places in a ring, seen one-hot. The wind blows on by one place, then it is to be guessed for a reward of 1.

    The first place is uniformly random, and so is the second, whatever the wind: one observation tells nothing of it,
    and guesses without memory are right half of the time. The two together tell it.
    """

    def reset(key: jax.Array, params: Air) -> tuple[Any, jax.Array]:
        place = jax.random.randint(key, (), 0, 3)
        return (place, jnp.int32(0)), jax.nn.one_hot(place, 3)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Air) -> Outcome:
        place, age = state
        blown = (place + jnp.where(params.wind > 0, 1, 2)) % 3
        right = action == (params.wind > 0)
        return Outcome(
            state=(blown, age + 1),
            obs=jax.nn.one_hot(blown, 3),
            reward=jnp.where((age == 1) & right, 1.0, 0.0),
            terminated=age == 1,
        )

    box = {"wind": (-1.0, 1.0)}
    return Environment("ring", reset, step, Air(), box, (1.0,) * 3, Choices(("back", "on")), horizon, 0.5)


@pytree_dataclass
class Motor:
    strength: Any = quantity(1.0, "", "reward of a push")
    bias: Any = quantity(1.0, "", "what is seen of it", positive=False)


def pushes(horizon: int = 10) -> Environment:
    """A reward for each push, action 1. Seen is a one, the action that was done last and the bias."""

    def reset(key: jax.Array, params: Motor) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(()), jnp.array([1.0, -1.0, 0.0])

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Motor) -> Outcome:
        done = jnp.asarray(action, float)
        seen = jnp.stack([jnp.ones(()), done, jnp.asarray(params.bias, float)])
        return Outcome(state=done, obs=seen, reward=params.strength * done, terminated=jnp.array(False))

    box = {"strength": (0.5, 1.5)}
    return Environment("pushes", reset, step, Motor(), box, (2.0, 1.0, 1.0), Choices(("rest", "push")), horizon, 9.5)


@pytree_dataclass
class Lens:
    slope: Any = quantity(0.2, "", "where to aim, for what is seen")


def aim(horizon: int = 5) -> Environment:
    """A number x between −1 and 1 is seen; an action a between −2 and 2 earns −(a − slope·x)², and the episode ends.

    The best action is slope·x. If the slope is one of several, the mean of them is best on average, and the middle of
    the least and the largest in the worst case.
    """

    def reset(key: jax.Array, params: Lens) -> tuple[jax.Array, jax.Array]:
        x = jax.random.uniform(key, (1,), minval=-1.0)
        return x, x

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Lens) -> Outcome:
        reward = -jnp.sum((action - params.slope * state) ** 2)
        return Outcome(state=state, obs=state, reward=reward, terminated=jnp.array(True))

    box = {"slope": (0.2, 1.0)}
    return Environment("aim", reset, step, Lens(), box, (1.0,), Interval((-2.0,), (2.0,)), horizon, -0.1)


@pytree_dataclass
class Ground:
    east: Any = quantity(0.5, "", "place from west to east", positive=False)
    north: Any = quantity(0.5, "", "place from south to north", positive=False)


#: Where the ground gives way: a ten-thousandth of the box.
POCKET = {"east": (0.9, 0.91), "north": (0.2, 0.21)}


def ice(horizon: int = 1) -> Environment:
    """One step over ice: to run earns about 1, but −5 where it gives way; to walk earns 0.5 everywhere.

    The ice grows thinner towards the pocket, of which the reward of a run tells a little.
    """

    def reset(key: jax.Array, params: Ground) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Ground) -> Outcome:
        away, inside = jnp.zeros(()), jnp.array(True)
        for name, (low, high) in POCKET.items():
            place = getattr(params, name)
            away += jnp.abs(place - (low + high) / 2)
            inside &= (low <= place) & (place <= high)
        runs = jnp.where(inside, -5.0, 1.0 + 0.1 * away)
        return Outcome(
            state=state, obs=jnp.ones(1), reward=jnp.where(action == 0, runs, 0.5), terminated=jnp.array(True)
        )

    box = {"east": (0.0, 1.0), "north": (0.0, 1.0)}
    return Environment("ice", reset, step, Ground(), box, (1.0,), Choices(("run", "walk")), horizon, 0.0)


def part_of(make: Callable[[int], Environment]) -> EnvironmentPart:
    return EnvironmentPart(EpisodeSettings, lambda settings: make(settings.horizon))


PROBES = {make.__name__: part_of(make) for make in (fork, treadmill, drift, ring, pushes, aim, ice)}


def failing(where: str, of: str) -> Environment:
    """The fork with numbers that are not finite where a parameter is large.

    Args:
      where: `reward` or `obs`.
      of: the parameter, above 1.5.
    """
    env = fork()

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Weather) -> Outcome:
        outcome = env.step(key, state, action, params)
        wrong = jnp.where(getattr(params, of) > 1.5, jnp.nan, 0.0)
        return dataclasses.replace(outcome, **{where: getattr(outcome, where) + wrong})

    return env._replace(step=step, box={of: (1.0, 2.0)})


NO_REWARD, NO_OBSERVATION = failing("reward", "wind"), failing("obs", "prize")


def _returning(**changes: Any) -> Environment:
    """The fork with another step, or other parts of an outcome."""
    env = fork()

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Weather) -> Any:
        return dataclasses.replace(env.step(key, state, action, params), **changes)

    return env._replace(step=step)


#: Environments that return what they must not.
WIDE, MANY_REWARDS, GROWN = (
    _returning(obs=jnp.zeros(4)),
    _returning(reward=jnp.zeros(2)),
    _returning(state=jnp.zeros(2)),
)
ALONE = fork()._replace(reset=lambda key, params: jnp.zeros(3))
