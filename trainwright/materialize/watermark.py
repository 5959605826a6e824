"""Up to where a view was materialized: small documents that are only ever added, the last one counts.

Feast keeps this in its registry, where a future end bricks later runs, an apply has reset it, and two writers
on an object store lose each other's. Here each is written once, after its check, under a number of its own.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from trainwright.documents import Document, canonical
from trainwright.errors import InputError, TransientError
from trainwright.materialize.window import SKEW, Window
from trainwright.storage import AlreadyThere, create, join, list_files, read_bytes, remove

KEPT = 200
"""Watermarks of a view that are kept: each run's own record has the same figures."""

_NAME = re.compile(r"watermark\.(\d{8})\.json")


@dataclass(frozen=True, kw_only=True)
class Watermark(Document):
    """One finished and checked run of one view.

    Attributes:
        project: Feast's project.
        view: The view.
        store: Which online store, without credentials.
        number: 1 for the first; each is one more.
        reached: Everything before this time is in the online store, in ISO 8601; empty if that is not known,
            as after a backfill somewhere in between.
        start: Start of the run's window; empty is the beginning of the data.
        end: End of the run's window.
        backfill: Whether the start was asked for.
        at: When the run began, by the clock of the store that holds this.
        definition: Digest of the view's definition.
        content: Digest of the files that were read.
        rows: Rows in the window.
        keys: Keys that had any.
        written: Keys that were written; the others had a newer row already.
        checked: Keys that were compared afterwards, all equal.
    """

    project: str
    view: str
    store: str
    number: int
    reached: str
    start: str
    end: str
    backfill: bool
    at: str
    definition: str
    content: str
    rows: int
    keys: int
    written: int
    checked: int

    @property
    def reached_time(self) -> datetime | None:
        """``reached`` as a time."""
        return datetime.fromisoformat(self.reached) if self.reached else None


class History:
    """The watermarks of one view in one folder.

    Args:
        folder: Path or URI; it need not exist.
        kept: How many of the last ones stay.
    """

    def __init__(self, folder: str, kept: int = KEPT) -> None:
        self._folder, self._kept = folder, kept

    def last(self) -> Watermark | None:
        """Return the newest watermark; None if the view was never materialized."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def reached(self, now: datetime, *, store: str, definition: str) -> Watermark | None:
        """Return the newest watermark that can be gone on from.

        Args:
            now: The time. A watermark that reached further was written by a clock that was ahead, and is
                passed over.
            store: The store. What went into another is not in this one.
            definition: Digest of the view. After a change of it, such as a new feature, all is due again.
        """
        for number in reversed(self._numbers()):
            mark = self._read(number)
            if (mark.store, mark.definition) != (store, definition):
                return None
            if mark.reached_time is None or mark.reached_time <= now + SKEW:
                return mark
        return None

    def add(self, mark: Watermark) -> None:
        """Write the next watermark, and remove those that are older than those that stay.

        Raises:
            TransientError: Another run wrote it first.
        """
        uri = join(self._folder, _name(mark.number))
        try:
            create(uri, canonical(mark.to_json()).encode())
        except AlreadyThere:
            raise TransientError(
                f"another run of view {mark.view!r} finished meanwhile", where=uri, hint="Run again."
            ) from None
        old = [number for number in self._numbers() if number <= mark.number - self._kept]
        remove(join(self._folder, _name(number)) for number in old)

    def _numbers(self) -> list[int]:
        try:
            files = list_files(join(self._folder, "watermark.*.json"))
        except InputError:
            return []
        names = (_NAME.fullmatch(file.uri.rsplit("/", 1)[-1]) for file in files)
        return sorted(int(name.group(1)) for name in names if name)

    def _read(self, number: int) -> Watermark:
        uri = join(self._folder, _name(number))
        try:
            return Watermark.from_json(json.loads(read_bytes(uri)), where=uri)
        except ValueError as error:
            raise InputError(
                f"this watermark is not JSON: {error}",
                where=uri,
                hint="Remove it: the next run goes on from the one before it.",
            ) from None


def reached_after(before: Watermark | None, window: Window) -> str:
    """Return up to where everything is materialized once a window was, or empty.

    A window that starts where nothing was left out moves it on; one that starts later leaves a gap and does
    not. It never moves back: what was written stays written.
    """
    reached = before.reached_time if before else None
    whole = window.start is None or not window.backfill or (reached is not None and window.start <= reached)
    if not whole:
        return before.reached if before else ""
    return max(window.end, reached or window.end).astimezone(UTC).isoformat()


def _name(number: int) -> str:
    return f"watermark.{number:08d}.json"
