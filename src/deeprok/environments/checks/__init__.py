"""Checks of an environment that a user brings: it is played at random, and each thing found is a sentence.

| file | what it is |
|---|---|
| `record` | what is found, and the record of a random episode |
| `declared` | what an environment says of itself: parameters, box, scales, horizon |
| `in_jax` | two JAX functions: shapes, random numbers, and how they are played |
| `simulator` | a stateful simulator: shapes, random numbers, restoring the state, and how it is played |
| `judge` | what random play tells of either: parameters without effect, failures, returns, endings |
| `check` | all of it in order |
"""

from deeprok.environments.checks.check import check_environment
from deeprok.environments.checks.in_jax import refuse_wrong_shapes
from deeprok.environments.checks.record import Finding, Level

__all__ = ["Finding", "Level", "check_environment", "refuse_wrong_shapes"]
