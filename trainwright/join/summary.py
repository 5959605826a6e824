"""What a join says about itself: one line for the screen, one page of Markdown for the step."""

from collections.abc import Sequence

from trainwright.artifacts import Snapshot
from trainwright.featurestore import Service
from trainwright.join.audit import SUSPICIOUS_AUC, Audit
from trainwright.join.columns import Plan
from trainwright.report.markdown import escape, table


def headline(training_set: Snapshot, plan: Plan, audit: Audit) -> str:
    """Say how much was joined and what the audit found: ``336,776 rows, 24 features, 0 leaks``."""
    facts = [f"{training_set.rows:,} rows", f"{len(plan.joined)} features", f"{audit.leaks} leaks"]
    if audit.unproven:
        facts.append(f"not proven for {', '.join(audit.unproven)}")
    if audit.suspicious:
        name, auc = max(audit.suspicious.items(), key=lambda item: item[1])
        facts.append(f"suspicious: {name} alone has AUC {auc:.3f} > {SUSPICIOUS_AUC}")
    return ", ".join(facts)


def summary_of(snapshot: Snapshot, service: Service, plan: Plan, audit: Audit) -> str:
    """Write the summary: what was joined, the audit of every view, every column's score, what was left."""
    verdict = "No leak was found." if not audit.leaks else f"**{audit.leaks:,} values leak: refused.**"
    parts = [
        f"## Join: {escape(service.name)}\n",
        f"{snapshot.rows:,} rows got {len(plan.joined)} features from {len(service.views)} views. {verdict} "
        "Every joined value was found again in the views' files, without Feast, and compared.\n",
        _views(audit),
        _unproven(audit),
        _scores(audit),
        f"Carried on: {_names(plan.carried)}.\n",
        f"Left behind: {_names(plan.left)}.\n",
        f"Service digest: `{service.digest}`\n",
    ]
    return "\n".join(part for part in parts if part)


def _names(names: Sequence[str]) -> str:
    return ", ".join(escape(name) for name in names) or "nothing"


def _views(audit: Audit) -> str:
    header = ["view", "rows with a value", "expired", "newer held back", "mean age, h", "oldest, h", "leaks"]
    rows = []
    for view in audit.views:
        figures = view.figures()
        shares = [f"{figures[name]:.2%}" for name in ("matched_share", "expired_share", "held_back_share")]
        ages = [f"{figures[name]:,.1f}" for name in ("mean_age_h", "oldest_age_h")]
        rows.append([view.view.name, *shares, *ages, f"{view.leaks:,}"])
    return table(header, rows, numeric=range(1, len(header)))


def _unproven(audit: Audit) -> str:
    if not audit.unproven:
        return ""
    return (
        f"Not proven for {_names(audit.unproven)}: these views do not say since when their values are known, "
        "so what was filled in later cannot be told.\n"
    )


def _scores(audit: Audit) -> str:
    """List the columns that alone predict the label best."""
    if not audit.scores:
        return "No column was scored against the label.\n"
    ordered = sorted(audit.scores.items(), key=lambda item: -item[1])
    rows = [[name, f"{auc:.3f}", "suspicious" if auc > SUSPICIOUS_AUC else ""] for name, auc in ordered[:10]]
    intro = (
        f"What one column alone tells of the label (AUC on {escape(audit.scored_on)}; "
        f"above {SUSPICIOUS_AUC} it usually knows the answer):\n"
    )
    return f"{intro}\n{table(['column', 'AUC', ''], rows, numeric=[1])}"
