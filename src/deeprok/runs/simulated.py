"""Settings of runs on stateful simulators: which of them fit each other."""

from __future__ import annotations

from deeprok.agents.learner import Learner, PlaysSteps
from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostEnvironment
from deeprok.runs.run_settings import RunSettings


def check_simulator(settings: RunSettings, env: HostEnvironment, learner: Learner, robust: bool) -> None:
    """Raises unless a run can be trained on a stateful simulator.

    Args:
      settings: the run's.
      env: the simulator.
      learner: the learner.
      robust: whether its target is the worst case over models.
    """
    if settings.simulators > 1:
        _check_several(settings, env, learner)
    # Whole trajectories are played on one model each.
    if robust and env.branching == "none" and isinstance(learner.plays, PlaysSteps):
        why = f"{settings.env} can't restore its state ({env.problem})" if env.problem else "branching is 'none'"
        remedy = "say how its state is read and set, set branching to 'copies' (--branching copies), or "
        raise DeeprokError(
            f"{why}, so that it can't answer for several models, which {settings.algorithm} needs; "
            f"{remedy if env.branched else ''}take an algorithm without a robust target"
        )


def _check_several(settings: RunSettings, env: HostEnvironment, learner: Learner) -> None:
    """Raises unless rounds and chunks of the learner are made of whole steps of several simulators."""
    count = settings.simulators
    if not isinstance(learner.plays, PlaysSteps):
        raise DeeprokError(
            f"simulators is {count}, but {settings.algorithm} plays whole trajectories, all in one process; take 1"
        )
    own = f", as many as {settings.env} has unless another number is given" if count == env.simulators else ""
    every, length = learner.plays.steps_per_round, learner.chunk_steps
    if every % count and count % every:
        raise DeeprokError(f"simulators is {count}{own}; it must divide train_every, {every}, or be a multiple of it")
    if length % count:
        raise DeeprokError(f"chunk_steps is {length}; it must be a multiple of simulators, which is {count}{own}")
