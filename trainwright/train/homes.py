"""The home of a training: the folder that all attempts at it share, found again by what it was told."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.documents import canonical, digest_text
from trainwright.errors import DependencyError, InputError, PermissionRefused, in_our_words
from trainwright.experiment import Resources
from trainwright.launch.job_directory import (
    create_attempt,
    locked_attempt,
    newest_attempt,
    remove_checkpoints,
    sibling_directories,
)
from trainwright.train.specification import Specification, differences

_SHOWN = 5
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def next_folder(
    run: str, told: Mapping[str, Any], launcher: str, resources: Resources, model: Path
) -> Iterator[Path]:
    """Give a fresh folder for an attempt, below the home; the home goes when the attempt has succeeded.

    On a cluster, what the attempt made stays there: the platform stores it elsewhere only after the step has
    ended, and a step that is lost meanwhile is run again. The janitor tells of such homes, and removes them.

    Args:
        run: What the training belongs to: the same at every retry of the same step of the same run.
        told: What decides its result.
        launcher: Name of the launcher.
        resources: Where the volume is mounted that a cluster's job shares with this step.
        model: Where the model is to appear.

    Raises:
        DependencyError: The volume is not mounted, or another process is at the same training.
        PermissionRefused: This step may not write where the home is to be.
        InputError: No folder can be there.
    """
    name = digest_text(canonical([run, dict(told)]))[:16]
    if launcher == "local":
        home = model.absolute().with_name(f".{model.name}.job-{name}")
        _say_what_differs(home, told)
        _make(home)
        with locked_attempt(home) as folder:
            yield folder
        return
    if not Path(resources.mount).is_dir():
        raise DependencyError(
            f"claim {resources.claim!r} is not mounted in this step",
            where=f"resources.mount {resources.mount}",
            hint="Mount it in the pipeline: kubernetes.mount_pvc(task, pvc_name=..., mount_path=...).",
        )
    home = Path(resources.mount) / "trainwright" / "jobs" / name
    _make(home)
    yield create_attempt(home)
    remove_checkpoints(home)


def _say_what_differs(home: Path, told: Mapping[str, Any]) -> None:
    """Say why a training starts afresh where one was begun and not finished: nobody should have to guess."""
    if home.exists():
        return
    for other in sibling_directories(home):
        folder = newest_attempt(other)
        if folder and (folder / Specification.FILE).exists():
            changes = differences(Specification.read(folder).pinned, told) or ["run is another"]
            sys.stderr.write(
                f"A training that was begun here is not gone on with: {'; '.join(changes[:_SHOWN])}. "
                "This one starts afresh.\n"
            )


def _make(home: Path) -> None:
    """Make the folder: the first thing that this step writes."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder of the training cannot be made: {error.strerror}"
        if error.errno in _REFUSED:
            hint = f"The user of this step, number {os.getuid()}, has to be allowed to write there."
            raise PermissionRefused(what, where=str(home), hint=hint) from None
        if (ours := in_our_words(error)) is not error:
            raise ours from None
        raise InputError(what, where=str(home), hint="Name an output that can be a folder.") from None
