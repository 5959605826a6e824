"""Reading checkpoints that were written before the index was JSON: in pickles of torch, which run nothing."""

import pickle
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, TensorStorageMetadata

from trainwright.errors import PermissionRefused
from trainwright.train.checkpoint.manifest import Manifest

INDEX = ".metadata"
"""The file that a checkpoint of this form has, and none of the form of :mod:`.format`."""

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
        if f"{module}.{name}" == "builtins.getattr":
            return self._member
        module = "pathlib" if module == "pathlib._local" else module  # its name in Python 3.13
        known = module == "torch" and "." not in name and isinstance(getattr(torch, name, None), torch.dtype)
        if f"{module}.{name}" not in _ALLOWED and not known:
            raise _unsafe(f"{module}.{name}", self._where)
        return super().find_class(module, name)

    def _member(self, kind: Any, name: Any) -> _MEM_FORMAT_ENCODING:
        """Stand for ``getattr``, as which Python 3.11.0 to 3.11.3 pickle a member of an enum.

        Raises:
            PermissionRefused: It is asked for anything but a member of the one enum of an index.
        """
        if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
            raise _unsafe("builtins.getattr", self._where)
        return _MEM_FORMAT_ENCODING[name]


class PickledReader(FileSystemReader):
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
        path = self._folder / INDEX
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


def refusal(error: pickle.UnpicklingError, where: Path) -> PermissionRefused:
    """Return the error for what torch itself refuses to unpickle."""
    named = _GLOBAL.search(str(error))
    return _unsafe(named[1] if named else "something", where)


def _unsafe(name: str, where: Path) -> PermissionRefused:
    return PermissionRefused(
        f"a pickle in the checkpoint names {name}, which it has no need of",
        where=str(where),
        hint="Somebody else wrote this: remove the checkpoint, and find out who may write there.",
    )
