"""Score one split with a model, in a process without rights.

``python -m trainwright.score MODEL DIGEST TRAINING_SET DATA_VERSION SPLIT PREDICTIONS THREADS``: 0 threads
for as many as torch chooses.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.artifacts import Snapshot
from trainwright.errors import reported
from trainwright.score.score import write_model_predictions
from trainwright.serving import verified


def main(arguments: Sequence[str]) -> None:
    """Score the split, and print the digest of the predictions and their rows as one line of JSON."""
    model, digest, training_set, data_version, split, predictions, threads = arguments
    with reported("score"):
        snapshot = Snapshot.open(Path(training_set), data_version)
        scored = verified(Path(model), digest)
        if threads != "0" and scored.kind != "trees":
            import torch

            torch.set_num_threads(int(threads))
        written = write_model_predictions(
            Path(model), scored, Path(training_set), snapshot, [split], Path(predictions)
        )
        sys.stdout.write(json.dumps({"digest": written.digest, "rows": written.splits[split]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
