"""The owner's lease: a job says until when somebody looks after it, and who. An expired one is swept away.

There is one holder at a time. A launcher that is started again takes over; the one before notices it by the
very patch with which it wanted to renew, and stops following without touching the job.
"""

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from trainwright.errors import TrainwrightError, TransientError
from trainwright.launch.cluster.api import Api, Object
from trainwright.launch.cluster.responses import ApiConflict, ApiInvalid, ApiNotFound, ApiUnavailable
from trainwright.launch.manifests.annotations import LEASE_UNTIL, OUTAGE_S
from trainwright.retries import Backoff, RetryPolicy

HOLDER = "trainwright/holder"
"""Annotation: the launcher that looks after the job."""

LEASE_S, RENEW_S = 180.0, 60.0
_LATE_RENEWAL = TransientError("the lease is renewed late")


class LeaseLost(Exception):
    """Another launcher has taken the job over."""


def new_holder() -> str:
    """Name this launcher: no other one has this name, nor had it before."""
    return f"{socket.gethostname()}-{secrets.token_hex(6)}"


def lease_annotations(holder: str, api: Api) -> dict[str, str]:
    """Return what a job says that is looked after from now on.

    Args:
        holder: Who looks after it.
        api: Access to the cluster: whose clock it is, and how long an outage may keep one from renewing.
    """
    until = datetime.fromtimestamp(api.clock.now() + LEASE_S, UTC)
    said = until.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {HOLDER: holder, LEASE_UNTIL: said, OUTAGE_S: f"{api.policy.outage_s:.0f}"}


def holder_of(job: Mapping[str, Any]) -> str:
    """Return who looks after a job; empty if nobody says so."""
    return str((job["metadata"].get("annotations") or {}).get(HOLDER, ""))


def require_held(api: Api, name: str, uid: str, holder: str) -> Object | None:
    """Return the job as it is now; nothing if it is gone, or another one has its name.

    Raises:
        Outdone: Another launcher looks after it by now.
    """
    found = api.job(name)
    if found is None or found["metadata"].get("uid") != uid:
        return None
    if holder_of(found) not in ("", holder):
        raise LeaseLost(holder_of(found))
    return found


def delete_if_held(api: Api, name: str, uid: str, holder: str, version: str = "", **how: float) -> None:
    """Delete a job, unless another launcher looks after it: one who comes back late must not end its work.

    The deletion itself says which version of the job it means. It is asked for at once, and only if the job
    has changed since then, it is looked at who holds it.

    Args:
        api: Access to the cluster.
        name: The job.
        uid: Its identity.
        holder: Who deletes.
        version: The version in which it was last seen to be held by us; empty if none was.
        how: What :meth:`.Api.delete` takes beside these.

    Raises:
        Outdone: Another launcher looks after it.
    """
    while True:
        if not version:
            found = require_held(api, name, uid, holder)
            if found is None or found["metadata"].get("deletionTimestamp"):
                return
            version = found["metadata"]["resourceVersion"]
        try:
            api.delete(name, uid, version, **how)
        except ApiConflict:
            version = ""
        else:
            return


class Lease:
    """Renews the lease of a job from a thread of its own, through outages of any length.

    Args:
        api: Access to the cluster.
        name: The job.
        uid: Its identity.
        holder: Who renews.
        tell: Called with :class:`Outdone`, should another launcher have taken over.
        every_s: Seconds between two renewals.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        uid: str,
        holder: str,
        tell: Callable[[Exception], None],
        *,
        every_s: float = RENEW_S,
    ) -> None:
        self._api, self._name, self._uid, self._holder, self._tell = api, name, uid, holder, tell
        self._every_s, self._stopped = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Begin to renew."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; the lease runs out by itself."""
        self._stopped.set()

    def _run(self) -> None:
        # The watch of the job decides how long an outage may last.
        policy = RetryPolicy(outage_s=float("inf"), longest_s=min(self._every_s, 20.0))
        backoff, due = Backoff(policy, self._stopped), time.monotonic() + self._every_s
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._every_s
            try:
                while not self._renewed():
                    backoff.wait(_LATE_RENEWAL)
            except LeaseLost as outdone:
                self._tell(outdone)
                return
            except Exception as error:  # whatever it is: the next renewal may succeed
                if not self._stopped.is_set():
                    told = error.what if isinstance(error, TrainwrightError) else type(error).__name__
                    sys.stderr.write(f"the lease of {self._name} could not be renewed: {told}\n")
            backoff.reset()

    def _renewed(self) -> bool:
        """Renew once; tell whether that is done with.

        Raises:
            Outdone: Another launcher has taken over.
        """
        try:
            said = lease_annotations(self._holder, self._api)
            self._api.annotate(self._name, self._uid, said, unless_changed={HOLDER: self._holder})
        except ApiNotFound:
            return True
        except (ApiUnavailable, ApiConflict):
            return False
        except ApiInvalid:
            found = self._api.job(self._name)
            if found and found["metadata"].get("uid") == self._uid and holder_of(found) != self._holder:
                raise LeaseLost(holder_of(found)) from None
        return True
