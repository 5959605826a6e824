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
from typing import Any, cast

SILENT = 0
"""Status of an answer that never comes."""


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
    """

    port: int = 0
    words: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    letters: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    offers: bool = True
    replies: Sequence[str] = ("250 ok",)
    implicit: bool = False
    trickle: bool = False
    asked: int = 0


@contextmanager
def mail_server(identity: tuple[Path, Path], server: MailServer) -> Iterator[MailServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*identity)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.encrypted = server.implicit
            if server.implicit:
                self.wrap()
            while server.trickle:
                self.say("220-one moment")
                time.sleep(0.05)
            self.say("220 ready")
            self.recipients: list[str] = []
            while line := self.rfile.readline():
                text = line.decode().strip()
                if not self.encrypted:
                    server.words.append(text)
                if not self.answer(text):
                    return

        def answer(self, text: str) -> bool:
            word = text.split(" ", maxsplit=1)[0].upper()
            if word == "EHLO":
                offer = "STARTTLS" if server.offers and not self.encrypted else "AUTH PLAIN"
                self.say(f"250-here\r\n250 {offer}")
            elif word == "STARTTLS":
                self.say("220 go on")
                self.wrap()
                self.encrypted = True
            elif word == "AUTH":
                _, user, password = base64.b64decode(text.split(" ")[2]).decode().split("\0")
                server.logins.append((user, password))
                self.say("235 welcome" if password == "s3cret pass" else "535 no")
            elif word == "RCPT":
                reply = server.replies[min(server.asked, len(server.replies) - 1)]
                server.asked += 1
                self.recipients += [text.partition("<")[2].partition(">")[0]] if reply[0] == "2" else []
                self.say(reply)
            elif word == "DATA":
                self.say("354 go on")
                body = b"".join(iter(self.rfile.readline, b".\r\n"))
                letter = cast("EmailMessage", message_from_bytes(body, policy=policy.SMTP))
                server.letters.append((self.recipients, letter))
                self.say("250 taken")
            else:
                self.say("221 bye" if word == "QUIT" else "250 ok")
            return word != "QUIT"

        def wrap(self) -> None:
            self.connection = tls.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

        def finish(self) -> None:
            super().finish()
            self.connection.close()

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that goes away is no news."""

    with _serving(Server(("127.0.0.1", 0), Handler)) as port:
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
