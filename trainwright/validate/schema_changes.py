"""Propose changes of a reviewed schema as a patch, for a person to judge.

The gating run never does this: a schema that follows the data would accept whatever comes.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.tables import iter_batches
from trainwright.validate.checks import check
from trainwright.validate.columns import by_column
from trainwright.validate.profile import Profile, unreadable_columns
from trainwright.validate.quarantine import row_checks
from trainwright.validate.schema import format_message, parse_schema
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, text_format, tfdv

_NAMED = ("feature", "string_domain", "int_domain", "float_domain")
"""Messages of a schema with a name; all others are left as they are."""

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*|[{}<>]|[A-Za-z_]\w*')


def _describe(folder: Path, snapshot: Snapshot, split: str, schema: Any) -> Any:
    if not snapshot.splits.get(split, 1):
        raise InputError(
            f"split {split!r} has no rows to compare with",
            where=str(folder),
            hint="Name another one: --split.",
        )
    key = [snapshot.roles["key"]] if "key" in snapshot.roles else []
    return describe(iter_batches(folder, snapshot, [split]), schema, key)


@dataclass(frozen=True)
class Proposal:
    """A change of a schema; what need not change is as it was, comments included."""

    old: str
    new: str
    reasons: tuple[str, ...]

    def patch(self, name: str) -> str:
        """Return the change as a patch of the file, below its reasons; empty if there is none."""
        lines = difflib.unified_diff(
            self.old.splitlines(keepends=True), self.new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        body = "".join(lines)
        return "".join(f"# {reason}\n" for reason in self.reasons) + body if body else ""


def propose(folder: Path, text: str, split: str, where: str) -> Proposal:
    """Compare a reviewed schema with a split of a snapshot."""
    snapshot, schema = Snapshot.read(folder), parse_schema(text, where)
    statistics = _describe(folder, snapshot, split, schema)
    profile = Profile(split, snapshot.splits[split], statistics, {})
    foreign = unreadable_columns(folder, snapshot, [split])
    types = {column.name: column.type for column in snapshot.columns if column.name not in foreign}
    found, _ = check(profile, schema, types)
    counted = _count_violations(folder, snapshot, split, schema)
    reasons: dict[str, None] = {}
    for finding in found:
        rows = [
            f"{n:,} rows are {what}" for (name, what), n in counted.items() if name == finding.column and n
        ]
        reasons[finding.what + (f" ({', '.join(rows)})" if rows else "")] = None
    notes = {
        name: f"{profile.rows - profile.missing(name):,} of {profile.rows:,} rows have a value"
        for name in by_column(statistics)
    }
    updated = tfdv.update_schema(schema, statistics)
    return Proposal(text, _rewrite(text, schema, updated, notes), tuple(reasons))


def _count_violations(folder: Path, snapshot: Snapshot, split: str, schema: Any) -> Counter[tuple[str, str]]:
    """Count the rows that violate the schema's value constraints, by column and problem."""
    rows: Counter[tuple[str, str]] = Counter()
    checks = row_checks(schema, [column.name for column in snapshot.columns])
    names = [entry.column for entry in checks]
    for batch in iter_batches(folder, snapshot, [split], names) if names else ():
        for entry in checks:
            column: pa.Array = batch.column(names.index(entry.column))
            for what, mask in entry.broken(column):
                rows[entry.column, what] += pc.sum(mask).as_py() or 0
    return rows


def _rewrite(text: str, old: Any, new: Any, notes: Mapping[str, str]) -> str:
    """Return a schema's text with exactly the messages replaced that differ, and new ones at its end."""
    before, after = (
        {(kind, entry.name): entry for kind in _NAMED for entry in getattr(schema, kind, ())}
        for schema in (old, new)
    )
    for start, end, key in reversed(list(_blocks(text))):
        if key in after and after[key] != before.get(key):
            text = text[:start] + format_message(key[0], after[key]) + text[end:]
    parts = []
    for kind, name in (key for key in after if key not in before):
        note = f"# proposed: {notes[name]}\n" if kind == "feature" and name in notes else ""
        parts.append(note + format_message(kind, after[kind, name]))
    return text if not parts else text.rstrip("\n") + "\n\n" + "\n".join(parts) + "\n"


def _blocks(text: str) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Find the messages at the top of a schema's text: where each begins and ends, its kind and its name."""
    depth, start, kind, word = 0, 0, "", ("", 0)
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{<":
            if not depth:
                kind, start = word
            depth += 1
        elif mark in "}>":
            depth -= 1
            if not depth:
                name = ""
                if kind in _NAMED:
                    block = text[start : token.end()]
                    schema = text_format.Parse(block, schema_pb2.Schema(), allow_unknown_field=True)
                    name = str(getattr(schema, kind)[0].name)
                yield start, token.end(), (kind, name)
        elif mark[0] not in "#\"'" and not depth:
            word = (mark, token.start())
