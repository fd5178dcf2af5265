"""Sensor noise, late actions, noisy parameters and memory around a stateful simulator; `wrappers` has them for JAX.

All random numbers of a step are decided by the seed of its episode and by its number, so that `outcomes` and `step`
have the same, and an episode that is put back goes on with its own. As in JAX, memory comes last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostEnvironment, HostOutcome, Simulator, model_of
from deeprok.environments.host_picture import picture_of
from deeprok.environments.past import Past, make_past, without_memory
from deeprok.environments.spaces import Interval
from deeprok.environments.wrappers import least_factor

#: Names of the wrappers' own parts of a state.
_DISTURBED = ("disturbed_episode", "disturbed_pending")
_SEEN = "remembered_seen"


class Disturbances(NamedTuple):
    """What disturbs a simulator."""

    blur: np.ndarray  # [D] standard deviation of the noise on each observation
    delay: int  # steps
    noise: Mapping[str, float]  # parameter -> standard deviation of its factor
    nominal: Mapping[str, float]  # parameter -> its value where a model does not give one
    least: Mapping[str, float | None]  # parameter -> its smallest factor
    sample: Callable[[np.random.Generator], np.ndarray]  # a random action


def disturbed_simulator(
    env: HostEnvironment, sensor_noise: float = 0.0, action_delay: int = 0, parameter_noise: Mapping[str, float] = {}
) -> HostEnvironment:
    """The environment with all that may disturb it; the environment itself if nothing does.

    Args:
      env: the environment.
      sensor_noise: standard deviation of the noise on each observation, in units of `observation_scale`.
      action_delay: steps by which each action is late; until the first one arrives, actions are random.
      parameter_noise: name -> standard deviation of the factor that it is multiplied by in each step.
    """
    noise = {name: deviation for name, deviation in parameter_noise.items() if deviation}
    if not (sensor_noise or action_delay or noise):
        return env
    if env.past:
        beneath = disturbed_simulator(without_memory(env), sensor_noise, action_delay, noise)
        return remembering_simulator(beneath, env.past.steps)
    if noise and env.branching != "restored":
        raise DeeprokError(
            f"parameter_noise is set, but {env.name} can't restore its state, which changing a parameter within an "
            "episode takes"
        )
    nominal = {f.name: float(getattr(env.nominal, f.name)) for f in dataclasses.fields(env.nominal)}
    changes = Disturbances(
        blur=sensor_noise * np.asarray(env.observation_scale),
        delay=action_delay,
        noise=noise,
        nominal=nominal | model_of(env, {}),
        least={name: least_factor(env.nominal, name) for name in noise},
        sample=action_sampler(env),
    )
    ahead = None if noise else _ahead_within(env)  # noise changes the parameters in the step itself
    return env._replace(make=lambda: DisturbedSimulator(env.make(), changes), branched=None, place=None, ahead=ahead)


def remembering_simulator(env: HostEnvironment, steps: int) -> HostEnvironment:
    """Lets each observation be followed by the last steps' observations and actions, as `Past` describes.

    Args:
      env: the environment.
      steps: K, how many steps are remembered; at most its horizon.
    """
    past = make_past(env, steps)
    return env._replace(
        make=lambda: RememberingSimulator(env.make(), past),
        observation_scale=past.widen(env.observation_scale),
        past=past,
        branched=None,
        place=None,
        ahead=_ahead_within(env),
    )


def _ahead_within(env: HostEnvironment) -> Any:
    """`HostEnvironment.ahead` of simulators around those of an environment."""
    within = env.ahead
    if within is None:
        return None

    def ahead(simulators: Sequence[Around], actions: Sequence[Any], models: Sequence[Mapping[str, np.ndarray]]) -> None:
        taken = [one.arrived(action) for one, action in zip(simulators, actions, strict=True)]
        within([one.inner for one in simulators], taken, models)

    return ahead


def action_sampler(env: HostEnvironment) -> Callable[[np.random.Generator], np.ndarray]:
    """What draws a random action."""
    if isinstance(env.actions, Interval):
        low, high = np.asarray(env.actions.low), np.asarray(env.actions.high)
        return lambda random: random.uniform(low, high)
    return lambda random: np.asarray(random.integers(len(env.actions)))


class Around:
    """What a `Simulator` around another one shows of that."""

    def __init__(self, inner: Simulator) -> None:
        self.inner = inner
        self.failures = inner.failures  # the very same

    def arrived(self, action: Any) -> Any:
        """The action that the simulator within takes."""
        return action

    @property
    def truncated(self) -> bool:
        """Whether the simulator itself has ended the episode."""
        return bool(getattr(self.inner, "truncated", False))

    def picture(self) -> np.ndarray:
        """What is seen of the simulation, as `deeprok.environments.host_picture` has it."""
        return picture_of(self.inner)


class DisturbedSimulator(Around):
    """A `Simulator` around another one, which is disturbed."""

    def __init__(self, inner: Simulator, changes: Disturbances) -> None:
        super().__init__(inner)
        self._changes = changes
        self._seed, self._t = 0, 0
        self._model: dict[str, float] = {}
        self._pending = np.zeros(0)  # [delay, …] the actions that are on their way, the next one first

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; the first observation, with its noise."""
        self._seed, self._t, self._model = int(seed), 0, dict(model)
        random = self._random(0)
        self._pending = np.stack([self._changes.sample(random) for _ in range(max(self._changes.delay, 1))])
        return self._blurred(self.inner.reset(seed, model))

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action that has arrived, on the model of the episode."""
        if self._changes.noise:
            self._set(self._noisy(self._model))
        outcome = self.inner.step(self.arrived(action))
        self._t += 1
        if self._changes.delay:
            self._pending = np.concatenate([self._pending[1:], np.asarray(action, self._pending.dtype)[None]])
        return HostOutcome(self._blurred(outcome.obs), outcome.reward, outcome.terminated)

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes under each of M models, all with the noise that the step has."""
        found = self.inner.outcomes(self.arrived(action), self._noisy_models(models))
        return HostOutcome(self._blurred(found.obs, 1), found.reward, found.terminated)

    def read(self) -> dict[str, np.ndarray] | None:
        """The simulator's state, the actions that are on their way, and which random numbers come next."""
        state = self.inner.read()
        if state is None:
            return None
        return {**state, _DISTURBED[0]: np.array([self._seed, self._t]), _DISTURBED[1]: self._pending.copy()}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""
        self.inner.write({name: array for name, array in state.items() if name not in _DISTURBED}, model)
        self._seed, self._t = (int(number) for number in state[_DISTURBED[0]])
        self._pending, self._model = np.array(state[_DISTURBED[1]]), dict(model)

    def _set(self, model: Mapping[str, float]) -> None:
        """Changes the simulator's parameters within the episode."""
        if hasattr(self.inner, "set"):
            self.inner.set(model)
            return
        state = self.inner.read()
        if state is None:
            raise DeeprokError("parameter_noise needs a simulator whose state can be read, or one with a method set")
        self.inner.write(state, model)

    def _random(self, purpose: int, later: int = 0) -> np.random.Generator:
        return np.random.default_rng((self._seed, self._t + later, purpose))

    def arrived(self, action: Any) -> Any:
        """The action that has arrived."""
        return self._pending[0] if self._changes.delay else action

    def _blurred(self, obs: np.ndarray, later: int = 0) -> np.ndarray:
        """Observations [D] or [M, D] with the noise of the present step, or of one that is still to be taken."""
        blur = self._changes.blur
        return obs + blur * self._random(1, later).standard_normal(len(blur)) if blur.any() else obs

    def _factors(self) -> dict[str, float]:
        random, found = self._random(2), {}
        for name, deviation in self._changes.noise.items():
            factor, least = 1.0 + deviation * random.standard_normal(), self._changes.least[name]
            found[name] = factor if least is None else max(factor, least)
        return found

    def _noisy(self, model: Mapping[str, float]) -> dict[str, float]:
        usual = self._changes.nominal
        return {**model, **{name: factor * model.get(name, usual[name]) for name, factor in self._factors().items()}}

    def _noisy_models(self, models: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if not self._changes.noise:
            return models  # the very same: a simulator may know them again
        count = len(next(iter(models.values())))
        usual = {**self._changes.nominal, **self._model}
        noisy = {
            name: factor * np.asarray(models[name] if name in models else np.full(count, usual[name]))
            for name, factor in self._factors().items()
        }
        return {**models, **noisy}


class RememberingSimulator(Around):
    """A `Simulator` around another one, whose observations are followed by the last steps."""

    def __init__(self, inner: Simulator, past: Past[HostEnvironment]) -> None:
        super().__init__(inner)
        self._past = past
        self._seen = np.zeros(0)  # [D + K·(D + A)] the last observation and its past

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; the first observation, without a past."""
        self._seen = self._past.begin(np.asarray(self.inner.reset(seed, model), float))
        return self._seen

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action on the model of the episode, with the past that the action is now a part of."""
        outcome = self.inner.step(action)
        self._seen = np.concatenate([outcome.obs, self._past.after(self._seen, action)])
        return outcome._replace(obs=self._seen)

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes under each of M models, all with the same past."""
        found, past = self.inner.outcomes(action, models), self._past.after(self._seen, action)
        return found._replace(obs=np.concatenate([found.obs, np.tile(past, (len(found.obs), 1))], axis=1))

    def read(self) -> dict[str, np.ndarray] | None:
        """The simulator's state, and what was seen."""
        state = self.inner.read()
        return None if state is None else {**state, _SEEN: self._seen.copy()}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""
        self.inner.write({name: array for name, array in state.items() if name != _SEEN}, model)
        self._seen = np.array(state[_SEEN], float)
