"""The episode that is seen of a policy: played as evaluation plays it, with a picture of each step."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import AnyEnvironment, Environment, Model, with_model
from deeprok.environments.host import HostEnvironment, HostOutcome, Simulator
from deeprok.environments.host_picture import picture_of
from deeprok.environments.host_wrappers import Around
from deeprok.evaluation.host_play import host_player
from deeprok.evaluation.play import watch_episodes
from deeprok.evaluation.policies import weights_policy
from deeprok.evaluation.render.canvas import WHITE, check_drawing, is_finite, paint
from deeprok.evaluation.trained import Run

#: `(step, width and height) -> picture`.
Picture = Callable[[int, tuple[int, int]], Image.Image]


class Episode(NamedTuple):
    """An episode of n steps."""

    rewards: np.ndarray  # [n]
    over: bool  # whether it ended by itself, before its steps were used up
    picture: Picture  # of steps 0 to n


def check_visible(env: AnyEnvironment) -> None:
    """Raises, before anything is played, if an environment in JAX has no drawing; a simulator is asked for pictures."""
    if isinstance(env, Environment) and env.draw is None:
        raise DeeprokError(
            f"env is {shown(env.name)}, which can't be seen: it has no draw; give its Environment a function "
            "draw(states, params) that returns a Drawing"
        )


#: `(model, seed, epsilon, advance) -> Episode`: plays the first of the episodes that an evaluation with this seed plays
#: on a model, name -> value; epsilon is the probability of a random action, and `advance` is called with the fraction
#: of the work done since its last call.
Player = Callable[[Mapping[str, float], int, float, Callable[[float], None]], Episode]


def make_player(run: Run, env: AnyEnvironment, steps: int) -> Player:
    """A function that plays a run's policy.

    Args:
      run: whose policy acts.
      env: the environment that it acts in.
      steps: after which episodes are cut off.
    """
    play = _simulator_player(run, env, steps) if isinstance(env, HostEnvironment) else _jax_player(run, env, steps)

    def in_precision(
        model: Mapping[str, float], seed: int, epsilon: float, advance: Callable[[float], None]
    ) -> Episode:
        with run.settings.arithmetic():
            return play(model, seed, epsilon, advance)

    return in_precision


def _jax_player(run: Run, env: Environment, steps: int) -> Player:
    # One step more, which is not shown: what a step collects is the state before it.
    longer = env._replace(horizon=steps + 1)
    policy_of = weights_policy(run.network, run.env.actions, "mean")

    @jax.jit
    def watch(weights: jax.Array, params: Model, key: jax.Array, epsilon: jax.Array) -> Any:
        act = policy_of(weights, with_model(env.nominal, params))
        models = {name: value[None] for name, value in params.items()}
        return watch_episodes(
            longer, act, models, key, epsilon, lambda step: (step.state, step.reward[0], step.alive[0])
        )[1]

    def play(model: Mapping[str, float], seed: int, epsilon: float, advance: Callable[[float], None]) -> Episode:
        given = {name: jnp.asarray(value, float) for name, value in model.items()}
        weights, chance = jnp.asarray(run.weights[None]), jnp.asarray(epsilon, float)
        states, rewards, alive = jax.tree.map(np.asarray, watch(weights, given, jax.random.key(seed), chance))
        taken = int(alive[:steps].sum())
        each = [jax.tree.map(lambda leaf, t=t: leaf[t, 0], states) for t in range(taken + 1)]
        params = jax.tree.map(np.asarray, with_model(env.nominal, given))
        advance(1.0)
        return Episode(rewards[:taken].astype(float), not alive[taken], _painter(env, each, params))

    return play


def _painter(env: Environment, states: list[Any], params: Any) -> Picture:
    """What paints the states of an episode; where one can't be drawn, as its numbers are none, the one before it."""

    def picture(step: int, size: tuple[int, int]) -> Image.Image:
        assert env.draw
        for last in range(step, -1, -1):
            try:
                drawn = env.draw(states[: last + 1], params)
            except (ArithmeticError, ValueError) as error:
                if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[last])):
                    raise DeeprokError(f"the draw of {env.name} fails: {type(error).__name__}: {error}") from error
                continue  # as the sine of what is infinite
            except Exception as error:  # of the user's function, most likely
                raise DeeprokError(f"the draw of {env.name} fails: {type(error).__name__}: {error}") from error
            if is_finite(drawing := check_drawing(drawn, env.name)):
                return paint(drawing, size)
        raise DeeprokError(f"the draw of {env.name} has places that are no finite numbers, in the first state already")

    return picture


class _Watched(Around):
    """A `Simulator` around another one, of which it keeps a picture after each step."""

    def __init__(self, inner: Simulator, stepped: Callable[[], None]) -> None:
        super().__init__(inner)
        self._stepped = stepped
        self.pictures: list[bytes] = []
        self.rewards: list[float] = []
        self.over = False

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode."""
        obs = self.inner.reset(seed, model)
        self._keep()
        return obs

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action."""
        outcome = self.inner.step(action)
        self.rewards.append(float(outcome.reward))
        self.over = bool(outcome.terminated) or self.truncated
        self._keep()
        self._stepped()
        return outcome

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """As the simulator within."""
        return self.inner.outcomes(action, models)

    def read(self) -> dict[str, np.ndarray] | None:
        """As the simulator within."""
        return self.inner.read()

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """As the simulator within."""
        self.inner.write(state, model)

    def _keep(self) -> None:
        """Keeps the present picture, compressed: those of a thousand steps would fill a gigabyte."""
        buffer = io.BytesIO()
        Image.fromarray(picture_of(self.inner)).save(buffer, "PNG", compress_level=1)
        self.pictures.append(buffer.getvalue())


def _simulator_player(run: Run, env: HostEnvironment, steps: int) -> Player:
    policy_of = weights_policy(run.network, run.env.actions, "mean")

    def play(model: Mapping[str, float], seed: int, epsilon: float, advance: Callable[[float], None]) -> Episode:
        made: list[_Watched] = []

        def make() -> Simulator:
            made.append(_Watched(env.make(), lambda: advance(1 / steps)))
            return made[-1]

        host_play = host_player(env._replace(horizon=steps, make=make, ahead=None), policy_of, episodes=1)
        host_play(run.weights[None], {name: np.array([value]) for name, value in model.items()}, epsilon, seed)
        (watched,) = made
        advance(max(0.0, 1.0 - len(watched.rewards) / steps))
        return Episode(np.array(watched.rewards), watched.over, _viewer(watched.pictures))

    return play


def _viewer(pictures: list[bytes]) -> Picture:
    """What shows pictures as large as there is room for."""

    def picture(step: int, size: tuple[int, int]) -> Image.Image:
        found = Image.open(io.BytesIO(pictures[step])).convert("RGB")
        share = min(size[0] / found.width, size[1] / found.height)
        fitting = found.resize((max(1, round(found.width * share)), max(1, round(found.height * share))))
        whole = Image.new("RGB", size, WHITE)
        whole.paste(fitting, ((size[0] - fitting.width) // 2, (size[1] - fitting.height) // 2))
        return whole

    return picture
