"""The guard that users hold: what it is asked after each step of the real system, and what it answers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment
from deeprok.environments.past import Past, without_memory
from deeprok.evaluation.guard import models, uncertainty
from deeprok.evaluation.guard.evidence import Evidence
from deeprok.evaluation.guard.likeliest import MOST_PASSES, climb_to_likeliest, passes_for, with_found
from deeprok.evaluation.guard.models import Bank, Segment, Watched
from deeprok.evaluation.guard.noise import GivenNoise, assumed_noise, with_noise, with_past
from deeprok.evaluation.guard.saved import flat, restored
from deeprok.identification.result import Identified, Noise
from deeprok.identification.surrogate import FailsError
from deeprok.runs.settings import Config

#: Steps of a segment at most. Parameters may differ from segment to segment.
_STEPS = 256
#: The most likely model of all is looked for after 4 steps of a segment, and when they have doubled.
_FIRST_LOOK = 4
#: How far an observation may differ from the one that was next a step before, of its typical size: files round.
_ROUNDING = 1e-5
#: Largest evidence that is told; what is larger is this.
_MOST = 1e300


@dataclass(frozen=True)
class GuardCheck:
    """What a guard says after a step."""

    alarm: bool
    """Whether the system has left the box. An alarm stays until `reset(forget=True)`."""
    parameters: float
    """Evidence from what was predicted: how many times as likely the past is outside the box than inside. Below the
    threshold it is but roughly known."""
    uncertainty: float | None
    """Evidence from the standard deviation of Q; None if the run has no posterior over Q."""
    threshold: float
    """The evidence, of either kind, that is an alarm."""
    reason: str
    """A sentence."""


class _State(NamedTuple):
    """All that a guard remembers."""

    bank: Bank
    segment: Segment
    parameters: Evidence
    uncertainty: Evidence
    score: float  # the largest deviation of Q in this segment
    scores: np.ndarray  # [J] those of the segments before
    past: np.ndarray  # of a policy with memory
    steps: int  # since the evidence began
    said: GuardCheck  # after the last step


class _Values(NamedTuple):
    """What the run's posterior says of Q."""

    deviation: Callable[[np.ndarray], np.ndarray]  # obs [D + past] -> [A]
    simulated: np.ndarray  # [M, E] scores of episodes in the box


class Guard:
    """Watches a real system, and says when it has left the box that a policy was made for.

    `Run.guard` makes one. While the system stays in the box, the probability that there is ever an alarm is at most
    `false_alarm`, if the noise is as assumed.

    Attributes:
      box: the ranges of the parameters.
      noise: the standard deviations that are assumed.
      assumes: where they are from, as a sentence.
      false_alarm: the probability of an alarm while the system is in the box.
      per: the steps that this is for; None for all.

    Example:
      >>> guard = deeprok.load("runs/rok").guard(identified="identified.json")
      >>> said = guard.check(obs, action, next_obs)
      >>> if said.alarm:
      ...     print(said.reason)
    """

    def __init__(
        self,
        env: AnyEnvironment,
        past: Past[Any] | None,
        watched: Watched,
        values: _Values | None,
        noise: Noise,
        assumes: str,
        false_alarm: float,
        per: int | None,
    ) -> None:
        self._env, self._past, self._watched, self._values = env, past, watched, values
        self.noise, self.assumes, self.false_alarm, self.per = noise, assumes, false_alarm, per
        self._size, self._length = len(env.observation_scale), min(env.horizon, _STEPS)
        self._scale, self.box = np.array(env.observation_scale), dict(env.box)
        self._state = self._fresh()
        self._compile()

    def __repr__(self) -> str:
        ranges = ", ".join(f"{name}={low:g}:{high:g}" for name, (low, high) in self.box.items())
        rate = f" per {self.per} steps" if self.per else ""
        return f"Guard({self._env.name} in {ranges}, false_alarm={self.false_alarm:g}{rate}; {self.assumes})"

    @property
    def _identity(self) -> str:
        """What its evidence is about, beside the weights: the environment, its box, the noise and the rate."""
        process, sensor = ([float(f"{x:.6g}") for x in each] for each in (self.noise.process, self.noise.sensor))
        return f"{self!r}, process noise {process}, sensor noise {sensor}"

    @property
    def threshold(self) -> float:
        """The evidence that is an alarm: 1/α for one source of it, 2/α for two."""
        return (2 if self._values else 1) / self.false_alarm

    def check(self, obs: Any, action: Any, next_obs: Any) -> GuardCheck:
        """Takes a step of the real system into account.

        Args:
          obs: what was observed before the action [D], also for a policy with memory. Where it is not what was
            observed after the step before, steps are missing, and a new episode begins.
          action: the action that acted: an index, or [A] numbers.
          next_obs: what was observed after it [D].
        """
        seen, following = self._observation("obs", obs), self._observation("next_obs", next_obs)
        done = self._action(action)
        segment = self._state.segment
        if self._state.said.alarm:
            return self._state.said
        if segment.steps and np.any(np.abs(segment.obs[segment.steps] - seen) > _ROUNDING * self._scale):
            self._end_episode(passes_for(segment.steps))
        elif segment.steps == self._length:
            self._close(passes_for(self._length))
        self._observe(seen, done)
        try:
            with jax.enable_x64(True):
                said = self._said(self._take_step(seen, done, following))
        except FailsError:
            self._close(passes_for(segment.steps))
            left_out = f"this step is left out: {self._env.name} fails in it, under a model of the box or around it"
            return dataclasses.replace(self._state.said, reason=left_out)
        self._state = self._state._replace(said=said)
        return said

    def reset(self, forget: bool = False) -> None:
        """Begins a new episode.

        The evidence of the episodes before stays, since it is about the system. Each episode may have another model of
        the box, as in training.

        Args:
          forget: begin a new deployment: forget all evidence, and an alarm. Do so after the system was repaired, or is
            another one.
        """
        if forget:
            self._state = self._fresh()
        else:
            self._end_episode()

    def to_dict(self) -> dict[str, Any]:
        """All that it remembers, as plain numbers, texts and arrays of numpy."""
        return {"of": self._identity, **flat("", self._state)}

    def from_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `to_dict` gave, of a guard of the same run with the same settings."""
        of = str(saved["of"]) if "of" in saved else "no guard"
        if of != self._identity:
            raise DeeprokError(
                f"saved is of {of}; it must be what to_dict of a guard of the same run gave, {self._identity}"
            )
        self._state = restored(saved, self._fresh())

    # --- the evidence ----------------------------------------------------------------------------------------------

    def _fresh(self) -> _State:
        actions = self._env.actions
        return _State(
            bank=self._watched.first,
            segment=self._watched.empty(
                self._length, np.zeros(len(actions)) if actions.continuous else np.zeros((), np.int32)
            ),
            parameters=Evidence(),
            uncertainty=Evidence(),
            score=0.0,
            scores=np.zeros(0),
            past=np.zeros(self._past.size if self._past else 0),
            steps=0,
            said=GuardCheck(False, 1.0, 1.0 if self._values else None, self.threshold, "nothing was seen yet"),
        )

    def _compile(self) -> None:
        """Takes a step and looks for the best model, so that the first steps of the real system are not the slowest."""
        state, watched = self._state, self._watched
        with jax.enable_x64(True):
            segment = state.segment._replace(steps=1)
            bank = models.advance(watched, models.begin(watched, state.bank, segment.obs[0]), segment)
            climb_to_likeliest(watched, bank, segment, in_box=True)
        self._deviation(segment.obs[0], segment.action[0])

    def _observe(self, obs: np.ndarray, action: np.ndarray) -> None:
        """Takes the uncertainty of Q into account, and what a policy with memory remembers."""
        state = self._state
        score = max(state.score, self._deviation(obs, action))
        past = state.past
        if self._past:
            past = np.asarray(self._past.after(np.concatenate([obs, past]), action))
        self._state = state._replace(score=score, past=past)

    def _deviation(self, obs: np.ndarray, action: np.ndarray) -> float:
        if not self._values:
            return 0.0
        return float(self._values.deviation(np.concatenate([obs, self._state.past]))[int(action)])

    def _take_step(self, obs: np.ndarray, action: np.ndarray, following: np.ndarray) -> float:
        """Takes what was predicted into account; the logarithm of its evidence."""
        state, watched = self._state, self._watched
        segment = models.extended(watched, state.segment, obs, action, following)
        steps, passes = segment.steps, passes_for(segment.steps)
        bank = models.advance(watched, state.bank if steps > 1 else models.begin(watched, state.bank, obs), segment)
        evidence = state.parameters.log_with(models.log_e_value(watched, bank, steps))
        if evidence >= np.log(self.threshold):
            found = climb_to_likeliest(watched, bank, segment, in_box=True, passes=passes)
            bank = with_found(watched, bank, found, steps, in_box=True)
            evidence = state.parameters.log_with(models.log_e_value(watched, bank, steps, found.bound))
        elif _look_after(steps):
            found = climb_to_likeliest(watched, bank, segment, in_box=False, passes=passes)
            bank = with_found(watched, bank, found, steps, in_box=False)
        self._state = state._replace(bank=bank, segment=segment, steps=state.steps + 1)
        return evidence

    def _said(self, log_evidence: float) -> GuardCheck:
        parameters, of_q = _number(log_evidence), None
        if self._values:
            of_q = _number(self._state.uncertainty.log_with(self._log_e_value_of_q()))
        left, unsure = parameters >= self.threshold, of_q is not None and of_q >= self.threshold
        if left:
            reason = self._what_left(parameters)
        elif unsure:
            usual = np.quantile(self._values.simulated, 0.95)  # type: ignore[union-attr]
            reason = (
                f"the policy is where it knows little: the standard deviation of Q reached {self._state.score:.3g} in "
                f"this episode, and on models of the box {usual:.3g} or less in 95 % of them"
            )
        else:
            reason = f"nothing says that the system has left the box: the evidence is below {self.threshold:g}"
        return GuardCheck(left or unsure, parameters, of_q, self.threshold, reason)

    def _what_left(self, evidence: float) -> str:
        bank, watched = self._state.bank, self._watched
        k, scale = np.unravel_index(np.argmax(bank.weight), bank.weight.shape)
        times = f"the system has left the box: outside, what was seen is {evidence:.3g} times as likely"
        if (larger := models.noise_scale(int(scale))) > models.NOISE_UP_TO:
            return f"{times}, with errors about {larger:g} times as large as the noise, which no parameters explain"
        best = watched.theta(bank.x[k])
        beyond = [
            f"{name}={value:.3g} (box {low:g} to {high:g})"
            for (name, value), (low, high) in zip(best.items(), self.box.values(), strict=True)
            if not low <= value <= high
        ]
        return f"{times}, for example with {' and '.join(beyond)}" if beyond else times

    def _log_e_value_of_q(self) -> float:
        assert self._values
        return uncertainty.log_e_value(self._state.score, self._state.scores, self._values.simulated)

    def _end_episode(self, passes: int = MOST_PASSES) -> None:
        """Ends the segment, and begins an episode without a past."""
        self._close(passes)
        state = self._state
        self._state = state._replace(past=np.zeros_like(state.past), segment=state.segment._replace(steps=0))

    def _close(self, passes: int) -> None:
        """Ends the segment: what it said is kept as evidence, for which its best model of the box must be known."""
        state, watched, steps = self._state, self._watched, self._state.segment.steps
        if not steps or state.said.alarm:
            return
        with jax.enable_x64(True):
            found = climb_to_likeliest(watched, state.bank, state.segment, in_box=True, passes=passes)
            bank = with_found(watched, state.bank, found, steps, in_box=True)
            log_value = models.log_e_value(watched, bank, steps, found.bound)
        of_q = state.uncertainty.after(self._log_e_value_of_q()) if self._values else state.uncertainty
        self._state = state._replace(
            bank=bank,
            segment=state.segment._replace(steps=0),
            parameters=state.parameters.after(log_value),
            uncertainty=of_q,
            score=0.0,
            scores=np.append(state.scores, state.score),
        )
        if self.per and state.steps >= self.per:
            self._state = self._state._replace(parameters=Evidence(), uncertainty=Evidence(), steps=0)

    # --- what is given ---------------------------------------------------------------------------------------------

    def _observation(self, name: str, given: Any) -> np.ndarray:
        try:
            numbers = np.asarray(given, float)
        except (TypeError, ValueError):
            raise DeeprokError(f"{name} is {shown(given)}; it must be {self._size} numbers") from None
        if numbers.shape != (self._size,):
            raise DeeprokError(
                f"{name} has shape {numbers.shape}; {self._env.name} has {self._size} observations, so it must be "
                f"[{self._size}]"
            )
        if not np.isfinite(numbers).all():
            raise DeeprokError(
                f"{name} is {shown(numbers.tolist())}; observations must be finite numbers, so leave such a step out: "
                "the guard then begins a new episode"
            )
        return numbers

    def _action(self, given: Any) -> np.ndarray:
        actions = self._env.actions
        try:
            numbers = np.asarray(given, float)
        except (TypeError, ValueError):
            numbers = np.array(np.nan)
        if actions.continuous:
            size = len(actions)
            fits = numbers.shape == (size,) and bool(np.all(np.abs(np.asarray(actions.encode(numbers))) <= 1 + 1e-5))  # type: ignore[arg-type]
            allowed = f"{size} numbers between the ends of {shown(actions.describe()['interval'])}"
        else:
            fits = numbers.shape == () and float(numbers) in range(len(actions))
            allowed = f"a whole number from 0 to {len(actions) - 1}"
        if not fits:
            raise DeeprokError(f"action is {shown(given)}; in {self._env.name} it must be {allowed}")
        return numbers if actions.continuous else numbers.astype(np.int32)


def _look_after(steps: int) -> bool:
    return steps >= _FIRST_LOOK and steps & (steps - 1) == 0


def _number(log: float) -> float:
    return float(np.exp(min(log, np.log(_MOST))))


# --- how it is made ------------------------------------------------------------------------------------------------


def make_guard(
    settings: Config,
    env: AnyEnvironment,
    greedy: Callable[[jax.Array], jax.Array],
    values: Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None,
    false_alarm: float,
    noise: GivenNoise | None,
    identified: str | os.PathLike[str] | Identified | None,
    per: int | None,
    advance: Callable[[float], None] | None = None,
) -> Guard:
    """A guard for a trained policy.

    Args:
      settings: of the run.
      env: its environment.
      greedy: its policy, for observations [E, D].
      values: mean and deviation of its Q-values; None if it has no posterior over them.
      false_alarm: as for `Run.guard`, with all that follows.
      noise: standard deviations.
      identified: what they are taken from instead.
      per: steps.
      advance: called with the fraction of the work done since its last call.
    """
    if not 0 < false_alarm < 1:
        raise DeeprokError(f"false_alarm is {shown(false_alarm)}; it must be above 0 and below 1")
    if per is not None and per < 1:
        raise DeeprokError(f"per is {shown(per)}; it must be a number of steps, at least 1")
    box = {name: (float(low), float(high)) for name, (low, high) in settings.make_box(env).items()}
    if not box:
        raise DeeprokError(f"{env.name} has no box of uncertain parameters, so that no system can leave it")
    # What disturbed the training is no part of the system: the guard has a noise of its own, and is told what acted.
    seen = settings.disturbed(sensor_noise=0.0, action_delay=0).make_env()
    plain: AnyEnvironment = (without_memory(seen) if seen.past else seen)._replace(box=box)
    if isinstance(plain, HostEnvironment) and settings.parameter_noise:
        raise DeeprokError(
            f"parameter_noise is {shown(settings.parameter_noise)}, which makes {plain.name} itself random; a guard "
            "takes such environments in JAX only"
        )
    known, assumes = assumed_noise(plain, settings.env, settings.sensor_noise, noise, identified)
    with jax.enable_x64(True):
        watched = models.watch(plain, box, known)
    if watched.wrong > models.WRONG:
        assumes += (
            f"; what {plain.name} predicts is interpolated with an error of about {100 * watched.wrong:.0f} % of the "
            "noise, which counts as noise"
        )
    of_q = None
    if values:
        deviation, noisy = values, with_noise(plain, known)
        with settings.arithmetic():
            if seen.past:
                noisy = with_past(noisy, seen.past.steps)
            scores = uncertainty.simulated_scores(noisy, box, greedy, values, advance or (lambda part: None))

        def deviations(obs: np.ndarray) -> np.ndarray:
            with settings.arithmetic():
                return np.asarray(deviation(jnp.asarray(obs[None], settings.precision))[1][0])

        of_q = _Values(deviations, scores)
    return Guard(plain, seen.past, watched, of_q, known, assumes, float(false_alarm), per)
