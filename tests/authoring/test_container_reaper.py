"""The process that ends the containers of a killed run, against a stand-in of the engine's API.

It answers over a socket as docker's does, for the few questions that are asked; tests/authoring/
test_containers_live.py asks a real engine, which CI has not.
"""

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from trainwright.local import container_reaper

LABEL = "trainwright.run=/runs/a folder"


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An engine with one container, which ends when it is told to; it forgets it only when it is removed."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.asked: list[tuple[str, str]] = []
        self.containers = ["c1"]
        super().__init__(str(path), Answers)


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def address_string(self) -> str:
        return "socket"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("/v1.41")[2] or self.path
        self.server.asked.append((f"{self.command} {path.partition('?')[0]}", f"{path} {body.decode()}"))
        if self.command == "DELETE":
            self.server.containers.clear()
        listed = [{"Id": one, "Labels": {}} for one in self.server.containers]
        known = {"/version": {"ApiVersion": "1.41"}, "/containers/json": listed}
        known |= {"/containers/c1/exec": {"Id": "e1"}, "/containers/c1/wait": {"StatusCode": 0}}
        said = json.dumps(known.get(path.partition("?")[0], {"ExitCode": 0})).encode()
        self.close_connection = "/start" in path  # what it answers there ends with the connection
        said = b"" if self.close_connection else said
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST = do_DELETE = answer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def started(place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", container_reaper.__file__, LABEL, "5.0"]
    variables = {**os.environ, "DOCKER_HOST": f"unix://{place}"}
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE)


@pytest.fixture
def engine(place: Path) -> Iterator[Engine]:
    with Engine(place) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_run_that_left_nothing_asks_the_engine_nothing(engine: Engine, place: Path) -> None:
    process = started(place)
    process.communicate(b"/tmp/scratch\n" + container_reaper.DONE, timeout=60)
    assert process.returncode == 0
    assert engine.asked == []


def test_containers_of_a_killed_run_are_told_waited_for_and_removed_with_its_temporary_files(
    engine: Engine, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "of the run" / "of the step").mkdir(parents=True)
    process = started(place)
    process.communicate(os.fsencode(tmp_path / "of the run" / "of the step") + b"\n", timeout=60)
    assert process.returncode == 0
    words = [word for word, _ in engine.asked if word != "GET /version"]
    listing = "GET /containers/json"
    assert words[0] == listing
    told, waited, removed = (words.index(f"{verb} /containers/c1{rest}") for verb, rest in ORDER)
    assert told < waited < removed
    assert words[removed + 1 :] == [listing, listing], "it looks until it has found none twice"
    (first, *_) = [said for word, said in engine.asked if word == listing]
    assert "a%20folder" in first or "a+folder" in first
    (asked,) = [json.loads(said.split(" ", 1)[1]) for word, said in engine.asked if word.endswith("c1/exec")]
    assert asked["WorkingDir"] == "/", "the step's own folder may be gone"
    assert not (tmp_path / "of the run").exists()


ORDER = (("POST", "/exec"), ("POST", "/wait"), ("DELETE", ""))


def test_engine_that_is_away_is_retried_until_it_is_back(place: Path) -> None:
    process = started(place)
    assert process.stdin
    process.stdin.close()
    with socket.socket(socket.AF_UNIX) as broken:  # takes a call, and is gone without an answer
        broken.bind(str(place))
        broken.listen()
        broken.settimeout(120)
        broken.accept()[0].close()
    place.unlink()
    with Engine(place) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert process.wait(120) == 0
        server.shutdown()
    assert not server.containers
