"""``python -m trainwright.draft REQUEST FOLDER``: draft an experiment from the rows of a source."""

import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import reported


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything fails.
    """
    with reported("init"):
        parser = Parser(prog="python -m trainwright.draft", description=__doc__)
        parser.add_argument("request", help="the options, as JSON")
        parser.add_argument("folder", type=Path, help="empty folder for draft.json and the snapshot")
        options = parser.parse_args(arguments)
        from trainwright.draft.documents import DraftRequest
        from trainwright.draft.draft import write_draft

        write_draft(DraftRequest.parse(options.request, "command line"), options.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
