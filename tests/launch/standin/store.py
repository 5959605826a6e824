"""The objects, their versions, and who looks on.

Every change has a number of its own, one larger than the last, as ``resourceVersion``. Objects in the store
are never changed in place: a reader may keep what it was given.
"""

import copy
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import SimpleQueue

from tests.launch.standin.answers import conflict, exists, expired, not_found
from tests.launch.standin.resources import Object, Resource
from tests.launch.standin.selectors import Test

Key = tuple[Resource, str, str]


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Change:
    """Something that happened: ADDED, MODIFIED or DELETED, the object after it and the one before it."""

    number: int
    type: str
    resource: Resource
    body: Object
    before: Object | None


class Watch:
    """One that looks on: its events, as lines to send, come out of ``lines``; ``None`` ends them."""

    def __init__(self, resource: Resource, namespace: str, selects: Test) -> None:
        self.resource, self.namespace, self.selects = resource, namespace, selects
        self.lines: SimpleQueue[bytes | None] = SimpleQueue()
        self.number, self.cut = 0, False

    def see(self, change: Change, line: Callable[[str], bytes]) -> None:
        """Take note of a change, if it is one of what is looked at."""
        self.number = change.number
        body = change.body
        if change.resource != self.resource or self.namespace not in ("", body["metadata"].get("namespace")):
            return
        has, had = self.selects(body), change.before is not None and self.selects(change.before)
        if change.type == "ADDED" or (change.type == "MODIFIED" and has and not had):
            kind = "ADDED" if has else ""
        elif change.type == "DELETED" or not has:
            kind = "DELETED" if had else ""
        else:
            kind = "MODIFIED"
        if kind:
            self.lines.put(line(kind))

    def say(self, kind: str, body: Object) -> None:
        """Send something that is no change: a bookmark or an error."""
        self.lines.put(event_line(kind, body))

    def bookmark(self) -> None:
        """Say which version everything up to now is of."""
        body = {"kind": self.resource.kind, "apiVersion": self.resource.api_version}
        self.say("BOOKMARK", {**body, "metadata": {"resourceVersion": str(self.number)}})

    def end(self, *, cut: bool = False) -> None:
        """End it, in good order or by cutting the connection."""
        self.cut = cut
        self.lines.put(None)


def event_line(kind: str, body: Object) -> bytes:
    """Write an event of a watch."""
    return json.dumps({"type": kind, "object": body}, separators=(",", ":")).encode() + b"\n"


class Store:
    """Objects by kind, namespace and name, behind one lock.

    Attributes:
        number: That of the latest change.
        created: How many objects of each kind were ever created, by plural.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.number = 1000
        self.created: dict[str, int] = {}
        self._oldest = self.number
        self._objects: dict[Resource, dict[tuple[str, str], Object]] = {}
        self._changes: deque[Change] = deque()
        self._watches: set[Watch] = set()
        self._listeners: list[Callable[[Change], None]] = []
        self._changed = threading.Condition(self.lock)

    def listen(self, hear: Callable[[Change], None]) -> None:
        """Have a function called with every change, under the lock: it must only take note."""
        self._listeners.append(hear)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return an object, or nothing."""
        with self.lock:
            return self._objects.get(resource, {}).get((namespace, name))

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object.

        Raises:
            Refused: It is not there.
        """
        found = self.find(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def list(self, resource: Resource, namespace: str = "", selects: Test = lambda _: True) -> list[Object]:
        """Return the objects of a kind, by name."""
        with self.lock:
            found = self._objects.get(resource, {})
            chosen = [key for key, body in found.items() if namespace in ("", key[0]) and selects(body)]
            return [found[key] for key in sorted(chosen)]

    def add(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Store a new object.

        Raises:
            Refused: There is one of that name.
        """
        with self.lock:
            body = copy.deepcopy(body)
            meta = body["metadata"]
            place = (namespace, meta["name"])
            if place in self._objects.setdefault(resource, {}):
                raise exists(resource, meta["name"])
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
                meta.pop(field, None)
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if namespace:
                meta["namespace"] = namespace
            if resource.custom or resource.group == "batch":
                meta["generation"] = 1
            self.created[resource.plural] = self.created.get(resource.plural, 0) + 1
            return self._change("ADDED", resource, body, None)

    def put(self, resource: Resource, body: Object, expected: str = "") -> Object:
        """Store a new version of an object; nothing happens if it is the same.

        Args:
            resource: Its kind.
            body: The object.
            expected: Version that it was made from; empty for whichever is the latest.

        Raises:
            Refused: The object is not there, or was changed in the meantime.
        """
        with self.lock:
            meta = body["metadata"]
            before = self.get(resource, meta.get("namespace", ""), meta["name"])
            if expected and expected != before["metadata"]["resourceVersion"]:
                raise conflict(resource, meta["name"])
            after = {**body, "metadata": {**meta, "resourceVersion": before["metadata"]["resourceVersion"]}}
            if after == before:
                return before
            if "deletionTimestamp" in meta and not meta.get("finalizers") and resource.kind != "Pod":
                return self.drop(resource, after)
            return self._change("MODIFIED", resource, copy.deepcopy(after), before)

    def edit(self, resource: Resource, namespace: str, name: str, edit: Callable[[Object], None]) -> Object:
        """Change a copy of an object and store it.

        Raises:
            Refused: The object is not there.
        """
        with self.lock:
            body = copy.deepcopy(self.get(resource, namespace, name))
            edit(body)
            return self.put(resource, body)

    def drop(self, resource: Resource, body: Object) -> Object:
        """Remove an object for good; one that is gone already stays so."""
        with self.lock:
            meta = body["metadata"]
            before = self._objects.get(resource, {}).pop((meta.get("namespace", ""), meta["name"]), None)
            return body if before is None else self._change("DELETED", resource, copy.deepcopy(body), before)

    def _change(self, kind: str, resource: Resource, body: Object, before: Object | None) -> Object:
        self.number += 1
        meta = body["metadata"]
        meta["resourceVersion"] = str(self.number)
        if kind != "DELETED":
            self._objects[resource][meta.get("namespace", ""), meta["name"]] = body
        change = Change(self.number, kind, resource, body, before)
        self._changes.append(change)
        lines: dict[str, bytes] = {}
        for watch in self._watches:
            watch.see(change, _once(lines, body))
        for hear in self._listeners:
            hear(change)
        self._changed.notify_all()
        return body

    def watch(self, resource: Resource, namespace: str, selects: Test, since: str) -> Watch:
        """Begin to look on.

        Args:
            resource: What kind of objects to look at.
            namespace: Of which namespace; empty for all.
            selects: Which of them.
            since: Version after which to begin; empty or ``0``: with what is there.

        Raises:
            Refused: That version is no longer kept.
        """
        with self.lock:
            watch = Watch(resource, namespace, selects)
            if since in ("", "0"):
                for body in self.list(resource, namespace, selects):
                    watch.lines.put(event_line("ADDED", body))
            else:
                if int(since) < self._oldest:
                    raise expired(int(since), self._oldest)
                for change in self._changes:
                    if change.number > int(since):
                        watch.see(change, _once({}, change.body))
            watch.number = self.number
            self._watches.add(watch)
            return watch

    def leave(self, watch: Watch) -> None:
        """Look on no more."""
        with self.lock:
            self._watches.discard(watch)

    def watches(self) -> set[Watch]:
        """Return those who look on."""
        with self.lock:
            return {*self._watches}

    def cut_watches(self) -> None:
        """Cut the connection of everybody who looks on."""
        for watch in self.watches():
            watch.end(cut=True)

    def compact(self) -> None:
        """Forget the past: a watch that begins at an older version is refused from now on."""
        with self.lock:
            self._oldest = self.number
            self._changes.clear()

    def wait(self, holds: Callable[[], object], within_s: float) -> bool:
        """Wait until something holds; looked at after each change, and now and then."""
        end = time.monotonic() + within_s
        while True:
            number = self.number
            if holds():
                return True
            rest = end - time.monotonic()
            if rest <= 0:
                return False
            with self.lock:
                if self.number == number:
                    self._changed.wait(min(rest, 0.05))


def _once(lines: dict[str, bytes], body: Object) -> Callable[[str], bytes]:
    """Write an event once for all who look on."""

    def line(kind: str) -> bytes:
        if kind not in lines:
            lines[kind] = event_line(kind, body)
        return lines[kind]

    return line
