"""Structures of the weights' covariance P: full, block-diagonal, diagonal, or low-rank.

Every structure implements the same protocol, so the filter works with any of them.

| file | what it is |
|---|---|
| `base` | the protocol |
| `blocks` | `full` and `block`: memory and time grow with the square of a block's size |
| `linear` | `diagonal` and `low_rank`: memory and time grow linearly with the number of weights |
| `columns` | sums over the columns of long rows, tile by tile |
"""

from deeprok.estimators.covariance.base import Correction, Covariance, Evolution, Structure, whiten
from deeprok.estimators.covariance.blocks import BlockDiagonal, block, full
from deeprok.estimators.covariance.columns import over_columns
from deeprok.estimators.covariance.linear import Diagonal, LowRank, diagonal, low_rank

__all__ = [
    "BlockDiagonal",
    "Correction",
    "Covariance",
    "Diagonal",
    "Evolution",
    "LowRank",
    "Structure",
    "block",
    "diagonal",
    "full",
    "low_rank",
    "over_columns",
    "whiten",
]
