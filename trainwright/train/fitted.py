"""What was fitted on a split, kept so that a training that is started again does not read it all again."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import trainwright
from trainwright.artifacts import Snapshot
from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError
from trainwright.train.labels import Labels
from trainwright.transforms import Transforms


@dataclass(frozen=True, kw_only=True)
class FittedSplit(Document):
    """Transforms, and the labels of each piece.

    Attributes:
        key: Names all that it depends on.
        transforms: The transforms, as their document has them.
        labels: What is known of the labels of each piece.
    """

    FILE: ClassVar[str] = "fitted.json"
    key: str
    transforms: dict[str, Any]
    labels: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, key: str, transforms: Transforms, labels: list[Labels]) -> "FittedSplit":
        """Describe what was fitted."""
        parts = tuple(_plain(part) for part in labels)
        return cls(key=key, transforms=transforms.to_json(), labels=parts)

    def result(self) -> tuple[Transforms, list[Labels]]:
        """Return what was fitted, to the bit."""
        transforms = Transforms.from_json(self.transforms)
        return transforms, [_labels(part) for part in self.labels]


def _plain(part: Labels) -> dict[str, Any]:
    """Return counts as JSON has them: names are texts, and there is no infinity."""
    plain = asdict(part) | {"counts": {str(each): rows for each, rows in part.counts.items()}}
    return plain if part.rows else {"kind": part.kind, "missing": part.missing}


def _labels(plain: dict[str, Any]) -> Labels:
    if "rows" not in plain:
        return Labels(**plain)
    counts = {int(each): rows for each, rows in plain["counts"].items()}
    low, high = tuple(plain["low"]), tuple(plain["high"])
    return Labels(**plain | {"counts": counts, "low": low, "high": high})


def key_of(snapshot: Snapshot, split: str, asked: Any) -> str:
    """Name what is fitted by all that it depends on: the bytes of the split, and how it is read."""
    files = [[entry.checksum, entry.size, entry.rows] for entry in snapshot.files if entry.split == split]
    columns = [[column.name, column.type] for column in snapshot.columns]
    return digest_text(canonical([trainwright.__version__, files, columns, snapshot.roles, asked]))[:32]


def recalled(folder: Path | None, key: str) -> FittedSplit | None:
    """Return what was kept in a folder under a key; what cannot be read was not kept."""
    if folder is None or not (path := _place(folder, key)).exists():
        return None
    try:
        found = FittedSplit.read(path)
    except InputError:
        return None
    return found if found.key == key else None


def keep(folder: Path | None, fitted: FittedSplit) -> None:
    """Keep what was fitted in a folder, if there is one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        fitted.write(_place(folder, fitted.key))


def _place(folder: Path, key: str) -> Path:
    return folder / f"{key}.{FittedSplit.FILE}"
