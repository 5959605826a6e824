"""Register a model in MLflow with its lineage; registering the same model again changes nothing."""

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import yaml  # type: ignore[import-untyped]

from trainwright.artifacts import Model
from trainwright.artifacts.record import SOURCE_PATCH
from trainwright.documents import Document, canonical, flatten, read_json
from trainwright.experiment import Registry
from trainwright.lineage import HEADER, SHOWN, environment_locks, rows
from trainwright.registry.audit import RegistrationNote, write_note
from trainwright.registry.candidate import Candidate, check_candidate
from trainwright.registry.hub import NOT_MIRRORED, try_mirror
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import (
    ALIAS,
    create_version,
    find_version,
    log_curves,
    log_files,
    log_run,
    open_run,
    point_candidate,
    settle_version,
    version_page,
)
from trainwright.report import markdown
from trainwright.report.markdown import escape, table
from trainwright.tracking import Stopwatch, environment
from trainwright.tracking.history import HISTORY_FILE as HISTORY
from trainwright.tracking.run_log import mlflow_name, settle_retried
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


_LONGEST_PARAM = 6000
_LONGEST_DESCRIPTION = 5000
"""Maximum length of a version's description in MLflow on PostgreSQL."""


def _description(candidate: Candidate) -> str:
    """Return one line per step that led to the model."""
    lines = "\n".join(dict.fromkeys(f"{step}: {headline}" for step, *_, headline in rows(candidate.records)))
    text = f"From source {candidate.source_version or '(not recorded)'}\n\n{lines}"
    return text[:_LONGEST_DESCRIPTION]


def write_evidence(folder: Path, candidate: Candidate, verdicts: tuple[Path, Path], source: Path) -> None:
    """Collect verdicts, trial, records, the model card and changes of the source for the upload."""
    for name, place in zip(("data", "model"), verdicts, strict=True):
        (folder / name).mkdir(parents=True)
        for path in sorted(place.glob("*.json")):
            (folder / name / path.name).write_bytes(path.read_bytes())
    candidate.trial.write(folder)
    if source.exists():
        shutil.copyfile(source, folder / SOURCE_PATCH)
    cards = [candidate.folder / "README.md", verdicts[1] / markdown.CARD_FILE]
    trained, evaluated = (card.read_text() if card.is_file() else "" for card in cards)
    if trained or evaluated:
        card = markdown.merge_cards(trained, evaluated) if trained else evaluated
        (folder / markdown.CARD_FILE).write_text(card)
    for number, record in enumerate(candidate.records):
        record.write(folder / f"{number:02d}-{record.step}.json")


def _tags(
    candidate: Candidate, locks: Mapping[str, str], commit: str, author: str, pipeline_run: str
) -> dict[str, str]:
    """Return the version's tags, unknown ones left out; :func:`settle_version` adds its stage."""
    model, override = candidate.model, candidate.override
    views = {name: digest for name, digest in model.parents.items() if name.startswith("view ")}
    known = {
        "task": model.kind,
        "author": author,
        "decision": candidate.model_verdict.decision,
        "baseline_version": candidate.model_verdict.baseline_version,
        "override": override.to_json() if override else "",
        "trial_sha256": candidate.trial.digest,
        "feature_views": canonical(views) if views else "",
        "images": canonical({record.step: record.environment.name for record in candidate.records}),
        "cost": f"{model.metrics['cost']:g}" if "cost" in model.metrics else "",
        "git_sha": commit,
        "pipeline_run": pipeline_run,
        "model_digest": candidate.model.digest,
        "data_digest": candidate.data_version,
        "training_data_digest": candidate.model.training_data,
        "source_digest": candidate.source_version,
        "feature_service": next(
            (record.outputs["service"] for record in candidate.records if "service" in record.outputs), ""
        ),
        "verdict_sha256": candidate.model_verdict.digest,
        "data_verdict_sha256": candidate.data_verdict.digest,
        "data_decision": candidate.data_verdict.decision,
        "environment_locks": canonical(dict(locks)),
    }
    return {f"trainwright.{name}": value for name, value in known.items() if value}


def _params(candidate: Candidate) -> dict[str, Any]:
    """Return the flattened configuration of the training."""
    flat = flatten(candidate.model.config)
    return {mlflow_name(name): str(value)[:_LONGEST_PARAM] for name, value in flat.items()}


def _metrics(candidate: Candidate) -> dict[str, float]:
    """Return the metrics of the training and the values of the verdict's rules."""
    rules = {f"evaluate.{rule.name}": rule.value for rule in candidate.model_verdict.rules}
    return {mlflow_name(name): value for name, value in (candidate.model.metrics | rules).items()}


LOADER = "trainwright.serving"
"""The module whose ``_load_pyfunc(path)`` opens a registered model; it needs the torch environment."""

_MLFLOW_TYPES = {
    "halffloat": "double",
    "float": "double",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "datetime",
    "timestamp": "datetime",
}
"""MLflow's name of Arrow types that can hold a missing value in both.

MLflow's integers and booleans cannot; its ``double`` rejects int64, its ``float`` float64. The model reads
every number as float64, so every float is declared ``double`` and all other types ``any``.
"""


def write_mlflow_model(folder: Path, model: Model, target: Path, *, run: str, time_ms: int) -> None:
    """Copy a verified model folder to ``target`` and add its ``MLmodel``.

    ``time_ms``, the start of MLflow's run in milliseconds since 1970, is the time in ``MLmodel``.
    """
    target.mkdir(parents=True)
    for name in (Model.FILE, *(entry.path for entry in model.files)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target / name)
    description = _describe_mlflow_model(folder, run=run, time_ms=time_ms)
    (target / "MLmodel").write_text(yaml.safe_dump(description, default_flow_style=False))


def _describe_mlflow_model(folder: Path, *, run: str, time_ms: int) -> dict[str, Any]:
    """Return the content of ``MLmodel``."""
    from mlflow.models import Model as Description

    # MLflow's own signature classes would add pandas and numpy (104 MB) to this environment.
    flavour = {"loader_module": LOADER, "python_version": platform.python_version()}
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
    created = moment.isoformat(" ", timespec="microseconds")
    description: dict[str, Any] = Description(
        run_id=run, utc_time_created=created, model_uuid=run, flavors={"python_function": flavour}
    ).to_dict()
    example = {"artifact_path": "input_example.json", "type": "dataframe"}
    return description | {
        "signature": _mlflow_signature(folder / "signature.json"),
        "saved_input_example_info": example | {"pandas_orient": "split"},
    }


def _mlflow_signature(path: Path) -> dict[str, str | None]:
    described = read_json(path)
    inputs = [_mlflow_column(entry, required=False) for entry in described["inputs"]]
    outputs = [_mlflow_column(entry, required=True) for entry in described["outputs"]]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None}


def _mlflow_column(entry: dict[str, Any], *, required: bool) -> dict[str, Any]:
    kind = str(entry["type"])
    known = _MLFLOW_TYPES.get(kind, _MLFLOW_TYPES.get(kind.partition("[")[0], "any"))
    return {"type": known, "name": entry["name"], "required": required}


_RETRY_HINT = "The model is kept in this run: start the server, then run the register step alone."


@dataclass(frozen=True, kw_only=True)
class Registration(Document):
    """A registered version and its lineage.

    Attributes:
        run: MLflow's run with the files.
        registered_before: The version existed; nothing was added.
        model_version: Digest of the model's manifest.
        data_version: Digest of the snapshot that ``ingest`` made.
        training_data: Digest of the snapshot with joined features that the model was trained on.
        source_version: Digest of the source's bytes; empty if no record names them.
        commit: Git commit of the experiment; empty if unknown.
        environment_locks: Digest of the lock of each step's environment, by step.
        verdicts: Digests of both verdicts.
        trial: Digest of the trial.
        override: Approver of a model that did not pass; empty for a PASS.
        key: Idempotency key of the registration.
        page: URL of the version in MLflow's UI; empty where a browser cannot reach it.
    """

    FILE: ClassVar[str] = "registration.json"
    model: str
    version: str
    run: str
    tracking_uri: str
    registered_before: bool
    model_version: str
    data_version: str
    training_data: str
    source_version: str
    commit: str
    environment_locks: dict[str, str]
    data_decision: str
    verdicts: dict[str, str]
    trial: str
    override: str
    key: str
    page: str = ""


def register(
    model: Path,
    model_version: str,
    data_verdict: Path,
    model_verdict: Path,
    trial: Path,
    registry: Registry,
    commit: str,
    folder: Path,
    summary: Path,
    pipeline_run: str = "",
) -> Registration:
    """Register a model that passed its gate, once.

    Args:
        model: The model's folder.
        model_version: The digest it must have.
        data_verdict: Folder of the verdict about the data.
        model_verdict: Folder of the verdict about the model.
        trial: Folder of smoke_test's trial.
        registry: MLflow, the model's name, and the audit.
        commit: Git commit of the experiment; may be empty.
        folder: Gets ``registration.json`` and the record. In a local run, the changes of the experiment since
            ``commit`` lie beside the folder of its step, and become evidence.
        summary: Path of a Markdown file with the lineage.
        pipeline_run: Id of the pipeline run; may be empty.

    Raises:
        InputError: A file is missing or changed, a verdict is about something else, or MLflow rejects a name.
        DataRefused: The data was rejected.
        ModelRefused: The model did not pass.
        DependencyError: MLflow was away for ``registry.retry_s``.
        PermissionRefused: MLflow, the audit's store or the file system rejects this identity.
    """
    watch = Stopwatch()
    candidate = check_candidate(model, model_version, data_verdict, model_verdict, trial, registry.override)
    tracking, retry_s = registry.tracking_uri, registry.retry_s
    client = persist(lambda: open_client(tracking), tracking, retry_s, hint=_RETRY_HINT)
    locks = environment_locks(candidate.records) | {"register": environment().lock_sha256}
    labels = _tags(candidate, locks, commit, registry.author, pipeline_run)
    keys, source = Keyring.of(registry), folder.absolute().parents[1] / SOURCE_PATCH
    entry, before = persist(
        lambda: _find_or_create(client, registry, candidate, labels, (data_verdict, model_verdict), source),
        tracking,
        retry_s,
        hint=_RETRY_HINT,
    )
    if keys.key_file:
        write_note(keys.audit, _note(candidate, registry), keys)
    unmirrored = try_mirror(registry)
    registration = _registration(entry, before, candidate, registry, commit, locks)
    folder.mkdir(parents=True, exist_ok=True)
    watch.record(
        folder,
        "register",
        _headline(registration) + (NOT_MIRRORED if unmirrored else ""),
        config=registry.model_dump(mode="json") | {"commit": commit},
        inputs={"model": model_version, "trial": registration.trial} | registration.verdicts,
        outputs={"registration": registration.digest},
        parents=[model, data_verdict, model_verdict, trial],
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_summary(registration, candidate, unmirrored, noted=bool(keys.key_file)))
    registration.write(folder)
    if pipeline_run:
        result = _headline(registration)
        persist(lambda: settle_retried(client, pipeline_run, result), tracking, retry_s, hint=_RETRY_HINT)
    return registration


def _find_or_create(
    client: "MlflowClient",
    registry: Registry,
    candidate: Candidate,
    labels: Mapping[str, str],
    verdicts: tuple[Path, Path],
    source: Path,
) -> tuple["ModelVersion", bool]:
    """Find or create the version, continuing a killed attempt; return it and whether it existed."""
    from mlflow.exceptions import MlflowException

    name, key = registry.model, candidate.key(registry.model)
    before = find_version(client, name, key) is not None
    if not before:
        try:
            _create(client, registry, candidate, labels, verdicts, source)
        except MlflowException:
            # Another process may have created it meanwhile, and deleted the run that was filled here.
            if find_version(client, name, key) is None:
                raise
            before = True
    entry = settle_version(client, name, key)
    point_candidate(client, name)
    return entry, before


def _create(
    client: "MlflowClient",
    registry: Registry,
    candidate: Candidate,
    labels: Mapping[str, str],
    verdicts: tuple[Path, Path],
    source: Path,
) -> None:
    """Log the run, its files, and the version."""
    name, key = registry.model, candidate.key(registry.model)
    run = open_run(client, name, key, registry.tracking_uri, labels)
    log_run(client, run.info.run_id, _params(candidate), _metrics(candidate), run.info.start_time)
    log_curves(client, run.info.run_id, candidate.folder / HISTORY)
    with TemporaryDirectory() as scratch:
        package, proof = Path(scratch) / "model", Path(scratch) / "evidence"
        write_mlflow_model(
            candidate.folder, candidate.model, package, run=run.info.run_id, time_ms=run.info.start_time
        )
        write_evidence(proof, candidate, verdicts, source)
        log_files(client, run.info.run_id, [(package, "model"), (proof, "evidence")])
    create_version(client, name, key, run, labels, _description(candidate))


def _registration(
    entry: "ModelVersion",
    before: bool,
    candidate: Candidate,
    registry: Registry,
    commit: str,
    locks: dict[str, str],
) -> Registration:
    return Registration(
        model=registry.model,
        version=str(entry.version),
        run=str(entry.run_id),
        tracking_uri=registry.tracking_uri,
        registered_before=before,
        model_version=candidate.model.digest,
        data_version=candidate.data_version,
        training_data=candidate.model.training_data,
        source_version=candidate.source_version,
        commit=commit,
        environment_locks=locks,
        data_decision=candidate.data_verdict.decision,
        verdicts={
            "data_verdict": candidate.data_verdict.digest,
            "model_verdict": candidate.model_verdict.digest,
        },
        trial=candidate.trial.digest,
        override=candidate.override.approver if candidate.override else "",
        key=candidate.key(registry.model),
        page=version_page(registry, str(entry.version)),
    )


def _note(candidate: Candidate, registry: Registry) -> RegistrationNote:
    return RegistrationNote(
        model=registry.model,
        key=candidate.key(registry.model),
        model_digest=candidate.model.digest,
        model_verdict=candidate.model_verdict.digest,
        data_verdict=candidate.data_verdict.digest,
        trial=candidate.trial.digest,
        author=registry.author,
        override=candidate.override.to_json() if candidate.override else "",
    )


_UNNOTED = (
    "registry.audit or registry.signing_key is not set, so no signed note of this registration lies where "
    "promotions are decided: register it again with them before promoting; nothing is registered twice."
)


def _headline(registration: Registration) -> str:
    name = f"{registration.model} version {registration.version}"
    if registration.registered_before:
        return f"{name} (registered before)"
    if registration.override:
        return f"{name}, alias {ALIAS}, OVERRIDDEN by {registration.override}"
    return f"{name}, alias {ALIAS}, data {registration.data_decision}"


def _summary(registration: Registration, candidate: Candidate, unmirrored: str, *, noted: bool) -> str:
    """Return the registration and its lineage in Markdown."""
    facts = [
        ("model", f"{registration.model} version {registration.version}, MLflow run {registration.run}"),
        ("model digest", registration.model_version[:SHOWN]),
        ("trained on", registration.training_data[:SHOWN]),
        ("data version", registration.data_version[:SHOWN]),
        ("source bytes", registration.source_version[:SHOWN] or "not recorded"),
        *((f"made from {name}", made[:SHOWN]) for name, made in sorted(candidate.model.parents.items())),
        ("commit", registration.commit or "not given"),
        ("data verdict", registration.data_decision),
        *(
            (f"lock of {step}", lock[:SHOWN] or "unknown")
            for step, lock in registration.environment_locks.items()
        ),
    ]
    hold = ""
    if registration.data_decision != "PASS":
        hold = (
            f"The data verdict is {registration.data_decision}: a promotion asks for a person's word on it.\n"
        )
    uri = escape(registration.tracking_uri)
    location = f"[MLflow]({registration.page}), {uri}" if registration.page else uri
    return "\n".join(
        [
            f"**{escape(_headline(registration))}** in {location}\n",
            hold,
            "" if noted else f"{_UNNOTED}\n",
            f"{escape(unmirrored)}\n",
            table(("what", "value"), facts),
            "### From the model back to its source\n",
            table(HEADER, list(rows(candidate.records))),
        ]
    )
