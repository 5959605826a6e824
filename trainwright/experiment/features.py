"""Sections ``features`` and ``materialize``: features to join and to copy to the online store."""

from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from trainwright.experiment.section import Fraction, Name, Section, Time
from trainwright.experiment.validation import DriftLimit


class JoinLimits(Section):
    """Limits on the joined features; `join` rejects a training set that exceeds them."""

    max_missing: dict[Name, Fraction] = Field({}, description="Largest fraction missing by column.")
    max_missing_default: Fraction = Field(0.5, description="The same for other joined features. 1: off.")
    max_expired: dict[Name, Fraction] = Field({}, description="Largest fraction past the TTL, by view.")
    max_age_s: dict[Name, Annotated[float, Field(gt=0)]] = Field({}, description="Largest age by view.")
    max_single_feature_auc: float = Field(
        0.99, ge=0.5, le=1, description="Largest AUC of one column; see [join](components/join.md). 1: off."
    )


class Features(Section):
    """Columns of the row to use, and features of a Feast repository to join to them, if there is one."""

    repository: Name | None = Field(None, description="Feast repository: folder, store URI or git commit.")
    source: Name | None = Field(None, description="Glob of definitions and offline files, which are pinned.")
    service: Name | None = Field(None, description="Feast feature service.")
    request: tuple[Name, ...] = Field(
        (), description="Columns known at prediction time. Default without a service: all others."
    )
    exclude: tuple[Name, ...] = Field((), description="Columns that are not features, such as names.")
    known_after: tuple[Name, ...] = Field((), description="Columns known only later; never features.")
    needed: tuple[Name, ...] = Field((), description="Other required columns; a run adds its slices.")
    cutoff: Time | None = Field(None, description="Reject rows from this time on.")
    allow_backfill_leak: Name | None = Field(
        None, description="Reason to accept views without creation time."
    )
    checked_rows: int = Field(20_000, ge=1, description="Rows that Feast joins again to compare.")
    limits: JoinLimits = Field(JoinLimits(), description="Limits on the joined features.")
    drift: dict[Name, DriftLimit] = Field({}, description="Drift limits of joined features, by feature.")
    ignore: tuple[Name, ...] = Field((), description="Joined features not to compare.")

    @model_validator(mode="after")
    def _no_leak(self) -> Self:
        feast = {"repository": self.repository, "source": self.source, "service": self.service}
        missing = [name for name, value in feast.items() if not value]
        if missing and len(missing) < len(feast):
            raise ValueError(f"{', '.join(missing)}: missing; a Feast service needs {', '.join(feast)}")
        if self.request and self.exclude:
            raise ValueError(
                f"request {list(self.request)} already says which columns are used: remove exclude "
                f"{list(self.exclude)}"
            )
        if self.service and self.exclude:
            raise ValueError(
                f"exclude {list(self.exclude)} has no use with a service, which uses only the columns in "
                "request; remove it"
            )
        of_views = {"max_expired": self.limits.max_expired, "max_age_s": self.limits.max_age_s}
        if not self.service and (unused := [f"limits.{name}" for name, value in of_views.items() if value]):
            raise ValueError(f"{', '.join(unused)} are limits of feature views, and there is no service")
        if not self.service and (self.drift or self.ignore):
            raise ValueError(
                "drift and ignore are for joined features, and there is no service; validation.drift and "
                "validation.ignore are for the columns of the rows"
            )
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

    repository: Name = Field(description="Feast repository: folder, object store URI or git commit.")
    source: Name = Field(description="Glob of definitions and offline files.")
    state: Name = Field(description="Folder or URI of watermarks and leases.")
    views: tuple[Name, ...] = Field((), description="Feature views. Default: all online views.")
    start: ZonedTime | None = Field(None, description="Start of a backfill. Default: the watermark.")
    end: ZonedTime | None = Field(None, description="Exclusive end. Default: the run's date, or now.")
    since: ZonedTime | None = Field(None, description="Start of the first window. Default: the oldest row.")
    overlap_s: int = Field(3600, ge=0, description="Look-back for late rows.")
    lag_s: int = Field(0, ge=0, description="Newer rows wait so long.")
    check_keys: int = Field(1000, ge=1, le=100_000, description="Keys to compare afterwards.")
    lease_s: float = Field(60, gt=0, le=3600, description="Expiry of a dead writer's lease.")
    retry_s: int = Field(600, ge=0, description="Longest outage of the online store or registry.")
    wait_s: float = Field(180, ge=0, description="Longest wait for another writer of the view.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start {self.start.isoformat()} is not before end {self.end.isoformat()}")
        return self
