"""The trainers of each kind of model: from a snapshot to a model's folder and its predictions."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import serving
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import InternalError
from trainwright.experiment import (
    Auto,
    FeatureTokenizer,
    Imported,
    LanguageModel,
    Mlp,
    ResolvedTraining,
    Tabular,
    Trees,
)
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import no_labels, no_scores, write_losses, write_predictions
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.architectures.imported import code_digest
from trainwright.train.comparison import compare
from trainwright.train.config import input_kinds
from trainwright.train.feeding.rows import EncodedRows, RowSource, count_labels, encode, fit
from trainwright.train.feeding.target import (
    HoldOut,
    LabelStats,
    base_loss,
    check_labels,
    choose_threshold,
    class_weights,
    merge_labels,
    require_in_range,
    score_rows,
    target_of,
    unknown_class,
)
from trainwright.train.feeding.tokens import (
    TokenSequences,
    TokenSource,
    count_tokens,
    encode_tokens,
    total_counts,
)
from trainwright.train.fit import TrainingRun, fit_metrics, fit_network
from trainwright.train.loop import FitResult
from trainwright.train.model_folder import FittedLanguageModel, FittedNetwork
from trainwright.train.process_group import Coordinator, Ranks, barrier
from trainwright.transforms import Transforms

if TYPE_CHECKING:
    from trainwright.train.trees import TrainedTrees

WriteModel: TypeAlias = Callable[[Path, Path], tuple[Model, Snapshot]]
"""Writes the model's folder, and the scores of the splits to predict, into two folders.

Raises DataRefused if there is nothing to score, and Diverged if a score is not finite.
"""


def train(run: TrainingRun) -> tuple[FitResult, WriteModel]:
    """Train the configured model; all processes call this together, and rank 0 may write it then.

    Raises:
        InputError: A column, a label, a token or the user's module is not valid.
        DataRefused: There is nothing to learn.
    """
    network = run.config.model
    if isinstance(network, LanguageModel):
        return _train_on_tokens(run, network)
    result, fitted, outputs = _fit_on_rows(run, network)
    return result, partial(_write_row_model, run, fitted, outputs)


def train_trial(run: TrainingRun) -> tuple[FitResult, Callable[[], dict[str, float]]]:
    """Train likewise; rank 0 may measure the held-out rows then, and nothing is written."""
    network = run.config.model
    if isinstance(network, LanguageModel):
        result, _ = _train_on_tokens(run, network)
        return result, partial(loss_metrics, result)
    result, fitted, outputs = _fit_on_rows(run, network)
    return result, lambda: loss_metrics(result) | held_out_metrics(run, outputs.kind, fitted.predict)


@dataclass(frozen=True)
class TrainingRows:
    """A training split of rows: fitted transforms, labels, target and encoded rows with class weights.

    All attempts at the training share the encoded rows in the folder ``encoded``.
    """

    source: RowSource
    training: ResolvedTraining
    job_directory: Path
    encoded: Path
    ranks: Ranks
    transforms: Transforms
    labels: LabelStats
    target: Target
    rows: EncodedRows

    @classmethod
    def of(
        cls,
        source: RowSource,
        network: Tabular,
        training: ResolvedTraining,
        job_directory: Path,
        ranks: Ranks,
        encoded: Path | None = None,
    ) -> Self:
        """Read a split; all processes call this together.

        Raises:
            InputError: A label is not valid, or the objective does not suit it.
            DataRefused: There are not two classes or two different numbers.
        """
        folder = encoded or job_directory / "encoded"
        source = replace(source, hold_out=HoldOut.of(training, inside=False))
        transforms, parts = fit(source, network, ranks, folder)
        labels = merge_labels(parts)
        target = target_of(labels, source.snapshot.target, source.label)
        weights = class_weights(target, training.objective)
        rows = encode(source, transforms, parts, folder, ranks, training.feeding, weights)
        return cls(source, training, job_directory, folder, ranks, transforms, labels, target, rows)

    @property
    def outputs(self) -> Outputs:
        """Outputs of a model of these rows, without a threshold."""
        classes = 0 if self.target.kind == "regression" else len(self.target.rates)
        if self.target.kind == "tokens":
            raise InternalError("rows have no tokens to predict")
        names = self.source.snapshot.target.classes
        return Outputs(self.target.kind, self.source.label, classes, names=names)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the rows for the model's manifest."""
        found = {
            "base_rate_loss": base_loss(self.target, self.training.objective),
            "rows": float(self.labels.rows),
            "rows_without_label": float(self.labels.missing),
        }
        if self.source.hold_out:
            found["rows_held_out"] = float(self.source.snapshot.splits[self.source.split]) - sum(
                (self.labels.rows, self.labels.missing)
            )
        return found | ({"base_rate": self.target.rates[1]} if self.target.kind == "binary" else {})

    def watched(self) -> EncodedRows | None:
        """Encode the rows for early stopping with these transforms; None if there are none."""
        early = self.training.guards.early_stopping
        if early is None:
            return None
        hold_out, ranks = HoldOut.of(self.training, inside=True), self.ranks
        source = replace(self.source, split=early.split or self.source.split, hold_out=hold_out)
        parts = count_labels(source, ranks)
        found = merge_labels(parts)
        if not found.rows:
            raise no_labels([source.split], source.snapshot)
        require_in_range(found, source.snapshot.target, source.label, source.split)
        classes = self.outputs.classes
        if classes and found.classes > classes:
            raise unknown_class(source.label, found.classes - 1, classes, source.split)
        weights, feeding = class_weights(self.target, self.training.objective), self.training.feeding
        return encode(source, self.transforms, parts, self.encoded, ranks, feeding, weights)


def _fit_on_rows(
    run: TrainingRun, network: Mlp | FeatureTokenizer | Imported | Trees | Auto
) -> tuple[FitResult, "FittedNetwork | TrainedTrees", Outputs]:
    training, ranks = run.training, run.ranks
    encoding = network.encoding if isinstance(network, Trees | Auto) else network
    source = RowSource(run.training_set, run.snapshot, training.split, input_kinds(run.snapshot))
    config = run.config
    rows = TrainingRows.of(source, encoding, training, config.job_directory, ranks, config.encoded_folder)
    check_labels(run.training_set, run.snapshot, training.predict, rows.outputs, ranks)
    if isinstance(network, Auto):
        result, fitted = _fit_candidates(run, network, rows)
    else:
        result, fitted = _fit_rows(run, network, rows)
    return result, fitted, rows.outputs


def _fit_candidates(
    run: TrainingRun, network: Auto, rows: TrainingRows
) -> tuple[FitResult, "FittedNetwork | TrainedTrees"]:
    """Fit each candidate on the same rows, and keep the better one on the held-out rows.

    The candidates share the job directory: each resumes from its own checkpoints, a finished one at its end.
    """
    results: dict[str, FitResult] = {}
    fitted: dict[str, FittedNetwork | TrainedTrees] = {}
    for candidate in network.candidates:
        config = replace(run.config, network=candidate.model_dump(mode="json"))
        run.recorder.begin_candidate(candidate.kind)
        results[candidate.kind], fitted[candidate.kind] = _fit_rows(
            replace(run, config=config), candidate, rows
        )
    held_out = rows.watched()
    if held_out is None:
        raise InternalError("there are no held-out rows to compare the candidates on")
    # Rank 0 alone has the whole network.
    comparison = Coordinator(run.ranks, run.ranks.patient).on_leader(
        lambda: compare(fitted, held_out, rows.target, run.training.objective)
    )
    kept = fitted[comparison.kept]
    return replace(results[comparison.kept], comparison=comparison), kept.with_comparison(comparison.metrics)


def _fit_rows(
    run: TrainingRun, network: Mlp | FeatureTokenizer | Imported | Trees, rows: TrainingRows
) -> tuple[FitResult, "FittedNetwork | TrainedTrees"]:
    ranks, config = run.ranks, run.config.for_model(run.ranks.size)
    if isinstance(network, Trees):
        from trainwright.train.trees import train_trees

        barrier(ranks)
        with Heartbeat(run.folder, ranks.rank, run.training.guards.stall_s) as heartbeat:
            observers = [run.recorder]
            trees = train_trees(rows, network, observers, run.stop.requested, config=config, pulse=heartbeat)
        return trees.result, trees
    architecture, inputs = make(network), Inputs(rows.target, rows.transforms)
    module, result = fit_network(run, architecture, inputs, rows.rows, rows.watched(), rows.rows.labels)
    fitted = FittedNetwork(
        module=module,
        architecture=architecture,
        transforms=rows.transforms,
        source=rows.source,
        config=config,
        metrics=fit_metrics(result) | rows.metrics,
        outputs=rows.outputs,
        parents=code_digest(network),
    )
    return result, fitted


def _write_row_model(
    run: TrainingRun, fitted: "FittedNetwork | TrainedTrees", outputs: Outputs, model: Path, predictions: Path
) -> tuple[Model, Snapshot]:
    """Choose the threshold, write the model, and score the splits with the written model."""
    folder, snapshot, training = run.training_set, run.snapshot, run.training
    threshold = choose_threshold(folder, snapshot, training, outputs, fitted.predict)
    outputs = replace(outputs, threshold=threshold)
    written = fitted.write(model, outputs)
    predictor = serving.load(model)
    scored = write_predictions(predictions, folder, snapshot, training.predict, predictor, outputs)
    return written, scored


def _train_on_tokens(run: TrainingRun, network: LanguageModel) -> tuple[FitResult, WriteModel]:
    source = TokenSource(run.training_set, run.snapshot, run.training.split, network)
    samples, metrics = _encode_tokens(run, source)
    early = run.training.guards.early_stopping
    watched = None
    if early and early.split:
        watched, _ = _encode_tokens(run, replace(source, split=early.split))
    for split in run.training.predict:
        scored = replace(source, split=split)
        # Read every token that will be scored: an invalid one must not fail after the training.
        for file in range(run.ranks.rank, len(scored.files), run.ranks.size):
            for _ in scored.read(file):
                pass
    architecture = make(network)
    no_classes = np.empty(0, dtype=np.int64)  # balanced sampling of tokens is rejected before
    module, result = fit_network(
        run, architecture, Inputs(Target("tokens")), samples, watched, lambda: no_classes
    )
    config = run.config.for_model(run.ranks.size)
    fitted = FittedLanguageModel(module, architecture, source, config, fit_metrics(result) | metrics)

    def write(model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        written, splits = fitted.write(model), run.training.predict
        predictor = serving.load_language_model(model)
        scored = write_losses(predictions, run.training_set, run.snapshot, splits, network, predictor)
        if error := no_scores(scored, splits):
            raise error
        return written, scored

    return result, write


def _encode_tokens(run: TrainingRun, source: TokenSource) -> tuple[TokenSequences, dict[str, float]]:
    counts = count_tokens(source, run.ranks)
    total = total_counts(counts)
    folder = run.config.encoded_folder
    return encode_tokens(source, counts, folder, run.ranks, run.training.feeding), {
        "rows": float(total.rows),
        "rows_without_label": 0.0,
        "sequences": float(total.sequences),
        "tokens": float(total.tokens),
        "tokens_dropped": float(total.dropped),
        "base_rate_loss": math.log(source.network.token_ids),
    }


def loss_metrics(result: FitResult) -> dict[str, float]:
    """Return the training loss, and the held-out loss of the weights that are used."""
    metrics = {"train_loss": result.losses[-1]}
    if result.comparison:
        metrics["held_out_loss"] = result.comparison.losses[result.comparison.kept]
    elif result.watched_loss is not None:
        metrics["held_out_loss"] = result.watched_loss
    return metrics


def held_out_metrics(
    run: TrainingRun, kind: str, predict: Callable[[pa.RecordBatch], NDArray[np.float64]]
) -> dict[str, float]:
    """Return the metrics that a kind of target defines; empty if no rows are held out."""
    training = run.training
    early = training.guards.early_stopping
    if early is None:
        return {}
    hold_out, split = HoldOut.of(training, inside=True), early.split or training.split
    labels, scores = score_rows(run.training_set, run.snapshot, split, hold_out, predict)
    if kind == "regression":
        return {"held_out_rmse": float(np.sqrt(np.square(scores - labels).mean()))}
    if kind == "multiclass":
        return {"held_out_accuracy": float((scores.argmax(axis=1) == labels).mean())}
    return {
        "held_out_accuracy": float(((scores >= 0.5) == labels).mean()),  # noqa: PLR2004 - the usual threshold
        "held_out_auc": area_under_curve(labels, scores),
    }


def area_under_curve(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Return the ROC AUC as the Mann-Whitney statistic, ties counted half; 0.5 with one class alone."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int((labels == 1).sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return 0.5
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))
