"""What is wrong with a snapshot, one thing at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from trainwright.experiment import Severity

Against = Literal["", "previous", "baseline", "serving"]
"""What a comparison is with: the previous span, the data that the model in production learned from, or rows
as they were served; empty if a finding is no comparison."""

ORDER: dict[str, int] = {"BLOCK": 0, "HOLD": 1, "WARN": 2, "": 3}


@dataclass(frozen=True)
class Finding:
    """One way in which the data is not what it should be.

    Attributes:
        kind: TFDV's name of the anomaly, or one like it.
        what: What is wrong, in words, with the values that show it.
        split: The split; empty if it concerns the snapshot as a whole.
        column: The column; empty if it concerns the split as a whole.
        against: What was compared with, if it is a comparison.
        severity: BLOCK refuses the snapshot, HOLD asks a person, WARN is only told; empty until the policy
            has given its own.
        waived: Why it does not count; empty if it does.
        rule: Name of the verdict's rule that it breaks; empty if it is a rule of its own.
        of_schema: Whether the schema was not kept: such a finding in the label refuses the snapshot.
    """

    kind: str
    what: str
    split: str = ""
    column: str = ""
    against: Against = ""
    severity: Severity | Literal[""] = ""
    waived: str = ""
    rule: str = ""
    of_schema: bool = False

    @property
    def weight(self) -> str:
        """What it adds to the decision: its severity, or nothing if it is waived."""
        return "" if self.waived else self.severity


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Put together what was found alike in several splits, and the gravest first, what is waived last."""
    found: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.column, finding.kind, finding.what, finding.against, finding.waived)
        found[key] = replace(finding, split="") if key in found else finding
    return tuple(sorted(found.values(), key=lambda finding: ORDER[finding.weight]))
