"""The published OpenAPI description, as ``kfp_server_api`` carries it: what a body may hold.

Every generated model has the types and names of the description's properties; nothing is written down twice.
"""

import datetime
import re
from typing import Any

import kfp_server_api

ENUMS = {
    name: tuple(value for key, value in vars(model).items() if key.isupper() and isinstance(value, str))
    for name, model in vars(kfp_server_api.models).items()
    if isinstance(model, type) and not getattr(model, "openapi_types", True)
}
"""Allowed texts of each enumeration of the description, in the order of their numbers."""

DEFAULTS = tuple(values[0] for values in ENUMS.values())
"""The first value of each enumeration: not to be told apart from none."""

PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "object": object}


class Refused(Exception):
    """A request that the API answers with an error: an HTTP status and the sentence in its body."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def parsed(data: Any, model: str, place: str = "body") -> Any:
    """Read a body as a model of the description; whatever is not in it is refused, as protojson does."""
    if model in ENUMS:
        return _enum(data, model, place)
    if match := re.fullmatch(r"list\[(.+)\]", model):
        return [parsed(entry, match[1], f"{place}[{number}]") for number, entry in enumerate(data)]
    if match := re.fullmatch(r"dict\(str, (.+)\)", model):
        return {key: parsed(entry, match[1], f"{place}.{key}") for key, entry in data.items()}
    if model == "datetime":
        return datetime.datetime.fromisoformat(data.replace("Z", "+00:00"))
    if model in PLAIN:
        wrong = not isinstance(data, PLAIN[model]) or (model == "int" and isinstance(data, bool))
        if wrong and not (model == "str" and isinstance(data, int)):  # int64 may come as a number
            raise Refused(400, f"{place}: {data!r} is no {model}")
        return data
    return _object(data, getattr(kfp_server_api.models, model), place)


def _enum(data: Any, model: str, place: str) -> str:
    """Read a text of an enumeration, or its number."""
    known = ENUMS[model]
    found = known[data] if isinstance(data, int) and 0 <= data < len(known) else data
    if found not in known:
        raise Refused(400, f"{place}: {data!r} is no {model}")
    return str(found)


def _object(data: Any, kind: Any, place: str) -> Any:
    if not isinstance(data, dict):
        raise Refused(400, f"{place}: {data!r} is no {kind.__name__}")
    by_json = {json_name: name for name, json_name in kind.attribute_map.items()}
    by_json |= {_camel(json_name): name for json_name, name in by_json.items()}
    if unknown := data.keys() - by_json.keys():
        raise Refused(400, f'{place}: unknown field "{min(unknown)}"')
    fields = {
        by_json[key]: parsed(value, kind.openapi_types[by_json[key]], f"{place}.{key}")
        for key, value in data.items()
        if value is not None
    }
    return kind(**fields)


def _camel(name: str) -> str:
    """The other spelling of a field that protojson takes; kfp's own client writes its filters so."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def written(model: Any) -> Any:
    """Write a model as the JSON of an answer: as the server does, without any field that has its default."""
    if isinstance(model, list):
        return [written(entry) for entry in model]
    if isinstance(model, dict):
        return {key: written(value) for key, value in model.items()}
    if not hasattr(model, "attribute_map"):
        return model.isoformat() if isinstance(model, datetime.datetime) else model
    fields = {json: getattr(model, name) for name, json in model.attribute_map.items()}
    told = {json: value for json, value in fields.items() if value and value not in DEFAULTS}
    return {json: written(value) for json, value in told.items()}
