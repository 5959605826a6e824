"""Copy the log of the chief pod into the step's own log, line by line and without a gap.

The position is saved in the attempt's folder, so that a launcher that is started again continues there.
"""

import contextlib
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import urllib3

from trainwright.documents import Document
from trainwright.errors import InputError, TrainwrightError
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.responses import ApiInvalid, ApiNotFound, ApiUnavailable

_SAVE_S, _FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 1.0, 60.0
_LATE_S = 3.0
"""Seconds for the rest of a log to arrive after its pod has ended."""


@dataclass(frozen=True, kw_only=True)
class LogPosition(Document):
    """The position in a pod's log: ``time`` is that of the last copied line, empty before the first."""

    FILE: ClassVar[str] = "log-position.json"
    pod: str
    uid: str
    time: str = ""


class LogFollower:
    """Copies the lines of a pod's log to standard error, in a thread; ``flows`` tells that lines arrive.

    A pod that replaces it has the same name and a log of its own, so its ``uid`` counts.
    """

    def __init__(
        self, api: Api, folder: Path, pod: str, uid: str, *, retry_s: float = _LONGEST_RETRY_S
    ) -> None:
        self._api, self._folder, self._retry_s = api, folder, retry_s
        self._position = LogPosition(pod=pod, uid=uid)
        with contextlib.suppress(InputError, OSError):
            saved = LogPosition.read(folder / LogPosition.FILE)
            self._position = saved if saved.uid == uid else self._position
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._saved_s, self.flows, self.uid = 0.0, False, uid

    def __enter__(self) -> Self:
        """Start copying."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; the last lines of the pod are still copied if they arrive soon."""
        self._ended.set()
        if kind is None or issubclass(kind, Exception):
            self._thread.join(_LATE_S)
            self._save()
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # it may be closing itself at this moment
                response.shutdown()

    def _run(self) -> None:
        pause_s, reported = _FIRST_RETRY_S, False
        while not self._stopped.is_set():
            over = self._ended.is_set()
            try:
                self._copy()
                pause_s, reported = _FIRST_RETRY_S, False
            except (ApiNotFound, ApiInvalid, ApiUnavailable):
                pass  # it has not started yet, or the kubelet or the API does not answer
            except TrainwrightError as error:
                # The right can come back: an API restarts, a role is edited.
                self.flows, pause_s = False, min(2 * pause_s, self._retry_s)
                if not reported:
                    sys.stderr.write(f"the log of pod {self._position.pod} cannot be shown: {error.what}\n")
                reported = True
            if over:
                return
            self._ended.wait(pause_s)

    def _copy(self) -> None:
        """Copy lines until the log ends, except those that were copied before."""
        last = self._position.time
        query = {"follow": "true"} | ({"sinceTime": last} if last else {})
        with self._api.log_lines(self._position.pod, query) as (response, lines):
            self._open = response
            for stamp, text in lines:
                if self._stopped.is_set():
                    return
                self.flows = True
                if stamp and _sort_key(stamp) <= _sort_key(last):
                    continue
                sys.stderr.write(f"{text}\n")
                if stamp:  # "failed to create fsnotify watcher" has none
                    self._position = replace(self._position, time=stamp)
                    if time.monotonic() - self._saved_s >= _SAVE_S:
                        self._save()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        with contextlib.suppress(OSError):  # then some lines appear twice after a restart of the launcher
            self._position.write(self._folder / LogPosition.FILE)


def _sort_key(stamp: str) -> tuple[str, str]:
    """Return a sortable form of a timestamp, whose fraction has no trailing zeros."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
