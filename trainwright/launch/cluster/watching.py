"""Looking on at objects: a list, then a watch from its version on, for as long as somebody wants to know.

Each watcher is a thread of its own that sleeps in a read. What it finds goes into one queue, in its order.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import urllib3

from trainwright.errors import DependencyError, PermissionRefused, TransientError
from trainwright.launch.cluster.answers import Absent, Expired, Invalid, Passing
from trainwright.launch.cluster.api import Api, Object
from trainwright.launch.cluster.selection import Selection
from trainwright.retries import Backoff

LISTED = "LISTED"
"""What a list is called among the changes of a watch."""

_WATCH_S, _RELIST_S = 60, 600.0
"""Seconds after which the API ends a watch, so that a dead connection is noticed, and between two lists."""


_SHORT_S = 5.0
"""A watch that ends sooner and without a change is worth nothing; the longest pause after such a one."""


@dataclass(frozen=True, kw_only=True)
class News:
    """Something that a watcher saw.

    Attributes:
        kind: What was looked at: ``job`` or ``pods``.
        change: ``LISTED``, ``ADDED``, ``MODIFIED`` or ``DELETED``.
        bodies: All objects of a list, or the one that changed.
    """

    kind: str
    change: str
    bodies: tuple[Object, ...]


class Watcher:
    """Watches objects from a thread of its own, and sits outages out.

    Args:
        api: Access to the cluster.
        selection: The objects.
        tell: Called with every :class:`News`, and with the error that ended the watching.
    """

    def __init__(self, api: Api, selection: Selection, tell: Callable[[News | Exception], None]) -> None:
        self._api, self._selection, self._tell = api, selection, tell
        self._stopped = threading.Event()
        self._backoff = Backoff(api.policy, self._stopped)
        self._version, self._listed_s, self._known = "", 0.0, False
        self._empty = 0
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{selection.kind}", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; the thread lets go of its connection by itself."""
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # it may be closing itself at this moment
                response.shutdown()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except Passing as passing:
                if not self._sat_out(passing):
                    return
            except Expired as expired:  # a list, too, can be told so
                if not self._sat_out(Passing(TransientError(f"the Kubernetes API says: {expired}"))):
                    return
            except (PermissionRefused, DependencyError, Invalid, Absent) as error:
                # What was allowed a minute ago mostly is so again in a moment: an API that restarts says so.
                told = TransientError(str(error))
                if not self._known:
                    self._say(error)
                    return
                if not self._sat_out(Passing(told)):
                    return
            except Exception as error:  # a thread has nobody else to tell
                self._say(error)
                return

    def _look(self) -> None:
        """List if it is time to, then watch until the watch ends."""
        if not self._version or time.monotonic() - self._listed_s > _RELIST_S:
            items, self._version = self._api.select(self._selection)
            self._listed_s, self._known = time.monotonic(), True
            self._backoff.reset()
            self._say(News(kind=self._selection.kind, change=LISTED, bodies=tuple(items)))
        began_s, seen = time.monotonic(), False
        try:
            with self._api.watch(self._selection, self._version, _WATCH_S) as (response, changes):
                self._open = response
                self._backoff.reset()
                for change in changes:
                    if self._stopped.is_set():
                        return
                    seen = True
                    self._see(change)
        except Expired:
            self._version = ""
        finally:
            self._open = None
        if not seen and time.monotonic() - began_s < _SHORT_S:
            # Proxies cut streams off, and an API that starts calls every version too old: no storm of calls.
            self._empty += 1
            self._stopped.wait(min(self._api.policy.first_s * 2 ** min(self._empty, 10), _SHORT_S))
        else:
            self._empty = 0

    def _see(self, change: Object) -> None:
        body = change["object"]
        self._version = (body.get("metadata") or {}).get("resourceVersion") or self._version
        if change["type"] != "BOOKMARK":
            self._say(News(kind=self._selection.kind, change=change["type"], bodies=(body,)))

    def _sat_out(self, passing: Passing) -> bool:
        """Wait a while; tell the error instead if that has lasted too long."""
        try:
            self._backoff.wait(passing.error, passing.pause_s)
        except TransientError as error:
            self._say(error)
            return False
        return True

    def _say(self, told: News | Exception) -> None:
        if not self._stopped.is_set():
            self._tell(told)
