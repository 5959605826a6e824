"""The toolchains, their locks and their environments on this machine, each made from its image's lock.

An environment is ``<folder>/<toolchain>``. The digest of its locks is written last: an interrupted or stale
environment is created again.
"""

import dataclasses
import difflib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import trainwright
from trainwright.authoring.installer import STAMP, BuildNotFound, InstallationError, Locks, find_uv, install
from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError

TOOLCHAINS = ("tfdv", "torch", "feast", "ingest", "tabular", "mlflow", "launcher", "tune", "service")
"""The toolchains of the components, largest first."""

LIBRARY = Path(trainwright.__file__).resolve().parent
SITE_PACKAGES = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")


def locks() -> Path:
    """Return the folder of the locks: the repository's, or the wheel's."""
    beside = LIBRARY.parent / "images"
    return beside if (beside / "kfp.lock").exists() else LIBRARY / "_images"


def default_folder() -> Path:
    """Return the folder of the environments: beside the library in a repository, else in the user's cache."""
    if locks().parent == LIBRARY.parent:
        return LIBRARY.parent / ".environments"
    return user_cache() / trainwright.__version__ / "environments"


def user_cache() -> Path:
    """Return the folder of this library in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainwright"


@dataclass(frozen=True)
class ToolchainEnvironment:
    """The environment of one toolchain on this machine, created or not."""

    toolchain: str
    folder: Path = field(default_factory=default_folder)
    images: Path = field(default_factory=locks)
    variant: str = ""  # from requirements-VARIANT.lock, where the toolchain has it

    def __post_init__(self) -> None:
        """Reject a toolchain without a lock."""
        if not (self.images / self.toolchain / "requirements.lock").is_file():
            known = sorted(path.parent.name for path in self.images.glob("*/requirements.lock"))
            near = difflib.get_close_matches(self.toolchain, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise InputError(f"there is no toolchain {self.toolchain!r}", where=str(self.images), hint=hint)

    @property
    def locks(self) -> Locks:
        """Its locks."""
        return Locks(self.images, self.toolchain, self.variant)

    @property
    def digest(self) -> str:
        """The SHA-256 of its locks."""
        return self.locks.digest

    @property
    def digests(self) -> set[str]:
        """The digests that an environment may be made from: of its locks, and of those of each variant."""
        locks = (self.images / self.toolchain).glob("requirements-*.lock")
        variants = ["", *(path.stem.removeprefix("requirements-") for path in locks)]
        return {replace(self, variant=variant).digest for variant in variants}

    @property
    def path(self) -> Path:
        """The environment itself."""
        return self.folder / self.toolchain

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """File with the digest that it was made from, written last."""
        return self.path / STAMP

    @property
    def link(self) -> Path:
        """The library inside the environment: a link, so that edits take effect."""
        return self.path / SITE_PACKAGES / "trainwright"

    @property
    def made_from(self) -> str:
        """The digest of the locks that it was made from; empty if its stamp cannot be read."""
        try:
            return str(read_json(self.stamp)["lock_sha256"])
        except (InputError, KeyError, TypeError):
            return ""

    def problem(self) -> str:
        """Return why the environment cannot be used; empty if it can. Without a variant, that of any can."""
        if not self.stamp.exists() or not self.python.exists():
            return "has not been made" if not self.path.exists() else "is not complete"
        if not self.made_from:
            return "is not complete"
        accepted = {self.digest} if self.variant else self.digests
        return "" if self.made_from in accepted else "is older than its lock"


def lock_digest(toolchain: str) -> str:
    """Return the SHA-256 of the locks that a toolchain's environment here was made from, or would be."""
    place = ToolchainEnvironment(toolchain)
    return place.digest if place.problem() else place.made_from


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
                hint="Move it away: the environment is made there.",
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
