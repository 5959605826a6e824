"""Propose the changes of a reviewed schema that some rows would need: a patch, for a person to judge.

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
from trainwright.validate.quarantine import checks
from trainwright.validate.schema import parse_schema
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, text_format, tfdv

_WIDTH = 110
_NAMED = ("feature", "string_domain", "int_domain", "float_domain")
"""What a schema holds by name; all else is left as it is."""

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*|[{}<>]|[A-Za-z_]\w*')


@dataclass(frozen=True)
class Proposal:
    """A change of a schema.

    Attributes:
        new: The text that the rows fit; all that need not change is as it was, comments included.
    """

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
    """Compare a reviewed schema with a split of a snapshot.

    Raises:
        InputError: There is no such snapshot or split, the split has no rows, or the text is no schema.
    """
    snapshot, schema = Snapshot.read(folder), parse_schema(text, where)
    if not snapshot.splits.get(split, 1):
        raise InputError(
            f"split {split!r} has no rows to compare with",
            where=str(folder),
            hint="Name another one: --split.",
        )
    key = [snapshot.roles["key"]] if "key" in snapshot.roles else []
    statistics = describe(iter_batches(folder, snapshot, [split]), schema, key)
    profile = Profile(split, snapshot.splits[split], statistics, {})
    foreign = unreadable_columns(folder, snapshot, [split])
    types = {column.name: column.type for column in snapshot.columns if column.name not in foreign}
    found, _ = check(profile, schema, types)
    rows = _breaking(folder, snapshot, split, schema)
    told = dict.fromkeys(f"{finding.what}{_counted(finding.column, rows)}" for finding in found)
    updated = tfdv.update_schema(schema, statistics)
    return Proposal(text, rewritten(text, schema, updated, _notes(profile)), tuple(told))


def _breaking(folder: Path, snapshot: Snapshot, split: str, schema: Any) -> Counter[tuple[str, str]]:
    """Count the rows that violate the schema's value constraints, by column and problem."""
    rows: Counter[tuple[str, str]] = Counter()
    kept = checks(schema, [column.name for column in snapshot.columns])
    names = [entry.column for entry in kept]
    for batch in iter_batches(folder, snapshot, [split], names) if names else ():
        for entry in kept:
            column: pa.Array = batch.column(names.index(entry.column))
            for what, mask in entry.broken(column):
                rows[entry.column, what] += pc.sum(mask).as_py() or 0
    return rows


def _counted(column: str, rows: Mapping[tuple[str, str], int]) -> str:
    own = [f"{count:,} rows are {what}" for (name, what), count in rows.items() if name == column and count]
    return f" ({', '.join(own)})" if own else ""


def _notes(profile: Profile) -> dict[str, str]:
    """Return, for every column, how many rows have a value."""
    return {
        name: f"{profile.rows - profile.missing(name):,} of {profile.rows:,} rows have a value"
        for name in by_column(profile.statistics)
    }


def rewritten(text: str, old: Any, new: Any, notes: Mapping[str, str]) -> str:
    """Return a schema's text with exactly the messages replaced that differ, and new ones at its end."""
    before, after = _messages(old), _messages(new)
    for start, end, key in reversed(list(_blocks(text))):
        if key in after and after[key] != before.get(key):
            text = text[:start] + _written(key[0], after[key]) + text[end:]
    added = [key for key in after if key not in before]
    parts = [_commented(key, after[key], notes) for key in added]
    return text if not parts else text.rstrip("\n") + "\n\n" + "\n".join(parts) + "\n"


def _commented(key: tuple[str, str], message: Any, notes: Mapping[str, str]) -> str:
    note = f"# proposed: {notes[key[1]]}\n" if key[0] == "feature" and key[1] in notes else ""
    return note + _written(key[0], message)


def _messages(schema: Any) -> dict[tuple[str, str], Any]:
    """Return the columns and domains of a schema by their kind and name."""
    return {(kind, entry.name): entry for kind in _NAMED for entry in getattr(schema, kind, ())}


def _written(kind: str, message: Any) -> str:
    line = text_format.MessageToString(message, as_one_line=True)
    if len(kind) + len(line) + len(" {  }") <= _WIDTH:
        return f"{kind} {{ {line} }}"
    inner = text_format.MessageToString(message, indent=2)
    return f"{kind} {{\n{inner}}}"


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
                yield start, token.end(), (kind, _name_of(text[start : token.end()], kind))
        elif mark[0] not in "#\"'" and not depth:
            word = (mark, token.start())


def _name_of(block: str, kind: str) -> str:
    schema = text_format.Parse(block, schema_pb2.Schema(), allow_unknown_field=True)
    return str(getattr(schema, kind)[0].name) if kind in _NAMED else ""
