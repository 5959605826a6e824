"""Check the model, its verdicts and its smoke test before registration: every file and every digest."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainwright.artifacts import Model, ModelFile, Record, Trial
from trainwright.artifacts.model import target_kind
from trainwright.documents import digest_file, read_json
from trainwright.errors import DataRefused, InputError, ModelRefused
from trainwright.experiment import Override
from trainwright.experiment.registry import MAX_OVERRIDE_DAYS
from trainwright.lineage import ancestors
from trainwright.registry.audit import registration_key
from trainwright.registry.evidence import Evidence
from trainwright.verdicts import SCHEMA_INFERRED, Verdict


@dataclass(frozen=True)
class Candidate:
    """A model that passed its gate, with its lineage.

    Attributes:
        folder: The model's folder; its files match the manifest.
        data_version: Digest of the snapshot that ``ingest`` made.
        data_verdict: PASS or HOLD.
        model_verdict: PASS, or overridden.
        override: Override of the model's verdict; None for a PASS.
        records: Records of all steps that led to it, the latest first.
    """

    folder: Path
    model: Model
    data_version: str
    data_verdict: Verdict
    model_verdict: Verdict
    trial: Trial
    override: Override | None
    records: Sequence[Record]

    @property
    def source_version(self) -> str:
        """Digest of the source's bytes; empty if no record names them."""
        return next((record.inputs["source"] for record in self.records if "source" in record.inputs), "")

    def key(self, name: str) -> str:
        """Return the idempotency key of its registration."""
        return registration_key(name, self.model.digest, self.model_verdict.digest, self.data_verdict.digest)


def check_candidate(
    folder: Path,
    model_version: str,
    data_verdict: Path,
    model_verdict: Path,
    trial: Path,
    override: Override | None = None,
) -> Candidate:
    """Check the folders of a model, its two verdicts and its trial: every file, record, digest and decision.

    Raises:
        InputError: A file or record is missing or changed, or a verdict is about another model or data, or
            does not follow from its numbers.
        DataRefused: The data's verdict is FAIL, or nobody reviewed the schema.
        ModelRefused: The model's verdict is not PASS and not overridden, or the trial failed.
    """
    model = _read_model(folder, model_version)
    signature, example = (
        _read_file(folder, model, name) for name in ("signature.json", "input_example.json")
    )
    records = [Record.read(place) for place in (folder, data_verdict, model_verdict, trial)]
    evidence = Evidence(
        model=model,
        data_verdict=Verdict.read(data_verdict),
        model_verdict=Verdict.read(model_verdict),
        trial=Trial.read(trial),
        target=target_kind(read_json(signature)),
        records=records,
        where=str(folder.parent),
    )
    data = evidence.check()
    if digest_file(example) != evidence.trial.input_example:
        raise InputError(
            f"the trial scored another input example than that of model {model.digest[:12]}",
            where=str(trial),
            hint="Run smoke_test on this model.",
        )
    about_data, about_model = evidence.data_verdict, evidence.model_verdict
    if about_data.decision == "FAIL":
        raise DataRefused(f"the data verdict is FAIL: {_failed_rules(about_data)}", where=str(data_verdict))
    _require_reviewed_schema(about_data, data_verdict)
    used = None
    if about_model.decision != "PASS":
        used = _require_overridden(about_model, override, model_verdict)
    lineage = ancestors([*ancestors(records[:1]), *records])
    return Candidate(folder, model, data, about_data, about_model, evidence.trial, used, lineage)


def _require_reviewed_schema(verdict: Verdict, where: Path) -> None:
    """Reject data whose schema was inferred from itself, unless the experiment accepts that."""
    inferred = [rule for rule in verdict.rules if rule.name.endswith(f"/{SCHEMA_INFERRED}")]
    if any(not rule.passed for rule in inferred):
        raise DataRefused(
            f"the data verdict is {verdict.decision}: nobody has reviewed the schema, which was inferred "
            "from this data",
            where=str(where),
            hint="Review schema.pbtxt beside the verdict, copy it beside the experiment file, name it in "
            "schema_file, and run again. validation.on_missing_schema: bootstrap accepts it unreviewed.",
        )


def _require_overridden(verdict: Verdict, override: Override | None, where: Path) -> Override:
    """Return the override if it is of this verdict and has not ended."""
    decision = f"the model verdict is {verdict.decision}, not PASS: {_failed_rules(verdict)}"
    if override is None:
        raise ModelRefused(
            decision,
            where=str(where),
            hint="See the report of evaluate; only a model that passes is registered.",
        )
    if override.verdict != verdict.digest:
        raise ModelRefused(
            f"{decision}. The override is for verdict {override.verdict[:12]}, this is {verdict.digest[:12]}",
            where="registry.override",
        )
    now, longest = datetime.now(UTC), timedelta(days=MAX_OVERRIDE_DAYS)
    if override.expires > now + longest:
        raise ModelRefused(
            f"{decision}. The override by {override.approver} ends at {override.expires.isoformat()}; "
            f"expected at most {longest.days} days from now",
            where="registry.override.expires",
        )
    if now >= override.expires:
        raise ModelRefused(
            f"{decision}. The override by {override.approver} ended at {override.expires.isoformat()}",
            where="registry.override",
        )
    return override


def _read_model(folder: Path, model_version: str) -> Model:
    model = Model.read(folder)
    if model.digest != model_version:
        raise InputError(
            f"cached input changed: model {model.digest[:12]}, expected {model_version[:12]}",
            where=str(folder),
            hint="Run train again, with caching off for it.",
        )
    if changed := [entry.path for entry in model.files if not _matches(folder, entry)]:
        raise InputError(
            f"files of the model are gone or are not what its manifest says: {', '.join(changed)}",
            where=str(folder),
            hint="Run train again, with caching off for it.",
        )
    return model


def _read_file(folder: Path, model: Model, name: str) -> Path:
    """Return a file of the model that its manifest has, and that was compared with it."""
    if name not in [entry.path for entry in model.files]:
        raise InputError(
            f"the model has no {name}, and is not registered without",
            where=str(folder),
            hint="Train it with the train component, or write the file and name it in model.json.",
        )
    return folder / name


def _matches(folder: Path, entry: ModelFile) -> bool:
    path = folder / entry.path
    inside = path.resolve().is_relative_to(folder.resolve())
    return (
        inside and path.is_file() and path.stat().st_size == entry.size and digest_file(path) == entry.sha256
    )


def _failed_rules(verdict: Verdict) -> str:
    broken = [
        f"{rule.name} {rule.value:g} (limit {rule.limit:g})" for rule in verdict.rules if not rule.passed
    ]
    unjudged = [f"{entry.name} not judged ({entry.reason})" for entry in verdict.not_judged]
    return "; ".join((broken or unjudged)[:5]) or "it names no rule"
