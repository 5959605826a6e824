"""``python -m trainwright.evaluate compare RUN RUN…``: runs against runs, paired by seed.

Options: ``--metric NAME`` (again for more), ``--level``, ``--report FILE`` for a page, ``--json``.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import InputError, reported
from trainwright.evaluate.comparison import compare_runs
from trainwright.evaluate.comparison_report import comparison_json, comparison_lines, draw_comparison
from trainwright.report.page import write_page


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything is wrong.
    """
    with reported("evaluate"):
        asked = _parser().parse_args(arguments)
        if not 0 < asked.level < 1:
            raise InputError(
                f"{asked.level:g} is no level of a test: it lies between 0 and 1", where="--level"
            )
        comparison = compare_runs(asked.runs, asked.metric, asked.level)
        if asked.report:
            write_page(draw_comparison(comparison), asked.report)
        if asked.json:
            sys.stdout.write(
                json.dumps(comparison_json(comparison), ensure_ascii=False, allow_nan=False) + "\n"
            )
            return
        sys.stdout.write("\n".join(comparison_lines(comparison)) + "\n")
        if asked.report:
            sys.stdout.write(f"  report   {asked.report}\n")


def _parser() -> Parser:
    parser = Parser(prog="trainwright", description=__doc__)
    command = parser.add_subparsers(dest="command", required=True).add_parser("compare")
    command.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of their evaluations")
    command.add_argument("--metric", action="append", default=[], help="figure to compare")
    command.add_argument("--level", type=float, default=0.05, help="what p-values are held to, after Holm")
    command.add_argument("--report", type=Path, help="file for a page")
    command.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
