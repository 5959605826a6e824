"""Download the files of a registered version, for a use outside a pipeline."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.versions import MODEL_DIGEST_TAG, registered_model
from trainwright.tracking.server import SQLITE, database, download_model, open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class DownloadedVersion:
    """A version on this machine: its number, the digest of its model's manifest, and its folder."""

    version: str
    model: str
    folder: str


def download_version(registry: Registry, which: str, folder: Path) -> DownloadedVersion:
    """Download a version of a registered model.

    Args:
        registry: The registered model, and where.
        which: Its number, or an alias such as ``production``.
        folder: Target folder.

    Raises:
        InputError: There is no such model or version, or another tool registered it.
        DependencyError: The registry was away for ``registry.retry_s``.
    """
    uri = registry.tracking_uri
    require_database(uri)

    def download() -> DownloadedVersion:
        found = find_version(open_client(uri), registry.model, which)
        digest = found.tags.get(MODEL_DIGEST_TAG, "")
        if not digest:
            raise InputError(
                f"version {found.version} of {registry.model} has no tag {MODEL_DIGEST_TAG}",
                where=uri,
                hint="Name a version that the register step made.",
            )
        download_model(str(found.source), digest, folder, uri)
        return DownloadedVersion(str(found.version), digest, str(folder))

    return persist(download, uri, registry.retry_s)


def require_database(uri: str) -> None:
    """Reject the address of an SQLite file that is not there: opening it would make an empty one."""
    if uri.startswith(SQLITE) and not database(uri).is_file():
        raise InputError("there is no registry here", where=uri, hint="Name the file that register wrote.")


def find_version(client: "MlflowClient", name: str, which: str) -> "ModelVersion":
    """Return a version by its number or alias; the error names those that exist."""
    from mlflow.exceptions import MlflowException

    model = registered_model(client, name)
    version = which if re.fullmatch(r"\d+", which) else str(model.aliases.get(which, ""))
    try:
        if version:
            return client.get_model_version(name, version)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    aliases = ", ".join(f"{name}@{alias}" for alias in sorted(model.aliases)) or "none"
    kind = "version" if which == version else "alias"
    raise InputError(f"{name!r} has no {kind} {which!r}", where="model", hint=f"Its aliases: {aliases}.")
