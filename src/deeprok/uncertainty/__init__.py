"""What nature may do: sets of models, and sets of distributions over their outcomes."""

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
from deeprok.uncertainty.radii import RULES, LevelRule, hoeffding, likelihood_ratio, weissman
from deeprok.uncertainty.sets import SETS, AmbiguitySet, WorstCase, on_support, optimistic
from deeprok.uncertainty.sets.divergence import burg, entropic, kl
from deeprok.uncertainty.sets.ellipsoid import check_weights, chi2, ellipsoid, l2
from deeprok.uncertainty.sets.fill import (
    check_interval,
    contamination,
    cvar,
    finite,
    interval,
    l1,
    l1_rows,
    linf,
    minimum,
    tv,
)
from deeprok.uncertainty.sets.transport import check_cost, wasserstein, weighted_l1

__all__ = [
    "RULES",
    "SETS",
    "AmbiguitySet",
    "LevelRule",
    "ModelSet",
    "WorstCase",
    "burg",
    "check_cost",
    "check_interval",
    "check_weights",
    "chi2",
    "contamination",
    "cvar",
    "ellipsoid",
    "entropic",
    "finite",
    "from_box",
    "from_list",
    "grid_models",
    "hoeffding",
    "interval",
    "kl",
    "l1",
    "l1_rows",
    "l2",
    "likelihood_ratio",
    "linf",
    "minimum",
    "on_support",
    "optimistic",
    "parse_box",
    "parse_grid",
    "parse_models",
    "parse_values",
    "sample_box",
    "tv",
    "wasserstein",
    "weighted_l1",
    "weissman",
]
