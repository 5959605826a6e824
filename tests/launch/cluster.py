"""A stand-in for the Kubernetes API: PyTorchJobs and pods in a dictionary, behind real HTTP on loopback.

The real client talks to it, so that serialisation and errors are real. It keeps what the recordings show of
the real one: no status at first, 409 with a reason, foreground deletion, 404 with a Status or without.
"""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client as k8s

JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PODS = "/api/v1/namespaces/team/pods"

Object = dict[str, Any]
Fault = tuple[int, Object | str] | str
"""What to do instead: answer with a status and a body, ``drop`` the call, or ``commit-then-drop`` it."""


def status(code: int, reason: str, message: str) -> Object:
    """Return an error as the API writes it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


class Cluster:
    """The objects of one namespace.

    Attributes:
        jobs: PyTorchJobs by name.
        pods: Pods.
        calls: Every call so far: method and path.
        faults: What to answer the next calls with, one after another; empty when all goes well.
        created: Called with every job that is created, before the answer is sent.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Object] = {}
        self.pods: list[Object] = []
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.created: Callable[[Object], None] = lambda _job: None
        self.creations = 0
        self._lock = threading.RLock()

    def condition(self, name: str, kind: str, message: str = "") -> None:
        """Set a condition of a job to True."""
        with self._lock:
            entry = {"type": kind, "status": "True", "reason": f"PyTorchJob{kind}", "message": message}
            self.jobs[name].setdefault("status", {}).setdefault("conditions", []).append(entry)

    def answer(self, method: str, path: str, body: Object | None) -> tuple[int, Object | str]:
        """Do what a call asks for."""
        with self._lock:
            url = urlsplit(path)
            name = url.path.removeprefix(JOBS).strip("/")
            if url.path == PODS:
                selector = parse_qs(url.query)["labelSelector"][0].partition("=")[2]
                mine = [pod for pod in self.pods if pod["metadata"]["name"].startswith(selector)]
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": mine}
            if not url.path.startswith(JOBS):
                return 404, "404 page not found"
            if method == "POST":
                assert body is not None
                return self._create(body, strict="fieldValidation=Strict" in url.query)
            if name not in self.jobs:
                return 404, status(404, "NotFound", f'pytorchjobs.kubeflow.org "{name}" not found')
            if method == "DELETE":
                return 200, self.jobs.pop(name)
            return 200, self.jobs[name]

    def _create(self, body: Object, *, strict: bool) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if not strict:
            return 400, status(400, "BadRequest", "this cluster wants strict validation")
        if name in self.jobs:
            return 409, status(409, "AlreadyExists", f'pytorchjobs.kubeflow.org "{name}" already exists')
        body["metadata"]["uid"] = str(uuid.uuid4())
        self.jobs[name] = body
        self.creations += 1
        self.created(body)
        return 201, body


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            cluster.calls.append((self.command, self.path))
            fault = cluster.faults.pop(0) if cluster.faults else None
            if isinstance(fault, str):
                if fault == "commit-then-drop":
                    cluster.answer(self.command, self.path, body)
                self.close_connection = True
                self.connection.close()
                return
            code, answer = fault or cluster.answer(self.command, self.path, body)
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A connection that we closed ourselves is no news."""


@contextmanager
def running() -> Iterator[tuple[Cluster, k8s.ApiClient]]:
    """Run a cluster, and give a client of it that makes each call once."""
    cluster = Cluster()
    with _Server(("127.0.0.1", 0), _handler(cluster)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        settings = k8s.Configuration()
        settings.host = f"http://127.0.0.1:{server.server_port}"
        settings.retries = False
        with k8s.ApiClient(settings) as client:
            yield cluster, client
        server.shutdown()
        thread.join()
