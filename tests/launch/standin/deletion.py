"""Deletion: finalizers, grace periods, and what becomes of the objects that an object owns."""

import copy
import threading
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue

from tests.launch.standin.answers import Refused
from tests.launch.standin.resources import BY_KIND, Object, Resource
from tests.launch.standin.store import Change, Store, now

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_GRACE_S = 30
_LATE_S, _LATE_TIMES = 0.1, 3
"""How late the garbage collection learns that the JobSet of a TrainJob is gone, and how often it is late."""
_POLICIES = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def in_seconds(seconds: float) -> str:
    """Return the time so many seconds from now, as Kubernetes writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def delete(store: Store, found: Object, options: Object, *, evicted: bool = False) -> Object | None:
    """Delete an object; return it if it stays for now, with a time of deletion.

    Args:
        store: The objects.
        found: The object.
        options: ``propagationPolicy`` and ``gracePeriodSeconds``.
        evicted: Whether the Eviction API asks for it.
    """
    resource = BY_KIND[found["kind"]]
    with store.lock:
        body = copy.deepcopy(
            store.get(resource, found["metadata"].get("namespace", ""), found["metadata"]["name"])
        )
        meta = body["metadata"]
        if evicted:
            disrupt(store, body, "EvictionByEvictionAPI", "Eviction API: evicting")
            body = copy.deepcopy(store.get(resource, meta["namespace"], meta["name"]))
            meta = body["metadata"]
        if resource.kind == "Pod":
            return _delete_pod(store, body, options.get("gracePeriodSeconds"))
        finalizers = set(meta.get("finalizers") or []) - {FOREGROUND, ORPHAN}
        policy = _POLICIES.get(options.get("propagationPolicy") or "Background")
        finalizers |= {policy} if policy else set()
        if not finalizers:
            store.drop(resource, body)
            return None
        if "deletionTimestamp" not in meta:
            meta |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": 0}
            if "generation" in meta:
                meta["generation"] += 1
        meta["finalizers"] = sorted(finalizers)
        return store.put(resource, body)


def _delete_pod(store: Store, body: Object, asked: object) -> Object | None:
    """Begin a pod's end. Its node removes it when its processes have ended; who has none is removed now."""
    meta, pod = body["metadata"], BY_KIND["Pod"]
    grace = (
        int(str(asked)) if asked is not None else body["spec"].get("terminationGracePeriodSeconds", _GRACE_S)
    )
    if not body["spec"].get("nodeName") or body["status"].get("phase") in ("Succeeded", "Failed"):
        grace = 0
    if meta.get("deletionGracePeriodSeconds", grace + 1) <= grace:
        return body
    meta |= {"deletionTimestamp": in_seconds(grace), "deletionGracePeriodSeconds": grace}
    left = store.put(pod, body)
    if grace == 0:
        store.drop(pod, left)
        return None
    return left


def disrupt(store: Store, pod: Object, reason: str, message: str) -> None:
    """Note on a pod that it is taken away by somebody."""
    meta = pod["metadata"]

    def note(body: Object) -> None:
        entry = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        conditions = body["status"].setdefault("conditions", [])
        conditions.append({**entry, "lastProbeTime": None, "lastTransitionTime": now()})

    store.edit(BY_KIND["Pod"], meta["namespace"], meta["name"], note)


class Garbage:
    """Deletes the objects whose owners are gone, in a thread of its own, as the API does: a moment later."""

    def __init__(self, store: Store) -> None:
        self._store, self._work = store, SimpleQueue[Change | threading.Event | None]()
        self._dependents: dict[str, set[tuple[Resource, str, str]]] = {}
        self._uids: dict[str, tuple[Resource, str, str]] = {}
        self._late: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="garbage")
        store.listen(self._hear)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._work.put(None)
        self._thread.join()

    def flush(self) -> None:
        """Wait until everything that it knows of is done."""
        done = threading.Event()
        self._work.put(done)
        assert done.wait(30), "the garbage collection is stuck"

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        key = (change.resource, meta.get("namespace", ""), meta["name"])
        owners = [owner["uid"] for owner in meta.get("ownerReferences") or []]
        if change.type == "DELETED":
            self._uids.pop(meta["uid"], None)
        else:
            self._uids[meta["uid"]] = key
            for owner in owners:
                self._dependents.setdefault(owner, set()).add(key)
        if owners or change.type == "DELETED" or "deletionTimestamp" in meta:
            self._work.put(change)

    def _run(self) -> None:
        while (change := self._work.get()) is not None:
            if isinstance(change, threading.Event):
                change.set()
                continue
            try:
                with self._store.lock:
                    self._see(change)
            except Refused:
                continue  # Somebody was faster.

    def _see(self, change: Change) -> None:
        meta = change.body["metadata"]
        owners = [owner["uid"] for owner in meta.get("ownerReferences") or []]
        if change.type == "DELETED":
            for key in sorted(self._dependents.pop(meta["uid"], ()), key=str):
                self._collect(key)
        elif change.type == "ADDED" and owners:
            self._collect((change.resource, meta.get("namespace", ""), meta["name"]))
        elif FOREGROUND in (meta.get("finalizers") or ()):
            self._foreground(change.resource, change.body)
        elif ORPHAN in (meta.get("finalizers") or ()):
            self._orphan(change.resource, change.body)
        for uid in owners if change.type == "DELETED" else ():
            owner = self._uids.get(uid)
            found = self._store.find(*owner) if owner else None
            if owner and found and FOREGROUND in (found["metadata"].get("finalizers") or ()):
                self._foreground(owner[0], found)

    def _collect(self, key: tuple[Resource, str, str]) -> None:
        """Delete an object if none of its owners is there."""
        found = self._store.find(*key)
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or []
        if found and owners and not any(owner["uid"] in self._uids for owner in owners):
            delete(self._store, found, {"propagationPolicy": "Background"})

    def _owned(self, uid: str) -> list[tuple[Resource, Object, Object]]:
        """Return what an object owns: kind, object and its reference."""
        found = []
        for key in sorted(self._dependents.get(uid, ()), key=str):
            body = self._store.find(*key)
            for owner in (body or {}).get("metadata", {}).get("ownerReferences") or []:
                if body and owner["uid"] == uid:
                    found.append((key[0], body, owner))
        return found

    def _foreground(self, resource: Resource, body: Object) -> None:
        """Delete what an object owns; let the object go when nothing is left that has to go first."""
        owned = self._owned(body["metadata"]["uid"])
        for _, dependent, _ in owned:
            if "deletionTimestamp" not in dependent["metadata"]:
                delete(self._store, dependent, {"propagationPolicy": "Foreground"})
        if any(owner.get("blockOwnerDeletion") for _, _, owner in self._owned(body["metadata"]["uid"])):
            return
        # It learns late that a custom object is gone: the object's controller may have made another by then.
        uid = body["metadata"]["uid"]
        if resource.kind == "TrainJob" and self._late.setdefault(uid, 0) < _LATE_TIMES:
            self._late[uid] += 1
            change = Change(0, "MODIFIED", resource, body, None)
            threading.Timer(_LATE_S, lambda: self._work.put(change)).start()
            return
        _release(self._store, resource, body, FOREGROUND)

    def _orphan(self, resource: Resource, body: Object) -> None:
        uid = body["metadata"]["uid"]
        for kind, dependent, _ in self._owned(uid):
            meta = dependent["metadata"]
            rest = [owner for owner in meta["ownerReferences"] if owner["uid"] != uid]
            changed = {**dependent, "metadata": {**meta, "ownerReferences": rest}}
            self._store.put(kind, changed)
        _release(self._store, resource, body, ORPHAN)


def _release(store: Store, resource: Resource, body: Object, finalizer: str) -> None:
    """Remove a finalizer; with its last one, the object goes."""
    meta = body["metadata"]
    found = store.find(resource, meta.get("namespace", ""), meta["name"])
    if found is None or found["metadata"]["uid"] != meta["uid"]:
        return
    rest = [entry for entry in found["metadata"].get("finalizers") or [] if entry != finalizer]
    changed = {**found, "metadata": {**found["metadata"], "finalizers": rest}}
    if rest:
        store.put(resource, changed)
    else:
        store.drop(resource, found)
