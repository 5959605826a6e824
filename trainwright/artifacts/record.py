"""The record of a step, its environment and its progress."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a step: enough to build it again.

    Attributes:
        name: The image's short name, such as ``tabular``.
        lock_sha256: Digest of its lock; empty if unknown.
        library: Version of trainwright.
        library_sha256: Digest over the source of trainwright.
        python: Version of the interpreter.
        platform: Operating system and processor.
    """

    name: str
    lock_sha256: str
    library: str
    library_sha256: str
    python: str
    platform: str


@dataclass(frozen=True, kw_only=True)
class Record(Document):
    """The record of one step, from which the run's page and a model's lineage are made.

    It lies beside the step's main document and carries the records of what it was made from, so a
    model's record alone leads back to the source. It is no part of any identity: it names times.

    Attributes:
        step: The verb.
        headline: Result in one line, each number with its limit.
        decision: One of :data:`trainwright.verdicts.DECISIONS` for a gate, else empty.
        started: Start, ISO 8601 in UTC.
        seconds: Duration without imports.
        config: Configuration of the step.
        inputs: Digests of its inputs by name.
        outputs: Digests of its outputs by name.
        environment: Environment of the step.
        parents: Records of its inputs.
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
