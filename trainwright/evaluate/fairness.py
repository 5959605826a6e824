"""What is found about groups: their rates, and how far these lie apart."""

from dataclasses import dataclass

from trainwright.significance import Estimate


@dataclass(frozen=True)
class Group:
    """One group in a comparison of fairness: its name, its rows, and the rates that are compared.

    ``reason`` says why it is too small to be compared, and is empty if it is not.
    """

    name: str
    rows: int
    rates: dict[str, Estimate]
    reason: str = ""


@dataclass(frozen=True)
class Disparity:
    """How unequally groups are treated, by one measure.

    Attributes:
        measure: Such as ``equal_opportunity``.
        columns: What the groups are made of: one column, or two crossed.
        against: ``groups``: the largest difference of two; ``overall``: the largest from the whole.
        value: The candidate's; None where it could not be measured.
        baseline: The baseline's; None where there is none.
        worsening: By how much the candidate is worse than the baseline, paired; positive is worse.
        lowest: Name of the group at the low end, such as ``race = B, sex = F``.
        highest: Name of the group at the high end.
        rates: What the two have of the rate that is compared, the lowest first; empty where not measured.
        reason: Why it could not be measured; empty if it could.
    """

    measure: str
    columns: tuple[str, ...]
    against: str
    value: Estimate | None
    baseline: Estimate | None = None
    worsening: Estimate | None = None
    lowest: str = ""
    highest: str = ""
    rates: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Fairness:
    """The comparison of groups: who they are, and how unequal they are."""

    groups: dict[tuple[str, ...], tuple[Group, ...]]
    disparities: tuple[Disparity, ...]
