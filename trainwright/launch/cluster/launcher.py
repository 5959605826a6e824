"""The launcher for Kubernetes: runs one job to its end, in as many attempts as its budgets allow.

One job exists, whatever replies are lost: a launcher that is started again adopts the job that it finds, and
an attempt that completed meanwhile is read from its folder alone.
"""

import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, Preempted, PreemptedUnsaved, TrainwrightError, TransientError
from trainwright.launch import job_directory, manifests, progress, signals
from trainwright.launch.cluster import adoption, deletion, failure_report
from trainwright.launch.cluster.adoption import LeasedJob
from trainwright.launch.cluster.api import Api, JobKind, Object, Selection
from trainwright.launch.cluster.history import (
    AttemptHistory,
    FailedAttempt,
    last_checkpoint_s,
    last_failed_attempt,
)
from trainwright.launch.cluster.lease import LeaseLost, delete_if_held, holder_of, new_holder, require_held
from trainwright.launch.cluster.monitor import (
    AttemptOutcome,
    JobLimits,
    JobMonitor,
    PollingIntervals,
    should_retry,
)
from trainwright.launch.cluster.responses import ApiConflict
from trainwright.launch.diagnosis.diagnosis import Success
from trainwright.launch.diagnosis.incidents import count_attempt_interruptions
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion, Job, Result, completed
from trainwright.launch.manifests.pods import Owner, find_workflow_owner, grace_s
from trainwright.retries import RetryPolicy

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NEVER_UNCHANGED = frozenset({"HOST_OOM", "CUDA_OOM"})
_STOP_S, _STOP_ANSWER_S = 20.0, 5.0
"""Seconds for deleting the job after a stop signal, in all and for one call."""

_LATE_CREATION_S = 5.0
"""Seconds in which a creation whose reply was not awaited can still take effect."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Timeouts of a launcher, in seconds.

    Attributes:
        pending_s: Until all pods run, time in a queue excluded.
        broken_s: For a pod with an unusable image or configuration, since registries hiccup.
        gone_s: For a deleted job to disappear, beyond its grace period.
        cleaned_s: For the operator to end the pods of a failed job.
        stall_s: Without progress; None: the job's own.
        pace: Polling intervals.
    """

    pending_s: float = 1800.0
    broken_s: float = 120.0
    gone_s: float = 180.0
    cleaned_s: float = 10.0
    stall_s: float | None = None
    pace: PollingIntervals = field(default_factory=PollingIntervals)


class ClusterLauncher:
    """Submits jobs to a cluster, monitors them and reports how they ended.

    Args:
        api: Access to the cluster.
        workflow: The Argo workflow that owns the job; empty: none.
        settings: Timeouts.
    """

    def __init__(self, api: Api, *, workflow: str = "", settings: ClusterSettings | None = None) -> None:
        self._api, self._workflow, self._settings = api, workflow, settings or ClusterSettings()
        self.name = api.kind.name
        self._holder = new_holder()
        self._leased: LeasedJob | None = None
        self._monitor: JobMonitor | None = None
        self._requested = ""

    @classmethod
    def in_cluster(
        cls, kind: JobKind, *, workflow: str = "", outage_s: float = 900.0, pending_s: float = 1800.0
    ) -> "ClusterLauncher":
        """Use the service account of this pod.

        Args:
            kind: The kind of jobs.
            workflow: The Argo workflow that owns the job; empty: the one that this pod belongs to.
            outage_s: Longest outage of the API that is retried.
            pending_s: Seconds until all pods have to run, time in a queue excluded.

        Raises:
            DependencyError: This process does not run in a pod.
        """
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
        return cls(api, workflow=workflow or own_workflow(api), settings=ClusterSettings(pending_s=pending_s))

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
        if found := _completed_attempt(job):
            return self._result(*found)
        _reject_unchanged_after_oom(job)
        failure_report.remove_reports(job.folder)
        with signals.raise_on_signal():
            try:
                return self._run(job)
            except signals.Stopped as stopped:
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
            ended, folder = self._attempt(current, owner)
            if isinstance(ended.outcome, Success):
                for doubt in ended.outcome.doubts:
                    sys.stderr.write(f"It succeeded, although: {doubt}\n")
                self._clean_up(ended)
                return self._result(folder, ended.outcome.completion)
            self._retry_or_raise(current, ended, ended.outcome, folder)
            # An adopted attempt had another folder: the unused one serves the next if it is the newest.
            if folder != current.folder and current.folder == _newest_attempt(current):
                continue
            current = dataclasses.replace(current, folder=job_directory.copy_attempt(job.folder, inputs))

    def _attempt(self, job: Job, owner: Owner | None) -> tuple[AttemptOutcome, Path]:
        """Create or adopt the job, and monitor it to its end."""
        self._leased, self._monitor, self._requested = None, None, job.name
        manifest = manifests.make_manifest(job, self.name, owner)
        gone_s = self._settings.gone_s + job.grace_s
        try:
            leased = adoption.create_or_adopt(self._api, job, manifest, self._holder, gone_s)
        except TransientError:
            raise
        except TrainwrightError as error:
            failure = failure_report.creation_failure(error)
            report = failure_report.build_report(
                failure, ObservedJob(job.name), self._api.kind, self._api.namespace
            )
            failure_report.write_report(report, job.folder)
            raise
        self._leased = leased
        verb = "found" if leased.found else "created"
        command = failure_report.logs_command(self._api.kind, self._api.namespace, leased.name)
        sys.stderr.write(f"{self._api.kind.kind} {leased.name} {verb}, attempt {leased.folder.name}\n")
        sys.stderr.write(f"logs of all its pods: {command}\n")
        failure_report.write_reference(self._api.kind, self._api.namespace, leased.name, leased.folder)
        self._monitor = self._new_monitor(job, leased)
        try:
            return self._monitor.follow(), leased.folder
        except TransientError:
            raise
        except (
            TrainwrightError
        ) as error:  # a retried step would fail the same way: nobody could watch the job
            sys.stderr.write(f"job {leased.name} is deleted, it cannot be followed: {error.what}\n")
            with contextlib.suppress(TrainwrightError, LeaseLost):
                self._delete(leased)
            raise

    def _new_monitor(self, job: Job, leased: LeasedJob) -> JobMonitor:
        settings, past = self._settings, AttemptHistory.before(leased.folder)
        limits = JobLimits(
            timeout_s=job.timeout_s,
            earlier_s=past.took_s,
            pending_s=settings.pending_s,
            broken_s=settings.broken_s,
            stall_s=settings.stall_s or job.stall_s,
            grace_s=grace_s(job),
        )
        return JobMonitor(self._api, leased, self._holder, limits, job.budget, past, settings.pace)

    def _retry_or_raise(self, job: Job, ended: AttemptOutcome, failure: Failure, folder: Path) -> None:
        """Record a failed attempt, and delete its job if another attempt follows.

        Raises:
            LeaseLost: Another launcher has adopted the job and decides.
            TrainwrightError: The failure of the attempt, which is the last.
        """
        api, leased = self._api, self._leased
        assert leased  # noqa: S101  # nosec B101
        require_held(api, leased.name, leased.uid, self._holder)
        past, state = AttemptHistory.before(folder), ended.observed.job
        entry = FailedAttempt(
            job=job.digest,
            kind=failure.kind,
            what=failure.what,
            counts=count_attempt_interruptions(
                failure, ended.lost, used_up=state is not None and state.used_up
            ),
            took_s=ended.took_s,
            lost_gpu_s=failure.lost_gpu_s,
            final=False,
        )
        history = AttemptHistory((*past.entries, (folder.name, entry)))
        retry = job_directory.job_directory_of(folder) is not None and should_retry(
            failure, job.budget, history.spent
        )
        report = failure_report.build_report(failure, ended.observed, api.kind, api.namespace, past.lines)
        failure_report.write_report(report, folder)
        failure_report.print_log_tail(report, followed=ended.logged)
        _write_failed_attempt(dataclasses.replace(entry, final=not retry), folder)
        if not retry:
            self._end_pods(ended, failure)
            raise _final_error(report.failure, history)
        count, limit = history.spent[failure.budget], getattr(job.budget, failure.budget)
        sys.stderr.write(
            f"Restarting ({count} of {limit} for {failure.budget}) after {failure.kind}: {failure.what}; "
            f"{failure.lost_gpu_s:,.0f} GPU seconds lost\n"
        )
        self._delete(leased)
        gone_s = self._settings.gone_s + job.grace_s
        deletion.wait_until_gone(api, leased.name, leased.uid, gone_s, leased.attempt)

    def _end_pods(self, ended: AttemptOutcome, failure: Failure) -> None:
        """Delete a failed job unless its operator ends its pods, since the pods keep their logs."""
        leased, state = self._leased, ended.observed.job
        if leased is None or (state and state.gone):
            return
        if (
            state
            and state.ended
            and deletion.poll_until(
                lambda: deletion.all_pods_ending(self._api, leased.name, leased.attempt),
                self._settings.cleaned_s,
            )
        ):
            return
        self._delete(leased)
        sys.stderr.write(f"job {leased.name} was deleted after {failure.kind}\n")

    def _clean_up(self, ended: AttemptOutcome) -> None:
        """Delete a successful job that nobody else removes, or whose pods still run."""
        state = ended.observed.job
        if self._leased and not (self._api.kind.removes_itself and state and state.ended):
            with contextlib.suppress(TrainwrightError, LeaseLost):
                self._delete(self._leased)

    def _delete(self, leased: LeasedJob) -> None:
        """Delete the job in its last observed version.

        Raises:
            LeaseLost: Another launcher has adopted it.
        """
        version = self._monitor.version if self._monitor else leased.version
        delete_if_held(self._api, leased.name, leased.uid, self._holder, version)

    def _stop(self) -> None:
        """Delete the job after a stop signal, also one whose creation was not confirmed."""
        policy = RetryPolicy(outage_s=_STOP_S)
        api, leased = Api(self._api.client, self._api.namespace, self._api.kind, policy), self._leased
        with contextlib.suppress(TrainwrightError, ApiConflict, LeaseLost):
            if leased:
                version = self._monitor.version if self._monitor else leased.version
                delete_if_held(api, leased.name, leased.uid, self._holder, version, answer_s=_STOP_ANSWER_S)
                return
            end = time.monotonic() + _LATE_CREATION_S
            while self._requested and time.monotonic() < end:
                found = api.job(self._requested)
                if found and holder_of(found) == self._holder:
                    api.delete(self._requested, found["metadata"]["uid"], answer_s=_STOP_ANSWER_S)
                    return
                time.sleep(0.1)

    def _owner(self) -> Owner | None:
        """Return the workflow that owns the job; without one, its lease and its deadline end it."""
        if not self._workflow:
            return None
        owner = self._api.workflow(self._workflow)
        if owner is None:
            sys.stderr.write(f"there is no workflow {self._workflow}: the job has no owner\n")
        return owner

    def _result(self, folder: Path, completion: Completion) -> Result:
        past = AttemptHistory.before(folder)
        if past.entries:
            sys.stderr.write(
                f"succeeded at attempt {len(past.entries) + 1}; {past.lost_gpu_s:,.0f} GPU s were lost\n"
            )
        return Result(folder=folder, completion=completion, launcher=self.name)


def own_workflow(api: Api) -> str:
    """Return the name of the workflow that this pod belongs to; empty if none, with the reason in the log."""

    def read(name: str) -> Object | None:
        pods, _ = api.retry(lambda: api.select(Selection(kind="pods", fields=f"metadata.name={name}")))
        return pods[0] if pods else None

    owner, why = find_workflow_owner(read)
    if owner is None:
        sys.stderr.write(f"the job goes with no workflow: {why}\n")
        return ""
    return owner.name


def _completed_attempt(job: Job) -> tuple[Path, Completion] | None:
    """Return a completed attempt at this job, whether or not its object still exists."""
    directory = job_directory.job_directory_of(job.folder)
    for folder in reversed(job_directory.attempts(directory) if directory else [job.folder]):
        if completion := completed(folder, folder.name):
            return folder, completion
    return None


def _reject_unchanged_after_oom(job: Job) -> None:
    """Reject an unchanged job whose last attempt ran out of memory.

    Raises:
        TrainwrightError: The failure of that attempt.
    """
    found = last_failed_attempt(job.folder)
    if found and found[1].final and found[1].job == job.digest and found[1].kind in _NEVER_UNCHANGED:
        failure = Failure.read(found[0])
        what = f"{failure.what} (attempt {found[0].name}; it is not run once more unchanged)"
        raise dataclasses.replace(failure, what=what).to_error()


def _newest_attempt(job: Job) -> Path | None:
    directory = job_directory.job_directory_of(job.folder)
    return job_directory.newest_attempt(directory) if directory else None


def _write_failed_attempt(entry: FailedAttempt, folder: Path) -> None:
    try:
        entry.write(folder / entry.FILE)
    except OSError as error:
        sys.stderr.write(f"the failure of attempt {folder.name} could not be recorded: {error}\n")


def _final_error(failure: Failure, history: AttemptHistory) -> TrainwrightError:
    """Return the error of the last attempt, with the number of attempts and their cost."""
    if len(history.entries) == 1:
        return failure.to_error()
    more = f" (attempt {len(history.entries)}; {history.lost_gpu_s:,.0f} GPU seconds lost over all)"
    return dataclasses.replace(failure, what=failure.what + more).to_error()


def _stop_error(signal: str, job: Job, requested: str) -> TrainwrightError:
    """Return the error of a stopped step; its code says whether a checkpoint exists."""
    directory = job_directory.job_directory_of(job.folder)
    done = progress.read_progress(job.folder)
    state = f"; {progress.progress_line(done)}" if done else ""
    what = f"stopped by {signal}; job {requested or job.name} was deleted{state}"
    if directory and last_checkpoint_s(directory):
        return Preempted(what, hint="Run the step again: it resumes from its last checkpoint.")
    return PreemptedUnsaved(what)
