"""What a checkpoint is: a folder, its name, and the manifest that makes it count."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.train.specification import differences

_NAME = re.compile(r"step-(\d{8,})\.(\d{4,})")
_PIN = "pinned-by-*.json"
_SHOWN = 5


@dataclass(frozen=True, order=True)
class Name:
    """The name of a checkpoint's folder. Names sort from the oldest to the newest.

    Whoever starts later continues from what lay there then, so a later start is newer, whatever its step.

    Attributes:
        start: Number of the start of the processes that wrote it: see :mod:`.fence`.
        step: Steps taken.
    """

    start: int
    step: int

    def __str__(self) -> str:
        """Write it as a folder is called."""
        return f"step-{self.step:08}.{self.start:04}"

    @classmethod
    def read(cls, text: str) -> "Name | None":
        """Read a folder's name; nothing if it is not that of a checkpoint."""
        found = _NAME.fullmatch(text)
        return cls(start=int(found[2]), step=int(found[1])) if found else None


@dataclass(frozen=True, kw_only=True)
class SavedFile:
    """One file of a checkpoint.

    Attributes:
        path: Its name in the folder.
        size: In bytes.
        sha256: Of its content, taken by the process that wrote it.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Document):
    """All that a checkpoint holds beside its tensors. It is written last; without it there is none.

    Attributes:
        step: Steps taken.
        start: Number of the start of the processes that wrote it.
        attempt: The attempt that they belonged to.
        files: The other files of the folder.
        processes: How many wrote it; any number may read it.
        torch: Version of torch that wrote it.
        told: What the training was told that decides its result: data, network, training, order.
        facts: ``State.facts``.
        loss: Mean loss of the last global batch.
        time: When it was committed, in UTC.
    """

    FILE: ClassVar[str] = "manifest.json"
    step: int
    start: int
    attempt: str
    files: tuple[SavedFile, ...]
    processes: int
    torch: str
    told: dict[str, Any]
    facts: dict[str, Any]
    loss: float
    time: str

    @property
    def name(self) -> Name:
        """What its folder is called."""
        return Name(start=self.start, step=self.step)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files)

    @property
    def watched(self) -> float | None:
        """Loss on the split that is watched, if it was measured at this very step."""
        entry = self.facts.get("watched") or {}
        return float(entry["loss"]) if entry.get("step") == self.step else None

    def require_told(self, told: Mapping[str, Any]) -> None:
        """Refuse to continue a training that was told something else.

        Raises:
            InputError: It was; names what differs, with both values.
        """
        differing = differences(self.told, told)
        if differing:
            raise InputError(
                f"checkpoint {self.name} is of another training: {'; '.join(differing[:_SHOWN])}",
                where="training",
                hint="Go back to what it was. If it is the order's streams, which follow from the number of "
                "processes, set training.feeding.streams to what they were, or use as many as before.",
            )


def committed(folder: Path) -> list[Name]:
    """Name the checkpoints of a folder that have a manifest, the newest first; none if it is not there."""
    return [name for name in _named(folder) if (folder / str(name) / Manifest.FILE).is_file()]


def unfinished(folder: Path) -> list[Name]:
    """Name the checkpoints of a folder that have no manifest, the newest first."""
    return [name for name in _named(folder) if not (folder / str(name) / Manifest.FILE).is_file()]


def pinned(folder: Path) -> bool:
    """Tell whether somebody asked to keep a checkpoint: a file ``pinned-by-WHOM.json`` lies in its folder."""
    return any(folder.glob(_PIN))


def _named(folder: Path) -> list[Name]:
    found = [Name.read(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in found if name), reverse=True)
