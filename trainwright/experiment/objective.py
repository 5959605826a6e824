"""Section ``training.objective``: what is predicted, and how rare classes are weighed."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.section import Section


class Objective(Section):
    """Kind of target, and what to do about imbalance."""

    kind: Literal["auto", "binary", "multiclass", "regression"] = Field(
        "auto",
        description="auto: by the label's type; whole numbers and booleans are classes 0 to n-1, other "
        "numbers are regressed.",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: every class weighs the same in the loss (mean weight 1)."
    )
    sampling: Literal["none", "balanced"] = Field(
        "none", description="balanced: every class is drawn equally often, with replacement."
    )
    focal: float = Field(
        0.0, ge=0, le=10, description="Focusing exponent of the focal loss (Lin et al., ICCV 2017); 0: none."
    )
    threshold: Literal["half", "f1", "youden"] = Field(
        "half",
        description="Where a score counts as label 1: 0.5, or what is best on the split that ends the training "
        "early or, without one, on the first that is scored.",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.class_weights == "balanced" and self.sampling == "balanced":
            raise ValueError("class_weights and sampling are both balanced, which weighs twice; choose one")
        return self

    @model_validator(mode="after")
    def _for_its_kind(self) -> Self:
        if self.kind == "regression" and self.of_classes:
            raise ValueError(f"{', '.join(self.of_classes)}: for classes, and kind is regression")
        if self.kind == "multiclass" and self.threshold != "half":
            raise ValueError(f"threshold {self.threshold} is for two classes, and kind is multiclass")
        return self

    @property
    def of_classes(self) -> list[str]:
        """Names of what is asked for that only classes have."""
        asked = {
            "class_weights": self.class_weights != "none",
            "sampling": self.sampling != "none",
            "focal": self.focal > 0,
            "threshold": self.threshold != "half",
        }
        return [name for name, given in asked.items() if given]
