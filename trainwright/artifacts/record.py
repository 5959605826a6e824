"""The record of a step, its environment and its progress."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.documents import Document

SOURCE_PATCH = "source.patch"
"""Changes of the experiment since its commit: beside a local run, and in the evidence of a version."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a step, enough to build it again: image, digest of its lock, trainwright, Python."""

    name: str
    lock_sha256: str
    library: str
    library_sha256: str
    python: str
    platform: str


@dataclass(frozen=True, kw_only=True)
class Record(Document):
    """The record of one step, from which the run's page and a model's lineage are made.

    It lies beside the step's main document and carries the records of what it was made from, so a model's
    record alone leads back to the source. It is no part of any identity: it names times. ``headline`` is the
    result in one line, each number with its limit; ``decision`` is that of a gate, else empty; ``seconds`` do
    not count imports; ``inputs`` and ``outputs`` are digests by name.
    """

    FILE: ClassVar[str] = "record.json"
    step: str
    headline: str
    started: str
    seconds: float
    environment: Environment
    decision: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    parents: tuple["Record", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Progress(Document):
    """The progress of a training, rewritten at most every 10 seconds."""

    FILE: ClassVar[str] = "progress.json"
    step: int
    total: int
    epoch: int
    loss: float
    samples_per_s: float
    eta_s: float
    time: str
    checkpoint_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return step of steps, percent, epoch, loss, speed, use of the GPUs, and the time left."""
        gpu = self.metrics.get("gpu_use")
        return (
            f"step {self.step:,} of {self.total:,} ({self.step / max(self.total, 1):.0%}), "
            f"epoch {self.epoch}, loss {self.loss:.4f}, {self.samples_per_s:,.0f} samples/s"
            + (f", GPU {gpu:.0%}" if gpu is not None else "")
            + f", {self.eta_s:,.0f} s left"
        )
