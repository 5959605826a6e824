"""A real git server over TLS on a free port: git's own http-backend behind a small web server."""

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

IDENTITY = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "tests"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "tests@example.com"),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | IDENTITY)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    """Commit all that is in a folder, and return the commit's name."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")
    return git(folder, "rev-parse", "HEAD")


@contextmanager
def serving(root: Path, certificate: Path, key: Path, answers: list[int] | None = None) -> Iterator[str]:
    """Serve the repositories in a folder; give the address. ``answers`` are the first requests' statuses."""
    handler = type("Handler", (_Handler,), {"root": root, "answers": [] if answers is None else answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:  # a server whose socket is closed before takes a whole core
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    root: Path
    answers: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.answers:
            self.send_error(self.answers.pop(0))
            return
        surroundings = os.environ | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": "POST",
            "PATH_INFO": self.path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, check=False, env=surroundings | IDENTITY
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
