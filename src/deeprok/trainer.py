"""The loop over chunks: metrics, trials, checks, checkpoints and interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from deeprok import checkpoint, runs
from deeprok.config import Config, KalmanConfig, PolicyConfig, UnscentedConfig
from deeprok.errors import DeeprokError
from deeprok.estimators import Health
from deeprok.evaluation import ensemble_policy, play_episodes
from deeprok.exploration import linear_epsilon
from deeprok.runs import Best
from deeprok.training import Log, Program, RunState, make_program
from deeprok.types import select
from deeprok.uncertainty import sample_box

#: Called after each chunk with the folder and the line added to its `metrics.jsonl`.
Report = Callable[[Path, dict[str, Any]], None]

_CHECKPOINT_SECONDS = 30.0
_TRIAL_SEED = 20170307  # the same held-out models and episodes for every run


def train_together(folders: Sequence[Path], report: Report | None = None) -> None:
    """Trains runs that differ by their seeds only, in step, until each has done its episodes.

    Starts each from its checkpoint or from nothing. Writes a checkpoint every half minute, at the
    end, and when interrupted (Ctrl-C or SIGTERM), after which it raises `KeyboardInterrupt`.
    A run that breaks down stops at its last good checkpoint; the others go on, and a
    `DeeprokError` is raised at the end.

    Args:
      folders: run folders with equal settings but for the seed, all at the same step.
      report: called after each chunk, for each run that took part in it.
    """
    configs = [runs.read_config(folder) for folder in folders]
    with configs[0].arithmetic():
        _train_together(folders, configs, report)


def _train_together(folders: Sequence[Path], configs: Sequence[Config], report: Report | None) -> None:
    config = configs[0]
    program = make_program(config)
    states, best = _start(folders, configs, program)
    trial = _make_trial(config, program)
    look = _make_look(program)
    broken: dict[int, str] = {}
    steps = np.array(states.steps)  # a copy, as the states are donated
    t = program.clock(states)
    saved = time.monotonic()
    with interruptions() as interrupted:
        while True:
            active = [i for i in _unfinished(states, config) if i not in broken]
            if not active:
                break
            began = time.monotonic()
            states, log = program.chunk(states, t)
            chunk = t // config.chunk_steps
            t += config.chunk_steps
            unfinished = _unfinished(states, config)
            # Each run is tried when it would be if it ran alone: regularly, and when it has finished.
            due = [i for i in active if (chunk + 1) % config.trial_every == 0 or i not in unfinished]
            if due:
                scores = trial(states.agent.belief)
                tried = jnp.zeros(len(folders), bool).at[jnp.array(due)].set(True)
                best = _better(best, states.agent.belief, scores, states.steps, tried)
            spread = look(states.agent.belief)
            before, steps = steps, np.array(states.steps)
            seconds = time.monotonic() - began
            for i in active:
                problem = _breakdown(states, log, spread, i, program, config)
                if problem:
                    kept = progress_of(folders[i])[0]
                    left = f"{folders[i]} keeps its checkpoint of step {kept}" if kept else "it had no checkpoint yet"
                    where = f"seed {configs[i].seed}: between steps {before[i]} and {steps[i]}"
                    broken[i] = f"{where} {problem}, in a new run ({left})"
                    continue
                line = _metrics(states, log, spread, i, config, seconds)
                if i in due:
                    line["trial_return"] = float(scores[i])
                runs.append_metrics(folders[i], line)
                if report:
                    report(folders[i], line)
            overdue = time.monotonic() - saved > _CHECKPOINT_SECONDS or interrupted.is_set()
            for i in active:
                if i not in broken and (overdue or i not in unfinished):
                    _save(folders[i], states, best, i)
            if overdue:
                saved = time.monotonic()
            if interrupted.is_set():
                raise KeyboardInterrupt
    if broken:
        raise DeeprokError(*broken.values())


def _start(folders: Sequence[Path], configs: Sequence[Config], program: Program) -> tuple[RunState, Best]:
    """The runs' states, stacked along a first axis of seeds."""
    run_template, best_template = runs.templates(program)
    init = jax.jit(program.init)
    pairs = []
    for folder, config in zip(folders, configs, strict=True):
        path = folder / runs.CHECKPOINT
        if path.exists():
            run = checkpoint.load(path, "run", run_template)
            best = checkpoint.load(path, "best", best_template)
        else:
            run = init(jax.random.key(config.seed), runs.load_prior(folder, program))
            # Until the first trial there is nothing better than the prior.
            best = Best(
                belief=run.agent.belief,
                trial_return=jnp.full((), -jnp.inf, best_template.trial_return.dtype),
                steps=jnp.int32(0),
            )
        # A crash may have come between metrics and checkpoint: forget what will be done again.
        runs.trim_metrics(folder, int(run.steps))
        pairs.append((run, best))
    # Stacked on the host and copied to the device, so that no two donated buffers are the same.
    stacked: tuple[RunState, Best] = jax.tree.map(lambda *leaves: jnp.array(np.stack(leaves)), *pairs)
    return stacked


def _make_trial(config: Config, program: Program) -> Callable[[Any], jax.Array]:
    """A function `beliefs -> [S]` mean returns on held-out models drawn from the box."""
    models_key, episodes_key = jax.random.split(jax.random.key(_TRIAL_SEED))
    box = config.make_box(program.world)

    def trial(belief: Any) -> jax.Array:
        theta = program.estimator.mean(belief)
        policy = ensemble_policy(program.network, theta[None], "mean")
        models = sample_box(models_key, box, (config.trial_models,))
        return jnp.mean(play_episodes(program.world, policy, models, episodes_key, config.trial_epsilon))

    return jax.jit(jax.vmap(trial))


@jax.jit
def _better(best: Best, beliefs: Any, scores: jax.Array, steps: jax.Array, tried: jax.Array) -> Best:
    """The better of the best so far and, where it was tried, the present belief of each seed."""
    present = Best(belief=beliefs, trial_return=scores, steps=steps)
    return jax.vmap(select)(tried & (scores > best.trial_return), present, best)


def _unfinished(states: RunState, config: Config) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.asarray(states.episodes) < config.episodes)]


def _epsilon(steps: int, config: Config) -> float:
    if config.explore != "epsilon" or isinstance(config.estimator, PolicyConfig):
        return 0.0
    return float(linear_epsilon(steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps))


class Spread(NamedTuple):
    """How wide the beliefs of several seeds are."""

    trace: jax.Array  # [S] of P
    least: jax.Array  # [S] least variance of a weight
    largest: jax.Array  # [S]
    definite: jax.Array  # [S] bool


def _make_look(program: Program) -> Callable[[Any], Spread | None]:
    """A function `beliefs -> Spread` for posteriors; None for points."""
    posterior = program.estimator.posterior

    def look(belief: Any) -> Spread | None:
        if posterior is None:
            return None
        variances = posterior.variances(belief)
        return Spread(jnp.sum(variances), jnp.min(variances), jnp.max(variances), posterior.definite(belief))

    return jax.jit(jax.vmap(look))


def _metrics(
    states: RunState,
    log: Log,
    spread: Spread | None,
    i: int,
    config: Config,
    seconds: float,
) -> dict[str, Any]:
    """A line of `metrics.jsonl` for the i-th run's chunk."""
    after = int(states.steps[i])
    returns = np.asarray(log.earned[i])[np.asarray(log.ended[i])]
    updates = np.asarray(log.learned[i])
    line: dict[str, Any] = {
        "steps": after,
        "episodes": int(states.episodes[i]),
        "returns": returns.tolist(),
        "epsilon": _epsilon(after, config),
        "seconds": round(seconds, 3),
    }
    if len(losses := np.asarray(log.fit.loss[i])[updates]):
        line["loss"] = float(losses.mean())
        if log.fit.health:
            health = jax.tree.map(lambda column: np.asarray(column[i])[updates], log.fit.health)
            line |= _health(health, len(losses) * config.batch_size)
    if spread:
        line |= {"trace": float(spread.trace[i]), "variances": [float(spread.least[i]), float(spread.largest[i])]}
    if isinstance(config.estimator, KalmanConfig) and config.estimator.adapt_noise:
        line["observation_noise"] = float(states.agent.belief.observation_noise[i])
    return line


def _health(health: Health, observations: int) -> dict[str, Any]:
    """What the metrics tell of a Kalman belief's updates in a chunk."""
    low, high = stats.chi2.ppf((0.025, 0.975), observations) / observations
    return {
        "innovation_variance": float(health.variance.min()),
        "consistency": float(health.consistency.mean()),
        "consistency_band": [float(low), float(high)],
        "gain": float(health.gain.mean()),
        "capped": int(health.capped.max()),
        "floored": int(health.floored.sum()),
    }


def _breakdown(
    states: RunState, log: Log, spread: Spread | None, i: int, program: Program, config: Config
) -> str | None:
    """What is wrong with the i-th run after a chunk, and what to change; None if nothing is."""
    belief = jax.tree.map(lambda leaf: leaf[i], states.agent.belief)
    updates = np.asarray(log.learned[i])
    loss = np.asarray(log.fit.loss[i])[updates]
    settings = config.estimator
    if isinstance(settings, KalmanConfig | UnscentedConfig):
        remedy = f"raise --observation-noise (now {settings.observation_noise:g})"
    elif isinstance(settings, PolicyConfig) and settings.inner == "natural":
        remedy = f"lower --kl-bound (now {settings.kl_bound:g})"
    else:
        remedy = f"lower --learning-rate (now {settings.learning_rate:g})"
    # Weights that are no numbers spoil later variances too; it is the variance's fault if the
    # innovation was still a number.
    if log.fit.health:
        variance = np.asarray(log.fit.health.variance[i])[updates]
        if (bad := ~(variance > 0) & np.isfinite(loss)).any():
            return f"an innovation variance was not positive ({variance[bad][0]:g}); {remedy}"
    if not np.isfinite(np.asarray(program.estimator.mean(belief))).all():
        return f"the weights became infinite or not a number; {remedy}"
    if spread and not spread.definite[i]:
        if isinstance(settings, KalmanConfig | UnscentedConfig):
            return f"the covariance stopped being positive definite; {remedy} or --process-noise"
        return f"the belief over the weights stopped being a distribution; {remedy}"
    return None


def _save(folder: Path, states: RunState, best: Best, i: int) -> None:
    run, kept = jax.tree.map(lambda leaf: np.asarray(leaf[i]), (states, best))
    checkpoint.save(folder / runs.CHECKPOINT, {"run": run, "best": kept})


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that a chunk is never cut in two."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach the main thread only
        return

    def note(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt  # asked twice: at once, with the last checkpoint
        event.set()

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def progress_of(folder: Path) -> tuple[int, int]:
    """Steps and episodes that a run's checkpoint holds; zeros if it has none yet."""
    path = folder / runs.CHECKPOINT
    if not path.exists():
        return 0, 0
    counters: Any = jax.ShapeDtypeStruct((), np.dtype("int32"))
    steps, episodes = (checkpoint.load(path, f"run.{name}", counters, verify="part") for name in ("steps", "episodes"))
    return int(steps), int(episodes)
