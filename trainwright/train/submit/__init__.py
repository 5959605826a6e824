"""Submits a training as a job, and collects its outputs. Runs without torch and without pyarrow."""

import dataclasses
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from trainwright import credentials, tracking
from trainwright.artifacts import JobUsage, Model, Record, Snapshot
from trainwright.documents import canonical, digest_file, digest_text
from trainwright.errors import DependencyError, InputError, InternalError, TrainwrightError, in_our_words
from trainwright.experiment import Resources, Training, read_network
from trainwright.experiment.resources import JobPlacement
from trainwright.launch import launcher as launchers
from trainwright.launch.job import FOLDER_PLACEHOLDER, Job, JobReference, Launcher, Result
from trainwright.launch.job_directory import (
    create_attempt,
    locked_attempt,
    newest_attempt,
    publish,
    remove_checkpoints,
    remove_job_directory,
    sibling_directories,
)
from trainwright.report import markdown
from trainwright.tracking.history import (
    HISTORY_FILE,
    TrackingDestination,
    TrainingHistory,
    kfp_destination,
)
from trainwright.train.config import TrainConfig, TrialMetrics, degrees_of, differences
from trainwright.train.defaults import resolve_training
from trainwright.train.page_delivery import copy_page, failed_report_prefix, show_failure
from trainwright.train.submit.checks import check_elastic, check_request
from trainwright.train.submit.task_config import apply_task_config

TRIAL_DIRECTORY = "job-trial"
"""Name of the job directory in a trial's folder."""

_SectionT = TypeVar("_SectionT")
_SHOWN = 5


@dataclass(frozen=True)
class TrainRequest:
    """The parameters of the step.

    Attributes:
        training_set: Folder of the training-set snapshot.
        data_version: Digest of its manifest.
        network: Section ``network`` of the experiment; ``training`` and ``resources`` likewise.
        image: Image of the job's pods.
        run: Address of the model artifact: the same at every retry of the same step of the same run.
        step: Settings of the pipeline for the step itself, by the names of ``dsl.TaskConfig``'s fields.
    """

    training_set: Path
    data_version: str
    network: str | Mapping[str, Any]
    training: str | Mapping[str, Any]
    resources: str | Mapping[str, Any]
    image: str
    run: str
    step: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """A successful training: the digests of both manifests, and figures for the run's page."""

    model_version: str
    predictions_version: str
    metrics: dict[str, float]


def submit(
    request: TrainRequest,
    model: Path,
    predictions: Path,
    summary: Path,
    report: Path,
    *,
    launcher: Launcher | None = None,
) -> Submitted:
    """Train, and write the model and the predictions to the step's outputs.

    Args:
        request: The parameters.
        model: Output folder of the model.
        predictions: Output folder of the predictions' snapshot.
        summary: Output file of the Markdown summary; of a failed training, its cause.
        report: Output file of the page with the curves, also of a failed training.
        launcher: Runs the job; the one of ``resources.launcher`` if absent.

    Raises:
        InputError: A parameter is wrong; found before anything is started where possible.
        DataRefused: A split is empty, or there is only one class.
        TrainwrightError: The error of the job.
    """
    prepared = _prepare(request)
    config, resources, name = prepared.config, prepared.resources, prepared.launcher
    on_cluster = name != "local"
    with next_attempt_folder(request.run, config.decisive, name, resources, model) as folder:
        try:
            result = prepared.run(folder, "train", launcher)
        except TrainwrightError as error:
            show_failure(error, folder, summary, report)
            error.hint = f"{error.hint} {_describe_job(folder, resources.links)[0]}".strip()
            raise
        # The folder may differ: a launcher may have adopted a running job, or tried again.
        copy_page(result.folder, report)
        write_usage(result)
        submitted = _collect(result)
        publish(result.folder / "predictions", predictions, copy=on_cluster)
        publish(result.folder / "model", model, copy=on_cluster)
        # Before the context ends: then the state that a retry would resume from is removed.
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(_summarize(model, submitted) + _describe_job(result.folder, resources.links)[1])
    return submitted


def submit_trial(
    request: TrainRequest,
    folder: Path,
    encoded: Path,
    destination: Mapping[str, str] | None = None,
) -> None:
    """Train as :func:`submit` does, and write metrics on the held-out rows instead of a model.

    The job directory is ``job-trial`` in the trial's folder. After a success it is removed, and only its
    history and :class:`.TrialMetrics` stay, the latter written last.

    Args:
        request: The parameters.
        folder: The trial's folder.
        encoded: Folder of encoded samples, which all trials of a study share.
        destination: Server and run for live curves; none if absent.

    Raises:
        TrainwrightError: As for :func:`submit`.
    """
    prepared = _prepare(request)
    changes: dict[str, Any] = {"destination": dict(destination or {}), "failed_report": ""}
    config = dataclasses.replace(prepared.config, trial=True, encoded=str(encoded.absolute()), **changes)
    prepared = dataclasses.replace(prepared, config=config)
    directory = folder.absolute() / TRIAL_DIRECTORY
    with next_trial_folder(directory, prepared.launcher, prepared.resources) as attempt:
        result = prepared.run(attempt, "tune")
        found = TrialMetrics.read(result.folder)
        if found.digest != result.completion.outputs.get("metrics"):
            raise InternalError("metrics differ from the completion marker", where=str(result.folder))
        shutil.copyfile(directory / HISTORY_FILE, folder / HISTORY_FILE)
        found.write(folder)


def check_trial(request: TrainRequest) -> None:
    """Check all parameters of a training, as :func:`submit` does before anything is started."""
    _prepare(request)


@dataclass(frozen=True)
class _Prepared:
    """A request whose parameters are parsed and checked."""

    request: TrainRequest
    config: TrainConfig
    resources: Resources
    env: Mapping[str, str]
    launcher: str

    def run(self, folder: Path, task: str, launcher: Launcher | None = None) -> Result:
        """Run the job in the attempt's folder."""
        _write_config(self.config, folder, self.launcher, self.resources)
        if launcher is None:
            launcher = launchers.create_launcher(
                self.launcher, outage_s=self.resources.outage_s, pending_s=self.resources.pending_s
            )
        return launcher.run(_job(self, folder, task))


def _prepare(request: TrainRequest) -> _Prepared:
    config, resources, env, snapshot = _parse(request)
    name = launchers.resolve_launcher(resources.launcher)
    check_request(config, snapshot)
    check_elastic(config.settings, resources)
    return _Prepared(request, config, resources, env, name)


def _parse(request: TrainRequest) -> tuple[TrainConfig, Resources, dict[str, str], Snapshot]:
    """Parse all sections, and report all their errors together; with the job's variables and the manifest.

    What depends on the number of rows is resolved here, so that all processes and every retry have the same.
    """
    sections = {"network": request.network, "training": request.training, "resources": request.resources}
    credentials.require_none(sections, where="parameters of train", plain=True)
    wrong: list[str] = []

    def parse(section: Callable[[], _SectionT]) -> _SectionT | None:
        try:
            return section()
        except InputError as error:
            wrong.append(f"{error.where}: {error.what}")
            return None

    network = parse(lambda: read_network(request.network))
    training = parse(lambda: Training.parse(request.training, "training"))
    resources = parse(lambda: Resources.parse(request.resources, "resources"))
    if not (network and training and resources):
        raise InputError("\n".join(wrong), where="parameters of train")
    resources, env = apply_task_config(resources, request.step)
    snapshot = Snapshot.open(request.training_set, request.data_version)
    processes = resources.nodes * resources.processes
    resolved = resolve_training(training, network, snapshot, degrees_of(training.parallel, processes).parts)
    # Live curves go to KFP's run if there is one, else to the configured server.
    destination, tracking = kfp_destination(), training.tracking
    if destination is None and tracking.uri:
        destination = TrackingDestination(tracking.uri, experiment=tracking.experiment)
    config = TrainConfig(
        attempt="",
        home="",
        training_set=str(request.training_set.absolute()),
        data_version=request.data_version,
        network=network.model_dump(mode="json"),
        training=resolved.model_dump(mode="json"),
        processes=processes,
        gpus=resources.gpus,
        destination=dataclasses.asdict(destination) if destination else {},
        failed_report=failed_report_prefix(request.run),
    )
    return config, resources, env, snapshot


def _write_config(config: TrainConfig, folder: Path, launcher: str, resources: Resources) -> None:
    """Write the configuration into the attempt's folder; on a cluster, copy the training set, too."""
    training_set, environment = Path(config.training_set), tracking.environment()
    if launcher != "local":
        target = Path(resources.mount) / "trainwright" / "snapshots" / config.data_version
        if not (target / Snapshot.FILE).exists():
            publish(training_set, target, keep=True)
        elif (training_set / Record.FILE).exists():
            # The rows are those of an earlier run; who made them, and how they were judged, is of this one.
            Record.read(training_set).write(target)
            Snapshot.read(training_set).write(target)  # so may be the location of files by reference
        training_set = target
    dataclasses.replace(
        config,
        attempt=folder.name,
        home=str(folder.parent.parent),
        training_set=str(training_set),
        launched_by={
            "launcher": launcher,
            "environment": environment.name,
            "lock_sha256": environment.lock_sha256,
        },
    ).write(folder)


def _job(prepared: _Prepared, folder: Path, task: str) -> Job:
    request, config, resources = prepared.request, prepared.config, prepared.resources
    on_cluster = prepared.launcher != "local"
    return Job(
        run=request.run,
        task=task,
        image=request.image,
        program=("-m", "trainwright.train", f"{FOLDER_PLACEHOLDER}/{TrainConfig.FILE}"),
        folder=folder,
        specification=digest_text(canonical(config.job_settings)),
        nodes=resources.nodes,
        processes=resources.processes,
        cpu=resources.cpu,
        memory_gib=resources.memory_gib,
        gpus=resources.gpus,
        timeout_s=resources.timeout_s,
        restarts=resources.restarts,
        grace_s=resources.grace_s,
        stall_s=config.settings.guards.stall_s,
        # cuBLAS is deterministic only with a fixed workspace.
        env={**prepared.env, **({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if resources.gpus else {})},
        claim=resources.claim if on_cluster else "",
        mount=resources.mount if on_cluster else "",
        placement=resources.placement if on_cluster else JobPlacement(),
        budget=resources.budget,
    )


def _collect(result: Result) -> Submitted:
    """Check that the outputs in the attempt's folder match its completion marker."""
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
        raise InternalError(f"{', '.join(wrong)} differ from the completion marker", where=str(folder))
    return Submitted(model.digest, predictions.digest, model.metrics)


def _describe_job(folder: Path, templates: Mapping[str, str]) -> tuple[str, str]:
    """Return the links of an attempt's job as text, and as Markdown with the commands that show the job."""
    if not (folder / JobReference.FILE).exists():  # a local job has none
        return "", ""
    job = JobReference.read(folder)
    values = {"{kind}": job.kind.lower(), "{namespace}": job.namespace, "{name}": job.name}
    pattern = "|".join(map(re.escape, values))
    links = {
        title: re.sub(pattern, lambda found: values[found[0]], template)
        for title, template in templates.items()
    }
    listed = "".join(f"- [{markdown.escape(title)}]({url})\n" for title, url in links.items())
    commands = "\n".join(job.commands)
    page = f"\n{job.kind} `{job.namespace}/{job.name}`\n\n{listed}\n```\n{commands}\n```\n"
    return ", ".join(f"{title}: {url}" for title, url in links.items()), page


def _compared(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the rows of the summary about the candidates of ``network.kind: auto``."""
    if "held_out_rows" not in metrics:
        return []
    prefix = "held_out_loss_"
    losses = {
        name.removeprefix(prefix).replace("constant", "a constant prediction"): loss
        for name, loss in metrics.items()
        if name.startswith(prefix)
    }
    error = metrics.get("held_out_gain_error")
    gain = f"{metrics['held_out_gain']:.4f}" + ("" if error is None else f" (standard error {error:.4f})")
    return [
        ("Held-out rows, not trained on", f"{metrics['held_out_rows']:,.0f}"),
        *((f"Held-out loss, {kind}", f"{loss:.4f}") for kind, loss in losses.items()),
        ("Held-out loss of the other candidate, minus this one's", gain),
    ]


def _input_rates(model: Path) -> list[tuple[str, str]]:
    """Return the rows of the summary about the input of a network: what its steps needed and got."""
    history = TrainingHistory.read(model / HISTORY_FILE)
    names = {
        "input_needed_per_s": "Samples/s that the steps need",
        "input_given_per_s": "Samples/s that the input gives",
    }
    found = [(title, history.curve(name)[1]) for name, title in names.items()]
    return [(title, f"{values[-1]:,.0f}") for title, values in found if values]


def _summarize(model: Path, submitted: Submitted) -> str:
    record, metrics = Record.read(model), submitted.metrics
    unit = "round" if "rounds_kept" in metrics else "epoch"
    rows = [
        ("Training rows", f"{metrics['rows']:,.0f}"),
        ("Rows without a label, not used", f"{metrics['rows_without_label']:,.0f}"),
        *([("Share of the second class", f"{metrics['base_rate']:.1%}")] if "base_rate" in metrics else []),
        (f"Mean loss, first {unit}", f"{metrics['first_epoch_loss']:.4f}"),
        (f"Mean loss, last {unit}", f"{metrics['train_loss']:.4f}"),
        ("Loss of a constant prediction", f"{metrics['base_rate_loss']:.4f}"),
        *_compared(metrics),
        *_input_rates(model),
        ("Model version", submitted.model_version[:12]),
        ("Predictions version", submitted.predictions_version[:12]),
    ]
    table = markdown.table(["Figure", "Value"], rows, numeric=[1])
    return (
        f"**{markdown.escape(record.headline)}**\n\n{table}\n"
        "Next: `evaluate` judges the predictions on a split that was not trained on.\n"
    )


def write_usage(result: Result) -> None:
    """Write what a job used beside its model, unless an earlier attempt at the step has done so."""
    model = result.folder / "model"
    if not (model / JobUsage.FILE).exists():
        history = TrainingHistory.read(result.folder.parent.parent / HISTORY_FILE)
        job_usage(history, result.seconds).write(model)


def job_usage(history: TrainingHistory, seconds: float) -> JobUsage:
    """Return what a job used, from its curves and the time that it held its pods."""
    starts = [event for event in history.events if event.get("event") == "began"]
    stepping = repeated = 0.0
    for start, following in zip_longest(starts, starts[1:]):
        began, end = float(start["time_ms"]), following["time_ms"] if following else math.inf
        taken = [(point.time_ms, point.step) for point in history.points if began <= point.time_ms < end]
        last = max((time_ms for time_ms, _ in taken), default=began)
        stepping += last - began
        # Each candidate of several starts at step 0; a second start of the same one repeats.
        if following and following.get("candidate") == start.get("candidate"):
            saved = [time_ms for time_ms, step in taken if step <= following["step"]]
            repeated += last - max(saved, default=began)
    total = max(seconds, stepping / 1000)
    used = [
        value
        for point in history.points
        for name, value in point.values.items()
        if name.rpartition("/")[2] == "gpu_use"  # of one candidate: trees/gpu_use
    ]
    return JobUsage(
        seconds=round(total, 3),
        idle_s=round(total - stepping / 1000, 3),
        repeated_s=round(repeated / 1000, 3),
        gpu_use=round(fmean(used), 4) if used else None,
    )


@contextmanager
def next_attempt_folder(
    run: str, decisive: Mapping[str, Any], launcher: str, resources: Resources, model: Path
) -> Iterator[Path]:
    """Create a folder for the next attempt; remove the job directory once the attempt has succeeded.

    On a cluster, the attempt's outputs stay: the platform stores them only after the step has ended, and a
    step that is lost meanwhile runs again. The janitor removes such directories later.

    ``run``, which is the same at every retry, and the ``decisive`` settings identify the training.

    Raises:
        DependencyError: The volume is not mounted, or another process runs the same training.
        PermissionRefused: This step may not write there.
        InputError: The path cannot be a folder.
    """
    name = digest_text(canonical([run, dict(decisive)]))[:16]
    if launcher == "local":
        directory = model.absolute().with_name(f".{model.name}.job-{name}")
        if not directory.exists():
            _report_unfinished(directory, decisive)
        _create_directory(directory)
        with locked_attempt(directory) as folder:
            yield folder
        return
    _require_mounted(resources)
    directory = Path(resources.mount) / "trainwright" / "jobs" / name
    _create_directory(directory)
    yield create_attempt(directory)
    remove_checkpoints(directory)


@contextmanager
def next_trial_folder(directory: Path, launcher: str, resources: Resources) -> Iterator[Path]:
    """Create a folder for the next attempt at a trial; remove the job directory once it has succeeded.

    Raises:
        DependencyError: The volume is not mounted, or another process runs the same trial.
    """
    if launcher == "local":
        with locked_attempt(directory) as folder:
            yield folder
        return
    _require_mounted(resources)
    yield create_attempt(directory)
    remove_job_directory(directory)


def _require_mounted(resources: Resources) -> None:
    if not Path(resources.mount).is_dir():
        raise DependencyError(
            f"claim {resources.claim!r} is not mounted in this step",
            where=f"resources.mount {resources.mount}",
            hint="Mount it in the pipeline: kubernetes.mount_pvc(task, pvc_name=..., mount_path=...).",
        )


def _report_unfinished(directory: Path, decisive: Mapping[str, Any]) -> None:
    """Report why an unfinished training of the same output is not resumed."""
    for other in sibling_directories(directory):
        folder = newest_attempt(other)
        if folder and (folder / TrainConfig.FILE).exists():
            changes = differences(TrainConfig.read(folder).decisive, decisive) or ["run is another"]
            sys.stderr.write(
                f"An unfinished training of this output is not resumed: {'; '.join(changes[:_SHOWN])}. "
                "This one starts from step 0.\n"
            )


def _create_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if (known := in_our_words(error)) is not error:
            raise known from None
        what = f"the job directory cannot be created: {error.strerror}"
        raise InputError(what, where=str(directory), hint="Name an output that can be a folder.") from None
