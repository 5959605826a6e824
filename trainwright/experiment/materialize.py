"""Section ``materialize``: which features go into the online store, up to when, and how that is checked."""

from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from trainwright.experiment.section import Name, Section


def _moment(value: object) -> datetime:
    """Read a time with its zone; one without is refused, because only a guess would tell what it means."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("a time is written as 2013-01-31T05:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError(f"a time needs its zone; in UTC it is written {time.isoformat()}Z")
    return time.astimezone(UTC)


Moment = Annotated[datetime, BeforeValidator(_moment)]


class Materialize(Section):
    """Which features go into the online store, up to when, and how that is checked."""

    repository: Name = Field(
        description="Feast repository: a folder with feature_store.yaml, its URI in an object store, or a commit of git."
    )
    source: Name = Field(description="Glob of its definitions and offline files; their content is recorded.")
    state: Name = Field(description="Folder or URI for watermarks and leases; the same for every run.")
    views: tuple[Name, ...] = Field((), description="Feature views; absent: all that are online.")
    start: Moment | None = Field(
        None, description="Backfill from here, up to end; absent: go on from the watermark."
    )
    end: Moment | None = Field(
        None, description="End of the window, without it; absent: the run's date, or now."
    )
    since: Moment | None = Field(None, description="Start of the very first window; absent: the oldest row.")
    overlap_s: int = Field(3600, ge=0, description="How far to look back for late rows, in seconds.")
    lag_s: int = Field(0, ge=0, description="Seconds that rows may take to arrive; newer ones wait.")
    check_keys: int = Field(
        1000, ge=1, le=100_000, description="Keys compared afterwards; all when there are fewer."
    )
    lease_s: float = Field(
        60, gt=0, le=3600, description="After so long without a sign of life, a writer counts as dead."
    )
    retry_s: int = Field(
        600, ge=0, description="Keep trying this long while the online store or the registry does not answer."
    )
    wait_s: float = Field(180, ge=0, description="How long to wait for another writer of the same view.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start {self.start.isoformat()} is not before end {self.end.isoformat()}")
        return self
