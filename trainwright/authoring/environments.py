"""The environments of the toolchains on this machine, each made from the lock of its image.

An environment is ``<folder>/<toolchain>``. The digest of its locks is written last: an interrupted or stale
environment is created again.

``python -m trainwright.authoring.environments [toolchain ...]`` creates them with
:mod:`trainwright.authoring.installer`, which the Dockerfile runs too.
"""

import argparse
import dataclasses
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright.authoring.installer import InstallationError, Installed, find_uv, install
from trainwright.authoring.toolchains import (
    LIBRARY,
    TOOLCHAINS,
    ToolchainEnvironment,
    default_folder,
    lock_digest,
    locks,
)
from trainwright.errors import DependencyError, InputError, reported

__all__ = ["Made", "folder", "lock_digest", "main", "make", "python", "shown"]

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
    installed: tuple[Installed, ...] = ()  # what has no hash in the lock: its build depends on the index

    def __str__(self) -> str:
        """Return the result in one line."""
        line = f"  {self.toolchain:<10}{self.seconds:7.1f} s{self.megabytes:8,.0f} MB"
        line += "".join(f"  {one}" for one in self.installed)
        return f"{line} (docs/images.md: a CPU build)" if any(one.cuda for one in self.installed) else line


def folder() -> Path:
    """Return the default folder of environments."""
    return default_folder()


def python(toolchain: str, *, folder: Path | None = None, images: Path | None = None) -> Path:
    """Return the interpreter of a toolchain's environment.

    Args:
        toolchain: Its name.
        folder: Folder of the environments; :func:`folder` when None.
        images: Folder of the locks; those of this library when None.

    Raises:
        DependencyError: The environment is missing, incomplete, or older than its lock.
        InputError: The toolchain does not exist.
    """
    place = ToolchainEnvironment(toolchain, folder or default_folder(), images or locks())
    problem = place.problem() and dataclasses.replace(place, gpu=True).problem()
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
    gpu: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Made]:
    """Create the environments that are missing, incomplete or older than their lock, two at a time.

    If two processes call it, the second waits and finds the environments made.

    Args:
        toolchains: Their names.
        folder: Folder of the environments; :func:`folder` when None.
        images: Folder of the locks; those of this library when None.
        gpu: Use the lock for machines with GPUs where a toolchain has one.
        progress: Called with one line for each environment that was created.

    Returns:
        The results in the order of ``toolchains``.

    Raises:
        DependencyError: uv is missing, the index does not answer, or a file does not match its hash.
        InputError: The toolchain does not exist, or the path of an environment is occupied.
    """
    where = (folder or default_folder()).resolve()
    places = [ToolchainEnvironment(name, where, images or locks(), gpu) for name in toolchains]
    where.mkdir(parents=True, exist_ok=True)

    def one(place: ToolchainEnvironment) -> Made:
        made = _bring_up_to_date(place)
        if progress and made.changed:
            progress(str(made))
        return made

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        jobs = [pool.submit(one, place) for place in places]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _bring_up_to_date(place: ToolchainEnvironment) -> Made:
    started = time.monotonic()
    with _held(place.folder / f".{place.toolchain}.lock") as lock:
        changed = bool(place.problem())
        installed = _build(place, lock) if changed else ()
        _link_library(place)
    size = sum(file.lstat().st_size for file in place.path.rglob("*")) / 1e6 if changed else 0.0
    return Made(place.toolchain, place.path, changed, time.monotonic() - started, size, installed)


@contextmanager
def _held(path: Path) -> Iterator[int]:
    """Hold a lock that this process and its child processes share, so that it outlives a killed parent."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _build(place: ToolchainEnvironment, lock: int) -> tuple[Installed, ...]:
    """Create one environment in place; its scripts name their interpreter, so it cannot be moved."""
    try:
        find_uv()  # before what is there is removed
        _clear(place, lock)
        return tuple(install(place.locks, place.path, pass_fds=(lock,)))
    except InstallationError as error:
        raise DependencyError(error.what, where=str(place.path), hint=error.hint) from None


def _clear(place: ToolchainEnvironment, lock: int) -> None:
    """Remove an environment. Its lock file shows that it is ours even if its creation was killed."""
    begun = os.pread(lock, 1, 0) == OURS
    if place.path.exists() and not begun and not (place.path / "pyvenv.cfg").exists():
        raise InputError(
            f"{place.path} is not an environment, and nothing that was made here",
            where="--folder",
            hint="Name a folder of its own for the environments.",
        )
    os.pwrite(lock, OURS, 0)
    place.stamp.unlink(missing_ok=True)
    if place.path.exists():
        shutil.rmtree(place.path)


def _link_library(place: ToolchainEnvironment) -> None:
    if place.link.resolve() != LIBRARY:
        fresh = place.link.with_name(f".trainwright-{os.getpid()}")
        fresh.symlink_to(LIBRARY)
        fresh.replace(place.link)


@contextmanager
def shown(toolchains: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line per environment; a terminal shows a spinner meanwhile."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        with console.status(f"making {', '.join(toolchains)}"):
            yield console.print
    else:
        yield lambda line: print(line, flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> None:
    """Create environments from the command line, with the exit codes of :mod:`trainwright.errors`."""
    parser = argparse.ArgumentParser(prog="python -m trainwright.authoring.environments")
    parser.add_argument("toolchains", nargs="*", default=TOOLCHAINS, help=f"default: {' '.join(TOOLCHAINS)}")
    parser.add_argument("--folder", type=Path, help=f"default: {default_folder()}")
    parser.add_argument("--gpu", action="store_true", help="take the lock for GPUs where a toolchain has one")
    asked = parser.parse_args(arguments)
    with reported("environments"), shown(asked.toolchains) as show:
        made = make(asked.toolchains, folder=asked.folder, gpu=asked.gpu, progress=show)
        if not any(one.changed for one in made):
            show(f"environments up to date: {' '.join(one.toolchain for one in made)}")


if __name__ == "__main__":
    main()
