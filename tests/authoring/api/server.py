"""A stand-in for the v2beta1 API over real HTTP, with faults on demand: the generated client talks to it.

Paths and bodies are those of the published description; a request that is not in it is answered with 404 or
400. Every request is kept in :attr:`Api.calls`.
"""

import base64
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.authoring.api.schema import Refused, written
from tests.authoring.api.store import Store

BASE = "/apis/v2beta1"
Route = tuple[str, str, Callable[..., Any]]


@dataclass
class Fault:
    """What happens to requests instead of, or after, what they ask for.

    Attributes:
        method: Of the requests.
        path: Pattern found in their path.
        times: How many of them it happens to.
        status: The answer, if it is one.
        headers: Of that answer.
        body: Of that answer, if it is not the API's usual one.
        after: What was asked for is done first: only the answer is lost.
        drop: The connection is closed without an answer.
        meanwhile: Is called before anything else: what others do at this moment.
        skip: Requests that pass unharmed first.
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    after: bool = False
    drop: bool = False
    meanwhile: Callable[[], None] | None = None
    skip: int = 0


class Dropped(Exception):
    """The connection is closed without an answer."""


@dataclass
class Api:
    """The stand-in: what it holds, who may ask, what goes wrong.

    Attributes:
        logs: Of pods that are there, by their names.
        archive: Logs of ended pods in the object store, by the nodes of the workflow: Argo's ``main-logs``.
    """

    url: str
    store: Store = field(default_factory=Store)
    token: str = ""
    forbidden: bool = False
    logs: dict[str, str] = field(default_factory=dict)
    archive: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def fail(self, method: str, path: str, **how: Any) -> Fault:
        """Let requests go wrong."""
        self.faults.append(Fault(method, path, **how))
        return self.faults[-1]

    def made(self, method: str, path: str) -> int:
        """Count the requests that were made."""
        return sum(bool(re.search(f"^{method} .*{path}", call)) for call in self.calls)

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Answer a request: status, body, headers."""
        parts = urlsplit(target)
        path, query = unquote(parts.path), {key: value[0] for key, value in parse_qs(parts.query).items()}
        self.calls.append(f"{method} {path}")
        fault = self._fault(method, path)
        if fault and fault.meanwhile:
            fault.meanwhile()
        if fault and not fault.after:
            self._strike(fault)
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused(401, "Request header error: there is no user identity header.")
        if self.forbidden:
            raise Refused(403, "User 'ci' is not authorized with reason: (request: create runs)")
        with self.lock:
            found = self._routed(method, path, query, headers, body)
        if fault:
            self._strike(fault)
        return 200, found, {}

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method == method and re.search(fault.path, path) and fault.times:
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None

    @staticmethod
    def _strike(fault: Fault) -> None:
        if fault.drop:
            raise Dropped
        if fault.status:
            raise Refused(fault.status, fault.body or "made to fail", fault.headers)

    def _routed(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> Any:
        for verb, pattern, handle in self._routes(query, headers, body):
            if verb == method and (match := re.fullmatch(BASE + pattern, path)):
                return handle(*match.groups())
        if match := re.fullmatch(r"/apis/v1alpha1/runs/([^/]+)/nodes/([^/]+)/log", path):
            if match[2] in self.logs:
                return self.logs[match[2]]
            return '{"error_message": "Failed to read logs"}'  # with 200: the server has begun to answer
        if match := re.fullmatch(rf"{BASE}/runs/([^/]+)/nodes/([^/]+)/artifacts/([^/]+):read", path):
            if match[3] != "main-logs" or match[2] not in self.archive:
                raise Refused(404, "artifact not found: <nil>")
            return '{"data":"' + base64.b64encode(self.archive[match[2]].encode()).decode() + '"}'
        if match := re.fullmatch(r"/apis/v1beta1/runs/([^/]+)", path):
            return self.store.first.get(match[1], {"run": {"id": self.store.run(match[1]).run_id}})
        raise Refused(404, "Not Found")

    def _routes(self, query: dict[str, str], headers: Any, body: bytes) -> list[Route]:
        store, one = self.store, self.store.one

        def data() -> Any:
            self.bodies.append(json.loads(body))
            return self.bodies[-1]

        def package() -> bytes:
            head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
            (part,) = message_from_bytes(head + body).get_payload()
            return bytes(part.get_payload(decode=True))

        def versions(pipeline_id: str) -> Any:
            return store.listed("pipeline_versions", query, pipeline_id=pipeline_id)

        identifier = "([^/:]+)"
        return [
            ("GET", "/healthz", store.health),
            ("POST", "/experiments", lambda: store.make_experiment(data())),
            ("GET", "/experiments", lambda: store.listed("experiments", query)),
            ("GET", f"/experiments/{identifier}", store.experiment),
            ("POST", "/pipelines", lambda: store.make_pipeline(data())),
            ("GET", "/pipelines", lambda: store.listed("pipelines", query)),
            (
                "GET",
                "/pipelines/names/([^/]+)",
                lambda name: store.pipeline_of(name, query.get("namespace", "")),
            ),
            ("POST", "/pipelines/upload_version", lambda: store.upload_version(query, package())),
            ("GET", f"/pipelines/{identifier}/versions", versions),
            (
                "GET",
                f"/pipelines/{identifier}/versions/{identifier}",
                lambda _, found: one(store.pipeline_versions, "pipeline_version_id", found),
            ),
            ("POST", "/runs", lambda: store.make_run(data())),
            ("GET", "/runs", lambda: store.listed("runs", query)),
            ("GET", f"/runs/{identifier}", store.look),
            ("DELETE", f"/runs/{identifier}", lambda i: store.delete("runs", "run_id", i)),
            (
                "DELETE",
                f"/recurringruns/{identifier}",
                lambda i: store.delete("recurring_runs", "recurring_run_id", i),
            ),
            (
                "DELETE",
                f"/experiments/{identifier}",
                lambda i: store.delete("experiments", "experiment_id", i),
            ),
            (
                "DELETE",
                f"/pipelines/{identifier}/versions/{identifier}",
                lambda _, i: store.delete("pipeline_versions", "pipeline_version_id", i),
            ),
            ("DELETE", f"/pipelines/{identifier}", store.delete_pipeline),
            ("POST", f"/runs/{identifier}:terminate", store.terminate),
            ("POST", f"/runs/{identifier}:retry", store.retry),
            ("POST", "/recurringruns", lambda: store.make_recurring(data())),
            ("GET", "/recurringruns", lambda: _as_listed(store.listed("recurring_runs", query))),
            (
                "GET",
                f"/recurringruns/{identifier}",
                lambda i: one(store.recurring_runs, "recurring_run_id", i),
            ),
            ("POST", f"/recurringruns/{identifier}:enable", lambda i: store.switch(i, True)),
            ("POST", f"/recurringruns/{identifier}:disable", lambda i: store.switch(i, False)),
        ]


def _as_listed(page: dict[str, Any]) -> dict[str, Any]:
    """The list of recurring runs has its own name in the description."""
    return {"recurringRuns": page.pop("recurring_runs"), **page}


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[Api]:
    """Serve the API on a free port of this machine, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: the client would wait 40 ms for the second
        disable_nagle_algorithm = True

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, found, extra = api.answer(self.command, self.path, self.headers, body)
            except Refused as refused:
                status, extra = refused.status, refused.headers
                found = {"code": 3, "message": refused.message, "details": []}
                if refused.message.startswith(("<", "{")):
                    found = refused.message
            except Dropped:
                self.close_connection = True
                return
            text = (found if isinstance(found, str) else json.dumps(written(found))).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **extra}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_PATCH = do

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        api = Api(f"http://127.0.0.1:{server.server_port}", **options)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
