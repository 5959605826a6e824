"""What a run is asked to do: the sections of an experiment file, as frozen, validated models.

The file is checked whole, before anything runs and before any network call, and all its errors are
reported at once. Each step then reads its own section, passed as one JSON string.
"""

import difflib
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trainwright.artifacts import UNASSIGNED
from trainwright.errors import InputError

Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, pattern=r"^\S(.*\S)?$")]


def _moment(value: object) -> datetime:
    """Read a time as it is written out, in UTC if no zone is; pydantic takes 2013 for seconds since 1970."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("a time is written as 2013-01-31 or 2013-01-31T05:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


Time = Annotated[datetime, BeforeValidator(_moment)]


class Section(BaseModel):
    """A part of the experiment file: unknown keys are refused, values are never changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read a section from the JSON string that a component was given.

        Raises:
            InputError: The text is not JSON, or has any wrong key or value; all are named.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error}", where=where) from None
        return cls.check(data, where)

    @classmethod
    def check(cls, data: object, where: str) -> Self:
        """Validate plain data, and name everything that is wrong with it in one error.

        Raises:
            InputError: Any key is unknown or missing, or any value is not allowed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problems = list(_problems(cls, error))
            count = "1 thing is" if len(problems) == 1 else f"{len(problems)} things are"
            raise InputError(
                f"{count} wrong\n" + "\n".join(f"  {line}" for line in problems), where=where
            ) from None

    def to_json(self) -> str:
        """Write the section as one canonical JSON string: the form in which components take it."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def _problems(model: type[BaseModel], error: ValidationError) -> Iterator[str]:
    """One line for each problem: the key's full path, what was got, what is allowed."""
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"]) or "(the whole file)"
        if problem["type"] == "extra_forbidden":
            known = _keys_at(model, problem["loc"][:-1])
            close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            yield f"{path}: unknown key; {advice}"
        elif problem["type"] == "missing":
            yield f"{path}: missing"
        else:
            yield f"{path}: {problem['msg'].removeprefix('Value error, ')}; got {problem['input']!r:.80}"


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at a place of the file."""
    for part in loc:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


class Window(Section):
    """A half-open span of time, ``start <= t < end``. A time without a zone is UTC."""

    start: Time
    end: Time

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"the window is empty: start {self.start} is not before end {self.end}")
        return self


class Data(Section):
    """Where the rows come from and what their columns mean."""

    source: Name = Field(description="A Parquet or CSV file, a folder of them, or a glob; local or gs://.")
    key: Name = Field(description="Column that identifies a row; unique and never null.")
    time: Name = Field(description="Timestamp column: when the prediction is made.")
    label: Name = Field(description="Column to predict, 0 or 1; rows without it are kept, not learned from.")
    splits: dict[Name, Window] = Field(min_length=1, description="Rows by time; a row in none is kept apart.")
    min_rows: int = Field(1, ge=1, description="Fewer rows in any split are refused.")
    missing: tuple[str, ...] = Field(
        ("", "NA", "NaN", "nan", "null", "NULL"), description="Texts that mean no value, in CSV files."
    )

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        if len({self.key, self.time, self.label}) < 3:  # noqa: PLR2004
            raise ValueError(f"key {self.key}, time {self.time} and label {self.label} must be three columns")
        if UNASSIGNED in self.splits:
            raise ValueError(f"split {UNASSIGNED} is where rows of no window go; name this one otherwise")
        ordered = sorted(self.splits.items(), key=lambda item: item[1].start)
        for (name, window), (other, following) in itertools.pairwise(ordered):
            if following.start < window.end:
                raise ValueError(f"splits {name} and {other} overlap from {following.start} on")
        return self


class DriftLimit(Section):
    """How far one column may move before it counts as drift."""

    comparator: Literal["jensen_shannon_divergence", "infinity_norm"] = Field(
        description="Jensen-Shannon divergence (any column, base 2) or L-infinity (strings only)."
    )
    threshold: Fraction = Field(description="Largest accepted distance; equal passes.")


class Validation(Section):
    """What the data must look like, and how far it may have moved since the previous span."""

    current: Name = Field("evaluate", description="Split that is judged for drift.")
    previous: Name = Field("train", description="Split it is compared with: the previous span.")
    numeric_threshold: Fraction = Field(0.1, description="Jensen-Shannon limit of numeric columns.")
    categorical_threshold: Fraction = Field(0.05, description="L-infinity limit of string columns.")
    missing_threshold: Fraction = Field(0.05, description="Limit on the change of the share without value.")
    false_alarm_rate: float = Field(0.01, gt=0, lt=1, description="Chance that clean data is held.")
    drift: dict[Name, DriftLimit] = Field(default_factory=dict, description="Limits for single columns.")
    ignore: tuple[Name, ...] = Field((), description="Columns not compared, such as the time itself.")


class Features(Section):
    """Which features are joined, and which columns of the row itself are used."""

    repository: Name = Field(description="Folder of the Feast repository, with feature_store.yaml.")
    source: Name = Field(description="Glob of its definitions and offline files; their content counts.")
    service: Name = Field(description="Feast feature service to join.")
    request: tuple[Name, ...] = Field((), description="Columns known when the prediction is made.")
    known_after: tuple[Name, ...] = Field((), description="Columns known only afterwards; never features.")
    needed: tuple[Name, ...] = Field((), description="Columns there must be; a run adds its slices.")
    cutoff: Time | None = Field(None, description="Rows from this time on are refused; absent: none are.")
    allow_backfill_leak: Name | None = Field(None, description="Why views may lack a created timestamp.")

    @model_validator(mode="after")
    def _no_leak(self) -> Self:
        if leaked := sorted(set(self.request) & set(self.known_after)):
            raise ValueError(f"{leaked} are known only afterwards and cannot be request columns")
        return self


class Network(Section):
    """The tabular network: embeddings for categories, then fully connected layers."""

    kind: Literal["mlp"] = Field("mlp", description="Architecture.")
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        (256, 128), description="Units a layer."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="Share of units dropped in training."
    )
    embedding: int = Field(16, ge=1, le=1024, description="Largest width of a category's embedding.")
    max_categories: int = Field(256, ge=2, description="Categories kept a column; the rest share one bucket.")
    min_category_rows: int = Field(10, ge=1, description="Categories in fewer rows share that bucket too.")


class Training(Section):
    """How the model is fitted."""

    split: Name = Field("train", description="Split that is learned from.")
    epochs: int = Field(3, ge=1, description="Passes over the training split.")
    batch_size: int = Field(8192, ge=1, description="Global batch, in rows, over all processes.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of AdamW.")
    weight_decay: float = Field(1e-4, ge=0, description="Decoupled weight decay.")
    seed: int = Field(0, ge=0, description="Seed of weights, dropout and order.")
    predict: tuple[Name, ...] = Field(("evaluate",), min_length=1, description="Splits scored at the end.")


class Resources(Section):
    """Where and on how much the training runs."""

    launcher: Literal["auto", "local", "pytorchjob"] = Field(
        "auto", description="auto: pytorchjob on a cluster."
    )
    nodes: int = Field(1, ge=1, description="Pods; always 1 with the local launcher.")
    processes: int = Field(2, ge=1, description="Processes a node.")
    timeout_s: int = Field(3600, ge=1, description="The job is stopped after this many seconds.")
    cpu: float = Field(2, gt=0, description="Cores a pod.")
    memory_gib: float = Field(4, gt=0, description="Memory a pod.")
    gpus: int = Field(0, ge=0, description="GPUs a pod.")
    claim: Name = Field(
        "trainwright-shared",
        description="On a cluster: PersistentVolumeClaim that the train step and its job share.",
    )
    mount: str = Field("/shared", pattern=r"^/\S*$", description="On a cluster: where the claim is mounted.")


class Evaluation(Section):
    """What the model must reach before it is registered."""

    split: Name = Field("evaluate", description="Split that is judged.")
    slices: tuple[Name, ...] = Field(
        (), max_length=20, description="Columns whose values are judged one by one."
    )
    threshold: Fraction = Field(0.5, description="A score of at least this counts as a positive prediction.")
    min_auc: Fraction = Field(0.5, description="Lower bound of the AUC's 95 % interval must exceed this.")
    max_recall_gap: Fraction = Field(1.0, description="Largest accepted gap of recall between slices.")
    recall_gaps: dict[Name, Fraction] = Field(
        default_factory=dict,
        description="Limits for the slices of single columns, instead of max_recall_gap.",
    )
    max_calibration_error: Fraction = Field(1.0, description="Largest accepted expected calibration error.")
    min_positives: int = Field(30, ge=1, description="Slices with fewer positives are listed, not judged.")

    @model_validator(mode="after")
    def _limits_have_slices(self) -> Self:
        if unknown := sorted(self.recall_gaps.keys() - set(self.slices)):
            raise ValueError(f"recall_gaps names {unknown}; slices are {list(self.slices)}")
        return self

    def recall_gap(self, column: str) -> float:
        """Return the largest accepted gap of recall between the slices of a column."""
        return self.recall_gaps.get(column, self.max_recall_gap)


class Registry(Section):
    """Where the model is registered."""

    model: Name = Field(description="Name of the registered model.")
    tracking_uri: Name = Field(
        description="MLflow tracking and registry address; sqlite:///FILE works alone."
    )
    retry_s: int = Field(600, ge=0, description="Keep trying this long while that address does not answer.")


class Experiment(Section):
    """One experiment file: everything a run of ``train_and_register`` is asked to do."""

    schema_version: Literal[1] = Field(1, description="Version of this file's form.")
    data: Data
    schema_file: Name = Field(description="Reviewed TFDV schema (.pbtxt), beside this file.")
    validation: Validation = Field(default_factory=Validation)
    features: Features
    network: Network = Field(default_factory=Network)
    training: Training = Field(default_factory=Training)
    resources: Resources = Field(default_factory=Resources)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    registry: Registry

    @model_validator(mode="after")
    def _splits_exist(self) -> Self:
        wanted = {
            "validation.current": self.validation.current,
            "validation.previous": self.validation.previous,
            "training.split": self.training.split,
            "evaluation.split": self.evaluation.split,
        } | {f"training.predict.{index}": name for index, name in enumerate(self.training.predict)}
        known = list(self.data.splits)
        wrong = [f"{key} names split {name!r}" for key, name in wanted.items() if name not in known]
        if self.evaluation.split not in self.training.predict:
            wrong.append(f"evaluation.split {self.evaluation.split!r} is not in training.predict")
        if self.training.split in self.training.predict:
            wrong.append(f"training.predict scores {self.training.split!r}, which is learned from")
        if wrong:
            raise ValueError(f"{'; '.join(wrong)}; data.splits has {known}")
        if leak := sorted({self.data.label} & set(self.features.request)):
            raise ValueError(f"features.request holds the label {leak}")
        return self


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the experiment file, from which its reference page is drawn."""
    return Experiment.model_json_schema()
