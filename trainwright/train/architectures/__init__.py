"""Models by kind, each behind the same three methods; the user's own are no different."""

from trainwright.train.architectures.contract import Architecture, Inputs, Target
from trainwright.train.architectures.known import make

__all__ = ["Architecture", "Inputs", "Target", "make"]
