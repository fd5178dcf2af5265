"""Ambiguity sets: the worst-case expectation over a set of distributions.

A set is one function `worst_case(p, values, level) -> WorstCase`, unbatched: `jit` and `vmap` do the rest. The deep
agents call it with a uniform `p` over the outcomes of a step in M models, dynamic programming with a row of the
transition kernel. Values are finite. A radius is at least 0 and may be infinite; with radius 0 the set is {p}.

Each file implements one family and defines the `AmbiguitySet` entries of its sets. A set of your own is such a
function and such an entry; it is named `module:object`, or by its line in `SETS`.

| file | sets | solved by |
|---|---|---|
| `fill` | minimum, contamination, finite, cvar, interval, linf, l1, tv | closed forms: mass moves to bad outcomes |
| `ellipsoid` | l2, ellipsoid, chi2 | an active-set method |
| `divergence` | kl, burg, entropic | Newton's method on one parameter |
| `transport` | weighted_l1, wasserstein | cutting planes of the dual |
"""

from deeprok.core.registry import Registry, expect
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
SETS: Registry[AmbiguitySet] = Registry(
    "set",
    {
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
    },
    expect(AmbiguitySet, "an AmbiguitySet"),
)
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
