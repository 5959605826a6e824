"""Report a failed job: ``failure.json``, a card for the run's page, log lines, and commands for the rest."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.launch import logs, redaction
from trainwright.launch.cluster.api import JobKind
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.status import timeline_of
from trainwright.launch.failure import Failure
from trainwright.launch.job import JobReference
from trainwright.launch.job_directory import job_directory_of

_TAIL_LINES = 40
_MAX_COMMANDS = 8


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """A failure with its card (Markdown for the run's page) and the end of the failing pod's log."""

    failure: Failure
    card: str
    tail: tuple[str, ...]


def build_report(
    failure: Failure, observed: ObservedJob, kind: JobKind, namespace: str, earlier: Sequence[str] = ()
) -> FailureReport:
    """Build the report of a failure.

    Args:
        failure: Why the last attempt failed.
        observed: What was observed of it.
        kind: The kind of the job.
        namespace: Its namespace.
        earlier: One line for each attempt before it.
    """
    full = dataclasses.replace(failure, evidence=redaction.bounded_evidence([*failure.evidence, *earlier]))
    card = full.card(timeline_of(observed).totals) + _commands(full, observed, kind, namespace)
    return FailureReport(failure=full, card=card, tail=_log_tail(full, observed))


def creation_failure(error: TrainwrightError) -> Failure:
    """Return the failure of a job that could not be created, from the error of the API call."""
    quota = "quota" in error.what and isinstance(error, DependencyError)
    kind = "QUOTA_WAIT" if quota else "CONFIG"
    if isinstance(error, TransientError):
        kind = "INFRASTRUCTURE"
    elif not quota and not isinstance(error, InputError | PermissionRefused | DependencyError):
        kind = "UNKNOWN"
    return Failure.of(
        kind,
        redaction.redact(error.what),
        reason=type(error).__name__,
        evidence=redaction.bounded_evidence([error.what]),
        advice=error.hint,
        code=error.code,
    )


def write_report(report: FailureReport, folder: Path) -> None:
    """Write a report into the attempt's folder and into the job directory."""
    directory = job_directory_of(folder)
    for place in {folder, *([directory] if directory else [])}:
        try:
            if place.is_dir():
                report.failure.write(place)
                (place / Failure.CARD).write_text(report.card)
        except OSError as error:  # a full disk must not hide why the job failed
            sys.stderr.write(f"the failure could not be written to {place}: {error}\n")


def remove_reports(folder: Path) -> None:
    """Remove the report of an earlier launch from the job directory."""
    if directory := job_directory_of(folder):
        for name in (Failure.FILE, Failure.CARD):
            with contextlib.suppress(OSError):
                (directory / name).unlink(missing_ok=True)


def print_log_tail(report: FailureReport, *, followed: str) -> None:
    """Print the end of the failing pod's log, unless that pod's log (``followed``) was shown already."""
    if report.tail and report.failure.pod != followed:
        lines = "\n".join(f"  {line}" for line in report.tail)
        sys.stderr.write(f"The end of the log of pod {report.failure.pod}:\n{lines}\n")


def logs_command(kind: JobKind, namespace: str, name: str) -> str:
    """Return the command that shows the logs of all ranks, each line with its pod."""
    which = f"-n {shlex.quote(namespace)} -l {kind.pods}={name} -c {kind.container}"
    return f"kubectl logs {which} --prefix --tail=-1 --max-log-requests=64"


def write_reference(kind: JobKind, namespace: str, name: str, folder: Path) -> None:
    """Write the reference to an attempt's job into its folder; a failure to write must not stop the job."""
    commands = (logs_command(kind, namespace, name), _describe_command(kind, namespace, name))
    reference = JobReference(kind=kind.kind, namespace=namespace, name=name, commands=commands)
    try:
        reference.write(folder)
    except OSError as error:
        sys.stderr.write(f"the reference to the job could not be written to {folder}: {error}\n")


def _describe_command(kind: JobKind, namespace: str, name: str) -> str:
    return f"kubectl describe -n {shlex.quote(namespace)} {kind.full} {name}"


def _log_tail(failure: Failure, observed: ObservedJob) -> tuple[str, ...]:
    pod = next((pod for pod in observed.pods[::-1] if pod.name == failure.pod), None)
    if pod is None:
        return ()
    tail = logs.parse_log(observed.log(pod.uid), lines=_TAIL_LINES).tail
    return tuple(redaction.redact(line)[:400] for line in tail)


def _commands(failure: Failure, observed: ObservedJob, kind: JobKind, namespace: str) -> str:
    """Return the kubectl commands for the job and its pods, the failing pod first."""
    names = sorted(dict.fromkeys(pod.name for pod in observed.pods), key=lambda name: name != failure.pod)
    commands = [logs_command(kind, namespace, observed.name)]
    commands += [
        f"kubectl logs -n {shlex.quote(namespace)} {name} -c {kind.container}"
        for name in names[:_MAX_COMMANDS]
    ]
    commands.append(_describe_command(kind, namespace, observed.name))
    return "\nIts pods, as long as they are there:\n\n```\n" + "\n".join(commands) + "\n```\n"
