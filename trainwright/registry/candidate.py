"""Check the model, its verdicts and its smoke test before registration: every file and every digest."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainwright.artifacts import Model, ModelFile, Record, Trial
from trainwright.documents import digest_file
from trainwright.errors import DataRefused, InputError, ModelRefused
from trainwright.experiment import Override
from trainwright.experiment.registry import MAX_OVERRIDE_DAYS
from trainwright.lineage import ancestors, outputs_named
from trainwright.registry.audit import registration_key
from trainwright.verdicts import SCHEMA_INFERRED, Verdict


@dataclass(frozen=True)
class Candidate:
    """A model that passed its gate, with its lineage.

    Attributes:
        folder: The model's folder; its files match the manifest.
        data_verdict: PASS or HOLD.
        model_verdict: PASS, or overridden.
        override: Override of the model's verdict; None for a PASS.
        records: Records of all steps that led to it, the latest first.
    """

    folder: Path
    model: Model
    data_verdict: Verdict
    model_verdict: Verdict
    trial: Trial
    override: Override | None
    records: Sequence[Record]

    @property
    def data_version(self) -> str:
        """Digest of the snapshot that ``ingest`` made; of the training data if no record names one."""
        return next(iter(outputs_named(self.records, "data")), self.model.training_data)

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
    """Check the folders of a model, its two verdicts and its trial.

    Raises:
        InputError: A file is missing or changed, or a verdict is about another model or data, or does not
            follow from its numbers.
        DataRefused: The data's verdict is FAIL, or nobody reviewed the schema.
        ModelRefused: The model's verdict is not PASS and not overridden, or the trial failed.
    """
    model = _read_model(folder, model_version)
    about_data, about_model = _read_verdict(data_verdict), _read_verdict(model_verdict)
    own = _records(folder)
    _require_about_model(about_model, model, [*own, *_records(model_verdict)], model_verdict)
    _require_about_data(about_data, own, data_verdict)
    if about_data.decision == "FAIL":
        raise DataRefused(f"the data verdict is FAIL: {_failed_rules(about_data)}", where=str(data_verdict))
    _require_reviewed_schema(about_data, data_verdict)
    if about_model.decision != "PASS":
        _require_overridden(about_model, override, model_verdict)
    tried = _read_trial(trial, folder, model)
    records = ancestors([*own, *_records(data_verdict), *_records(model_verdict), *_records(trial)])
    used = None if about_model.decision == "PASS" else override
    return Candidate(folder, model, about_data, about_model, tried, used, records)


def _read_verdict(place: Path) -> Verdict:
    """Read a verdict and recompute its decision."""
    verdict = Verdict.read(place)
    if verdict.decision != verdict.recomputed():
        raise InputError(
            f"the verdict says {verdict.decision}, but its numbers say {verdict.recomputed()}",
            where=str(place),
            hint="It was changed by hand, or written by another release: run the step that judges again.",
        )
    if (place / Record.FILE).exists():
        written = Record.read(place).outputs.get("verdict", verdict.digest)
        if written != verdict.digest:
            raise InputError(
                f"the verdict has digest {verdict.digest[:12]}, the step that judged wrote {written[:12]}",
                where=str(place),
                hint="It was changed by hand: run the step that judges again.",
            )
    return verdict


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


def _require_overridden(verdict: Verdict, override: Override | None, where: Path) -> None:
    """Require an unexpired override of this verdict."""
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


def _read_trial(place: Path, folder: Path, model: Model) -> Trial:
    trial = Trial.read(place)
    example = folder / "input_example.json"
    other = example.is_file() and digest_file(example) != trial.input_example
    if trial.model != model.digest or other:
        raise InputError(
            f"the trial is about model {trial.model[:12]} or another input example, not {model.digest[:12]}",
            where=str(place),
            hint="Run smoke_test on this model.",
        )
    if not trial.passed:
        raise ModelRefused(f"the model was tried and did not answer: {trial.said}", where=str(place))
    return trial


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


def _matches(folder: Path, entry: ModelFile) -> bool:
    path = folder / entry.path
    inside = path.resolve().is_relative_to(folder.resolve())
    return (
        inside and path.is_file() and path.stat().st_size == entry.size and digest_file(path) == entry.sha256
    )


def _records(folder: Path) -> list[Record]:
    return ancestors([Record.read(folder)]) if (folder / Record.FILE).exists() else []


def _require_about_model(verdict: Verdict, model: Model, known: Sequence[Record], where: Path) -> None:
    """Require a record of `train` or `score` that shows that the evaluated predictions are this model's.

    The predictions' manifest names their model, but outside their digest; a record names the digest itself.
    """
    rows = verdict.judged.get("predictions.training_set")
    if rows not in (None, model.training_data):
        raise InputError(
            f"the model was judged on rows of data {rows[:12]}, it was made from {model.training_data[:12]}",
            where=str(where),
            hint="Register the model with the verdict on its own predictions.",
        )
    named = verdict.judged.get("predictions.model", model.digest)
    if named != model.digest:
        raise InputError(
            f"the model verdict is about model {named[:12]}, not about {model.digest[:12]}",
            where=str(where),
        )
    judged = verdict.judged.get("predictions", "")
    made = [
        record.outputs.get("predictions")
        for record in known
        if model.digest in (record.outputs.get("model"), record.inputs.get("model"))
    ]
    if judged not in made:
        raise InputError(
            f"nothing shows that the predictions that were judged ({judged[:12] or 'none named'}) "
            f"are those of model {model.digest[:12]}",
            where=str(where),
            hint="Register the model with the verdict of the evaluate step that read its own predictions.",
        )


def _require_about_data(verdict: Verdict, own: Sequence[Record], where: Path) -> None:
    """Require that the validated data is what the model came from, where records name it."""
    made, judged = outputs_named(own, "data"), verdict.judged.get("data", "")
    if made and judged not in made:
        raise InputError(
            f"the data verdict is about data {judged[:12] or '(none named)'}, "
            f"but the model came from {', '.join(digest[:12] for digest in made)}",
            where=str(where),
        )


def _failed_rules(verdict: Verdict) -> str:
    broken = [
        f"{rule.name} {rule.value:g} (limit {rule.limit:g})" for rule in verdict.rules if not rule.passed
    ]
    unjudged = [f"{entry.name} not judged ({entry.reason})" for entry in verdict.not_judged]
    return "; ".join((broken or unjudged)[:5]) or "it names no rule"
