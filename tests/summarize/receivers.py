"""Servers that take alerts and events: HTTPS and SMTP, with the behaviour that a test asks for."""

import base64
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

SILENT = 0
"""Status of an answer that never comes."""

KEY = "s3cret pass"
"""Password of the mail server."""


@dataclass
class Webhook:
    """An HTTPS server; it gives its answers in turn, the last one for ever."""

    url: str
    answers: Sequence[tuple[int, dict[str, str]]]
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    documents: list[Any] = field(default_factory=list)


@contextmanager
def webhook(
    identity: tuple[Path, Path], answers: Sequence[tuple[int, dict[str, str]]] = ((200, {}),)
) -> Iterator[Webhook]:
    found = Webhook("", answers)
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.headers.append(dict(self.headers))
            found.documents.append(json.loads(body))
            status, headers = answers[min(len(found.paths), len(answers)) - 1]
            if status == SILENT:
                ended.wait()
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"ok" if status == 200 else b"no <such> hook")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that does not trust the certificate is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*identity)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.url = f"https://127.0.0.1:{server.server_port}"
    with _serving(server):
        yield found
        ended.set()


@dataclass
class MailServer:
    """An SMTP server (RFC 5321, with STARTTLS and AUTH PLAIN).

    Attributes:
        port: Its port.
        words: What clients said before encryption.
        logins: Users and passwords, as they arrived.
        letters: Recipients and message of each letter.
        offers: Whether it offers STARTTLS.
        replies: Replies to RCPT in turn, the last one for ever.
        implicit: Whether it speaks TLS from the start.
        trickle: Whether it sends its greeting one line a moment, for ever.
        farewell: Its answer to QUIT.
    """

    port: int = 0
    words: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    letters: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    offers: bool = True
    replies: Sequence[str] = ("250 ok",)
    implicit: bool = False
    trickle: bool = False
    farewell: str = "221 bye"
    asked: int = 0


class _Session(socketserver.StreamRequestHandler):
    """One session of a client."""

    behaviour: ClassVar[MailServer]
    tls: ClassVar[ssl.SSLContext]

    def handle(self) -> None:
        self.encrypted, self.recipients = self.behaviour.implicit, list[str]()
        if self.encrypted:
            self.wrap()
        while self.behaviour.trickle:
            self.say("220-one moment")
            time.sleep(0.05)
        self.say("220 ready")
        while line := self.rfile.readline():
            text = line.decode().strip()
            if not self.encrypted:
                self.behaviour.words.append(text)
            word, _, rest = text.partition(" ")
            getattr(self, f"on_{word.lower()}", self.on_other)(rest)
            if word.upper() == "QUIT":
                return

    def on_ehlo(self, _: str) -> None:
        offer = "STARTTLS" if self.behaviour.offers and not self.encrypted else "AUTH PLAIN"
        self.say(f"250-here\r\n250 {offer}")

    def on_starttls(self, _: str) -> None:
        self.say("220 go on")
        self.wrap()
        self.encrypted = True

    def on_auth(self, rest: str) -> None:
        _, user, key = base64.b64decode(rest.split(" ")[1]).decode().split("\0")
        self.behaviour.logins.append((user, key))
        self.say("235 welcome" if key == KEY else "535 no")

    def on_rcpt(self, rest: str) -> None:
        replies = self.behaviour.replies
        reply = replies[min(self.behaviour.asked, len(replies) - 1)]
        self.behaviour.asked += 1
        if reply[0] == "2":
            self.recipients.append(rest.partition("<")[2].partition(">")[0])
        self.say(reply)

    def on_data(self, _: str) -> None:
        self.say("354 go on")
        body = b"".join(iter(self.rfile.readline, b".\r\n"))
        letter = cast("EmailMessage", message_from_bytes(body, policy=policy.SMTP))
        self.behaviour.letters.append((self.recipients, letter))
        self.say("250 taken")

    def on_quit(self, _: str) -> None:
        self.say(self.behaviour.farewell)

    def on_other(self, _: str) -> None:
        self.say("250 ok")

    def wrap(self) -> None:
        self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server(identity: tuple[Path, Path], server: MailServer) -> Iterator[MailServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*identity)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that goes away is no news."""

    handler = type("Session", (_Session,), {"behaviour": server, "tls": tls})
    with _serving(Server(("127.0.0.1", 0), handler)) as port:
        server.port = port
        yield server


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
