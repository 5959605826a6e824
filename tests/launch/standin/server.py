"""HTTP: reads calls, lets the script of faults befall them, and writes answers and streams."""

import json
import re
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.launch.standin.access import OWN_REVIEW, Accounts, Call, allow, review
from tests.launch.standin.answers import Refused, no_page
from tests.launch.standin.faults import ANSWER, COMMIT_THEN_CUT, CUT, SLOW, Fault, Faults
from tests.launch.standin.resources import REVIEWS, Address, Object, Resource, read_address
from tests.launch.standin.verbs import Answer, Request, Verbs

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
_WATCH_S = 1800.0

Log = Answer | Iterator[bytes]


@dataclass
class Service:
    """What a server needs to answer.

    Attributes:
        verbs: Does the calls.
        accounts: Who may call.
        faults: What goes wrong.
        known: The kinds that are installed.
        log: Reads the log of a pod.
        calls: Every call so far.
        problems: Tracebacks of what went wrong in here: there should be none.
    """

    verbs: Verbs
    accounts: Accounts
    faults: Faults
    known: tuple[Resource, ...]
    log: Callable[[Address, dict[str, str]], Log]
    calls: list[Call] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    """A server on a free port of the loopback interface; a context manager that runs and ends it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), type("Handler", (_Handler,), {"service": service}))
        self._service = service
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True, name="api-server"
        )

    def __enter__(self) -> "Server":
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; who still looks on is cut off."""
        self._service.verbs.store.cut_watches()
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A connection that either side cut is no news."""


class _Cut(Exception):
    """The connection is to be cut."""


class _Handler(BaseHTTPRequestHandler):
    """Answers the calls of one connection."""

    service: Service
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        came = time.monotonic()
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        address = read_address(url.path, self.service.known)
        verb = _verb(self.command, address, query)
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if len(raw) < length:  # who called is gone in the middle of it
            self.close_connection = True
            return
        try:
            answer = self._answer(verb, url.path, address, query, raw, came)
            self._send(answer)
        except Refused as refusal:
            self._send(Answer(refusal.code, refusal.body, refusal.headers))
        except _Cut:
            self._cut()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception:
            self.service.problems.append(traceback.format_exc())
            self._cut()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _answer(
        self,
        verb: str,
        path: str,
        address: Address | None,
        query: dict[str, str],
        raw: bytes,
        came: float,
    ) -> Answer | Iterator[bytes]:
        """Do a call, or let it go wrong; note it either way."""
        fault = self.service.faults.next(verb, address)
        user, code = "", 0
        try:
            _befall(fault)
            if path == "/readyz":
                self.service.accounts.let_see_health(self.headers.get("Authorization", ""))
                return Answer(200, "ok")
            account = self.service.accounts.of(self.headers.get("Authorization", ""))
            user = account.user
            if address is None:
                answer: Answer | Iterator[bytes] = Answer(200, _discovery(path, self.service.known))
            else:
                if address.resource.plural != OWN_REVIEW:  # everybody who is known may ask about himself
                    allow(account, verb, _named(address, query))
                if address.resource.group == REVIEWS:
                    answer = Answer(201, review(self.service.accounts, account, _body(raw)))
                else:
                    answer = self._do(Request(verb, address, query, _body(raw), self._form()))
            if fault and fault.how == COMMIT_THEN_CUT:
                raise _Cut
            code = answer.code if isinstance(answer, Answer) else 200
        except Refused as refusal:
            code = refusal.code
            raise
        else:
            return answer
        finally:
            at = address or Address(Resource("", "", path, ""))
            called = (verb, at.resource.group, at.resource.plural, at.subresource, at.name, at.namespace)
            if path != "/readyz":  # it takes no right
                self.service.calls.append(Call(*called, user, code, came, "dryRun" in query))

    def _form(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0]

    def _do(self, asked: Request) -> Answer | Iterator[bytes]:
        if asked.verb == "watch":
            return _watched(self.service, asked)
        if asked.address.subresource == "log":
            return self.service.log(asked.address, asked.query)
        return self.service.verbs.answer(asked)

    def _send(self, answer: Answer | Iterator[bytes]) -> None:
        if not isinstance(answer, Answer):
            return self._stream(answer)
        text = isinstance(answer.body, str)
        data = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        return None

    def _stream(self, lines: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _cut(self) -> None:
        """End the connection with a reset, as a node that dies does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _befall(fault: Fault | None) -> None:
    """Let go wrong what goes wrong before a call is done."""
    if fault and fault.how == SLOW:
        time.sleep(fault.seconds)
    if fault and fault.how == CUT:
        raise _Cut
    if fault and fault.how == ANSWER and fault.answer:
        raise fault.answer


def _verb(method: str, address: Address | None, query: dict[str, str]) -> str:
    """Return a call's verb, as a Role names it."""
    verb = _VERBS.get(method, method.lower())
    named = address is None or bool(address.name)
    if verb == "get" and not named:
        return "watch" if query.get("watch", "").lower() in ("1", "true") else "list"
    return "deletecollection" if verb == "delete" and not named else verb


def _named(address: Address, query: dict[str, str]) -> Address:
    """Return what a call is about for its caller's rights: a list may be of one name only."""
    found = re.search(r"(?:^|,)metadata\.name==?([^,]+)", query.get("fieldSelector", ""))
    return replace(address, name=found[1]) if found and not address.name else address


def _body(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        raise Refused(400, "BadRequest", "the object provided is unrecognized: json parse error") from None


def _watched(service: Service, asked: Request) -> Iterator[bytes]:
    """Begin to look on; what is seen comes out line by line."""
    address, query = asked.address, asked.query
    selects = service.verbs.selects(query)
    try:
        watch = service.verbs.store.watch(
            address.resource, address.namespace, selects, query.get("resourceVersion", "")
        )
    except Refused as refusal:
        # As the real one does: 200, and the error as the only event.
        return iter([json.dumps({"type": "ERROR", "object": refusal.body}).encode() + b"\n"])
    end = time.monotonic() + float(query.get("timeoutSeconds") or _WATCH_S)
    marks = query.get("allowWatchBookmarks", "").lower() in ("1", "true")

    def lines() -> Iterator[bytes]:
        try:
            while True:
                try:
                    line = watch.lines.get(timeout=max(0.0, end - time.monotonic()))
                except Empty:
                    if marks:
                        watch.bookmark()
                        yield watch.lines.get() or b""
                    return
                if line is None and watch.cut:
                    raise _Cut
                if line is None:
                    return
                yield line
        finally:
            service.verbs.store.leave(watch)

    return lines()


def _discovery(path: str, known: tuple[Resource, ...]) -> Object | str:
    """Answer what is asked about the API itself.

    Raises:
        Refused: There is nothing at this address.
    """
    parts = [part for part in path.split("/") if part]
    if path in ("/healthz", "/readyz", "/livez"):
        return "ok"
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.14"}
    if parts == ["apis"]:
        groups = sorted({(entry.group, entry.version) for entry in known if entry.group})
        listed = [
            {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}]}
            for group, version in groups
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    version = "/".join(parts[1:])
    found = [entry for entry in known if entry.api_version == version and parts[0] in ("api", "apis")]
    if not found:
        raise no_page()
    plurals = [{"name": entry.plural, "kind": entry.kind, "namespaced": entry.namespaced} for entry in found]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": plurals}
