"""Run the step ``tune`` once: ``python tune_ours.py TRAINING_SET FOLDER SECTIONS``, as a retry of it does."""

import json
import sys
from pathlib import Path

from trainwright.artifacts import Snapshot
from trainwright.errors import reported
from trainwright.train.submit import TrainRequest
from trainwright.tune import tune as step

if __name__ == "__main__":
    rows, folder, sections = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    outputs = [folder / name for name in ("study", "summary.md", "report.html")]
    request = TrainRequest(
        rows,
        Snapshot.read(rows).digest,
        sections["network"],
        sections["training"],
        {"launcher": "local", "processes": 1},
        "",
        str(outputs[0]),
    )
    with reported("tune"):
        step.tune(request, sections["tuning"], *outputs)
