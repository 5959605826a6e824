"""What is there when a launcher begins, and what it leaves when it ends."""

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
from trainwright.launch.cluster import adoption, deletion, failure_report, history
from trainwright.launch.cluster.adoption import LeasedJob
from trainwright.launch.cluster.api import Api, JobKind, Object, Selection
from trainwright.launch.cluster.failure_report import creation_failure
from trainwright.launch.cluster.history import last_checkpoint_s
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

_NEVER_UNCHANGED = frozenset({"HOST_OOM", "CUDA_OOM"})


def completed_attempt(job: Job) -> tuple[Path, Completion] | None:
    """Return an attempt at this very job that has completed, whatever became of the object."""
    home = job_directory.job_directory_of(job.folder)
    for folder in reversed(job_directory.attempts(home) if home else [job.folder]):
        if completion := completed(folder, folder.name):
            return folder, completion
    return None


def reject_unchanged_after_oom(job: Job) -> None:
    """Refuse to run a job once more, unchanged, that ran out of memory.

    Raises:
        TrainwrightError: What its last attempt failed of.
    """
    found = history.last_failed_attempt(job.folder)
    if found and found[1].final and found[1].job == job.digest and found[1].kind in _NEVER_UNCHANGED:
        failure = Failure.read(found[0])
        what = f"{failure.what} (attempt {found[0].name}; it is not run once more unchanged)"
        raise dataclasses.replace(failure, what=what).to_error()


def newest_attempt_of(job: Job) -> Path | None:
    """Return the newest attempt at a job."""
    home = job_directory.job_directory_of(job.folder)
    return job_directory.newest_attempt(home) if home else None


def write_failed_attempt(entry: history.FailedAttempt, folder: Path) -> None:
    """Note what became of an attempt in its folder."""
    try:
        entry.write(folder / entry.FILE)
    except OSError as error:
        sys.stderr.write(f"what became of attempt {folder.name} could not be noted: {error}\n")


def final_error(failure: Failure, past: history.AttemptHistory) -> TrainwrightError:
    """Return the error of the last attempt; says how many there were, and what they cost."""
    if len(past.entries) == 1:
        return failure.to_error()
    more = f" (attempt {len(past.entries)}; {past.lost_gpu_s:,.0f} GPU seconds lost over all)"
    return dataclasses.replace(failure, what=failure.what + more).to_error()


def stop_error(name: str, job: Job, asked: str) -> TrainwrightError:
    """Return what a step ends with that was told to stop: by whether there is a state to go on from."""
    home = job_directory.job_directory_of(job.folder)
    saved = last_checkpoint_s(home) if home else 0.0
    done = progress.read_progress(job.folder)
    state = f"; {progress.progress_line(done)}" if done else ""
    what = f"stopped by {name}; job {asked or job.name} was deleted{state}"
    if saved:
        return Preempted(what, hint="Run the step again: it goes on from its last checkpoint.")
    return PreemptedUnsaved(what)


def own_workflow(api: Api) -> str:
    """Return the name of the workflow that this pod belongs to; empty, with a line that says why, if none."""

    def read(name: str) -> Object | None:
        pods, _ = api.retry(lambda: api.select(Selection(kind="pods", fields=f"metadata.name={name}")))
        return pods[0] if pods else None

    owner, why = find_workflow_owner(read)
    if owner is None:
        sys.stderr.write(f"the job goes with no workflow: {why}\n")
        return ""
    return owner.name


_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_STOP_S, _STOP_ANSWER_S = 20.0, 5.0
"""Seconds that the deletion of a job is tried for once we are told to stop, and that each try is given."""

_CREATED_LATE_S = 5.0
"""Seconds in which a creation whose reply we did not wait for can still come to pass."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """How a launcher behaves.

    Attributes:
        pending_s: Seconds until all pods have to run, waiting in a queue apart.
        broken_s: Seconds that a pod with an unusable image or configuration is given.
        gone_s: Seconds, beyond its grace, in which a job that is deleted has to be gone.
        cleaned_s: Seconds in which the operator has to tell the pods of a job that failed to stop.
        stall_s: Seconds without progress; absent: those of the job.
        pace: How often to look.
    """

    pending_s: float = 1800.0
    broken_s: float = 120.0
    gone_s: float = 180.0
    cleaned_s: float = 10.0
    stall_s: float | None = None
    pace: PollingIntervals = field(default_factory=PollingIntervals)


class ClusterLauncher:
    """Submits jobs to a cluster, follows them, and tells how they ended.

    There is one job, whatever replies are lost: a launcher that is started again for the same job takes over
    the one it finds, and what has ended meanwhile is harvested from its folder alone.

    Args:
        api: Access to the cluster.
        workflow: The Argo workflow that the job is to go with; empty: none.
        settings: How to behave.
    """

    def __init__(self, api: Api, *, workflow: str = "", settings: ClusterSettings | None = None) -> None:
        self._api, self._workflow, self._settings = api, workflow, settings or ClusterSettings()
        self.name = api.kind.name
        self._holder = new_holder()
        self._held: LeasedJob | None = None
        self._follower: JobMonitor | None = None
        self._asked = ""

    @classmethod
    def in_cluster(
        cls, kind: JobKind, *, workflow: str = "", outage_s: float = 900.0, pending_s: float = 1800.0
    ) -> "ClusterLauncher":
        """Use the service account of the pod that this runs in.

        Args:
            kind: The kind of jobs.
            workflow: The Argo workflow that the job is to go with; empty: the one that this pod belongs to.
            outage_s: Longest outage of the API that is sat out.
            pending_s: Seconds until all pods have to run, waiting in a queue apart.

        Raises:
            DependencyError: This does not run in a pod.
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
        """Run a job to its end, or follow it where it already runs.

        Raises:
            Hang: It did not end within its ``timeout_s``, or made no progress; it was deleted.
            InputError: It cannot run as it is asked for.
            Preempted: This process was told to stop, and the job was deleted first; it had saved its state.
                Or another launcher has taken the job over.
            PreemptedUnsaved: The same, and it had saved nothing yet.
            PermissionRefused: This step may not do what it has to.
            DependencyError: Its pods could not start, it is gone, or it ended without its marker.
            TransientError: The API was out of reach for too long; the job was left alone.
            TrainwrightError: What the first failing process reported.
        """
        if found := completed_attempt(job):
            return self._result(*found)
        reject_unchanged_after_oom(job)
        failure_report.remove_reports(job.folder)
        with signals.raise_on_signal():
            try:
                return self._run(job)
            except signals.Stopped as stopped:
                self._stop()
                raise stop_error(stopped.name, job, self._asked) from None
            except LeaseLost as outdone:
                raise Preempted(
                    f"launcher {outdone} has taken over job {job.name}; this one stops",
                    hint="Nothing is lost: the job goes on.",
                ) from None

    def _run(self, job: Job) -> Result:
        """Make attempts until one succeeds, or none is left."""
        owner = self._owner()
        manifests.make_manifest(job, self.name, owner)  # refused before there is any call
        prepared, asked = job_directory.read_inputs(job.folder), job
        while True:
            followed, folder = self._attempt(asked, owner)
            if isinstance(followed.outcome, Success):
                return self._succeeded(followed, folder)
            self._again_or_raise(asked, followed, folder)
            # A folder in which nothing has run yet is good for the next attempt, if it is the newest.
            if folder != asked.folder and asked.folder == newest_attempt_of(asked):
                continue
            asked = dataclasses.replace(asked, folder=job_directory.copy_attempt(job.folder, prepared))

    def _attempt(self, job: Job, owner: Owner | None) -> tuple[AttemptOutcome, Path]:
        """Create the job or attach to it, and follow it to its end."""
        settings = self._settings
        self._held, self._follower, self._asked = None, None, job.name
        manifest = manifests.make_manifest(job, self.name, owner)
        gone_s = settings.gone_s + job.grace_s
        try:
            held = adoption.create_or_adopt(self._api, job, manifest, self._holder, gone_s)
        except TransientError:
            raise
        except TrainwrightError as error:
            observed = ObservedJob(job.name)
            failure = creation_failure(error)
            failure_report.write_report(
                failure_report.build_report(failure, observed, self._api.kind, self._api.namespace),
                job.folder,
            )
            raise
        self._held = held
        kind, name = self._api.kind.kind, held.name
        sys.stderr.write(
            f"{kind} {name} found, attempt {held.folder.name}\n"
            if held.found
            else f"{kind} {name} created, attempt {held.folder.name}\n"
        )
        sys.stderr.write(
            f"logs of all its pods: {failure_report.logs_command(self._api.kind, self._api.namespace, name)}\n"
        )
        failure_report.note_job(self._api.kind, self._api.namespace, name, held.folder)
        past = history.AttemptHistory.before(held.folder)
        limits = JobLimits(
            timeout_s=job.timeout_s,
            earlier_s=past.took_s,
            pending_s=settings.pending_s,
            broken_s=settings.broken_s,
            stall_s=settings.stall_s or job.stall_s,
            grace_s=grace_s(job),
        )
        self._follower = JobMonitor(self._api, held, self._holder, limits, job.budget, past, settings.pace)
        try:
            return self._follower.follow(), held.folder
        except TransientError:
            raise
        except TrainwrightError as error:  # running the step again does not help: nobody would look after it
            sys.stderr.write(f"job {name} is deleted, it cannot be followed: {error.what}\n")
            with contextlib.suppress(TrainwrightError, LeaseLost):
                self._delete(held)
            raise

    def _succeeded(self, followed: AttemptOutcome, folder: Path) -> Result:
        assert isinstance(followed.outcome, Success)  # noqa: S101  # nosec B101
        for doubt in followed.outcome.doubts:
            sys.stderr.write(f"It succeeded, although: {doubt}\n")
        self._tidy(followed)
        return self._result(folder, followed.outcome.completion)

    def _again_or_raise(self, job: Job, followed: AttemptOutcome, folder: Path) -> None:
        """Note a failed attempt and remove its job if another one follows.

        Raises:
            Outdone: Another launcher has taken the job over: how it goes on is for that one to say.
            TrainwrightError: None follows: what the attempt failed of.
        """
        failure, held = followed.outcome, self._held
        assert isinstance(failure, Failure)  # noqa: S101  # nosec B101
        assert held  # noqa: S101  # nosec B101
        require_held(self._api, held.name, held.uid, self._holder)
        past, seen = history.AttemptHistory.before(folder), followed.observed.job
        entry = history.FailedAttempt(
            job=job.digest,
            kind=failure.kind,
            what=failure.what,
            counts=count_attempt_interruptions(
                failure, followed.lost, used_up=seen is not None and seen.used_up
            ),
            took_s=followed.took_s,
            lost_gpu_s=failure.lost_gpu_s,
            final=False,
        )
        now = history.AttemptHistory((*past.entries, (folder.name, entry)))
        again = job_directory.job_directory_of(folder) is not None and should_retry(
            failure, job.budget, now.spent
        )
        api = self._api
        told = failure_report.build_report(failure, followed.observed, api.kind, api.namespace, past.told)
        failure_report.write_report(told, folder)
        failure_report.print_log_tail(told, followed=followed.logged)
        write_failed_attempt(dataclasses.replace(entry, final=not again), folder)
        if not again:
            self._leave_nothing_running(followed, failure)
            raise final_error(told.failure, now)
        count, limit = now.spent[failure.budget], getattr(job.budget, failure.budget)
        sys.stderr.write(
            f"Restarting ({count} of {limit} for {failure.budget}) after {failure.kind}: {failure.what}; "
            f"{failure.lost_gpu_s:,.0f} GPU seconds lost\n"
        )
        self._delete(held)
        gone_s = self._settings.gone_s + job.grace_s
        deletion.wait_until_gone(api, held.name, held.uid, gone_s, held.attempt)

    def _leave_nothing_running(self, followed: AttemptOutcome, failure: Failure) -> None:
        """Delete a job that failed, unless its operator ends its pods: then the logs of the others stay."""
        held, seen = self._held, followed.observed.job
        if held is None or (seen and seen.gone):
            return
        cleaned_s = self._settings.cleaned_s
        if (
            seen
            and seen.ended
            and deletion.poll_until(
                lambda: deletion.all_pods_ending(self._api, held.name, held.attempt), cleaned_s
            )
        ):
            return
        self._delete(held)
        sys.stderr.write(f"job {held.name} was deleted after {failure.kind}\n")

    def _tidy(self, followed: AttemptOutcome) -> None:
        """Delete a job that has succeeded, where nobody else does, or where its pods still run."""
        seen = followed.observed.job
        if self._held and not (self._api.kind.removes_itself and seen and seen.ended):
            with contextlib.suppress(TrainwrightError, LeaseLost):
                self._delete(self._held)

    def _delete(self, held: LeasedJob) -> None:
        """Delete the job, as it was last seen.

        Raises:
            Outdone: Another launcher has taken it over.
        """
        version = self._follower.version if self._follower else held.version
        delete_if_held(self._api, held.name, held.uid, self._holder, version)

    def _stop(self) -> None:
        """Delete the job, before anything else; see that none is left whose creation was not confirmed."""
        patient = Api(self._api.client, self._api.namespace, self._api.kind, RetryPolicy(outage_s=_STOP_S))
        held, follower = self._held, self._follower
        with contextlib.suppress(TrainwrightError, ApiConflict, LeaseLost):
            if held:
                version = follower.version if follower else held.version
                delete_if_held(patient, held.name, held.uid, self._holder, version, answer_s=_STOP_ANSWER_S)
                return
            end = time.monotonic() + _CREATED_LATE_S
            while self._asked and time.monotonic() < end:
                found = patient.job(self._asked)
                if found and holder_of(found) == self._holder:
                    patient.delete(self._asked, found["metadata"]["uid"], answer_s=_STOP_ANSWER_S)
                    return
                time.sleep(0.1)

    def _owner(self) -> Owner | None:
        """Find the workflow that the job is to go with; without it, lease and deadline have to do."""
        if not self._workflow:
            return None
        owner = self._api.workflow(self._workflow)
        if owner is None:
            sys.stderr.write(f"there is no workflow {self._workflow}: the job belongs to nobody\n")
        return owner

    def _result(self, folder: Path, completion: Completion) -> Result:
        past = history.AttemptHistory.before(folder)
        if past.entries:
            sys.stderr.write(
                f"succeeded at attempt {len(past.entries) + 1}; {past.lost_gpu_s:,.0f} GPU s were lost\n"
            )
        return Result(folder=folder, completion=completion, launcher=self.name)
