"""What a registry's entry holds beside the files: tags, parameters, figures, evidence, description."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.documents import canonical
from trainwright.lineage import outputs_named, rows
from trainwright.register.candidate import Candidate
from trainwright.report import card

_LONGEST_PARAM = 6000
_LONGEST_DESCRIPTION = 5000
"""What PostgreSQL keeps of a version's description for MLflow."""


def description(candidate: Candidate) -> str:
    """Say in a few lines which steps the model came through."""
    lines = "\n".join(f"{step}: {headline}" for step, *_, headline in rows(candidate.records))
    text = f"From source {candidate.source_version or '(not recorded)'}\n\n{lines}"
    return text[:_LONGEST_DESCRIPTION]


def lay_evidence(folder: Path, candidate: Candidate, verdicts: tuple[Path, Path]) -> None:
    """Lay verdicts, trial, records and the model card together, as they are uploaded."""
    for name, place in zip(("data", "model"), verdicts, strict=True):
        (folder / name).mkdir(parents=True)
        for path in sorted(place.glob("*.json")):
            (folder / name / path.name).write_bytes(path.read_bytes())
    candidate.trial.write(folder)
    _lay_card(folder / card.FILE, candidate.folder / "README.md", verdicts[1] / card.FILE)
    for number, record in enumerate(candidate.records):
        record.write(folder / f"{number:02d}-{record.step}.json")


def _lay_card(place: Path, trained: Path, judged: Path) -> None:
    """Put what the training and the evaluation say of the model into one card, as far as they are there."""
    told = judged.read_text() if judged.is_file() else ""
    if trained.is_file():
        place.write_text(card.complete(trained.read_text(), told))
    elif told:
        place.write_text(told)


def tags(candidate: Candidate, locks: Mapping[str, str], commit: str, author: str) -> dict[str, str]:
    """Return the version's tags; what is not known has no tag. Its stage comes last, once it counts."""
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
        "model_digest": candidate.model.digest,
        "data_digest": candidate.data_version,
        "training_data_digest": candidate.model.training_data,
        "source_digest": candidate.source_version,
        "feature_service": next(iter(outputs_named(candidate.records, "service")), ""),
        "verdict_sha256": candidate.model_verdict.digest,
        "data_verdict_sha256": candidate.data_verdict.digest,
        "data_decision": candidate.data_verdict.decision,
        "environment_locks": canonical(dict(locks)),
    }
    return {f"trainwright.{name}": value for name, value in known.items() if value}


def params(candidate: Candidate) -> dict[str, Any]:
    """Return what was asked of the training, flat."""
    return {name: str(value)[:_LONGEST_PARAM] for name, value in _flat("", candidate.model.config)}


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else _allowed(str(name)), entry)
    else:
        yield _allowed(prefix), value


def metrics(candidate: Candidate) -> dict[str, float]:
    """Return the figures of the training, and those that the model was judged by."""
    rules = {f"evaluate.{rule.name}": rule.value for rule in candidate.model_verdict.rules}
    return {_allowed(name): value for name, value in (candidate.model.metrics | rules).items()}


def _allowed(name: str) -> str:
    """Replace what MLflow does not take in a name."""
    return re.sub(r"[^\w. /:-]", "_", name)
