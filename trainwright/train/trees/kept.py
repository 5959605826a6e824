"""Trees that survive a kill: what was grown so far, in a folder that appears whole or not at all."""

import hashlib
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import xgboost

from trainwright.documents import Document
from trainwright.errors import InputError

_FILE = "trees.ubj"
_NAME = re.compile(r"trees-(\d{8})")
_log = logging.getLogger("trainwright.train")


@dataclass(frozen=True, kw_only=True)
class Grown(Document):
    """What is known of trees that were saved.

    Attributes:
        rounds: Rounds that were grown.
        sha256: Of the file of the trees.
        facts: What else the training must know to go on, as plain JSON data.
        xgboost: The version that grew them; another one does not go on with them.
    """

    FILE: ClassVar[str] = "manifest.json"
    rounds: int
    sha256: str
    facts: dict[str, Any] = field(default_factory=dict)
    xgboost: str = xgboost.__version__


class Kept:
    """The saved trees of one training.

    Every attempt at the same training grows the same trees, so two that save the same round save the same
    bytes, and no attempt needs to be kept from the other's files.

    Args:
        folder: Where they lie: the same for all attempts.
        keep: Newest ones that stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, rounds: int, trees: bytes, facts: dict[str, Any]) -> None:
        """Save the trees of some rounds, durably, and remove what is older than the newest few."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".trees-", dir=self._folder))
        with (fresh / _FILE).open("wb") as stream:
            stream.write(trees)
            stream.flush()
            os.fsync(stream.fileno())
        Grown(rounds=rounds, sha256=hashlib.sha256(trees).hexdigest(), facts=facts).write(fresh / Grown.FILE)
        target = self._folder / f"trees-{rounds:08}"
        if target.exists() and _verified(target):
            shutil.rmtree(fresh)  # another attempt has saved the same
        else:
            shutil.rmtree(target, ignore_errors=True)
            fresh.replace(target)
        for old in self._folders()[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> tuple[Grown, bytes] | None:
        """Return the newest trees that are what was saved; older ones if those are damaged."""
        return next((found for folder in self._folders() if (found := _verified(folder))), None)

    def _folders(self) -> list[Path]:
        """List the folders, the newest first."""
        if not self._folder.is_dir():
            return []
        return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def _verified(folder: Path) -> tuple[Grown, bytes] | None:
    """Return what was saved in a folder, if it is still that, and this XGBoost can go on with it."""
    try:
        grown, trees = Grown.read(folder), (folder / _FILE).read_bytes()
    except (InputError, OSError) as error:
        _log.warning("%s is skipped: %s", folder.name, error)
        return None
    if hashlib.sha256(trees).hexdigest() != grown.sha256:
        _log.warning("%s is skipped: its trees are not what was saved", folder.name)
        return None
    if grown.xgboost != xgboost.__version__:
        _log.warning("%s is skipped: it is of XGBoost %s", folder.name, grown.xgboost)
        return None
    return grown, trees
