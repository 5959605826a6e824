"""Patches: JSON merge patch (RFC 7396), JSON patch (RFC 6902), and a strategic one for built-in kinds."""

import copy
from typing import Any

from tests.launch.standin.answers import Refused, bad
from tests.launch.standin.resources import Object, Resource

_MERGE, _JSON = "application/merge-patch+json", "application/json-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_KEYS = ("name", "type", "key", "uid", "containerPort", "ip")


def patched(body: Object, patch: Any, form: str, resource: Resource) -> Object:
    """Return an object with a patch applied; the object itself stays as it is.

    Args:
        body: The object.
        patch: The patch.
        form: Its media type.
        resource: The object's kind.

    Raises:
        Refused: The kind knows no such patch, or it does not apply.
    """
    body = copy.deepcopy(body)
    if form == _MERGE and not isinstance(patch, dict):
        raise bad("json: cannot unmarshal array into Go value of type map[string]interface {}")
    if form == _MERGE:
        return dict(merged(body, patch))
    if form == _JSON:
        for step in patch:
            _apply(body, step, resource)
        return body
    if form == _STRATEGIC and not resource.custom:
        return dict(strategic(body, patch))
    known = [_JSON, _MERGE, "application/apply-patch+yaml"]
    known = known if resource.custom else [*known[:2], _STRATEGIC, known[2]]
    said = "the body of the request was in an unknown format - accepted media types include: "
    raise Refused(415, "UnsupportedMediaType", said + ", ".join(known))


def merged(body: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(body: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: lists of named things are merged by name."""
    if isinstance(patch, list) and isinstance(body, list):
        key = next(
            (key for key in _KEYS if patch and all(isinstance(e, dict) and key in e for e in patch)), ""
        )
        if not key:
            return patch
        entries = {entry[key]: entry for entry in body}
        for entry in patch:
            if entry.get("$patch") == "delete":
                entries.pop(entry[key], None)
            else:
                entries[entry[key]] = strategic(entries.get(entry[key]), entry)
        return list(entries.values())
    if not isinstance(patch, dict):
        return patch
    result = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _apply(body: Object, step: Object, resource: Resource) -> None:
    """Apply one operation of a JSON patch."""
    steps = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    try:
        holder: Any = body
        for part in steps[:-1]:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        _operate(holder, steps[-1], step)
    except (KeyError, IndexError, TypeError, ValueError, _Differs):
        # The real one says no more than this: kind and details are empty.
        message = f"the server rejected our request due to an error in our request ({resource.plural})"
        raise Refused(422, "Invalid", message.rsplit(" (", 1)[0], {}) from None


class _Differs(Exception):
    """A ``test`` found another value."""


def _operate(holder: Any, last: str, step: Object) -> None:
    listed = isinstance(holder, list)
    at: Any = (len(holder) if last == "-" else int(last)) if listed else last
    match step["op"]:
        case "test":
            if holder[at] != step["value"]:
                raise _Differs
        case "remove":
            del holder[at]
        case "replace":
            _ = holder[at]
            holder[at] = step["value"]
        case "add" if listed:
            holder.insert(at, step["value"])
        case "add":
            holder[at] = step["value"]
        case other:
            raise bad(f"jsonpatch: unexpected kind {other}")
