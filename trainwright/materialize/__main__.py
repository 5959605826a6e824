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
    """Run the command."""
    parser = Parser(prog="python -m trainwright.materialize", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    plan = commands.add_parser("plan", help="say what applying the definitions would change")
    plan.add_argument("--output", type=Path, required=True, help="file for the plan")
    apply = commands.add_parser("apply", help="apply a reviewed plan")
    apply.add_argument("--plan", type=Path, required=True, help="the file that was reviewed")
    for command in (plan, apply):
        command.add_argument("repository", help="folder with feature_store.yaml")
    with reported("features"):
        options = parser.parse_args(arguments)
        if options.command == "plan":
            made = make_plan(options.repository)
            made.write(options.output)
            lines = [*format_plan(made), f"plan {made.digest[:12]} in {options.output}"]
            sys.stdout.write("\n".join(lines) + "\n")
        else:
            approved = ApplyPlan.read(options.plan)
            apply_plan(options.repository, approved)
            sys.stdout.write(f"{approved.project}: plan {approved.digest[:12]} is applied.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
