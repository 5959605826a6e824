"""How a failed job is told: ``failure.json``, a card for the run's page, log lines, commands for the rest."""

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
from trainwright.launch import job_directory, logs, redaction
from trainwright.launch.cluster.api import JobKind
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.status import timeline_of
from trainwright.launch.failure import Failure
from trainwright.launch.job import JobReference

_TAIL = 40
_MAX_COMMANDS = 8


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """A failure with all that goes onto its card.

    Attributes:
        failure: The failure.
        card: Markdown for the run's page.
        tail: The end of the log of the pod that failed first.
    """

    failure: Failure
    card: str
    tail: tuple[str, ...]


def build_report(
    failure: Failure, observed: ObservedJob, kind: JobKind, namespace: str, earlier: Sequence[str] = ()
) -> FailureReport:
    """Put together what is told of a failure.

    Args:
        failure: Why the last attempt failed.
        observed: What was seen of it.
        kind: The kind of the job.
        namespace: Where it ran.
        earlier: What became of the attempts before it.
    """
    full = dataclasses.replace(failure, evidence=redaction.bounded_evidence([*failure.evidence, *earlier]))
    card = full.card(timeline_of(observed).totals) + _commands(full, observed, kind, namespace)
    return FailureReport(failure=full, card=card, tail=_log_tail(full, observed))


def write_report(what: FailureReport, folder: Path) -> None:
    """Write a failure into the attempt's folder, and into the home of all attempts, where it is found."""
    home = job_directory.job_directory_of(folder)
    for place in {folder, *([home] if home else [])}:
        try:
            if place.is_dir():
                what.failure.write(place)
                (place / Failure.CARD).write_text(what.card)
        except OSError as error:  # a full disk must not hide why the job failed
            sys.stderr.write(f"the failure could not be noted in {place}: {error}\n")


def remove_reports(folder: Path) -> None:
    """Remove what an earlier launch left in the home of all attempts."""
    if home := job_directory.job_directory_of(folder):
        for name in (Failure.FILE, Failure.CARD):
            with contextlib.suppress(OSError):
                (home / name).unlink(missing_ok=True)


def print_log_tail(what: FailureReport, *, followed: str) -> None:
    """Write the end of the log of the pod that failed first, unless it was shown as it came.

    Args:
        what: What is told.
        followed: The pod whose log was shown.
    """
    if what.tail and what.failure.pod != followed:
        lines = "\n".join(f"  {line}" for line in what.tail)
        sys.stderr.write(f"The end of the log of pod {what.failure.pod}:\n{lines}\n")


def _log_tail(failure: Failure, observed: ObservedJob) -> tuple[str, ...]:
    pod = next((pod for pod in observed.pods[::-1] if pod.name == failure.pod), None)
    if pod is None:
        return ()
    tail = logs.parse_log(observed.log(pod.uid), lines=_TAIL).tail
    return tuple(redaction.redact(line)[:400] for line in tail)


def logs_command(kind: JobKind, namespace: str, name: str) -> str:
    """Write the command that shows the logs of all ranks, each line with its pod."""
    which = f"-n {shlex.quote(namespace)} -l {kind.pods}={name} -c {kind.container}"
    return f"kubectl logs {which} --prefix --tail=-1 --max-log-requests=64"


def note_job(kind: JobKind, namespace: str, name: str, folder: Path) -> None:
    """Note the job of an attempt in its folder; that it cannot be noted must not stop the job."""
    described = f"kubectl describe -n {shlex.quote(namespace)} {kind.full} {name}"
    commands = (logs_command(kind, namespace, name), described)
    reference = JobReference(kind=kind.kind, namespace=namespace, name=name, commands=commands)
    try:
        reference.write(folder)
    except OSError as error:
        sys.stderr.write(f"the job could not be noted in {folder}: {error}\n")


def _commands(failure: Failure, observed: ObservedJob, kind: JobKind, namespace: str) -> str:
    """Write the commands that show what the job and its other pods wrote."""
    names = [pod.name for pod in observed.pods]
    first = [name for name in names if name == failure.pod]
    others = [name for name in dict.fromkeys(names) if name != failure.pod]
    shown = [logs_command(kind, namespace, observed.name)]
    shown += [
        f"kubectl logs -n {shlex.quote(namespace)} {name} -c {kind.container}"
        for name in [*first, *others][:_MAX_COMMANDS]
    ]
    shown += [f"kubectl describe -n {shlex.quote(namespace)} {kind.full} {observed.name}"]
    return "\nIts pods, as long as they are there:\n\n```\n" + "\n".join(shown) + "\n```\n"


def creation_failure(error: TrainwrightError) -> Failure:
    """Return the failure of a job that could not be created, from the error that the API's answer became."""
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
