"""The experiment file: its sections, and rules between them."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.data import Data, DataEngine, is_reserved
from trainwright.experiment.evaluation import Evaluation
from trainwright.experiment.features import Features, Materialize
from trainwright.experiment.network import LanguageModel, Mlp, Network
from trainwright.experiment.registry import Promotion, Registry, Serving
from trainwright.experiment.resources import LABEL_VALUE, Resources, Steps
from trainwright.experiment.run import RunSettings
from trainwright.experiment.section import Name, Section
from trainwright.experiment.training import Training, Tuning
from trainwright.experiment.validation import Validation

OWNER_LABELS = {"owner": "owner", "cost-centre": "cost_centre"}
"""Labels of a job in a queue, and of its pods, by the key of `run`; ``deploy/kueue/labels.yaml`` demands them."""

ENGINE_SECTIONS = ("data", "validation", "evaluation")
"""Sections of the steps that process rows by an engine."""


class Experiment(Section):
    """Configuration of a run of `train_and_register`."""

    schema_version: Literal[1] = Field(1, description="File format version.")
    data: Data = Field(description="Source, columns and splits.")
    engine: DataEngine = Field(DataEngine(), description="Engine of all data steps whose section names none.")
    schema_file: Name | None = Field(None, description="TFDV schema (.pbtxt). Default: inferred, HOLD.")
    validation: Validation = Field(Validation(), description="Limits on the data.")
    features: Features = Field(Features(), description="Columns to use, and features to join.")
    network: Network = Field(Mlp(), description="Architecture; `mlp` by default.")
    training: Training = Field(Training(), description="Optimizer, checkpoints, guards.")
    tuning: Tuning | None = Field(None, description="Search by `tune_and_register`.")
    resources: Resources = Field(Resources(), description="Compute of the training job.")
    steps: Steps = Field(Steps(), description="Compute of the other steps.")
    evaluation: Evaluation = Field(Evaluation(), description="Requirements on the model.")
    registry: Registry = Field(description="Registration of the model.")
    promotion: Promotion = Field(Promotion(), description="Promotion policy.")
    serving: Serving | None = Field(None, description="Settings of `canary_model`.")
    materialize: Materialize | None = Field(None, description="Settings of `materialize_features`.")
    run: RunSettings = Field(RunSettings(), description="Owner of the run, and its record in MLflow.")

    @model_validator(mode="after")
    def _engine_of_sections(self) -> Self:
        """Set the engine of every data step whose section names none."""
        for name in ENGINE_SECTIONS if "engine" in self.model_fields_set else ():
            section = getattr(self, name)
            if "engine" not in section.model_fields_set:
                # The model is frozen for others.
                object.__setattr__(self, name, section.model_copy(update={"engine": self.engine}))
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        if self.features.service and not self.data.label:
            raise ValueError(
                "features.service has no use for a language model, which learns one column of text"
            )
        if isinstance(self.network, LanguageModel) and self.features.request not in {
            (),
            (self.network.column,),
        }:
            raise ValueError(
                f"features.request is {list(self.features.request)}, and the language model learns "
                f"{self.network.column} (network.text); remove request"
            )
        if self.features.service and not self.data.time:
            raise ValueError("features.service joins features as of each row's time; name it in data.time")
        if self.features.cutoff and not self.data.time:
            raise ValueError(
                f"features.cutoff {self.features.cutoff.isoformat()} is compared with each row's time; name it "
                "in data.time"
            )
        return self

    @model_validator(mode="after")
    def _costs_have_one_price(self) -> Self:
        run, gpu_hour = self.run, self.training.tracking.gpu_hour
        if run.prices and gpu_hour is not None:
            raise ValueError(
                f"training.tracking.gpu_hour {gpu_hour:g} and run.prices are both set; remove one"
            )
        if (run.budget.soft or run.budget.hard) and run.priced(gpu_hour) is None:
            raise ValueError("run.budget limits a cost, and nothing has a price; set run.prices")
        return self

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        """Reject columns that have the names of the model's outputs."""
        roles = {f"data.{role}": getattr(self.data, role) for role in ("key", "time", "label")}
        learned = dict.fromkeys(self.features.request, "features.request")
        text = isinstance(self.network, LanguageModel)
        if isinstance(self.network, LanguageModel):
            learned[self.network.column] = "network.text" if self.network.text else "network.tokens"
        named = {name: key for key, name in roles.items() if name} | learned
        if taken := [f"{key}: {name}" for name, key in named.items() if is_reserved(name, text=text)]:
            raise ValueError(
                f"{'; '.join(taken)}: that is the name of a column of the predictions; rename it at its source"
            )
        return self

    @model_validator(mode="after")
    def _queued_job_has_owner(self) -> Self:
        """Require an owner and a cost centre of a job in a queue: it spends a team's quota."""
        queue, labels = self.resources.placement.queue, self.job_resources.placement.labels
        for label, key in OWNER_LABELS.items():
            value = labels.get(label, "")
            if queue and not re.fullmatch(rf"(?=.{{1,63}}$){LABEL_VALUE}", value):
                raise ValueError(
                    f"resources.placement.queue is {queue!r}: expected a label {label} of the job, of up to 63 "
                    f"letters, digits, '-', '_' and '.', found {value!r}; set run.{key} or "
                    f"resources.placement.labels.{label}"
                )
        return self

    @property
    def job_resources(self) -> Resources:
        """`resources`, of a job in a queue with the owner and the cost centre of `run` as labels."""
        placement = self.resources.placement
        if not placement.queue:
            return self.resources
        named = {label: getattr(self.run, key) for label, key in OWNER_LABELS.items()}
        labels = {label: value for label, value in named.items() if value} | placement.labels
        placement = placement.model_copy(update={"labels": labels})
        return self.resources.model_copy(update={"placement": placement})

    @property
    def target_kind(self) -> str:
        """The kind of the target; empty where the values of the label decide it."""
        if isinstance(self.network, LanguageModel):
            return "language_model"
        if self.data.label_kind != "auto":
            return self.data.label_kind
        return {0: "", 2: "binary"}.get(len(self.data.classes), "multiclass")

    def undefined_for(self, kind: str) -> str:
        """Return what `train` and `evaluate` would reject for a kind of target; empty if nothing."""
        wrong = {
            "training.objective": self.training.objective.undefined_for(kind),
            "evaluation": self.evaluation.undefined_for(kind, self.data.classes),
        }
        return "; ".join(f"{key}: {'; '.join(found)}" for key, found in wrong.items() if found)

    @model_validator(mode="after")
    def _settings_suit_the_target(self) -> Self:
        if self.target_kind and (wrong := self.undefined_for(self.target_kind)):
            raise ValueError(wrong)
        return self

    @model_validator(mode="after")
    def _splits_exist(self) -> Self:
        names = {
            "validation.current": self.validation.current,
            "validation.previous": self.validation.previous,
            "validation.trained_on": self.validation.trained_on,
            "validation.serving": self.validation.serving,
            "training.split": self.training.split,
            "evaluation.split": self.evaluation.split,
        } | {f"training.predict.{index}": name for index, name in enumerate(self.training.predict)}
        known, scored = list(self.data.splits), self.training.predict
        wrong = [f"{key} names split {name!r}" for key, name in names.items() if name and name not in known]
        if self.evaluation.split not in scored:
            wrong.append(f"evaluation.split {self.evaluation.split!r} is not in training.predict")
        over = self.evaluation.overfitting
        if over and over.split not in scored:
            wrong.append(f"evaluation.overfitting.split {over.split!r} is not in training.predict")
        if self.training.split in scored and not (over and over.split == self.training.split):
            wrong.append(
                f"training.predict has the training split {self.training.split!r}, which only "
                "evaluation.overfitting uses"
            )
        if wrong:
            raise ValueError(f"{'; '.join(wrong)}; data.splits has {known}")
        if self.validation.on_missing_schema == "bootstrap" and not self.schema_file:
            raise ValueError("validation.on_missing_schema bootstrap writes to schema_file, which is absent")
        if (self.network.kind == "lm") == bool(self.data.label):
            raise ValueError(
                f"network.kind is {self.network.kind} and data.label is {self.data.label or 'absent'}; "
                "kind lm learns text and has no label, every other kind needs one"
            )
        if self.data.label in self.features.request:
            raise ValueError(f"features.request holds the label {self.data.label!r}; remove it")
        return self
