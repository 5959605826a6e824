"""Section ``features``: what is joined, and which columns of the row itself are used."""

from typing import Self

from pydantic import Field, model_validator

from trainwright.experiment.section import Name, Section, Time


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
