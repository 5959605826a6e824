"""Sections ``features`` and ``materialize``: features to join and to copy to the online store."""

from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from trainwright.experiment.section import Fraction, Name, Section, Time


class JoinLimits(Section):
    """Limits on the joined features; `join` rejects a training set that exceeds them."""

    max_missing: dict[Name, Fraction] = Field(
        default_factory=dict, description="Largest fraction of null or NaN values by feature."
    )
    max_missing_default: Fraction | None = Field(
        None, description="The same for every other feature. Default: no limit."
    )
    max_expired: dict[Name, Fraction] = Field(
        default_factory=dict, description="Largest fraction of rows past the TTL, by view."
    )
    max_age_s: dict[Name, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Largest age of a joined value in seconds, by view."
    )
    max_single_feature_auc: float = Field(
        0.99, ge=0.5, le=1, description="Largest AUC of a single column; more indicates leakage. 1: no limit."
    )


class Features(Section):
    """Features to join, and columns of the row to use."""

    repository: Name = Field(
        description="Feast repository: folder with `feature_store.yaml`, its object store URI, or a git commit."
    )
    source: Name = Field(description="Glob of definitions and offline files; their content decides reuse.")
    service: Name = Field(description="Feast feature service.")
    request: tuple[Name, ...] = Field((), description="Columns known at prediction time.")
    known_after: tuple[Name, ...] = Field((), description="Columns known only later; never features.")
    needed: tuple[Name, ...] = Field((), description="Other required columns; a run adds its slices.")
    cutoff: Time | None = Field(None, description="Reject rows from this time on. Default: none.")
    allow_backfill_leak: Name | None = Field(
        None, description="Reason to accept views without a created timestamp."
    )
    checked_rows: int = Field(20_000, ge=1, description="Most rows to join again with Feast and compare.")
    limits: JoinLimits = Field(JoinLimits(), description="Limits on the joined features.")

    @model_validator(mode="after")
    def _no_leak(self) -> Self:
        if leaked := sorted(set(self.request) & set(self.known_after)):
            raise ValueError(
                f"{leaked} are known only afterwards: remove them from request or from known_after"
            )
        return self


def _parse_zoned_time(value: object) -> datetime:
    """Read a time with its zone; the zone decides which rows a backfill copies, so none is assumed."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("must be a time such as 2013-01-31T05:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError(f"must be a time with a zone, in UTC {time.isoformat()}Z")
    return time.astimezone(UTC)


ZonedTime = Annotated[datetime, BeforeValidator(_parse_zoned_time)]


class Materialize(Section):
    """Copying of features to the online store by `materialize_features`."""

    repository: Name = Field(
        description="Feast repository: folder with `feature_store.yaml`, its object store URI, or a git commit."
    )
    source: Name = Field(description="Glob of definitions and offline files; their content is recorded.")
    state: Name = Field(description="Folder or URI of watermarks and leases, shared by all runs.")
    views: tuple[Name, ...] = Field((), description="Feature views. Default: all online views.")
    start: ZonedTime | None = Field(None, description="Start of a backfill. Default: the watermark.")
    end: ZonedTime | None = Field(
        None, description="End of the window, exclusive. Default: the run's date, or now."
    )
    since: ZonedTime | None = Field(None, description="Start of the first window. Default: the oldest row.")
    overlap_s: int = Field(3600, ge=0, description="Seconds to look back for late rows.")
    lag_s: int = Field(0, ge=0, description="Seconds that rows may take to arrive; newer rows wait.")
    check_keys: int = Field(1000, ge=1, le=100_000, description="Most keys to compare afterwards.")
    lease_s: float = Field(60, gt=0, le=3600, description="Seconds until the lease of a dead writer expires.")
    retry_s: int = Field(600, ge=0, description="Seconds to retry an unavailable online store or registry.")
    wait_s: float = Field(180, ge=0, description="Seconds to wait for another writer of the same view.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start {self.start.isoformat()} is not before end {self.end.isoformat()}")
        return self
