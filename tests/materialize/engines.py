"""Engines that plug into Feast as its Spark and Ray engines do."""

from typing import Any, Literal

from feast.infra.common.materialization_job import MaterializationJobStatus
from feast.infra.compute_engines.base import ComputeEngine
from feast.infra.compute_engines.local.compute import LocalComputeEngine
from feast.infra.compute_engines.local.job import LocalMaterializationJob
from feast.repo_config import FeastConfigBaseModel


class SilentEngineConfig(FeastConfigBaseModel):
    type: Literal["tests.materialize.engines.SilentEngine"] = "tests.materialize.engines.SilentEngine"


class SilentEngine(ComputeEngine):
    """Writes nothing and says that it succeeded: what Ray's engine does when the store is down."""

    def update(self, *arguments: Any, **more: Any) -> None:
        pass

    def teardown_infra(self, *arguments: Any, **more: Any) -> None:
        pass

    def get_historical_features(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("no join is asked of this engine")

    def _materialize_one(self, *_: Any, **__: Any) -> Any:
        return LocalMaterializationJob("silent", MaterializationJobStatus.SUCCEEDED)


class OwnEngineConfig(FeastConfigBaseModel):
    type: Literal["tests.materialize.engines.OwnEngine"] = "tests.materialize.engines.OwnEngine"
    backend: str | None = None


class OwnEngine(LocalComputeEngine):
    """Feast's own engine under a name that is not ``local``, so that the work is handed to it."""
