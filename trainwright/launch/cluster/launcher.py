"""The launcher for Kubernetes: runs one job to its end, in as many attempts as its budgets allow.

One job exists, whatever replies are lost: a launcher that is started again adopts the job that it finds, and
an attempt that completed meanwhile is read from its folder alone.
"""

import contextlib
import dataclasses
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright import redaction
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    Preempted,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
)
from trainwright.launch import job_directory, logs, manifests
from trainwright.launch.cluster.api import Api, JobKind, Selection
from trainwright.launch.cluster.history import (
    AttemptHistory,
    FailedAttempt,
    exceeded_budget,
    last_checkpoint_s,
    last_failed_attempt,
)
from trainwright.launch.cluster.lease import (
    LeasedJob,
    LeaseLost,
    create_or_adopt,
    holder_of,
    live_pods,
    new_holder,
    poll_until,
    wait_until_gone,
)
from trainwright.launch.cluster.monitor import AttemptOutcome, ClusterSettings, JobMonitor
from trainwright.launch.cluster.responses import ApiConflict
from trainwright.launch.diagnosis.diagnosis import Success
from trainwright.launch.diagnosis.incidents import count_attempt_interruptions
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.failure import Failure
from trainwright.launch.job import Job, JobReference, Result
from trainwright.launch.job_directory import Completion, completed, job_directory_of
from trainwright.launch.launcher import Stopped, raise_on_signal
from trainwright.retries import RetryPolicy

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NEVER_UNCHANGED = frozenset({"HOST_OOM", "CUDA_OOM"})
_STOP_S, _STOP_ANSWER_S = 20.0, 5.0
"""Seconds for deleting the job after a stop signal, in all and for one call."""

_LATE_CREATION_S = 5.0
"""Seconds in which a creation whose reply was not awaited can still take effect."""

_TAIL_LINES = 40
_MAX_COMMANDS = 8


class ClusterLauncher:
    """Submits jobs to a cluster, monitors them and reports how they ended.

    The Argo workflow ``workflow`` owns the job: None for that of this pod; empty: none does, and its lease
    and deadline end it.
    """

    def __init__(
        self, api: Api, *, workflow: str | None = "", settings: ClusterSettings | None = None
    ) -> None:
        self._api, self._workflow, self._settings = api, workflow, settings or ClusterSettings()
        self.name, self._holder = api.kind.name, new_holder()
        self._leased: LeasedJob | None = None
        self._requested = ""

    @classmethod
    def in_cluster(
        cls, kind: JobKind, *, outage_s: float = 900.0, pending_s: float = 1800.0
    ) -> "ClusterLauncher":
        """Use the service account of this pod, and its workflow."""
        settings = k8s.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
            namespace = _NAMESPACE.read_text().strip()
        except (config.ConfigException, OSError) as error:
            raise DependencyError(
                f"no access to a cluster: {error}",
                where="resources.launcher",
                hint="Outside of a cluster use launcher: local, or auto.",
            ) from None
        settings.retries = False
        api = Api(k8s.ApiClient(settings), namespace, kind, RetryPolicy(outage_s=outage_s))
        return cls(api, workflow=None, settings=ClusterSettings(pending_s=pending_s))

    def run(self, job: Job) -> Result:
        """Run a job to its end, or adopt it where it already runs.

        Raises:
            Hang: The job exceeded ``timeout_s`` or made no progress; it was deleted.
            InputError: The job is invalid.
            Preempted: This process received SIGTERM; the job was deleted and has a checkpoint. Or another
                launcher has adopted the job.
            PreemptedUnsaved: The same, without a checkpoint.
            PermissionRefused: This step lacks a right.
            DependencyError: The pods could not start, the job is gone, or it ended without its marker.
            TransientError: The API was unreachable for too long; the job was left alone.
            TrainwrightError: The error of the process that failed first.
        """
        directory = job_directory.job_directory_of(job.folder)
        for folder in reversed(job_directory.attempts(directory) if directory else [job.folder]):
            if completion := completed(folder, folder.name):
                return self._result(folder, completion)
        _reject_unchanged_after_oom(job)
        remove_reports(job.folder)
        with raise_on_signal():
            try:
                return self._run(job)
            except Stopped as stopped:
                self._stop()
                raise _stop_error(stopped.name, job, self._requested) from None
            except LeaseLost as lost:
                raise Preempted(
                    f"launcher {lost} has taken over job {job.name}; this one stops",
                    hint="Nothing is lost: the job continues.",
                ) from None

    def _run(self, job: Job) -> Result:
        """Make attempts until one succeeds or no budget is left."""
        owner = self._owner()
        manifests.make_manifest(job, self.name, owner)  # reject the job before any call
        inputs, current = job_directory.read_inputs(job.folder), job
        while True:
            leased = self._submit(current, owner)
            ended = self._follow(current, leased)
            if isinstance(ended.outcome, Success):
                for doubt in ended.outcome.doubts:
                    sys.stderr.write(f"It succeeded, although: {doubt}\n")
                # A successful job that nobody else removes, or whose pods still run.
                state = ended.observed.job
                if not (self._api.kind.removes_itself and state and state.ended):
                    with contextlib.suppress(TrainwrightError, LeaseLost):
                        leased.delete()
                return self._result(leased.folder, ended.outcome.completion, ended.took_s)
            self._retry_or_raise(current, leased, ended, ended.outcome)
            # An adopted attempt had another folder: the unused one serves the next if it is the newest.
            directory = job_directory.job_directory_of(current.folder)
            newest = job_directory.newest_attempt(directory) if directory else None
            if leased.folder == current.folder or current.folder != newest:
                current = dataclasses.replace(current, folder=job_directory.copy_attempt(job.folder, inputs))

    def _owner(self) -> dict[str, Any] | None:
        name = own_workflow(self._api) if self._workflow is None else self._workflow
        if not name:
            return None
        found = self._api.workflow(name)
        if found is None:
            sys.stderr.write(f"there is no workflow {name}: the job has no owner\n")
            return None
        return manifests.owner_reference(name, found["metadata"]["uid"])

    def _submit(self, job: Job, owner: dict[str, Any] | None) -> LeasedJob:
        """Create or adopt the job."""
        api, self._leased, self._requested = self._api, None, job.name
        reference = job_reference(api.kind, api.namespace, job.name)
        manifest = manifests.make_manifest(job, self.name, owner)
        try:
            leased = create_or_adopt(api, job, manifest, self._holder, self._gone_s(job))
        except TransientError:
            raise
        except TrainwrightError as error:
            failure, nothing = creation_failure(error), ObservedJob(job.name)
            write_report(failure, nothing, reference, api.kind, job.folder)
            raise
        self._leased = leased
        verb = "found" if leased.adopted else "created"
        sys.stderr.write(f"{api.kind.kind} {leased.name} {verb}, attempt {leased.folder.name}\n")
        sys.stderr.write(f"logs of all its pods: {reference.commands[0]}\n")
        try:
            reference.write(leased.folder)
        except OSError as error:  # must not stop the job
            sys.stderr.write(f"the reference to the job could not be written to {leased.folder}: {error}\n")
        return leased

    def _gone_s(self, job: Job) -> float:
        return self._settings.gone_s + job.grace_s

    def _follow(self, job: Job, leased: LeasedJob) -> AttemptOutcome:
        """Monitor the job to its end."""
        try:
            return JobMonitor(job, leased, self._settings).follow()
        except TransientError:
            raise
        except TrainwrightError as error:
            # A retried step would fail the same way: nobody could watch the job.
            sys.stderr.write(f"job {leased.name} is deleted, it cannot be followed: {error.what}\n")
            with contextlib.suppress(TrainwrightError, LeaseLost):
                leased.delete()
            raise

    def _retry_or_raise(self, job: Job, leased: LeasedJob, ended: AttemptOutcome, failure: Failure) -> None:
        """Record a failed attempt, and delete its job if another attempt follows.

        Raises:
            LeaseLost: Another launcher has adopted the job and decides.
            TrainwrightError: The failure of the attempt, which is the last.
        """
        api, folder, state = self._api, leased.folder, ended.observed.job
        leased.require_held()
        past = AttemptHistory.before(folder)
        used_up = state is not None and state.used_up
        entry = FailedAttempt(
            job=job.digest,
            kind=failure.kind,
            what=failure.what,
            counts=count_attempt_interruptions(failure, ended.lost, used_up=used_up),
            took_s=ended.took_s,
            lost_gpu_s=failure.lost_gpu_s,
            final=False,
        )
        history = AttemptHistory((*past.entries, (folder.name, entry)))
        retry = failure.retryable and not exceeded_budget(job.budget, history.spent)
        reference = job_reference(api.kind, api.namespace, leased.name)
        full = write_report(failure, ended.observed, reference, api.kind, folder, past.lines)
        if failure.pod != ended.followed:
            print_log_tail(failure, ended.observed)
        dataclasses.replace(entry, final=not retry).save(folder)
        if not retry:
            self._end_pods(leased, ended, failure)
            raise _final_error(full, history)
        count, limit = history.spent[failure.budget], getattr(job.budget, failure.budget)
        sys.stderr.write(
            f"Restarting ({count} of {limit} for {failure.budget}) after {failure.kind}: {failure.what}; "
            f"{failure.lost_gpu_s:,.0f} GPU seconds lost\n"
        )
        leased.delete()
        wait_until_gone(api, leased.name, leased.uid, self._gone_s(job), leased.attempt)

    def _end_pods(self, leased: LeasedJob, ended: AttemptOutcome, failure: Failure) -> None:
        """Delete a failed job unless its operator ends its pods, since the pods keep their logs."""
        state = ended.observed.job
        if state and state.gone:
            return

        def all_ending() -> bool:
            pods = live_pods(self._api, leased.name, leased.attempt)
            return all(pod["metadata"].get("deletionTimestamp") for pod in pods)

        if not (state and state.ended and poll_until(all_ending, self._settings.cleaned_s)):
            leased.delete()
            sys.stderr.write(f"job {leased.name} was deleted after {failure.kind}\n")

    def _stop(self) -> None:
        """Delete the job after a stop signal, also one whose creation was not confirmed."""
        policy = RetryPolicy(outage_s=_STOP_S)
        api = Api(self._api.client, self._api.namespace, self._api.kind, policy)
        with contextlib.suppress(TrainwrightError, ApiConflict, LeaseLost):
            if self._leased:
                dataclasses.replace(self._leased, api=api).delete(answer_s=_STOP_ANSWER_S)
                return
            end = time.monotonic() + _LATE_CREATION_S
            while self._requested and time.monotonic() < end:
                found = api.job(self._requested)
                if found and holder_of(found) == self._holder:
                    api.delete(self._requested, found["metadata"]["uid"], answer_s=_STOP_ANSWER_S)
                    return
                time.sleep(0.1)

    def _result(self, folder: Path, completion: Completion, took_s: float = 0.0) -> Result:
        past = AttemptHistory.before(folder)
        if past.entries:
            sys.stderr.write(
                f"succeeded at attempt {len(past.entries) + 1}; {past.lost_gpu_s:,.0f} GPU s were lost\n"
            )
        seconds = past.took_s + took_s if took_s else 0.0
        return Result(folder=folder, completion=completion, launcher=self.name, seconds=seconds)


def own_workflow(api: Api) -> str:
    """Return the name of the workflow that this pod belongs to; empty if none, with the reason in the log.

    It is in the owner references of the pod: that needs neither a parameter, which would be part of the cache
    key, nor the right to read workflows. KFP_POD_NAME is the pod's name: a host name is cut at 63 characters.
    """
    name = os.environ.get("KFP_POD_NAME") or socket.gethostname()
    selection = Selection(kind="pods", fields=f"metadata.name={name}")
    try:
        pods, _ = api.retry(lambda: api.select(selection))
    except TrainwrightError as error:
        why = f"pod {name} could not be read: {error.what}"
    else:
        owners = [entry for found in pods for entry in found["metadata"].get("ownerReferences") or []]
        for entry in owners:
            if entry.get("kind") == "Workflow" and entry.get("uid"):
                return str(entry["name"])
        kinds = ", ".join(str(entry.get("kind")) for entry in owners)
        owned = f"its owner is a {kinds}" if kinds else "it has no owner"
        why = f"pod {name} belongs to no workflow: {owned}" if pods else f"there is no pod {name} here"
    sys.stderr.write(f"the job goes with no workflow: {why}\n")
    return ""


def _reject_unchanged_after_oom(job: Job) -> None:
    """Reject an unchanged job whose last attempt ran out of memory."""
    found = last_failed_attempt(job.folder)
    if found and found[1].final and found[1].job == job.digest and found[1].kind in _NEVER_UNCHANGED:
        failure = Failure.read(found[0])
        what = f"{failure.what} (attempt {found[0].name}; it is not run once more unchanged)"
        raise dataclasses.replace(failure, what=what).to_error()


def _final_error(failure: Failure, history: AttemptHistory) -> TrainwrightError:
    """Return the error of the last attempt, with the number of attempts and their cost."""
    if len(history.entries) == 1:
        return failure.to_error()
    more = f" (attempt {len(history.entries)}; {history.lost_gpu_s:,.0f} GPU seconds lost over all)"
    return dataclasses.replace(failure, what=failure.what + more).to_error()


def _stop_error(signal: str, job: Job, requested: str) -> TrainwrightError:
    """Return the error of a stopped step; its code says whether a checkpoint exists."""
    state = job_directory.describe_progress(job.folder)
    what = f"stopped by {signal}; job {requested or job.name} was deleted" + (f"; {state}" if state else "")
    if last_checkpoint_s(job.folder):
        return Preempted(what, hint="Run the step again: it resumes from its last checkpoint.")
    return PreemptedUnsaved(what)


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
