"""``python -m trainwright.summarize SECONDS PLACE…``: sends logs of runs to MLflow, waiting SECONDS for it.

A place is the folder of a run, of runs or of an artifact ``run``; or the URI of a log.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from trainwright.errors import InputError, reported
from trainwright.imports import collect_rarely
from trainwright.summarize.run_log import send
from trainwright.tracking.run_log import RunLog


def main(arguments: list[str]) -> None:
    """Send the logs, and print a line for each."""
    with reported("summarize"):
        if len(arguments) < 2:  # noqa: PLR2004 - a number and a place
            raise InputError(f"expected SECONDS PLACE…, found {arguments}", where="command line")
        seconds, *places = arguments
        logs = [log for place in places for log in _logs(place)]
        for line in send(logs, float(seconds)):
            print(line)  # noqa: T201
        if not logs:
            print("MLflow has every run.")  # noqa: T201


def _logs(place: str) -> Iterator[str]:
    """Yield the folders of the logs in a place: its own first."""
    if "://" in place:
        yield place
        return
    for pattern in ("", "*/", "*/*/"):
        yield from (str(path.parent) for path in sorted(Path(place).glob(f"{pattern}{RunLog.FILE}")))


if __name__ == "__main__":
    collect_rarely()
    main(sys.argv[1:])
