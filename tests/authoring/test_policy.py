"""No compiled pipeline and no manifest gets past these rules; each rule is seen to refuse what breaks it."""

import copy
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site.reference import read_metadata
from trainwright import credentials
from trainwright.authoring import catalog, images, pipeline_spec
from trainwright.authoring.tasks import KFP_STORE, STORE, SUMMARIZE
from trainwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
COMPILED = sorted((ROOT / "compiled").glob("*/*.yaml"))
PIPELINES = sorted((ROOT / "compiled" / "pipelines").glob("*.yaml"))
MANIFESTS = sorted(path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yaml", ".json", ".sql"})

SECRETS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a key of Amazon": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a service account of Google": r'"private_key_id"\s*:',
    "a token of GitHub or GitLab": r"\b(gh[pousr]_[0-9A-Za-z]{36}|glpat-[0-9A-Za-z_-]{20})\b",
    "a JSON web token": r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.",
    "a password": r"(?i)\bpassword\s*[:=]\s*['\"]?(?!(\$|\{|<|:|str\b|None\b|null\b))[^\s'\"{<$,)]{6,}",
}
"""What a secret looks like, wherever it stands."""

Documents = tuple[dict[str, Any], dict[str, Any]]


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def documents(path: Path) -> Documents:
    pipeline, platform = [*yaml.load_all(path.read_text(), LOADER), {}][:2]
    return pipeline, platform


def tasks(pipeline: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every task that runs a container, with the label of its executor."""
    for owner in [pipeline["root"], *pipeline["components"].values()]:
        for name, task in owner.get("dag", {}).get("tasks", {}).items():
            label = pipeline["components"][task["componentRef"]["name"]].get("executorLabel")
            if label:
                yield name, task, label


def settings(platform: dict[str, Any], label: str) -> dict[str, Any]:
    executors = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
    found: dict[str, Any] = executors.get("executors", {}).get(label, {})
    return found


AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(m|G|Gi)?")
PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['pipelinechannel--(\w+)'\]\}\}")


def amount(pipeline: dict[str, Any], label: str, name: str) -> float:
    """Return cores or GB of an executor on the pipeline's defaults; 0 where it names none."""
    text = pipeline["deploymentSpec"]["executors"][label]["container"].get("resources", {}).get(name, "0")
    if parameter := PARAMETER.fullmatch(text):
        text = pipeline["root"]["inputDefinitions"]["parameters"][parameter[1]]["defaultValue"]
    number, unit = AMOUNT.fullmatch(text).groups()  # type: ignore[union-attr]
    return float(number) / (1000 if unit == "m" else 1)


def passes_amounts_on(pipeline: dict[str, Any], label: str) -> bool:
    """Tell whether the amounts set on a step go to its job: deploy/base/limits.yaml sizes such a step."""
    return any(
        {"field": "RESOURCES"} in component.get("taskConfigPassthroughs", [])
        for component in pipeline["components"].values()
        if component.get("executorLabel") == label
    )


def bounded(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """Requests and limits, for cores and memory; a request is at most its limit."""
    for label in pipeline["deploymentSpec"]["executors"]:
        if passes_amounts_on(pipeline, label):
            continue
        for kind in ("Cpu", "Memory"):
            request, limit = (amount(pipeline, label, f"resource{kind}{end}") for end in ("Request", "Limit"))
            if not 0 < request <= limit:
                yield f"{label}: {kind} {request} of {limit}"


def retried(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """Every task is tried again, with time for each attempt, and ends by itself."""
    for name, task, label in tasks(pipeline):
        policy = task.get("retryPolicy", {})
        deadline = float(settings(platform, label).get("activeDeadlineSeconds", 0))
        if not 1 <= policy.get("maxRetryCount", 0) <= 5:
            yield f"{name}: {policy.get('maxRetryCount', 0)} retries"
        if not 0 < deadline <= 7 * 24 * 3600:
            yield f"{name}: a deadline of {deadline} s"
        longest = float(str(policy.get("backoffMaxDuration", "0s")).removesuffix("s"))
        if longest < deadline * (policy.get("maxRetryCount", 0) + 1):
            yield f"{name}: {longest} s for all attempts, each of up to {deadline} s"


def confined(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """No task runs as root; of a security context, that is what KFP lets us say."""
    for name, _, label in tasks(pipeline):
        context = settings(platform, label).get("securityContext", {})
        wanted = {"runAsUser": str(images.USER), "runAsGroup": str(images.USER), "runAsNonRoot": True}
        if context != wanted:
            yield f"{name}: {context or 'no security context'}"


def still(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """Nothing is installed when a step starts, and no variable carries anything."""
    for label, executor in pipeline["deploymentSpec"]["executors"].items():
        container = executor["container"]
        if re.search(r"\bpip\b.*\binstall\b|apt-get|curl ", " ".join(map(str, container.get("command", [])))):
            yield f"{label}: installs something"
        if container.get("env"):
            yield f"{label}: variables {[entry['name'] for entry in container['env']]}"


OF_MLFLOW = {"trainwright-mlflow", "trainwright-register", "trainwright-promote", SUMMARIZE}
AS_VARIABLES = {KFP_STORE, STORE} | OF_MLFLOW
"""Secrets whose keys are variables, as the clients of object stores and MLflow read them."""


def discreet(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """A secret is a file that a Secret of the namespace holds; keys of stores and MLflow are variables."""
    for name, _, label in tasks(pipeline):
        kinds = settings(platform, label)
        for reference in kinds.get("secretAsEnv", []):
            if reference["secretName"] not in AS_VARIABLES:
                yield f"{name}: a variable from the Secret {reference['secretName']}"
        for volume in kinds.get("secretAsVolume", []):
            if not volume.get("mountPath", "").startswith("/var/run/secrets/"):
                yield f"{name}: a secret in {volume.get('mountPath')}"


def known(pipeline: dict[str, Any], platform: dict[str, Any]) -> Iterator[str]:
    """Every image is one of ours, with a version or a digest, and never a tag that moves."""
    for label, executor in pipeline["deploymentSpec"]["executors"].items():
        image = executor["container"]["image"]
        if not re.fullmatch(r"(\S+/)?trainwright/[a-z]+(:\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})", image):
            yield f"{label}: {image}"


Rule = Callable[[dict[str, Any], dict[str, Any]], Iterator[str]]
RULES: tuple[Rule, ...] = (bounded, retried, confined, still, discreet, known)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_compiled_pipeline_keeps_the_rule(path: Path, rule: Rule) -> None:
    pipeline, platform = documents(path)
    assert list(tasks(pipeline))
    assert list(rule(pipeline, platform)) == []


def container(pipeline: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(pipeline["deploymentSpec"]["executors"].values()))["container"]
    return found


def executor(platform: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        iter(platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values())
    )
    return found


def first(pipeline: dict[str, Any]) -> dict[str, Any]:
    return next(task for _, task, _ in tasks(pipeline))


Break = Callable[[dict[str, Any], dict[str, Any]], object]
BREAKS: list[tuple[Rule, Break]] = [
    (bounded, lambda pipeline, _: container(pipeline)["resources"].pop("resourceMemoryRequest")),
    (bounded, lambda pipeline, _: container(pipeline)["resources"].pop("resourceMemoryLimit")),
    (bounded, lambda pipeline, _: container(pipeline)["resources"].pop("resourceCpuLimit")),
    (bounded, lambda pipeline, _: container(pipeline)["resources"].update(resourceCpuRequest="99")),
    (bounded, lambda pipeline, _: container(pipeline).pop("resources")),
    (retried, lambda _, platform: executor(platform).pop("activeDeadlineSeconds")),
    (retried, lambda _, platform: executor(platform).update(activeDeadlineSeconds="31536000")),
    (retried, lambda pipeline, _: first(pipeline).pop("retryPolicy")),
    (retried, lambda pipeline, _: first(pipeline)["retryPolicy"].update(maxRetryCount=0)),
    (retried, lambda pipeline, _: first(pipeline)["retryPolicy"].update(maxRetryCount=99)),
    (retried, lambda pipeline, _: first(pipeline)["retryPolicy"].update(backoffMaxDuration="60s")),
    (confined, lambda _, platform: executor(platform)["securityContext"].update(runAsUser="0")),
    (confined, lambda _, platform: executor(platform)["securityContext"].pop("runAsNonRoot")),
    (confined, lambda _, platform: executor(platform).pop("securityContext")),
    (still, lambda pipeline, _: container(pipeline)["command"].append("python3 -m pip install kfp")),
    (still, lambda pipeline, _: container(pipeline).update(env=[{"name": "MODE", "value": "fast"}])),
    (discreet, lambda _, platform: executor(platform).update(secretAsEnv=[{"secretName": "s"}])),
    (discreet, lambda _, platform: executor(platform).update(secretAsVolume=[{"mountPath": "/etc/ours"}])),
    (known, lambda pipeline, _: container(pipeline).update(image="trainwright/tabular:latest")),
    (known, lambda pipeline, _: container(pipeline).update(image="python:3.11.9")),
    (known, lambda pipeline, _: container(pipeline).update(image="trainwright/tabular")),
]


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=lambda number: f"{BREAKS[number][0].__name__}")
def test_the_rule_refuses_what_breaks_it(number: int) -> None:
    rule, break_it = BREAKS[number]
    pipeline, platform = copy.deepcopy(documents(ROOT / "compiled" / "pipelines" / "train_and_register.yaml"))
    break_it(pipeline, platform)
    assert list(rule(pipeline, platform))


def test_every_rule_is_seen_to_refuse() -> None:
    assert {rule for rule, _ in BREAKS} == set(RULES)


@pytest.mark.parametrize("path", sorted({*COMPILED} - {*PIPELINES}), ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", [still, known], ids=lambda rule: rule.__name__)
def test_a_compiled_component_keeps_the_rule(path: Path, rule: Rule) -> None:
    """The others are about tasks: whoever puts a component into a pipeline says them."""
    pipeline, platform = documents(path)
    assert pipeline["deploymentSpec"]["executors"]
    assert list(rule(pipeline, platform)) == []


@pytest.mark.covers("A7")
@pytest.mark.parametrize("path", [*COMPILED, *MANIFESTS], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_secret_stands_in_what_is_compiled_or_applied(path: Path) -> None:
    text = path.read_text()
    assert [kind for kind, pattern in SECRETS.items() if re.search(pattern, text)] == []
    for document in yaml.load_all(text, LOADER) if path.suffix == ".yaml" else ():
        credentials.require_none(_constants(document), where=str(path), plain=True)


def _constants(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [
            found
            for key, entry in value.items()
            for found in ([entry] if key in {"constant", "defaultValue", "value"} else _constants(entry))
        ]
    return [found for entry in value for found in _constants(entry)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE KEY-----",
        "key: AKIAABCDEFGHIJKLMNOP",
        'password: "correct-horse"',
        "password=hunter2-horse",
        "token: ghp_" + "a" * 36,
    ],
)
def test_a_secret_is_seen(text: str) -> None:
    assert any(re.search(pattern, text) for pattern in SECRETS.values())


def test_an_address_with_a_password_is_seen() -> None:
    with pytest.raises(InputError):
        credentials.require_none(_constants({"a": [{"constant": "s3://AKIA:x@b"}]}), where="x", plain=True)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_step_is_given_what_its_component_says_it_needs(path: Path) -> None:
    pipeline, _ = documents(path)
    for step in pipeline_spec.read(path).steps:
        verb = step.container["args"][-1]
        metadata = read_metadata(ROOT / "components" / verb / "metadata.yaml")
        label = next(
            label
            for label, entry in pipeline["deploymentSpec"]["executors"].items()
            if entry["container"]["args"][-1] == verb
        )
        if not passes_amounts_on(pipeline, label):
            assert amount(pipeline, label, "resourceCpuLimit") >= metadata.resources.cpu, verb
            assert amount(pipeline, label, "resourceMemoryLimit") >= metadata.resources.memory_gib, verb
        if metadata.caching == "never":
            assert not step.cacheable, verb


def test_only_launchers_of_jobs_and_the_exit_handler_need_the_kubernetes_api() -> None:
    needs = {
        name
        for name in catalog.names()
        if read_metadata(ROOT / "components" / name / "metadata.yaml").access.kubernetes
    }
    assert needs == {"train", "tune", "canary", "summarize"}
