"""What the API refuses, in its own words: ``Status`` objects, as the recordings hold them."""

from typing import Any

from tests.launch.standin.resources import Object, Resource


class Refused(Exception):
    """A call that the API does not do.

    Args:
        code: HTTP status.
        reason: The machine-readable reason; empty for an answer in plain text.
        message: What it says.
        details: ``details`` of the Status.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = details, headers or {}

    @property
    def body(self) -> Object | str:
        """The body of the answer."""
        return self.message if not self.reason else status(self.code, self.reason, self.message, self.details)


def status(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    """Write a failure as a Status."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    more = {"details": details} if details is not None else {}
    return {**body, "message": message, "reason": reason, **more, "code": code}


def _details(resource: Resource, name: str = "", **more: Any) -> Object:
    group = {"group": resource.group} if resource.group else {}
    return {**({"name": name} if name else {}), **group, "kind": resource.plural, **more}


def no_page() -> Refused:
    """Answer to an address that leads nowhere: a group, version or kind that is not installed."""
    return Refused(404, "", "404 page not found\n")


def bad(message: str) -> Refused:
    """Answer to what cannot be understood."""
    return Refused(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> Refused:
    """Answer to the name of an object that is not there."""
    return Refused(404, "NotFound", f'{resource.full} "{name}" not found', _details(resource, name))


def exists(resource: Resource, name: str) -> Refused:
    """Answer to a creation of what is there."""
    return Refused(409, "AlreadyExists", f'{resource.full} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str = "") -> Refused:
    """Answer to a write that was made from an older version."""
    text = (
        why or "the object has been modified; please apply your changes to the latest version and try again"
    )
    said = f'Operation cannot be fulfilled on {resource.full} "{name}": {text}'
    return Refused(409, "Conflict", said, _details(resource, name))


def expired(asked: int, oldest: int) -> Refused:
    """Answer to a version that is no longer kept."""
    return Refused(410, "Expired", f"too old resource version: {asked} ({oldest})")


def invalid(resource: Resource, name: str, causes: list[tuple[str, str, str]], kind: str = "") -> Refused:
    """Answer to an object that its schema does not allow.

    Args:
        resource: Its kind.
        name: Its name.
        causes: Reason, field and message of each fault.
        kind: The kind that it says it is, if not its own.
    """
    texts = [f"{field}: {message}" for _, field, message in causes]
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    shown = kind or resource.kind
    full = f"{shown}.{resource.group}" if resource.group else shown
    found = [{"reason": reason, "message": text, "field": field} for reason, field, text in causes]
    details = {**_details(resource, name), "kind": shown, "causes": found}
    return Refused(422, "Invalid", f'{full} "{name}" is invalid: {said}', details)


def forbidden(resource: Resource, name: str, why: str, **more: Any) -> Refused:
    """Answer to what somebody may not do, or nobody now."""
    named = f' "{name}"' if name else ""
    return Refused(
        403, "Forbidden", f"{resource.full}{named} is forbidden: {why}", _details(resource, name, **more)
    )


def denied(why: str) -> Refused:
    """Answer of the operator's webhook to a job that it does not take."""
    hook = "validator.pytorchjob.training-operator.kubeflow.org"
    return Refused(403, "Forbidden", f'admission webhook "{hook}" denied the request: {why}')


def unauthorized() -> Refused:
    """Answer to nobody's token."""
    return Refused(401, "Unauthorized", "Unauthorized")
