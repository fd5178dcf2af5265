"""The best weights of a run: trials on held-out models, and the exam that decides at the end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass, select
from deeprok.environments.base import Model
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.play import cell_player, nominal_models, play_episodes
from deeprok.evaluation.policies import ensemble_policy, weights_policy
from deeprok.runs.settings import Config
from deeprok.training.found import Found
from deeprok.training.scan import Program, RunState
from deeprok.uncertainty import sample_box


class Trials(NamedTuple):
    """Held-out models and episodes, the same for every run."""

    seed: int
    times: int = 1  # as many as `trial_models`


TRIAL = Trials(20170307)
#: What decides in the end between the last weights and those that were best in the trials, early and late. The best of
#: many trials was also lucky, so it takes other models, and more of them.
EXAM = Trials(20170308, times=8)


#: Share of the time before a run goes back to its best weights, whose weights are none to go back to. They may do well
#: by chance, with values that have yet to come from far away; but in the end they may be the best that there were.
_EARLY = 0.25


@pytree_dataclass
class Best:
    """The weights that did best in the trials on held-out models."""

    belief: Any  # the estimator's record
    trial_return: jax.Array  # [] mean return of that trial; −∞ before the first
    steps: jax.Array  # [] int32, when it was
    progress: jax.Array  # [1] the fraction of the budget then; [0] unless the run goes back to them on the way
    early: Best | None = None  # the best of the early trials; None unless the run goes back


def with_early(best: Best) -> Best:
    """The record of a run that has had no trial yet, with one for early trials if the run goes back on the way."""
    return dataclasses.replace(best, early=best) if best.progress.size else best


def make_trial(config: Config, program: Program, trials: Trials) -> Callable[..., jax.Array]:
    """A function `(beliefs, found=None) -> [S]`: mean returns on held-out models, or on the worst of them.

    Held-out models are drawn from the box. What a run's searches have found is there too: draws may never meet it, so
    that without it weights that do well there would pass for no better than others.
    """
    models_key, episodes_key = jax.random.split(jax.random.key(trials.seed))
    count = trials.times * config.trial_models
    view = program.learner.view
    env, box = view.env, config.make_box(view.env)

    def score(returns: Any) -> jax.Array:
        if config.trial_tail == 1.0 or not box:
            return jnp.mean(returns)
        by_model = jnp.mean(returns.reshape(-1, config.trial_episodes), axis=1)
        return jnp.mean(jnp.sort(by_model)[: max(1, round(config.trial_tail * len(by_model)))])

    if isinstance(env, HostEnvironment):
        # Without a box there is one model, the nominal one.
        episodes = config.trial_episodes if box else count * config.trial_episodes
        play = cell_player(env, weights_policy(view.network, env.actions, "mean"), episodes)
        drawn = sample_box(models_key, box, (count,), config.edges)
        cells = {name: np.asarray(values) for name, values in drawn.items()}

        def cells_of(found: Found | None, i: int) -> dict[str, np.ndarray]:
            if found is None:
                return cells
            rows = np.asarray(found.models[i])[: int(found.there[i])]
            return {name: np.append(values, rows[:, j]) for j, (name, values) in enumerate(cells.items())}

        def trial_of_each(beliefs: Any, found: Found | None = None) -> jax.Array:
            thetas = jax.vmap(view.mean)(beliefs)
            returns = (
                play(theta[None], cells_of(found, i), config.trial_epsilon, trials.seed)
                for i, theta in enumerate(thetas)
            )
            return jnp.stack([score(each) for each in returns])

        return trial_of_each

    def score_with(returns: Any, there: jax.Array) -> jax.Array:
        """The score where only so many of the found models, which come last, are there."""
        models = count + there
        by_model = jnp.mean(returns.reshape(-1, config.trial_episodes), axis=1)
        ranked = jnp.sort(jnp.where(jnp.arange(len(by_model)) < models, by_model, jnp.nan))  # which come last
        tail = jnp.maximum(1, jnp.round(config.trial_tail * models))
        return jnp.sum(jnp.where(jnp.arange(len(by_model)) < tail, ranked, 0.0)) / tail

    def trial(played: tuple[Any, Model], belief: Any, found: Found | None) -> jax.Array:
        nominal, models = played
        policy = ensemble_policy(view.network, env.actions, view.mean(belief)[None], "mean")
        if found is not None:
            rows = dict(zip(box, found.models.T, strict=True))
            models = {name: jnp.concatenate([values, rows[name]]) for name, values in models.items()}
        each = {name: jnp.repeat(values, config.trial_episodes) for name, values in models.items()}
        returns = play_episodes(plain._replace(nominal=nominal), policy, each, episodes_key, config.trial_epsilon)
        return score(returns) if found is None else score_with(returns, found.there)

    plain, models = env, sample_box(models_key, box, (count,), config.edges) or nominal_models(env, count)
    # An argument and no constants, so that a run with another box compiles nothing anew.
    played = jax.tree.map(lambda number: jnp.asarray(number, float), (plain.nominal, models))

    def of_seeds(played: tuple[Any, Model], beliefs: Any, found: Found | None = None) -> jax.Array:
        return jax.vmap(trial, in_axes=(None, 0, 0))(played, beliefs, found)

    return functools.partial(jax.jit(of_seeds), played)


def present_weights(states: RunState, scores: jax.Array, progress: np.ndarray) -> Best:
    """The present weights, with what a trial has said of them."""
    kept = jnp.broadcast_to(jnp.asarray(progress, states.held.dtype)[:, None], states.held.shape)
    return Best(belief=states.agent.belief, trial_return=scores, steps=states.steps, progress=kept)


def with_trial(config: Config, best: Best, present: Best, tried: np.ndarray) -> tuple[Best, Best]:
    """The best weights after a trial of some seeds, and the present ones with the same record of early trials."""
    if best.early is None:
        return chosen(best, present, tried & np.asarray(present.trial_return > best.trial_return)), present
    first = _EARLY * config.refine_from
    is_early = tried & np.asarray(present.progress[:, 0] < first)
    early = chosen(best.early, present, is_early & np.asarray(present.trial_return > best.early.trial_return))
    best, present = (dataclasses.replace(one, early=early) for one in (best, present))
    # Weights to go on from: of equal ones the later have learned more.
    was_early = np.asarray(best.progress[:, 0] < first)
    return chosen(best, present, tried & (was_early | np.asarray(present.trial_return >= best.trial_return))), present


def tried_again(best: Best, trial: Callable[[Any], jax.Array], again: np.ndarray) -> Best:
    """The best weights with the scores that they have now, where trials have become other ones."""
    early = best.early and tried_again(best.early, trial, again)
    had_one = again & np.isfinite(np.asarray(best.trial_return))
    score = jnp.where(had_one, trial(best.belief), best.trial_return)
    return dataclasses.replace(best, trial_return=score, early=early)


def better_in_exam(best: Best, exam: Callable[[Any], jax.Array], ended: np.ndarray) -> tuple[Best, jax.Array]:
    """The better in the exam of the best weights and the best early ones, for the seeds that have ended; its scores."""
    scores = exam(best.belief)
    if best.early is None:
        return best, scores
    # Without an early trial the record holds the weights that the run began with.
    early = jnp.where(jnp.isfinite(best.early.trial_return), exam(best.early.belief), -jnp.inf)
    other = dataclasses.replace(best.early, early=best.early)
    return chosen(best, other, ended & np.asarray(early > scores)), jnp.maximum(early, scores)


@jax.jit
def chosen(best: Best, present: Best, better: Any) -> Best:
    """The best weights so far; the present ones for the seeds where they are better."""
    return jax.vmap(select)(better, present, best)
