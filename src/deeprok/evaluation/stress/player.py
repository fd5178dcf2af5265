"""Playing a policy on lists of models, with random numbers that can be asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deeprok.agents.network import Network
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.play import cell_player
from deeprok.evaluation.policies import weights_policy

if TYPE_CHECKING:  # every training imports this module, but for a trained run with its guard
    from deeprok.evaluation.trained import Run

#: Episodes of a block: each model is played with whole blocks, the same ones for all.
EPISODES = 32

#: Models in a call of a compiled program, always as many, so that it is compiled once.
_MODELS = 128

#: What random numbers are for. Those of one purpose are never used for another.
SEARCH, CHOICE, REPORT, LINES = range(4)


class Scores(NamedTuple):
    """How a policy did on N models."""

    success: np.ndarray  # [N] share of the episodes
    mean_return: np.ndarray  # [N]

    @property
    def comparable(self) -> np.ndarray:
        """[N] returns that can be compared: what is no number is worse than any."""
        return np.where(np.isnan(self.mean_return), -np.inf, self.mean_return)

    def ranking(self) -> np.ndarray:
        """[N] which models are worst, these first: those with the least success and, of equals, the least return."""
        return np.lexsort((self.comparable, self.success))


#: `(models [N, D], purpose, blocks) -> Scores`: plays so many blocks of episodes on each model, all with the random
#: numbers of that purpose.
Player = Callable[[np.ndarray, int, int], Scores]


def make_player(run: Run, env: AnyEnvironment, names: list[str], seed: int, advance: Callable[[float], None]) -> Player:
    """A function that plays a run's greedy policy on models.

    Args:
      run: the run.
      env: the environment that it is played in.
      names: the parameters that the columns of models are.
      seed: decides all random numbers.
      advance: called as models are played, with how many; a model counts once for each block.
    """
    player = make_player_of(env, run.network, names)(run.weights, seed, advance)

    def play_run(models: np.ndarray, purpose: int, blocks: int) -> Scores:
        with run.settings.arithmetic():
            return player(models, purpose, blocks)

    return play_run


def make_player_of(
    env: AnyEnvironment, network: Network, names: list[str], episodes: int = EPISODES, together: int = _MODELS
) -> Callable[[np.ndarray, int, Callable[[float], None]], Player]:
    """A function `(weights [n], seed, advance) -> Player`: greedy policies that one compiled program plays.

    Args:
      env: the environment that they are played in.
      network: what the weights are of.
      names: the parameters that the columns of models are.
      episodes: in a block.
      together: models in a call of the compiled program.
    """
    play = cell_player(env, weights_policy(network, env.actions, "mean"), episodes)

    def player_of(weights: np.ndarray, seed: int, advance: Callable[[float], None]) -> Player:
        def played(models: np.ndarray, block: int) -> np.ndarray:
            """[N, episodes] the returns."""
            if isinstance(env, HostEnvironment):
                columns = dict(zip(names, models.T, strict=True))
                return play(weights[None], columns, 0.0, block, lambda part: advance(part * len(models)))
            rows = []
            for start in range(0, len(models), together):
                some = models[start : start + together]
                full = some[np.arange(together) % len(some)]  # filled up
                rows.append(play(weights[None], dict(zip(names, full.T, strict=True)), 0.0, block)[: len(some)])
                advance(len(some))
            return np.concatenate(rows)

        def player(models: np.ndarray, purpose: int, blocks: int) -> Scores:
            blocks_played = [played(models, seed_of(seed, purpose, number)) for number in range(blocks)]
            returns = np.concatenate(blocks_played, axis=1)
            return Scores((returns > env.success_return).mean(axis=1), returns.mean(axis=1))

        return player

    return player_of


def seed_of(seed: int, purpose: int, block: int) -> int:
    """The seed of a block's random numbers."""
    return int(np.random.SeedSequence((seed, purpose, block)).generate_state(1)[0])
