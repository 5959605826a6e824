"""OpenLineage events of a run: a job for the pipeline, and one for each of its steps that ran.

Names follow https://openlineage.io/docs/spec/naming. A source is named by its URI; what a step makes has the
name of the step and the output, and its digest as the version, so that a lineage tool shows one dataset with
many versions. The ids of runs follow from start times and names: sending an end again changes nothing.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    ownership_job,
    parent_run,
    schema_dataset,
    source_code_location_job,
)
from openlineage.client.serde import Serde
from openlineage.client.uuid import generate_static_uuid

import trainwright
from trainwright.artifacts import Record, Snapshot
from trainwright.credentials import read_secret
from trainwright.documents import canonical
from trainwright.errors import DependencyError, TrainwrightError
from trainwright.experiment import RunSettings
from trainwright.lineage import ancestors
from trainwright.redaction import redacted
from trainwright.storage import Access, open_file
from trainwright.summarize import run as runs
from trainwright.summarize.delivery import TIMEOUT_S, one_line, post_json
from trainwright.summarize.run import RunStep, state_of

_MADE = ("source", "features", "data", "training_set", "predictions", "model", "registration")
"""Outputs of steps that are datasets; others, such as verdicts, are evidence about them."""

_ENDS = {
    "done": RunState.COMPLETE,
    "cached": RunState.COMPLETE,
    "held": RunState.COMPLETE,
    "failed": RunState.FAIL,
}
"""Type of the last event by the state of a step or a run; ABORT for others, which were stopped."""

_SCHEMES = {"minio": "s3", "postgresql": "postgres"}
"""Schemes of namespaces that differ from those of our URIs."""

_MAX_MANIFEST = 16 << 20
"""Bytes of a manifest that is read for its columns."""


@dataclass(frozen=True)
class _Dataset:
    """A version of a dataset, with its manifest where that was read."""

    namespace: str
    name: str
    version: str
    manifest: Snapshot | None = None

    def facets(self) -> dict[str, Any]:
        """Return its version and its columns."""
        found: dict[str, Any] = {"version": dataset_version_dataset.DatasetVersionDatasetFacet(self.version)}
        if self.manifest:
            fields = [
                schema_dataset.SchemaDatasetFacetFields(column.name, column.type, ordinal_position=place)
                for place, column in enumerate(self.manifest.columns, 1)
            ]
            found["schema"] = schema_dataset.SchemaDatasetFacet(fields)
        return found


def events_of(run: runs.Run, namespace: str, owner: str = "", scheduled: str = "") -> Iterator[RunEvent]:
    """Yield the events of a run: the pipeline's first one, those of its steps, the pipeline's last one.

    Steps that the cache served are left out: the run that executed them has their events.

    Args:
        run: The run.
        namespace: Namespace of the jobs.
        owner: Owner of the jobs.
        scheduled: Time for which the run was scheduled, ISO 8601.
    """
    set_producer(f"urn:trainwright:{trainwright.__version__}")
    steps = [(step, *times) for step in run.executed if (times := _times(step))]
    if not steps:
        return
    first, last = min(start for _, start, _ in steps), max(end for *_, end in steps)
    model = run.arguments.get("model_name") or run.arguments.get("registry", {}).get("model") or ""
    job = Job(namespace, f"{run.pipeline}.{model}".rstrip("."), _job_facets(run, owner))
    root = str(generate_static_uuid(first, f"{run.root}\0{run.name}".encode()))
    facets: dict[str, Any] = (
        {"nominalTime": nominal_time_run.NominalTimeRunFacet(scheduled)} if scheduled else {}
    )
    yield _event(RunState.START, first, run=Run(root, facets), job=job)
    parent = parent_run.ParentRunFacet(parent_run.Run(root), parent_run.Job(job.namespace, job.name))
    datasets = _datasets(run, job)
    for step, start, end in steps:
        run_id = str(generate_static_uuid(start, f"{root}\0{step.name}".encode()))
        yield from _step_events(step, Run(run_id, {"parent": parent}), job, (start, end), datasets)
    state, failed = state_of(run), next((step.error for step, *_ in steps if step.state == "failed"), None)
    error = _error(failed or {"what": run.ending.error}) if state == "failed" else {}
    ended = Run(root, {**facets, **error})
    yield _event(_ENDS.get(state, RunState.ABORT), last, run=ended, job=job)


def _event(kind: RunState, time: datetime, **parts: Any) -> RunEvent:
    return RunEvent(eventType=kind, eventTime=time.isoformat(timespec="milliseconds"), **parts)


def _step_events(
    step: RunStep, run: Run, parent: Job, times: tuple[datetime, datetime], known: Mapping[str, _Dataset]
) -> Iterator[RunEvent]:
    kind = job_type_job.JobTypeJobFacet("BATCH", "TRAINWRIGHT", "TASK")
    job = Job(parent.namespace, f"{parent.name}.{step.name}", {**(parent.facets or {}), "jobType": kind})
    read, wrote = (step.record.inputs, step.record.outputs) if step.record else ({}, {})
    sources = [known[digest] for digest in dict.fromkeys(read.values()) if digest in known]
    results = [known[digest] for name, digest in wrote.items() if name in _MADE]
    inputs = [InputDataset(one.namespace, one.name, facets=one.facets()) for one in sources]
    outputs = [OutputDataset(one.namespace, one.name, facets=one.facets()) for one in results]
    yield _event(RunState.START, times[0], run=run, job=job, inputs=inputs)
    if step.state == "failed":
        run = Run(run.runId, {**(run.facets or {}), **_error(step.error)})
    end = _ENDS.get(step.state, RunState.ABORT)
    yield _event(end, times[1], run=run, job=job, inputs=inputs, outputs=outputs)


def _job_facets(run: runs.Run, owner: str) -> dict[str, Any]:
    found: dict[str, Any] = {"jobType": job_type_job.JobTypeJobFacet("BATCH", "TRAINWRIGHT", "PIPELINE")}
    if owner:
        found["ownership"] = ownership_job.OwnershipJobFacet([ownership_job.Owner(one_line(owner))])
    if (commit := str(run.arguments.get("commit") or "none")) != "none":
        found["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
            "git", f"git:{commit}", version=commit
        )
    return found


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    texts = [str(error.get(name) or "") for name in ("what", "where", "hint")]
    message = one_line(". ".join(text for text in texts if text)) or "no reason was found"
    return {"errorMessage": error_message_run.ErrorMessageRunFacet(message, "PYTHON")}


def _times(step: RunStep) -> tuple[datetime, datetime] | None:
    """Return the start and the end of a step; None if neither its record nor the run's list has them."""
    with suppress(ValueError, TrainwrightError):
        if step.record:
            return runs.span(step.record)
        start = datetime.fromisoformat(step.started)
        if step.ended:
            return start, datetime.fromisoformat(step.ended)
        return start, start + timedelta(seconds=step.seconds or 0.0)
    return None


def _datasets(run: runs.Run, job: Job) -> dict[str, _Dataset]:
    """Return the datasets that steps of this run, or what they depend on, made, by digest."""
    found: dict[str, _Dataset] = {}
    for record in ancestors(run.records):
        for name in _MADE:
            if digest := record.outputs.get(name):
                found.setdefault(digest, _named(record, name, digest, job))
    for step in run.steps:
        outputs = step.record.outputs if step.record else {}
        if digest := outputs.get("data") or outputs.get("training_set"):
            found[digest] = replace(found[digest], manifest=_manifest(step, digest))
    return found


def _named(record: Record, name: str, digest: str, job: Job) -> _Dataset:
    """Name a dataset: a source by its URI, others by step and output."""
    source = redacted(str(record.config.get("source") or "")) if name == "source" else ""
    scheme, remote, path = source.partition("://")
    if source and not remote:
        return _Dataset("file", source, digest)
    if source:
        authority, _, name = path.partition("/")
        host = authority.rpartition("@")[2]
        return _Dataset(f"{_SCHEMES.get(scheme, scheme)}://{host}", name, digest)
    return _Dataset(job.namespace, f"{job.name}.{record.step}.{name}", digest)


def _manifest(step: RunStep, digest: str) -> Snapshot | None:
    """Read the manifest of a snapshot that a step made; None if it is not found, or larger than is read."""
    for output in ("snapshot", "training_set"):
        place = f"{step.folder}/{output}/{Snapshot.FILE}"
        with suppress(TrainwrightError), open_file(place, access=Access(retry_s=TIMEOUT_S)) as stream:
            content = stream.read(_MAX_MANIFEST + 1)
            if len(content) <= _MAX_MANIFEST and (found := Snapshot.parse(content, place)).digest == digest:
                return found
    return None


def send_events(run: runs.Run, settings: RunSettings, namespace: str, scheduled: str) -> None:
    """Append the events of a run to a file, one JSON object a line, or post each to a URL.

    Raises:
        DependencyError: The server did not take all of them.
        TrainwrightError: The token cannot be read.
        OSError: The file cannot be written.
    """
    target, events = settings.openlineage or "", events_of(run, namespace, settings.owner, scheduled)
    documents = [Serde.to_dict(event) for event in events]
    if "://" not in target:
        lines = "".join(canonical(document) + "\n" for document in documents).encode()
        file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with os.fdopen(file, "wb", buffering=0) as stream:  # one write: lines of other runs stay whole
            stream.write(lines)
        return
    secret = settings.openlineage_token_file
    token = read_secret(secret, "run.openlineage_token_file").strip() if secret else ""
    for count, document in enumerate(documents):
        try:
            post_json(target, document, "run.openlineage", token)
        except Exception as error:
            sent = f"{count} of {len(documents)} events were sent"
            raise DependencyError(f"{sent}: {one_line(str(error))}") from error
