"""The hard limits of budgets that several runs share, before a training is submitted."""

from collections.abc import Mapping
from typing import Any

from trainwright.errors import PermissionRefused
from trainwright.experiment import Registry, SharedBudget
from trainwright.tracking.run_log import read_spending, start_of_month
from trainwright.tracking.server import open_client, persist

_HINT = "Nothing was trained: what budgets have left is not known. Run again when MLflow answers."


def check_budgets(budget: Mapping[str, Any], registry: Registry) -> None:
    """Reject a run whose jobs can cost more than a budget has left this month.

    Costs of runs that have not ended are not known yet, and do not count.

    Args:
        budget: From ``configure``: ``most``, ``currency``, ``budgets``; empty without any.
        registry: Address of MLflow.

    Raises:
        PermissionRefused: A budget has too little left.
        DependencyError: MLflow was away for ``registry.retry_s``: what was spent is not known.
    """
    if not budget:
        return
    uri, most = registry.tracking_uri, float(budget["most"])
    spent = persist(
        lambda: read_spending(open_client(uri), start_of_month()), uri, registry.retry_s, hint=_HINT
    )
    for shared in (SharedBudget.check(entry, "parameter budget") for entry in budget["budgets"]):
        used = sum(one.cost for one in spent if shared.covers(one.values))
        if shared.hard is not None and used + most > shared.hard:
            raise PermissionRefused(
                f"{shared} has spent {used:,.4g} of {shared.hard:,.4g} {budget['currency']} this month, and "
                f"the jobs of this run can cost {most:,.4g}",
                where="run.prices.budgets",
                hint="Lower resources.timeout_s or the size of the job, or have the budget raised.",
            )
