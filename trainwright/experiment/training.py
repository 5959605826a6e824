"""Sections ``training`` and ``tuning``: the fitting of one model, and the search over its settings."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, model_validator

from trainwright.documents import canonical
from trainwright.experiment.section import Fraction, Name, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class Objective(Section):
    """Handling of imbalance; `data` describes the target."""

    class_weights: Literal["none", "balanced"] = Field("none", description="`balanced`: equal class losses.")
    sampling: Literal["none", "balanced"] = Field("none", description="`balanced`: draw classes equally.")
    focal: float = Field(0.0, ge=0, le=10, description="Focal loss exponent (Lin et al., ICCV 2017). 0: off.")
    threshold: Literal["half", "f1", "youden"] = Field("half", description="0.5, or best on a scored split.")

    @model_validator(mode="after")
    def _balanced_once(self) -> Self:
        if self.class_weights == "balanced" and self.sampling == "balanced":
            raise ValueError("class_weights and sampling are both balanced, which weighs twice; choose one")
        return self

    def undefined_for(self, kind: str) -> list[str]:
        """Return the settings in use that a kind of target does not have; left out, they would look kept.

        Args:
            kind: ``binary``, ``multiclass``, ``regression`` or ``language_model``.
        """
        used = {
            "class_weights": self.class_weights != "none",
            "sampling": self.sampling != "none",
            "focal": self.focal > 0,
            "threshold": self.threshold != "half",
        }
        known = {"binary": set(used), "multiclass": {"class_weights", "sampling", "focal"}}.get(kind, set())
        return [
            f"{name} {getattr(self, name)} is not defined for a model of kind {kind}"
            for name, is_used in used.items()
            if is_used and name not in known
        ]


class Parallel(Section):
    """Degrees of parallelism; their product is the number of processes."""

    replicate: int | None = Field(None, ge=1, description="Replicas (DDP). Default: as many as fit.")
    shard: int = Field(1, ge=1, description="Processes that shard parameters and optimizer (FSDP2).")
    tensor: int = Field(1, ge=1, description="Processes per tensor parallel group.")
    pipeline: int = Field(1, ge=1, description="Pipeline stages.")
    schedule: Literal["gpipe", "1f1b"] = Field("1f1b", description="Pipeline schedule.")
    micro_batches: int | None = Field(None, ge=1, description="Per pipeline step. Default: twice the stages.")

    @property
    def in_flight(self) -> int:
        """Micro-batches per step in the pipeline; 1 without stages."""
        return (self.micro_batches or 2 * self.pipeline) if self.pipeline > 1 else 1


class Feeding(Section):
    """Shuffling, prefetching and local cache of samples."""

    streams: int = Field(8, ge=1, description="Parts of the sample order; at least the number of nodes.")
    block: int = Field(4096, ge=1, description="Neighboring samples shuffled as one block.")
    window: int = Field(262_144, ge=1, description="Samples of a stream then shuffled together.")
    prefetch: int = Field(4, ge=1, le=1024, description="Batches to prefetch.")
    cache: Name | None = Field(None, description="Folder for encoded samples. Default: the job directory.")
    cache_gib: float | None = Field(None, gt=0, description="Largest size. Default: 90 % of the free disk.")


class Checkpointing(Section):
    """Frequency, location and retention of checkpoints."""

    every_steps: int | None = Field(None, ge=1, description="Steps between them. Default: use `every_s`.")
    every_s: float = Field(600, gt=0, description="Seconds between checkpoints.")
    keep: int = Field(3, ge=2, description="Newest verified checkpoints to retain.")
    keep_best: bool = Field(True, description="Also retain the best by early stopping.")
    store: Name | None = Field(None, description="Folder or URI to copy checkpoints to.")
    wait_s: float = Field(60, ge=0, description="Longest final wait for the copy to `store`.")


class EarlyStopping(Section):
    """End of the training when the loss on rows that it does not train on stops improving."""

    split: Name | None = Field(None, description="Split to watch; not trained or evaluated on.")
    share: float | None = Field(
        None, gt=0, le=0.5, description="Or rows of the training split, by hash. Default: 0.1, of a table."
    )
    every_steps: int | None = Field(None, ge=1, description="Steps between evaluations. Default: each epoch.")
    patience: int | None = Field(
        None, ge=1, description="Evaluations without improvement before the end. Default: 5; trees, auto: 10."
    )
    min_gain: float = Field(0.0, ge=0, description="Fall of the loss that counts as improvement.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.split and self.share:
            raise ValueError(f"split {self.split!r} and share {self.share:g} are alternatives; remove one")
        return self


class Guards(Section):
    """Detection of divergence, hangs and overfitting."""

    not_finite: Literal["stop", "roll_back", "skip"] = Field("stop", description="Infinite loss or gradient.")
    forgiven: int = Field(2, ge=0, description="Batches that may be skipped.")
    spike: float | None = Field(12.0, gt=3, description="Rise of the loss, robust deviations. `never`: off.")
    window: int = Field(200, ge=20, description="Steps of that median.")
    norm_spike: float | None = Field(20.0, gt=1, description="Gradient norm in medians. `never`: off.")
    halve_micro_batch: bool = Field(False, description="Retry once with half of it when GPU memory runs out.")
    stall_s: float = Field(600, gt=0, description="Time without a step that counts as a hang.")
    collective_s: float = Field(600, gt=0, description="Timeout of a collective, from the third step on.")
    early_stopping: EarlyStopping | None = Field(EarlyStopping(), description="Early stopping. `never`: off.")


class Tracking(Section):
    """MLflow tracking of the training curves."""

    uri: str | None = Field(None, pattern=r"^https?://[^\s@]+$", description="MLflow server. Default: KFP's.")
    experiment: Name = Field("trainwright", description="MLflow experiment.")
    every_steps: int = Field(10, ge=1, description="Steps between points of a curve.")
    gpu_hour: float | None = Field(None, ge=0, description="Price of a GPU hour, without `run.prices`.")


class Training(Section):
    """Fitting of the model."""

    split: Name = Field("train", description="Split to train on.")
    epochs: int | None = Field(None, ge=1, description="Passes over the split. Default: by its rows.")
    steps: int | None = Field(None, ge=1, description="Number of steps. Default: by `epochs`.")
    batch_size: int | None = Field(None, ge=1, description="Global batch size. Default: by the rows.")
    micro_batch: int | None = Field(None, ge=1, description="Most samples per process and pass.")
    learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate of AdamW. Default: by the batch size."
    )
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="Decay to 0.")
    warmup: Fraction = Field(0.05, description="Fraction of steps for linear warmup.")
    weight_decay: float = Field(1e-4, ge=0, description="Decoupled weight decay.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="Betas of AdamW.")
    clip: float | None = Field(None, gt=0, description="Largest gradient norm.")
    precision: Literal["float32", "bf16", "fp16"] = Field("float32", description="Arithmetic precision.")
    compile: bool = Field(False, description="Use `torch.compile`.")
    recompute: bool = Field(False, description="Recompute activations to save memory.")
    seed: int = Field(0, ge=0, description="Seed of weights, dropout and order.")
    predict: tuple[Name, ...] = Field(("evaluate",), min_length=1, description="Splits to score at the end.")
    objective: Objective = Field(Objective(), description="Imbalance of classes.")
    parallel: Parallel = Field(Parallel(), description="Degrees of parallelism.")
    feeding: Feeding = Field(Feeding(), description="Shuffling and prefetching.")
    checkpoints: Checkpointing = Field(Checkpointing(), description="Checkpoints.")
    guards: Guards = Field(Guards(), description="Divergence, hangs, early stopping.")
    tracking: Tracking = Field(Tracking(), description="MLflow tracking.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        every, stages = self.checkpoints.every_steps, self.parallel.pipeline
        watched = self.guards.early_stopping
        if every and self.steps and every > self.steps:
            raise ValueError(
                f"checkpoints.every_steps {every} is above steps {self.steps}, so no checkpoint would be saved"
            )
        if watched and watched.split and watched.split in {self.split, *self.predict}:
            raise ValueError(
                f"guards.early_stopping.split {watched.split!r} must not be trained on (split) or scored "
                "(predict); use a third split"
            )
        if self.guards.halve_micro_batch and stages > 1:
            raise ValueError(
                f"guards.halve_micro_batch has no effect with {stages} stages (parallel.pipeline), which "
                "split a batch into parallel.micro_batches; set one of them back"
            )
        if watched and (watched.split or watched.share) and stages > 1:
            raise ValueError(
                f"guards.early_stopping cannot evaluate a model in {stages} stages (parallel.pipeline); "
                "remove one of them"
            )
        return self


class ResolvedEarlyStopping(EarlyStopping):
    """Early stopping with a split or a share, and its patience."""

    patience: int = Field(ge=1)

    @model_validator(mode="after")
    def _has_source(self) -> Self:
        if not (self.split or self.share):
            raise ValueError("neither split nor share is set")
        return self


class ResolvedGuards(Guards):
    """Guards of a training that starts; without early stopping if that is absent."""

    early_stopping: ResolvedEarlyStopping | None = None


class ResolvedTraining(Training):
    """The section with every default that depends on the rows resolved."""

    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    guards: ResolvedGuards = ResolvedGuards()


_Range: TypeAlias = tuple[float, float]
_Whole: TypeAlias = tuple[int, int]
_Value: TypeAlias = bool | int | float | str
Metric: TypeAlias = Literal[
    "held_out_loss", "held_out_auc", "held_out_accuracy", "held_out_rmse", "train_loss"
]

MAXIMIZED = frozenset({"held_out_auc", "held_out_accuracy"})
"""Metrics of which more is better."""


class Dimension(Section):
    """Values of one searched key: exactly one of `float`, `int` and `choice`."""

    float: _Range | None = Field(None, description="Smallest and largest number.")
    int: _Whole | None = Field(None, description="Smallest and largest integer.")
    choice: tuple[JsonValue, ...] | None = Field(None, min_length=1, description="List of values.")
    log: bool = Field(False, description="Search on a logarithmic scale.")
    when: dict[Name, tuple[_Value, ...]] = Field(
        {}, description="Search it only where other searched keys have these values."
    )

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        given = [name for name in ("float", "int", "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs one of float, int and choice; found {', '.join(given) or 'none'}")
        texts = [canonical(value) for value in self.choice or ()]
        if repeated := [text for index, text in enumerate(texts) if text in texts[:index]]:
            raise ValueError(f"choice has {', '.join(repeated)} twice")
        bounds = self.float or self.int
        if bounds and not bounds[0] < bounds[1]:
            raise ValueError(
                f"{given[0]} is from {bounds[0]:g} to {bounds[1]:g}; write the smaller one first"
            )
        if self.log and (bounds is None or bounds[0] <= 0):
            found = f"from {bounds[0]:g}" if bounds else "of choices"
            raise ValueError(f"log needs a range above 0; found one {found}")
        return self


class Pruner(Section):
    """Successive halving: trials pause at rungs, and only the best continue."""

    kind: Literal["none", "asha", "hyperband"] = Field("asha", description="`none`: train every trial fully.")
    reduction: int = Field(2, ge=2, le=10, description="One in so many trials continues at a rung.")
    rungs: int = Field(3, ge=2, le=6, description="Rungs; the first is after 1 / `reduction`^(`rungs`-1).")


class Confirm(Section):
    """Comparison of the best trials with the default configuration, on new seeds."""

    top: int = Field(2, ge=0, le=10, description="Best trials to train again. 0: no confirmation.")
    seeds: int = Field(7, ge=2, le=50, description="Trainings of each, with seeds that no trial had.")
    level: float = Field(0.05, gt=0, lt=0.5, description="Level of the test, after Holm.")

    @model_validator(mode="after")
    def _can_show_something(self) -> Self:
        least = self.top * 2.0 ** (1 - self.seeds)
        if self.top and least > self.level:
            raise ValueError(
                f"{self.seeds} seeds can give no p-value below {least:.3g} for {self.top} trials, and level "
                f"is {self.level:g}; use more seeds or a smaller top"
            )
        return self


class Tuning(Section):
    """Hyperparameter search by `tune_and_register`."""

    space: dict[Name, Dimension] = Field(
        min_length=1, description="Searched keys, such as `training.learning_rate`."
    )
    sampler: Literal["tpe", "random", "grid", "cmaes"] = Field("tpe", description="Optuna's sampler.")
    pruner: Pruner = Field(Pruner(), description="Early end of weak trials.")
    trials: int = Field(20, ge=1, le=10_000, description="Number of trials.")
    parallel: int = Field(1, ge=1, le=256, description="Most trials at a time.")
    metric: Metric = Field("held_out_loss", description="Metric on held-out rows.")
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    hours: float | None = Field(None, gt=0, description="Start no trial after so long.")
    cost: float | None = Field(None, gt=0, description="Or after so much, by `run.prices`.")
    job_hour: float | None = Field(
        None, ge=0, description="Price of an hour of a trial's job. Default: by `run.prices`."
    )
    study: Name | None = Field(
        None, description="Name to continue it in a later run. Default: the run's own."
    )
    storage: Name | None = Field(
        None, description="Folder of named studies. Default: on the shared volume of a cluster."
    )
    confirm: Confirm = Field(Confirm(), description="Confirmation of the winner.")

    @model_validator(mode="after")
    def _samplable(self) -> Self:
        problems = [problem for key in self.space for problem in self._condition_problems(key)]
        if self.sampler == "grid":
            ranges = [key for key, one in self.space.items() if one.float is not None]
            problems += [f"space.{key} is continuous, and sampler grid needs choice or int" for key in ranges]
        if self.sampler == "cmaes" and self.pruner.kind != "none":
            problems.append(
                "sampler cmaes learns from whole trainings only; set pruner.kind none, or use tpe"
            )
        if self.sampler == "cmaes" and any(one.when or one.choice for one in self.space.values()):
            problems.append("sampler cmaes searches ranges only, without choice and when; use tpe")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _condition_problems(self, key: str) -> Iterator[str]:
        for other, values in self.space[key].when.items():
            if other not in self.space or other == key:
                yield f"space.{key}.when names {other!r}, which is not another searched key"
            elif (choices := self.space[other].choice) is None:
                yield f"space.{key}.when names {other}, which has no choice"
            elif unknown := [value for value in values if value not in choices]:
                yield f"space.{key}.when.{other} is {unknown}, not among {list(choices)}"
            elif self.space[other].when:
                yield f"space.{key}.when names {other}, which is conditional itself"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Direction of the metric."""
        return "maximize" if self.metric in MAXIMIZED else "minimize"
