"""A server of ``gs://`` on a free port: gcp-storage-emulator, with what it leaves out and storage relies on.

Run by the environment of the emulators: ``python tests/storage/gcs.py``; prints its port. Version 2026.7.19
of the emulator ignores generations when it reads, ignores preconditions when it writes, forgets what was
replaced in a bucket with versions, and lists everything on one page. Here these four are as the JSON API has
them; all else is the emulator's. It also writes its whole state after each object, which is left out.
"""

import json
import threading
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage

PAGE = 1000
asked = threading.local()


class Failed(Exception):
    """A precondition does not hold."""


class Store(Storage):
    """The emulator's storage, with generations and preconditions."""

    def __init__(self) -> None:
        super().__init__(use_memory_fs=True)
        self.kept, self.conditions, self.lock = {}, {}, threading.RLock()

    def _write_config_to_file(self) -> None:
        pass

    def create_resumable_upload(self, bucket_name, file_name, file_obj):
        self.require(bucket_name, file_name, asked.condition)
        upload = super().create_resumable_upload(bucket_name, file_name, file_obj)
        self.conditions[upload] = asked.condition
        return upload

    def create_file(self, bucket_name, file_name, content, file_obj, file_id=None):
        with self.lock:
            self.require(bucket_name, file_name, self.conditions.get(file_id, asked.condition))
            self.keep(bucket_name, file_name)
            super().create_file(bucket_name, file_name, content, file_obj, file_id)

    def delete_file(self, bucket_name, file_name):
        with self.lock:
            self.keep(bucket_name, file_name)
            super().delete_file(bucket_name, file_name)

    def get_file_obj(self, bucket_name, file_name):
        live = self.objects.get(bucket_name, {}).get(file_name, {})
        if asked.generation in {None, live.get("generation")}:
            return super().get_file_obj(bucket_name, file_name)
        return self.old(bucket_name, file_name)[0]

    def get_file(self, bucket_name, file_name, show_error=True):
        live = self.objects.get(bucket_name, {}).get(file_name, {})
        if asked.generation in {None, live.get("generation")}:
            return super().get_file(bucket_name, file_name, show_error)
        return self.old(bucket_name, file_name)[1]

    def require(self, bucket, name, condition) -> None:
        live = self.objects.get(bucket, {}).get(name, {})
        if condition is not None and condition != live.get("generation", "0"):
            raise Failed

    def keep(self, bucket, name) -> None:
        """Keep what is about to be replaced or removed, if its bucket keeps versions."""
        live = self.objects.get(bucket, {}).get(name)
        if live and self.buckets[bucket].get("versioning", {}).get("enabled"):
            content = Storage.get_file(self, bucket, name)
            self.kept[bucket, name, live["generation"]] = (live, content)

    def old(self, bucket, name):
        try:
            return self.kept[bucket, name, asked.generation]
        except KeyError:
            raise NotFound from None


def pages(request, response, storage, *args, **kwargs) -> None:
    """List as the emulator does, in pages."""
    query = {name: values[0] for name, values in request.query.items()}
    bucket, start = request.params["bucket_name"], int(query.get("pageToken", 0))
    stop = start + min(PAGE, int(query.get("maxResults", PAGE)))
    try:
        items, prefixes = storage.get_file_list(bucket, query.get("prefix"), query.get("delimiter"))
    except NotFound:
        response.status = HTTPStatus.NOT_FOUND
        return
    more = {"nextPageToken": str(stop)} if stop < len(items) else {}
    response.json({"kind": "storage#objects", "prefixes": prefixes, "items": items[start:stop], **more})


class Handler(server.RequestHandler):
    """One connection; notes what each request asks for before the emulator looks at it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent one after the other

    def handle_one(self, method: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        asked.generation = query.get("generation", [None])[0]
        asked.condition = query.get("ifGenerationMatch", [None])[0]
        try:
            server.Router(self).handle(method)
        except Failed:
            answer = json.dumps({"error": {"code": 412, "message": "a precondition does not hold"}}).encode()
            self.send_response(412)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    do_GET = lambda self: self.handle_one("GET")  # noqa: E731
    do_POST = lambda self: self.handle_one("POST")  # noqa: E731
    do_PUT = lambda self: self.handle_one("PUT")  # noqa: E731
    do_PATCH = lambda self: self.handle_one("PATCH")  # noqa: E731
    do_DELETE = lambda self: self.handle_one("DELETE")  # noqa: E731


def main() -> None:
    """Serve until the process is ended."""
    for _, methods in server.HANDLERS:
        if methods.get("GET") is objects.ls:
            methods["GET"] = pages
    ThreadingHTTPServer.daemon_threads = True
    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, Store()))
    print(served.server_address[1], flush=True)  # noqa: T201
    served.serve_forever()


if __name__ == "__main__":
    main()
