"""Documents about a model: its manifest, and the result of its smoke test."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.artifacts.record import Environment
from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's folder; ``path`` is relative to the folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(Document):
    """The manifest of a trained model's folder; written last, so a folder without it is not a model.

    ``kind`` is the architecture, ``inputs`` the raw columns that it reads, ``label`` the one it predicts, and
    ``training_data`` the digest of the training set. ``parents`` has digests by name: the training set, its
    own parents, such as the feature service and every view, and the fitted transforms.
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

    ``model`` is the digest of its manifest; ``input_example`` and ``scores`` are the SHA-256 of the rows and
    of their scores, if any. ``passed``: the scores match the signature. ``said``: a summary, or the error.
    """

    FILE: ClassVar[str] = "trial.json"
    model: str
    input_example: str
    passed: bool
    said: str
    scores: str
    environment: Environment
