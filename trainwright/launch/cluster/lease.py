"""The lease of a job: annotations that name the launcher in charge and until when.

One launcher holds the lease. A launcher that is started again takes it over; the previous holder notices when
it renews, and stops without touching the job. The janitor deletes jobs whose lease has expired. The lease
is part of the job, and each change is one JSON patch that tests the holder: it needs no clock but the API
server's and no object besides the job, unlike a lease in a file or a store (trainwright.storage.lease).
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
"""Annotation: the launcher that holds the lease."""

LEASE_S, RENEW_S = 180.0, 60.0
_LATE_RENEWAL = TransientError("the lease is renewed late")


class LeaseLost(Exception):
    """Another launcher has taken over the lease; its name is the message."""


def new_holder() -> str:
    """Return a name for this launcher that no other launcher ever had."""
    return f"{socket.gethostname()}-{secrets.token_hex(6)}"


def lease_annotations(holder: str, api: Api) -> dict[str, str]:
    """Return the annotations of a lease that begins now, by the API server's clock."""
    until = datetime.fromtimestamp(api.clock.now() + LEASE_S, UTC)
    text = until.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {HOLDER: holder, LEASE_UNTIL: text, OUTAGE_S: f"{api.policy.outage_s:.0f}"}


def holder_of(job: Mapping[str, Any]) -> str:
    """Return the holder of a job's lease; empty if it has none."""
    return str((job["metadata"].get("annotations") or {}).get(HOLDER, ""))


def require_held(api: Api, name: str, uid: str, holder: str) -> Object | None:
    """Return the job as it is now; None if it is gone, or another one has its name.

    Raises:
        LeaseLost: Another launcher holds the lease.
    """
    found = api.job(name)
    if found is None or found["metadata"].get("uid") != uid:
        return None
    if holder_of(found) not in ("", holder):
        raise LeaseLost(holder_of(found))
    return found


def delete_if_held(api: Api, name: str, uid: str, holder: str, version: str = "", **options: float) -> None:
    """Delete a job unless another launcher holds its lease.

    The deletion names the version of the job that it means. Only if the job has changed since, its holder is
    read first.

    Args:
        api: Access to the cluster.
        name: The job.
        uid: Its identity.
        holder: This launcher.
        version: The version in which this launcher last observed that it holds the lease; empty: none.
        options: Further options of :meth:`.Api.delete`.

    Raises:
        LeaseLost: Another launcher holds the lease.
    """
    while True:
        if not version:
            found = require_held(api, name, uid, holder)
            if found is None or found["metadata"].get("deletionTimestamp"):
                return
            version = found["metadata"]["resourceVersion"]
        try:
            api.delete(name, uid, version, **options)
        except ApiConflict:
            version = ""
        else:
            return


class JobLease:
    """Renews the lease of a job in a thread, through outages of any length.

    Args:
        api: Access to the cluster.
        name: The job.
        uid: Its identity.
        holder: This launcher.
        notify: Called with :class:`LeaseLost` if another launcher has taken over.
        every_s: Seconds between two renewals.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        uid: str,
        holder: str,
        notify: Callable[[Exception], None],
        *,
        every_s: float = RENEW_S,
    ) -> None:
        self._api, self._name, self._uid, self._holder, self._notify = api, name, uid, holder, notify
        self._every_s, self._stopped = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Start renewing."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing; the lease expires by itself."""
        self._stopped.set()

    def _run(self) -> None:
        # The watch of the job limits how long an outage may last.
        policy = RetryPolicy(outage_s=float("inf"), longest_s=min(self._every_s, 20.0))
        backoff, due = Backoff(policy, self._stopped), time.monotonic() + self._every_s
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._every_s
            try:
                while not self._renewed():
                    backoff.wait(_LATE_RENEWAL)
            except LeaseLost as lost:
                self._notify(lost)
                return
            except Exception as error:  # whatever it is: the next renewal may succeed
                if not self._stopped.is_set():
                    reason = error.what if isinstance(error, TrainwrightError) else type(error).__name__
                    sys.stderr.write(f"the lease of {self._name} could not be renewed: {reason}\n")
            backoff.reset()

    def _renewed(self) -> bool:
        """Renew once; tell whether no retry is needed.

        Raises:
            LeaseLost: Another launcher has taken over.
        """
        try:
            values = lease_annotations(self._holder, self._api)
            self._api.annotate(self._name, self._uid, values, unless_changed={HOLDER: self._holder})
        except ApiNotFound:
            return True
        except (ApiUnavailable, ApiConflict):
            return False
        except ApiInvalid:
            found = self._api.job(self._name)
            if found and found["metadata"].get("uid") == self._uid and holder_of(found) != self._holder:
                raise LeaseLost(holder_of(found)) from None
        return True
