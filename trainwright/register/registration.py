"""The entry of a model in the registry, and the line that leads from it back to the source."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlsplit

from trainwright.documents import Document
from trainwright.experiment import Registry
from trainwright.lineage import HEADER, SHOWN, environment_locks, rows
from trainwright.register.candidate import Candidate, admit
from trainwright.register.entry import description, lay_evidence, metrics, params, tags
from trainwright.register.package import pack
from trainwright.register.versions import (
    ALIAS,
    create_version,
    find_version,
    log_curves,
    log_files,
    log_run,
    open_run,
    point_alias,
    settle,
)
from trainwright.registry.notes import Note, write_note
from trainwright.registry.place import audit_at
from trainwright.report.markdown import escape, table
from trainwright.tracking import Stopwatch, environment
from trainwright.tracking.history import FILE as HISTORY
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_KEPT = "The model is kept in this run: start the server, then run the register step alone."


@dataclass(frozen=True, kw_only=True)
class Registration(Document):
    """What was registered, and where it came from.

    Attributes:
        model: Name of the registered model.
        version: Its version in the registry.
        run: MLflow's run that holds the files.
        tracking_uri: Where.
        registered_before: The version was there already; nothing was added.
        model_version: Digest of the model's manifest.
        data_version: Digest of the snapshot it came from.
        training_data: Digest of the snapshot it was fitted on, features joined.
        source_version: Digest of the source's bytes; empty if no record names them.
        commit: Git commit of the experiment; empty if it was not given.
        environment_locks: Digest of the lock of each step's environment, by step.
        data_decision: What was decided about the data.
        verdicts: Digests of both verdicts.
        trial: Digest of the trial.
        override: Who answers for a model that did not pass; empty where it did.
        key: What makes two registrations the same.
        page: Address of the version's page for a browser; empty where MLflow has no address but a file.
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
) -> Registration:
    """Register a model that passed its gate, once.

    Args:
        model: The model's folder.
        model_version: The digest it must have.
        data_verdict: Folder of the verdict about the data.
        model_verdict: Folder of the verdict about the model.
        trial: Folder of the trial that probe made.
        registry: Where, and under which name.
        commit: Git commit of the experiment; empty if there is none.
        folder: Where ``registration.json`` and the step's record are written.
        summary: Markdown file: the entry and its lineage.

    Raises:
        InputError: A file is gone or changed, a verdict is about something else, or MLflow refuses a name.
        DataRefused: The data was refused.
        ModelRefused: The model did not pass.
        DependencyError: MLflow was away for ``registry.retry_s``.
        PermissionRefused: MLflow, the audit's store or the file system refuses this identity.
    """
    watch = Stopwatch()
    candidate = admit(model, model_version, data_verdict, model_verdict, trial, registry.override)
    uri, retry_s = registry.tracking_uri, registry.retry_s
    client = persist(lambda: open_client(uri), uri, retry_s, hint=_KEPT)
    locks = environment_locks(candidate.records) | {"register": environment().lock_sha256}
    labels = tags(candidate, locks, commit, registry.author)
    audit = audit_at(registry.audit, registry.tracking_uri)
    entry, before = persist(
        lambda: _enter(client, registry, candidate, labels, (data_verdict, model_verdict)),
        uri,
        retry_s,
        hint=_KEPT,
    )
    if audit:
        write_note(audit, _note(candidate, registry))
    registration = _document(entry, before, candidate, registry, commit, locks)
    folder.mkdir(parents=True, exist_ok=True)
    watch.record(
        folder,
        "register",
        _headline(registration),
        config=registry.model_dump(mode="json") | {"commit": commit},
        inputs={"model": model_version, "trial": registration.trial} | registration.verdicts,
        outputs={"registration": registration.digest},
        parents=[model, data_verdict, model_verdict, trial],
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_summary(registration, candidate, noted=bool(audit)))
    registration.write(folder)
    return registration


def _enter(
    client: "MlflowClient",
    registry: Registry,
    candidate: Candidate,
    labels: Mapping[str, str],
    verdicts: tuple[Path, Path],
) -> tuple["ModelVersion", bool]:
    """Find the version or make it. A killed attempt is taken up where it stopped: every part is done once."""
    from mlflow.exceptions import MlflowException

    name, key = registry.model, candidate.key(registry.model)
    before = find_version(client, name, key) is not None
    if not before:
        try:
            _make(client, registry, candidate, labels, verdicts)
        except MlflowException:
            # Another may have made it meanwhile, and taken back the run that was being filled here.
            if find_version(client, name, key) is None:
                raise
            before = True
    entry = settle(client, name, key)
    point_alias(client, name)
    return entry, before


def _make(
    client: "MlflowClient",
    registry: Registry,
    candidate: Candidate,
    labels: Mapping[str, str],
    verdicts: tuple[Path, Path],
) -> None:
    """Log the run, its files, and the version."""
    name, key = registry.model, candidate.key(registry.model)
    run = open_run(client, name, key, registry.tracking_uri, labels)
    log_run(client, run.info.run_id, params(candidate), metrics(candidate), run.info.start_time)
    log_curves(client, run.info.run_id, candidate.folder / HISTORY)
    with TemporaryDirectory() as scratch:
        package, proof = Path(scratch) / "model", Path(scratch) / "evidence"
        pack(candidate.folder, candidate.model, package, run=run.info.run_id, time_ms=run.info.start_time)
        lay_evidence(proof, candidate, verdicts)
        log_files(client, run.info.run_id, [(package, "model"), (proof, "evidence")])
    create_version(client, name, key, run, labels, description(candidate))


def _document(
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
        page=_page(registry, str(entry.version)),
    )


def _page(registry: Registry, version: str) -> str:
    """Return the address of a version's page in MLflow's UI; empty where no browser reaches it."""
    root = registry.page or registry.tracking_uri
    if not root.startswith(("http://", "https://")) or (not registry.page and _in_cluster(root)):
        return ""
    return f"{root.rstrip('/')}/#/models/{quote(registry.model, safe='')}/versions/{version}"


def _in_cluster(address: str) -> bool:
    """Return whether an address is that of a Kubernetes Service: only pods resolve such a name."""
    host = urlsplit(address).hostname or ""
    if host == "localhost" or ":" in host:  # this machine; an IPv6 address
        return False
    return "." not in host or host.endswith(".svc") or ".svc." in host


def _note(candidate: Candidate, registry: Registry) -> Note:
    """Return what promotion will hold the version against, wherever MLflow's tags are by then."""
    return Note(
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
    "registry.audit is not set, so nothing notes this registration where promotions are decided: register "
    "it again with it before promoting; nothing is registered twice."
)


def _headline(registration: Registration) -> str:
    name = f"{registration.model} version {registration.version}"
    if registration.registered_before:
        return f"{name} (registered before)"
    if registration.override:
        return f"{name}, alias {ALIAS}, OVERRIDDEN by {registration.override}"
    return f"{name}, alias {ALIAS}, data {registration.data_decision}"


def _place(registration: Registration) -> str:
    """Name the server, and link to the version where a browser can follow."""
    uri = escape(registration.tracking_uri)
    return f"[MLflow]({registration.page}), {uri}" if registration.page else uri


def _summary(registration: Registration, candidate: Candidate, *, noted: bool) -> str:
    """Say in Markdown what was registered, and lead from it back to the source."""
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
    return "\n".join(
        [
            f"**{escape(_headline(registration))}** in {_place(registration)}\n",
            hold,
            "" if noted else f"{_UNNOTED}\n",
            table(("what", "value"), facts),
            "### From the model back to its source\n",
            table(HEADER, list(rows(candidate.records))),
        ]
    )
