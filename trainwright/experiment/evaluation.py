"""Section ``evaluation``: what the model must reach."""

from typing import Self

from pydantic import Field, model_validator

from trainwright.experiment.section import Fraction, Name, Section


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
