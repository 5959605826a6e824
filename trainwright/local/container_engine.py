"""The container engine of this machine (docker, or podman with docker's API) and its images."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright import tracking
from trainwright.authoring import toolchains
from trainwright.authoring.pipeline_spec import toolchain_of
from trainwright.errors import DependencyError
from trainwright.http_limits import limited
from trainwright.local.container_reaper import TIMEOUT_S

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
    if toolchain not in toolchains.TOOLCHAINS:
        return
    locks = toolchains.ToolchainEnvironment(toolchain).digests
    stale = [] if labels.get("trainwright.lock-sha256") in locks else ["its lock"]
    stale += [] if labels.get("trainwright.library-sha256") == tracking.library_digest() else ["the library"]
    if stale:
        raise DependencyError(
            f"this image was not built from {' and '.join(stale)} as it is now",
            where=image,
            hint=f"Build it again: {_build(image, engine)}",
        )
