"""Print the loss of a table of byte pairs on the evaluation rows of a run: ``plain_bigram.py runs/ID``.

It counts how often a byte follows another in the training rows, and adds one to each count. Run it with the
environment of training: .environments/torch/bin/python.
"""

import sys
from pathlib import Path

import numpy as np

from trainwright import tables
from trainwright.artifacts import Snapshot


def main() -> None:
    """Print the mean loss per byte, in nats, as evaluate does: the first byte of a row has none."""
    folder = Path(sys.argv[1]) / "join" / "training_set"
    snapshot = Snapshot.read(folder)
    counts, losses = np.ones((256, 256)), []
    for split in ("train", "evaluate"):
        probabilities = counts / counts.sum(axis=1, keepdims=True)
        for text in tables.read_split(folder, snapshot, split)["text"].to_pylist():
            read = np.frombuffer(text.encode(), dtype=np.uint8)
            if split == "train":
                np.add.at(counts, (read[:-1], read[1:]), 1)
            else:
                losses += [-np.log(probabilities[read[:-1], read[1:]])]
    print(f"loss {np.concatenate(losses).mean():.4f}")


if __name__ == "__main__":
    main()
