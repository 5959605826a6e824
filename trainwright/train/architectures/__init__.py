"""Models by kind, each behind the same three methods; the user's own are no different."""

from trainwright.train.architectures.contract import (
    Architecture,
    InBlocks,
    InColumns,
    Inputs,
    InStages,
    Target,
)
from trainwright.train.architectures.known import make

__all__ = ["Architecture", "InBlocks", "InColumns", "InStages", "Inputs", "Target", "make"]
