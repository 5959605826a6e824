"""``python -m trainwright.resolve``: find the bytes that an earlier run read.

Commands: ``restore PINNED FOLDER`` copies a source and prints where to read it; ``locate PINNED`` prints the
prefix of its paths, and the folder in its place. ``PINNED`` is a JSON file.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.artifacts import PinnedSource
from trainwright.command import Parser
from trainwright.errors import reported
from trainwright.resolve.resolve import locate, restore


def main(arguments: Sequence[str]) -> None:
    """Run the command; exit with a documented code if anything fails."""
    parser = Parser(prog="python -m trainwright.resolve", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    made = {name: commands.add_parser(name) for name in ("restore", "locate")}
    for command in made.values():
        command.add_argument("pinned", type=Path, help="JSON file of a pinned source")
    made["restore"].add_argument("folder", type=Path, help="folder for the copies")
    with reported("resolve"):
        options = parser.parse_args(arguments)
        pinned = PinnedSource.read(options.pinned)
        answer = locate(pinned) if options.command == "locate" else restore(pinned, options.folder)
        sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
