"""Read and check evidence: documents by the records of their steps, decisions by their numbers.

That of a version is read from MLflow and checked against the note of its registration. A record is no
signature. Whoever can write every document and every record can write a consistent story: docs/trust.md says
what that means.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.artifacts import Model, Record, Trial
from trainwright.artifacts.model import target_kind
from trainwright.documents import read_json
from trainwright.errors import InputError, ModelRefused
from trainwright.experiment import Override
from trainwright.lineage import ancestors
from trainwright.redaction import redacted
from trainwright.registry.audit import RegistrationNote, read_note, registration_key
from trainwright.registry.names import KEY, STAGE
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import (
    MODEL_DIGEST_TAG,
    find_versions,
    missing_file,
    read_document,
    version_of,
)
from trainwright.storage import read_bytes
from trainwright.verdicts import BASELINE, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_AGAIN = "Run the step that makes it again, and those after it: documents of several runs do not mix."

_SNAPSHOT = {"join": "training_set", "ingest": "data"}
"""Name of the snapshot that a step makes, by step."""

_SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "join": ("entities", {"ingest": "data"}),
    "train": ("training_set", _SNAPSHOT),
    "score": ("training_set", _SNAPSHOT),
    "validate": ("data", {"ingest": "data"}),
    "evaluate": ("predictions", {"train": "predictions", "score": "predictions"}),
    "smoke_test": ("model", {"train": "model"}),
}
"""Main input of a step, and the output that it is, by the step that made it."""


@dataclass(frozen=True)
class Evidence:
    """A model with its evidence: manifest, both verdicts, smoke test, and the records of all steps.

    Attributes:
        records: Those that lie beside the documents, or these and all that they contain.
        target: Kind of the target in the model's signature; empty for a language model.
        where: Where it was read, for errors.
    """

    model: Model
    data_verdict: Verdict
    model_verdict: Verdict
    trial: Trial
    target: str
    records: Sequence[Record]
    where: str

    def check(self) -> str:
        """Check every digest and decision; return the digest of the data that the model came from.

        Raises:
            InputError: A record is missing or says something else than a document, a document is about
                another model or other data, or a verdict does not follow from its numbers.
            ModelRefused: The trial failed.
        """
        require_recomputed(self.data_verdict, "the data verdict", self.where)
        require_recomputed(self.model_verdict, "the model verdict", self.where)
        _require_no_excuse(self.model_verdict, self.where)
        rows = self.model.training_data
        trained = self._record("train", "model", self.model.digest, training_set=rows)
        data = self._origin(trained).outputs["data"]
        self._check_data(data, self._source(trained))
        self._check_predictions()
        if self.trial.model != self.model.digest:
            raise self._error(
                f"the trial is about model {self.trial.model[:12]}, not {self.model.digest[:12]}"
            )
        self._origin(self._record("smoke_test", "trial", self.trial.digest, model=self.model.digest))
        if problems := self.trial.problems(self.target):
            raise ModelRefused(
                f"the model was tried and did not answer: {'; '.join(problems)}", where=self.where
            )
        return data

    def _check_data(self, data: str, made: Record) -> None:
        """Require that the data verdict is the one of `join`, or of `validate` if `join` wrote none.

        ``made`` is the record of the step that made the training set.
        """
        judged = self.data_verdict.judged.get("data", "")
        if judged != data:
            raise self._error(
                f"the data verdict is about data {judged[:12] or '(none named)'}, but the model came from "
                f"{data[:12]}"
            )
        if not made.outputs.get("verdict"):
            self._origin(self._record("validate", "verdict", self.data_verdict.digest, data=data))
            return
        # A reused training has the record of an earlier join of its training set: look for the later one.
        joined = self._record(made.step, "verdict", self.data_verdict.digest, entities=data)
        if (about := joined.outputs.get("training_set", "")) != self.model.training_data:
            raise self._error(
                f"the data verdict is about training set {about[:12]}, the model was trained on "
                f"{self.model.training_data[:12]}"
            )
        carried = joined.inputs.get("data_verdict", "")
        judges = [
            parent.outputs.get("verdict")
            for parent in joined.parents
            if parent.step == "validate" and parent.inputs.get("data") == data
        ]
        if carried not in judges:
            raise self._error(
                f"join read data verdict {carried[:12] or '(none)'}, and its record has none of validate "
                f"that made it from data {data[:12]}",
                "Pass the verdict of validate to join.",
            )

    def _check_predictions(self) -> None:
        """Require that the evaluated predictions are those of this model, on the rows of its training set."""
        judged, digest, rows = self.model_verdict.judged, self.model.digest, self.model.training_data
        about = judged.get("predictions.model", digest), judged.get("predictions.training_set", rows)
        if about[0] != digest:
            raise self._error(f"the model verdict is about model {about[0][:12]}, not about {digest[:12]}")
        if about[1] != rows:
            raise self._error(
                f"the model was judged on rows of data {about[1][:12]}, it was made from {rows[:12]}"
            )
        predictions = judged.get("predictions", "")
        evaluated = self._record("evaluate", "verdict", self.model_verdict.digest, predictions=predictions)
        made = self._source(evaluated)
        model = made.outputs.get("model") if made.step == "train" else made.inputs.get("model")
        if (model, made.inputs.get("training_set")) != (digest, rows):
            raise self._error(
                f"nothing shows that the predictions that were judged ({predictions[:12] or 'none named'}) "
                f"are those of model {digest[:12]} on its own rows",
                "Register the model with the verdict of the evaluate step that read its own predictions.",
            )
        self._origin(evaluated)

    def _record(self, step: str, name: str, made: str, **inputs: str) -> Record:
        """Return the record of the step that made a document from these inputs."""
        own = [record for record in self.records if record.step == step]
        found = [record for record in own if record.outputs.get(name) == made]
        if not found:
            said = ", ".join(record.outputs.get(name, "nothing")[:12] for record in own)
            has = f"its records say {said}" if own else "there is none"
            raise self._error(
                f"expected the record ({Record.FILE}) of {step} that made {name} {made[:12]}; {has}"
            )
        for record in found:
            if inputs.items() <= record.inputs.items():
                return record
        read = {input_name: found[0].inputs.get(input_name, "none")[:12] for input_name in inputs}
        expected = {input_name: digest[:12] for input_name, digest in inputs.items()}
        raise self._error(f"{step} read {read} to make {name} {made[:12]}, expected {expected}")

    def _source(self, record: Record) -> Record:
        """Return the record of the step that made the main input of another."""
        name, sources = _SOURCES[record.step]
        digest = record.inputs.get(name, "")
        for parent in record.parents:
            if digest and parent.outputs.get(sources.get(parent.step, "")) == digest:
                return parent
        raise self._error(
            f"{record.step} read {name} {digest[:12] or '(none named)'}, and its record has no record of "
            f"{' or '.join(sources)} that made it"
        )

    def _origin(self, record: Record) -> Record:
        """Follow a record to the `ingest` that it came from."""
        while record.step in _SOURCES:
            record = self._source(record)
        return record

    def _error(self, problem: str, hint: str = _AGAIN) -> InputError:
        return InputError(problem, where=self.where, hint=hint)


def require_recomputed(verdict: Verdict, name: str, where: str) -> None:
    """Require that a verdict's decision follows from its numbers.

    Raises:
        InputError: It does not.
    """
    if verdict.decision != (found := verdict.recomputed()):
        raise InputError(
            f"{name} says {verdict.decision}, its numbers say {found}",
            where=where,
            hint="It was changed by hand: run the step that judges again.",
        )


def _require_no_excuse(verdict: Verdict, where: str) -> None:
    """Reject a model's verdict with a rule that passes beyond its limit, but for the missing baseline."""
    if excused := [rule.name for rule in verdict.rules if rule.excused and rule.name != BASELINE]:
        raise InputError(
            f"rule {excused[0]!r} of the model verdict is beyond its limit and passes all the same",
            where=where,
            hint="evaluate excuses only a missing baseline: run it again.",
        )


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
