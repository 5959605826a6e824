"""The judgement of a snapshot, the limits of its columns, and the faults of the section ``validation``."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.drift.baseline import Baseline
from trainwright.drift.comparison import SamplePair
from trainwright.drift.findings import L_INFINITY, OURS, Against, Limit, learned_from, limit_of
from trainwright.drift.judgement import Judgement
from trainwright.experiment import SeverityRule, Suppression, Validation
from trainwright.validate.profile import Profile
from trainwright.validate.quarantine import Quarantined
from trainwright.validate.schema import expected, kind, reject_faults
from trainwright.validate.tfdv import anomalies_pb2
from trainwright.verdicts import AT_LEAST, Rule


def plan(
    schema: Any,
    validation: Validation,
    roles: Mapping[str, str],
    target: SnapshotTarget = SnapshotTarget(),  # noqa: B008
) -> tuple[Limit, ...]:
    """Return a limit for every column of the schema, unless it is ignored or is the key or the time.

    Raises:
        InputError: The section names an unknown column, or a measure that does not fit one; all faults are
            named.
    """
    columns = expected(schema)
    faults = [*_split_faults(validation, roles, target), *_column_faults(columns, validation)]
    reject_faults([*faults, *_policy_faults(validation, columns)], "parameter validation")
    left_out = {*validation.ignore, roles.get("key"), roles.get("time")} - validation.drift.keys()
    return tuple(
        limit_of(name, kind(feature), validation.drift.get(name), validation)
        for name, feature in columns.items()
        if name not in left_out
    )


def _split_faults(validation: Validation, roles: Mapping[str, str], target: SnapshotTarget) -> Iterator[str]:
    if validation.current == validation.previous:
        yield f"current and previous are both {validation.current!r}: a split never moves from itself"
    if validation.serving == learned_from(validation):
        yield f"serving is {validation.serving!r}, which the model learns from: it never moves from itself"
    if validation.quarantine and "key" not in roles:
        yield "quarantine: the rows have no key (data.key), so nobody could leave them out"
    if validation.min_label_share and "label" not in roles:
        yield "min_label_share: the rows have no label (data.label)"
    elif validation.min_label_share and target.kind == "regression":
        yield "min_label_share: the label is a number, whose values have no shares; remove it"


def _column_faults(columns: Mapping[str, Any], validation: Validation) -> Iterator[str]:
    def unknown(name: str) -> str:
        close = difflib.get_close_matches(name, columns, n=3)
        advice = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(columns)}"
        return f"no column {name!r} in the schema; {advice}"

    for name, limit in validation.drift.items():
        if name not in columns:
            yield f"drift.{name}: {unknown(name)}"
        elif name in validation.ignore:
            yield f"drift.{name}: also in ignore"
        elif kind(columns[name]) == "numbers" and limit.comparator == L_INFINITY:
            yield (
                f"drift.{name}: infinity_norm counts single values, and for numbers TFDV reports 0 for ever; "
                "use jensen_shannon_divergence for numeric columns, or declare it a category in the schema "
                "(int_domain { is_categorical: true })"
            )
    yield from (f"ignore: {unknown(name)}" for name in validation.ignore if name not in columns)


def _policy_faults(validation: Validation, columns: Mapping[str, Any]) -> Iterator[str]:
    """Name the rules and suppressions that can never fit anything."""
    kinds = OURS | set(anomalies_pb2.AnomalyInfo.Type.keys())
    entries: dict[str, Sequence[SeverityRule | Suppression]] = {
        "severity": validation.severity,
        "suppressions": validation.suppressions,
    }
    for section, own in entries.items():
        for place, entry in enumerate(own):
            if not any(fnmatchcase(kind, entry.kind) for kind in kinds):
                yield f"{section}.{place}.kind: no kind of finding is called {entry.kind!r}"
            known = entry.column is None or entry.column in {*columns, *validation.joined}
            if not known and entry.kind != "SCHEMA_NEW_COLUMN":
                yield f"{section}.{place}.column: no column {entry.column!r} in the schema"


def split_names(validation: Validation) -> list[str]:
    """Return the splits that are compared, the reference of the drift first."""
    names = (validation.previous, validation.current, learned_from(validation), validation.serving)
    return [name for name in dict.fromkeys(names) if name]


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
