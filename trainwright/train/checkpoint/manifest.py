"""The documents of a checkpoint: its name, its manifest, and the index of its tensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError, PermissionRefused
from trainwright.train.config import differences

_NAME = re.compile(r"step-(\d{8,})\.(\d{4,})")
_SHOWN = 5


@dataclass(frozen=True, order=True)
class CheckpointName:
    """The name of a checkpoint's folder: fencing token of the start that wrote it, and steps taken.

    Names sort from the oldest to the newest. A later start continues from what existed then, so its
    checkpoints are newer, whatever their step.
    """

    start: int
    step: int

    def __str__(self) -> str:
        return f"step-{self.step:08}.{self.start:04}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """Parse a folder's name; return None if it is not one of a checkpoint."""
        found = _NAME.fullmatch(text)
        return cls(start=int(found[2]), step=int(found[1])) if found else None


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One file of a checkpoint: its name, its size in bytes, and the SHA-256 taken by its writer."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Document):
    """Everything in a checkpoint beside its tensors. It is written last: without it there is no checkpoint.

    Attributes:
        step: Steps taken.
        start: Fencing token of the start that wrote it.
        attempt: The attempt that start belonged to.
        files: The other files of the folder.
        processes: Number of processes that wrote it; any number may read it.
        torch: Version of torch that wrote it.
        told: Settings that decide the training's result: data, network, training, order.
        facts: ``TrainState.facts``.
        loss: Mean loss of the last global batch.
        time: Time of the commit, in UTC.
    """

    FILE: ClassVar[str] = "manifest.json"
    step: int
    start: int
    attempt: str
    files: tuple[CheckpointFile, ...]
    processes: int
    torch: str
    told: dict[str, Any]
    facts: dict[str, Any]
    loss: float
    time: str

    @property
    def name(self) -> CheckpointName:
        """Name of its folder."""
        return CheckpointName(start=self.start, step=self.step)

    @property
    def watched(self) -> float | None:
        """Loss on the watched split, if it was measured at this very step."""
        entry = self.facts.get("watched") or {}
        return float(entry["loss"]) if entry.get("step") == self.step else None

    def require_same_training(self, settings: Mapping[str, Any]) -> None:
        """Reject settings that decide the result and differ from those of this checkpoint."""
        if differing := differences(self.told, settings):
            raise InputError(
                f"checkpoint {self.name} is of another training: {'; '.join(differing[:_SHOWN])}",
                where="training",
                hint="Restore the old value; that of order.streams is training.feeding.streams.",
            )


@dataclass(frozen=True, kw_only=True)
class TensorChunk:
    """A part of a tensor: its first index along each axis, its shape, and the place of its bytes.

    The bytes are in C order and the machine's own byte order.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """A tensor: its type without ``torch.``, its whole shape, and its parts."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[TensorChunk, ...]


@dataclass(frozen=True, kw_only=True)
class TensorIndex(Document):
    """All tensors of a checkpoint by name."""

    FILE: ClassVar[str] = "index.json"
    tensors: dict[str, TensorEntry]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint."""
    if folder.is_symlink():
        raise PermissionRefused("a checkpoint is not read through a symbolic link", where=str(folder))
    manifest = Manifest.read(folder / Manifest.FILE)
    for entry in manifest.files:
        if "/" in entry.path or entry.path in {"", ".", ".."}:
            raise PermissionRefused(
                f"the manifest names {entry.path!r}, outside its folder", where=str(folder)
            )
    return manifest


def committed(folder: Path) -> list[CheckpointName]:
    """List the checkpoints of a folder that have a manifest, newest first; empty without a folder."""
    return [name for name in _named(folder) if (folder / str(name) / Manifest.FILE).is_file()]


def uncommitted(folder: Path) -> list[CheckpointName]:
    """List the checkpoints of a folder without a manifest, newest first."""
    return [name for name in _named(folder) if not (folder / str(name) / Manifest.FILE).is_file()]


def _named(folder: Path) -> list[CheckpointName]:
    found = [CheckpointName.parse(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in found if name), reverse=True)
