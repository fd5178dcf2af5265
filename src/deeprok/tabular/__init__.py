"""Robust Markov decision processes with finitely many states, solved exactly."""

from deeprok.tabular.model import (
    RMDP,
    from_arrays,
    from_models,
    from_samples,
    from_successors,
    from_transitions,
    radii,
    read_csv,
    write_csv,
)
from deeprok.tabular.solve import SETS, Solution, evaluate, solve

__all__ = [
    "RMDP",
    "SETS",
    "Solution",
    "evaluate",
    "from_arrays",
    "from_models",
    "from_samples",
    "from_successors",
    "from_transitions",
    "radii",
    "read_csv",
    "solve",
    "write_csv",
]
