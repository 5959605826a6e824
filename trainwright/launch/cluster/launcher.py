"""Runs a job on a cluster: once, to its true end, as often as its budgets allow, and leaves nothing."""

import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, Preempted, TrainwrightError, TransientError
from trainwright.launch import attempt, manifests, signals
from trainwright.launch.cluster import ends, joining, leaving, ledger, telling
from trainwright.launch.cluster.answers import Conflict
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.following import Followed, Follower, Pace, tries_again
from trainwright.launch.cluster.joining import Held
from trainwright.launch.cluster.kind import Kind
from trainwright.launch.cluster.lease import Outdone, delete_mine, holder_of, new_holder, require_mine
from trainwright.launch.cluster.limits import Limits
from trainwright.launch.diagnosis import Observed, Success, refused, spent_by_attempt
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion, Job, Result
from trainwright.launch.manifests.pods import grace_s
from trainwright.launch.owner import Owner
from trainwright.retries import RetryPolicy

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_STOP_S, _STOP_ANSWER_S = 20.0, 5.0
"""Seconds that the deletion of a job is tried for once we are told to stop, and that each try is given."""

_CREATED_LATE_S = 5.0
"""Seconds in which a creation whose reply we did not wait for can still come to pass."""


@dataclass(frozen=True, kw_only=True)
class Settings:
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
    pace: Pace = field(default_factory=Pace)


class ClusterLauncher:
    """Submits jobs to a cluster, follows them, and tells how they ended.

    There is one job, whatever replies are lost: a launcher that is started again for the same job takes over
    the one it finds, and what has ended meanwhile is harvested from its folder alone.

    Args:
        api: Access to the cluster.
        workflow: The Argo workflow that the job is to go with; empty: none.
        settings: How to behave.
    """

    def __init__(self, api: Api, *, workflow: str = "", settings: Settings | None = None) -> None:
        self._api, self._workflow, self._settings = api, workflow, settings or Settings()
        self.name = api.kind.name
        self._holder = new_holder()
        self._held: Held | None = None
        self._follower: Follower | None = None
        self._asked = ""

    @classmethod
    def in_cluster(
        cls, kind: Kind, *, workflow: str = "", outage_s: float = 900.0, pending_s: float = 1800.0
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
        return cls(api, workflow=workflow or ends.own_workflow(api), settings=Settings(pending_s=pending_s))

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
        if found := ends.finished(job):
            return self._result(*found)
        ends.require_changed(job)
        telling.forget(job.folder)
        with signals.raised():
            try:
                return self._run(job)
            except signals.Stopped as stopped:
                self._stop()
                raise ends.stopped(stopped.name, job, self._asked) from None
            except Outdone as outdone:
                raise Preempted(
                    f"launcher {outdone} has taken over job {job.name}; this one stops",
                    hint="Nothing is lost: the job goes on.",
                ) from None

    def _run(self, job: Job) -> Result:
        """Make attempts until one succeeds, or none is left."""
        owner = self._owner()
        manifests.make(job, self.name, owner)  # refused before there is any call
        prepared, asked = attempt.documents(job.folder), job
        while True:
            followed, folder = self._attempt(asked, owner)
            if isinstance(followed.outcome, Success):
                return self._succeeded(followed, folder)
            self._again_or_raise(asked, followed, folder)
            # A folder in which nothing has run yet is good for the next attempt, if it is the newest.
            if folder != asked.folder and asked.folder == ends.newest(asked):
                continue
            asked = dataclasses.replace(asked, folder=attempt.again(job.folder, prepared))

    def _attempt(self, job: Job, owner: Owner | None) -> tuple[Followed, Path]:
        """Create the job or attach to it, and follow it to its end."""
        settings = self._settings
        self._held, self._follower, self._asked = None, None, job.name
        manifest = manifests.make(job, self.name, owner)
        gone_s = settings.gone_s + job.grace_s
        try:
            held = joining.create_or_attach(self._api, job, manifest, self._holder, gone_s)
        except TransientError:
            raise
        except TrainwrightError as error:
            observed = Observed(job.name)
            failure = refused(error)
            telling.leave(telling.told(failure, observed, self._api.kind, self._api.namespace), job.folder)
            raise
        self._held = held
        kind, name = self._api.kind.kind, held.name
        sys.stderr.write(
            f"{kind} {name} found, attempt {held.folder.name}\n"
            if held.found
            else f"{kind} {name} created, attempt {held.folder.name}\n"
        )
        sys.stderr.write(
            f"logs of all its pods: {telling.logs_of_all(self._api.kind, self._api.namespace, name)}\n"
        )
        telling.note_job(self._api.kind, self._api.namespace, name, held.folder)
        past = ledger.Ledger.before(held.folder)
        limits = Limits(
            timeout_s=job.timeout_s,
            earlier_s=past.took_s,
            pending_s=settings.pending_s,
            broken_s=settings.broken_s,
            stall_s=settings.stall_s or job.stall_s,
            grace_s=grace_s(job),
        )
        self._follower = Follower(self._api, held, self._holder, limits, job.budget, past, settings.pace)
        try:
            return self._follower.follow(), held.folder
        except TransientError:
            raise
        except TrainwrightError as error:  # running the step again does not help: nobody would look after it
            sys.stderr.write(f"job {name} is deleted, it cannot be followed: {error.what}\n")
            with contextlib.suppress(TrainwrightError, Outdone):
                self._delete(held)
            raise

    def _succeeded(self, followed: Followed, folder: Path) -> Result:
        assert isinstance(followed.outcome, Success)  # noqa: S101  # nosec B101
        for doubt in followed.outcome.doubts:
            sys.stderr.write(f"It succeeded, although: {doubt}\n")
        self._tidy(followed)
        return self._result(folder, followed.outcome.completion)

    def _again_or_raise(self, job: Job, followed: Followed, folder: Path) -> None:
        """Note a failed attempt and remove its job if another one follows.

        Raises:
            Outdone: Another launcher has taken the job over: how it goes on is for that one to say.
            TrainwrightError: None follows: what the attempt failed of.
        """
        failure, held = followed.outcome, self._held
        assert isinstance(failure, Failure)  # noqa: S101  # nosec B101
        assert held  # noqa: S101  # nosec B101
        require_mine(self._api, held.name, held.uid, self._holder)
        past, seen = ledger.Ledger.before(folder), followed.observed.job
        entry = ledger.Ended(
            job=job.digest,
            kind=failure.kind,
            what=failure.what,
            counts=spent_by_attempt(failure, followed.lost, used_up=seen is not None and seen.used_up),
            took_s=followed.took_s,
            lost_gpu_s=failure.lost_gpu_s,
            final=False,
        )
        now = ledger.Ledger((*past.entries, (folder.name, entry)))
        again = attempt.home_of(folder) is not None and tries_again(failure, job.budget, now.spent)
        api = self._api
        told = telling.told(failure, followed.observed, api.kind, api.namespace, past.told)
        telling.leave(told, folder)
        telling.show(told, followed=followed.logged)
        ends.note(dataclasses.replace(entry, final=not again), folder)
        if not again:
            self._leave_nothing_running(followed, failure)
            raise ends.final(told.failure, now)
        count, limit = now.spent[failure.budget], getattr(job.budget, failure.budget)
        sys.stderr.write(
            f"Restarting ({count} of {limit} for {failure.budget}) after {failure.kind}: {failure.what}; "
            f"{failure.lost_gpu_s:,.0f} GPU seconds lost\n"
        )
        self._delete(held)
        gone_s = self._settings.gone_s + job.grace_s
        leaving.wait_until_gone(api, held.name, held.uid, gone_s, held.attempt)

    def _leave_nothing_running(self, followed: Followed, failure: Failure) -> None:
        """Delete a job that failed, unless its operator ends its pods: then the logs of the others stay."""
        held, seen = self._held, followed.observed.job
        if held is None or (seen and seen.gone):
            return
        cleaned_s = self._settings.cleaned_s
        if (
            seen
            and seen.ended
            and leaving.wait_for(lambda: leaving.idle(self._api, held.name, held.attempt), cleaned_s)
        ):
            return
        self._delete(held)
        sys.stderr.write(f"job {held.name} was deleted after {failure.kind}\n")

    def _tidy(self, followed: Followed) -> None:
        """Delete a job that has succeeded, where nobody else does, or where its pods still run."""
        seen = followed.observed.job
        if self._held and not (self._api.kind.removes_itself and seen and seen.ended):
            with contextlib.suppress(TrainwrightError, Outdone):
                self._delete(self._held)

    def _delete(self, held: Held) -> None:
        """Delete the job, as it was last seen.

        Raises:
            Outdone: Another launcher has taken it over.
        """
        version = self._follower.version if self._follower else held.version
        delete_mine(self._api, held.name, held.uid, self._holder, version)

    def _stop(self) -> None:
        """Delete the job, before anything else; see that none is left whose creation was not confirmed."""
        patient = Api(self._api.client, self._api.namespace, self._api.kind, RetryPolicy(outage_s=_STOP_S))
        held, follower = self._held, self._follower
        with contextlib.suppress(TrainwrightError, Conflict, Outdone):
            if held:
                version = follower.version if follower else held.version
                delete_mine(patient, held.name, held.uid, self._holder, version, answer_s=_STOP_ANSWER_S)
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
        past = ledger.Ledger.before(folder)
        if past.entries:
            sys.stderr.write(
                f"succeeded at attempt {len(past.entries) + 1}; {past.lost_gpu_s:,.0f} GPU s were lost\n"
            )
        return Result(folder=folder, completion=completion, launcher=self.name)
