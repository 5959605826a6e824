"""What survives a kill: the state of a training, saved while it goes on, and found again.

A checkpoint is a folder ``<home>/checkpoints/step-00000100.0003`` (100 steps, by the third start of the
processes). It counts once its ``manifest.json`` is there, and as long as the digests in it hold.
"""

from trainwright.train.checkpoint.keeper import Checkpoints, Figures
from trainwright.train.checkpoint.manifest import Manifest, Name, committed

__all__ = ["Checkpoints", "Figures", "Manifest", "Name", "committed"]
