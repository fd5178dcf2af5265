"""What settings score: played on models that tuning alone uses, or on those that are reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import AnyEnvironment, Environment
from deeprok.evaluation.play import cell_player, grid_cells, nominal_models
from deeprok.evaluation.policies import weights_policy
from deeprok.evaluation.result import default_axes
from deeprok.evaluation.screening.planning import worst_mean
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.tuning.task import Metric, Task
from deeprok.uncertainty.models import read_grid

_TAIL = 0.1
#: Of the random numbers that tuning plays with; those of the report are `deeprok evaluate`'s own.
_LUCK = 20170309


class Models(NamedTuple):
    """Models, and how they are played."""

    models: dict[str, np.ndarray]  # name -> [K], of every parameter
    episodes: int  # on each
    luck: int  # seed of the random numbers


def reported(task: Task) -> Models:
    """The models of the report: the grid of `deeprok evaluate`; of an environment without a box the nominal one."""
    env = task.base.make_env()
    options = task.options
    assert options.test_episodes
    box = task.base.make_box(env)
    if not dataclasses.fields(env.nominal) and isinstance(env, Environment):
        raise DeeprokError(f"{task.base.env} has no parameter, so that its models can't be told apart; give it one")
    if options.grid is None and not box:
        return Models(nominal_models(env, 1), options.test_episodes, 0)
    axes = default_axes(box) if options.grid is None else read_grid(options.grid, env.nominal)
    cells = {name: values[:-1] for name, values in grid_cells(env, axes).items()}
    return Models(cells, options.test_episodes, 0)


def held_out(task: Task) -> Models:
    """The models that settings are scored on while tuning: drawn from the box, none of them on the reported grid.

    Each parameter has an arcsine distribution between its ends, which lies most densely near them, where policies fail
    first, but never on them. Without a box there is one model, and other random numbers.
    """
    env = task.base.make_env()
    options = task.options
    assert options.held_out
    assert options.episodes
    box = task.base.make_box(env)
    if not box:
        return Models(nominal_models(env, 1), options.episodes, _LUCK)
    count, others = options.held_out, reported(task).models
    places = np.random.default_rng([_LUCK, options.seed]).random((2 * count, len(box)))
    drawn = {
        name: low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * place))
        for place, (name, (low, high)) in zip(places.T, box.items(), strict=True)
    }
    models = {name: drawn.get(name, values) for name, values in nominal_models(env, 2 * count).items()}
    taken = set(zip(*(others[name].tolist() for name in models), strict=True))
    free = [
        i
        for i, model in enumerate(zip(*(values.tolist() for values in models.values()), strict=True))
        if model not in taken
    ]
    return Models({name: values[free[:count]] for name, values in models.items()}, options.episodes, _LUCK)


def metric_of(returns: np.ndarray, threshold: float, metric: Metric) -> float:
    """The score of returns [models, episodes]; the larger, the better.

    Args:
      returns: of each episode on each model.
      threshold: the return above which an episode is a success.
      metric: `worst`, the mean return on the worst model; `cvar10`, on the worst tenth of the models; `success`, the
        share of successful episodes; `return`, the mean return over all models.
    """
    if metric == "success":
        return float((returns > threshold).mean())
    by_model = returns.mean(axis=1)
    if metric == "return":
        return float(by_model.mean())
    return float(by_model.min() if metric == "worst" else worst_mean(by_model, _TAIL))


class Scorer:
    """Plays trained runs with their best weights, as `deeprok evaluate` does."""

    def __init__(self, task: Task, test: Models) -> None:
        self._metric, self._epsilon, self._test = task.options.metric, task.options.epsilon, test
        self._players: dict[Any, tuple[AnyEnvironment, Callable[..., np.ndarray]]] = {}  # compiled once a network

    def __call__(self, config: Config, folders: Sequence[Path]) -> tuple[float, ...]:
        """The score of each seed.

        Args:
          config: the settings of the runs, whatever the seed.
          folders: of the runs.
        """
        with config.arithmetic():
            learner = config.make_learner()
            view, test = learner.view, self._test
            env, play = self._player(config, view)
            returns = []
            for folder in folders:
                theta = np.asarray(view.mean(runs.load_belief(folder, learner, "best")))
                returns.append(play(theta[None], test.models, self._epsilon, test.luck))
        return tuple(metric_of(played, env.success_return, self._metric) for played in returns)

    def _player(self, config: Config, view: Any) -> tuple[AnyEnvironment, Callable[..., np.ndarray]]:
        """The environment and what plays in it; settings that neither depends on share it."""
        places = (config.env, config.environment, config.nominal, config.sensor_noise, config.action_delay)
        key = (*places, config.parameter_noise, config.memory, config.precision, view.network)
        if key not in self._players:
            env = view.env
            policy = weights_policy(view.network, env.actions, "mean")
            self._players[key] = env, cell_player(env, policy, self._test.episodes)
        return self._players[key]
