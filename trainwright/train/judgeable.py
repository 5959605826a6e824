"""Whether the splits that will be scored can be judged."""

from collections.abc import Sequence
from pathlib import Path

from torch import distributed

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.serving.columns import numeric_labels
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import no_labels
from trainwright.train.group import Group, wait_for_all


def check_labels(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], outputs: Outputs, group: Group
) -> None:
    """Check that splits can be judged, before hours are spent on learning; reads the label alone.

    Args:
        folder: Folder of the snapshot.
        snapshot: Its manifest.
        splits: Names of the splits that will be scored.
        outputs: What the model will give.
        group: The processes; all of them call this together, and share the reading.

    Raises:
        InputError: A label is not what was learned.
        DataRefused: No row of a split has a label.
    """
    name, found = snapshot.roles["label"], dict.fromkeys(splits, 0)
    for split in splits:
        for piece in tables.pieces(folder, snapshot, [split])[group.rank :: group.size]:
            for batch in tables.read_piece(folder, piece, [name]):
                labels = numeric_labels(batch.column(0), classes=outputs.kind != "regression")
                found[split] += len(labels) - labels.null_count
    everywhere: list[dict[str, int]] = [{} for _ in range(group.size)]
    wait_for_all(group)
    distributed.all_gather_object(everywhere, found)
    if empty := [split for split in splits if not sum(each[split] for each in everywhere)]:
        raise no_labels(empty, snapshot)
