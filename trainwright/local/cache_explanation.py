"""Explain why a run reused or repeated a step: which input changed, from what to what."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import Document, canonical, read_json
from trainwright.errors import InputError
from trainwright.local.run_folder import OWN, Request, require_run

SHOWN = 40
"""Longest value in characters that is printed in full."""

FILES_SHOWN = 20
"""Files that are listed; the rest is counted."""

DIGITS = 12
"""Digits of a digest that are printed."""

NAMES = {
    "library": "code of trainwright",
    "container": "code of the component",
    "outputs": "outputs of the component",
    "locks": "lock of",
    "parameters": "parameter",
    "artifacts": "content of",
}
"""Names of the parts of a cache key."""

REASONS = {
    "reused": "reused",
    "no result": "done",
    "asked": "done again, because --from or --no-cache asked for it",
    "broken": "done again, because its kept result, or a shard that it names, was gone or damaged",
    "never cached": "done: it looks outside, and is never reused by another run",
}


@dataclass(frozen=True, kw_only=True)
class MadeFrom(Document):
    """The inputs of a step's cache key, stored in the run's folder.

    Attributes:
        step: Name of the step's call.
        key: The cache key.
        reason: Why the result was reused or computed: a key of :data:`REASONS`.
        made_from: The data of which the key is the digest, with ``{run}`` for the run's folder.
    """

    FILE: ClassVar[str] = "made_from.json"
    step: str
    key: str
    reason: str
    made_from: dict[str, Any]

    def __post_init__(self) -> None:
        """Reject what no run writes: the folder of runs may be shared."""
        parts = (self.made_from.get(part, {}) for part in ("locks", "parameters", "artifacts"))
        if self.reason not in REASONS or not all(isinstance(part, dict) for part in parts):
            raise InputError(f"no run writes the inputs of {self.step!r:.80} so", where=self.FILE)

    def keep(self, folder: Path) -> None:
        """Write it into a run's folder."""
        self.write(folder / OWN / "made_from" / f"{self.step}.json")


def lines(runs: Path, run_id: str, step: str) -> Iterator[str]:
    """Explain one step of one run.

    Raises:
        InputError: The run does not exist, or has not reached the step.
    """
    own = _read(runs, run_id, step)
    earlier = list(_earlier(runs, run_id, step))
    same = next((name for name, other in earlier if other.key == own.key), "")
    if own.reason == "reused":
        yield f"{step} in run {run_id}: reused; nothing it is made from has changed" + (
            f" since run {same}" if same else ""
        )
        return
    if own.reason == "no result" and same:
        yield f"{step} in run {run_id}: done again; run {same} made it from the same, but its result is gone"
        return
    yield f"{step} in run {run_id}: {REASONS[own.reason]}"
    if not earlier:
        yield "  no earlier run here has done it"
        return
    name, before = earlier[0]
    changes = list(differences(before.made_from, own.made_from))
    yield f"  since run {name} {'nothing has' if not changes else 'these have'} changed"
    width = max((len(what) for what, _, _ in changes), default=0)
    yield from (f"    {what:<{width}}  {old}  to  {new}" for what, old, new in changes)
    yield from _files(before, runs / name, own, runs / run_id)


def _files(before: MadeFrom, before_in: Path, own: MadeFrom, own_in: Path) -> Iterator[str]:
    """Yield, for each parameter that is the content digest of a source, which of its files changed."""
    known: dict[str, Listing] = {}
    for path in sorted([*before_in.glob(f"*/*/{Listing.FILE}"), *own_in.glob(f"*/*/{Listing.FILE}")]):
        with contextlib.suppress(InputError):
            listing = Listing.read(path)
            known.setdefault(listing.content_digest, listing)
    old, new = (each.made_from.get("parameters", {}) for each in (before, own))
    for parameter in sorted(new):
        first, second = str(old.get(parameter, "")), str(new[parameter])
        if first and first != second and second in known:
            yield f"  files behind {parameter}"
            if first in known:
                yield from (f"    {line}" for line in listing_changes(known[first], known[second]))
            else:
                yield f"    the listing of run {before_in.name} is gone, so they cannot be compared"


def _read(runs: Path, run_id: str, step: str) -> MadeFrom:
    folder = require_run(runs, run_id)
    made_from = folder / OWN / "made_from"
    reached = sorted(path.stem for path in made_from.glob("*.json"))
    if step not in reached:
        raise InputError(
            f"run {run_id} has not reached a step {step!r} that could be reused",
            where=str(folder),
            hint=f"It has reached {', '.join(reached) or 'none'}.",
        )
    return MadeFrom.read(made_from / f"{step}.json")


def _earlier(runs: Path, run_id: str, step: str) -> Iterator[tuple[str, MadeFrom]]:
    """Yield the inputs of the same step in earlier runs of the pipeline, latest first."""
    pipeline = Request.read(runs / run_id).pipeline
    for request in sorted(runs.glob(f"*/{Request.FILE}"), reverse=True):
        name = request.parent.name
        path = request.parent / OWN / "made_from" / f"{step}.json"
        with contextlib.suppress(InputError):  # of another version, or damaged
            if name < run_id and path.is_file() and Request.read(request).pipeline == pipeline:
                yield name, MadeFrom.read(path)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, old value and new value of each input that differs, shortened to fit on a line."""
    for part in sorted(before.keys() | after.keys()):
        old, new, label = before.get(part), after.get(part), NAMES.get(part, part)
        if part not in {"locks", "parameters", "artifacts"}:
            if old != new:
                yield label, _shown(old), _shown(new)
            continue
        for name in sorted((old or {}).keys() | (new or {}).keys()):
            yield from _values(f"{label} {name}", (old or {}).get(name), (new or {}).get(name))


def _values(name: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Compare two values, key by key where both are JSON objects."""
    if old == new:
        return
    first, second = _object(old), _object(new)
    if first is None or second is None:
        yield name, _shown(old), _shown(new)
        return
    for key in sorted(first.keys() | second.keys()):
        yield from _values(f"{name}.{key}", first.get(key), second.get(key))


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):
            value = read_json(value)
    return value if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0][-1]  # an artifact: its type, its metadata, the digest of its content
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else canonical(value)
    if len(text) == 64 and not text.strip("0123456789abcdef"):  # noqa: PLR2004 - a SHA-256
        return f"{text[:DIGITS]}…"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def listing_changes(before: Listing, after: Listing) -> Iterator[str]:
    """Yield one line per changed, renamed, added or removed file, and the number of unchanged ones.

    A removed file and a new one with the same size and checksum are one renamed file.
    """
    old, new = dict(before.by_name), dict(after.by_name)
    both = sorted(old.keys() & new.keys())
    changed = [name for name in both if _content(old[name]) != _content(new[name])]
    found = [f"changed  {name}  {_what(old[name])}  to  {_what(new[name])}" for name in changed]
    gone = {name: old[name] for name in sorted(old.keys() - new.keys())}
    for name in sorted(new.keys() - old.keys()):
        same = next((other for other, file in gone.items() if _content(file) == _content(new[name])), None)
        if same is None:
            found.append(f"added    {name}  {_what(new[name])}")
        else:
            del gone[same]
            found.append(f"renamed  {same}  to  {name}  {_what(new[name])}")
    found += [f"removed  {name}  {_what(file)}" for name, file in gone.items()]
    yield from found[:FILES_SHOWN]
    if len(found) > FILES_SHOWN:
        yield f"and {len(found) - FILES_SHOWN:,} more"
    yield f"the same are {len(both) - len(changed):,} of {len(new):,} files"


def _content(file: SourceFile) -> tuple[int, str]:
    return file.size, file.checksum


def _what(file: SourceFile) -> str:
    kind, _, digits = file.checksum.partition(":")
    shown = f"{digits[:DIGITS]}…" if len(digits) > DIGITS else digits
    return f"{file.size:,} bytes, {kind} {shown}"
