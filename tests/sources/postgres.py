"""A real PostgreSQL from Debian, started on a free port, and a proxy before it that cuts connections."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

PASSWORD = "s3cret/of%the@owner"  # noqa: S105 - planted, to be looked for in what is said
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


@dataclass(frozen=True)
class Postgres:
    port: int
    password_file: Path

    @property
    def url(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}/flights"

    def execute(self, *statements: str, user: str = "owner") -> None:
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, dbname="flights", user=user, password=PASSWORD, autocommit=True
        ) as connection:
            for statement in statements:
                connection.execute(statement)


def unprivileged() -> dict[str, object]:
    """How to start a process as somebody who is not root, which PostgreSQL refuses to run as."""
    if os.getuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {}


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """Make a cluster in a folder of its own, and stop it in the end."""
    programs, who = PROGRAMS[-1].parent, unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="trainwright-postgres-"))
    folder.chmod(0o755)
    password_file = folder / "password"
    password_file.write_text(f"{PASSWORD}\n")
    password_file.chmod(0o644)
    home = folder / "home"
    home.mkdir()
    if who:
        os.chown(home, int(str(who["user"])), int(str(who["group"])))
    data, port = home / "data", free_port()
    initialise = [programs / "initdb", "-D", data, "-U", "owner", "-A", "scram-sha-256", "-E", "UTF8"]
    subprocess.run(
        [*initialise, "--locale=C.UTF-8", f"--pwfile={password_file}", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=home,
        **who,  # type: ignore[call-overload]
    )
    options = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    options += ["-c", f"unix_socket_directories={home}", "-c", "max_connections=20"]
    log = (folder / "log").open("wb")
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, *options],
        stdout=log,
        stderr=log,
        cwd=home,
        **who,  # type: ignore[call-overload]
    )
    try:
        _wait(programs, port)
        made = [programs / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "owner", "flights"]
        subprocess.run(made, check=True, env={"PGPASSWORD": PASSWORD}, capture_output=True)
        yield Postgres(port, password_file)
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(programs: Path, port: int) -> None:
    for _ in range(200):
        done = subprocess.run(
            [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], check=False, capture_output=True
        )
        if done.returncode == 0:
            return
        time.sleep(0.1)
    raise TimeoutError("PostgreSQL did not start")


class Proxy:
    """Hands bytes on between clients and a server, and cuts the line after so many from the server.

    Args:
        port: The server's port on this machine.
        cuts: For each connection in turn, the bytes from the server after which it is cut; later
            connections, and those of which None is said, are never cut.
    """

    def __init__(self, port: int, cuts: list[int | None]) -> None:
        self._target, self._cuts = port, cuts
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                limit = self._cuts[self.connections] if self.connections < len(self._cuts) else None
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, limit), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                passed += len(data)
                if limit is not None and passed > limit:
                    break
                target.sendall(data)
        for line in (source, target):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
