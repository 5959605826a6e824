"""The gate: a snapshot in; a report and a verdict out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_file
from trainwright.experiment import Validation
from trainwright.tracking import Stopwatch
from trainwright.validate.baseline import Baseline, read_baseline
from trainwright.validate.examination import Examined, Given, Subject, examine
from trainwright.validate.judgement import Judgement
from trainwright.validate.limits import plan
from trainwright.validate.page import write_report
from trainwright.validate.quarantine import take_out
from trainwright.validate.schema import parse_schema
from trainwright.validate.summary import write_summary
from trainwright.validate.tfdv import json_format
from trainwright.verdicts import Verdict

__all__ = ["Given", "Outcome", "Places", "judge_snapshot"]


@dataclass(frozen=True)
class Outcome:
    """What the step tells the run.

    Attributes:
        decision: PASS, HOLD or FAIL.
        quarantine_version: Digest of the snapshot of the rows that were taken out.
        headline: The one fact worth a line.
        metrics: Figures by name.
    """

    decision: str
    quarantine_version: str
    headline: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class Places:
    """Where the step leaves what it makes.

    Attributes:
        verdict: Folder for the verdict, the statistics, the baseline and TFDV's account.
        quarantine: Folder of the snapshot of rows that were taken out.
        report: File for the page.
        summary: File for the Markdown.
    """

    verdict: Path
    quarantine: Path
    report: Path
    summary: Path


def judge_snapshot(
    folder: Path, data_version: str, validation: Validation, given: Given, places: Places
) -> Outcome:
    """Judge a snapshot against its reviewed schema, and against what it was and what the model knows.

    Args:
        folder: The snapshot's folder.
        data_version: Digest that the snapshot must have.
        validation: What to compare, and the limits.
        given: Schema, baseline and times.
        places: Where everything is left.

    Raises:
        InputError: The snapshot or the baseline is gone or changed, or the schema or the section is wrong.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(folder, data_version)
    schema = parse_schema(given.schema, where="parameter schema")
    limits = plan(schema, validation, snapshot.roles)
    baseline = read_baseline(given.baseline, given.baseline_version)
    subject = Subject(folder, snapshot, schema, limits, validation, given, baseline)
    asked = validation.quarantine
    quarantined = take_out(folder, data_version, snapshot, schema, asked, places.quarantine)
    examined = examine(subject, quarantined)
    judgement = examined.judgement
    files = _write_evidence(places.verdict, examined)
    write_report(judgement, places.report)
    write_summary(judgement, places.summary)
    _publish(places.verdict, judgement, watch, files, parent=folder)
    version = quarantined.snapshot.digest
    return Outcome(judgement.decision, version, judgement.headline, judgement.metrics())


def _write_evidence(folder: Path, examined: Examined) -> dict[str, str]:
    """Write statistics, the baseline and TFDV's accounts; return the digests of the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    judgement, files = examined.judgement, {}
    for name, profile in judgement.profiles.items():
        path = folder / f"statistics-{name}.pb"
        path.write_bytes(profile.statistics.SerializeToString(deterministic=True))
        files[path.name] = digest_file(path)
    files |= _write_baseline(folder, examined, files)
    path = folder / "anomalies.json"
    content = {
        "found": [asdict(finding) for finding in judgement.findings],
        "tfdv": {name: json_format.MessageToDict(account) for name, account in examined.accounts.items()},
    }
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return files | {path.name: digest_file(path)}


def _write_baseline(folder: Path, examined: Examined, files: Mapping[str, str]) -> dict[str, str]:
    """Write the baseline that was calculated, if the split that the model learns from has rows."""
    if examined.samples.learned is None:
        (folder / Baseline.FILE).unlink(missing_ok=True)
        return {}
    profile, cuts = examined.samples.learned
    name = f"statistics-{profile.split}.pb"
    baseline = Baseline.of(
        profile,
        cuts,
        data_version=examined.judgement.snapshot.digest,
        schema=examined.judgement.schema_digest,
        statistics=name,
        statistics_sha256=files[name],
    )
    baseline.write(folder)
    return {Baseline.FILE: baseline.digest}


def _publish(
    folder: Path, judgement: Judgement, watch: Stopwatch, files: Mapping[str, str], *, parent: Path
) -> None:
    """Write the verdict and the step's record: last, so that neither ever stands without its evidence."""
    judged = {"data": judgement.snapshot.digest, "schema": judgement.schema_digest}
    if judgement.baseline:
        judged["baseline"] = judgement.baseline.digest
    made: dict[str, Any] = {"quarantine": judgement.quarantined.snapshot.digest}
    document = Verdict(
        decision=judgement.decision,
        rules=judgement.rules(),
        judged={**judged, **files},
        not_judged=judgement.undecided(),
    )
    document.write(folder)
    watch.record(
        folder,
        "validate",
        judgement.headline,
        decision=judgement.decision,
        config=judgement.validation.model_dump(mode="json"),
        inputs=judged,
        outputs={"verdict": document.digest, **made, **files},
        parents=[parent],
    )
