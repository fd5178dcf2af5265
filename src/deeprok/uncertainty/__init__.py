"""What nature may do: sets of models, and sets of distributions over their outcomes."""

from deeprok.uncertainty.balls import SETS, AmbiguitySet, WorstCase, cvar, minimum
from deeprok.uncertainty.models import (
    ModelSet,
    from_box,
    from_list,
    grid_models,
    parse_box,
    parse_grid,
    parse_models,
    parse_values,
    sample_box,
)

__all__ = [
    "SETS",
    "AmbiguitySet",
    "ModelSet",
    "WorstCase",
    "cvar",
    "from_box",
    "from_list",
    "grid_models",
    "minimum",
    "parse_box",
    "parse_grid",
    "parse_models",
    "parse_values",
    "sample_box",
]
