"""Wheels that tests write themselves, and a package index over HTTP that serves them."""

import base64
import contextlib
import functools
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    source: str = "",
    *,
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
) -> str:
    """Write a wheel of one module; return the line that locks it."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": source or f"VERSION = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": metadata
        + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{name}-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    record = f"{name}-{version}.dist-info/RECORD"
    files[record] = (
        "".join(f"{path},sha256={digest},\n" for path, digest in digests.items()) + f"{record},,\n"
    )
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, also to clients whose proxy it is, and notes what they ask for."""

    asked: list[str]

    def do_GET(self) -> None:
        """Answer with a file or the list of a folder."""
        self.asked.append(self.path)
        self.path = urlsplit(self.path).path
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder on a free port; yield the address and what is asked for."""
    asked: list[str] = []
    handler = type("Noting", (Handler,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
