"""A real browser for tests: headless Chromium, driven over a pipe by its own protocol, nothing installed."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-features=IsolateSandboxedIframes",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60


@dataclass(frozen=True)
class Seen:
    """What a page did and looked like."""

    requests: list[str]
    problems: list[str]
    png: bytes
    answers: list[Any]

    @property
    def shades(self) -> int:
        """Distinct bytes in the picture's data: a blank page has a handful."""
        data, at = b"", 8
        while at < len(self.png):
            size = int.from_bytes(self.png[at : at + 4])
            if self.png[at + 4 : at + 8] == b"IDAT":
                data += self.png[at + 8 : at + 8 + size]
            at += size + 12
        return len(set(zlib.decompress(data)))


class Browser:
    """One running browser; it ends with its ``with`` block."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __enter__(self) -> "Browser":
        self._home = tempfile.mkdtemp()
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out))
        null = os.open(os.devnull, os.O_RDWR)
        places = {null: (0, 1, 2), reads: (3,), writes: (4,)}
        actions = [(os.POSIX_SPAWN_DUP2, end, place) for end, to in places.items() for place in to]
        command = [self._program, *OPTIONS, f"--user-data-dir={self._home}", "about:blank"]
        self._pid = os.posix_spawn(self._program, command, os.environ, file_actions=actions, setsid=True)
        for end in (theirs_in, theirs_out, reads, writes, null):
            os.close(end)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb")
        self._calls, self._events, self._rest = 0, [], b""
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._out.close()
        self._in.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def open(
        self, path: Path, *, width: int, height: int = 900, dark: bool = False, ask: tuple[str, ...] = ()
    ) -> Seen:
        """Load a file in a window of a given size and answer expressions of JavaScript about it."""
        with self.tab(path.resolve().as_uri(), width=width, height=height, dark=dark) as tab:
            answers = [tab.ask(text) for text in ask]
            return Seen(self.requests(), self.problems(), tab.picture(), answers)

    @contextmanager
    def tab(
        self,
        url: str,
        *,
        width: int,
        height: int = 900,
        dark: bool = False,
        cookie: Mapping[str, str] | None = None,
    ) -> Iterator["Tab"]:
        """Load an address in a window of a given size; it is closed at the end."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        for name, value in (cookie or {}).items():
            self.call("Network.setCookie", session, name=name, value=value, url=url)
        tab = Tab(self, session)
        tab.load(url)
        yield tab
        self.call("Target.closeTarget", targetId=target)

    def wait_for_load(self) -> None:
        """Wait until the next page has loaded."""
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()

    def forget(self) -> None:
        """Forget the events so far."""
        self._events.clear()

    def requests(self) -> list[str]:
        """Return the addresses that pages asked for, without files."""
        sent = [
            event["params"]["request"]["url"]
            for event in self._events
            if "requestWillBeSent" in event["method"] and "request" in event["params"]
        ]
        return [url for url in sent if not url.startswith(("file:", "about:"))]

    def problems(self) -> list[str]:
        """Return what pages wrote to the console, and errors."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self._events if event["method"] in kinds]

    def call(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        self._calls += 1
        number = self._calls
        message = {"id": number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE_S)[0], "the browser says nothing"
            piece = os.read(self._in.fileno(), 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


class Tab:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def load(self, url: str) -> None:
        """Load an address."""
        self._browser.forget()
        self._browser.call("Page.navigate", self._session, url=url)
        self._browser.wait_for_load()

    def ask(self, text: str) -> Any:
        """Return the value of an expression of JavaScript; of a promise, its result."""
        answer = self._browser.call(
            "Runtime.evaluate", self._session, expression=text, returnByValue=True, awaitPromise=True
        )
        return answer["result"].get("value")

    def press(self, *keys: str, loads: bool = False) -> None:
        """Press keys by their names, such as ``Tab``; with ``loads``, the last one loads a page."""
        self._browser.forget()
        codes = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
        for key in keys:
            code, text = codes[key]
            of_key = {"key": key, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
            for kind in ("keyDown", "keyUp"):
                self._browser.call("Input.dispatchKeyEvent", self._session, type=kind, **of_key)
        if loads:
            self._browser.wait_for_load()

    def picture(self) -> bytes:
        """Return a picture of the window, as PNG."""
        answer = self._browser.call("Page.captureScreenshot", self._session, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")
    with Browser(program) as running:
        yield running
