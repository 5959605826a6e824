"""Explains a verdict that stopped a run: which rules, with which numbers, and what was not judged."""

import logging
from collections.abc import Iterator
from pathlib import Path

from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.report import markdown
from trainwright.tracking import Stopwatch
from trainwright.verdicts import Verdict

_HEADER = ("rule", "number", "limit", "says", "detail")

logger = logging.getLogger(__name__)


def explain(verdict: Path, gate: str, record: Path, summary: Path) -> str:
    """Write which gate held the run, and why.

    Args:
        verdict: Folder with the gate's ``verdict.json``.
        gate: The step that decided, as the pipeline calls it.
        record: Folder for the step's record, which carries the records of everything that was judged.
        summary: Markdown file: the rules that did not pass.

    Returns:
        The reason in one line.

    Raises:
        InputError: The verdict cannot be read, or it is a PASS, which holds nothing.
    """
    watch = Stopwatch()
    found = Verdict.read(verdict)
    if found.decision == "PASS":
        raise InputError(
            f"expected a verdict that held the run, and {gate} decided PASS",
            where=str(verdict / Verdict.FILE),
            hint="Run this step only where the decision stops the pipeline.",
        )
    judge = verdict / Record.FILE
    why = Record.read(verdict).headline if judge.exists() else "; ".join(_names(found))
    reason = f"{gate} decided {found.decision}: {why.removeprefix(f'{found.decision}: ')}"
    rows = list(_rows(found))
    record.mkdir(parents=True, exist_ok=True)
    watch.record(record, "hold", reason, inputs={"verdict": found.digest}, parents=[verdict])
    summary.parent.mkdir(parents=True, exist_ok=True)
    table = markdown.table(_HEADER, rows, (1, 2)) if rows else ""
    summary.write_text(f"**{markdown.escape(reason)}**\n\n{table}")
    logger.warning("%s", reason)
    return reason


def _names(verdict: Verdict) -> Iterator[str]:
    yield from (row[0] for row in _rows(verdict))


def _rows(verdict: Verdict) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield every rule that did not pass, and everything that was not judged and counts."""
    for rule in verdict.rules:
        if (said := rule.outcome()) != "PASS":
            yield rule.name, f"{rule.value:.4g}", f"{rule.limit:.4g}", said, rule.detail
    for entry in verdict.not_judged:
        if entry.decision not in {"", "PASS"}:
            yield entry.name, "not judged", "", entry.decision, entry.reason
