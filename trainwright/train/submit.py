"""Submits a training as a job, and harvests what it made. Runs without torch and without pyarrow."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainwright import tracking
from trainwright.artifacts import Model, Record, Snapshot
from trainwright.documents import canonical, digest_file, digest_text
from trainwright.errors import InputError, InternalError, TrainwrightError
from trainwright.experiment import Network, Resources, Tracking, Training, read_network
from trainwright.launch import launcher
from trainwright.launch.job import FOLDER_PLACEHOLDER, Budget, Job, JobReference, Launcher, Result
from trainwright.launch.job_directory import publish
from trainwright.launch.placement import Placement, SecretVariable, Toleration, Volume
from trainwright.report import markdown
from trainwright.tracking.history import TrackingDestination, kfp_destination
from trainwright.train.homes import next_folder
from trainwright.train.inherited import inherit
from trainwright.train.published import prefix_of
from trainwright.train.refusals import check_kind, check_secrets, check_store
from trainwright.train.shown import show_failure, show_page
from trainwright.train.specification import Specification, check_snapshot, pinned


@dataclass(frozen=True)
class Request:
    """What the step is asked for.

    Attributes:
        training_set: Folder of the training-set snapshot.
        data_version: Digest that its manifest must have.
        network: Section ``network`` of the experiment.
        training: Section ``training``.
        resources: Section ``resources``.
        image: Image of the job's pods.
        run: Address of the model artifact: the same at every retry of the same step of the same run.
        step: What the pipeline sets on the step itself, by the names of ``dsl.TaskConfig``'s fields.
        workflow: The Argo workflow of the run, with which a cluster's job is to go; empty: none.
    """

    training_set: Path
    data_version: str
    network: str | Mapping[str, Any]
    training: str | Mapping[str, Any]
    resources: str | Mapping[str, Any]
    image: str
    run: str
    step: Mapping[str, Any] = field(default_factory=dict)
    workflow: str = ""


@dataclass(frozen=True)
class Submitted:
    """A training that has succeeded.

    Attributes:
        model_version: Digest of the model's manifest.
        predictions_version: Digest of the predictions' manifest.
        metrics: Figures for the run's page.
    """

    model_version: str
    predictions_version: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Plan:
    """A request whose every section was read, and the launcher that was chosen."""

    request: Request
    network: Network
    training: Training
    resources: Resources
    launcher: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        return self.resources.nodes * self.resources.processes

    @property
    def told(self) -> dict[str, Any]:
        """What the processes are told."""
        return {
            "data_version": self.request.data_version,
            "network": self.network.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "processes": self.processes,
            "gpus": self.resources.gpus,
        }

    @property
    def pinned(self) -> dict[str, Any]:
        """What makes this training what it is: two that are told this can go on with one another's state."""
        return pinned(self.told["data_version"], self.told["network"], self.told["training"])


def submit(
    request: Request,
    model: Path,
    predictions: Path,
    summary: Path,
    report: Path,
    *,
    launcher: Launcher | None = None,
) -> Submitted:
    """Train, and put the model and the predictions in their places.

    Args:
        request: What is asked for.
        model: Where the model's folder is to appear.
        predictions: Where the predictions' snapshot is to appear.
        summary: Where the Markdown summary is to appear; of a training that failed, why it did.
        report: Where the page with the curves is to appear, after a training that failed too.
        launcher: What runs the job; the one that ``resources.launcher`` names if absent.

    Raises:
        InputError: Anything of the request is wrong: found before anything is started where it can be.
        DataRefused: A split is empty, or there is one class only.
        TrainwrightError: What the job failed with.
    """
    plan = _parse(request)
    _check(plan)
    with next_folder(request.run, plan.pinned, plan.launcher, plan.resources, model) as folder:
        job = _prepare(plan, folder)
        try:
            result = (launcher or _launcher(plan)).run(job)
        except TrainwrightError as error:
            show_failure(error, folder, summary, report)
            if links := _links(folder, plan.resources.links):
                error.hint = f"{error.hint} {', '.join(f'{title}: {url}' for title, url in links)}".strip()
            raise
        # Not always in the folder that was asked for: a launcher may have found the job, or tried again.
        show_page(result.folder, report)
        submitted = _harvest(result)
        shared = plan.launcher != "local"
        publish(result.folder / "predictions", predictions, copy=shared)
        publish(result.folder / "model", model, copy=shared)
        # Within: with its end, what the training could be gone on with is removed.
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(_summarize(model, submitted) + _job(result.folder, plan.resources.links))
    return submitted


_SectionT = TypeVar("_SectionT")


def _parse(request: Request) -> _Plan:
    """Read all sections, and report what is wrong with any of them at once."""
    texts = {"network": request.network, "training": request.training, "resources": request.resources}
    check_secrets(texts)
    wrong: list[str] = []
    network = _read(lambda: read_network(request.network), wrong)
    training = _read(lambda: Training.parse(request.training, "training"), wrong)
    resources = _read(lambda: Resources.parse(request.resources, "resources"), wrong)
    if not (network and training and resources):
        raise InputError("\n".join(wrong), where="parameters of train")
    inherited = inherit(resources, request.step)
    chosen = launcher.resolve_launcher(resources.launcher)
    return _Plan(request, network, training, inherited.resources, chosen, inherited.env)


def _read(section: Callable[[], _SectionT], wrong: list[str]) -> _SectionT | None:
    """Read a section, or add to ``wrong`` what is wrong with it."""
    try:
        return section()
    except InputError as error:
        wrong.append(f"{error.where}: {error.what}")
        return None


def _check(plan: _Plan) -> None:
    """Check everything that can be checked without reading rows."""
    check_kind(plan.network, plan.training, plan.processes, plan.resources.gpus)
    check_store(plan.training.checkpoints.store)
    snapshot = Snapshot.open(plan.request.training_set, plan.request.data_version)
    early = plan.training.guards.early_stopping
    splits = [plan.training.split, *plan.training.predict, *([early.split] if early else [])]
    check_snapshot(snapshot, splits, plan.network)


def _prepare(plan: _Plan, folder: Path) -> Job:
    """Write what the processes are told into the attempt's folder, and describe the job."""
    request, resources = plan.request, plan.resources
    environment = tracking.environment()
    Specification(
        attempt=folder.name,
        home=str(folder.parent.parent),
        training_set=str(_visible(plan)),
        launched_by={
            "launcher": plan.launcher,
            "environment": environment.name,
            "lock_sha256": environment.lock_sha256,
        },
        destination=_destination(plan.training.tracking),
        failed_report=prefix_of(request.run),
        **plan.told,
    ).write(folder)
    on_cluster = plan.launcher != "local"
    return Job(
        run=request.run,
        task="train",
        image=request.image,
        program=("-m", "trainwright.train", f"{FOLDER_PLACEHOLDER}/{Specification.FILE}"),
        folder=folder,
        specification=digest_text(canonical(plan.told)),
        nodes=resources.nodes,
        processes=resources.processes,
        cpu=resources.cpu,
        memory_gib=resources.memory_gib,
        gpus=resources.gpus,
        timeout_s=resources.timeout_s,
        restarts=resources.restarts,
        grace_s=resources.grace_s,
        stall_s=plan.training.guards.stall_s,
        # What cuBLAS needs to give the same sums every time.
        env={**plan.env, **({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if resources.gpus else {})},
        claim=resources.claim if on_cluster else "",
        mount=resources.mount if on_cluster else "",
        placement=_placement(resources) if on_cluster else Placement(),
        budget=Budget(**resources.budget.model_dump()),
    )


def _launcher(plan: _Plan) -> Launcher:
    """Make the launcher, with the limits that it keeps by itself."""
    asked, workflow = plan.resources, plan.request.workflow
    return launcher.create_launcher(
        plan.launcher, workflow=workflow, outage_s=asked.outage_s, pending_s=asked.pending_s
    )


def _placement(resources: Resources) -> Placement:
    """Write the section as the launchers take it."""
    said = resources.placement.model_dump()
    kinds = {"tolerations": Toleration, "volumes": Volume, "env_from_secrets": SecretVariable}
    parts = {name: tuple(kind(**entry) for entry in said[name]) for name, kind in kinds.items()}
    return Placement(**said | parts)


def _destination(tracking: Tracking) -> dict[str, str]:
    """Return where the curves go while they grow: into KFP's run if there is one, else where we are told."""
    given = kfp_destination()
    if given is None and tracking.uri:
        given = TrackingDestination(tracking.uri, experiment=tracking.experiment)
    return dataclasses.asdict(given) if given else {}


def _visible(plan: _Plan) -> Path:
    """Return where the job's processes find the training set: on a cluster, copied to the shared volume."""
    source = plan.request.training_set.absolute()
    if plan.launcher == "local":
        return source
    target = Path(plan.resources.mount) / "trainwright" / "snapshots" / plan.request.data_version
    if not (target / Snapshot.FILE).exists():
        publish(source, target, keep=True)
    return target


def _harvest(result: Result) -> Submitted:
    """Check that what lies in the attempt's folder is what its completion marker says."""
    folder, outputs = result.folder, result.completion.outputs
    model, predictions = Model.read(folder / "model"), Snapshot.read(folder / "predictions")
    found = {"model": model.digest, "predictions": predictions.digest}
    wrong = [name for name, digest in found.items() if outputs.get(name) != digest]
    wrong += [
        f"model/{entry.path}"
        for entry in model.files
        if digest_file(folder / "model" / entry.path) != entry.sha256
    ]
    if wrong:
        raise InternalError(
            f"{', '.join(wrong)} differ from what the completion marker says", where=str(folder)
        )
    return Submitted(model.digest, predictions.digest, model.metrics)


def _links(folder: Path, templates: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the configured pages of the job that ran in an attempt's folder; none for a local one."""
    if not (folder / JobReference.FILE).exists():
        return []
    job = JobReference.read(folder)
    places = {"{kind}": job.kind.lower(), "{namespace}": job.namespace, "{name}": job.name}
    return [
        (title, re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], template))
        for title, template in templates.items()
    ]


def _job(folder: Path, templates: Mapping[str, str]) -> str:
    """Write which job ran, with links and commands that show it."""
    if not (folder / JobReference.FILE).exists():
        return ""
    job = JobReference.read(folder)
    links = "".join(f"- [{markdown.escape(title)}]({url})\n" for title, url in _links(folder, templates))
    commands = "\n".join(job.commands)
    return f"\n{job.kind} `{job.namespace}/{job.name}`\n\n{links}\n```\n{commands}\n```\n"


def _summarize(model: Path, submitted: Submitted) -> str:
    """Write a few lines for the run's page."""
    record, metrics = Record.read(model), submitted.metrics
    unit = "round" if "rounds_kept" in metrics else "epoch"
    rows = [
        ("Rows learned from", f"{metrics['rows']:,.0f}"),
        ("Rows without a label, left out", f"{metrics['rows_without_label']:,.0f}"),
        *([("Share of label 1", f"{metrics['base_rate']:.1%}")] if "base_rate" in metrics else []),
        (f"Mean loss, first {unit}", f"{metrics['first_epoch_loss']:.4f}"),
        (f"Mean loss, last {unit}", f"{metrics['train_loss']:.4f}"),
        ("Loss of always saying the base rate", f"{metrics['base_rate_loss']:.4f}"),
        ("Model version", submitted.model_version[:12]),
        ("Predictions version", submitted.predictions_version[:12]),
    ]
    table = markdown.table(["What", "Value"], rows, numeric=[1])
    return (
        f"**{markdown.escape(record.headline)}**\n\n{table}\n"
        "Next: `evaluate` judges the predictions on the split that was not learned from.\n"
    )
