"""What a training set must reach: limits on what the audit found, each refusal with its figures."""

from collections.abc import Iterator

from trainwright.experiment import JoinLimits
from trainwright.join.audit import Audit

MIN_CLASS_ROWS = 30
"""With fewer rows of a class, chance alone can order the labels: such a score refuses nothing."""


def refusals(audit: Audit, limits: JoinLimits) -> Iterator[str]:
    """Name every limit that does not hold, with the figure and the limit."""
    for view in audit.views:
        name = view.view
        most, oldest = limits.max_expired.get(name), limits.max_age_s.get(name)
        if most is not None and view.expired_share > most:
            yield f"view {name}: newest value past its TTL in {view.expired_share:.2%} of rows > {most:.2%}"
        if oldest is not None and view.max_age_s > oldest:
            yield f"view {name}: oldest joined value {view.max_age_s:,.0f} s > {oldest:,.0f} s"
    for column in audit.columns:
        share = limits.max_missing.get(column.column, limits.max_missing_default if column.view else None)
        if share is not None and column.missing_share > share:
            yield f"{column.column}: no value in {column.missing_share:.2%} of the rows > {share:.2%}"
    for name, auc in suspicious(audit, limits).items():
        limit = limits.max_single_feature_auc
        yield f"{name}: alone orders the labels of {audit.scored_on} with AUC {auc:.4f} > {limit:g}"


def suspicious(audit: Audit, limits: JoinLimits) -> dict[str, float]:
    """Return the AUC of the columns that alone predict the label too well, where enough rows were scored."""
    if min(audit.scored_rows, default=0) < MIN_CLASS_ROWS:
        return {}
    most = limits.max_single_feature_auc
    return {column.column: column.auc for column in audit.columns if column.auc > most}
