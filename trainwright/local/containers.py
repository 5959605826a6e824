"""Run the steps of a run in containers of their images, through kfp.local's DockerRunner.

kfp's function that starts a container has defects (tests/authoring/test_containers_kfp.py shows each), so
:mod:`trainwright.local.kfp_local` replaces it. A container is started from a local image, by digest. It is
removed after its exit code was read, and no container outlives its run.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.authoring.pipeline_spec import Step, image_of
from trainwright.errors import InputError
from trainwright.local import container_engine, container_reaper
from trainwright.local.invocation import Invocation
from trainwright.local.processes import Ended

LABEL = "trainwright.run"
"""Label of a container; its value is the run's folder."""

KILLED = 137
"""Exit code of a container that somebody removed: the step failed, whatever it had written."""

OPTIONS: Mapping[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "tmpfs": {"/tmp": "mode=1777"},  # noqa: S108 - inside the container  # nosec B108
    "shm_size": "1g",  # what the processes of a training pass to each other
}
"""Options of every container, as strict as the Pod Security profile ``restricted``."""


@dataclass(frozen=True)
class Engine:
    """The container engine of a run, and its images.

    Attributes:
        network: Network that containers join, such as ``host``; empty for the engine's default.
        seen: Paths to mount besides the run and its arguments, and whether they are writable.
        variables: Environment variables to pass on, such as a password. They are never written to disk.
    """

    network: str = ""
    seen: Mapping[Path, bool] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    _found: dict[str, str] = field(default_factory=dict)

    def identity(self, image: str) -> str:
        """Return the digest of an image, cached.

        An image of this library must have been built from the present locks and library, unless it is named
        by digest.

        Raises:
            DependencyError: The engine does not have the image, or the image is older.
        """
        if image not in self._found:
            self._found[image] = container_engine.identity(image)
        return self._found[image]

    def require(self, steps: Iterable[Step]) -> None:
        """Reject a run for which an image is missing.

        Raises:
            DependencyError: Names the first missing image.
        """
        for step in steps:
            self.identity(image_of(step, step.constants))

    @contextlib.contextmanager
    def started(
        self, folder: Path, arguments: Mapping[str, Any], *, grace_s: float, lock: int
    ) -> Iterator["Containers"]:
        """Yield the containers of one run; on exit none is left.

        Args:
            folder: The run's folder.
            arguments: The pipeline's arguments; the paths in them are mounted.
            grace_s: Seconds between asking a step to stop and killing it.
            lock: Descriptor that holds the run's folder; the reaper keeps it until no container is left.
        """
        seen = {**self.seen, **mounts_of(arguments, folder.resolve())}
        own = Containers(self, folder.resolve(), seen, grace_s)
        with own.watched(lock):
            yield own


class Containers:
    """Start the containers of one run, and stop them with it.

    Args:
        engine: The container engine.
        folder: The run's folder.
        seen: Mounted paths, and whether they are writable.
        grace_s: Seconds between asking a step to stop and killing it.
    """

    def __init__(self, engine: Engine, folder: Path, seen: Mapping[Path, bool], grace_s: float) -> None:
        self._engine, self._folder, self._seen, self._grace_s = engine, folder, seen, grace_s
        self._live: dict[str, Any] = {}
        self._left: set[str] = set()  # what was made and not removed, also where the engine is gone
        self._guard: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    @property
    def _label(self) -> str:
        return f"{LABEL}={self._folder}"

    @contextlib.contextmanager
    def watched(self, lock: int) -> Iterator[None]:
        """Start the reaper for this run, and remove containers that an earlier process of the run left."""
        with (
            contextlib.closing(container_engine.client()) as engine,
            container_engine.answering(str(self._folder)),
        ):
            container_reaper.end(engine, self._label, 0.0)
        command = [sys.executable, "-P", container_reaper.__file__, self._label, str(self._grace_s)]
        self._guard = guard = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
        )
        try:
            yield
        finally:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it goes on by itself, if it must
                guard.communicate(b"" if self._left else container_reaper.DONE, timeout=self._grace_s)

    def options(self) -> dict[str, Any]:
        """Return the options that kfp's DockerRunner passes to every container; the caller owns the files."""
        with (
            contextlib.closing(container_engine.client()) as engine,
            container_engine.answering(str(self._folder)),
        ):
            user = container_engine.restrictions(engine)
        network = {"network": self._engine.network} if self._engine.network else {}
        return {**OPTIONS, **user, **network, "labels": {LABEL: str(self._folder)}}

    def run(self, call: Invocation, scratch: str) -> Ended:
        """Run one attempt of a step in a container, and append its output to the step's log.

        Args:
            call: The step's call.
            scratch: Folder for its temporary files.
        """
        self._tell(os.fsencode(scratch) + b"\n")
        with self._created(call, scratch) as container:
            late = threading.Event()
            timer = threading.Timer(call.step.timeout_s, self._expire, [container, late])
            timer.daemon = True
            try:
                with container_engine.answering(call.name):
                    container.start()
                    output = container.logs(stream=True, follow=True)  # from its first line
                if call.step.timeout_s:
                    timer.start()
                if self._cancelled:
                    self._stop(container)
                with container_engine.answering(call.name):
                    code = _followed(container, output, call.log)
                if code and _last(call.log).endswith(container_engine.FOREIGN):
                    raise container_engine.foreign(call.name)
                return Ended(code, late.is_set())
            finally:
                timer.cancel()

    def _tell(self, line: bytes) -> None:
        if self._guard and self._guard.stdin:
            with contextlib.suppress(OSError):  # a killed reaper must not fail the run
                self._guard.stdin.write(line)
                self._guard.stdin.flush()

    def made_from(self, call: Invocation) -> dict[str, str]:
        """Return the digest of the step's image."""
        image = image_of(call.step, call.parameters)
        return {image: self._engine.identity(image)}

    @contextlib.contextmanager
    def _created(self, call: Invocation, scratch: str) -> Iterator[Any]:
        """Create a container that a signal to the run stops; remove it on exit."""
        given = call.container
        image = self._engine.identity(image_of(call.step, call.parameters))
        writable = next(iter(given.volumes.values()), {}).get("mode", "rw")  # kfp knows whether it says z
        volumes = dict(given.volumes)
        for path, kept in {**self._seen, Path(scratch): True}.items():
            mode = writable if kept else writable.replace("rw", "ro")
            volumes[str(path)] = {"bind": str(path), "mode": mode}
        own = {**self._engine.variables, "TMPDIR": scratch, "HOME": scratch, **call.variables}
        more = {"environment": own, "working_dir": scratch}
        with contextlib.closing(container_engine.client()) as engine:
            with container_engine.answering(call.name):
                command = list(call.command)
                container = engine.containers.create(image, command, volumes=volumes, **more, **given.options)
            self._live[container.id] = container
            self._left.add(container.id)
            try:
                yield container
            finally:
                self._live.pop(container.id, None)
                with container_engine.answering(call.name):
                    container_reaper.remove(container)
                self._left.discard(container.id)

    def _expire(self, container: Any, late: threading.Event) -> None:
        late.set()
        self._stop(container)

    def stop(self, again: bool) -> None:
        """Stop every container, and kill it after the grace period; at once if ``again``.

        It returns at once, since a signal handler calls it.
        """
        self._cancelled = True
        for container in tuple(self._live.values()):
            threading.Thread(target=self._stop, args=(container, again), daemon=True).start()

    def _stop(self, container: Any, at_once: bool = False) -> None:
        container_reaper.stop(container, 0.0 if at_once else self._grace_s)


def _followed(container: Any, output: Iterable[bytes], log: Path) -> int:
    """Append a container's output to the log until it ends; return its exit code.

    Podman answers 0 to a wait for a container that was removed meanwhile, so the exit code is read once more.
    """
    from docker import errors

    try:
        with log.open("ab") as stream:
            for part in output:
                stream.write(part)
                stream.flush()
        container.wait()
        container.reload()
        return int(container.attrs["State"]["ExitCode"])
    except errors.APIError as error:
        if container_reaper.unknown(error):
            return KILLED
        raise


def _last(log: Path) -> str:
    """Return the last bytes of a log."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 200))
        return stream.read().decode(errors="replace").strip()


def variables(names: Sequence[str]) -> dict[str, str]:
    """Return the named environment variables of this process.

    Raises:
        InputError: One is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            "there is no such variable here",
            where=f"--env {missing[0]}",
            hint="Set it: --env takes a name.",
        )
    return {name: os.environ[name] for name in names}


SQLITE = "sqlite:///"
KEPT = frozenset({"store", "remember", "statistics_store", "state", "audit"})
"""Fields of an experiment that name a folder which steps write into, and read again in later runs."""

SYSTEM = frozenset(
    Path("/", name)
    for name in (
        *("", "etc", "etc/ssl", "home", "opt", "root", "run", "tmp"),
        *("usr", "usr/local", "usr/share", "var", "var/lib", "var/tmp"),
    )
)
"""Folders that an image has itself: an argument that is just such a name is not taken for data."""

PROGRAMS = tuple(
    Path("/", name)
    for name in (
        *("bin", "dev", "lib", "lib32", "lib64", "opt/environments", "proc", "sbin", "sys"),
        *("usr/bin", "usr/lib", "usr/local/bin", "usr/local/lib", "usr/sbin"),
    )
)
"""Where nothing is data: it would hide what lies there in an image."""

_PATTERN = re.compile(r"[*?\[{]")


def requested_mounts(texts: Sequence[str], config: Path | None) -> dict[Path, bool]:
    """Return the paths of ``--mount`` and of the experiment file, and whether they are writable.

    Args:
        texts: ``PATH``, or ``PATH:rw`` for a writable one.
        config: The experiment file, if there is one.

    Raises:
        InputError: A path does not exist, or contains a colon.
    """
    beside = config.resolve().parent if config else None
    found = {beside: False} if beside and is_data(beside) else {}
    for text in texts:
        path = Path(text.removesuffix(":rw")).resolve()
        if not path.exists():
            raise InputError(
                "is not there", where=f"--mount {text}", hint="Write PATH, or PATH:rw to write there."
            )
        found[path] = text.endswith(":rw")
    return _written(found)


def is_data(path: Path) -> bool:
    """Return whether a path may be mounted unasked: no home, no system folder, no socket."""
    try:
        places = {path, path.resolve()}
        there = path.is_dir() or path.is_file()
    except OSError:  # a text that is no path, and too long for one
        return False
    system = any(place.is_relative_to(own) for place in places for own in PROGRAMS)
    return there and not system and not places & (SYSTEM | {Path.home()})


def _written(found: dict[Path, bool]) -> dict[Path, bool]:
    """Reject a path with a colon, which separates the parts of a mount."""
    for path in found:
        if ":" in str(path):
            raise InputError("containers cannot see a path with a colon", where=str(path), hint="Rename it.")
    return found


def mounts_of(arguments: Mapping[str, Any], folder: Path) -> dict[Path, bool]:
    """Return the folders and files that a run's containers see, and whether they are writable.

    A folder that a step writes to is created if it is missing; otherwise the engine would create it as root.

    Args:
        arguments: The pipeline's arguments; JSON in strings is searched too.
        folder: The run's folder.

    Raises:
        InputError: A step would write to a system folder, or a path contains a colon.
    """
    found = {folder: True}
    for name, text in _texts(arguments):
        kept = text.startswith(SQLITE) or name in KEPT
        path = _kept(text, name) if kept else _data(text)
        if path.is_absolute() and not path.is_relative_to(folder) and is_data(path):
            found[path] = found.get(path, False) or kept
    return _written(found)


def _kept(text: str, name: str) -> Path:
    """Return the folder that a step keeps things in, made if it was not there."""
    path = Path(text.removeprefix("file://"))
    if text.startswith(SQLITE):
        path = Path(text.removeprefix(SQLITE)).parent
    if path.is_absolute():
        path.mkdir(parents=True, exist_ok=True)
        if not is_data(path):
            raise InputError(
                "containers cannot keep anything here", where=f"{name} {path}", hint="Name a folder below it."
            )
    return path


def _data(text: str) -> Path:
    """Return what is looked at for a text that may be a path, or a pattern of paths."""
    path = Path(_PATTERN.split(text.removeprefix("file://"))[0])
    with contextlib.suppress(OSError):
        return path if path.exists() else path.parent
    return path


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text that may be a path, with the name of its field."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, name)
    elif isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            yield from _texts(json.loads(value), name)
        except ValueError:
            return
    elif isinstance(value, str) and value.startswith(("/", "file:///", SQLITE)) and "\n" not in value:
        yield name, value
