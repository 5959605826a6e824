"""The completion marker of an attempt. The agent reads it, and imports no sections of the experiment file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class Completion(Document):
    """The completion marker of an attempt: digests of its outputs by name, written by rank 0 at the very end.

    Exit code 0 and a condition of Kubernetes are no proof of success: an evicted worker that exits 0 makes a
    job Succeeded.
    """

    FILE: ClassVar[str] = "result.json"
    attempt: str
    outputs: dict[str, str]


def completed(folder: Path, attempt: str) -> Completion | None:
    """Return the completion marker of an attempt, or None if it has not completed."""
    if not (folder / Completion.FILE).exists():
        return None
    completion = Completion.read(folder)
    return completion if completion.attempt == attempt else None
