"""The gate: a snapshot in; a report and a verdict out."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import NotJudged, Snapshot, Verdict
from trainwright.documents import digest_file, digest_text
from trainwright.experiment import Validation
from trainwright.tracking import Stopwatch
from trainwright.validate.anomalies import check, merged, missing_columns, missing_rows, nested_columns
from trainwright.validate.drift import Drift, measure, measure_missing
from trainwright.validate.judgement import Judgement
from trainwright.validate.limits import Limit, plan
from trainwright.validate.page import write_report
from trainwright.validate.profile import Profile, foreign_columns, profile_splits
from trainwright.validate.schema import parse_schema
from trainwright.validate.summary import write_summary
from trainwright.validate.tfdv import json_format


@dataclass(frozen=True)
class Outcome:
    """What the step tells the run.

    Attributes:
        decision: PASS, HOLD or FAIL.
        headline: The one fact worth a line.
        metrics: Figures by name.
    """

    decision: str
    headline: str
    metrics: dict[str, float]


def judge_snapshot(
    folder: Path,
    data_version: str,
    schema_text: str,
    validation: Validation,
    *,
    verdict: Path,
    report: Path,
    summary: Path,
) -> Outcome:
    """Judge a snapshot against its reviewed schema, and one split of it against the span before.

    Args:
        folder: The snapshot's folder.
        data_version: Digest that the snapshot must have.
        schema_text: The reviewed schema, as ``schema.pbtxt``.
        validation: What to compare, and the limits.
        verdict: Folder for the verdict, the statistics and TFDV's account; made here.
        report: File for the page.
        summary: File for the Markdown.

    Raises:
        InputError: The snapshot is gone or changed, or the schema or the section is wrong.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(folder, data_version)
    schema = parse_schema(schema_text, where="parameter schema")
    limits = plan(schema, validation, snapshot.roles)
    judgement, accounts = judge(folder, snapshot, schema, limits, validation)
    files = _write_evidence(verdict, judgement, accounts)
    write_report(judgement, report, schema_digest=digest_text(schema_text))
    write_summary(judgement, summary)
    judged = {"data": data_version, "schema": digest_text(schema_text)}
    _publish(verdict, judgement, watch, judged, files, parent=folder)
    return Outcome(judgement.decision, judgement.headline, judgement.metrics())


def judge(
    folder: Path, snapshot: Snapshot, schema: Any, limits: tuple[Limit, ...], validation: Validation
) -> tuple[Judgement, dict[str, Any]]:
    """Look at both splits and compare them; return what was found and TFDV's own accounts by name."""
    names = (validation.previous, validation.current)
    present = [name for name in names if snapshot.splits.get(name)]
    types = {column.name: column.type for column in snapshot.columns}
    foreign = foreign_columns(folder, snapshot, present)
    found = [*missing_columns(schema, types), *nested_columns(schema, foreign)]
    found += missing_rows(snapshot.splits, *names)
    numbers = [limit.column for limit in limits if limit.kind == "numbers"]
    profiles = profile_splits(folder, snapshot, present, schema, numbers)
    readable = {name: kind for name, kind in types.items() if name not in foreign}
    label = snapshot.roles.get("label", "")
    accounts = {}
    for name, profile in profiles.items():
        anomalies, accounts[f"schema/{name}"] = check(profile, schema, readable, label)
        found += anomalies
    drift = _compare(profiles, schema, limits, validation, readable)
    if drift.account is not None:
        accounts["drift"] = drift.account
    judgement = Judgement(
        snapshot=snapshot,
        validation=validation,
        limits=limits,
        profiles=profiles,
        anomalies=merged(found),
        comparisons=drift.comparisons,
        not_judged=drift.not_judged,
    )
    return judgement, accounts


def _compare(
    profiles: Mapping[str, Profile],
    schema: Any,
    limits: tuple[Limit, ...],
    validation: Validation,
    readable: Collection[str],
) -> Drift:
    """Compare the splits in their distributions and in their missing values, if both have rows."""
    for name in (validation.previous, validation.current):
        if name not in profiles:
            reason = f"split {name} has no rows, or is not there"
            return Drift((), tuple(NotJudged(name=f"drift/{x.column}", reason=reason) for x in limits), None)
    current, previous = profiles[validation.current], profiles[validation.previous]
    level = validation.false_alarm_rate / max(1, 2 * len(limits))  # two comparisons a column share the rate
    drift = measure(current, previous, schema, limits, level=level)
    columns = [limit.column for limit in limits if limit.column in readable]
    missing = measure_missing(current, previous, columns, threshold=validation.missing_threshold, level=level)
    return replace(drift, comparisons=(*drift.comparisons, *missing))


def _write_evidence(folder: Path, judgement: Judgement, accounts: Mapping[str, Any]) -> dict[str, str]:
    """Write the statistics and TFDV's accounts; return the digests of the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    paths = []
    for name, profile in judgement.profiles.items():
        paths.append(folder / f"statistics-{name}.pb")
        paths[-1].write_bytes(profile.statistics.SerializeToString(deterministic=True))
    paths.append(folder / "anomalies.json")
    content = {
        "found": [asdict(anomaly) for anomaly in judgement.anomalies],
        "tfdv": {name: json_format.MessageToDict(account) for name, account in accounts.items()},
    }
    paths[-1].write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return {path.name: digest_file(path) for path in paths}


def _publish(
    folder: Path,
    judgement: Judgement,
    watch: Stopwatch,
    judged: Mapping[str, str],
    files: Mapping[str, str],
    *,
    parent: Path,
) -> None:
    """Write the verdict and the step's record: last, so that neither ever stands without its evidence."""
    document = Verdict(
        decision=judgement.decision,
        rules=judgement.rules(),
        judged={**judged, **files},
        not_judged=judgement.not_judged,
    )
    document.write(folder)
    watch.record(
        folder,
        "validate",
        judgement.headline,
        decision=judgement.decision,
        config=judgement.validation.model_dump(mode="json"),
        inputs=judged,
        outputs={"verdict": document.digest, **files},
        parents=[parent],
    )
