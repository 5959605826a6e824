"""Take versions, their evidence and their lineage out of MLflow, and a version into another registry."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.http_limits import ANSWER, limited
from trainwright.lineage import Derivation, ancestors, derivation_of
from trainwright.registry.evidence import EVIDENCE
from trainwright.registry.names import PRODUCTION
from trainwright.registry.versions import ABSENT, MODEL_DIGEST_TAG, ignored, registered_model
from trainwright.tracking.server import SQLITE, database, download_model, open_client, persist, search_all

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
    model = registered_model(client, name)
    version = which if re.fullmatch(r"\d+", which) else str(model.aliases.get(which, ""))
    if version:
        with ignored(ABSENT):
            return client.get_model_version(name, version)
    aliases = ", ".join(f"{name}@{alias}" for alias in sorted(model.aliases)) or "none"
    kind = "version" if which == version else "alias"
    raise InputError(f"{name!r} has no {kind} {which!r}", where="model", hint=f"Its aliases: {aliases}.")


_CHAIN = ("source", "data", "training_data", "model")
_NAMES = {"training_data": "training_set"}
_STEPS = {"data": "ingest", "training_data": "join", "model": "train"}


def download_evidence(registry: Registry, which: str, folder: Path) -> dict[str, Any]:
    """Download the evidence of a version: verdicts, metrics, and the records of its steps.

    Args:
        registry: The registered model, and where.
        which: Its number, or an alias.
        folder: Target folder.

    Returns:
        Number and tags of the version.

    Raises:
        InputError: There is no such version, or it has no evidence.
        DependencyError: The registry was away for ``registry.retry_s``.
    """
    uri = registry.tracking_uri
    require_database(uri)

    def download() -> dict[str, Any]:
        client = open_client(uri)
        found = find_version(client, registry.model, which)
        _download(client, found, folder)
        return {"version": str(found.version), "tags": dict(found.tags)}

    return persist(download, uri, registry.retry_s)


def _download(client: "MlflowClient", found: "ModelVersion", folder: Path) -> None:
    run = str(found.run_id)
    if not found.run_id or not client.list_artifacts(run, EVIDENCE):
        raise InputError(
            f"version {found.version} of {found.name} has no evidence",
            where=f"models:/{found.name}/{found.version}",
            hint="Name a version that the register step made.",
        )
    with limited(ANSWER, threads=True):
        client.download_artifacts(run, EVIDENCE, str(folder))


def copy_to_production(registry: Registry, which: str, target: str, folder: Path) -> None:
    """Copy a version into another registry, with its number and tags, as the one in production there.

    Args:
        registry: The registered model, and where.
        which: Its number.
        target: Address of the other registry, which does not have the model.
        folder: Folder for the files of the version.
    """
    copied = download_version(registry, which, folder).version
    tags = find_version(open_client(registry.tracking_uri), registry.model, which).tags
    client, name = open_client(target), registry.model
    client.create_registered_model(name)
    for _ in range(int(copied)):  # MLflow numbers versions itself, from 1 on
        client.create_model_version(name, folder.resolve().as_uri())
    for tag, value in tags.items():
        client.set_model_version_tag(name, copied, tag, value)
    client.set_registered_model_alias(name, PRODUCTION, copied)


def read_lineage(registry: Registry, which: str) -> dict[str, Any]:
    """Read what all versions of all models were made from: from their tags; of one, from its records.

    Args:
        registry: The registry, and the model of ``which``.
        which: Number or alias of a version; empty for none.

    Returns:
        The version as ``NAME/NUMBER``, and the derivations of each version by such a name.
    """
    uri = registry.tracking_uri
    require_database(uri)

    def read() -> dict[str, Any]:
        client = open_client(uri)
        versions = search_all(client.search_model_versions)
        found = {f"{one.name}/{one.version}": list(_from_tags(one.tags)) for one in versions}
        start = ""
        if which:
            version = find_version(client, registry.model, which)
            start = f"{version.name}/{version.version}"
            found[start] = _from_evidence(client, version)
        derivations = {name: [asdict(one) for one in made] for name, made in found.items()}
        return {"start": start, "versions": derivations}

    return persist(read, uri, registry.retry_s)


def _from_tags(tags: Mapping[str, str]) -> Iterator[Derivation]:
    digests = [(name, tags.get(f"trainwright.{name}_digest", "")) for name in _CHAIN]
    for (source, read), (name, made) in itertools.pairwise(digests):
        if read and made and read != made:
            yield Derivation(
                step=_STEPS[name],
                inputs={_NAMES.get(source, source): read},
                outputs={_NAMES.get(name, name): made},
            )


def _from_evidence(client: "MlflowClient", version: "ModelVersion") -> list[Derivation]:
    with TemporaryDirectory() as scratch:
        _download(client, version, Path(scratch))
        records = [Record.read(path) for path in sorted((Path(scratch) / EVIDENCE).glob("*-*.json"))]
    derivations = map(derivation_of, ancestors(records))
    return [made for made in derivations if made]
