"""The environments of the toolchains on this machine, each made from the lock of its image.

An environment is ``<folder>/<toolchain>``. The digest of its locks is written last: an interrupted or stale
environment is created again.
"""

import dataclasses
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright.authoring.installer import BuildNotFound, InstallationError, find_uv, install
from trainwright.authoring.toolchains import (
    LIBRARY,
    TOOLCHAINS,
    ToolchainEnvironment,
    default_folder,
    lock_digest,
    locks,
)
from trainwright.errors import DependencyError, InputError

__all__ = ["Made", "lock_digest", "make", "python"]

AT_A_TIME = 2
OURS = b"1"


@dataclass(frozen=True)
class Made:
    """The result for one toolchain."""

    toolchain: str
    path: Path
    changed: bool
    seconds: float
    megabytes: float  # 0 when nothing was done: sizes are only measured then
    gpu: bool = False  # from the lock for GPUs, because no index here has the build of torch.lock

    def __str__(self) -> str:
        """Return the result in one line."""
        line = f"  {self.toolchain:<10}{self.seconds:7.1f} s{self.megabytes:8,.0f} MB"
        return f"{line}  with CUDA: no index has the CPU build (docs/images.md)" if self.gpu else line


def python(toolchain: str, *, folder: Path | None = None, images: Path | None = None) -> Path:
    """Return the interpreter of a toolchain's environment.

    Args:
        toolchain: Its name.
        folder: Folder of the environments; the default one when None.
        images: Folder of the locks; those of this library when None.

    Raises:
        DependencyError: The environment is missing, incomplete, or older than its lock.
        InputError: The toolchain does not exist.
    """
    place = ToolchainEnvironment(toolchain, folder or default_folder(), images or locks())
    problem = place.problem()
    if not problem and place.link.resolve() != LIBRARY:
        problem = "belongs to another copy of the library"
    if problem:
        command = "make environments" if locks().parent == LIBRARY.parent else "trainwright setup"
        raise DependencyError(
            f"the environment of {toolchain} {problem}", where=str(place.path), hint=f"Run: {command}"
        )
    return place.python


def make(
    toolchains: Sequence[str] = TOOLCHAINS,
    *,
    folder: Path | None = None,
    images: Path | None = None,
    variant: str = "",
    progress: Callable[[str], None] | None = None,
) -> list[Made]:
    """Create the environments that are missing, incomplete or older than their lock, two at a time.

    If two processes call it, the second waits and finds the environments made.

    Args:
        toolchains: Their names.
        folder: Folder of the environments; the default one when None.
        images: Folder of the locks; those of this library when None.
        variant: Use the lock of this variant where a toolchain has it. Without one, ``gpu`` is the fallback
            where no index has the CPU build of torch, and an environment of any variant is kept.
        progress: Called with one line for each environment that was created.

    Raises:
        DependencyError: uv is missing, the index does not answer, or a file does not match its hash.
        InputError: The toolchain does not exist, or the path of an environment is occupied.
    """
    where = (folder or default_folder()).resolve()
    places = [ToolchainEnvironment(name, where, images or locks(), variant) for name in toolchains]
    where.mkdir(parents=True, exist_ok=True)

    def update(place: ToolchainEnvironment) -> Made:
        started = time.monotonic()
        with _locked(place.folder / f".{place.toolchain}.lock") as lock:
            changed = bool(place.problem())
            fallback = changed and _build(place, lock)
            if place.link.resolve() != LIBRARY:
                fresh = place.link.with_name(f".trainwright-{os.getpid()}")
                fresh.symlink_to(LIBRARY)
                fresh.replace(place.link)
        size = sum(file.lstat().st_size for file in place.path.rglob("*")) / 1e6 if changed else 0.0
        made = Made(place.toolchain, place.path, changed, time.monotonic() - started, size, fallback)
        if progress and changed:
            progress(str(made))
        return made

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        jobs = [pool.submit(update, place) for place in places]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a lock that this process and its child processes share, so that it outlives a killed parent."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _build(place: ToolchainEnvironment, lock: int) -> bool:
    """Create one environment in place; its scripts name their interpreter, so it cannot be moved.

    The lock file shows that an environment is ours even if its creation was killed.

    Returns:
        True if the lock for GPUs was used though it was not asked for.
    """
    try:
        find_uv()  # before anything is removed
        begun = os.pread(lock, 1, 0) == OURS
        if place.path.exists() and not begun and not (place.path / "pyvenv.cfg").exists():
            raise InputError(
                f"{place.path} is not an environment, and nothing that was made here",
                where="--folder",
                hint="Name a folder of its own for the environments.",
            )
        os.pwrite(lock, OURS, 0)
        place.stamp.unlink(missing_ok=True)
        _remove(place.path)
        try:
            install(place.locks, place.path, pass_fds=(lock,))
        except BuildNotFound:
            if place.variant:
                raise
            _remove(place.path)
            install(dataclasses.replace(place.locks, variant="gpu"), place.path, pass_fds=(lock,))
            return True
    except InstallationError as error:
        raise DependencyError(error.what, where=str(place.path), hint=error.hint) from None
    return False


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
