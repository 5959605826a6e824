"""Costs of runs as MLflow has them: the tags and metrics that the end of a run writes."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainwright.artifacts.cost import GROUPS, Spending
from trainwright.tracking.run_log import PREFIX

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

WASTE = "waste/"
"""Beginning of the names of metrics with lost parts of a cost."""

_PAGE = 1000


def start_of_month() -> datetime:
    """Return when the month began, in UTC."""
    return datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def read_spending(client: "MlflowClient", since: datetime) -> list[Spending]:
    """Return what each run spent that began at a time or later, over all experiments.

    Raises:
        MlflowException, OSError: The server does not answer.
    """
    experiments = [one.experiment_id for one in client.search_experiments(max_results=_PAGE)]
    query = f"tags.`{PREFIX}currency` != '' AND attributes.start_time >= {int(since.timestamp() * 1000)}"
    found: list[Spending] = []
    token: str | None = ""
    while token is not None and experiments:
        page = client.search_runs(experiments, query, max_results=_PAGE, page_token=token or None)
        found += [_spending(run) for run in page]
        token = page.token or None
    return found


def _spending(run: "Run") -> Spending:
    tags, metrics = run.data.tags, run.data.metrics
    return Spending(
        run=tags.get(f"{PREFIX}run", ""),
        values={name: tags.get(f"{PREFIX}{name}", "") for name in GROUPS},
        currency=tags[f"{PREFIX}currency"],
        cost=metrics.get("cost", 0.0),
        waste={name.removeprefix(WASTE): value for name, value in metrics.items() if name.startswith(WASTE)},
    )
