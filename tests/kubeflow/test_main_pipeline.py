"""``train_and_register`` on a Kubeflow: with what the small pipeline has written, in seconds of training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kubeflow import experiment
from tests.kubeflow.installation import LABEL, Installation, Outcome, check
from tests.kubeflow.pipeline import ROWS

Findings = dict[str, dict[str, Any]]

JOBS = ("pytorchjob", "trainjob", "pytorchjob in a queue", "trainjob in a queue")
CACHED = {"ingest", "validate", "join", "train", "score", "evaluate", "smoke-test"}
DONE = CACHED | {"configure", "resolve", "get-production-model", "register", "summarize"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one check of each experiment file that is named, and one that says that none is."""
    if "given" in metafunc.fixturenames:
        named = metafunc.config.getoption("--kubeflow-config", default=[])
        metafunc.parametrize("given", named or [""], ids=str)


@dataclass
class Trainings:
    """Submits ``train_and_register`` with a small training, once for each kind of job.

    Attributes:
        kubeflow: Where.
        findings: What ``doctor`` says of it.
        source: Where the small pipeline has put rows and features.
        mlflow: Address of MLflow as the pods reach it.
        done: How each kind of job has ended.
    """

    kubeflow: Installation
    findings: Findings
    source: str
    mlflow: str
    done: dict[str, Outcome] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        """Return those of :data:`JOBS` that the installation can run."""
        return [job for job in JOBS if not self.missing(job)]

    def missing(self, job: str) -> str:
        """Return what the installation lacks for a kind of job; empty if nothing."""
        kind, _, queue = job.partition(" ")
        needed = [kind, "claim", *(["runtime"] if kind == "trainjob" else []), *(["queue"] if queue else [])]
        lacking = [name for name in needed if self.findings.get(name, {}).get("state") != "ok"]
        return f"doctor does not say ok to: {', '.join(lacking)}" if lacking else ""

    def submit(self, key: str, job: str = "", *, wait: bool = True, **changes: dict[str, Any]) -> Outcome:
        """Submit an experiment; ``changes`` are keys of its sections. The same job is the same training."""
        job = job or self.kinds()[0]
        kind, _, queue = job.partition(" ")
        placement: dict[str, Any] = {"labels": {LABEL: self.label(job)}}
        if queue:
            placement["queue"] = self.findings["queue"]["text"].split(" ")[0]
            placement["labels"] |= {"owner": "trainwright-tests", "cost-centre": "none"}
        resources = {"launcher": kind, "nodes": 2, "processes": 1, "cpu": 0.2, "memory_gib": 1.5}
        resources |= {"grace_s": 10, "placement": placement}
        sections = {
            "resources": resources,
            "training": {"seed": JOBS.index(job)},
            "registry": {"model": self.kubeflow.name},
        }
        for section, keys in changes.items():
            sections[section] = sections.get(section, {}) | keys
        path = experiment.write(self.kubeflow.folder, key, self.source, self.mlflow, **sections)
        return self.kubeflow.submit(
            f"train-{key}", "--config", str(path), wait=wait, package="train_and_register"
        )

    def label(self, job: str) -> str:
        """Return the label of the training jobs of a kind: nobody else's."""
        return f"{self.kubeflow.name}-{job.replace(' ', '-')}"

    def run(self, job: str) -> Outcome:
        """Return how the run with a kind of job ended, after a look at the job; it is submitted once."""
        if job in self.done:
            return self.done[job]
        key = job.replace(" ", "-")
        begun = self.submit(key, job, wait=False)
        check(f"exit code of submit {begun.errors}", 0, begun.code)
        if self.kubeflow.pods() is not None:
            kind, _, queue = job.partition(" ")
            found = self.kubeflow.until(
                f"there is a {kind}", lambda: self.kubeflow.job(kind, self.label(job)), self.kubeflow.wait_s
            )
            if queue:
                expected = self.findings["queue"]["text"].split(" ")[0]
                named = found["metadata"]["labels"].get("kueue.x-k8s.io/queue-name")
                check("queue of the job", expected, named)
                uid = found["metadata"]["uid"]
                self.kubeflow.until("Kueue admits it", lambda: self.kubeflow.admitted(uid), 600)
        run_id = begun.last("run_submitted")["run_id"]
        self.done[job] = self.kubeflow.run("status", run_id, "--wait")
        return self.done[job]


@pytest.fixture(scope="session")
def trainings(
    kubeflow: Installation, findings: Findings, first: Outcome, pytestconfig: pytest.Config
) -> Trainings:
    assert first.code == 0
    found = findings.get("mlflow", {})
    mlflow = pytestconfig.getoption("--kubeflow-mlflow") or (
        found["text"].split(" ")[0].rstrip(":,") if found.get("state") == "ok" else ""
    )
    if not mlflow:
        pytest.skip("doctor finds no MLflow: --kubeflow-mlflow ADDRESS")
    run_id = first.last("run_submitted")["run_id"]
    rows = kubeflow.drivers(run_id)["ingest"]["parameterValues"]["source"]
    kubeflow.mlflow = mlflow
    made = Trainings(kubeflow, findings, rows.removesuffix("/rows.csv"), mlflow)
    if not made.kinds():
        pytest.skip(made.missing(JOBS[0]))
    return made


@pytest.fixture(scope="session")
def trained(trainings: Trainings) -> Outcome:
    """The main pipeline with the first kind of job that there is."""
    return trainings.run(trainings.kinds()[0])


def test_the_workflow_of_a_whole_run_stays_below_the_limit_of_argo(
    trained: Outcome, kubeflow: Installation
) -> None:
    run_id = trained.last("run_finished")["run_id"]
    status = kubeflow.workflow_status(run_id)
    check("nodes are compressed", False, "compressedNodes" in status)
    states = {state for name, state in kubeflow.tasks(run_id) if name.removesuffix("-driver") == "register"}
    check("states of register", {"SUCCEEDED"}, states)


def test_the_main_pipeline_trains_and_registers(trained: Outcome) -> None:
    check(f"exit code {trained.errors}", 0, trained.code)
    steps = trained.last("run_finished")["steps"]
    check("state of each step", dict.fromkeys(sorted(DONE), "SUCCEEDED"), done(steps))


def done(steps: dict[str, str]) -> dict[str, str]:
    return {name: steps.get(name, "none") for name in sorted(DONE)}


def test_the_metadata_of_each_artifact_says_what_it_is_and_what_it_comes_from(
    trainings: Trainings, trained: Outcome
) -> None:
    run_id = trained.last("run_finished")["run_id"]
    seen = trainings.kubeflow.metadata(run_id)
    versions = trainings.kubeflow.drivers(run_id)
    data = versions["validate"]["parameterValues"]["data_version"]
    joined = versions["train"]["parameterValues"]["data_version"]
    model = versions["register"]["parameterValues"]["model_version"]
    facts = {
        "join.entities": {"version": data, "rows": ROWS, "columns": 5},
        "train.training_set": {"version": joined, "rows": ROWS},
        "register.model": {"version": model, "kind": "mlp", "label": "late", "training_data": joined},
        "register.data_verdict": {"step": "join", "decision": "PASS"},
        "register.model_verdict": {"step": "evaluate", "decision": "PASS"},
    }
    for name, expected in facts.items():
        found = {key: seen.get(name, {}).get(key) for key in expected}
        check(f"metadata of {name}", expected, found)
    check("the data from which the training set was joined", data, parent(seen["train.training_set"]))


def parent(facts: dict[str, Any]) -> str:
    return next((value for name, value in sorted(facts.items()) if name.startswith("from_")), "")


def test_the_same_experiment_again_is_taken_from_the_cache(trainings: Trainings, trained: Outcome) -> None:
    assert trained.code == 0
    again = trainings.submit("again")
    check("exit code", 0, again.code)
    seen = {one["name"] for one in again.events if one.get("event") == "step_changed" and one["cached"]}
    check("steps from the cache", CACHED, seen)


def test_a_model_that_misses_its_limit_is_held_with_12(trainings: Trainings, trained: Outcome) -> None:
    assert trained.code == 0
    held = trainings.submit("model-held", evaluation={"min_auc": 0.999})
    check("exit code", 12, held.code)
    steps = held.last("run_finished")["steps"]
    seen = [steps.get(name) for name in ("evaluate", "held-by-evaluate", "summarize")]
    check("evaluate, held-by-evaluate, summarize", ["SUCCEEDED"] * 3, seen)
    check("register", False, steps.get("register") == "SUCCEEDED")


def test_data_that_drifted_beyond_a_blocking_limit_is_refused_with_11(trainings: Trainings) -> None:
    blocking = {"severity": [{"kind": "*", "column": "queue", "severity": "BLOCK"}]}
    refused = trainings.submit("data-refused", data=experiment.DRIFTED, validation=blocking)
    check("exit code", 11, refused.code)
    steps = refused.last("run_finished")["steps"]
    seen = [steps.get(name) for name in ("validate", "held-by-validate", "summarize")]
    check("validate, held-by-validate, summarize", ["SUCCEEDED"] * 3, seen)
    check("train", False, steps.get("train") == "SUCCEEDED")


def test_data_that_drifted_is_trained_on_and_the_registered_version_says_hold(trainings: Trainings) -> None:
    drifted = trainings.submit("data-held", data=experiment.DRIFTED)
    check("exit code", 0, drifted.code)
    seen = trainings.kubeflow.metadata(drifted.last("run_finished")["run_id"])
    check("decision about the data", "HOLD", seen["register.data_verdict"].get("decision"))


@pytest.mark.parametrize("job", JOBS)
def test_a_training_runs_as(job: str, trainings: Trainings) -> None:
    if lacking := trainings.missing(job):
        pytest.skip(lacking)
    outcome = trainings.run(job)
    check(f"exit code {outcome.errors}", 0, outcome.code)
    steps = outcome.last("run_finished")["steps"]
    check("train and register", ["SUCCEEDED"] * 2, [steps.get("train"), steps.get("register")])


def test_an_experiment_of_yours_ends_as_it_is_said_to(kubeflow: Installation, given: str) -> None:
    if not given:
        pytest.skip("no --kubeflow-config FILE[=CODE]")
    path, _, code = given.partition("=")
    config = ("--config", str(Path(path).resolve()))
    done = kubeflow.submit(given, *config, package="train_and_register")
    check(f"exit code of {path} {done.errors}", int(code or 0), done.code)
