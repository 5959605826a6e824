"""The trainers of each kind of model: from a snapshot to a model's folder and its predictions."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import serving
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import InputError, InternalError
from trainwright.experiment import FeatureTokenizer, Imported, LanguageModel, Mlp, Tabular, Training, Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_losses, write_predictions
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.architectures.imported import code_digest
from trainwright.train.config import input_kinds
from trainwright.train.feeding.rows import EncodedRows, RowSource, encode, fit
from trainwright.train.feeding.target import (
    LabelStats,
    base_loss,
    check_labels,
    choose_threshold,
    class_weights,
    merge_labels,
    resolve_labels,
    target_of,
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
from trainwright.train.process_group import Ranks, barrier
from trainwright.transforms import Transforms


class TrainedModel(Protocol):
    """A trained model that is not written yet."""

    @property
    def result(self) -> FitResult:
        """The result of the fit."""
        ...

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Write the model's folder, and the scores of the splits kept for evaluation.

        Raises:
            DataRefused: There is nothing to score.
            Diverged: A score is not finite.
        """
        ...


def train(run: TrainingRun) -> TrainedModel:
    """Train the configured model; all processes call this together, and end with the same one.

    Raises:
        InputError: A column, a label, a token or the user's module is not valid.
        DataRefused: There is nothing to learn.
    """
    network = run.config.model
    if isinstance(network, LanguageModel):
        return _train_on_tokens(run, network)
    return _train_on_rows(run, network)


@dataclass(frozen=True)
class TrainingRows:
    """A training split of rows: fitted transforms, labels, target and encoded rows.

    Attributes:
        source: The split.
        network: Encoding of its columns.
        training: Settings of the training.
        job_directory: Folder that all attempts at the training share, for encoded rows.
        ranks: The processes.
        transforms: The fitted transforms.
        labels: Statistics of its labels.
        target: The target of the training.
        rows: Its encoded rows, with class weights.
    """

    source: RowSource
    network: Tabular
    training: Training
    job_directory: Path
    ranks: Ranks
    transforms: Transforms
    labels: LabelStats
    target: Target
    rows: EncodedRows

    @classmethod
    def of(
        cls, source: RowSource, network: Tabular, training: Training, job_directory: Path, ranks: Ranks
    ) -> Self:
        """Read a split; all processes call this together.

        Raises:
            InputError: A label is not valid, or the objective does not suit it.
            DataRefused: There are not two classes or two different numbers.
        """
        objective, folder = training.objective, job_directory / "encoded"
        transforms, parts = fit(source, network, ranks, objective.kind, folder)
        labels = resolve_labels(merge_labels(parts), objective.kind, source.label, source.split)
        target = target_of(labels, source.label, objective)
        weights = class_weights(target, objective)
        rows = encode(source, transforms, parts, folder, ranks, training.feeding, objective.kind, weights)
        return cls(source, network, training, job_directory, ranks, transforms, labels, target, rows)

    @property
    def inputs(self) -> Inputs:
        """The description of the samples for an architecture."""
        return Inputs(self.target, self.transforms)

    @property
    def outputs(self) -> Outputs:
        """Outputs of a model of these rows, without a threshold."""
        classes = 0 if self.target.kind == "regression" else len(self.target.rates)
        if self.target.kind == "tokens":
            raise InternalError("rows have no tokens to predict")
        return Outputs(self.target.kind, self.source.label, classes)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the rows for the model's manifest."""
        found = {
            "base_rate_loss": base_loss(self.target, self.training.objective),
            "rows": float(self.labels.rows),
            "rows_without_label": float(self.labels.missing),
        }
        return found | ({"base_rate": self.target.rates[1]} if self.target.kind == "binary" else {})

    def watched(self) -> EncodedRows | None:
        """Encode the split for early stopping with these transforms; None if there is none.

        Raises:
            InputError: It has a class that the training split does not have.
        """
        early = self.training.guards.early_stopping
        if early is None:
            return None
        source, kind = replace(self.source, split=early.split), self.outputs.kind
        folder = self.job_directory / "encoded"
        _, parts = fit(source, self.network, self.ranks, kind, folder)
        found, classes = merge_labels(parts), len(self.target.rates)
        if kind == "multiclass" and found.classes > classes:
            raise InputError(
                f"label {source.label!r} goes up to {found.classes - 1}; {classes} classes were learned",
                where=f"split {early.split!r}",
            )
        weights = class_weights(self.target, self.training.objective)
        return encode(
            source, self.transforms, parts, folder, self.ranks, self.training.feeding, kind, weights
        )


class _RowModel(Protocol):
    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]: ...

    def write(self, folder: Path, outputs: Outputs) -> Model: ...


@dataclass(frozen=True)
class _TrainedOnRows:
    run: TrainingRun
    result: FitResult
    outputs: Outputs
    fitted: _RowModel

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Choose the threshold, write the model, and score the splits with the written model."""
        run, training = self.run, self.run.training
        folder, snapshot = run.training_set, run.snapshot
        threshold = choose_threshold(folder, snapshot, training, self.outputs, self.fitted.predict)
        outputs = replace(self.outputs, threshold=threshold)
        written = self.fitted.write(model, outputs)
        predictor = serving.load(model)
        scored = write_predictions(predictions, folder, snapshot, training.predict, predictor, outputs)
        return written, scored


def _train_on_rows(run: TrainingRun, network: Mlp | FeatureTokenizer | Imported | Trees) -> TrainedModel:
    config = run.config.for_model(run.ranks.size)
    if isinstance(network, Trees):
        from trainwright.train.trees import train_trees

        rows = _training_rows(run, network.encoding)
        barrier(run.ranks)
        with Heartbeat(run.folder, run.ranks.rank, run.training.guards.stall_s) as pulse:
            observers = [run.recorder]
            trees = train_trees(rows, network, observers, run.stop.requested, config=config, pulse=pulse)
        return _TrainedOnRows(run, trees.result, rows.outputs, trees)
    architecture = make(network)
    rows = _training_rows(run, network)
    watched = rows.watched()
    module, result = fit_network(run, architecture, rows.inputs, rows.rows, watched, rows.rows.labels)
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
    return _TrainedOnRows(run, result, rows.outputs, fitted)


def _training_rows(run: TrainingRun, network: Tabular) -> TrainingRows:
    """Encode the training split, and check the labels of the splits to predict."""
    training = run.training
    source = RowSource(run.training_set, run.snapshot, training.split, input_kinds(run.snapshot))
    rows = TrainingRows.of(source, network, training, run.config.job_directory, run.ranks)
    check_labels(run.training_set, run.snapshot, training.predict, rows.outputs, run.ranks)
    return rows


@dataclass(frozen=True)
class _TrainedOnTokens:
    run: TrainingRun
    result: FitResult
    fitted: FittedLanguageModel

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Write the model, and its loss on each row of the splits kept for evaluation."""
        written, run = self.fitted.write(model), self.run
        predictor = serving.load_language_model(model)
        splits, network = run.training.predict, self.fitted.network
        return written, write_losses(predictions, run.training_set, run.snapshot, splits, network, predictor)


def _train_on_tokens(run: TrainingRun, network: LanguageModel) -> TrainedModel:
    source = TokenSource(run.training_set, run.snapshot, run.training.split, network)
    samples, metrics = _encode_tokens(run, source)
    early = run.training.guards.early_stopping
    watched = _encode_tokens(run, replace(source, split=early.split))[0] if early else None
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
    fitted = FittedLanguageModel(module, architecture, network, source, config, fit_metrics(result) | metrics)
    return _TrainedOnTokens(run, result, fitted)


def _encode_tokens(run: TrainingRun, source: TokenSource) -> tuple[TokenSequences, dict[str, float]]:
    counts = count_tokens(source, run.ranks)
    total = total_counts(counts)
    return encode_tokens(source, counts, run.shard_folder, run.ranks, run.training.feeding), {
        "rows": float(total.rows),
        "rows_without_label": 0.0,
        "sequences": float(total.sequences),
        "tokens": float(total.tokens),
        "tokens_dropped": float(total.dropped),
        "base_rate_loss": math.log(source.network.vocabulary),
    }
