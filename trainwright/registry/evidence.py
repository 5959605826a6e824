"""Read the evidence of a version from MLflow and check it against the note of its registration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.artifacts import Model, Record, Trial
from trainwright.artifacts.model import target_kind
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.experiment import Override
from trainwright.lineage import ancestors
from trainwright.redaction import redacted
from trainwright.registry.audit import RegistrationNote, read_note, registration_key
from trainwright.registry.names import KEY, STAGE
from trainwright.registry.provenance import Evidence, require_recomputed
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import (
    MODEL_DIGEST_TAG,
    find_versions,
    missing_file,
    read_document,
    version_of,
)
from trainwright.storage import read_bytes
from trainwright.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


EVIDENCE = "evidence"
"""Folder of a run's artifacts with the verdicts, records and the trial."""

Column = tuple[str, str]
"""Name and type of an input or output."""


@dataclass(frozen=True)
class ModelSignature:
    """Inputs and outputs of a model, and the kind of its target."""

    inputs: frozenset[Column]
    outputs: frozenset[Column]
    target: str


@dataclass(frozen=True)
class ProductionModel:
    """Signature and digest of the model in production."""

    signature: ModelSignature
    model_digest: str


@dataclass(frozen=True)
class VersionEvidence:
    """The evidence of one version.

    Attributes:
        stage: Stage in MLflow's tag; empty for a version whose registration never finished.
        first: Whether it is the first under its key; others are left over from repeated requests.
        model_digest: Digest of its files' manifest.
        author: Person responsible for the training; empty if not configured.
        note: Digest of its registration note.
        records: Records of the last steps, which contain their parents'.
    """

    version: str
    stage: str
    first: bool
    model_digest: str
    author: str
    verdict: Verdict
    data_verdict: Verdict
    note: str
    override: Override | None
    trial: Trial
    signature: ModelSignature
    records: tuple[Record, ...]


def read_evidence(
    client: "MlflowClient", audit: str, name: str, version: str, keys: Keyring
) -> VersionEvidence:
    """Read the evidence of a version and compare its digests with the note of its registration.

    Whoever may write MLflow can set tags and files. So digests are computed from the present files, and the
    note, stored with the audit, must have the same: a version made by hand has none.

    Raises:
        InputError: The version does not exist, has no note, or a file is missing or was changed.
    """
    entry = version_of(client, name, version)
    tags = entry.tags
    if not tags.get(KEY) or not entry.run_id:
        raise InputError(
            f"version {version} of {name!r} was not registered by this library",
            where=f"models:/{name}/{version}",
            hint="Register its model with the register component; what it was judged by is part of that.",
        )
    run = str(entry.run_id)
    with _downloaded(client, run) as folder:
        verdict, data_verdict = (_verdict(folder, about, run) for about in ("model", "data"))
        _require_own_files(client, entry)
        model = _model(client, entry, verdict)
        trial = Trial.from_json(*_read(folder, Trial.FILE, run))
        digests = (model.digest, verdict.digest, data_verdict.digest, trial.digest)
        note = _require_note(audit, name, entry, digests, keys)
        signature, records = _signature(client, run, model), _records(folder)
    Evidence(
        model=model,
        data_verdict=data_verdict,
        model_verdict=verdict,
        trial=trial,
        target=signature.target,
        records=ancestors(records),
        where=f"run {run}, {EVIDENCE}",
    ).check()
    return VersionEvidence(
        version=version,
        stage=tags.get(STAGE, ""),
        first=str(find_versions(client, name, note.key)[0].version) == version,
        model_digest=model.digest,
        author=note.author,
        verdict=verdict,
        data_verdict=data_verdict,
        note=note.digest,
        override=Override.parse(note.override, "override") if note.override else None,
        trial=trial,
        signature=signature,
        records=records,
    )


def _require_own_files(client: "MlflowClient", entry: "ModelVersion") -> None:
    """Require that a version serves the files of its run: the evidence is about those."""
    held = f"{client.get_run(str(entry.run_id)).info.artifact_uri}/model"
    if str(entry.source) != held:
        raise InputError(
            f"version {entry.version} serves {redacted(str(entry.source))}, its run holds {redacted(held)}",
            where=f"run {entry.run_id}",
            hint="It was made by hand: register its model with the register component.",
        )


def _require_note(
    audit: str, name: str, entry: "ModelVersion", digests: tuple[str, str, str, str], keys: Keyring
) -> RegistrationNote:
    """Return the note of a version's registration if it has the digests of the present files."""
    model, verdict, data_verdict, trial = digests
    key, where = entry.tags[KEY], f"models:/{name}/{entry.version}"
    note = read_note(audit, name, key, keys)
    if note is None:
        raise InputError(
            f"nothing beside the audit notes that version {entry.version} of {name!r} was registered",
            where=where,
            hint="It was made by hand, or registered without registry.audit, without registry.signing_key or "
            "before notes were signed, or its key was changed: "
            "register its model again, which makes no second version.",
        )
    found = {
        "model": (model, note.model_digest),
        "model verdict": (verdict, note.model_verdict),
        "data verdict": (data_verdict, note.data_verdict),
        "trial": (trial, note.trial),
        "key": (registration_key(name, model, verdict, data_verdict), key),
    }
    if wrong := [what for what, (is_now, was) in found.items() if is_now != was]:
        raise InputError(
            f"the {wrong[0]} of version {entry.version} is not the one it was registered with: "
            f"{found[wrong[0]][0][:12]}, noted is {found[wrong[0]][1][:12]}",
            where=where,
            hint="It was changed in MLflow: restore it, or evaluate and register again.",
        )
    return note


def _model(client: "MlflowClient", entry: "ModelVersion", verdict: Verdict) -> Model:
    """Return the manifest of the run's model; tag and verdict must name it."""
    run, path = str(entry.run_id), f"model/{Model.FILE}"
    model = Model.from_json(read_document(client, run, path), path)
    found = model.digest
    digest = entry.tags.get(MODEL_DIGEST_TAG, "")
    about = verdict.judged.get("predictions.model", digest)
    if {found, about} != {digest}:
        raise InputError(
            f"version {entry.version} is tagged as model {digest[:12]}; its files are of model {found[:12]}, "
            f"its verdict is about model {about[:12]}",
            where=f"run {run}, {path}",
            hint="It was changed in MLflow: restore it, or evaluate and register again.",
        )
    return model


def read_production_model(client: "MlflowClient", name: str, version: str) -> ProductionModel:
    """Read the version in production, with which a candidate is compared."""
    entry = version_of(client, name, version)
    path = f"model/{Model.FILE}"
    model = Model.from_json(read_document(client, str(entry.run_id), path), path)
    return ProductionModel(_signature(client, str(entry.run_id), model), model.digest)


def _signature(client: "MlflowClient", run: str, model: Model) -> ModelSignature:
    digests = {entry.path: entry.sha256 for entry in model.files}
    sha256 = digests.get("signature.json", "none, its manifest does not name it")
    document = read_document(client, run, "model/signature.json", sha256)
    inputs, outputs = (
        frozenset((str(column["name"]), str(column["type"])) for column in document[side])
        for side in ("inputs", "outputs")
    )
    return ModelSignature(inputs, outputs, target_kind(document))


@contextmanager
def _downloaded(client: "MlflowClient", run: str) -> Iterator[Path]:
    """Download all evidence of a version: file by file, MLflow asks for its run and its models each time."""
    # List first: MLflow reports a missing folder as a server error, which would be retried.
    if EVIDENCE not in {entry.path for entry in client.list_artifacts(run)}:
        raise missing_file(run, EVIDENCE)
    with TemporaryDirectory() as scratch:
        yield Path(client.download_artifacts(run, EVIDENCE, scratch))


def _verdict(folder: Path, about: str, run: str) -> Verdict:
    return Verdict.from_json(*_read(folder, f"{about}/{Verdict.FILE}", run))


def _read(folder: Path, path: str, run: str) -> tuple[Any, str]:
    """Return the content of a file of the evidence, and its name in errors."""
    if not (folder / path).is_file():
        raise missing_file(run, f"{EVIDENCE}/{path}")
    where = f"run {run}, {EVIDENCE}/{path}"
    return read_json(folder / path, where=where), where


def _records(folder: Path) -> tuple[Record, ...]:
    """Return the records that no other record contains."""
    records = [Record.read(file) for file in sorted(folder.glob("[0-9][0-9]*")) if file.is_file()]
    carried = {parent.digest for record in records for parent in ancestors(record.parents)}
    return tuple(record for record in records if record.digest not in carried)


def read_canary_verdict(uri: str, model_digest: str) -> Verdict:
    """Read the verdict on a canary, from its file or the artifact that holds it.

    Raises:
        InputError: It cannot be read, is about another model, or its decision differs from its numbers.
    """
    uri = uri if uri.endswith(".json") else f"{uri.rstrip('/')}/{Verdict.FILE}"
    place = redacted(uri)
    verdict = Verdict.parse(read_bytes(uri), place)
    about = {verdict.judged.get("model"), verdict.judged.get("predictions.model")} - {None}
    if about != {model_digest}:
        raise InputError(
            f"the canary's verdict is about model {', '.join(sorted(map(str, about))) or '(none named)'}, "
            f"not about {model_digest[:12]}",
            where=place,
            hint="Its field judged names the digest of the model as `model`.",
        )
    require_recomputed(verdict, "the canary's verdict", place)
    return verdict
