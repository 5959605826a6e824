"""A stand-in for Kubeflow Hub that answers as ``hub_recording.json`` shows that Hub 0.3.8 on MariaDB does.

``python -m tests.registry.hub http://HOST:PORT`` sends the recorded requests to an empty Hub, and records
its answers.
"""

import base64
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

RECORDING = Path(__file__).with_name("hub_recording.json")
API = "/api/model_registry/v1alpha3"

Fields = dict[str, Any]

_UPDATABLE = {
    "registered_models": {"customProperties", "description", "externalId", "owner", "state"},
    "model_versions": {"customProperties", "description", "externalId", "author", "state"},
    "model_artifacts": {
        *("artifactType", "customProperties", "description", "externalId", "state", "uri"),
        *("modelFormatName", "modelFormatVersion"),
        *("modelSourceKind", "modelSourceClass", "modelSourceGroup", "modelSourceId", "modelSourceName"),
    },
}
_CALLED = {
    "registered_models": "registered model",
    "model_versions": "model version",
    "model_artifacts": "model artifact",
}


class _Failure(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, {"code": code, "message": message}


@dataclass
class Hub:
    """The state of a Hub, and what happens to requests.

    Attributes:
        url: Address.
        entries: Its objects by kind, in the order of their creation.
        writes: Method, path and body of each change that was asked for.
        token: Bearer token without which it answers 401; empty for none.
        refuses: Status of every answer; 0 for none.
        dies_after: Number of changes that it makes before it answers nothing more.
        meanwhile: Called before the next change.
    """

    url: str = ""
    entries: dict[str, list[Fields]] = field(default_factory=lambda: {kind: [] for kind in _CALLED})
    writes: list[tuple[str, str, Fields]] = field(default_factory=list)
    token: str = ""
    refuses: int = 0
    dies_after: int = sys.maxsize
    meanwhile: Callable[[], None] | None = None
    _ids: dict[str, int] = field(default_factory=lambda: {"context": 0, "artifact": 0})

    def versions(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Return state and properties of each version."""
        return {
            entry["name"]: (entry["state"], properties(entry)) for entry in self.entries["model_versions"]
        }

    def artifacts(self) -> dict[str, list[Fields]]:
        """Return the artifacts of each version."""
        return {
            entry["name"]: [
                found for found in self.entries["model_artifacts"] if found["_parent"] == entry["id"]
            ]
            for entry in self.entries["model_versions"]
        }

    def answer(self, method: str, path: str, body: Fields) -> tuple[int, Fields | None]:
        """Return status and content of an answer; None for that of an unknown path."""
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        route = parts.path.removeprefix(API)
        try:
            for pattern, handle in self._routes(method):
                if parts.path.startswith(API) and (match := re.fullmatch(pattern, route)):
                    found = handle(*match.groups(), query if method == "GET" else body)
                    return 201 if method == "POST" else 200, found
        except _Failure as failure:
            return failure.status, failure.answer
        return 404, None

    def _routes(self, method: str) -> list[tuple[str, Callable[..., Fields]]]:
        if method == "GET":
            return [
                (r"/registered_model", self._find),
                (r"/(registered_models)/(\d+)/versions", self._list),
                (r"/(model_versions)/(\d+)/artifacts", self._list),
            ]
        if method == "PATCH":
            return [(r"/(registered_models|model_versions|model_artifacts)/(\d+)", self._update)]
        return [
            (r"/(registered_models|model_versions)", self._create),
            (r"/(model_versions)/(\d+)/artifacts", self._attach),
        ]

    def _find(self, query: Fields) -> Fields:
        known = query.get("externalId", "")
        for entry in self.entries["registered_models"]:
            if entry.get("externalId", "").lower() == known.lower():  # MariaDB's collation
                return entry
        said = f"no registered models found for name=, externalId={known}: not found"
        raise _Failure(404, "Not Found", said)

    def _list(self, parent: str, number: str, query: Fields) -> Fields:
        kind, key = {
            "registered_models": ("model_versions", "registeredModelId"),
            "model_versions": ("model_artifacts", "_parent"),
        }[parent]
        size, token = int(query.get("pageSize", 0)), query.get("nextPageToken", "")
        after = int(base64.b64decode(token).decode().split(":")[0]) if token else 0
        found = [entry for entry in self.entries[kind] if entry[key] == number and int(entry["id"]) > after]
        page = found[:size] if size else found
        last = page[-1]["id"] if len(found) > len(page) else ""
        following = base64.b64encode(f"{last}:{last}".encode()).decode() if last else ""
        return {"items": page, "nextPageToken": following, "pageSize": size, "size": len(page)}

    def _create(self, kind: str, body: Fields) -> Fields:
        for name in ("name", *(["registeredModelId"] if kind == "model_versions" else [])):
            if not body.get(name):
                raise _Failure(422, "Bad Request", f"required field '{name}' is zero value.")
        return self._add(kind, "context", {"customProperties": {}, "state": "LIVE"} | body)

    def _attach(self, _: str, number: str, body: Fields) -> Fields:
        return self._add("model_artifacts", "artifact", {"customProperties": {}} | body | {"_parent": number})

    def _add(self, kind: str, sequence: str, entry: Fields) -> Fields:
        self._ids[sequence] += 1  # also where a constraint rejects the row
        parent = "_parent" if kind == "model_artifacts" else "registeredModelId"
        alike = [
            other
            for other in self.entries[kind]
            if other["name"].lower() == entry["name"].lower() and other.get(parent) == entry.get(parent)
        ]
        known = [
            other
            for of in ([kind] if sequence == "artifact" else ["registered_models", "model_versions"])
            for other in self.entries[of]
            if other.get("externalId", "").lower() == entry.get("externalId", "?").lower()
        ]
        if alike or known:
            said = f"{_CALLED[kind]} with name {entry['name']} already exists: conflict"
            raise _Failure(409, "Conflict", said)
        entry["id"] = str(self._ids[sequence])
        self.entries[kind].append(entry)
        return entry

    def _update(self, kind: str, number: str, body: Fields) -> Fields:
        for name in body:
            if name not in _UPDATABLE[kind]:
                raise _Failure(400, "Bad Request", f'json: unknown field "{name}"')
        for entry in self.entries[kind]:
            if entry["id"] == number:
                entry.update({"state": "UNKNOWN" if kind == "model_artifacts" else "LIVE"} | body)
                return entry
        said = f"no {_CALLED[kind]} found for id {number}: not found"
        raise _Failure(404, "Not Found", said)


def properties(entry: Fields) -> dict[str, str]:
    """Return the custom properties of an object."""
    return {name: value["string_value"] for name, value in entry["customProperties"].items()}


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve an empty Hub over HTTP."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if len(hub.writes) >= hub.dies_after:
                return  # an answer without a byte
            if self.command != "GET":
                if happens := hub.meanwhile:
                    hub.meanwhile = None
                    happens()
                hub.writes.append((self.command, self.path, body))
            status, answer = hub.answer(self.command, self.path, body)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                status, answer = 401, {"code": "Unauthorized", "message": ""}
            if hub.refuses:
                status, answer = hub.refuses, {"code": "", "message": "RBAC: access denied"}
            if len(hub.writes) >= hub.dies_after:
                return
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(shown(answer)).encode() if answer else b"404 page not found\n")

        do_POST = do_PATCH = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield hub
        finally:  # a server whose socket is closed before takes a whole core
            server.shutdown()


def shown(answer: Any) -> Any:
    """Return an answer without what differs between two Hubs: times, and the stand-in's own fields."""
    if isinstance(answer, list):
        return [shown(part) for part in answer]
    if isinstance(answer, dict):
        return {
            name: shown(value)
            for name, value in sorted(answer.items())
            if not name.endswith("TimeSinceEpoch") and name[0] != "_"
        }
    return answer


def replay(url: str, exchanges: list[Fields]) -> list[Fields]:
    """Send the requests of some exchanges to a Hub, and return them with its answers."""
    done = []
    for exchange in exchanges:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
        body = json.dumps(exchange["body"]) if exchange["body"] else None
        connection.request(exchange["method"], exchange["path"], body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        content = shown(json.loads(text)) if text.startswith("{") else text
        done.append(exchange | {"status": answer.status, "answer": content})
        connection.close()
    return done


if __name__ == "__main__":
    recorded = replay(sys.argv[1], json.loads(RECORDING.read_text()))
    lines = ",\n".join(json.dumps(exchange) for exchange in recorded)
    RECORDING.write_text(f"[\n{lines}\n]\n")
