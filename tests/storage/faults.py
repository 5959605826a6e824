"""A real proxy in front of a real server, which breaks requests as a script says.

It speaks HTTP/1.1 over TCP, or over TLS. Each fault is used up by the requests that it was meant for; what no
fault is waiting for goes through untouched.
"""

import http.client
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
Reply = tuple[int, list[tuple[str, str]], bytes]


@dataclass(frozen=True)
class Answer:
    """Answered by the proxy; the server never hears of it."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Reset:
    """The server answers; the connection is reset once so many bytes of its answer's body were sent."""

    after: int


@dataclass(frozen=True)
class LostReply:
    """The server does what it was asked to; its answer never arrives."""


@dataclass(frozen=True)
class ResetUpload:
    """The connection is reset within the request's body; the server hears nothing."""

    after: int


@dataclass(frozen=True)
class Slow:
    """The answer comes late."""

    seconds: float


@dataclass(frozen=True)
class Short:
    """The answer's last bytes are missing, and the connection is closed in good order."""

    by: int


@dataclass(frozen=True)
class Longer:
    """More bytes come than the range that was asked for, as from a server that knows no ranges."""


@dataclass(frozen=True)
class Damaged:
    """One bit of the answer's body is another."""

    at: int


Fault = Answer | Reset | LostReply | ResetUpload | Slow | Short | Longer | Damaged


@dataclass
class Planned:
    """A fault, which requests it is for, and how many of them."""

    fault: Fault
    method: str
    part: str
    left: int


class Proxy:
    """One proxy on a free port of this machine."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.upstream, self.seen = upstream, list[tuple[str, str, dict[str, str]]]()
        self._planned, self._lock = list[Planned](), threading.Lock()
        self._storm: Callable[[], Fault | None] = lambda: None
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Quiet(("127.0.0.1", 0), handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def plan(self, fault: Fault, method: str = "", part: str = "", times: int = 1) -> None:
        """Break the next requests of a method whose path holds a part."""
        with self._lock:
            self._planned.append(Planned(fault, method, part, times))

    @contextmanager
    def storm(self, share: float, *faults: Fault, seed: int = 0) -> Iterator[None]:
        """Break a share of all requests meanwhile, at random."""
        dice = random.Random(seed)  # noqa: S311 - it has to be the same each time
        self._storm = lambda: dice.choice(faults) if dice.random() < share else None
        try:
            yield
        finally:
            self._storm = lambda: None

    def clear(self) -> None:
        """Forget what is planned and what was seen."""
        with self._lock:
            self._planned.clear()
            self.seen.clear()

    def unused(self) -> list[Planned]:
        """List the faults that no request has met."""
        return [planned for planned in self._planned if planned.left > 0]

    def fault_for(self, method: str, path: str, headers: dict[str, str]) -> Fault | None:
        with self._lock:
            self.seen.append((method, path, headers))
            for planned in self._planned:
                if planned.left > 0 and planned.method in {"", method} and planned.part in path:
                    planned.left -= 1
                    return planned.fault
            return self._storm()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or does not trust the certificate, is no news."""


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        fault = self.proxy.fault_for(self.command, self.path, dict(self.headers))
        length = int(self.headers.get("Content-Length") or 0)
        if isinstance(fault, ResetUpload):
            self.rfile.read(min(fault.after, length))
            return self.reset()
        body = self.rfile.read(length)
        if isinstance(fault, Answer):
            return self.send((fault.status, list(fault.headers.items()), fault.body), len(fault.body))
        status, headers, content = self.ask(body)
        if isinstance(fault, Slow):
            time.sleep(fault.seconds)
        if isinstance(fault, LostReply):
            return self.reset()
        if isinstance(fault, Damaged) and content:
            content = bytes([*content[: fault.at], content[fault.at] ^ 1]) + content[fault.at + 1 :]
        if isinstance(fault, Longer):
            content += b"x" * 1000
        sent = content[: fault.after] if isinstance(fault, Reset) else content
        sent = content[: -fault.by] if isinstance(fault, Short) else sent
        self.send((status, headers, sent), len(content))
        if isinstance(fault, Reset):
            self.reset()
        elif isinstance(fault, Short):
            self.close_connection = True
        return None

    def ask(self, body: bytes) -> Reply:
        """Ask the server behind. HEAD has headers of a body that does not come."""
        upstream = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            if body or self.command in {"POST", "PUT", "PATCH"}:
                headers["Content-Length"] = str(len(body))
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() != "expect":
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def send(self, reply: Reply, length: int) -> None:
        status, headers, content = reply
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def reset(self) -> None:
        """Break the connection off: the other side gets a reset, not an end."""
        with suppress(OSError):
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # at once: a socket's own close waits for the files made of it
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = serve

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""
