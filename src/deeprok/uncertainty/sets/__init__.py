"""Ambiguity sets: the worst expectation over a set of distributions.

A set is one function `worst_case(p, values, level) -> WorstCase`, unbatched: `jit` and `vmap` do the rest. Targets
of the deep agents call it with uniform `p` over the M outcomes of a step, dynamic programming with a row of the
transition kernel. Values are finite numbers. Radii are at least 0, may be infinite, and 0 leaves `p` alone.

Each file holds one family, and states the entries of its sets. A set of your own is a function and an
`AmbiguitySet`; its line in `SETS` makes it known by name everywhere.

| file | sets | solved by |
|---|---|---|
| `fill` | minimum, contamination, finite, cvar, interval, linf, l1, tv | filling the outcomes from the worst |
| `ellipsoid` | l2, ellipsoid, chi2 | dropping outcomes until none is negative |
| `divergence` | kl, burg, entropic | Newton's method on one parameter |
| `transport` | weighted_l1, wasserstein | intersecting tangents of the dual |
"""

from deeprok.uncertainty.sets import divergence, ellipsoid, fill, transport
from deeprok.uncertainty.sets.base import (
    AmbiguitySet,
    CheckLevel,
    Level,
    Reach,
    Tangent,
    WorstCase,
    on_support,
    optimistic,
)

#: Ambiguity sets by name, around one distribution.
SETS: dict[str, AmbiguitySet] = {
    "minimum": fill.MINIMUM,
    "cvar": fill.CVAR,
    "contamination": fill.CONTAMINATION,
    "l1": fill.L1,
    "tv": fill.TV,
    "linf": fill.LINF,
    "l2": ellipsoid.L2,
    "chi2": ellipsoid.CHI2,
    "kl": divergence.KL,
    "burg": divergence.BURG,
    "wasserstein": transport.WASSERSTEIN,
    "entropic": divergence.ENTROPIC,
}
#: Those built on a list of models.
MODEL_SETS: dict[str, AmbiguitySet] = {"finite": fill.FINITE}

__all__ = [
    "MODEL_SETS",
    "SETS",
    "AmbiguitySet",
    "CheckLevel",
    "Level",
    "Reach",
    "Tangent",
    "WorstCase",
    "divergence",
    "ellipsoid",
    "fill",
    "on_support",
    "optimistic",
    "transport",
]
