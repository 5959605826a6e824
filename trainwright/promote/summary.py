"""What came of a request, for people: one line, and one page of Markdown."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainwright.registry.entries import Event
from trainwright.report.markdown import escape, table
from trainwright.verdicts import Rule, Verdict

if TYPE_CHECKING:
    from trainwright.promote.promotion import Promoted


def headline(made: "Promoted", verdict: Verdict) -> str:
    """Say in one line what came of it, with the first reason if it was refused."""
    name = f"{made.model} version {made.version}"
    if made.done_before and made.decision == "PASS":
        return f"{name} was {made.to} before, entry {made.entry}"
    if made.decision == "PASS":
        was = f", was {verdict.baseline_version or 'none'}" if made.to == "production" else ""
        return f"{name} is {made.to}{was}, entry {made.entry}"
    return f"{name} stays: {'; '.join(reasons(verdict)[:2])}"


def reasons(verdict: Verdict) -> list[str]:
    """Name what does not hold, with its numbers."""
    broken = [_said(rule) for rule in verdict.rules if not rule.passed]
    return broken + [f"{entry.name}: {entry.reason}" for entry in verdict.not_judged if entry.decision]


def _said(rule: Rule) -> str:
    return f"{rule.name}: {rule.detail}" if rule.detail else f"{rule.name} {rule.value:g} < {rule.limit:g}"


def lines(made: "Promoted", verdict: Verdict) -> Iterator[str]:
    """Write what came of it for a terminal: what does not hold first, then the rest as it was asked."""
    yield f"{made.decision}: {headline(made, verdict)}"
    asked = [(rule.outcome(), rule.name, _because(rule)) for rule in verdict.rules]
    asked += [(entry.decision or "-", entry.name, entry.reason) for entry in verdict.not_judged]
    asked.sort(key=lambda row: row[0] in ("PASS", "-"))
    widest = max((len(name) for _, name, _ in asked), default=0)
    for answer, name, because in asked:
        yield f"  {answer:<12}  {name:<{widest}}  {' '.join(because.split())}".rstrip()
    if made.decision == "PASS":
        yield f"  audit         {made.audit}, entry {made.entry}"
    if made.decision == "PASS" and made.to == "production":
        yield f"  back again    trainwright model rollback {made.model} --by NAME --reason WHY"


def summarize(made: "Promoted", verdict: Verdict, event: Event | None) -> str:
    """Write the rules and, if it was done, the entry of the audit."""
    rules = [(rule.name, rule.outcome(), _because(rule)) for rule in verdict.rules]
    parts = [
        f"**{made.decision}: {escape(headline(made, verdict))}**\n",
        table(("asked", "answer", "because"), rules),
    ]
    if verdict.not_judged:
        parts.append(
            table(("not judged", "why"), [(entry.name, entry.reason) for entry in verdict.not_judged])
        )
    if event:
        parts += ["### In the audit\n", table(("what", "value"), facts(event))]
    if made.decision == "PASS" and made.to == "production":
        parts.append("Back again: `trainwright model rollback`, with a reason.\n")
    return "\n".join(parts)


def _because(rule: Rule) -> str:
    if rule.detail:
        return rule.detail
    return "" if rule.value == rule.limit == 1 else f"{rule.value:g} of {rule.limit:g}"


def facts(event: Event) -> list[tuple[str, str]]:
    """List what an event says of itself."""
    intent = event.intent
    return [
        ("entries", f"{intent.seq} and {event.commit.seq}"),
        ("done", event.commit.time),
        ("who", ", ".join(f"{name} {value}" for name, value in sorted(intent.who.items()))),
        ("why", intent.reason),
        ("before", _pointed(intent.before)),
        ("after", _pointed(intent.after)),
        *((f"digest of {name}", digest) for name, digest in sorted(intent.evidence.items())),
        *sorted(intent.facts.items()),
    ]


def _pointed(aliases: dict[str, str]) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in sorted(aliases.items())) or "nothing"
