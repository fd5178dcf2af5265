"""A guard for a deployed policy: it watches the real system, and says when that has left the box.

Modules:
  guard: what users hold.
  models: the likelihood of what was seen, under models of the box and under others.
  likeliest: the most likely of them.
  evidence: a test that may be looked at after every step.
  uncertainty: how uncertain the Q-values are in the box.
  noise: the noise that is assumed.
  saved: what a guard remembers, as plain arrays.
"""

from deeprok.evaluation.guard.guard import Guard, GuardCheck, make_guard

__all__ = ["Guard", "GuardCheck", "make_guard"]
