"""Costs of runs as MLflow has them: the tags and metrics that the end of a run writes."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainwright.artifacts.cost import GROUPS, Spending
from trainwright.tracking.run_log import PREFIX
from trainwright.tracking.server import experiment_ids, search_all

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

WASTE = "waste/"
"""Beginning of the names of metrics with lost parts of a cost."""


def start_of_month() -> datetime:
    """Return when the month began, in UTC."""
    return datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def read_spending(client: "MlflowClient", since: datetime) -> list[Spending]:
    """Return what each run spent that began at a time or later, over all experiments.

    Raises:
        MlflowException, OSError: The server does not answer.
    """
    query = f"tags.`{PREFIX}currency` != '' AND attributes.start_time >= {int(since.timestamp() * 1000)}"
    found = search_all(client.search_runs, experiment_ids(client), query)
    return [_spending(run) for run in found]


def _spending(run: "Run") -> Spending:
    tags, metrics = run.data.tags, run.data.metrics
    return Spending(
        run=tags.get(f"{PREFIX}run", ""),
        values={name: tags.get(f"{PREFIX}{name}", "") for name in GROUPS},
        currency=tags[f"{PREFIX}currency"],
        cost=metrics.get("cost", 0.0),
        waste={name.removeprefix(WASTE): value for name, value in metrics.items() if name.startswith(WASTE)},
    )
