"""The locks of a toolchain and its environment on this machine."""

import difflib
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import trainwright
from trainwright.authoring.installer import STAMP, Locks
from trainwright.documents import read_json
from trainwright.errors import InputError

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
