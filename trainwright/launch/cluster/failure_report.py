"""Report a failed job: ``failure.json``, a card for the run's page, log lines, and commands for the rest."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright import redaction
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.launch import logs
from trainwright.launch.cluster.api import JobKind
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.failure import Failure
from trainwright.launch.job import JobReference
from trainwright.launch.job_directory import job_directory_of

_TAIL_LINES = 40
_MAX_COMMANDS = 8


def creation_failure(error: TrainwrightError) -> Failure:
    """Return the failure of a job that could not be created, from the error of the API call."""
    if isinstance(error, TransientError):
        kind = "INFRASTRUCTURE"
    elif isinstance(error, DependencyError) and "quota" in error.what:
        kind = "QUOTA_WAIT"
    else:
        known = isinstance(error, InputError | PermissionRefused | DependencyError)
        kind = "CONFIG" if known else "UNKNOWN"
    return Failure.of(
        kind,
        redaction.redact(error.what),
        reason=type(error).__name__,
        evidence=redaction.bounded_evidence([error.what]),
        advice=error.hint,
        code=error.code,
    )


def write_report(
    failure: Failure,
    observed: ObservedJob,
    reference: JobReference,
    kind: JobKind,
    folder: Path,
    earlier: Sequence[str] = (),
) -> Failure:
    """Write a failure and its card into the attempt's folder and into the job directory.

    Returns:
        The failure with ``earlier``, one line for each attempt before it, in its evidence.
    """
    evidence = redaction.bounded_evidence([*failure.evidence, *earlier])
    full = dataclasses.replace(failure, evidence=evidence)
    # The failing pod first.
    pods = sorted(dict.fromkeys(pod.name for pod in observed.pods), key=lambda name: name != failure.pod)
    space = shlex.quote(reference.namespace)
    one = [f"kubectl logs -n {space} {name} -c {kind.container}" for name in pods[:_MAX_COMMANDS]]
    commands = "\n".join([reference.commands[0], *one, *reference.commands[1:]])
    card = full.card() + f"\nIts pods, as long as they are there:\n\n```\n{commands}\n```\n"
    directory = job_directory_of(folder)
    for place in {folder, *([directory] if directory else [])}:
        try:
            if place.is_dir():
                full.write(place)
                (place / Failure.CARD).write_text(card)
        except OSError as error:  # a full disk must not hide why the job failed
            sys.stderr.write(f"the failure could not be written to {place}: {error}\n")
    return full


def remove_reports(folder: Path) -> None:
    """Remove the report of an earlier launch from the job directory."""
    if directory := job_directory_of(folder):
        for name in (Failure.FILE, Failure.CARD):
            with contextlib.suppress(OSError):
                (directory / name).unlink(missing_ok=True)


def print_log_tail(failure: Failure, observed: ObservedJob) -> None:
    """Print the end of the failing pod's log."""
    pod = next((pod for pod in observed.pods[::-1] if pod.name == failure.pod), None)
    tail = logs.parse_log(observed.log(pod.uid), lines=_TAIL_LINES).tail if pod else ()
    if tail:
        lines = "\n".join(f"  {redaction.redact(line)[:400]}" for line in tail)
        sys.stderr.write(f"The end of the log of pod {failure.pod}:\n{lines}\n")


def job_reference(kind: JobKind, namespace: str, name: str) -> JobReference:
    """Return the reference to a job; its first command shows the logs of all ranks."""
    space = shlex.quote(namespace)
    pods = f"-n {space} -l {kind.pods}={name} -c {kind.container}"
    commands = (
        f"kubectl logs {pods} --prefix --tail=-1 --max-log-requests=64",
        f"kubectl describe -n {space} {kind.plural}.{kind.group} {name}",
    )
    return JobReference(kind=kind.kind, namespace=namespace, name=name, commands=commands)
