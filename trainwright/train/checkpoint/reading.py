"""Reading a checkpoint: nothing of it is believed before its digests are, and nothing in it is ever run."""

import pickle
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_into

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, InternalError, PermissionRefused, TrainwrightError
from trainwright.train.checkpoint.manifest import Manifest, SavedFile
from trainwright.train.checkpoint.tensors import STATE

_INDEX = ".metadata"
_GLOBAL = re.compile(r"GLOBAL (\S+)")
"""How torch names what it refuses."""

_ALLOWED = frozenset(
    {
        "builtins.set",
        "collections.OrderedDict",
        "pathlib.Path",
        "pathlib.PosixPath",
        "torch.Size",
        "torch.device",
        "torch.serialization._get_layout",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        *(
            f"torch.distributed.checkpoint.metadata.{name}"
            for name in (
                "_MEM_FORMAT_ENCODING",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
            )
        ),
    }
)
"""What the index of a checkpoint is made of. Types of data, such as ``torch.float32``, are let in as well."""


class _Unpickler(pickle.Unpickler):
    """Builds the known types alone; whatever else a pickle names is neither imported nor called."""

    def __init__(self, stream: Any, where: Path) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """Look up one of the known types.

        Raises:
            PermissionRefused: It is not known.
        """
        module = "pathlib" if module == "pathlib._local" else module  # its name in Python 3.13
        known = module == "torch" and "." not in name and isinstance(getattr(torch, name, None), torch.dtype)
        if f"{module}.{name}" not in _ALLOWED and not known:
            raise _unsafe(f"{module}.{name}", self._where)
        return super().find_class(module, name)


class Reader(FileSystemReader):
    """Reads the files that a manifest lists, and no others.

    Args:
        folder: The checkpoint.
        manifest: Its manifest, whose digests hold.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder)
        self._folder, self._files = folder, {entry.path for entry in manifest.files}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index of the tensors.

        Raises:
            PermissionRefused: It holds anything but tensors in the manifest's files.
        """
        path = self._folder / _INDEX
        with path.open("rb") as stream:
            metadata = cast(Metadata, _Unpickler(stream, path).load())  # nosec B301
        kinds = metadata.state_dict_metadata.items()
        if others := [name for name, entry in kinds if not isinstance(entry, TensorStorageMetadata)]:
            raise PermissionRefused(f"{others[0]!r} is no tensor but a pickle", where=str(path))
        for entry in metadata.storage_data.values():
            if entry.relative_path not in self._files or entry.transform_descriptors:
                raise PermissionRefused(
                    f"the index names {entry.relative_path!r}, which is not in the manifest", where=str(path)
                )
        return metadata


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
            storage_reader=Reader(folder, manifest),
            planner=DefaultLoadPlanner(flatten_sharded_tensors=False),
            process_group=group,
        )
    except CheckpointException as failed:
        for cause, _ in failed.failures.values():
            if isinstance(cause, TrainwrightError):
                raise cause from None
            if isinstance(cause, pickle.UnpicklingError):
                named = _GLOBAL.search(str(cause))
                raise _unsafe(named[1] if named else "something", folder) from None
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


def _unsafe(name: str, where: Path) -> PermissionRefused:
    return PermissionRefused(
        f"a pickle in the checkpoint names {name}, which it has no need of",
        where=str(where),
        hint="Somebody else wrote this: remove the checkpoint, and find out who may write there.",
    )
