"""The judgement of a snapshot: what it knows beside the comparisons."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.artifacts import Snapshot
from trainwright.drift.baseline import Baseline
from trainwright.drift.comparison import SamplePair
from trainwright.drift.findings import Against
from trainwright.drift.judgement import Judgement
from trainwright.experiment import Suppression, Validation
from trainwright.validate.profile import Profile
from trainwright.validate.quarantine import Quarantined
from trainwright.verdicts import AT_LEAST, Rule


@dataclass(frozen=True, kw_only=True)
class SnapshotJudgement(Judgement):
    """Everything the gate knows; the verdict and the report are written from it alone.

    ``counted`` has the rules on numbers of rows: volume, freshness, label, quarantine. ``inferred`` is the
    text of the schema if nobody has reviewed it.
    """

    snapshot: Snapshot
    validation: Validation
    schema_digest: str
    baseline: Baseline | None
    profiles: dict[str, Profile]
    pairs: Mapping[Against, SamplePair[Profile]]
    quarantined: Quarantined
    in_force: tuple[Suppression, ...]
    inferred: str = ""

    @property
    def remarks(self) -> str:
        """Remarks at the end of the headline of a PASS."""
        total = self.quarantined.total
        rows = f"; {total:,} rows in quarantine" if total else ""
        return ("; the schema was inferred" if self.inferred else "") + rows

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule with its number and the limit that was applied."""
        counts = self.snapshot.splits
        names = dict.fromkeys([self.validation.previous, self.validation.current])
        rows = [
            Rule(name=f"rows/{name}", value=float(counts[name]), limit=1.0, test=AT_LEAST)
            for name in names
            if name in counts
        ]
        return (*rows, *super().rules())

    def metrics(self) -> dict[str, float]:
        """Return the figures for the page of the run."""
        counts = {"columns_moved": len(self.moved_columns), "not_judged": len(self.not_judged)}
        rows = {"rows_in_quarantine": self.quarantined.total} if self.quarantined.limit else {}
        return counts | rows | {entry.rule: entry.value for entry in self.comparisons}
