"""What is known of a version: from MLflow, where it was registered, and checked against its own digests."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.artifacts import Model, Record, Trial
from trainwright.errors import InputError
from trainwright.experiment import Override
from trainwright.lineage import ancestors
from trainwright.registry.names import KEY, STAGE
from trainwright.registry.versions import find_versions, read_document, version_of
from trainwright.storage import read_bytes, redacted
from trainwright.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EVIDENCE = "evidence"
"""Folder of a run's files where registration lays verdicts, records and the trial."""

Column = tuple[str, str]
"""Name and type of what a model reads or gives."""


@dataclass(frozen=True)
class Signature:
    """What a model reads and gives."""

    inputs: frozenset[Column]
    outputs: frozenset[Column]

    @classmethod
    def of(cls, described: Any) -> "Signature":
        """Read a model's ``signature.json``."""
        reads, gives = (
            frozenset((str(entry["name"]), str(entry["type"])) for entry in described[side])
            for side in ("inputs", "outputs")
        )
        return cls(reads, gives)


@dataclass(frozen=True)
class Evidence:
    """What is known of one version.

    Attributes:
        version: Its number.
        stage: What MLflow's tag says of its stage; empty for a version that never counted.
        first: Whether it is the first under its key; another is left of a request that was repeated.
        model_digest: Digest of its files' manifest.
        author: Who answers for the training; empty if nobody was named.
        verdict: What was decided about the model, as it was decided.
        override: A person's word in place of a PASS.
        trial: That it was loaded and tried; None if it was registered without.
        signature: What it reads and gives.
        records: Records of the steps it came through, which carry those before them.
    """

    version: str
    stage: str
    first: bool
    model_digest: str
    author: str
    verdict: Verdict
    override: Override | None
    trial: Trial | None
    signature: Signature
    records: tuple[Record, ...]


def read_evidence(client: "MlflowClient", name: str, version: str) -> Evidence:
    """Read what is known of a version.

    Raises:
        InputError: There is no such version, or a file is gone, or is not the one that was registered.
    """
    entry = version_of(client, name, version)
    tags = entry.tags
    key = tags.get(KEY, "")
    if not key or not entry.run_id:
        raise InputError(
            f"version {version} of {name!r} was not registered by this library",
            where=f"models:/{name}/{version}",
            hint="Register its model with the register component; what it was judged by is part of that.",
        )
    verdict = _verdict(client, entry)
    model = tags.get("trainwright.model_digest", "")
    _require_model(client, entry, verdict, model)
    override = tags.get("trainwright.override", "")
    return Evidence(
        version=version,
        stage=tags.get(STAGE, ""),
        first=str(find_versions(client, name, key)[0].version) == version,
        model_digest=model,
        author=tags.get("trainwright.author", ""),
        verdict=verdict,
        override=Override.parse(override, "trainwright.override") if override else None,
        trial=_trial(client, entry),
        signature=read_signature(client, entry),
        records=_records(client, str(entry.run_id)),
    )


def _require_model(client: "MlflowClient", entry: "ModelVersion", verdict: Verdict, digest: str) -> None:
    """Check that the version's files are of the model that the tag names, and that it was that one's verdict.

    The manifest lists every file with its digest; whoever loads the model checks the files against it.
    """
    run, path = str(entry.run_id), f"model/{Model.FILE}"
    found = Model.from_json(read_document(client, run, path), path).digest
    about = verdict.judged.get("predictions.model", digest)
    if {found, about} != {digest}:
        raise InputError(
            f"version {entry.version} is tagged as model {digest[:12]}; its files are of model {found[:12]}, "
            f"its verdict is about model {about[:12]}",
            where=f"run {run}, {path}",
            hint="It was changed in MLflow: restore it, or evaluate and register again.",
        )


def read_signature(client: "MlflowClient", entry: "ModelVersion") -> Signature:
    """Read what a version reads and gives."""
    return Signature.of(read_document(client, str(entry.run_id), "model/signature.json"))


def _verdict(client: "MlflowClient", entry: "ModelVersion") -> Verdict:
    path = f"{EVIDENCE}/model/{Verdict.FILE}"
    verdict = Verdict.from_json(read_document(client, str(entry.run_id), path), path)
    if verdict.digest != entry.tags.get("trainwright.verdict_sha256"):
        raise InputError(
            f"the model verdict of version {entry.version} is not the one it was registered with",
            where=f"run {entry.run_id}, {path}",
            hint="It was changed in MLflow's store: restore the file, or evaluate and register again.",
        )
    if verdict.decision != verdict.recomputed():
        raise InputError(
            f"the model verdict says {verdict.decision}, its numbers say {verdict.recomputed()}",
            where=f"run {entry.run_id}, {path}",
        )
    return verdict


def _trial(client: "MlflowClient", entry: "ModelVersion") -> Trial | None:
    if not (known := entry.tags.get("trainwright.trial_sha256")):
        return None
    path = f"{EVIDENCE}/{Trial.FILE}"
    trial = Trial.from_json(read_document(client, str(entry.run_id), path), path)
    if trial.digest != known:
        raise InputError(
            f"the trial of version {entry.version} is not the one it was registered with",
            where=f"run {entry.run_id}, {path}",
        )
    return trial


def _records(client: "MlflowClient", run: str) -> tuple[Record, ...]:
    """Return the records that no other record carries."""
    paths = [entry.path for entry in client.list_artifacts(run, EVIDENCE) if not entry.is_dir]
    steps = [path for path in paths if path.rsplit("/", 1)[-1][:2].isdigit()]
    with TemporaryDirectory() as scratch:
        files = [Path(client.download_artifacts(run, path, scratch)) for path in sorted(steps)]
        records = [Record.read(file) for file in files]
    carried = {parent.digest for record in records for parent in ancestors(record.parents)}
    return tuple(record for record in records if record.digest not in carried)


def read_canary_verdict(uri: str, model_digest: str) -> Verdict:
    """Read the verdict on a canary.

    Raises:
        InputError: It cannot be read, is not about this model, or says another thing than its numbers.
    """
    place = redacted(uri)
    try:
        data = json.loads(read_bytes(uri))
    except ValueError:
        raise InputError("this is no verdict", where=place) from None
    verdict = Verdict.from_json(data, place)
    about = {verdict.judged.get("model"), verdict.judged.get("predictions.model")} - {None}
    if about != {model_digest}:
        raise InputError(
            f"the canary's verdict is about model {', '.join(sorted(map(str, about))) or '(none named)'}, "
            f"not about {model_digest[:12]}",
            where=place,
            hint="Its field judged names the digest of the model as `model`.",
        )
    if verdict.decision != verdict.recomputed():
        raise InputError(
            f"the canary's verdict says {verdict.decision}, its numbers say {verdict.recomputed()}",
            where=place,
        )
    return verdict
