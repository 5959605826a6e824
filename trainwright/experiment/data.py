"""Section ``data``: where the rows come from, what their columns mean, and what is accepted."""

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from trainwright.artifacts import UNASSIGNED
from trainwright.experiment.section import Fraction, Name, Section, Time, kind_of

Format = Literal["auto", "parquet", "csv", "jsonl", "delta", "iceberg", "sql"]


class Window(Section):
    """A half-open span of time, ``start <= t < end``. A time without a zone is UTC."""

    start: Time
    end: Time

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"the window is empty: start {self.start} is not before end {self.end}")
        return self


class Share(Section):
    """A share of the rows, chosen by a hash of ``data.split_by``: equal values always fall together."""

    fraction: float = Field(gt=0, le=1, description="Share of the values; all shares sum to at most 1.")


def _kind_of_split(value: object) -> str:
    given = value if isinstance(value, Mapping) else {"fraction": None} if isinstance(value, Share) else {}
    return kind_of("Share" if "fraction" in given else "Window")


Split = Annotated[
    Annotated[Window, Tag(kind_of("Window"))] | Annotated[Share, Tag(kind_of("Share"))],
    Discriminator(_kind_of_split),
]


class Query(Section):
    """What is read of a database: one SELECT, in one repeatable-read transaction, ordered by the key."""

    select: Name = Field(description="One SELECT statement; values go through parameters, as :name.")
    parameters: dict[Name, str | int | float | bool] = Field(
        default_factory=dict, description="Values that are bound to :name in the statement."
    )
    tables: tuple[Name, ...] = Field(min_length=1, description="Tables it may read; any other is refused.")
    version: Name | None = Field(
        None, description="A cheap SELECT that changes whenever the rows do; absent: all rows are digested."
    )
    user: Name | None = Field(None, description="Database user; absent: the driver's default.")
    password_file: Name | None = Field(None, description="File with the password, such as a mounted secret.")
    timeout_s: int = Field(3600, ge=1, description="The statement is stopped after this many seconds.")


class Quality(Section):
    """What the rows must reach; a limit that does not hold refuses the snapshot."""

    max_missing: dict[Name, Fraction] = Field(
        default_factory=dict, description="Largest share of rows without a value, by column."
    )
    max_bytes: int | None = Field(None, ge=1, description="A larger source is refused before it is read.")
    fresh_within_s: int | None = Field(
        None, ge=1, description="Age in seconds at which the newest object of the source is refused."
    )
    fresh_rows_within_s: int | None = Field(
        None, ge=1, description="Age in seconds, at the run's date, at which validate refuses the newest row."
    )
    previous: Name | None = Field(None, description="Folder or URI of an earlier snapshot, to compare with.")
    min_volume: float | None = Field(None, gt=0, description="Fewest rows, as a multiple of the previous.")
    max_volume: float | None = Field(None, gt=0, description="Most rows, as a multiple of the previous.")

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        limited = self.min_volume is not None or self.max_volume is not None
        if limited and self.previous is None:
            raise ValueError("min_volume and max_volume compare with quality.previous, which is absent")
        if (self.min_volume or 0) > (self.max_volume or math.inf):
            raise ValueError(f"min_volume {self.min_volume} is above max_volume {self.max_volume}")
        return self


class Runner(Section):
    """On what the shards of a snapshot are made; the snapshot is the same on all of them."""

    engine: Literal["processes", "beam"] = Field("processes", description="This machine, or Apache Beam.")
    workers: int = Field(2, ge=1, le=1024, description="Processes of this machine.")
    options: tuple[Name, ...] = Field(
        (), description="Beam's own pipeline options, such as --runner=FlinkRunner."
    )

    @model_validator(mode="after")
    def _options_have_beam(self) -> Self:
        if self.options and self.engine != "beam":
            raise ValueError(f"options {list(self.options)} are Beam's; engine is {self.engine}")
        return self


class Data(Section):
    """Where the rows come from and what their columns mean."""

    source: Name = Field(
        description="A file, a folder or a glob; local, gs://, s3:// or https://; or a database without "
        "its password. {date} stands for the run's date, also as {date:%Y/%m}."
    )
    format: Format = Field("auto", description="auto: by the files' names and the URI's scheme.")
    version: Name | None = Field(None, description="Version of a Delta table or snapshot id of an Iceberg.")
    sql: Query | None = Field(None, description="What to read of a database.")
    hosts: tuple[Name, ...] = Field((), description="Hosts that an https:// source may name; no other.")
    key: Name = Field(description="Column that identifies a row; unique and never null.")
    time: Name = Field(description="Timestamp column: when the prediction is made.")
    label: Name = Field(
        description="Column to predict, as training.objective says; rows without it are not learned from."
    )
    types: dict[Name, Name] = Field(
        default_factory=dict, description="Arrow types of CSV and JSONL columns, instead of the found ones."
    )
    missing: tuple[str, ...] = Field(
        ("", "NA", "NaN", "nan", "null", "NULL"), description="Texts that mean no value, in CSV files."
    )
    splits: dict[Name, Split] = Field(
        min_length=1, description="Rows by time, or by a hash; a row in none is kept apart."
    )
    split_by: Name | None = Field(None, description="Column whose hash decides; absent: the key.")
    split_seed: int = Field(0, ge=0, description="Another seed gives another division by hash.")
    disjoint: tuple[Name, ...] = Field((), description="Columns no value of which may be in two splits.")
    min_rows: int = Field(1, ge=1, description="Fewer rows in any split are refused.")
    quality: Quality = Field(default_factory=Quality, description="What the rows must reach.")
    mode: Literal["copy", "reference"] = Field(
        "copy", description="copy: rewrite as Parquet shards; reference: pin the objects where they lie."
    )
    store: Name | None = Field(
        None, description="Folder or bucket for the shards; absent: the step's own output."
    )
    shard_rows: int = Field(1_000_000, ge=1, description="Rows a shard.")
    remember: Name | None = Field(
        None, description="Folder that remembers checksums of local files, so that each is read once."
    )
    runner: Runner = Field(default_factory=Runner, description="On what the shards are made.")

    @field_validator("splits", mode="after")
    @classmethod
    def _of_one_kind(cls, splits: dict[str, Window | Share]) -> dict[str, Window | Share]:
        if UNASSIGNED in splits:
            raise ValueError(f"split {UNASSIGNED} is where rows of no split go; name this one otherwise")
        shares = {name: split.fraction for name, split in splits.items() if isinstance(split, Share)}
        if shares and len(shares) < len(splits):
            raise ValueError(f"splits {sorted(shares)} are shares and the others windows; choose one kind")
        if math.fsum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"the shares {shares} sum to {math.fsum(shares.values()):g}, more than 1")
        return splits

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        if len({self.key, self.time, self.label}) < 3:  # noqa: PLR2004
            raise ValueError(f"key {self.key}, time {self.time} and label {self.label} must be three columns")
        ordered = sorted(self.windows.items(), key=lambda item: item[1].start)
        for (name, window), (other, following) in itertools.pairwise(ordered):
            if following.start < window.end:
                raise ValueError(f"splits {name} and {other} overlap from {following.start} on")
        if self.split_by and self.windows:
            raise ValueError(f"split_by {self.split_by} decides by hash, but the splits are windows of time")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.sql is None) == (self.format == "sql"):
            raise ValueError(f"format is {self.format}, but sql is {'absent' if not self.sql else 'there'}")
        if self.version and self.format not in {"delta", "iceberg"}:
            raise ValueError(
                f"version {self.version} is of a delta or iceberg table; format is {self.format}"
            )
        if self.mode == "reference" and self.shares:
            raise ValueError("mode reference cannot divide by hash: rows of a file stay together; use copy")
        return self

    @property
    def windows(self) -> dict[str, Window]:
        """The splits that are windows of time; all of them or none."""
        return {name: split for name, split in self.splits.items() if isinstance(split, Window)}

    @property
    def shares(self) -> dict[str, Share]:
        """The splits that are shares by hash; all of them or none."""
        return {name: split for name, split in self.splits.items() if isinstance(split, Share)}
