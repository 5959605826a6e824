"""Sections ``data`` and ``engine``: source, columns, splits and quality limits; what processes the rows."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Discriminator, Field, Tag, field_validator, model_validator

from trainwright.artifacts import UNASSIGNED
from trainwright.experiment.section import Fraction, Name, Section, Time, kind_of

ENGINE = AliasChoices("engine", "runner")
"""The key of an engine in a section, and its name in version 0.1."""

_DIRECT = ("", "DirectRunner", "direct", "FnApiRunner")


class DataEngine(Section):
    """Engine that processes the rows; the result is the same with each."""

    name: str = Field(
        "local",
        pattern=r"^(local|(\w+\.)*\w+Runner)$",
        description="`local`, or a Beam runner such as `FlinkRunner`.",
    )
    workers: int = Field(2, ge=1, le=1024, description="Processes of `local`.")
    options: tuple[Name, ...] = Field(
        (), description="Beam options, such as `--environment_config=beam-{step}:50000`; `{step}`: the step."
    )
    store: Name | None = Field(None, description="Folder or bucket where Beam's workers leave results.")

    @model_validator(mode="before")
    @classmethod
    def _from_runner(cls, data: Any) -> Any:
        """Read the form of version 0.1: ``engine`` is ``processes`` or ``beam``."""
        if not isinstance(data, Mapping) or "engine" not in data:
            return data
        rest, mark = {key: value for key, value in data.items() if key != "engine"}, "--runner="
        if data["engine"] == "processes":
            return rest | {"name": "local"}
        if data["engine"] != "beam":
            raise ValueError(f"engine is {data['engine']!r}; write `engine: {{name: local}}`")
        options = rest.get("options", ())
        if not isinstance(options, list | tuple) or not all(isinstance(x, str) for x in options):
            return rest  # the check of the types rejects it
        runner = next((x.removeprefix(mark) for x in reversed(options) if x.startswith(mark)), "")
        others = [x for x in options if not x.startswith(mark)]
        return rest | {"name": "DirectRunner" if runner in _DIRECT else runner, "options": others}

    @model_validator(mode="after")
    def _options_have_their_engine(self) -> Self:
        if self.options and not self.is_beam:
            raise ValueError(f"options {list(self.options)} need a Beam runner; name is {self.name}")
        if any(option.startswith("--runner") for option in self.options):
            raise ValueError("options name a runner; write it as engine.name")
        return self

    @property
    def is_beam(self) -> bool:
        """Tell whether a Beam runner processes the rows."""
        return self.name != "local"

    @property
    def is_remote(self) -> bool:
        """Tell whether other machines do the work: they reach no folder of the step's own."""
        return self.name not in {"local", "DirectRunner"}


LabelKind = Literal["auto", "binary", "multiclass", "regression"]

ROW = "row"
"""Column that `ingest` adds as the key where none is named: the position in the source, from 0."""

FEATURES, EVERY, SERVED = "features", "*", "validation.serving_log.columns"
"""Keys of the columns that `resolve` checks beside those of sections, and the name of all columns."""

_SCORES, _LOSSES = re.compile(r"score(_\d+)?"), re.compile(r"loss|tokens_scored")


def is_reserved(column: str, *, text: bool = False) -> bool:
    """Tell whether a column has the name of one that the predictions add; ``text`` for a language model."""
    return bool((_LOSSES if text else _SCORES).fullmatch(column))


Format = Literal["auto", "parquet", "csv", "jsonl", "delta", "iceberg", "sql"]


class Window(Section):
    """Rows with ``start <= time < end``, in UTC unless a zone is given."""

    start: Time = Field(description="First moment.")
    end: Time = Field(description="First moment after the window.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"the window is empty: start {self.start} is not before end {self.end}")
        return self


class Share(Section):
    """Rows by a hash of `split_by`; rows with equal values are in the same split."""

    fraction: float = Field(gt=0, le=1, description="Fraction of the values; the sum is at most 1.")


def _tag_of_split(value: object) -> str:
    is_share = isinstance(value, Share) or (isinstance(value, Mapping) and "fraction" in value)
    return kind_of("Share" if is_share else "Window")


Split = Annotated[
    Annotated[Window, Tag(kind_of("Window"))] | Annotated[Share, Tag(kind_of("Share"))],
    Discriminator(_tag_of_split),
]


class Query(Section):
    """SELECT to read from a database: one repeatable-read transaction, ordered by the key."""

    select: Name = Field(description="SELECT statement; parameters as `:name`.")
    parameters: dict[Name, str | int | float | bool] = Field({}, description="Values bound to `:name`.")
    tables: tuple[Name, ...] = Field(min_length=1, description="Tables that it may read.")
    version: Name | None = Field(None, description="Cheap SELECT that changes with rows. Default: all rows.")
    user: Name | None = Field(None, description="Database user. Default: the driver's.")
    password_file: Name | None = Field(None, description="File with the password.")
    timeout_s: int = Field(3600, ge=1, description="Timeout of the statement.")


class CsvFormat(Section):
    """Separators and dates of CSV files."""

    delimiter: Literal[",", ";", "\t", "|"] = Field(",", description="Between two values.")
    decimal: Literal[".", ","] = Field(".", description="In a number.")
    dates: Literal["YMD", "DMY", "MDY"] = Field("YMD", description="`DMY`: 31.12.2023 or 31/12/2023.")

    @model_validator(mode="after")
    def _distinguishable(self) -> Self:
        if self.delimiter == self.decimal:
            raise ValueError("delimiter and decimal are both a comma; say the delimiter of the file")
        return self


class Quality(Section):
    """Limits on a snapshot; `ingest` rejects one that exceeds them."""

    max_missing: dict[Name, Fraction] = Field({}, description="Largest fraction missing by column.")
    max_bytes: int | None = Field(None, ge=1, description="Largest source, checked before reading.")
    fresh_within_s: int | None = Field(None, ge=1, description="Largest age of the newest object.")
    fresh_rows_within_s: int | None = Field(
        None, ge=1, description="The same of the newest row, in `validate`."
    )
    previous: Name | None = Field(None, description="Earlier snapshot to compare with.")
    min_volume: float | None = Field(None, gt=0, description="Fewest rows, as a multiple of `previous`.")
    max_volume: float | None = Field(None, gt=0, description="Most rows, as a multiple of `previous`.")

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        limited = self.min_volume is not None or self.max_volume is not None
        if limited and self.previous is None:
            raise ValueError(
                "min_volume and max_volume compare with quality.previous, which is absent; set it"
            )
        if (self.min_volume or 0) > (self.max_volume or math.inf):
            raise ValueError(f"min_volume {self.min_volume} is above max_volume {self.max_volume}")
        return self


class Data(Section):
    """Source of the rows, their columns and splits."""

    source: Name = Field(
        description="File, folder, glob or database URI; `{date}`, `{date:%Y/%m}`: the run's."
    )
    format: Format = Field("auto", description="`auto`: by name and URI scheme.")
    version: Name | None = Field(None, description="Delta version or Iceberg snapshot id.")
    sql: Query | None = Field(None, description="Query, with format `sql`.")
    hosts: tuple[Name, ...] = Field((), description="Allowed hosts of an https:// source.")
    key: Name | None = Field(None, description="Unique column that identifies a row. Default: number rows.")
    time: Name | None = Field(None, description="Timestamp of the prediction, if there is one.")
    label: Name | None = Field(None, description="Column to predict; without it, the model learns the text.")
    label_kind: LabelKind = Field("auto", description="`auto`: 0 and 1, classes 0 to n-1, or fractions.")
    classes: tuple[Name, ...] = Field((), description="Label values by class; the second of two is label 1.")
    types: dict[Name, Name] = Field({}, description="Arrow types in CSV and JSONL. Default: inferred.")
    csv: CsvFormat = Field(CsvFormat(), description="Form of CSV files; `init` infers it.")
    missing: tuple[str, ...] = Field(("", "NA", "NaN", "nan", "null", "NULL"), description="Missing values.")
    splits: dict[Name, Split] = Field(
        min_length=1, description="Splits by time or hash; others: `unassigned`."
    )
    split_by: Name | None = Field(None, description="Column to hash. Default: the key.")
    split_seed: int = Field(0, ge=0, description="Seed of the hash.")
    disjoint: tuple[Name, ...] = Field((), description="Columns whose values occur in one split only.")
    min_rows: int = Field(1, ge=1, description="Fewest rows of each split.")
    quality: Quality = Field(Quality(), description="Limits on the snapshot.")
    mode: Literal["copy", "reference"] = Field("copy", description="Write shards, or pin source objects.")
    store: Name | None = Field(None, description="Folder or bucket for shards. Default: the step's output.")
    shard_rows: int = Field(1_000_000, ge=1, description="Rows per shard.")
    remember: Name | None = Field(None, description="Folder that caches checksums of local files.")
    engine: DataEngine = Field(
        DataEngine(), validation_alias=ENGINE, description="Engine that writes the shards."
    )

    @field_validator("classes", mode="before")
    @classmethod
    def _as_text(cls, classes: object) -> object:
        """Take integers and truth values as they are written: 1 is "1", and true is "true"."""
        if not isinstance(classes, list | tuple):
            return classes
        return [str(value).lower() if isinstance(value, int) else value for value in classes]

    @field_validator("splits", mode="after")
    @classmethod
    def _of_one_kind(cls, splits: dict[str, Window | Share]) -> dict[str, Window | Share]:
        if UNASSIGNED in splits:
            raise ValueError(f"split {UNASSIGNED} is reserved for rows of no split; rename it")
        shares = {name: split.fraction for name, split in splits.items() if isinstance(split, Share)}
        if shares and len(shares) < len(splits):
            raise ValueError(f"splits {sorted(shares)} are fractions and the others windows; choose one kind")
        if math.fsum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"the fractions {shares} sum to {math.fsum(shares.values()):g}, more than 1")
        return splits

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        roles = {"key": self.key, "time": self.time, "label": self.label}
        named = {role: name for role, name in roles.items() if name}
        if len(set(named.values())) < len(named):
            raise ValueError(
                f"{', '.join(f'{role} {name}' for role, name in named.items())} must be different columns"
            )
        if self.windows and not self.time:
            raise ValueError("splits by start and end need data.time; name it, or use splits by fraction")
        ordered = sorted(self.windows.items(), key=lambda item: item[1].start)
        for (name, window), (other, following) in itertools.pairwise(ordered):
            if following.start < window.end:
                raise ValueError(f"splits {name} and {other} overlap from {following.start} on")
        if self.split_by and self.windows:
            raise ValueError(f"split_by {self.split_by} is for splits by fraction, but these are windows")
        return self

    @model_validator(mode="after")
    def _label_is_described(self) -> Self:
        if not self.label and (self.classes or self.label_kind != "auto"):
            raise ValueError("classes and label_kind describe the label, and data.label is absent; set it")
        if self.classes and self.label_kind == "regression":
            raise ValueError("classes are for labels of classes, and label_kind is regression; remove one")
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise ValueError(f"classes {list(self.classes)} must be two or more different values")
        kind = "binary" if len(self.classes) == 2 else "multiclass"  # noqa: PLR2004
        if self.classes and self.label_kind not in {"auto", kind}:
            raise ValueError(f"label_kind is {self.label_kind}, and there are {len(self.classes)} classes")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.quality.fresh_rows_within_s and not self.time:
            raise ValueError("quality.fresh_rows_within_s needs the time of each row; name it in data.time")
        if (self.sql is None) == (self.format == "sql"):
            raise ValueError(f"format is {self.format}, but sql is {'present' if self.sql else 'absent'}")
        if self.sql and not self.key:
            raise ValueError("format sql needs data.key: the rows of a database have no order; name a column")
        if self.version and self.format not in {"delta", "iceberg"}:
            raise ValueError(f"version {self.version} needs format delta or iceberg; format is {self.format}")
        if self.mode == "reference" and self.shares:
            raise ValueError("mode reference cannot split the rows of a file by hash; use mode copy")
        if self.mode == "reference" and not self.key:
            raise ValueError(
                "mode reference cannot number the rows of a file; name data.key or use mode copy"
            )
        if self.mode == "reference" and self.classes:
            raise ValueError("mode reference cannot number the classes of a label; use mode copy")
        return self

    @property
    def windows(self) -> dict[str, Window]:
        """The splits by time: all or none."""
        return {name: split for name, split in self.splits.items() if isinstance(split, Window)}

    @property
    def shares(self) -> dict[str, Share]:
        """The splits by hash: all or none."""
        return {name: split for name, split in self.splits.items() if isinstance(split, Share)}
