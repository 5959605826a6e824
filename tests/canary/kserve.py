"""A server that answers as the Kubernetes API does to an apply of an InferenceService that exists."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from trainwright.canary.canary import ApiServer

TOKEN = "secret"  # noqa: S105
PATH = "/apis/serving.kserve.io/v1beta1/namespaces/team-a/inferenceservices/flights"


@dataclass
class KServe:
    """The InferenceService, the queries of all calls, and statuses to answer with before it works."""

    service: dict[str, Any]
    statuses: list[int] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    api: ApiServer = field(default_factory=lambda: ApiServer("", ""))

    def patch(self, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, Any]]:
        url = urlsplit(handler.path)
        self.queries.append(parse_qs(url.query))
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if self.statuses:
            return self.statuses.pop(0), {"message": "not now"}
        if handler.headers["Authorization"] != f"Bearer {TOKEN}":
            return 403, {"message": "cannot patch resource inferenceservices"}
        if url.path != PATH or handler.headers["Content-Type"] != "application/apply-patch+yaml":
            return 404, {"message": "the server could not find the requested resource"}
        self.service = merged(self.service, body)
        return 200, self.service


def merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: merged(below.get(key), value) for key, value in above.items()}


@contextmanager
def kserve(*statuses: int, token: str = TOKEN) -> Iterator[KServe]:
    """Serve one InferenceService, whose replicas and memory are the platform team's."""
    predictor = {"minReplicas": 2, "model": {"resources": {"limits": {"memory": "2Gi"}}}}
    server = KServe({"spec": {"predictor": predictor}}, list(statuses))

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            status, body = server.patch(self)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        server.api = ApiServer(f"http://127.0.0.1:{http.server_port}", token)
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
