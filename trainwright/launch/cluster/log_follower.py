"""The log of the pod that tells most, line by line into the step's own log, and without a gap.

Where it has got to lies in a small file in the attempt's folder: a launcher that is started again goes on
there.
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
"""Seconds that the rest of a log is given after its pod has ended."""


@dataclass(frozen=True, kw_only=True)
class LogPosition(Document):
    """Where the log of an attempt's pod has got to.

    Attributes:
        pod: The pod.
        uid: Its identity.
        time: Time of the last line that was passed on, as the kubelet wrote it; empty before the first.
    """

    FILE: ClassVar[str] = "log-position.json"
    pod: str
    uid: str
    time: str = ""


class LogFollower:
    """Passes the lines of a pod's log on to standard error, from a thread of its own.

    Args:
        api: Access to the cluster.
        folder: The attempt's folder.
        pod: The pod.
        uid: Its identity: a pod that replaces it is another one, with a log of its own.
        retry_s: Longest pause before a log that was refused is asked for again, in seconds.
    """

    def __init__(
        self, api: Api, folder: Path, pod: str, uid: str, *, retry_s: float = _LONGEST_RETRY_S
    ) -> None:
        self._api, self._folder, self._retry_s = api, folder, retry_s
        self._position = _saved_position(folder, pod, uid)
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._noted_s, self.flows = 0.0, False

    @property
    def uid(self) -> str:
        """Whose log it is."""
        return self._position.uid

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what the pod wrote last still comes if it comes soon."""
        self._ended.set()
        if kind is None or issubclass(kind, Exception):
            self._thread.join(_LATE_S)
            self._note(at_once=True)
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # it may be closing itself at this moment
                response.shutdown()

    def _run(self) -> None:
        pause_s, told = _FIRST_RETRY_S, False
        while not self._stopped.is_set():
            over = self._ended.is_set()
            try:
                self._pass_on()
                pause_s, told = _FIRST_RETRY_S, False
            except (ApiNotFound, ApiInvalid, ApiUnavailable):
                pass  # it has not started yet, or the kubelet or the API does not answer
            except TrainwrightError as error:
                # A right can come back: an API restarts, a role is edited. Till then the progress is shown.
                self.flows, pause_s = False, min(2 * pause_s, self._retry_s)
                if not told:
                    sys.stderr.write(f"the log of pod {self._position.pod} cannot be shown: {error.what}\n")
                told = True
            if over:
                return
            self._ended.wait(pause_s)

    def _pass_on(self) -> None:
        """Pass lines on until the log ends; lines that were passed on before are left out."""
        last = self._position.time
        query = {"follow": "true"} | ({"sinceTime": last} if last else {})
        with self._api.log_lines(self._position.pod, query) as (response, lines):
            self._open = response
            for stamp, text in lines:
                if self._stopped.is_set():
                    return
                self.flows = True
                if not stamp:  # "failed to create fsnotify watcher", for one
                    sys.stderr.write(f"{text}\n")
                    continue
                if _sort_key(stamp) <= _sort_key(last):
                    continue
                sys.stderr.write(f"{text}\n")
                self._position = replace(self._position, time=stamp)
                self._note()

    def _note(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._noted_s < _SAVE_S:
            return
        self._noted_s = now
        with contextlib.suppress(OSError):  # then some lines come twice, should the launcher be lost
            self._position.write(self._folder / LogPosition.FILE)


def _saved_position(folder: Path, pod: str, uid: str) -> LogPosition:
    """Return where the log of a pod had got to."""
    path = folder / LogPosition.FILE
    if path.exists():
        with contextlib.suppress(InputError, OSError):
            known = LogPosition.read(path)
            if known.uid == uid:
                return known
    return LogPosition(pod=pod, uid=uid)


def _sort_key(stamp: str) -> tuple[str, str]:
    """Make the times of log lines comparable: nanoseconds come with their last zeros left out."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
