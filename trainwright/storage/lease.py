"""A lease: of many runs, one writes in a folder, and another takes over when it died.

It consists of files that are only ever created. ``lease.N.json`` is a claim; the highest number holds. Its
owner writes heartbeats, ``lease.N.beat.K.json``, and ends with ``lease.N.done.json``. Whoever sees no new
heartbeat for the length of the lease claims N+1. That time is measured on the observer's monotonic clock, as
Kubernetes' leader election does: no wall clock that jumps, of a pod or a store, ends a living lease.
"""

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from trainwright.artifacts import SourceFile
from trainwright.documents import canonical
from trainwright.errors import InputError, TrainwrightError, TransientError
from trainwright.storage.listing import list_files
from trainwright.storage.reading import head
from trainwright.storage.store import AlreadyExists
from trainwright.storage.uris import join
from trainwright.storage.writing import create, remove

_NAME = re.compile(r".*/lease\.(\d{8})\.(?:beat\.(\d{8})\.|(done)\.)?json")
_BEATS = 3
"""Heartbeats in the time of a lease."""

_SHORTEST_S = 0.05
"""The first wait for another holder; each next is twice as long."""


@dataclass(frozen=True)
class _Claim:
    """The highest claim: its files, and the beat of each."""

    number: int
    done: bool
    beats: dict[str, int]
    older: tuple[str, ...]

    @property
    def renewal(self) -> tuple[int, int]:
        """The number of the claim and of its last heartbeat: it changes with each of them."""
        return self.number, max(self.beats.values())


class Lease:
    """A claim that this process holds, as long as its heartbeats arrive.

    Attributes:
        began: Time of the claim, by the store's clock.
        number: Number of the claim: it only rises, so it is a fencing token.
    """

    def __init__(self, folder: str, number: int, began: datetime, lease_s: float) -> None:
        self.began, self.number = began, number
        self._folder, self._lease_s = folder, lease_s
        self._heard = time.monotonic()
        self._lost = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Check that the claim still holds; call it before every write.

        Raises:
            TransientError: It does not: another may be writing.
        """
        silent_s = time.monotonic() - self._heard
        if not self._lost and silent_s > self._lease_s:
            self._lost = f"no heartbeat arrived for {silent_s:.0f} s"
        if self._lost:
            raise TransientError(
                f"the lease was lost: {self._lost}",
                where=self._folder,
                hint="Nothing is lost: run it again.",
            )

    def release(self) -> None:
        """Release the claim, so that the next need not wait; otherwise it expires."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            with suppress(TrainwrightError):
                create(_uri(self._folder, self.number, "done."), b"{}")

    def _send_heartbeats(self) -> None:
        beat = 0
        while not self._ended.wait(self._lease_s / _BEATS):
            now, beat = time.monotonic(), beat + 1
            with suppress(TrainwrightError):  # the next one may arrive; `require` counts the time
                create(_uri(self._folder, self.number, f"beat.{beat:08d}."), b"{}")
                claim = _find_claim(self._folder)
                if claim is None or claim.number != self.number:
                    self._lost = "another run took over"
                    return
                if time.monotonic() - self._heard > self._lease_s:
                    # After a pause: another may have listed before this heartbeat came, and claim in a
                    # moment.
                    self._lost = "the last heartbeat came too late"
                    return
                remove(uri for uri, number in claim.beats.items() if number not in {0, beat})
                self._heard = now


@contextmanager
def hold_lease(folder: str, *, lease_s: float, wait_s: float) -> Iterator[Lease]:
    """Hold the lease of a folder; wait for another run, and take over from one that died.

    Args:
        folder: Path or URI; it need not exist.
        lease_s: Seconds of watching without a new heartbeat after which an owner counts as dead.
        wait_s: How long to wait for another owner. If shorter than the lease, no dead owner is replaced.

    Raises:
        TransientError: Another run holds it all this time.
    """
    lease = _take(folder, lease_s, wait_s)
    try:
        yield lease
    finally:
        lease.release()


def _take(folder: str, lease_s: float, wait_s: float) -> Lease:
    started, pause = time.monotonic(), _SHORTEST_S
    renewal, renewed = None, started
    while True:
        now = time.monotonic()  # before the listing: a heartbeat that it does not see came later than this
        claim = _find_claim(folder)
        if claim is not None and claim.renewal != renewal:
            renewal, renewed = claim.renewal, time.monotonic()
        if claim is None or claim.done or now - renewed > lease_s:
            lease = _claim(folder, claim, lease_s)
            if lease is not None:
                return lease
            continue
        if now - started > wait_s:
            raise TransientError(
                f"another run has been writing here for the {wait_s:.0f} s of waiting",
                where=folder,
                hint=f"Start it again when the other has ended, or set wait_s above {lease_s:.0f} s: "
                "only then can this run see that the other died.",
            )
        time.sleep(pause)
        pause = min(2 * pause, 1.0, lease_s / _BEATS)


def _claim(folder: str, before: _Claim | None, lease_s: float) -> Lease | None:
    """Claim the next number; None if another did."""
    number = before.number + 1 if before else 1
    owner = {"host": socket.gethostname(), "process": os.getpid(), "token": secrets.token_hex(8)}
    try:
        began = _written(create(_uri(folder, number), canonical(owner).encode()))
    except AlreadyExists:
        return None
    now = _find_claim(folder)
    if now is None or now.number != number:
        return None  # the list was outdated: a later claim holds
    remove(now.older)
    return Lease(folder, number, began, lease_s)


def _find_claim(folder: str) -> _Claim | None:
    try:
        files = list_files(join(folder, "lease.*.json"))
    except InputError:
        return None  # nothing is there yet; or a file disappeared meanwhile, and the next listing tells
    found = [(match, file) for file in files if (match := _NAME.fullmatch(file.uri))]
    if not found:
        return None
    number = max(int(match[1]) for match, _ in found)
    own = [(match, file) for match, file in found if int(match[1]) == number]
    return _Claim(
        number=number,
        done=any(match[3] for match, _ in own),
        beats={file.uri: int(match[2] or 0) for match, file in own},
        older=tuple(file.uri for match, file in found if int(match[1]) < number),
    )


def _written(file: SourceFile) -> datetime:
    """Return a file's time of writing; look it up where the create call did not return it, as on S3."""
    return datetime.fromisoformat(file.written or head(file.uri).written)


def _uri(folder: str, number: int, kind: str = "") -> str:
    return join(folder, f"lease.{number:08d}.{kind}json")
