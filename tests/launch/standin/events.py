"""Events: what the components of a cluster say about objects."""

import time
from datetime import UTC, datetime

from tests.launch.standin.resources import EVENT, Object
from tests.launch.standin.store import Store, now


class Recorder:
    """Writes the events of one component; what is said again is counted."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store, self._component, self._host = store, component, host
        self._said: dict[tuple[str, str, str, str], str] = {}

    def say(self, about: Object, kind: str, reason: str, message: str, field: str = "") -> None:
        """Say something about an object.

        Args:
            about: The object.
            kind: ``Normal`` or ``Warning``.
            reason: One word.
            message: The rest.
            field: Which part of the object, such as ``spec.containers{pytorch}``.
        """
        space, key = (
            about["metadata"].get("namespace", "default"),
            (about["metadata"]["uid"], reason, message, field),
        )
        known = self._said.get(key)
        if known and self._store.find(EVENT, space, known):
            self._store.edit(EVENT, space, known, _again)
            return
        source = {"component": self._component} | ({"host": self._host} if self._host else {})
        times = {"firstTimestamp": now(), "lastTimestamp": now(), "count": 1, "eventTime": None}
        self._said[key] = self._add(about, kind, reason, message, field, {"source": source, **times})

    def say_once(self, about: Object, kind: str, reason: str, message: str, action: str) -> None:
        """Say something as the scheduler does: without a count, and with another kind of time."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        times: Object = {
            "source": {},
            "firstTimestamp": None,
            "lastTimestamp": None,
            "eventTime": at,
            "action": action,
        }
        self._add(about, kind, reason, message, "", times)

    def _add(self, about: Object, kind: str, reason: str, message: str, field: str, more: Object) -> str:
        meta = about["metadata"]
        name = f"{meta['name']}.{time.time_ns():x}"
        told = {"kind": about["kind"], "namespace": meta.get("namespace", ""), "name": meta["name"]}
        told |= {"uid": meta["uid"], "apiVersion": about["apiVersion"]}
        told |= {"resourceVersion": meta["resourceVersion"]} | ({"fieldPath": field} if field else {})
        body = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": name}, "involvedObject": told}
        body |= {"reason": reason, "message": message, "type": kind, **more}
        body |= {"reportingComponent": self._component, "reportingInstance": self._host}
        self._store.add(EVENT, meta.get("namespace", "default"), body)
        return name


def _again(event: Object) -> None:
    event["count"] += 1
    event["lastTimestamp"] = now()
