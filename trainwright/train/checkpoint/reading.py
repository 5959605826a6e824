"""Reading a checkpoint: nothing of it is believed before its digests are, and nothing in it is ever run."""

import pickle
import stat
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_into

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, InternalError, PermissionRefused, TrainwrightError
from trainwright.train.checkpoint.format import TensorReader
from trainwright.train.checkpoint.manifest import Manifest, SavedFile
from trainwright.train.checkpoint.pickled import INDEX, PickledReader, refusal
from trainwright.train.checkpoint.tensors import STATE


def reader(folder: Path, manifest: Manifest) -> TensorReader | PickledReader:
    """Return what reads a checkpoint whose digests hold, in the form in which it was written."""
    old = any(entry.path == INDEX for entry in manifest.files)
    return PickledReader(folder, manifest) if old else TensorReader(folder, manifest)


def load(
    tensors: dict[str, Tensor], folder: Path, manifest: Manifest, group: distributed.ProcessGroup
) -> None:
    """Read a verified checkpoint into tensors that are laid out in any way; all processes do this together.

    Raises:
        PermissionRefused: A pickle in it names something that is not known.
        InternalError: It cannot be read, though its digests hold.
    """
    try:
        load_into(
            {STATE: dict(tensors)},
            storage_reader=reader(folder, manifest),
            planner=DefaultLoadPlanner(flatten_sharded_tensors=False),
            process_group=group,
        )
    except CheckpointException as failed:
        for cause, _ in failed.failures.values():
            if isinstance(cause, TrainwrightError):
                raise cause from None
            if isinstance(cause, pickle.UnpicklingError):
                raise refusal(cause, folder) from None
        rank, (cause, _) = next(iter(failed.failures.items()))
        raise InternalError(
            f"rank {rank} could not read the checkpoint: {type(cause).__name__}: {cause}", where=str(folder)
        ) from None


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        InputError: It cannot be read.
        PermissionRefused: It, or what it lists, lies outside of the folder.
    """
    if folder.is_symlink():
        raise PermissionRefused("a checkpoint is not read through a link", where=str(folder))
    manifest = Manifest.read(folder / Manifest.FILE)
    for entry in manifest.files:
        if "/" in entry.path or entry.path in {"", ".", ".."}:
            raise PermissionRefused(f"the manifest names {entry.path!r}, outside of it", where=str(folder))
    return manifest


def damage(folder: Path, files: Iterable[SavedFile]) -> str:
    """Say what is wrong with files of a checkpoint; empty if each is there with its digest.

    Raises:
        DependencyError: A file is there and cannot be read: that may pass, and is no damage.
    """
    for entry in files:
        path = folder / entry.path
        try:
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode):
                return f"{entry.path} is no file"
            if state.st_size != entry.size:
                return f"{entry.path} has {state.st_size:,} bytes, not {entry.size:,}"
            if digest_file(path) != entry.sha256:
                return f"{entry.path} is not what was written: its SHA-256 differs"
        except FileNotFoundError:
            return f"{entry.path} is gone"
        except OSError as error:
            raise DependencyError(
                f"{entry.path} of a checkpoint cannot be read: {error.strerror}",
                where=str(folder),
                hint="Let this step's user read it, or repair the disk; then run the step again.",
            ) from None
    return ""
