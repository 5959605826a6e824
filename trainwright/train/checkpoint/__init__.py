"""Checkpoints: the state of a training, saved while it runs and resumed after a kill.

A checkpoint is a folder ``<job directory>/checkpoints/step-00000100.0003`` (100 steps, by the third start of
the processes). It is valid while its ``manifest.json`` exists and the digests in it hold.
"""

from trainwright.train.checkpoint.checkpointer import Checkpointer
from trainwright.train.checkpoint.manifest import CheckpointName, Manifest, committed
from trainwright.train.checkpoint.state import TrainState

__all__ = ["CheckpointName", "Checkpointer", "Manifest", "TrainState", "committed"]
