"""Robust Markov decision processes with finitely many states, solved exactly.

| file | what it is |
|---|---|
| `model`, `samples`, `files` | models as lists of transitions: from arrays, from samples, from and to CSV files |
| `counts`, `known` | logs of transitions, from arrays and CSV files; what is known of transitions that were not seen |
| `confidence`, `credible` | ambiguity sets from counts; policies with a guaranteed value |
| `validation` | the size of sets by validation |
| `setting` | the arguments of `solve` and `evaluate`, and their checks |
| `layout` | memory layout of a model on the device |
| `operator` | the robust Bellman operator |
| `s_rectangular` | budgets shared by the actions of a state |
| `solvers` | value iteration, policy iteration, backward induction |
| `nature`, `moves` | worst-case models; where a policy leads in them |
| `solution` | `solve` and `evaluate` |
| `sweep` | the price of robustness over a range of radii |
| `q_learning`, `adp` | robust Q-learning; robust dynamic programming with linear features |
| `problems`, `literature` | problems of the literature, by name |
| `gymnasium` | Gymnasium's environments that are tables, by id |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeprok.tabular.confidence import COUNT_SETS, CountedModel, Guarantee, from_counts, solve_best, solve_counts
    from deeprok.tabular.counts import Counts, Possible, count_transitions, read_counts, read_support
    from deeprok.tabular.files import read_csv, write_csv
    from deeprok.tabular.gymnasium import from_gymnasium
    from deeprok.tabular.model import RMDP, from_arrays, from_models, from_successors, from_transitions
    from deeprok.tabular.samples import from_samples, radii
    from deeprok.tabular.setting import TABULAR_SETS
    from deeprok.tabular.solution import Solution, evaluate, solve
    from deeprok.tabular.sweep import Sweep, sweep_radii
    from deeprok.tabular.validation import Validation, validate_counts

__all__ = [
    "COUNT_SETS",
    "RMDP",
    "TABULAR_SETS",
    "CountedModel",
    "Counts",
    "Guarantee",
    "Possible",
    "Solution",
    "Sweep",
    "Validation",
    "count_transitions",
    "evaluate",
    "from_arrays",
    "from_counts",
    "from_gymnasium",
    "from_models",
    "from_samples",
    "from_successors",
    "from_transitions",
    "radii",
    "read_counts",
    "read_csv",
    "read_support",
    "solve",
    "solve_best",
    "solve_counts",
    "sweep_radii",
    "validate_counts",
    "write_csv",
]

#: File -> its public names, imported when one is asked for: a list of the problems needs no JAX.
_FILES = {
    "confidence": ("COUNT_SETS", "CountedModel", "Guarantee", "from_counts", "solve_best", "solve_counts"),
    "counts": ("Counts", "Possible", "count_transitions", "read_counts", "read_support"),
    "files": ("read_csv", "write_csv"),
    "gymnasium": ("from_gymnasium",),
    "model": ("RMDP", "from_arrays", "from_models", "from_successors", "from_transitions"),
    "samples": ("from_samples", "radii"),
    "setting": ("TABULAR_SETS",),
    "solution": ("Solution", "evaluate", "solve"),
    "sweep": ("Sweep", "sweep_radii"),
    "validation": ("Validation", "validate_counts"),
}


def __getattr__(name: str) -> Any:
    for file, names in _FILES.items():
        if name in names:
            return getattr(import_module(f"deeprok.tabular.{file}"), name)
    raise AttributeError(f"module 'deeprok.tabular' has no attribute '{name}'")
