"""The experiment file as a whole: its sections, and what must agree between them."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.data import Data
from trainwright.experiment.evaluation import Evaluation
from trainwright.experiment.features import Features
from trainwright.experiment.materialize import Materialize
from trainwright.experiment.network import Mlp, Network
from trainwright.experiment.registry import Promotion, Registry
from trainwright.experiment.resources import Resources, Steps
from trainwright.experiment.section import Name, Section
from trainwright.experiment.training import Training
from trainwright.experiment.validation import Validation


class Experiment(Section):
    """One experiment file: everything a run of ``train_and_register`` is asked to do."""

    schema_version: Literal[1] = Field(1, description="Version of this file's form.")
    data: Data
    schema_file: Name = Field(
        description="Reviewed TFDV schema (.pbtxt): a file, relative to this one, or a URI in an object store."
    )
    validation: Validation = Field(default_factory=Validation)
    features: Features
    network: Network = Field(default_factory=Mlp)
    training: Training = Field(default_factory=Training)
    resources: Resources = Field(default_factory=Resources)
    steps: Steps = Field(default_factory=Steps)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    registry: Registry
    promotion: Promotion = Field(default_factory=Promotion)
    materialize: Materialize | None = Field(None, description="What `materialize_features` is asked to do.")

    @model_validator(mode="after")
    def _splits_exist(self) -> Self:
        wanted = {
            "validation.current": self.validation.current,
            "validation.previous": self.validation.previous,
            "training.split": self.training.split,
            "evaluation.split": self.evaluation.split,
        } | {f"training.predict.{index}": name for index, name in enumerate(self.training.predict)}
        optional = {
            "validation.trained_on": self.validation.trained_on,
            "validation.serving": self.validation.serving,
        }
        wanted |= {key: name for key, name in optional.items() if name}
        known = list(self.data.splits)
        wrong = [f"{key} names split {name!r}" for key, name in wanted.items() if name not in known]
        if self.evaluation.split not in self.training.predict:
            wrong.append(f"evaluation.split {self.evaluation.split!r} is not in training.predict")
        over = self.evaluation.overfitting
        if over and over.split not in self.training.predict:
            wrong.append(f"evaluation.overfitting.split {over.split!r} is not in training.predict")
        if self.training.split in self.training.predict and not (over and over.split == self.training.split):
            wrong.append(
                f"training.predict scores {self.training.split!r}, which is learned from; only "
                "evaluation.overfitting looks at it"
            )
        if wrong:
            raise ValueError(f"{'; '.join(wrong)}; data.splits has {known}")
        if leak := sorted({self.data.label} & set(self.features.request)):
            raise ValueError(f"features.request holds the label {leak}")
        return self


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the experiment file, from which its reference page is drawn."""
    return Experiment.model_json_schema()
