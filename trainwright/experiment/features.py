"""Section ``features``: what is joined, and which columns of the row itself are used."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainwright.experiment.section import Fraction, Name, Section, Time


class JoinLimits(Section):
    """What the joined features must reach; a limit that does not hold refuses the training set."""

    max_missing: dict[Name, Fraction] = Field(
        default_factory=dict, description="Largest share of rows without a value (null or NaN), by feature."
    )
    max_missing_default: Fraction | None = Field(
        None, description="The same for every other feature; absent: any share."
    )
    max_expired: dict[Name, Fraction] = Field(
        default_factory=dict, description="Largest share of rows whose newest value is past its TTL, by view."
    )
    max_age_s: dict[Name, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Largest age of any joined value, in seconds, by view."
    )
    max_single_feature_auc: float = Field(
        0.99,
        ge=0.5,
        le=1,
        description="One column that orders the labels better knows the answer; 1: any may.",
    )


class Features(Section):
    """Which features are joined, and which columns of the row itself are used."""

    repository: Name = Field(
        description="Feast repository: a folder with feature_store.yaml, its URI in an object store, or a commit of git."
    )
    source: Name = Field(description="Glob of its definitions and offline files; their content counts.")
    service: Name = Field(description="Feast feature service to join.")
    request: tuple[Name, ...] = Field((), description="Columns known when the prediction is made.")
    known_after: tuple[Name, ...] = Field((), description="Columns known only afterwards; never features.")
    needed: tuple[Name, ...] = Field((), description="Columns there must be; a run adds its slices.")
    cutoff: Time | None = Field(None, description="Rows from this time on are refused; absent: none are.")
    allow_backfill_leak: Name | None = Field(None, description="Why views may lack a created timestamp.")
    checked_rows: int = Field(
        20_000, ge=1, description="Rows that Feast itself joins again, at most, to compare every value."
    )
    limits: JoinLimits = Field(JoinLimits(), description="What the joined features must reach.")

    @model_validator(mode="after")
    def _no_leak(self) -> Self:
        if leaked := sorted(set(self.request) & set(self.known_after)):
            raise ValueError(f"{leaked} are known only afterwards and cannot be request columns")
        return self
