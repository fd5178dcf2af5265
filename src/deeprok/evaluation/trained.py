"""Trained runs, for notebooks: act, ask for Q-values and their uncertainty, read metrics and evaluations."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import View
from deeprok.agents.network import Network
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.environments import Past
from deeprok.environments.base import AnyEnvironment
from deeprok.evaluation import stored
from deeprok.evaluation.guard import Guard, make_guard
from deeprok.evaluation.guard.noise import GivenNoise
from deeprok.evaluation.result import Evaluation
from deeprok.identification.result import Identified
from deeprok.runs import folder as runs
from deeprok.runs import metrics
from deeprok.runs.folder import KEEPS, Keep
from deeprok.runs.metrics import Metrics
from deeprok.runs.settings import Config


def load(path: str | os.PathLike[str], seed: int | None = None, keep: Keep = "best") -> Run:
    """Loads a trained run.

    Args:
      path: a run folder or a folder of seeds. Of several seeds, the run that did best in its trials on held-out models
        is loaded, unless `seed` names another.
      seed: the seed of the run to load.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones.

    Example:
      >>> run = deeprok.load("runs/rok")
      >>> run.act([0.0, 0.1, 0.02, -0.3])
      np.int64(0)
    """
    if keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)
    if not isinstance(path, str | os.PathLike):
        raise DeeprokError(f"path is {shown(path)}; it must be the path of a run folder, or of a folder of seeds")
    found = {folder: runs.read_config(folder) for folder in runs.find(Path(path))}
    if seed is not None:
        seeds = sorted(config.seed for config in found.values())
        found = {folder: config for folder, config in found.items() if config.seed == seed}
        if not found:
            raise DeeprokError(f"seed is {shown(seed)}; {path} has {', '.join(map(str, seeds))}")
    if len({config.digest() for config in found.values()}) > 1:
        raise DeeprokError(f"the runs in {path} differ in more than their seed; load them one by one")
    folders = list(found)
    config = found[folders[0]]
    with config.arithmetic():
        learner = config.make_learner()
        if len(folders) > 1:  # a seed that has not got to its first checkpoint is not the best one
            started = [folder for folder in folders if (folder / runs.CHECKPOINT).exists()]
            folders = sorted(started, key=lambda folder: -runs.best_trial(folder, learner)) or folders
        belief = runs.load_belief(folders[0], learner, keep)
    return Run(folders[0], found[folders[0]], keep, _agent_of(learner.view, belief))


class _Agent(NamedTuple):
    """All that a `Run` uses of the trained agent. Its functions are jitted, for batches of observations [E, D]."""

    env: AnyEnvironment
    network: Network
    weights: np.ndarray  # [n] the mean θ
    greedy: Callable[[jax.Array], jax.Array]  # obs -> actions [E], or [E, A] numbers
    explore: Callable[[jax.Array, jax.Array, float], jax.Array]  # (key, obs, ε) -> actions, ε-greedy
    q: Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None  # obs -> mean and deviation of Q [E, A]
    sample: Callable[[jax.Array], jax.Array] | None  # key -> θ
    remember: Callable[[jax.Array, jax.Array], jax.Array] | None  # (obs, actions) -> the past that follows; see `Past`


def _agent_of(view: View, belief: Any) -> _Agent:
    env, network, values, posterior = view.env, view.network, view.values, view.posterior
    theta = view.mean(belief)

    def greedy(obs: jax.Array) -> jax.Array:
        return env.actions.choose(network.apply(theta, obs))

    def explore(key: jax.Array, obs: jax.Array, epsilon: float) -> jax.Array:
        draws = jax.random.uniform(key, (len(obs), env.actions.draws))
        return jax.vmap(lambda draw, best: env.actions.explore(draw, epsilon, best))(draws, greedy(obs))

    return _Agent(
        env=env,
        network=network,
        weights=np.asarray(theta),
        greedy=jax.jit(greedy),
        explore=jax.jit(explore),
        q=jax.jit(lambda obs: values(belief, obs)) if values else None,
        sample=jax.jit(lambda key: posterior.sample(belief, key)) if posterior else None,
        remember=jax.jit(jax.vmap(env.past.after)) if env.past else None,
    )


class Run(os.PathLike[str]):
    """A trained run, as `deeprok.load` and `deeprok.train` give it.

    It stands for its folder wherever a path is asked for: `deeprok.evaluate(run)`, `deeprok.calibrate(run)`.

    Attributes:
      folder: the run folder.
      settings: the settings it was trained with.
      keep: which of its weights act, the `best` or the `last`.

    Example:
      >>> run = deeprok.load("runs/rok")
      >>> obs = [0.0, 0.1, 0.02, -0.3]
      >>> action, _ = run.predict(obs)  # as in stable-baselines3
      >>> mean, std = run.q_values(obs)
      >>> run.settings.algorithm
      'deep_rok'
      >>> lately = run.metrics.returns[-10:].mean()
    """

    folder: Path
    settings: Config
    keep: Keep

    def __init__(self, folder: Path, settings: Config, keep: Keep, agent: _Agent) -> None:
        self.folder, self.settings, self.keep = folder, settings, keep
        self._agent, self._calls = agent, 0

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.settings.algorithm} on {self.env.name}, {self.keep} weights)"

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def env(self) -> AnyEnvironment:
        """The environment, with the run's nominal parameters.

        The observations of a run with memory have the past in them; the environment without is `env.past.env`.
        """
        return self._agent.env

    @property
    def network(self) -> Network:
        """The network: `run.network.apply(run.weights, obs)` are its outputs, one for each action."""
        return self._agent.network

    def act(self, obs: Any) -> Any:
        """The greedy action: the largest mean Q-value, or the mode of a policy.

        Args:
          obs: an observation [D], or a batch of them [E, D]. Of a run with memory it is one of `run.env`, with the past
            in it; `predict` keeps the past by itself.

        Returns:
          The index of the action, or [E] of them; [A] or [E, A] numbers where actions are continuous.
        """
        with self.settings.arithmetic():
            batch, single = self._batch(obs, len(self.env.observation_scale))
            return _plain(self._agent.greedy(batch), single)

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """The action for an observation, with the signature of stable-baselines3's `predict`.

        Args:
          obs: an observation [D], or a batch of them [E, D]; also of a run with memory, without the past.
          state: the state that the last call returned, or None at the start. The past of a run with memory: an array,
            or [E, …] for a batch. A run without memory returns it as it is.
          episode_start: whether each episode begins with this observation, true or false or [E] of them; its past is
            then empty. A run without memory ignores it.
          deterministic: act greedily. If false, act ε-greedily, as the trials on held-out models do: with probability
            `settings.trial_epsilon` the action is a uniformly random one. Calls differ; a run that is loaded again
            repeats them. To act on a draw from the posterior instead, see `sample_weights`.

        Returns:
          The action, or an array of actions, and the state for the next call, which takes the action to be done.
        """
        past = self.env.past
        with self.settings.arithmetic():
            batch, single = self._batch(obs, past.observations if past else len(self.env.observation_scale))
            if past:
                batch = jnp.concatenate([batch, self._past(past, state, episode_start, len(batch), single)], axis=1)
            if deterministic:
                actions = self._agent.greedy(batch)
            else:
                key = jax.random.fold_in(jax.random.key(self.settings.seed), self._calls)
                self._calls += 1
                actions = self._agent.explore(key, batch, self.settings.trial_epsilon)
            if self._agent.remember:
                state = _plain(self._agent.remember(batch, actions), single)
            return _plain(actions, single), state

    def q_values(self, obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of Q under the posterior over the weights; a point estimate's deviation is 0.

        Args:
          obs: an observation [D], or a batch of them [E, D], as for `act`.

        Returns:
          Two arrays [A], or [E, A], with an entry for each action.
        """
        if self._agent.q is None:
            raise DeeprokError(f"{self.settings.algorithm} learns a policy and has no Q-values; use act or predict")
        with self.settings.arithmetic():
            batch, single = self._batch(obs, len(self.env.observation_scale))
            mean, deviation = (np.asarray(part) for part in self._agent.q(batch))
        return (mean[0], deviation[0]) if single else (mean, deviation)

    @property
    def weights(self) -> np.ndarray:
        """The mean θ [n] of the posterior over the network's weights, or the point estimate."""
        return self._agent.weights.copy()

    def sample_weights(self, key: int | jax.Array) -> np.ndarray:
        """A draw θ [n] from the posterior over the network's weights.

        Args:
          key: a seed, or a key of `jax.random`; the same one gives the same draw.
        """
        if self._agent.sample is None:
            raise DeeprokError(
                f"{self.settings.algorithm} has no posterior to sample from; its weights are run.weights"
            )
        if isinstance(key, int | np.integer) and not 0 <= key < 2**32:
            raise DeeprokError(f"key is {key}; a seed must be from 0 to 4294967295")
        with self.settings.arithmetic():
            return np.asarray(self._agent.sample(jax.random.key(key) if isinstance(key, int | np.integer) else key))

    @property
    def metrics(self) -> Metrics:
        """What training has written so far: arrays by name, and the return of each episode."""
        return metrics.read(self.folder)

    @property
    def evaluation(self) -> Evaluation | None:
        """The stored evaluation of these weights with the default options; None if there is none.

        `deeprok evaluate RUN` stores it, and so does `deeprok.evaluate(run, save=True)`.
        """
        return stored.read(self.folder, self.keep)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All stored evaluations of the run, the newest first, whichever weights they are of.

        Each is called by the name that it was given, or else by the options that differ from the default ones, as in
        `episodes=100`. That of the default options is `default`.
        """
        files = stored.stored_files([self.folder])
        return {stored.label_of(file): stored.read_stored([self.folder], file) for file in files}

    def guard(
        self,
        false_alarm: float = 0.01,
        *,
        noise: GivenNoise | None = None,
        identified: str | os.PathLike[str] | Identified | None = None,
        per: int | None = None,
        advance: Callable[[float], None] | None = None,
    ) -> Guard:
        """A guard that watches the real system, and says when it has left the box that the policy was trained for.

        Args:
          false_alarm: the probability that there is ever an alarm while the system is in the box.
          noise: standard deviations of the sensors' noise, one for each observation; or {"sensor": …, "process": …}, of
            which the latter is what the system itself adds in each step.
          identified: what `deeprok.identify` has found, or its file, for the noise. Without both a noise is assumed,
            which `Guard.assumes` tells.
          per: steps after which the evidence begins anew, so that `false_alarm` is the probability of an alarm in so
            many steps; None for the whole deployment.
          advance: called with the fraction of the work done since its last call. It takes a while where the run has a
            posterior over Q and a simulator plays episodes for it.
        """
        values, greedy = self._agent.q if self._agent.sample else None, self._agent.greedy
        return make_guard(self.settings, self.env, greedy, values, false_alarm, noise, identified, per, advance)

    def _batch(self, obs: Any, size: int) -> tuple[jax.Array, bool]:
        """Observations [E, size] in the run's precision, and whether there was but one."""
        past = self.env.past
        given = self._numbers("obs", obs, size)
        if given.ndim not in (1, 2) or given.shape[-1] != size:
            whole = past and size != past.observations
            name = f"{self.env.name} with a memory of {past.steps} steps" if past and whole else self.env.name
            hint = "; use predict for observations without the past, which it keeps as its state" if whole else ""
            raise DeeprokError(
                f"obs has shape {given.shape}; {name} has {size} observations, so it must be [{size}], "
                f"or [E, {size}] for several at once{hint}"
            )
        if not np.isfinite(given).all():
            raise DeeprokError(f"obs is {shown(given.tolist())}; observations must be finite numbers")
        return jnp.asarray(np.atleast_2d(given)), given.ndim == 1

    def _past(self, past: Past[Any], state: Any, episode_start: Any, episodes: int, single: bool) -> jax.Array:
        """The past [E, …] of episodes, which is empty for those that begin."""
        size = past.size
        given = self._numbers("state", np.zeros((episodes, size)) if state is None else state, size)
        wanted = f"[{size}]" if single else f"[{episodes}, {size}]"
        if given.shape != (episodes, size) and not (single and given.shape == (size,)):
            raise DeeprokError(f"state has shape {given.shape}; it must be {wanted}, as predict returned it")
        if not np.isfinite(given).all():
            raise DeeprokError(f"state is {shown(given.tolist())}; it must be finite numbers, as predict returned them")
        begins = np.asarray(False if episode_start is None else episode_start, object)
        if begins.shape not in ((), (episodes,)) or not all(isinstance(flag, bool | np.bool_) for flag in begins.flat):
            several = "" if single else f", or {episodes} of them"
            raise DeeprokError(f"episode_start is {shown(episode_start)}; it must be true or false{several}")
        return jnp.asarray(np.where(begins.astype(bool).reshape(-1, 1), 0.0, given.reshape(episodes, size)), float)

    def _numbers(self, name: str, given: Any, size: int) -> np.ndarray:
        """Numbers in the run's precision, of any shape."""
        try:
            with np.errstate(over="ignore"):
                return np.asarray(given, self.settings.precision)
        except (TypeError, ValueError, OverflowError):
            raise DeeprokError(
                f"{name} is {shown(given)}; it must be numbers, of shape [{size}] or [E, {size}]"
            ) from None


def _plain(found: jax.Array, single: bool) -> Any:
    """What was computed for a batch as numpy has it; of one observation alone."""
    values = np.asarray(found)
    values = values.astype(np.int64) if values.dtype.kind == "i" else values
    return values[0] if single else values
