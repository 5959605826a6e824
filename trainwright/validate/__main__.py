"""``python -m trainwright.validate``: schemas and baselines, for a person to review and accept.

Commands: ``infer SNAPSHOT`` writes a first schema; ``diff SNAPSHOT --schema FILE`` shows what the rows would
change in it; ``accept`` changes it; ``baseline RUN --to FILE`` makes a run's baseline the one in use.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import InputError, reported


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code, if anything fails.
    """
    with reported("validate"):
        options = _parser().parse_args(arguments)
        match options.command:
            case "infer":
                from trainwright.validate.inference import infer_schema

                sys.stdout.write(infer_schema(options.snapshot, options.split))
            case "diff":
                sys.stdout.write(_patch(options.snapshot, options.schema, options.split)[0])
            case "accept":
                accept_schema(options.snapshot, options.schema, options.split, yes=options.yes)
            case _:
                accept_baseline(options.run, options.to, options.model_promoted, options.reason)


def _parser() -> Parser:
    parser = Parser(prog="python -m trainwright.validate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    infer = commands.add_parser("infer", help="write a first schema to standard output")
    diff = commands.add_parser("diff", help="write what the rows would change in a schema, as a patch")
    accept = commands.add_parser("accept", help="show that patch, and write it into the schema")
    for command in (infer, diff, accept):
        command.add_argument("snapshot", type=Path, help="folder of the snapshot, with manifest.json")
        command.add_argument("--split", default="train", help="rows to learn the schema from")
    for command in (diff, accept):
        command.add_argument("--schema", type=Path, required=True, help="the reviewed schema.pbtxt")
    accept.add_argument("--yes", action="store_true", help="do not ask")
    baseline = commands.add_parser("baseline", help="accept what a run calculated as the baseline")
    baseline.add_argument("run", type=Path, help="folder of the run, or of its data verdict")
    baseline.add_argument("--to", required=True, help="where it is used from: a .json file or URI")
    baseline.add_argument("--model-promoted", type=Path, help="record of the promotion to production")
    baseline.add_argument("--reason", default="", help="why, if there is no such record")
    return parser


def accept_schema(folder: Path, schema: Path, split: str, *, yes: bool) -> None:
    """Show the patch, ask, and write the schema whole."""
    patch, text = _patch(folder, schema, split)
    sys.stdout.write(patch)
    if not patch:
        return
    if not (yes or sys.stdin.isatty()):
        raise InputError("there is nobody to ask", where=str(schema), hint="Look at it, then say --yes.")
    if not yes and input(f"Write this to {schema}? [y/N] ").strip().lower() not in ("y", "yes"):
        sys.stderr.write("Nothing was changed.\n")
        return
    attempt = schema.with_name(f".{schema.name}.{os.getpid()}")
    attempt.write_text(text)
    attempt.replace(schema)
    sys.stderr.write(f"{schema} is changed. Review it once more, and commit it.\n")


def _patch(folder: Path, schema: Path, split: str) -> tuple[str, str]:
    """Return the patch that fits a schema to the rows, and the schema's new text."""
    from trainwright.validate.schema_changes import propose

    try:
        text = schema.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the schema cannot be read: {error}", where=str(schema)) from None
    proposal = propose(folder, text, split, str(schema))
    patch = proposal.patch(schema.name)
    if not patch:
        sys.stderr.write(f"The rows of {split} fit {schema}: nothing to change.\n")
    return patch, proposal.new


def accept_baseline(run: Path, to: str, promoted: Path | None, reason: str) -> None:
    """Publish a run's baseline, and show what it replaced."""
    from trainwright.validate.baseline import accept

    done = accept(run, to, promoted=promoted, reason=reason)
    own, before = done.baseline, done.before
    was = f"data {before.data_version[:12]}, {before.rows:,} rows" if before else "nothing"
    why = own.accepted["evidence"] or own.accepted["reason"]
    sys.stdout.write(
        f"{done.place}\n  data     {own.data_version[:12]}, {own.rows:,} rows of {own.split}\n"
        f"  because  {why}\n  before   {was}\n  kept as  {done.history}\n"
        f"Compare with it: set validation.baseline to {done.place}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
