"""Settings that are covariances: a number, a vector or a matrix; on the command line a number or a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import Precision
from deeprok.core.files import as_numbers, as_tuples

#: P₀ or Pᵥ: one variance for all weights, one for each, or a full covariance.
Variances = float | tuple[float, ...] | tuple[tuple[float, ...], ...]


def read_variances(text: str, field: str) -> Variances:
    """A covariance from a number, or from a .json or .npy file with a vector or a matrix."""
    try:
        return float(text)
    except ValueError:
        pass
    path = Path(text)
    try:
        with open(path, "rb") as file:
            read: Any = np.lib.format.read_array(file) if path.suffix == ".npy" else json.load(file)
        values = as_numbers(read)
        if values is None:
            raise TypeError(type(read))
        variances: Variances = as_tuples(values.astype(float).tolist())
    except Exception as error:  # of any kind that Python and numpy raise for a missing or damaged file
        missing = " (there is no such file)" if isinstance(error, FileNotFoundError) else ""
        raise DeeprokError(
            f"{field} is '{text}'{missing}; it must be a number, or a .json or .npy file with a vector or a matrix"
        ) from error
    return variances


def option(field: str) -> Any:
    """The command-line type of a covariance."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER|FILE",
        instance_from_str=lambda words: read_variances(words[0], field),
        is_instance=lambda value: isinstance(value, float | tuple),
        str_from_instance=lambda value: [str(value) if isinstance(value, float) else "…"],
    )


def check_variances(name: str, given: Variances, n: int, precision: Precision, definite: bool) -> None:
    """Raises unless this is a covariance of n weights, positive definite (`definite`) or semidefinite."""
    allowed = f"a number, a vector of {n} or a matrix of {n} × {n}"
    numbers = as_numbers(given)
    if numbers is None and isinstance(given, list | tuple):
        raise DeeprokError(f"{name} has rows of unequal length or entries that are not numbers; it must be {allowed}")
    if numbers is None:
        raise DeeprokError(f"{name} is {shown(given)}; it must be {allowed}")
    if numbers.shape not in ((), (n,), (n, n)):
        raise DeeprokError(f"{name} has shape {shown(numbers.shape)}; for this network it must be {allowed}")
    P = numbers.astype(float)
    with np.errstate(over="ignore"):
        held = P.astype(precision)  # in the run's precision, in which 1e39 may be infinite
    if P.ndim < 2:
        right = np.isfinite(held) & ((held > 0) if definite else (held >= 0))
        if not right.all():
            which = f"is {shown(given)}; it" if P.ndim == 0 else f"has a variance of {P[~right][0]:g}; every variance"
            sign = "positive" if definite else "at least 0"
            raise DeeprokError(f"{name} {which} must be finite and {sign} in {precision}")
        return
    if not np.isfinite(held).all():
        raise DeeprokError(f"{name} has an entry that is infinite or not a number in {precision}")
    if not np.allclose(P, P.T, rtol=1e-6, atol=0):
        raise DeeprokError(f"{name} is not symmetric")
    least = np.linalg.eigvalsh(P).min()
    if not (least > 0 if definite else least >= -1e-9 * np.abs(P).max()):
        kind, word = ("definite", "positive") if definite else ("semidefinite", "at least 0")
        raise DeeprokError(f"{name} is not positive {kind}; all its eigenvalues must be {word}")
