"""A trained model: its manifest, and that it was tried."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.artifacts.record import Environment
from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's folder; ``path`` is relative to it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(Document):
    """The manifest of a trained model's folder; written last, so a folder without it is not a model.

    Attributes:
        files: Weights, program, transforms, signature, input example, card.
        kind: The architecture, such as ``mlp``.
        inputs: Names of the raw columns the model reads.
        label: The column it predicts.
        training_data: Digest of the snapshot it was fitted on.
        config: What was asked of the training, as given.
        metrics: Final figures of the training, such as ``train_loss``.
        parents: Digests of what it was made from, by name: the training set, what that was made from, such
            as the feature service and every view, and the fitted transforms.
    """

    FILE: ClassVar[str] = "model.json"
    files: tuple[ModelFile, ...]
    kind: str
    inputs: tuple[str, ...]
    label: str
    training_data: str
    config: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial(Document):
    """The result of a smoke test: a fresh process loaded the model and scored the input example.

    Attributes:
        model: Digest of the model's manifest.
        input_example: SHA-256 of the file with the rows that it was asked about.
        passed: Whether it answered, and with what its signature says.
        said: What it answered, in a few words; or what went wrong.
        scores: SHA-256 of the answers; empty if there are none.
        environment: Where it was loaded.
    """

    FILE: ClassVar[str] = "trial.json"
    model: str
    input_example: str
    passed: bool
    said: str
    scores: str
    environment: Environment
