"""``python -m trainwright.registry``: history of production, promotion, rollback, download.

Commands: ``history``, ``at``, ``promote``, ``rollback``, ``restore``, ``download``, ``evidence``,
``lineage``, ``copy``, ``mirror``. Each takes the section ``registry`` as JSON first.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from trainwright.command import Parser
from trainwright.errors import ModelRefused, reported
from trainwright.experiment import Promotion, PromotionRequest, Registry


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: With a documented exit code; 12 for a promotion that was refused or held, and for an
            audit that MLflow's aliases do not agree with.
    """
    with reported("promote"):
        asked = _parser().parse_args(arguments)
        registry = Registry.parse(asked.registry, "registry")
        _COMMANDS[asked.command](registry, asked)


def _parser() -> Parser:
    parser = Parser(prog="python -m trainwright.registry", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    made = {name: commands.add_parser(name) for name in _COMMANDS}
    for command in made.values():
        command.add_argument("registry", help="section registry, as JSON")
    for name in ("history", "list", "show"):
        made[name].add_argument("--json", action="store_true", help="one JSON document")
    made["show"].add_argument("which", help="version or alias")
    made["at"].add_argument("time", help="such as 2026-01-31T10:00:00Z")
    for name in ("history", "at"):
        made[name].add_argument("--offline", action="store_true", help="do not ask MLflow")
    for name in ("rollback", "restore"):
        made[name].add_argument("--by", required=True, help="who asks for it")
        made[name].add_argument("--reason", required=True, help="why")
    made["restore"].add_argument("--adopt", action="store_true", help="accept entries without a signature")
    for name in ("download", "evidence", "copy"):
        made[name].add_argument("which", help="version or alias")
        made[name].add_argument("folder", type=Path, help="where to")
    made["copy"].add_argument("target", help="address of the other registry")
    made["lineage"].add_argument("which", nargs="?", default="", help="version or alias")
    made["rollback"].add_argument("--out", default="", help="the version that is to be taken out")
    made["promote"].add_argument("promotion", help="section promotion, as JSON")
    made["promote"].add_argument("request", help="what is asked for, as JSON")
    made["promote"].add_argument("--output", type=Path, help="folder for the documents")
    return parser


def _history(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.history import history_json, history_lines, read_history

    history = read_history(registry, compare=not asked.offline)
    _say([history_json(history)] if asked.json else history_lines(history))
    _require_agreement(history.warning, history.place)


def _list(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.listing import list_lines, list_versions, to_json

    found = list_versions(registry)
    _say([to_json(found)] if asked.json else list_lines(registry.model, found))


def _show(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.listing import show_lines, show_version, to_json

    found = show_version(registry, asked.which)
    _say([to_json(found)] if asked.json else show_lines(registry.model, found))


def _at(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.history import moment_lines, parse_moment, read_history

    moment = parse_moment(asked.time)
    history = read_history(registry, compare=not asked.offline)
    _say(moment_lines(history, moment, datetime.now(UTC)))
    _require_agreement(history.warning, history.place)


def _require_agreement(warning: str, place: str) -> None:
    if warning:
        raise ModelRefused(
            f"the audit and MLflow do not agree: {warning}",
            where=place,
            hint="Find who moved the alias; then trainwright model restore.",
        )


def _promote(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.promote import promote, result_lines
    from trainwright.verdicts import Verdict

    policy = Promotion.parse(asked.promotion, "promotion")
    request = PromotionRequest.parse(asked.request, "request")
    with TemporaryDirectory() as scratch:
        folder = asked.output or Path(scratch)
        made = promote(registry, policy, request, folder, folder / "summary.md")
        _say(result_lines(made, Verdict.read(folder)))
    if made.decision != "PASS":
        raise ModelRefused(f"{made.decision}: version {made.version} was not promoted to {made.to}")


def _rollback(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.promote import rollback

    event = rollback(registry, asked.by, asked.reason, asked.out)
    _say(
        [f"{registry.model}: version {event.intent.version} is in production again, entry {event.commit.seq}"]
    )


def _restore(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.audit import ADOPTED
    from trainwright.registry.promote import restore

    event = restore(registry, asked.by, asked.reason, adopt=asked.adopt)
    what = "as the audit says"
    if event:
        facts = [event.intent.facts[name] for name in ("found", ADOPTED) if name in event.intent.facts]
        what = f"restored, entry {event.commit.seq}: {'; '.join(facts)}"
    _say([f"{registry.model}: aliases are {what}"])


def _mirror(registry: Registry, _: argparse.Namespace) -> None:
    from trainwright.registry.hub import mirror

    _say([f"{registry.model}: mirrored in Kubeflow Hub, versions: {mirror(registry)} ({registry.hub})"])


def _download(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.transfer import download_version

    _say([json.dumps(vars(download_version(registry, asked.which, asked.folder)))])


def _evidence(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.transfer import download_evidence

    _say([json.dumps(download_evidence(registry, asked.which, asked.folder))])


def _lineage(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.transfer import read_lineage

    _say([json.dumps(read_lineage(registry, asked.which))])


def _copy(registry: Registry, asked: argparse.Namespace) -> None:
    from trainwright.registry.transfer import copy_to_production

    copy_to_production(registry, asked.which, asked.target, asked.folder)


def _say(result_lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in result_lines)


_COMMANDS: dict[str, Callable[[Registry, argparse.Namespace], None]] = {
    "list": _list,
    "show": _show,
    "history": _history,
    "at": _at,
    "promote": _promote,
    "rollback": _rollback,
    "restore": _restore,
    "download": _download,
    "evidence": _evidence,
    "lineage": _lineage,
    "copy": _copy,
    "mirror": _mirror,
}


if __name__ == "__main__":
    main(sys.argv[1:])
