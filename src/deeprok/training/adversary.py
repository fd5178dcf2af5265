"""The adversary: at a few moments of a training it looks for the model on which the present policy does worst.

The search is that of `deeprok stress`, in the run's own box, and the policy is greedy on its mean weights. What is
found is chosen and reported by random numbers that the search has not seen, so that it is no model of bad luck.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import Budget, View
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.stress.player import REPORT, make_player_of, seed_of
from deeprok.evaluation.stress.search import least_budget, population_size, search, worst_of
from deeprok.evaluation.stress.space import make_space
from deeprok.runs.settings import Config
from deeprok.training.best import Best, tried_again
from deeprok.training.found import KEPT, Found
from deeprok.training.scan import Program, RunState
from deeprok.uncertainty.models import Box

#: The fractions of the budget after which there is a search: not before there is a policy to be stressed, and with time
#: between them, and after the last, to learn from what was found.
MOMENTS = (0.25, 0.4, 0.55, 0.7, 0.85)


class _Effort(NamedTuple):
    """What a search costs."""

    models: int  # that are tried, or as many as their number of parameters asks for
    episodes: int  # of a block, on each of them
    candidates: int  # the worst of them, between which fresh episodes choose
    choice: int  # blocks that choose
    report: int  # blocks that report the one that was chosen


_IN_JAX = _Effort(models=1024, episodes=8, candidates=16, choice=4, report=16)
_SIMULATED = _Effort(models=128, episodes=2, candidates=8, choice=4, report=8)

#: Purpose of the random numbers that are a search's seed, beside those of `deeprok.evaluation.stress.player`.
_ADVERSARY = 20170309


class StoppedError(Exception):
    """A search was asked to stop. It is done again when the run goes on, from the same state."""


#: `(states, best, seeds, stopped) -> (states, best)`: the searches that are due, for the places of some runs among all
#: and their seeds. Raises a `StoppedError` once `stopped()` is true.
SearchAll = Callable[[RunState, Best, Mapping[int, int], Callable[[], bool]], tuple[RunState, Best]]


def make_adversary(config: Config, program: Program, trial: Callable[..., jax.Array]) -> SearchAll:
    """A function that searches for all runs whose moment has come.

    Args:
      config: the settings, whatever the seed.
      program: that of the settings.
      trial: on held-out models; the best weights so far are tried on what is found, too.
    """
    view = program.learner.view
    find = make_find(view, config.make_box(view.env))

    def search_all(
        states: RunState, best: Best, seeds: Mapping[int, int], stopped: Callable[[], bool]
    ) -> tuple[RunState, Best]:
        def advance(part: float) -> None:
            if stopped():
                raise StoppedError

        found, new = states.found, np.zeros(len(states.steps), bool)
        for i, seed in seeds.items():
            own, belief = jax.tree.map(lambda leaf, i=i: leaf[i], (found, states.agent.belief))
            episodes, steps = int(states.episodes[i]), int(states.steps[i])
            if is_due(own, config.budget, episodes, steps):
                own = find(np.asarray(view.mean(belief)), own, seed, advance)
                own = dataclasses.replace(own, episodes=jnp.int32(episodes), steps=jnp.int32(steps))
                found = jax.tree.map(lambda all, one, i=i: all.at[i].set(one), found, own)
                new[i] = True
        if not new.any():
            return states, best
        return dataclasses.replace(states, found=found), tried_again(best, on_found(trial, found), new)

    return search_all


def on_found(trial: Callable[..., jax.Array], found: Found | None) -> Callable[[Any], jax.Array]:
    """A trial of weights that is also on what was found."""
    return trial if found is None else functools.partial(trial, found=found)


def is_due(found: Found, budget: Budget, episodes: int, steps: int) -> bool:
    """Whether one of the moments has come since the last search; all are numbers of one run.

    The moments are those of the present budget, which may be longer than the one that the last search was in.
    """
    now, last = (
        sum(float(budget.progress(*counted)) >= moment for moment in MOMENTS)
        for counted in ((episodes, steps), (int(found.episodes), int(found.steps)))
    )
    return now > last


def make_find(view: View, box: Box) -> Callable[[np.ndarray, Found, int, Callable[[float], None]], Found]:
    """A function `(weights [n], found, seed, advance) -> found`: a search for one run, compiled once for all.

    Args:
      view: of the learner.
      box: what is searched.
    """
    env, space = view.env, make_space(box, 0.0, view.env.nominal)
    effort = _SIMULATED if isinstance(env, HostEnvironment) else _IN_JAX
    budget = max(effort.models, least_budget(len(box)))
    player_of = make_player_of(env, view.network, space.names, effort.episodes, population_size(budget))

    def find(weights: np.ndarray, found: Found, seed: int, advance: Callable[[float], None]) -> Found:
        own = seed_of(seed, _ADVERSARY, int(found.searches))
        player = player_of(weights, own, advance)
        candidates = search(space, player, budget, own).worst(effort.candidates)
        worst = worst_of(candidates, player, effort.choice)
        # Last, so that of equals those are worse that have joined before.
        models = np.concatenate([np.asarray(found.models, float)[: int(found.there)], worst[None]])
        scores = player(models, REPORT, effort.report)
        joins = scores.ranking()[0] == len(models) - 1
        place = int(found.count) % KEPT
        return dataclasses.replace(
            found,
            models=found.models.at[place].set(worst) if joins else found.models,
            count=found.count + int(joins),
            searches=found.searches + 1,
            worst=found.worst.at[:].set(worst),
            success=found.success.at[...].set(scores.success[-1]),
            mean_return=found.mean_return.at[...].set(scores.mean_return[-1]),
            joined=jnp.array(joins),
        )

    return find
