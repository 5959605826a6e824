"""What a call does: create, get, list, watch, update, patch, delete."""

import base64
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.launch.standin import selectors
from tests.launch.standin.admission import check, decoded, webhook_down
from tests.launch.standin.answers import Refused, bad, conflict, exists, forbidden, invalid, not_found
from tests.launch.standin.deletion import delete
from tests.launch.standin.patches import patched
from tests.launch.standin.resources import BY_KIND, Address, Object, Resource
from tests.launch.standin.store import Store


@dataclass(frozen=True)
class Request:
    """A call: its verb, what it is about, its options, body and the body's media type."""

    verb: str
    address: Address
    query: dict[str, str]
    body: Any = None
    form: str = ""


@dataclass
class Answer:
    """What is answered to a call."""

    code: int
    body: Object | str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Verbs:
    """Does calls on a store.

    Attributes:
        store: The objects.
        webhook: Whether the training operator's webhook answers.
        quotas: By namespace and plural name, how many objects there may be.
        terminating: Namespaces in which nothing can be created any more.
        before: Called with each object that is about to be created: other webhooks.
        schemas: By the name of a schema, the release of it that is installed.
    """

    store: Store
    webhook: bool = True
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)
    terminating: set[str] = field(default_factory=set)
    before: list[Callable[[Resource, Object], None]] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)

    def answer(self, asked: Request) -> Answer:
        """Do a call that neither looks on nor reads a log.

        Raises:
            Refused: It is not done.
        """
        does = {
            "create": self._create,
            "get": self._get,
            "list": self._list,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_all,
        }
        return does[asked.verb](asked)

    def selects(self, query: dict[str, str]) -> selectors.Test:
        """Return the test that a call's selectors make."""
        label = selectors.labels(query.get("labelSelector", ""))
        fields = selectors.fields(query.get("fieldSelector", ""))
        return lambda body: label(body) and fields(body)

    def _create(self, asked: Request) -> Answer:
        address = asked.address
        resource, namespace = address.resource, address.namespace
        if address.subresource == "eviction":
            delete(
                self.store, self._found(Address(BY_KIND["Pod"], namespace, address.name)), {}, evicted=True
            )
            return Answer(201, _success())
        if address.name:
            raise exists(resource, address.name)
        mode, schema = asked.query.get("fieldValidation", "Warn"), self._schema(resource)
        body, warning = decoded(resource, namespace, asked.body, mode, schema)
        if resource.namespaced:
            self._require_namespace(resource, namespace, body["metadata"].get("name", ""))
        for webhook in self.before:
            webhook(resource, body)
        check(resource, body, warning=warning, schema=schema)
        self._require_webhook(resource)
        self._require_quota(resource, namespace, body["metadata"]["name"])
        if resource.status:
            body.pop("status", None)
        if resource.kind == "Pod":
            body["status"] = {"phase": "Pending"}
        headers = {"Warning": warning} if warning else {}
        if asked.query.get("dryRun"):
            return Answer(201, body, headers)
        return Answer(201, self.store.add(resource, namespace, body), headers)

    def _schema(self, resource: Resource) -> str:
        return self.schemas.get(resource.schema, resource.schema)

    def _require_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if self.store.find(BY_KIND["Namespace"], "", namespace) is None:
            raise not_found(BY_KIND["Namespace"], namespace)
        if namespace in self.terminating:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            said = f"namespace {namespace} is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": said, "field": "metadata.namespace"}
            raise forbidden(resource, name, why, causes=[cause])

    def _require_quota(self, resource: Resource, namespace: str, name: str) -> None:
        limit = self.quotas.get((namespace, resource.plural))
        used = len(self.store.list(resource, namespace))
        if limit is not None and used >= limit:
            what = f"count/{resource.full}"
            why = f"exceeded quota: q, requested: {what}=1, used: {what}={used}, limited: {what}={limit}"
            raise forbidden(resource, name, why)

    def _require_webhook(self, resource: Resource) -> None:
        if resource.kind == "PyTorchJob" and not self.webhook:
            raise webhook_down()

    def _found(self, address: Address) -> Object:
        return self.store.get(address.resource, address.namespace, address.name)

    def _get(self, asked: Request) -> Answer:
        return Answer(200, self._found(asked.address))

    def _list(self, asked: Request) -> Answer:
        resource, query = asked.address.resource, asked.query
        with self.store.lock:
            items = self.store.list(resource, asked.address.namespace, self.selects(query))
            meta: Object = {"resourceVersion": str(self.store.number)}
        first = _continued(query.get("continue", ""))
        last = first + int(query.get("limit") or 0) if query.get("limit") else len(items)
        if last < len(items):
            rest = len(items) - last
            meta |= {"continue": _token(last), "remainingItemCount": rest}
        body = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List", "metadata": meta}
        if not resource.custom:
            # The items of a list of built-in objects do not say what they are.
            items = [_without(item, ("kind", "apiVersion")) for item in items]
        return Answer(200, {**body, "items": items[first:last]})

    def _update(self, asked: Request) -> Answer:
        resource = asked.address.resource
        before = self._found(asked.address)
        mode, space = asked.query.get("fieldValidation", "Warn"), asked.address.namespace
        body, warning = decoded(resource, space, asked.body, mode, self._schema(resource))
        version = body["metadata"].get("resourceVersion", "")
        if resource.custom and not version:
            said = "Invalid value: 0x0: must be specified for an update"
            raise invalid(
                resource, asked.address.name, [("FieldValueInvalid", "metadata.resourceVersion", said)]
            )
        return self._store(asked, before, copy.deepcopy(body), warning)

    def _patch(self, asked: Request) -> Answer:
        before = self._found(asked.address)
        resource = asked.address.resource
        body = patched(before, asked.body, asked.form, resource)
        mode = asked.query.get("fieldValidation", "Warn")
        body, warning = decoded(resource, asked.address.namespace, body, mode, self._schema(resource))
        return self._store(asked, before, body, warning)

    def _store(self, asked: Request, before: Object, body: Object, warning: str) -> Answer:
        """Store a new version of an object; what the caller may not change stays as it was."""
        resource, name, meta = asked.address.resource, asked.address.name, body["metadata"]
        if meta.get("name", name) != name:
            raise bad("the name of the object does not match the name on the URL")
        if meta.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            raise conflict(resource, name, _other_uid(meta["uid"], before))
        if (
            meta.get("resourceVersion", before["metadata"]["resourceVersion"])
            != before["metadata"]["resourceVersion"]
        ):
            raise conflict(resource, name)
        if asked.address.subresource == "status":
            body = {**before, "status": body.get("status", {})}
        else:
            _keep(resource, before, body)
            check(resource, body, before, warning, self._schema(resource))
            self._require_webhook(resource)
        headers = {"Warning": warning} if warning else {}
        if asked.query.get("dryRun"):
            return Answer(200, body, headers)
        return Answer(200, self.store.put(resource, body, before["metadata"]["resourceVersion"]), headers)

    def _delete(self, asked: Request) -> Answer:
        resource, options = asked.address.resource, self._options(asked)
        with self.store.lock:
            found = self._found(asked.address)
            wanted = options.get("preconditions") or {}
            have = found["metadata"]
            if wanted.get("uid", have["uid"]) != have["uid"]:
                raise _precondition(resource, found, "UID", wanted["uid"], have["uid"])
            if wanted.get("resourceVersion", have["resourceVersion"]) != have["resourceVersion"]:
                version = have["resourceVersion"]
                raise _precondition(resource, found, "ResourceVersion", wanted["resourceVersion"], version)
            if asked.query.get("dryRun") or options.get("dryRun"):
                return Answer(200, found)
            left = delete(self.store, found, options)
        if left is not None:
            return Answer(200, left)
        details = {"name": have["name"], "group": resource.group, "kind": resource.plural, "uid": have["uid"]}
        return Answer(200, _success(details))

    def _delete_all(self, asked: Request) -> Answer:
        address, options = asked.address, self._options(asked)
        for found in self.store.list(address.resource, address.namespace, self.selects(asked.query)):
            delete(self.store, found, options)
        return Answer(200, _success())

    def _options(self, asked: Request) -> Object:
        told: Object = {
            key: asked.query[key] for key in ("propagationPolicy", "gracePeriodSeconds") if key in asked.query
        }
        return told | (asked.body if isinstance(asked.body, dict) else {})


def _keep(resource: Resource, before: Object, body: Object) -> None:
    """Put back what an ordinary write does not change; count a new generation."""
    meta, old = body["metadata"], before["metadata"]
    for key in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ):
        if key in old:
            meta[key] = old[key]
        else:
            meta.pop(key, None)
    if resource.status:
        body.pop("status", None)
        if "status" in before:
            body["status"] = before["status"]
    told = ("metadata", "status") if resource.status else ("metadata",)
    if "generation" in old and _without(body, told) != _without(before, told):
        meta["generation"] = old["generation"] + 1


def _without(body: Object, keys: tuple[str, ...]) -> Object:
    return {key: value for key, value in body.items() if key not in keys}


def _success(details: Object | None = None) -> Object:
    body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return body | ({"details": details} if details else {})


def _other_uid(wanted: str, found: Object) -> str:
    return (
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found['metadata']['uid']}"
    )


def _precondition(resource: Resource, found: Object, what: str, wanted: str, have: str) -> Refused:
    name = found["metadata"]["name"]
    full = f"{resource.kind}.{resource.group}" if resource.group else resource.plural
    said = (
        f'Operation cannot be fulfilled on {full} "{name}": the {what} in the precondition ({wanted}) does '
        f"not match the {what} in record ({have}). The object might have been deleted and then recreated"
    )
    details = {"name": name, "group": resource.group, "kind": resource.kind if resource.group else "pods"}
    return Refused(409, "Conflict", said, details)


def _token(first: int) -> str:
    return base64.urlsafe_b64encode(json.dumps({"v": 1, "first": first}).encode()).decode()


def _continued(token: str) -> int:
    """Read a token of a list's next page."""
    if not token:
        return 0
    try:
        return int(json.loads(base64.urlsafe_b64decode(token.encode()))["first"])
    except (ValueError, KeyError):
        said = "continue key is not valid: invalid character 'i' looking for beginning of value"
        raise bad(f"invalid continue token: {said}") from None
