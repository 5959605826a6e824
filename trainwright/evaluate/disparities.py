"""Which groups of a column, or of two crossed, are compared, and how unequally they are treated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.evaluate.enough import FEWEST, clustered
from trainwright.evaluate.findings import Disparity, Floats
from trainwright.evaluate.formulas import Sums, ratio
from trainwright.evaluate.inequality import MEASURES, ODDS, OPPORTUNITY, RATES, rates, size
from trainwright.evaluate.partition import Partition
from trainwright.evaluate.subject import Integers
from trainwright.evaluate.worsening import worsened


@dataclass(frozen=True)
class Needs:
    """The fewest rows, positives and negatives with which a group is compared."""

    rows: int
    positives: int
    negatives: int

    def met(self, measure: str, rows: Integers, classes: tuple[Integers, Integers]) -> Integers:
        """Return the groups with enough rows of what a measure is about, as indices.

        Args:
            measure: One of :data:`MEASURES`.
            rows: Of each group, shape (groups,).
            classes: Negatives and positives of each, of shape (groups,); 0 of a class of too few clusters.
        """
        enough = rows >= self.rows
        if measure in (OPPORTUNITY, ODDS):
            enough = enough & (classes[1] >= self.positives)
        if measure == ODDS:
            enough = enough & (classes[0] >= self.negatives)
        return np.flatnonzero(enough)


def compare_groups(
    partition: Partition, columns: tuple[str, ...], names: Sequence[str], needs: Needs, against: str
) -> list[Disparity]:
    """Measure every disparity of a partition.

    Args:
        partition: The rows by group; the candidate, and the baseline where there is one.
        columns: What the groups are made of.
        names: Of the groups, shape (parts,).
        needs: What a group must have to be compared; the others are left out.
        against: ``groups`` or ``overall``.
    """
    classes = _class_counts(partition, 0), _class_counts(partition, 1)
    found = []
    for measure in MEASURES:
        kept = needs.met(measure, partition.rows, classes)
        if len(kept) < 2:  # noqa: PLR2004
            reason = f"{len(kept)} of {partition.parts} groups are large enough; two are needed"
            found.append(Disparity(measure, columns, against, None, reason=reason))
        else:
            found.append(_measure(partition, measure, columns, [names[i] for i in kept], kept, against))
    return found


def _class_counts(partition: Partition, value: int) -> Integers:
    """Return the rows of a class by group, shape (parts,); 0 where they are of too few clusters."""
    subject = partition.subject
    rows = np.flatnonzero(subject.candidate.predictions.label == value)
    count = np.bincount(partition.place[rows], minlength=partition.parts).astype(np.int64)
    if subject.clusters is None:
        return count
    units = clustered(subject, partition.place, partition.parts, rows)
    return np.where(units < FEWEST, 0, count)


def _measure(
    partition: Partition,
    measure: str,
    columns: tuple[str, ...],
    names: list[str],
    kept: Integers,
    against: str,
) -> Disparity:
    confidence, exact = partition.subject.evaluation.confidence, partition.subject.exact
    values = [size(measure, tally, kept, against, confidence, exact=exact) for tally in partition.tallies]
    share = _furthest_apart(measure, partition.tallies[0].total, kept)
    ends = int(np.nanargmin(share)), int(np.nanargmax(share))
    value = values[0]
    if value is None:
        reason = "no group has a row that is selected"
        return Disparity(measure, columns, against, None, reason=reason)
    worsening = worsened(partition, measure, kept, against) if len(values) > 1 else None
    return Disparity(
        measure=measure,
        columns=columns,
        against=against,
        value=value,
        baseline=values[1] if len(values) > 1 else None,
        worsening=worsening,
        lowest=names[ends[0]],
        highest=names[ends[1]],
        rates=(float(share[ends[0]]), float(share[ends[1]])),
    )


def _furthest_apart(measure: str, total: Sums, kept: Integers) -> Floats:
    """Return, of the rates that a measure looks at, the one in which groups differ most; shape (kept,)."""
    each = [ratio(over[kept], under[kept]) for over, under in (rates(total)[n] for n in RATES[measure])]
    return max(each, key=lambda share: float(np.nanmax(share) - np.nanmin(share)))
