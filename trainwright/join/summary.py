"""What a join says about itself: one line for the screen, one page of Markdown for the step."""

from collections.abc import Sequence

from trainwright.artifacts import Snapshot
from trainwright.experiment import JoinLimits
from trainwright.featurestore import Service
from trainwright.join.audit import Audit
from trainwright.join.columns import Plan
from trainwright.join.left_out import LeftOut
from trainwright.join.limits import suspicious
from trainwright.report.markdown import escape, table


def headline(training_set: Snapshot, plan: Plan, audit: Audit, left_out: LeftOut) -> str:
    """Say how much was joined and what the audit found: ``336,776 rows, 24 features, 0 leaks``."""
    facts = [f"{training_set.rows:,} rows", f"{len(plan.joined)} features", f"{audit.leaks} leaks"]
    if left_out.rows:
        facts.append(f"{left_out.rows:,} rows of the quarantine left out")
    if audit.unproven:
        facts.append(f"not proven for {', '.join(audit.unproven)}")
    return ", ".join(facts)


def summary_of(service: Service, plan: Plan, audit: Audit, limits: JoinLimits, left_out: LeftOut) -> str:
    """Write the summary: what was joined, the audit of every view and column, what was left."""
    verdict = "No leak was found." if not audit.leaks else f"**{audit.leaks:,} values leak: refused.**"
    parts = [
        f"## Join: {escape(service.name)}\n",
        f"{audit.rows:,} rows got {len(plan.joined)} features from {len(service.views)} views. {verdict} "
        f"{_checks(service, audit)}\n",
        _refused(audit),
        _quarantined(left_out),
        _views(audit),
        _unproven(audit),
        _unusable(audit),
        _columns(audit, limits),
        f"Carried on: {_names(plan.carried)}.\n",
        f"Left behind: {_names(plan.left)}.\n",
        f"Service digest: `{service.digest}`\n",
    ]
    return "\n".join(part for part in parts if part)


def _checks(service: Service, audit: Audit) -> str:
    if service.on_engine:
        return (
            f"Feast's {service.store} store joined them. Every joined value was held against the time, "
            f"creation and TTL of its row; {audit.checked:,} rows were joined again from the files and "
            "compared. What was past its TTL, or created later, is told of these."
        )
    return (
        "Every joined value was held against the time, creation, TTL and key of its row; "
        f"{audit.checked:,} rows were joined again by Feast itself and compared."
    )


def _refused(audit: Audit) -> str:
    if not audit.refusals:
        return ""
    lines = "".join(f"- {escape(line)}\n" for line in audit.refusals)
    return f"**Refused: {len(audit.refusals)} limits do not hold.**\n\n{lines}"


def _quarantined(left_out: LeftOut) -> str:
    if not left_out.rows:
        return ""
    rows = ", ".join(f"{count:,} of {escape(split)}" for split, count in left_out.met.items())
    return f"{left_out.rows:,} rows are in quarantine and were left out: {rows}.\n"


def _names(names: Sequence[str]) -> str:
    return ", ".join(escape(name) for name in names) or "nothing"


def _views(audit: Audit) -> str:
    header = [
        "view",
        "rows with a value",
        "past TTL",
        "newer, created later",
        "median age, h",
        "oldest, h",
        "leaks",
    ]
    rows = []
    for view in audit.views:
        shares = [f"{share:.2%}" for share in (view.matched_share, view.expired_share, view.held_back_share)]
        ages = [f"{seconds / 3600:,.1f}" for seconds in (view.median_age_s, view.max_age_s)]
        rows.append([view.view, *shares, *ages, f"{view.leaks + view.differing_from_feast:,}"])
    return table(header, rows, numeric=range(1, len(header)))


def _unproven(audit: Audit) -> str:
    if not audit.unproven:
        return ""
    return (
        f"Not proven for {_names(audit.unproven)}: these views do not say since when their values are known, "
        "so what was filled in later cannot be told.\n"
    )


def _unusable(audit: Audit) -> str:
    found = [f"{view.unusable_rows:,} of {escape(view.view)}" for view in audit.views if view.unusable_rows]
    if not found:
        return ""
    return f"Rows of the files without a key or a creation time, which no row can get: {', '.join(found)}.\n"


def _columns(audit: Audit, limits: JoinLimits) -> str:
    """List every column: what of it is missing, and what it alone tells of the label."""
    flagged = suspicious(audit, limits)
    rows = [
        [
            column.column,
            column.view or "(the row)",
            f"{column.missing_share:.2%}" if column.view else "",
            f"{column.auc:.3f}" if column.auc else "",
            "suspicious" if column.column in flagged else "no value" if column.missing_share == 1 else "",
        ]
        for column in sorted(audit.columns, key=lambda column: -column.auc)
    ]
    if any(column.auc for column in audit.columns):
        intro = (
            f"AUC says what one column alone tells of the label on {escape(audit.scored_on)}; above "
            f"{limits.max_single_feature_auc:g} it usually knows the answer.\n\n"
        )
    else:
        intro = "No column was scored against the label.\n\n"
    return intro + table(["column", "from", "missing", "AUC", ""], rows, numeric=[2, 3])
