"""``python -m trainwright.materialize``: definitions into the registry, reviewed by a person.

``plan REPOSITORY --output FILE`` says what would change; ``apply REPOSITORY --plan FILE`` does that, and
refuses when anything else would change by then.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import reported
from trainwright.materialize.definitions import Plan, apply_plan, lines_of, make_plan


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything is wrong.
    """
    with reported("features"):
        asked = _parser().parse_args(arguments)
        if asked.command == "plan":
            _plan(asked.repository, asked.output)
        else:
            _apply(asked.repository, asked.plan)


def _parser() -> Parser:
    parser = Parser(prog="python -m trainwright.materialize", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    plan = commands.add_parser("plan", help="say what applying the definitions would change")
    plan.add_argument("--output", type=Path, required=True, help="file for the plan")
    apply = commands.add_parser("apply", help="apply a reviewed plan")
    apply.add_argument("--plan", type=Path, required=True, help="the file that was reviewed")
    for command in (plan, apply):
        command.add_argument("repository", help="folder with feature_store.yaml")
    return parser


def _plan(repository: str, output: Path) -> None:
    plan = make_plan(repository)
    plan.write(output)
    lines = [*lines_of(plan), f"plan {plan.digest[:12]} in {output}"]
    sys.stdout.write("\n".join(lines) + "\n")


def _apply(repository: str, path: Path) -> None:
    approved = Plan.read(path)
    apply_plan(repository, approved)
    sys.stdout.write(f"{approved.project}: plan {approved.digest[:12]} is applied.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
