"""A web server of a few files in memory: ranges, ETags, conditions and redirects, or without any of them."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """One web server on a free port. ``files`` holds content, ``etags`` what tells it from another."""

    def __init__(self) -> None:
        self.files, self.etags = dict[str, bytes](), dict[str, str]()
        self.redirects, self.ranges = dict[str, str](), True
        handler = type("Handler", (_Handler,), {"web": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def put(self, path: str, content: bytes, etag: str = "") -> None:
        self.files[path], self.etags[path] = content, etag

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, web = self.path.partition("?")[0], self.web
        if path in web.redirects:
            return self.answer(302, b"", Location=web.redirects[path])
        if path not in web.files:
            return self.answer(404, b"")
        content, etag = web.files[path], web.etags[path]
        if self.headers.get("If-Match", etag) != etag:
            return self.answer(412, b"")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not web.ranges or not asked:
            return self.answer(200, content, ETag=etag)
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(content))
        if start >= len(content):
            return self.answer(416, b"", **{"Content-Range": f"bytes */{len(content)}"})
        shown = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}", "ETag": etag}
        return self.answer(206, content[start:stop], **shown)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""
