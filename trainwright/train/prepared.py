"""What is to be learned, ready to be learned from: fitted transforms, a settled target, encoded rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from trainwright.errors import InputError, InternalError
from trainwright.experiment import Tabular, Training
from trainwright.serving.outputs import Outputs
from trainwright.train.architectures import Inputs, Target
from trainwright.train.group import Group
from trainwright.train.labels import Labels, settled, total
from trainwright.train.objective import base_loss, class_weights, target_of
from trainwright.train.rows import Rows, Source, encode, fit
from trainwright.transforms import Transforms


@dataclass(frozen=True)
class Prepared:
    """A split that is learned from, and all that was found in it.

    Attributes:
        source: The split.
        network: How its columns are encoded.
        training: How it is learned from.
        home: Folder that all attempts at the training share; encoded rows lie in it.
        group: The processes.
        transforms: The fitted transforms.
        labels: What is known of its labels.
        target: What is to be predicted.
        rows: Its rows, encoded, with the weights of their classes.
    """

    source: Source
    network: Tabular
    training: Training
    home: Path
    group: Group
    transforms: Transforms
    labels: Labels
    target: Target
    rows: Rows

    @classmethod
    def of(cls, source: Source, network: Tabular, training: Training, home: Path, group: Group) -> Self:
        """Read a split; all processes call this together.

        Raises:
            InputError: A label is not what it is to be, or what is asked for does not suit it.
            DataRefused: There is nothing to be told apart.
        """
        objective = training.objective
        transforms, parts = fit(source, network, group, objective.kind, home / "encoded")
        labels = settled(total(parts), objective.kind, source.label, source.split)
        target = target_of(labels, source.label, objective)
        weights = class_weights(target, objective)
        place, kind = home / "encoded", objective.kind
        rows = encode(source, transforms, parts, place, group, training.feeding, kind, weights)
        return cls(source, network, training, home, group, transforms, labels, target, rows)

    @property
    def inputs(self) -> Inputs:
        """What an architecture is told of the rows."""
        return Inputs(self.target, self.transforms)

    @property
    def outputs(self) -> Outputs:
        """What a model gives, but for a threshold."""
        classes = 0 if self.target.kind == "regression" else len(self.target.rates)
        if self.target.kind == "tokens":
            raise InternalError("rows have no tokens to predict")
        return Outputs(self.target.kind, self.source.label, classes)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the rows that belong to the model."""
        found = {
            "base_rate_loss": base_loss(self.target, self.training.objective),
            "rows": float(self.labels.rows),
            "rows_without_label": float(self.labels.missing),
        }
        return found | ({"base_rate": self.target.rates[1]} if self.target.kind == "binary" else {})

    def watched(self) -> Rows | None:
        """Read the split that ends the training early, with the transforms of this one, if there is one.

        Raises:
            InputError: It has a label that was not learned.
        """
        early = self.training.guards.early_stopping
        if early is None:
            return None
        source, kind = replace(self.source, split=early.split), self.outputs.kind
        _, parts = fit(source, self.network, self.group, kind, self.home / "encoded")
        found, classes = total(parts), len(self.target.rates)
        if kind == "multiclass" and found.classes > classes:
            raise InputError(
                f"label {source.label!r} goes up to {found.classes - 1}; {classes} classes were learned",
                where=f"split {early.split!r}",
            )
        weights = class_weights(self.target, self.training.objective)
        place, feeding = self.home / "encoded", self.training.feeding
        return encode(source, self.transforms, parts, place, self.group, feeding, kind, weights)
