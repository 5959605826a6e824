"""Trains on rows: a network or trees, from the columns of a snapshot to a model's folder and its scores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import serving
from trainwright.artifacts import Model, Snapshot
from trainwright.experiment import FeatureTokenizer, Imported, Mlp, Tabular, Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_predictions
from trainwright.serving.program import Program, RowScorer
from trainwright.train.architectures import make
from trainwright.train.architectures.imported import origin
from trainwright.train.fitting import fit_network
from trainwright.train.given import Given, figures
from trainwright.train.group import wait_for_all
from trainwright.train.judgeable import check_labels
from trainwright.train.loop import Fitted
from trainwright.train.model import Trained, settled, write_model
from trainwright.train.prepared import Prepared
from trainwright.train.rows import Source
from trainwright.train.specification import input_kinds
from trainwright.train.threshold import choose_on


class _Made(Protocol):
    """A fitted model of rows that is not written yet."""

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        ...

    def write(self, folder: Path, outputs: Outputs) -> Model:
        """Write the model's folder."""
        ...


@dataclass(frozen=True)
class _Network:
    """A fitted network."""

    trained: Trained

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        transforms, module = self.trained.transforms, settled(self.trained.module)
        scorer = RowScorer(transforms, module, self.trained.architecture.predict)
        return Program(transforms, {}, scorer).predict(rows)

    def write(self, folder: Path, outputs: Outputs) -> Model:
        return write_model(folder, replace(self.trained, outputs=outputs))


@dataclass(frozen=True)
class FinishedRows:
    """A training on rows that has ended well."""

    given: Given
    fitted: Fitted
    outputs: Outputs
    made: _Made

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Choose the threshold, write the model, and score the splits by what was written."""
        given, training = self.given, self.given.training
        folder, snapshot = given.training_set, given.snapshot
        threshold = choose_on(folder, snapshot, training, self.outputs, self.made.predict)
        outputs = replace(self.outputs, threshold=threshold)
        written = self.made.write(model, outputs)
        predictor = serving.load(model)
        scored = write_predictions(predictions, folder, snapshot, training.predict, predictor, outputs)
        return written, scored


def train_on_rows(given: Given, network: Mlp | FeatureTokenizer | Imported | Trees) -> FinishedRows:
    """Fit transforms and model; every process ends with the same ones.

    Raises:
        InputError: A column, a label or the user's module is not what it is to be.
        DataRefused: There is nothing to be learned.
    """
    snapshot, training = given.snapshot, given.training
    source = Source(given.training_set, snapshot, training.split, input_kinds(snapshot))
    if isinstance(network, Trees):
        from trainwright.train.trees.training import Beating, train_trees

        prepared = _prepared(given, source, network.encoding)
        wait_for_all(given.group)
        with Heartbeat(given.folder, given.group.rank, training.guards.stall_s) as pulse:
            trees = train_trees(prepared, network, [given.curves, Beating(pulse)], given.stop.asked)
        return FinishedRows(given, trees.fitted, prepared.outputs, replace(trees, config=given.config))
    architecture = make(network)
    prepared = _prepared(given, source, network)
    rows, watched = prepared.rows, prepared.watched()
    module, fitted = fit_network(given, architecture, prepared.inputs, rows, watched, rows.labels)
    metrics: Mapping[str, Any] = figures(fitted) | prepared.metrics
    trained = Trained(
        module,
        architecture,
        prepared.transforms,
        source,
        snapshot.digest,
        given.config,
        metrics,
        prepared.outputs,
        origin(network),
    )
    return FinishedRows(given, fitted, prepared.outputs, _Network(trained))


def _prepared(given: Given, source: Source, network: Tabular) -> Prepared:
    """Prepare what is learned from, and look at what it will be judged on."""
    training = given.training
    prepared = Prepared.of(source, network, training, given.home, given.group)
    check_labels(given.training_set, given.snapshot, training.predict, prepared.outputs, given.group)
    return prepared
