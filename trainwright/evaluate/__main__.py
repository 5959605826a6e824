"""``python -m trainwright.evaluate``: comparisons of runs and of predictions.

``compare RUN RUN…`` compares runs, paired by seed. Options: ``--metric NAME`` (again for more), ``--level``,
``--report FILE`` for a page, ``--json``. ``difference FIRST SECOND`` prints the largest difference of two
predictions of one row, or null where the rows differ.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import InputError, reported
from trainwright.evaluate.comparison import compare_runs
from trainwright.evaluate.comparison_report import comparison_json, comparison_lines, draw_comparison
from trainwright.evaluate.predictions import largest_difference
from trainwright.report.page import write_page


def main(arguments: Sequence[str]) -> None:
    """Run the command; exit with a documented code if anything is wrong."""
    parser = Parser(prog="trainwright", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    difference = commands.add_parser("difference")
    difference.add_argument("predictions", nargs=2, type=Path, help="folders of predictions")
    command = commands.add_parser("compare")
    command.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of their evaluations")
    command.add_argument("--metric", action="append", default=[], help="metric to compare")
    command.add_argument("--level", type=float, default=0.05, help="level of p-values, after Holm")
    command.add_argument("--report", type=Path, help="file for a page")
    command.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    with reported("evaluate"):
        options = parser.parse_args(arguments)
        if options.command == "difference":
            largest = largest_difference(*options.predictions)
            sys.stdout.write(f"{json.dumps(largest if math.isfinite(largest) else None)}\n")
            return
        if not 0 < options.level < 1:
            raise InputError(
                f"{options.level:g} is no level of a test: it lies between 0 and 1", where="--level"
            )
        comparison = compare_runs(options.runs, options.metric, options.level)
        if options.report:
            write_page(draw_comparison(comparison), options.report)
        if options.json:
            lines = [json.dumps(comparison_json(comparison), ensure_ascii=False, allow_nan=False)]
        else:
            lines = [
                *comparison_lines(comparison),
                *([f"  report   {options.report}"] if options.report else []),
            ]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
