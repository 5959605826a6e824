"""Statistics on Flink with two task managers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.engines.beam_clusters import BeamCluster, killing
from trainwright.errors import DependencyError
from trainwright.experiment import DataEngine
from trainwright.tables import write_snapshot
from trainwright.validate.statistics import ScanRequest, counted_as, packed, scan
from trainwright.validate.tfdv import schema_pb2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of Beam's
def test_killed_worker_changes_no_statistics_and_a_killed_job_server_is_a_typed_error(
    tmp_path: Path, flink: BeamCluster
) -> None:
    draw = np.random.default_rng(0)
    table = pa.table({"x": draw.normal(0, 1, 40_000), "w": draw.choice(["a", "b"], 40_000)})
    folder, results = tmp_path / "snapshot", tmp_path / "results"
    manifest = write_snapshot(folder, {"train": [table]}, parents={}, roles={}, rows_per_file=500)
    shared = replace(manifest, files=tuple(replace(x, uri=str(folder / x.uri)) for x in manifest.files))
    request = ScanRequest(packed(counted_as(schema_pb2.Schema())), ("x", "w"), {"x": np.array([0.0])})
    with killing(flink.kill_worker, results):
        made, found = scan(folder, shared, "train", request, flink.engine(results))
    alone, counts = scan(folder, manifest, "train", request, DataEngine(workers=1))
    assert packed(made) == packed(alone)
    assert found["x"].tolist() == counts["x"].tolist()
    results = tmp_path / "other results"
    with (
        killing(flink.service.kill, results),
        pytest.raises(DependencyError, match="FlinkRunner did not finish the work"),
    ):
        scan(folder, shared, "train", request, flink.engine(results))
