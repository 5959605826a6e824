"""Run the steps of a run in containers of their images; the engine: docker, or podman with docker's API.

A container is started from a local image, by digest. It is removed after its exit code was read, and no
container outlives its run.
"""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright import tracking
from trainwright.authoring import environments
from trainwright.authoring.pipeline_spec import Step, image_of, toolchain_of
from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError
from trainwright.http_limits import limited
from trainwright.local import container_reaper
from trainwright.local.container_reaper import TIMEOUT_S
from trainwright.local.invocation import Invocation
from trainwright.local.processes import Ended, Processes, tail

FOREIGN = "exec format error"
"""What the kernel says of a program for another processor."""


@contextlib.contextmanager
def answering(where: str) -> Iterator[None]:
    """Turn an engine's error or timeout into a DependencyError."""
    from docker import errors
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (errors.APIError, RequestException, HTTPError) as error:  # the last while output is read
        refused = getattr(error, "explanation", None)
        if refused and FOREIGN in str(refused):
            raise foreign(where) from None
        said = f"says: {refused}" if refused else f"does not answer any more: {error}"
        raise DependencyError(f"the container engine {said}", where=where) from None


def foreign(where: str) -> DependencyError:
    """Return the error for an image of another processor architecture."""
    return DependencyError(
        f"{FOREIGN}: the image was built for another processor",
        where=where,
        hint="Build it for this one (make images), or have the engine emulate the other.",
    )


def restrictions(engine: Any) -> dict[str, Any]:
    """Return the user that containers run as, so that the caller owns their files."""
    user = {"user": f"{os.getuid()}:{os.getgid()}"}
    if not any("rootless" in option for option in engine.info().get("SecurityOptions") or []):
        return user
    # The superuser in there is this user out here.
    return {**user, "userns_mode": "keep-id"} if program(engine) == "podman" else {"user": "0:0"}


def relabeling(engine: Any) -> str:
    """Return the mode that makes a mounted folder readable under SELinux; empty where that is off."""
    return ",z" if "name=selinux" in (engine.info().get("SecurityOptions") or []) else ""


def program(engine: Any) -> str:
    """Return the engine's command: ``podman`` or ``docker``."""
    parts = engine.version().get("Components") or []
    return "podman" if any("Podman" in part.get("Name", "") for part in parts) else "docker"


def client(timeout_s: int = TIMEOUT_S) -> Any:
    """Return a client of the engine that ``DOCKER_HOST`` names, or of docker's default."""
    import docker

    try:
        # It asks for the engine's version, so it is known to answer.
        with limited():
            return docker.from_env(timeout=timeout_s)
    except docker.errors.DockerException as error:
        raise DependencyError(
            f"no container engine answers: {error}",
            where=os.environ.get("DOCKER_HOST", "docker's usual socket"),
            hint="Start docker; or `podman system service` and name its socket: DOCKER_HOST=unix:///PATH",
        ) from None


def identity(image: str) -> str:
    """Return the digest of an image that a compiled pipeline names.

    An image of this library must have been built from the present locks and library, unless the pipeline
    names it by digest.

    Raises:
        DependencyError: The engine does not have the image, or the image is older.
    """
    by_digest = "@" in image
    with contextlib.closing(client()) as engine, answering(image), limited():
        name, found = program(engine), None
        if by_digest:  # podman does not look up a name with a digest
            known = engine.images.list()
            found = next((one for one in known if image in (one.attrs.get("RepoDigests") or ())), None)
        else:
            found = _by_tag(engine, image)
    if found is None:
        hint = f"Pull it: {name} pull {image}" if by_digest else f"Build it: {_build(image, name)}"
        raise DependencyError(f"{name} does not have this image", where=image, hint=hint)
    if not by_digest:
        require_fresh(image, found.labels or {}, name)
    return str(found.id)


def _build(image: str, engine: str) -> str:
    """Return the command that builds an image."""
    return f"make images NAME={toolchain_of(image)}{'' if engine == 'docker' else f' ENGINE={engine}'}"


def _by_tag(engine: Any, image: str) -> Any:
    from docker import errors

    for name in (image, f"localhost/{image}"):  # podman's name for what it has built
        with contextlib.suppress(errors.ImageNotFound):
            return engine.images.get(name)
    return None


def require_fresh(image: str, labels: Mapping[str, str], engine: str = "docker") -> None:
    """Reject an image of this library that was built from other locks or another library."""
    toolchain = toolchain_of(image)
    if toolchain not in environments.TOOLCHAINS:
        return
    locks = environments.ToolchainEnvironment(toolchain).digests
    stale = [] if labels.get("trainwright.lock-sha256") in locks else ["its lock"]
    stale += [] if labels.get("trainwright.library-sha256") == tracking.library_digest() else ["the library"]
    if stale:
        raise DependencyError(
            f"this image was not built from {' and '.join(stale)} as it is now",
            where=image,
            hint=f"Build it again: {_build(image, engine)}",
        )


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
        """Return the digest of an image, cached; see :func:`identity`."""
        if image not in self._found:
            self._found[image] = identity(image)
        return self._found[image]

    def require(self, steps: Iterable[Step]) -> None:
        """Reject a run for which an image is missing."""
        for step in steps:
            self.identity(image_of(step, step.constants))

    @contextlib.contextmanager
    def started(
        self, folder: Path, arguments: Mapping[str, Any], processes: Processes
    ) -> Iterator["Containers"]:
        """Yield the containers of one run, which see the paths in its arguments; on exit none is left."""
        folder = folder.resolve()
        containers = Containers(self, folder, {**self.seen, **mounts_of(arguments, folder)}, processes)
        with containers.watched():
            yield containers


class Containers:
    """Start the containers of one run, and stop them with it."""

    def __init__(self, engine: Engine, folder: Path, seen: Mapping[Path, bool], processes: Processes) -> None:
        self._engine, self._folder, self._seen, self._processes = engine, folder, seen, processes
        self._live: dict[str, Any] = {}
        self._left: set[str] = set()  # what was made and not removed, also where the engine is gone
        self._reaper: subprocess.Popen[bytes] | None = None
        self._options: dict[str, Any] = {}
        self._relabel = ""
        processes.observers.append(self._stop_all)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Start the reaper for this run, and remove containers that an earlier process of the run left."""
        label = f"{LABEL}={self._folder}"
        with (
            contextlib.closing(client()) as engine,
            answering(str(self._folder)),
        ):
            container_reaper.end(engine, label, 0.0)
            user, self._relabel = restrictions(engine), relabeling(engine)
        network = {"network": self._engine.network} if self._engine.network else {}
        self._options = {**OPTIONS, **user, **network, "labels": {LABEL: str(self._folder)}}
        command = [sys.executable, "-P", container_reaper.__file__, label, str(self._processes.grace_s)]
        self._reaper = reaper = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=() if self._processes.lock is None else (self._processes.lock,),
        )
        try:
            yield
        finally:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it goes on by itself, if it must
                reaper.communicate(
                    b"" if self._left else container_reaper.DONE, timeout=self._processes.grace_s
                )

    def made_from(self, call: Invocation) -> dict[str, str]:
        """Return the digest of the step's image."""
        image = image_of(call.step, call.parameters)
        return {image: self._engine.identity(image)}

    def run(self, call: Invocation, scratch: str) -> Ended:
        """Run one attempt to its end; ``scratch`` is a folder for its temporary files."""
        if self._reaper and self._reaper.stdin:
            with contextlib.suppress(OSError):  # a killed reaper must not fail the run
                self._reaper.stdin.write(os.fsencode(scratch) + b"\n")
                self._reaper.stdin.flush()
        with self._created(call, scratch) as container:
            late = threading.Event()

            def expire() -> None:
                late.set()
                container_reaper.stop(container, self._processes.grace_s)

            timer = threading.Timer(call.step.timeout_s, expire)
            timer.daemon = True
            try:
                with answering(call.name):
                    container.start()
                    output = container.logs(stream=True, follow=True)  # from its first line
                if call.step.timeout_s:
                    timer.start()
                if self._processes.must_stop(closing=call.step.closing):
                    container_reaper.stop(container, self._processes.grace_s)
                with answering(call.name):
                    code = _followed(container, output, call.log)
                if code and tail(call.log, 200).strip().endswith(FOREIGN):
                    raise foreign(call.name)
                return Ended(code, late.is_set())
            finally:
                timer.cancel()

    @contextlib.contextmanager
    def _created(self, call: Invocation, scratch: str) -> Iterator[Any]:
        """Create a container that a signal to the run stops; remove it on exit."""
        image = self._engine.identity(image_of(call.step, call.parameters))
        volumes = {
            str(path): {"bind": str(path), "mode": ("rw" if writable else "ro") + self._relabel}
            for path, writable in {**self._seen, Path(scratch): True}.items()
        }
        own = {**self._engine.variables, "TMPDIR": scratch, "HOME": scratch, **call.variables}
        more = {"volumes": volumes, "environment": own, "working_dir": scratch}
        with contextlib.closing(client()) as engine:
            with answering(call.name):
                container = engine.containers.create(image, list(call.command), **more, **self._options)
            self._live[container.id] = container
            self._left.add(container.id)
            try:
                yield container
            finally:
                self._live.pop(container.id, None)
                with answering(call.name):
                    container_reaper.remove(container)
                self._left.discard(container.id)

    def _stop_all(self, again: bool) -> None:
        """Stop every container, and kill it after the grace period; at once if ``again``.

        It returns at once, since a signal handler calls it.
        """
        grace_s = 0.0 if again else self._processes.grace_s
        for container in tuple(self._live.values()):
            threading.Thread(target=container_reaper.stop, args=(container, grace_s), daemon=True).start()


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


def variables(names: Sequence[str]) -> dict[str, str]:
    """Return the named environment variables of this process; reject one that is not set."""
    for name in names:
        if name not in os.environ:
            hint = "Set it: --env takes a name."
            raise InputError("there is no such variable here", where=f"--env {name}", hint=hint)
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
    """Return the paths of ``--mount`` and of the experiment file; True for a writable one, ``PATH:rw``."""
    beside = config.resolve().parent if config else None
    found = {beside: False} if beside and is_data(beside) else {}
    for text in texts:
        path = Path(text.removesuffix(":rw")).resolve()
        if not path.exists():
            hint = "Write PATH, or PATH:rw to write there."
            raise InputError("is not there", where=f"--mount {text}", hint=hint)
        found[path] = text.endswith(":rw")
    return _without_colons(found)


def mounts_of(arguments: Mapping[str, Any], folder: Path) -> dict[Path, bool]:
    """Return the folders and files that a run's containers see, and whether they are writable.

    These are the run's folder, and the paths in the pipeline's arguments, also in JSON in strings. A folder
    that a step writes to is created if it is missing; otherwise the engine would create it as root.
    """
    found = {folder: True}
    for name, text in _texts(arguments):
        path, writable = Path(text.removeprefix("file://")), text.startswith(SQLITE) or name in KEPT
        if text.startswith(SQLITE):
            path = Path(text.removeprefix(SQLITE)).parent
        elif name == "audit":  # the key that signs it lies beside it
            path = path.parent
        if writable and path.is_absolute():
            path.mkdir(parents=True, exist_ok=True)
            if not is_data(path):
                where, hint = f"{name} {path}", "Name a folder below it."
                raise InputError("containers cannot keep anything here", where=where, hint=hint)
        if not writable:  # it may be a pattern of paths, or no path at all
            path = Path(_PATTERN.split(str(path))[0])
            with contextlib.suppress(OSError):
                path = path if path.exists() else path.parent
        if path.is_absolute() and not path.is_relative_to(folder) and is_data(path):
            found[path] = found.get(path, False) or writable
    return _without_colons(found)


def is_data(path: Path) -> bool:
    """Return whether a path may be mounted unasked: no home, no system folder, no socket."""
    try:
        places = {path, path.resolve()}
        there = path.is_dir() or path.is_file()
    except OSError:  # a text that is no path, and too long for one
        return False
    system = any(place.is_relative_to(own) for place in places for own in PROGRAMS)
    return there and not system and not places & (SYSTEM | {Path.home()})


def _without_colons(found: dict[Path, bool]) -> dict[Path, bool]:
    """Reject a path with a colon, which separates the parts of a mount."""
    for path in found:
        if ":" in str(path):
            raise InputError("containers cannot see a path with a colon", where=str(path), hint="Rename it.")
    return found


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text that may be a path, with the name of its field."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, name)
    elif isinstance(value, str) and value[:1] in {"{", "["}:
        with contextlib.suppress(ValueError):
            yield from _texts(read_json(value), name)
    elif isinstance(value, str) and value.startswith(("/", "file:///", SQLITE)) and "\n" not in value:
        yield name, value
