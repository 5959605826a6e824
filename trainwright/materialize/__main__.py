"""``python -m trainwright.materialize``: apply reviewed definitions to a Feast registry.

``plan REPOSITORY --output FILE`` writes what would change; ``apply REPOSITORY --plan FILE`` applies exactly
that, and ends with exit code 10 if anything else would change by then.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import reported
from trainwright.materialize.definitions import ApplyPlan, apply_plan, format_plan, make_plan


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything is wrong.
    """
    with reported("features"):
        options = _parser().parse_args(arguments)
        if options.command == "plan":
            _plan(options.repository, options.output)
        else:
            _apply(options.repository, options.plan)


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
    lines = [*format_plan(plan), f"plan {plan.digest[:12]} in {output}"]
    sys.stdout.write("\n".join(lines) + "\n")


def _apply(repository: str, path: Path) -> None:
    approved = ApplyPlan.read(path)
    apply_plan(repository, approved)
    sys.stdout.write(f"{approved.project}: plan {approved.digest[:12]} is applied.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
