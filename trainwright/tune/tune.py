"""The step: search hyperparameters, confirm the best trials, and return the sections of the winner."""

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.documents import canonical, digest_text
from trainwright.experiment import Training
from trainwright.tracking import Stopwatch
from trainwright.tracking.history import MLFLOW_KEY, TrackingDestination, kfp_destination
from trainwright.train.config import TrialMetrics
from trainwright.train.submit import TrainRequest
from trainwright.tune.checks import SearchPlan, check_search, study_folder
from trainwright.tune.confirm import Retrained, best_trials, confirm, seeds_of, unconfirmed
from trainwright.tune.controller import ENCODED, TRIALS, SearchClock, run_all, search
from trainwright.tune.page import summary as summarize
from trainwright.tune.page import write_page
from trainwright.tune.report import Confirmation, StudyReport, Trial
from trainwright.tune.study import open_study
from trainwright.tune.tracking import StudyServer, StudyTracking, TrialLines, TrialObserver
from trainwright.tune.trial import TrialCurves, TrialFailure


@dataclass(frozen=True)
class Tuned:
    """The winner's sections, the outcome, and figures for the run's page."""

    network: dict[str, Any]
    training: dict[str, Any]
    outcome: str
    metrics: dict[str, float]


def tune(request: TrainRequest, tuning: Any, study: Path, summary: Path, report: Path) -> Tuned:
    """Search, confirm, and write the study to the step's outputs.

    Args:
        request: The training of the default configuration; ``run`` is the address of the study artifact.
        tuning: Section ``tuning`` of the experiment.
        study: Output folder of ``study.json``.
        summary: Output file of the Markdown summary.
        report: Output file of the page.

    Raises:
        InputError: A parameter is wrong, or the named study has other trials; before the first trial.
        TrainwrightError: The error of a trial that the search cannot continue after; the next run of the step
            continues the study.
    """
    watch = Stopwatch()
    plan = check_search(request, tuning)
    digest = digest_text(canonical([request.run, plan.identity]))[:16]
    folder = study_folder(plan, study, digest)
    name = plan.tuning.study or digest
    server = _server(plan, name)
    found = _run_study(plan, folder, name, server)
    study.mkdir(parents=True, exist_ok=True)
    found.write(study)
    write_page(report, found)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summarize(found))
    watch.record(
        study,
        "tune",
        _headline(found),
        config=found.tuning | ({MLFLOW_KEY: server.key} if server else {}),
        inputs={"training_set": request.data_version},
        outputs={"study": found.digest},
        parents=[request.training_set],
    )
    if plan.launcher == "local" and not plan.tuning.study:
        shutil.rmtree(folder)
    else:  # its trials stay: a lost step runs again, and a named study continues
        shutil.rmtree(folder / ENCODED, ignore_errors=True)
    return Tuned(found.network, found.training, found.confirmation.outcome, _metrics(found))


def _run_study(plan: SearchPlan, folder: Path, name: str, server: StudyServer | None) -> StudyReport:
    """Search and confirm, or continue both where a killed step left them."""
    tuning = plan.tuning
    shared = plan.launcher != "local"
    with (
        open_study(folder, plan.identity, plan.space, shared=shared) as study,
        contextlib.closing(StudyTracking(server)) as tracking,
    ):
        observer = _Observers([TrialLines(sys.stderr, tuning.direction), tracking])
        ended = search(study, plan, folder=folder, observer=observer, destination=tracking.destination)
        clock = time.monotonic()
        confirmation, confirmation_s = _confirm(plan, folder, study.trials, tracking)
        params = {trial.number: trial.params for trial in study.trials}
        winner = params[confirmation.winner] if confirmation.winner is not None else {}
        network, training = plan.sections(winner)
        report = StudyReport(
            study=name,
            data_version=plan.request.data_version,
            metric=tuning.metric,
            direction=tuning.direction,
            tuning=tuning.model_dump(mode="json"),
            trials=study.trials,
            confirmation=confirmation,
            network=network,
            training=training,
            importances=study.importances(),
            ended=ended,
            seconds=round(SearchClock.of(folder).seconds + time.monotonic() - clock, 3),
            cost=_total_cost(plan, study.trials, confirmation_s),
        )
        tracking.finish(report)
    return report


def _server(plan: SearchPlan, name: str) -> StudyServer | None:
    """Return the MLflow run of Kubeflow Pipelines, else the configured server; None without any."""
    destination, settings = kfp_destination(), Training.check(plan.space.training, "training").tracking
    if destination is None and settings.uri:
        destination = TrackingDestination(settings.uri, experiment=settings.experiment, name=f"study {name}")
    if destination is None:
        return None
    return StudyServer(destination, digest_text(canonical([name, plan.identity]))[:16])


class _Observers(TrialObserver):
    """Passes what the trials do to several observers."""

    def __init__(self, observers: Sequence[TrialObserver]) -> None:
        self._observers = observers

    def on_start(self, trial: Trial) -> None:
        for one in self._observers:
            one.on_start(trial)

    def on_wait(self, trial: Trial, sentence: str) -> None:
        for one in self._observers:
            one.on_wait(trial, sentence)

    def on_end(self, trial: Trial) -> None:
        for one in self._observers:
            one.on_end(trial)


def _confirm(
    plan: SearchPlan, folder: Path, trials: Sequence[Trial], tracking: StudyTracking
) -> tuple[Confirmation, float]:
    """Train the default and the best trials on new seeds, and compare them; with their seconds."""
    settings, direction = plan.tuning.confirm, plan.tuning.direction
    best = best_trials(trials, direction, max(settings.top, 1))
    if not best or not settings.top:
        why = "tuning.confirm.top is 0" if best else "there is nothing to confirm"
        return unconfirmed(best[0] if best else None, why), 0.0
    seed = Training.check(plan.space.training, "training").seed
    seeds = seeds_of(seed, settings.seeds)
    params: dict[str, dict[str, Any]] = {"default": {}} | {
        f"trial-{trial.number}": trial.params for trial in best
    }
    # Seed by seed: all trainings with a seed share their encoded samples.
    requests = {
        f"{name}-seed-{number}": _with_seed(plan, params[name], number) for number in seeds for name in params
    }
    results = run_all(
        folder,
        requests,
        plan.resources,
        parallel=plan.tuning.parallel,
        destination=tracking.destination,
        on_end=lambda name, result: _print_result(name, result, plan.tuning.metric),
    )

    def retrained(name: str, trial: int | None) -> Retrained:
        found = [results[f"{name}-seed-{number}"] for number in seeds]
        values = [one.metrics[plan.tuning.metric] if isinstance(one, TrialMetrics) else None for one in found]
        return Retrained(trial, params[name], values)

    confirmation = confirm(
        retrained("default", None),
        [retrained(f"trial-{trial.number}", trial.number) for trial in best],
        seeds,
        direction=direction,
        level=settings.level,
    )
    return confirmation, sum(_seconds(folder / TRIALS / name) for name in requests)


def _with_seed(plan: SearchPlan, params: Mapping[str, Any], seed: int) -> TrainRequest:
    network, training = plan.space.sections(params)
    return dataclasses.replace(plan.request, network=network, training=training | {"seed": seed})


def _print_result(name: str, result: TrialMetrics | TrialFailure, metric: str) -> None:
    text = f"{result.metrics[metric]:.5g}" if isinstance(result, TrialMetrics) else result.sentence
    sys.stderr.write(f"confirm {name.replace('-', ' ')}: {text}\n")


def _seconds(folder: Path) -> float:
    curves = TrialCurves(folder)
    curves.read()
    return curves.seconds


def _total_cost(plan: SearchPlan, trials: Sequence[Trial], confirmation_s: float) -> float | None:
    if plan.job_hour is None:
        return None
    return sum(trial.cost or 0.0 for trial in trials) + confirmation_s / 3600 * plan.job_hour


def _headline(report: StudyReport) -> str:
    best = best_trials(report.trials, report.direction, 1)
    value = f", best {report.metric} {best[0].value:.4g}" if best else ""
    winner = report.confirmation.winner
    outcome = (
        "the default is kept" if winner is None else f"trial {winner} wins, {report.confirmation.outcome}"
    )
    return f"{len(report.trials):,} trials{value}: {outcome}"


def _metrics(report: StudyReport) -> dict[str, float]:
    """Return the figures for the run's page."""
    best = best_trials(report.trials, report.direction, 1)
    found = {"trials": float(len(report.trials)), "seconds": report.seconds}
    if best and best[0].value is not None:
        found[f"best_{report.metric}"] = best[0].value
    return found | ({} if report.cost is None else {"cost": report.cost})
