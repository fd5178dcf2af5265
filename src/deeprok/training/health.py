"""What a chunk tells of a run: a line of metrics, and whether it has diverged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaincinv

from deeprok.agents.clock import Clock
from deeprok.agents.learner import Budget, Learner
from deeprok.environments.spaces import Interval
from deeprok.estimators import Health
from deeprok.training.scan import Log, RunState


class Spread(NamedTuple):
    """Variances of the weights under the posteriors of several seeds."""

    trace: jax.Array  # [S] of P
    least: jax.Array  # [S] least variance of a weight
    largest: jax.Array  # [S]
    definite: jax.Array  # [S] bool


def make_spread(learner: Learner) -> Callable[[Any], Spread | None]:
    """A function `beliefs -> Spread` for posteriors; None for point estimates."""
    posterior = learner.view.posterior

    def spread(belief: Any) -> Spread | None:
        if posterior is None:
            return None
        variances = posterior.variances(belief)
        return Spread(jnp.sum(variances), jnp.min(variances), jnp.max(variances), posterior.definite(belief))

    return jax.jit(jax.vmap(spread))


def metrics_line(
    states: RunState, log: Log, spread: Spread | None, i: int, learner: Learner, budget: Budget, seconds: float
) -> dict[str, Any]:
    """A line of `metrics.jsonl` for the i-th run's chunk."""
    after, episodes = int(states.steps[i]), int(states.episodes[i])
    clock = Clock(jnp.int32(after), float(budget.progress(episodes, after)))
    returns = np.asarray(log.earned[i])[np.asarray(log.ended[i])]
    updates = np.asarray(log.learned[i])
    line: dict[str, Any] = {
        "steps": after,
        "episodes": episodes,
        "returns": returns.tolist(),
        "seconds": round(seconds, 3),
    }
    if len(losses := np.asarray(log.fit.loss[i])[updates]):
        line["loss"] = float(losses.mean())
        if log.fit.health:
            health = jax.tree.map(lambda column: np.asarray(column[i])[updates], log.fit.health)
            line |= _health(health, len(losses) * learner.batch)
        for name, column in (log.fit.measures or {}).items():
            line[name] = float(np.asarray(column[i])[updates].mean())
    if log.failed is not None:
        steps, simulations = np.asarray(log.failed[i]).tolist()
        line |= {"failed_steps": steps, "failed_simulations": simulations}
    if spread:
        line |= {"trace": float(spread.trace[i]), "variances": [float(spread.least[i]), float(spread.largest[i])]}
    belief = jax.tree.map(lambda leaf: leaf[i], states.agent.belief)
    return line | learner.metrics(clock, belief)


def _health(health: Health, observations: int) -> dict[str, Any]:
    """What the metrics tell of a Kalman belief's updates in a chunk."""
    low, high = 2.0 * gammaincinv(observations / 2, (0.025, 0.975)) / observations  # quantiles of χ², over its mean
    return {
        "innovation_variance": float(health.variance.min()),
        "consistency": float(health.consistency.mean()),
        "consistency_band": [float(low), float(high)],
        "gain": float(health.gain.mean()),
        **{name: int(count.sum()) for name, count in (health.extras or {}).items()},
    }


def breakdown(states: RunState, log: Log, spread: Spread | None, i: int, learner: Learner, env: str) -> str | None:
    """What is wrong with the i-th run after a chunk, and what to change; None if nothing is.

    Args:
      states: of all runs.
      log: of the chunk.
      spread: of all runs' posteriors.
      i: which run.
      learner: the learner.
      env: the environment's name.
    """
    problem = _problem(states, log, spread, i, learner)
    if problem is None:
        return None
    if _gave_no_number(states, log, i, learner):
        remedy = (
            "before that the environment gave an observation or a reward that is not finite: see what "
            f"`deeprok check-env {env}` finds, and fix it"
        )
    else:
        remedy = learner.remedy
    return f"{problem}; {remedy}"


def _gave_no_number(states: RunState, log: Log, i: int, learner: Learner) -> bool:
    """Whether the environment answered numbers by one that is not finite, as far as the replay remembers."""
    memory = getattr(states.agent, "memory", None)
    if memory is None:  # trajectories, which were played with the weights of the chunk before
        return not np.isfinite(np.asarray(log.earned[i])).all()
    env, rows = learner.view.env, np.asarray(memory[i])
    asked = len(env.observation_scale) + (len(env.actions) if isinstance(env.actions, Interval) else 1)
    given, answered = np.isfinite(rows[:, :asked]).all(axis=1), np.isfinite(rows[:, asked:]).all(axis=1)
    return bool(np.any(given & ~answered))


def _problem(states: RunState, log: Log, spread: Spread | None, i: int, learner: Learner) -> str | None:
    """What is wrong with the i-th run after a chunk; None if nothing is."""
    belief = jax.tree.map(lambda leaf: leaf[i], states.agent.belief)
    updates = np.asarray(log.learned[i])
    loss = np.asarray(log.fit.loss[i])[updates]
    # Weights that are no numbers spoil later variances too; it is the variance's fault if the
    # innovation was still a number.
    if log.fit.health:
        variance = np.asarray(log.fit.health.variance[i])[updates]
        if (bad := ~(variance > 0) & np.isfinite(loss)).any():
            return f"an innovation variance was not positive ({variance[bad][0]:g})"
    if not np.isfinite(np.asarray(learner.view.mean(belief))).all():
        return "the weights became infinite or not a number"
    if spread and not spread.definite[i]:
        return "the posterior over the weights stopped being a distribution"
    return None
