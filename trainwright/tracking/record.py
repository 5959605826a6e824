"""The run record: where a step ran, what it read and made, and what it found."""

import hashlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import trainwright
from trainwright.artifacts import Environment, Record
from trainwright.documents import read_json

_NO_STEP_IMPORTS = {
    "authoring",
    "cli",
    "local",
    "reproduce",
    "service",
    "_compiled",
    "_components",
    "_images",
}


def library_digest(package: Path | None = None) -> str:
    """Return the SHA-256 over the source files that a step can reach, names included.

    What no step imports is left out, as in an image: a change of the command line repeats no step.

    Args:
        package: Folder of the package; this one when None.
    """
    root = package or Path(trainwright.__file__).resolve().parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        own = path.relative_to(root).parts[0] in _NO_STEP_IMPORTS
        if path.is_file() and path.suffix in {".py", ".html", ".css"} and not own:
            total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    for path in sorted(trainwright.COMPONENTS.glob("*/component.py")):
        total.update(f"{path.parent.name}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


@cache
def environment() -> Environment:
    """Describe the environment this process runs in."""
    made = Path(sys.prefix) / trainwright.ENVIRONMENT_FILE
    known: dict[str, str] = read_json(made) if made.exists() else {}
    return Environment(
        name=known.get("name", Path(sys.prefix).name),
        lock_sha256=known.get("lock_sha256", ""),
        library=trainwright.__version__,
        library_sha256=library_digest(),
        python=platform.python_version(),
        platform=f"{platform.system().lower()}-{platform.machine()}",
    )


class Stopwatch:
    """Measures one step from the moment it is made."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self._start = time.monotonic()

    def record(
        self,
        folder: Path,
        step: str,
        headline: str,
        *,
        decision: str = "",
        config: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        parents: Sequence[Path | Record] = (),
    ) -> Record:
        """Write the step's record beside its main document.

        Args:
            folder: Folder of the step's main artifact.
            step: The verb.
            headline: The one fact worth a line.
            decision: What a judging step decided.
            config: What was asked of the step, as plain JSON data.
            inputs: Digests of what it read, by name.
            outputs: Digests of what it made, by name.
            parents: Folders of the artifacts it read, or records; they are carried on where there is one.
        """
        record = Record(
            step=step,
            headline=headline,
            decision=decision,
            started=self.started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._start, 3),
            config=dict(config or {}),
            inputs=dict(inputs or {}),
            outputs=dict(outputs or {}),
            environment=environment(),
            parents=tuple(_record_of(parent) for parent in parents if _has_record(parent)),
        )
        record.write(folder)
        return record


def _has_record(parent: Path | Record) -> bool:
    return isinstance(parent, Record) or (parent / Record.FILE).exists()


def _record_of(parent: Path | Record) -> Record:
    return parent if isinstance(parent, Record) else Record.read(parent)
