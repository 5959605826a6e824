"""Runs a job as a PyTorchJob of the Kubeflow training operator v1."""

import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, InputError, InternalError, PreemptedUnsaved
from trainwright.launch import signals
from trainwright.launch.api import Api, Conflict
from trainwright.launch.diagnosis import (
    Observed,
    Outcome,
    Standing,
    Success,
    Waiting,
    diagnose,
    gave_up,
    left_in,
    standing,
)
from trainwright.launch.job import Completion, Job, Result, completed
from trainwright.launch.manifest import DIGEST, FOLDER, to_manifest
from trainwright.launch.ranks import describe

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class PyTorchJobs:
    """Submits jobs to a cluster, follows them and tells how they ended.

    A job is created once: a launcher that is started again for the same job attaches to the one it finds.

    Args:
        api: Access to the cluster.
        poll_s: Seconds between two looks.
        pending_s: Seconds in which all pods have to be scheduled.
        broken_s: Seconds that a pod with an unusable image or configuration is given: registries hiccup.
        settle_s: Seconds that the marker of a job which succeeded is given to be seen.
    """

    name = "pytorchjob"

    def __init__(
        self,
        api: Api,
        *,
        poll_s: float = 5,
        pending_s: float = 1800,
        broken_s: float = 120,
        settle_s: float = 60,
    ) -> None:
        self._api, self._poll_s, self._settle_s = api, poll_s, settle_s
        self._pending_s, self._broken_s = pending_s, broken_s
        self._said = ""

    @classmethod
    def in_cluster(cls) -> "PyTorchJobs":
        """Use the service account of the pod that this runs in.

        Raises:
            DependencyError: This does not run in a pod.
        """
        try:
            config.load_incluster_config()
            namespace = _NAMESPACE.read_text().strip()
        except (config.ConfigException, OSError) as error:
            raise DependencyError(
                f"no access to a cluster: {error}",
                where="resources.launcher",
                hint="Outside of a cluster use launcher: local, or auto.",
            ) from None
        return cls(Api(k8s.ApiClient(), namespace))

    def run(self, job: Job) -> Result:
        """Run a job to its end, or follow it where it already runs.

        Raises:
            Hang: It did not end within its ``timeout_s``; it was deleted.
            InputError: Its pods cannot start as they are asked for.
            PreemptedUnsaved: This process was told to stop, and the job was deleted first; or a node was
                taken away.
            DependencyError: Its pods could not start, it is gone, or it ended without its marker.
            TrainwrightError: What the first failing process reported.
        """
        manifest = to_manifest(job)
        with signals.raised():
            try:
                folder = self._create_or_attach(job, manifest)
                completion = self._follow(job, folder)
            except signals.Stopped as stopped:
                self._api.delete(job.name)
                raise PreemptedUnsaved(
                    f"stopped by {stopped.name}; PyTorchJob {job.name} was deleted"
                ) from None
        return Result(folder=folder, completion=completion, launcher=self.name)

    def _create_or_attach(self, job: Job, manifest: dict[str, Any]) -> Path:
        """Return the folder of the attempt that now runs. There is one job, whatever replies are lost."""
        while True:
            try:
                self._api.create(manifest)
            except Conflict:
                found = self._api.job(job.name)
            else:
                self._say(f"PyTorchJob {job.name} created")
                return job.folder
            if found is None:
                continue
            self._require_ours(found, job)
            folder = Path(found["metadata"]["annotations"][FOLDER])
            if not self._spent(found, folder):
                self._say(f"PyTorchJob {job.name} found, {_standing(found)}")
                return folder
            self._say(f"PyTorchJob {job.name} of an earlier attempt is replaced")
            self._delete_and_wait(job.name)

    def _require_ours(self, found: dict[str, Any], job: Job) -> None:
        digest = (found["metadata"].get("annotations") or {}).get(DIGEST, "")
        if digest != job.digest:
            raise InputError(
                f"there is a PyTorchJob {job.name} with another specification "
                f"({digest[:12] or 'not ours'}, expected {job.digest[:12]})",
                where=f"namespace {self._api.namespace}",
                hint="Delete it if nobody needs it.",
            )

    def _spent(self, found: dict[str, Any], folder: Path) -> bool:
        """Tell whether a job is of no more use: being deleted, or ended without its marker."""
        ended = _standing(found).phase == "ended"
        useful = not ended or completed(folder, folder.name)
        return bool(found["metadata"].get("deletionTimestamp")) or not useful

    def _delete_and_wait(self, name: str) -> None:
        self._api.delete(name)
        end = time.monotonic() + self._broken_s
        while self._api.job(name) is not None:
            if time.monotonic() > end:
                raise DependencyError(
                    f"PyTorchJob {name} does not go away", where=f"namespace {self._api.namespace}"
                )
            time.sleep(min(self._poll_s, 1))

    def _follow(self, job: Job, folder: Path) -> Completion:
        """Look at the job until it has ended, and return its marker."""
        observed, start = Observed(job.name), time.monotonic()
        broken_since: float | None = None
        while True:
            now = time.monotonic()
            stands = self._look(observed)
            if stands.phase == "ended":
                return self._judge(observed, folder)
            if now - start > job.timeout_s:
                state = describe(folder) or "training had not begun"
                what = (
                    f"PyTorchJob {job.name} did not end within {job.timeout_s:,} s and was deleted: {state}"
                )
                self._end(observed, "DEADLINE", what)
            held = stands.waiting
            broken_since = (broken_since or now) if held and held.broken else None
            late = now - start > self._pending_s or (broken_since and now - broken_since > self._broken_s)
            if held and late:
                what = f"PyTorchJob {job.name} could not start and was deleted: {held}"
                self._end(observed, held.kind, what)
            self._say(self._line(stands, held, folder))
            time.sleep(self._poll_s)

    def _look(self, observed: Observed) -> Standing:
        """See the job and its pods as they are now."""
        found = self._api.job(observed.name)
        if found is None:
            observed.see_gone()
        else:
            observed.see_job(found)
            observed.see_pods(self._api.pods(observed.name))
        return standing(observed)

    def _end(self, observed: Observed, kind: str, what: str) -> NoReturn:
        """Delete a job that has reached a limit of ours, and raise what it failed of."""
        self._api.delete(observed.name)
        raise gave_up(observed, kind, what).to_error()

    def _line(self, stands: Standing, held: Waiting | None, folder: Path) -> str:
        return str(stands) if held else describe(folder) or str(stands)

    def _judge(self, observed: Observed, folder: Path) -> Completion:
        """Return the marker of a job that has ended, or raise why it failed."""
        end = time.monotonic() + self._settle_s
        outcome = self._outcome(observed, folder)
        while not _is_settled(outcome, observed) and time.monotonic() < end:
            # A file that another machine wrote can take a while to be seen on a network file system, and
            # the pods' last words come after the job's.
            time.sleep(min(self._poll_s, 1))
            self._look(observed)
            outcome = self._outcome(observed, folder)
        if isinstance(outcome, Success):
            return outcome.completion
        raise outcome.to_error()

    def _outcome(self, observed: Observed, folder: Path) -> Outcome:
        outcome = diagnose(observed, completed(folder, folder.name), left_in(folder))
        if outcome is None:
            raise InternalError(f"PyTorchJob {observed.name} is judged although it goes on")
        return outcome

    def _say(self, line: str) -> None:
        """Write a line into the step's log if it is news."""
        if line != self._said:
            self._said = line
            sys.stderr.write(f"{line}\n")


def _standing(found: dict[str, Any]) -> Standing:
    """Return where a job stands, from the job alone."""
    observed = Observed(found["metadata"]["name"])
    observed.see_job(found)
    return standing(observed)


def _is_settled(outcome: Outcome, observed: Observed) -> bool:
    """Tell whether nothing better can be expected from looking again."""
    if isinstance(outcome, Success):
        return True
    says_success = observed.job is not None and observed.job.holds("Succeeded")
    return outcome.kind not in {"UNKNOWN", "DELETED"} and not says_success
