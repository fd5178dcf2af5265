"""Playing in stateful simulators: the one loop that takes a policy through episodes; `rollout` has it for JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from deeprok.environments.host import HostEnvironment, HostOutcome, Simulator, asked

#: Simulations at once: so many that calling the policy costs little beside their steps.
_SIDE_BY_SIDE = 64

#: `(episodes [S], steps [S], obs [S, D]) -> actions [S, …]`: what is done in each of S simulators, in the given step of
#: the given episode. Where none is played any more the episode is −1 and the step 0.
HostAct = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Start(NamedTuple):
    """What decides an episode."""

    seed: int  # of the simulator's reset
    model: Mapping[str, float]  # as for `Simulator.reset`


class HostStep(NamedTuple):
    """A step that was taken."""

    episode: int
    step: int
    outcome: HostOutcome
    ended: bool  # the episode, terminated or truncated
    failed: int  # simulations in it


def make_host_rollout(env: HostEnvironment) -> Callable[[Sequence[Start], HostAct], Iterator[HostStep]]:
    """A function that plays episodes, several side by side with one call of the policy for all; it yields every step.

    Its simulators are kept for later calls.
    """
    simulators: list[Simulator] = []

    def play(starts: Sequence[Start], act: HostAct) -> Iterator[HostStep]:
        slots = min(_SIDE_BY_SIDE, len(starts))
        simulators.extend(env.make() for _ in range(slots - len(simulators)))
        obs = np.zeros((slots, len(env.observation_scale)))
        episodes, steps = np.full(slots, -1), np.zeros(slots, int)
        waiting = list(reversed(range(len(starts))))
        while True:
            while waiting and (free := np.flatnonzero(episodes < 0)).size:
                slot, episode = free[-1], waiting.pop()
                obs[slot], episodes[slot], steps[slot] = asked(simulators[slot].reset, *starts[episode]), episode, 0
            playing = np.flatnonzero(episodes >= 0).tolist()
            if not playing:
                return
            actions = act(episodes, steps, obs)
            if env.ahead:
                asked(env.ahead, [simulators[slot] for slot in playing], actions[playing], [{}] * len(playing))
            for slot in playing:
                simulator = simulators[slot]
                before = sum(simulator.failures.values())
                outcome, step = asked(simulator.step, actions[slot]), int(steps[slot])
                obs[slot], steps[slot] = outcome.obs, step + 1
                truncated = step + 1 >= env.horizon or getattr(simulator, "truncated", False)
                ended, episode = bool(outcome.terminated) or truncated, int(episodes[slot])
                if ended:
                    episodes[slot], steps[slot] = -1, 0
                yield HostStep(episode, step, outcome, ended, sum(simulator.failures.values()) - before)

    return play
