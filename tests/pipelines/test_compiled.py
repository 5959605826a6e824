"""What Kubeflow gets: every task pinned, bounded, retried and cached as decided; checked in the YAML."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import components, dsl

from tests.pipelines import workflow_size
from trainwright.authoring import arguments
from trainwright.authoring.tasks import KFP_STORE, MLFLOW_KEYS, STORE
from trainwright.configure.configuration import SECTIONS, Configuration
from trainwright.experiment import Resources, Steps
from trainwright.train.submit.task_config import apply_task_config

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "compiled" / "pipelines" / "train_and_register.yaml"
COMPONENTS = sorted((ROOT / "compiled" / "components").glob("*.yaml"))
WORKFLOW_BYTES = 970_000
"""Argo's limit is 1,048,576; the rest is for longer names, addresses and sections."""

ALWAYS_LOOKS = {"configure", "resolve", "get-production-model", "register", "summarize", "hold", "hold-2"}


def spec() -> tuple[dict[str, Any], dict[str, Any]]:
    pipeline, platform = yaml.safe_load_all(PIPELINE.read_text())
    return pipeline, platform


def tasks(pipeline: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task that runs a container, at any depth."""
    dags = [pipeline["root"], *pipeline["components"].values()]
    for dag in dags:
        for name, task in dag.get("dag", {}).get("tasks", {}).items():
            component = pipeline["components"][task["componentRef"]["name"]]
            if "executorLabel" in component:
                yield name, task | {"executor": component["executorLabel"]}


@pytest.mark.parametrize("path", [PIPELINE, *COMPONENTS], ids=lambda path: path.stem)
def test_the_yaml_loads_as_a_component(path: Path) -> None:
    loaded = components.load_component_from_file(str(path))
    assert loaded.component_spec.inputs


@pytest.mark.parametrize(
    ("pipeline", "task"), [("train_and_register", "resolve"), ("materialize_features", "materialize")]
)
def test_what_is_for_a_date_is_told_when_the_run_was_scheduled(pipeline: str, task: str) -> None:
    spec, *_ = yaml.safe_load_all(PIPELINE.with_stem(pipeline).read_text())
    given = dict(tasks(spec))[task]["inputs"]["parameters"]
    assert given["scheduled"]["runtimeValue"]["constant"] == dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER


def test_every_task_has_resources_retries_and_a_time_limit() -> None:
    pipeline, platform = spec()
    executors = pipeline["deploymentSpec"]["executors"]
    limits = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    found = dict(tasks(pipeline))
    assert len(found) == 14
    for name, task in found.items():
        if name != "train":  # amounts set on it would go to its job
            amounts = executors[task["executor"]]["container"]["resources"]
            assert amounts["resourceCpuLimit"] == amounts["resourceCpuRequest"], name
            assert amounts["resourceMemoryLimit"] == amounts["resourceMemoryRequest"], name
        assert task["retryPolicy"]["maxRetryCount"] == 2, name
        assert task["retryPolicy"]["backoffDuration"] == "30s", name
        assert int(limits[task["executor"]]["activeDeadlineSeconds"]) in {3600, 4 * 3600, 24 * 3600}, name


def test_a_step_that_used_its_whole_time_can_still_be_tried_again() -> None:
    """Argo counts ``maxDuration`` from the start of the first attempt, and stops what runs beyond it."""
    pipeline, platform = spec()
    limits = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for name, task in tasks(pipeline):
        policy = task["retryPolicy"]
        attempts = (policy["maxRetryCount"] + 1) * int(limits[task["executor"]]["activeDeadlineSeconds"])
        waits = int(policy["backoffDuration"].removesuffix("s")) * sum(
            int(policy["backoffFactor"]) ** number for number in range(policy["maxRetryCount"])
        )
        assert int(policy["backoffMaxDuration"].removesuffix("s")) >= attempts + waits, name


def test_only_what_looks_outside_is_never_cached() -> None:
    pipeline, _ = spec()
    uncached = {name for name, task in tasks(pipeline) if not task["cachingOptions"].get("enableCache")}
    assert uncached == ALWAYS_LOOKS


def test_no_task_installs_anything_and_every_image_is_one_of_ours() -> None:
    pipeline, _ = spec()
    for executor in pipeline["deploymentSpec"]["executors"].values():
        container = executor["container"]
        assert container["image"].startswith("trainwright/")
        assert "pip install" not in " ".join(container["command"] + container["args"])


def test_registering_hangs_on_both_gates() -> None:
    pipeline, _ = spec()
    dags = {name: body["dag"]["tasks"] for name, body in pipeline["components"].items() if "dag" in body}

    def gates(component: str) -> list[str]:
        """The conditions around a component, the innermost first."""
        for name, members in dags.items():
            for task in members.values():
                if task["componentRef"]["name"] == component:
                    return [task.get("triggerPolicy", {}).get("condition", ""), *gates(name)]
        return []

    inner, outer = (condition for condition in gates("comp-register") if condition)
    assert inner.endswith("== 'PASS'")
    assert "evaluate" in inner
    assert outer.endswith("== 'yes'")
    assert "validate" in outer


def test_the_train_step_shares_a_volume_with_its_job() -> None:
    _, platform = spec()
    executor = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    [mount] = executor["pvcMount"]
    assert mount["mountPath"] == Resources().mount
    assert mount["pvcNameParameter"] == {"componentInputParameter": "pipelinechannel--claim"}
    [claim] = [
        body["metadata"]["name"]
        for body in yaml.safe_load_all((ROOT / "deploy" / "base" / "volume.yaml").read_text())
        if body["kind"] == "PersistentVolumeClaim"
    ]
    assert claim == Resources().claim


MLFLOW_SECRETS = {
    "register": {"trainwright-register": MLFLOW_KEYS},
    "promote": {"trainwright-promote": MLFLOW_KEYS},
    "score": {"trainwright-mlflow": MLFLOW_KEYS},
    "get-production-model": {"trainwright-mlflow": MLFLOW_KEYS},
    "get-production-model-2": {"trainwright-mlflow": MLFLOW_KEYS},
    "summarize": {"trainwright-summarize": MLFLOW_KEYS},
}
"""The Secret with MLflow's credentials by task: those that write are each of one task alone."""


WITHOUT_STORE = {"configure", "evaluate", "hold", "hold-2", "smoke-test"} | {
    "get-production-model",
    "get-production-model-2",
}
"""Tasks of which KFP's launcher copies all that they read and write."""


def credentials(executor: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the variables with MLflow's credentials that an executor gets, by Secret."""
    found = {
        entry["secretName"]: tuple(
            pair["envVar"] for pair in entry["keyToEnv"] if pair["envVar"] in MLFLOW_KEYS
        )
        for entry in executor.get("secretAsEnv", [])
    }
    return {secret: variables for secret, variables in found.items() if variables}


@pytest.mark.parametrize(
    "name", ["train_and_register", "materialize_features", "promote_model", "canary_model"]
)
def test_every_task_gets_the_keys_and_endpoint_of_stores_by_optional_reference(name: str) -> None:
    pipeline, platform = yaml.safe_load_all(PIPELINE.with_stem(name).read_text())
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    secrets_of = MLFLOW_SECRETS if name != "materialize_features" else {}
    for task, body in tasks(pipeline):
        mine = settings[body["executor"]]
        if task in WITHOUT_STORE:
            assert credentials(mine) == secrets_of.get(task, {})
            continue
        references = [*mine["secretAsEnv"], *mine["configMapAsEnv"]]
        assert all(reference["optional"] for reference in references), task
        variables = [pair["envVar"] for reference in references for pair in reference["keyToEnv"]]
        # KFP sends them as a strategic merge patch: a second one of a name would replace the first.
        assert len(set(variables)) == len(variables), task
        assert {"MINIO_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"} <= set(variables), task
        secrets = {KFP_STORE, STORE} | secrets_of.get(task, {}).keys()
        assert {reference["secretName"] for reference in mine["secretAsEnv"]} == secrets, task
        assert credentials(mine) == secrets_of.get(task, {}), task


def test_the_train_steps_store_references_reach_the_pods_of_its_job() -> None:
    """KFP 2.17's driver turns each reference into a variable of the TaskConfig (v2/driver/k8s.go)."""
    pipeline, platform = spec()
    mine = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    optional = {"optional": True}
    given = [
        {"name": pair["envVar"], "valueFrom": {kind: {"name": entry[field], "key": pair[key]} | optional}}
        for kind, field, key, entries in (
            ("secretKeyRef", "secretName", "secretKey", mine["secretAsEnv"]),
            ("configMapKeyRef", "configMapName", "configMapKey", mine["configMapAsEnv"]),
        )
        for entry in entries
        for pair in entry["keyToEnv"]
    ]
    passed = {
        field["field"]: field.get("applyToTask", False)
        for field in pipeline["components"]["comp-train"]["taskConfigPassthroughs"]
    }
    assert passed["ENV"], "the step itself needs them, too"
    placement = apply_task_config(Resources(), {"env": given})[0].placement
    found = {variable.name: variable for variable in placement.env_from_secrets}
    assert set(found) == {entry["name"] for entry in given}
    assert (found["AWS_ACCESS_KEY_ID"].secret, found["AWS_DEFAULT_REGION"].config) == (STORE, STORE)


def test_the_experiment_file_gives_exactly_the_pipelines_inputs() -> None:
    pipeline, _ = spec()
    given = arguments.read(ROOT / "examples" / "flights" / "flights.yaml")
    asked = pipeline["root"]["inputDefinitions"]["parameters"].keys()
    others = {"promotion", "materialize_cpu", "materialize_memory"}
    assert (given.keys() | arguments.LIFTED.keys() | {"date"}) - others == asked


@pytest.mark.parametrize("name", ["train_and_register", "promote_model", "canary_model"])
def test_the_form_of_a_new_run_misses_nothing_and_edits_sections_as_objects(name: str) -> None:
    """The KFP UI marks a parameter without a default as missing, and opens a JSON editor for a STRUCT."""
    pipeline, *_ = yaml.safe_load_all(PIPELINE.with_stem(name).read_text())
    declared = pipeline["root"]["inputDefinitions"]["parameters"]
    assert [name for name, entry in declared.items() if "defaultValue" not in entry] == []
    kinds = {name: entry["parameterType"] for name, entry in declared.items()}
    sections = kinds.keys() & {*SECTIONS, "promotion", "request", "run", "serving"}
    assert {name for name, kind in kinds.items() if kind == "STRUCT"} == sections


def test_each_section_passes_through_the_step_that_checks_all_of_them() -> None:
    pipeline, _ = spec()
    for name, task in tasks(pipeline):
        for entry in task.get("inputs", {}).get("parameters", {}).values():
            if name not in {"configure", "summarize"} and (
                source := entry.get("componentInputParameter", "")
            ):
                assert source.removeprefix("pipelinechannel--") not in SECTIONS, name


def test_the_size_of_a_steps_pod_is_a_parameter_that_reaches_it_through_every_group() -> None:
    """A reference to an input that no group passes on would leave the pod without a size."""
    pipeline, _ = spec()
    executors = pipeline["deploymentSpec"]["executors"]
    sized = {}
    for name, task in tasks(pipeline):
        amounts = executors[task["executor"]]["container"].get("resources", {})
        for kind in ("Cpu", "Memory"):
            if (said := amounts.get(f"resource{kind}Limit", "")).startswith("{{"):
                channel = said.removeprefix("{{$.inputs.parameters['").removesuffix("']}}")
                assert task["inputs"]["parameters"][channel] == {"componentInputParameter": channel}
                sized[channel.removeprefix("pipelinechannel--")] = name
    assert sized == {
        f"{step}_{kind}": step.replace("_", "-")
        for step in ("ingest", "validate", "join", "score", "evaluate", "smoke_test")
        for kind in ("cpu", "memory")
    }
    for name, body in pipeline["components"].items():
        declared = body.get("inputDefinitions", {}).get("parameters", {})
        for task in body.get("dag", {}).get("tasks", {}).values():
            for entry in task.get("inputs", {}).get("parameters", {}).values():
                wanted = entry.get("componentInputParameter")
                assert wanted is None or wanted in declared, (name, wanted)


def test_the_defaults_of_a_size_are_those_of_the_experiment_file() -> None:
    pipeline, _ = spec()
    given = Steps().parameters()
    declared = pipeline["root"]["inputDefinitions"]["parameters"]
    for name in given.keys() & declared.keys():
        assert declared[name]["defaultValue"] == given[name], name


def test_a_run_that_a_gate_held_ends_in_a_container_that_says_why() -> None:
    """KFP 2.17 counts whether a group is complete when a container in it ends (recordings: held-by-gate)."""
    pipeline, _ = spec()
    conditions: dict[str, str] = {}
    for body in (pipeline["root"], *pipeline["components"].values()):
        for task in body.get("dag", {}).get("tasks", {}).values():
            if condition := task.get("triggerPolicy", {}).get("condition"):
                conditions[task["taskInfo"]["name"]] = condition.rpartition("]")[2].strip()
    assert conditions == {
        "data-not-refused": "== 'yes'",
        "data-refused": "!= 'yes'",
        "model-passed": "== 'PASS'",
        "model-held": "!= 'PASS'",
    }
    shown = {task["taskInfo"]["name"] for name, task in tasks(pipeline) if name.startswith("hold")}
    assert shown == {"held-by-validate", "held-by-evaluate"}


@pytest.mark.covers("F42")
def test_no_cached_task_takes_an_artifact_of_an_uncached_one() -> None:
    """On a cluster an artifact counts by its number, which is another one whenever its task has run."""
    pipeline, _ = spec()
    cached = [task for name, task in tasks(pipeline) if name not in ALWAYS_LOOKS]
    assert len(cached) == 7
    for task in cached:
        for given in task.get("inputs", {}).get("artifacts", {}).values():
            producer = (
                given.get("taskOutputArtifact", {}).get("producerTask") or given["componentInputArtifact"]
            )
            assert not any(name in producer for name in ("resolve", "register", "summarize")), producer


def test_the_workflow_of_the_longest_run_of_the_example_does_not_grow() -> None:
    """Above 1 MiB Argo compresses the nodes, and KFP 2.17's API lists none of the run's tasks."""
    pipeline, platform = spec()
    inputs = pipeline["root"]["inputDefinitions"]["parameters"]
    config = ROOT / "examples" / "flights" / "flights.yaml"
    given = arguments.lifted(arguments.read(config), inputs.keys())
    passed = {name: value for name, value in given.items() if name in inputs}
    defaults = {name: entry["defaultValue"] for name, entry in inputs.items()}
    outputs = {"configure": Configuration.of(arguments.load(config))._asdict()}
    closed = {"model-held", "data-refused"}
    nodes = workflow_size.nodes(pipeline, platform, defaults | passed, closed, outputs)
    assert nodes + workflow_size.specification(pipeline, platform) < WORKFLOW_BYTES


def test_a_pipeline_carries_no_source_and_no_prose_but_what_its_parameters_mean() -> None:
    pipeline, _ = spec()
    for component in pipeline["components"].values():
        for side in ("inputDefinitions", "outputDefinitions"):
            for definitions in component.get(side, {}).values():
                assert not any("description" in definition for definition in definitions.values())
    for executor in pipeline["deploymentSpec"]["executors"].values():
        assert executor["container"]["command"] == ["python3", "-m", "trainwright.executor"]
    assert all(entry["description"] for entry in pipeline["root"]["inputDefinitions"]["parameters"].values())
