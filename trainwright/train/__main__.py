"""The program of each process of a job: ``python -m trainwright.train SPEC.json``, under torchrun."""

import os
import shutil
import sys
from pathlib import Path

from trainwright.imports import uncollected

with uncollected():
    from trainwright.artifacts import Record, Snapshot
    from trainwright.experiment import LanguageModel
    from trainwright.launch.agent.rank_errors import reported_rank
    from trainwright.launch.job_directory import Completion
    from trainwright.tracking import Stopwatch
    from trainwright.tracking.history import HISTORY_FILE
    from trainwright.train.config import TrainConfig, TrialMetrics
    from trainwright.train.fit import TrainingRun
    from trainwright.train.loop import FitResult
    from trainwright.train.parallel import make_deterministic
    from trainwright.train.process_group import process_group
    from trainwright.train.recorder import TrainingRecorder, hardware
    from trainwright.train.stop_signal import StopSignal, exit_without_threads, handle_stop_signals
    from trainwright.train.trainers import WriteModel, train, train_trial


def main(path: Path, stop: StopSignal) -> None:
    """Train, and write the model, the predictions and the completion marker beside the configuration."""
    watch = Stopwatch()
    config, folder = TrainConfig.read(path), path.parent
    snapshot = Snapshot.open(Path(config.training_set), config.data_version)
    make_deterministic()
    with (
        process_group(config.gpus, config.settings.guards.collective_s) as ranks,
        TrainingRecorder(config, ranks, folder) as recorder,
    ):
        run = TrainingRun(config, snapshot, folder, ranks, recorder, stop)
        if config.trial:
            _, measure = train_trial(run)
        else:
            result, write = train(run)
        stop.finish()
    if ranks.leads and config.trial:
        metrics = TrialMetrics(metrics=measure())
        metrics.write(folder)
        Completion(attempt=config.attempt, outputs={"metrics": metrics.digest}).write(folder)
    elif ranks.leads:
        _write_outputs(run, result, write, watch)


def _write_outputs(run: TrainingRun, result: FitResult, write: WriteModel, watch: Stopwatch) -> None:
    """Write all outputs, the completion marker last."""
    folder, config = run.folder, run.config
    _remove_partial_outputs(folder)
    model, scored = write(folder / "model", folder / "predictions")
    digests = {"model": model.digest, "predictions": scored.digest}
    unit = "sequences" if isinstance(config.model, LanguageModel) else "rows"
    headline = (
        f"loss {result.losses[-1]:.4f} after {result.steps:,} steps, {result.samples_per_s:,.0f} {unit}/s"
    )
    if result.comparison:
        headline = str(result.comparison)
    facts = [
        ("model", model.digest[:12]),
        ("data", config.data_version[:12]),
        ("kind", model.kind),
        ("processes", run.ranks.size),
        ("rows", f"{model.metrics['rows']:,.0f}"),
        ("loss of the last epoch", f"{model.metrics['train_loss']:.4f}"),
        ("loss of a constant prediction", f"{model.metrics['base_rate_loss']:.4f}"),
    ]
    run.recorder.draw(headline, facts, result=result)
    watch.record(
        folder / "model",
        "train",
        headline,
        config={
            **config.for_model(run.ranks.size),
            "launched_by": config.launched_by,
            "hardware": hardware(),
        },
        inputs={"training_set": config.data_version},
        outputs=digests,
        parents=[run.training_set],
    )
    shutil.copyfile(config.job_directory / HISTORY_FILE, folder / "model" / HISTORY_FILE)
    # The predictions are an input of another step: its lineage follows this record back to the data.
    shutil.copyfile(folder / "model" / Record.FILE, folder / "predictions" / Record.FILE)
    Completion(attempt=config.attempt, outputs=digests).write(folder)


def _remove_partial_outputs(folder: Path) -> None:
    """Remove the outputs of an earlier start that was lost while it wrote, the marker first."""
    (folder / Completion.FILE).unlink(missing_ok=True)
    for name in ("model", "predictions"):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    spec = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    with exit_without_threads(), reported_rank(spec.parent, rank), handle_stop_signals() as stop_signal:
        main(spec, stop_signal)
