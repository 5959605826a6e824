"""An installation as a person uses it: through the command line, and by deleting a pod now and then."""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config
from kubernetes.config.config_exception import ConfigException  # type: ignore[import-untyped]

from tests.kubeflow import pipeline
from trainwright.authoring.schedules.reconciling import existing
from trainwright.authoring.submission import connection
from trainwright.authoring.submission.connection import Connection, Endpoint

ROOT = Path(__file__).resolve().parents[2]
START = "from trainwright.cli.app import main; main()"
POLL_S = 2.0
LABEL = "acceptance"
"""Label of the training jobs of this suite."""

JOBS = {"pytorchjob": ("kubeflow.org", "v1"), "trainjob": ("trainer.kubeflow.org", "v1alpha1")}
"""API group and version of each kind of job."""


@dataclass(frozen=True)
class Outcome:
    """What a command ended with: its code, its JSON lines, and what it wrote for people."""

    code: int
    events: list[dict[str, Any]]
    errors: str

    def last(self, event: str) -> dict[str, Any]:
        """Return the last event of a kind; empty if there is none."""
        return next((one for one in reversed(self.events) if one.get("event") == event), {})


def check(what: str, expected: object, seen: object) -> None:
    """Print what was expected of a check and what was seen, and fail where they differ."""
    print(f"\n  {what}\n    expected  {expected}\n    seen      {seen}")  # noqa: T201
    assert seen == expected, f"{what}: expected {expected}, saw {seen}"


@dataclass
class Installation:
    """A Kubeflow, and what this session made there.

    Attributes:
        host: Address of the API.
        registry: HOST/TEAM of the images.
        namespace: Of the profile; empty without profiles.
        token_file: File of the token; empty for none.
        wait_s: Longest time to wait for a run.
        folder: For files of this session.
        name: Of the pipeline, the experiment and the registered model: nobody else's.
        mlflow: Address of the MLflow where a model was registered; empty if none was.
    """

    host: str
    registry: str
    namespace: str
    token_file: str
    wait_s: int
    folder: Path
    name: str = field(default_factory=lambda: f"trainwright-acceptance-{uuid.uuid4().hex[:8]}")
    mlflow: str = ""
    _package: Path | None = None

    @property
    def package(self) -> Path:
        """The compiled small pipeline."""
        self._package = self._package or pipeline.write(self.folder, self.name, self.registry)
        return self._package

    @property
    def reach(self) -> list[str]:
        """The options that reach the API."""
        told = {"--host": self.host, "--namespace": self.namespace, "--token-file": self.token_file}
        return [word for name, value in told.items() if value for word in (name, value)]

    @property
    def api(self) -> Connection:
        """The API itself."""
        token = Path(self.token_file) if self.token_file else None
        return connection.connect(Endpoint(host=self.host, namespace=self.namespace, token_file=token))

    def run(self, *words: str, wait_s: int | None = None) -> Outcome:
        """Call the command line, with ``--json``, and wait for its end."""
        done = subprocess.run(
            [sys.executable, "-c", START, *words, *self.reach, "--json"],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=wait_s or self.wait_s,
            check=False,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Outcome(done.returncode, events, done.stderr)

    def submit(self, key: str, *words: str, wait: bool = True, package: str = "") -> Outcome:
        """Submit the small pipeline, or another one, in our experiment."""
        given = [package or str(self.package), "--key", f"{self.name}-{key}", "--experiment", self.name]
        given += ["--beside", *(["--wait", "--timeout", str(self.wait_s - 60)] if wait else [])]
        given += ["--registry", self.registry] if package and self.registry else []
        return self.run("submit", *given, *words)

    def tasks(self, run_id: str) -> list[tuple[str, str]]:
        """Return name and state of everything that the API lists of a run."""
        run = self.api.read("reading the run", self.api.runs.run_service_get_run, run_id)
        details = (run.run_details.task_details if run.run_details else None) or []
        return [(str(one.display_name), str(one.state)) for one in details]

    def workflow_status(self, run_id: str) -> dict[str, Any]:
        """Return the status of a run's workflow: the older version of KFP's API has it.

        Its nodes are compressed if the workflow is above 1 MiB; KFP 2.17 then lists old states of the tasks.
        """
        read = self.api.client.call_api
        options = {"auth_settings": ["Bearer"], "_preload_content": False, "_return_http_data_only": True}
        answer = self.api.read("reading the workflow", read, f"/apis/v1beta1/runs/{run_id}", "GET", **options)
        return dict(json.loads(json.loads(answer.data)["pipeline_runtime"]["workflow_manifest"])["status"])

    def drivers(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the inputs of each task of a run, as its driver read them from the metadata store.

        KFP 2.17 lists neither parameters nor artifacts of a task; they are in the workflow.
        """
        status = self.workflow_status(run_id)
        packed = status.get("compressedNodes")
        nodes = json.loads(gzip.decompress(base64.b64decode(packed))) if packed else status["nodes"]
        found = {}
        for node in nodes.values():
            given = {
                one["name"]: one.get("value") for one in (node.get("outputs") or {}).get("parameters", [])
            }
            if (task := re.fullmatch(r".*\.(.+)-driver", node["name"])) and given.get("pod-spec-patch"):
                command = json.loads(given["pod-spec-patch"])["containers"][0]["command"]
                found[task[1]] = json.loads(command[command.index("--executor_input") + 1])["inputs"]
        return found

    def metadata(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the metadata that Kubeflow has of each artifact that a task of a run read, by TASK.INPUT."""
        return {
            f"{task}.{name}": entry["artifacts"][0].get("metadata") or {}
            for task, inputs in self.drivers(run_id).items()
            for name, entry in (inputs.get("artifacts") or {}).items()
        }

    def fired(self) -> Any:
        """Return the newest run that a schedule of this session started; None if there is none."""
        api = self.api
        ours = {schedule.id for schedule in existing(api, self.name)}
        space = {"namespace": self.namespace} if self.namespace else {}
        newest = {"sort_by": "created_at desc", "page_size": 100, **space}
        listed = api.read("listing runs", api.runs.run_service_list_runs, **newest)
        return next((run for run in listed.runs or [] if run.recurring_run_id in ours), None)

    def until(self, what: str, look: Callable[[], Any], within_s: float) -> Any:
        """Wait until a look finds something, and return it.

        Raises:
            AssertionError: It found nothing in time.
        """
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(POLL_S)
        raise AssertionError(f"{what}: not within {within_s:.0f} s")

    def pods(self) -> k8s.CoreV1Api | None:
        """Return the pods' API of the kubeconfig's cluster; None without a kubeconfig."""
        try:
            config.load_kube_config(config_file=os.environ.get("KUBECONFIG"))
        except (ConfigException, OSError):
            return None
        return k8s.CoreV1Api()

    def job(self, kind: str, label: str) -> dict[str, Any] | None:
        """Return the training job with a label; None if there is none.

        Args:
            kind: ``pytorchjob`` or ``trainjob``.
            label: Value of its label ``acceptance``.
        """
        group, version = JOBS[kind]
        space, chosen = self.namespace or "kubeflow", f"{LABEL}={label}"
        found = k8s.CustomObjectsApi().list_namespaced_custom_object(
            group, version, space, f"{kind}s", label_selector=chosen
        )
        return next(iter(found["items"]), None)

    def admitted(self, uid: str) -> bool:
        """Say whether Kueue has admitted the workload of a job."""
        found = k8s.CustomObjectsApi().list_namespaced_custom_object(
            "kueue.x-k8s.io", "v1beta2", self.namespace or "kubeflow", "workloads"
        )
        return any(
            condition["type"] == "Admitted" and condition["status"] == "True"
            for one in found["items"]
            if uid in {owner["uid"] for owner in one["metadata"].get("ownerReferences") or []}
            for condition in (one.get("status") or {}).get("conditions") or []
        )

    def executors(self, pods: k8s.CoreV1Api, run_id: str) -> list[Any]:
        """Return the pods of a run that run steps: drivers have another template."""
        found = pods.list_namespaced_pod(
            self.namespace or "kubeflow", label_selector=f"pipeline/runid={run_id}"
        )
        return [pod for pod in found.items if "system-container-impl" in pod.metadata.name]

    def clear(self) -> None:
        """Delete the registered model, runs, recurring runs, pipelines and the experiment of this session."""
        api = self.api
        if self.mlflow:
            self._forget_model()
        named = json.dumps({"predicates": [
            {"operation": "EQUALS", "key": "display_name", "string_value": self.name}]})  # fmt: skip
        space = {"namespace": self.namespace} if self.namespace else {}
        listed = api.experiments.experiment_service_list_experiments
        for found in api.pages("listing experiments", listed, "experiments", filter=named, **space):
            self._clear_experiment(api, found.experiment_id)
        look = api.pipelines.pipeline_service_get_pipeline_by_name
        for name in (self.name, f"{self.name}-cleanup"):
            there = api.read_if_there("looking for the pipeline", look, name, **space)
            if there is None:
                continue
            versions = api.pipelines.pipeline_service_list_pipeline_versions
            kept = {"pipeline_id": there.pipeline_id}
            for one in api.pages("listing versions", versions, "pipeline_versions", **kept):
                drop = api.pipelines.pipeline_service_delete_pipeline_version
                api.once(drop, there.pipeline_id, one.pipeline_version_id)
            api.once(api.pipelines.pipeline_service_delete_pipeline, there.pipeline_id)

    def _forget_model(self) -> None:
        package = pipeline.write_cleanup(self.folder, f"{self.name}-cleanup", self.registry)
        named = ("--param", f"tracking_uri={self.mlflow}", "--param", f"model={self.name}")
        done = self.submit("cleanup", *named, package=str(package))
        check(f"exit code of deleting the registered model {done.errors}", 0, done.code)

    def _clear_experiment(self, api: Connection, experiment_id: str) -> None:
        # Deleting a schedule deletes the workflows of its runs, and KFP answers 500 when a run without one is
        # terminated. So schedules are disabled first and deleted last.
        inside = {"experiment_id": experiment_id}
        listed = api.recurring.recurring_run_service_list_recurring_runs
        schedules = [
            one.recurring_run_id for one in api.pages("listing schedules", listed, "recurring_runs", **inside)
        ]
        for schedule in schedules:
            api.once(api.recurring.recurring_run_service_disable_recurring_run, schedule)
        for one in api.pages("listing runs", api.runs.run_service_list_runs, "runs", **inside):
            if one.state in {"PENDING", "RUNNING"}:
                api.once(api.runs.run_service_terminate_run, one.run_id)
            api.once(api.runs.run_service_delete_run, one.run_id)
        for schedule in schedules:
            api.once(api.recurring.recurring_run_service_delete_recurring_run, schedule)
        api.once(api.experiments.experiment_service_delete_experiment, experiment_id)
