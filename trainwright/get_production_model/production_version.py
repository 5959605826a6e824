"""The version in production, as strings for the cache keys of later steps; and hard limits of budgets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import PermissionRefused
from trainwright.experiment import Registry, SharedBudget
from trainwright.registry.names import PRODUCTION
from trainwright.registry.versions import ProductionVersion, find_production
from trainwright.report import markdown
from trainwright.tracking import Stopwatch
from trainwright.tracking.run_log import read_spending, start_of_month
from trainwright.tracking.server import open_client, persist

NONE = ProductionVersion("", "", "")
"""No version is in production."""

_HINT = (
    "Nothing was trained or changed yet. Look at registry.tracking_uri and at the server; when it answers, "
    "run again: what was done before is reused."
)

_BUDGET_HINT = "Nothing was trained: what budgets have left is not known. Run again when MLflow answers."


def get_production_model(
    registry: Registry, record: Path, summary: Path, alias: str = PRODUCTION
) -> ProductionVersion:
    """Ask the registry which version is in production, or has another alias.

    Args:
        registry: The registered model, and where.
        record: Folder for the step's record.
        summary: Markdown file: what was found.
        alias: The alias.

    Returns:
        The version; all its fields are empty where there is none.

    Raises:
        InputError: The version has no digest of its model, or the address is of no known kind.
        DependencyError: The registry was away for ``registry.retry_s``.
        PermissionRefused: It refuses this identity.
    """
    watch, uri = Stopwatch(), registry.tracking_uri
    client = persist(lambda: open_client(uri), uri, registry.retry_s, hint=_HINT)
    found = (
        persist(lambda: find_production(client, registry.model, alias), uri, registry.retry_s, hint=_HINT)
        or NONE
    )
    stage = "in production" if alias == PRODUCTION else alias
    headline = f"no version of {registry.model} is {stage}"
    if found.version:
        headline = f"{registry.model} version {found.version} is {stage}, model {found.model[:6]}"
    record.mkdir(parents=True, exist_ok=True)
    watch.record(
        record,
        "get_production_model",
        headline,
        config=registry.model_dump(mode="json"),
        outputs={"model": found.model} if found.model else {},
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{markdown.escape(headline)}**\n")
    return found


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
        lambda: read_spending(open_client(uri), start_of_month()), uri, registry.retry_s, hint=_BUDGET_HINT
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
