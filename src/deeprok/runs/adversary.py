"""Settings of runs with an adversary: which of them fit each other."""

from __future__ import annotations

from deeprok.agents.learner import Learner, PlaysSteps, Task
from deeprok.core.errors import DeeprokError
from deeprok.runs.run_settings import RunSettings


def check_adversary(settings: RunSettings, task: Task, learner: Learner) -> None:
    """Raises unless there is a set of models that those found by a search can join.

    Args:
      settings: the run's.
      task: what the learner was made for.
      learner: the learner.
    """
    if settings.fixed_models:
        raise DeeprokError(
            "adversary is 'stress', but fixed_models lists the whole set, which no model can join; give one of the two"
        )
    # Whole trajectories are weighed by what was acted on; there is no other set.
    robust = task.target.robust and isinstance(learner.plays, PlaysSteps)
    if settings.acting == "nominal" and not robust:
        raise DeeprokError(
            f"adversary is 'stress', but acting is 'nominal' and {settings.algorithm} has no worst case over models, "
            "so that no model could join; use acting 'sampled', or an algorithm with a robust target such as rtd_dqn"
        )
    if task.models.size == 1 and (robust or settings.acting == "member"):
        raise DeeprokError("adversary is 'stress', but models is 1: a found model would be the whole set; raise models")
