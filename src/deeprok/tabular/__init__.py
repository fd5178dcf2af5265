"""Robust Markov decision processes with finitely many states, solved exactly.

| file | what it is |
|---|---|
| `model`, `samples`, `files` | models as lists of transitions: from arrays, from samples, as CSV |
| `setting` | what nature may do: arguments and their checks |
| `layout` | a model on the device |
| `operator` | the robust Bellman operator |
| `s_rectangular` | budgets that the actions of a state share |
| `solvers` | value iteration, policy iteration, backward induction |
| `nature` | the model that nature answers with |
| `solve` | `solve` and `evaluate` |
| `sweep` | the price of robustness over a range of radii |
| `q_learning`, `adp` | values from one transition at a time; linear features |
| `problems` | models of the literature by name |
"""

from deeprok.tabular.files import read_csv, write_csv
from deeprok.tabular.model import RMDP, from_arrays, from_models, from_successors, from_transitions
from deeprok.tabular.samples import from_samples, radii
from deeprok.tabular.setting import SETS
from deeprok.tabular.solve import Solution, evaluate, solve
from deeprok.tabular.sweep import Sweep, sweep_radii

__all__ = [
    "RMDP",
    "SETS",
    "Solution",
    "Sweep",
    "evaluate",
    "from_arrays",
    "from_models",
    "from_samples",
    "from_successors",
    "from_transitions",
    "radii",
    "read_csv",
    "solve",
    "sweep_radii",
    "write_csv",
]
