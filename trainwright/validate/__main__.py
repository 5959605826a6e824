"""``python -m trainwright.validate infer SNAPSHOT``: a first schema, for a person to review."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Never

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError, reported


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other wrong input is reported."""

    def error(self, message: str) -> Never:
        raise InputError(message, where="command line", hint=self.format_usage().strip())


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything is wrong.
    """
    with reported("validate"):
        parser = _Parser(prog="python -m trainwright.validate", description=__doc__)
        commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
        infer = commands.add_parser("infer", help="write a first schema to standard output")
        infer.add_argument("snapshot", type=Path, help="folder of the snapshot, with manifest.json")
        infer.add_argument("--split", default="train", help="rows to learn the schema from")
        asked = parser.parse_args(arguments)
        sys.stdout.write(infer_schema(asked.snapshot, asked.split))


def infer_schema(folder: Path, split: str) -> str:
    """Return a first schema of a snapshot in its text form, with comments on what to review.

    Args:
        folder: The snapshot's folder.
        split: Name of the split to learn from.

    Raises:
        InputError: There is no such snapshot or split, or the split has no rows.
    """
    snapshot = Snapshot.read(folder)
    if not snapshot.splits.get(split, 1):
        raise InputError(f"split {split!r} has no rows to learn from", where=str(folder))

    from trainwright.tables import iter_batches
    from trainwright.validate.schema import infer, write_text
    from trainwright.validate.statistics import describe
    from trainwright.validate.tfdv import schema_pb2

    key, label = snapshot.roles.get("key", ""), snapshot.roles.get("label", "")
    rows = iter_batches(folder, snapshot, [split])
    statistics = describe(rows, schema_pb2.Schema(), uncounted=[key])
    comments = (
        f"Inferred from {snapshot.splits[split]:,} rows of split {split}, data {snapshot.digest[:12]}.",
        "Review it before use: what was seen is not what is allowed. Presence, domains, ranges, types.",
        "",
    )
    return write_text(infer(statistics, key=key, label=label), comments)


if __name__ == "__main__":
    main(sys.argv[1:])
