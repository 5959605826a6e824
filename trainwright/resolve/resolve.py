"""The resolve step: list the content of a source, check its limits, and pin it; find pinned bytes again."""

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainwright.artifacts import Listing, PinnedSource, SourceFile
from trainwright.errors import DataRefused, InputError, TrainwrightError
from trainwright.experiment import Data, Quality
from trainwright.experiment.data import FEATURES, ROW, SERVED, is_reserved
from trainwright.placeholders import LEFT_OVER, filled
from trainwright.sources import column_names, list_source, note_place
from trainwright.sources.sources import PINNED
from trainwright.storage import (
    Access,
    ObjectChanged,
    exists,
    fetch,
    head,
    local_path,
    parse_commit,
    take_listing,
)
from trainwright.storage.local import digest_files
from trainwright.tracking import Stopwatch

_PLACE = re.compile(r"\{date(?::(?P<form>[^{}]*))?\}")
_FORM = re.compile(r"(?:%[YmdyjGVu]|[A-Za-z0-9 _./=-])*")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def run_date(text: str, now: datetime) -> date:
    """Parse the date of a run.

    Args:
        text: A day as 2026-01-31; empty for today, in UTC.
        now: The present.

    Raises:
        InputError: It is no day, or a placeholder that nothing was put in place of.
    """
    _reject_placeholder(text, "parameter date")
    if not text:
        return now.astimezone(UTC).date()
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InputError(f"{text!r:.80} is no day", where="parameter date", hint="Write it as 2026-01-31.")


def fill_in(source: str, day: date) -> str:
    """Replace every ``{date}`` of a source.

    Args:
        source: A path, a glob or a URI. ``{date}`` is 2026-01-31; ``{date:%Y/%m}`` is 2026/01, where the
            form may have %Y %m %d %y %j %G %V %u, letters, digits and ``_ - . / =``.
        day: The run's date.

    Raises:
        InputError: Something else stands in braces, or a placeholder that nothing was put in place of.
    """
    _reject_placeholder(source, "parameter source")

    def written(found: re.Match[str]) -> str:
        form = found["form"]
        if form is None:
            return day.isoformat()
        if "%" not in form or not _FORM.fullmatch(form):
            raise InputError(
                f"{found[0]!r:.80} is no form of a date",
                where="parameter source",
                hint="Write it as {date:%Y-%m-%d}, with %Y %m %d %y %j %G %V %u and plain characters.",
            )
        return day.strftime(form)

    filled = _PLACE.sub(written, source)
    if found := re.search(r"\{[^}]*\}?|\}", filled):
        raise InputError(
            f"{found[0]!r:.80} stands in the source, but only a date is filled in",
            where="parameter source",
            hint="Write {date} or {date:%Y/%m/%d}; braces have no other meaning.",
        )
    return filled


def _reject_placeholder(text: str, where: str) -> None:
    if found := LEFT_OVER.search(text):
        raise InputError(
            f"placeholder {found[0]!r:.80} was given as it is: nothing was put in its place",
            where=where,
            hint="Kubeflow fills in its placeholders where a run is started; outside of it, write the value.",
        )


_KILO = 1000


def readable_size(size: float) -> str:
    """Format a number of bytes, in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if round(size, 1) < _KILO:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:,.1f} TB"


_HOUR_S, _DAY_S = 3600, 86_400


def require_limits(files: Sequence[SourceFile], quality: Quality, source: str, now: datetime) -> None:
    """Reject a source that is too large or too old; all problems are reported together.

    Args:
        files: Its objects.
        quality: The limits: ``max_bytes`` and ``fresh_within_s``.
        source: What was listed, for errors.
        now: The present.

    Raises:
        DataRefused: It is larger than ``max_bytes``, or its newest object older than ``fresh_within_s``.
        InputError: The store does not say when an object was written.
    """
    wrong = []
    size = sum(entry.size for entry in files)
    if quality.max_bytes is not None and size > quality.max_bytes:
        wrong.append(
            f"the source has {size:,} bytes ({readable_size(size)}) in {len(files):,} files; "
            f"data.quality.max_bytes is {quality.max_bytes:,}"
        )
    if quality.fresh_within_s is not None and (said := _stale(files, quality.fresh_within_s, source, now)):
        wrong.append(said)
    if wrong:
        raise DataRefused(
            "\n".join(wrong),
            where=source,
            hint="Look at what writes the source; if it is right as it is, raise the limit.",
        )


def _stale(files: Sequence[SourceFile], limit_s: int, source: str, now: datetime) -> str:
    times = [entry.written for entry in files if entry.written]
    if not times:
        raise InputError(
            "the age of the source is unknown: its store does not say when an object was written",
            where=source,
            hint="Leave out data.quality.fresh_within_s; fresh_rows_within_s looks at the rows instead.",
        )
    newest = max(times)
    age_s = (now - _moment(newest)).total_seconds()
    if age_s <= limit_s:
        return ""
    return (
        f"the newest of {len(files):,} files was written at {newest[:19]}Z, {_age(age_s)} ago; "
        f"data.quality.fresh_within_s is {limit_s:,} ({_age(limit_s)})"
    )


def newest_since(quality: Quality, day: date) -> str:
    """Return the time that the newest row must reach, ISO 8601 in UTC; '' without a limit.

    It counts back from the first moment of the run's date, so that it is the same all day.
    """
    if quality.fresh_rows_within_s is None:
        return ""
    start = datetime.combine(day, time(), UTC) - timedelta(seconds=quality.fresh_rows_within_s)
    return f"{start:%Y-%m-%dT%H:%M:%SZ}"


def _moment(text: str) -> datetime:
    """Parse a time of a listing, in whole seconds."""
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)


def _age(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.1f} days"
    return f"{seconds / _HOUR_S:.1f} hours" if seconds >= _HOUR_S else f"{seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Plain files that a run reads beside its rows: offline features, a baseline or a schema.

    Attributes:
        source: With its date filled in; empty if there is none.
        version: Its content digest; empty if there is none, or no file at ``source`` yet.
    """

    source: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The results of ``resolve``.

    Attributes:
        listing: Every file; for a database, one entry that stands for it.
        version: The content digest, which changes with any byte and any name of the files, and with nothing
            else; empty if there is no source.
        source: The source with its date filled in, and pinned to what was seen where a pin exists; with a
            store, what names its content wherever it lies.
        newest_since: The time that the newest row must reach, ISO 8601; empty if no limit is set.
        beside: The files that a run reads beside its rows, by name.
    """

    listing: Listing
    version: str
    source: str
    newest_since: str = ""
    beside: Mapping[str, Beside] = field(default_factory=dict)


def resolve(
    source: str,
    folder: Path,
    data: str | Mapping[str, Any] = "",
    date: str = "",
    scheduled: str = "",
    *,
    columns: Mapping[str, Sequence[str]] = MappingProxyType({}),
    beside: Mapping[str, str] = MappingProxyType({}),
    may_be_absent: Collection[str] = (),
    access: Access | None = None,
    now: datetime | None = None,
) -> Resolved:
    """List a source, and the files that a run reads beside it, and digest the content of each.

    Args:
        source: A file, a folder, a glob, a table or a database; a path or a URI. ``{date}`` stands for the
            run's date. Empty for an optional source that is absent: an empty listing.
        folder: Where ``listing.json`` and the step's record are written.
        data: Section ``data``; empty for plain files without limits.
        date: The run's date, as 2026-01-31; empty for the day for which the run was scheduled.
        scheduled: When that was, as 2026-01-31T05:00:00Z; empty, or a placeholder that nothing was put in
            place of, for now.
        columns: Columns that the source has to have, by the keys that name them.
        beside: Plain files that the run reads beside its rows, by name; ``{date}`` as in the source, empty
            for none.
        may_be_absent: Names of ``beside`` whose file a later step writes: without a file, the version is
            empty.
        access: What may be reached; the hosts of ``data`` if absent.
        now: The present, for the age of objects; the clock's if absent.

    Raises:
        InputError: Nothing is there, ``data`` is not as it should be, a column is missing, or a placeholder
            is left over.
        DataRefused: The source is larger or older than ``data.quality`` allows.
        PermissionRefused: Something may not be read or reached.
        TransientError: A store or a database kept failing.
        DependencyError: Nothing answers there, or a driver is not installed.
    """
    watch, present = Stopwatch(), now or datetime.now(UTC)
    section = Data.parse(data, "parameter data") if data else None
    day = run_date(date or filled(scheduled)[:10], present)
    listing, since = _look(fill_in(source, day), section, day, access, present)
    version = listing.content_digest if source else ""
    if section is not None and source and columns:
        _require_columns(columns, listing, section, access or Access(hosts=section.hosts))
    folder.mkdir(parents=True, exist_ok=True)
    listing.write(folder)
    others = {
        name: _beside(
            fill_in(place, day),
            folder / name,
            access or Access(),
            optional=name in may_be_absent,
            columns=columns.get(SERVED, ()) if name == "serving" else (),
        )
        for name, place in beside.items()
    }
    watch.record(
        folder,
        "resolve",
        headline(listing, version),
        config={"source": source, "date": day.isoformat()} if "{date" in source else {"source": source},
        outputs={"source": version, "listing": listing.digest}
        | {name: found.version for name, found in others.items() if found.version},
    )
    name = listing.source
    if section is not None and source:
        name = note_place(listing, version, section, access or Access(hosts=section.hosts))
    return Resolved(listing=listing, version=version, source=name, newest_since=since, beside=others)


def _require_columns(
    columns: Mapping[str, Sequence[str]], listing: Listing, data: Data, access: Access
) -> None:
    """Reject columns that the source does not have, and reserved ones that the model would learn from."""
    named = {key: names for key, names in columns.items() if key not in (FEATURES, SERVED)}
    wanted = set(itertools.chain.from_iterable(named.values()))
    known = column_names(listing, data, access, wanted) + ([] if data.key else [ROW])
    _require_known(named, known, listing.source)
    left_out = {*named.get("features.exclude", ()), *named.get("features.known_after", ())}
    taken = [name for name in known if is_reserved(name) and name not in left_out]
    if taken and FEATURES in columns:
        raise InputError(
            f"columns of the source have names of columns of the predictions: {', '.join(taken)}",
            where=listing.source,
            hint="Rename them at their source, or leave them out with features.exclude.",
        )


def _require_known(columns: Mapping[str, Sequence[str]], known: Sequence[str], source: str) -> None:
    """Reject names of columns that are not known; all are reported together."""
    problems = []
    for key, names in columns.items():
        for name in dict.fromkeys(names):
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                problems.append(
                    f"{key}: no column {name!r}" + (f"; did you mean {close[0]}?" if close else "")
                )
    if problems:
        raise InputError(
            "the source does not have these columns\n" + "\n".join(f"  {line}" for line in problems),
            where=source,
            hint=f"Correct the names in the experiment file. The columns: {', '.join(known)}.",
        )


def _beside(
    source: str, folder: Path, access: Access, *, optional: bool, columns: Sequence[str] = ()
) -> Beside:
    if not source or (optional and not exists(source, access)):
        return Beside(source=source)
    listing = take_listing(source, access)
    if columns:
        data = Data.check({"source": source, "splits": {"serving": {"fraction": 1}}}, SERVED)
        _require_known({SERVED: columns}, column_names(listing, data, access, columns), source)
    folder.mkdir(exist_ok=True)
    listing.write(folder)
    return Beside(source=listing.source, version=listing.content_digest)


def _look(
    source: str, data: Data | None, day: date, access: Access | None, now: datetime
) -> tuple[Listing, str]:
    """List a source and check its limits, before reading it where possible."""
    if not source:
        return Listing(source="", files=()), ""
    if data is None:
        return take_listing(source, access or Access()), ""
    allowed = access or Access(hosts=data.hosts)
    limited = data.quality.max_bytes is not None or data.quality.fresh_within_s is not None
    if limited:
        _reject_limits_of_database(data)
    require = partial(require_limits, quality=data.quality, source=source, now=now) if limited else None
    return list_source(source, data, allowed, require), newest_since(data.quality, day)


def _reject_limits_of_database(data: Data) -> None:
    limits = data.quality.model_dump(include={"max_bytes", "fresh_within_s"}, exclude_none=True)
    if data.format == "sql":
        raise InputError(
            f"{', '.join(limits)}: a database says neither size nor age before it is read",
            where="data.quality",
            hint="Limit the rows in data.sql.select; fresh_rows_within_s looks at the newest row.",
        )


def headline(listing: Listing, version: str) -> str:
    """Return the step's line on the screen: ``1 file, 5.4 MB, source 3f9a1c…``."""
    if not version:
        return "no source"
    count, size = len(listing.files), sum(entry.size for entry in listing.files)
    if listing.source.startswith(("postgresql://", "sqlite://")):
        return f"1 query, source {version[:6]}…"
    return f"{count:,} {'file' if count == 1 else 'files'}, {readable_size(size)}, source {version[:6]}…"


_HINT = "Restore these bytes where they were, or name a folder that has them: --data FOLDER."


def restore(pinned: PinnedSource, folder: Path) -> str:
    """Copy the bytes of a source into a folder that does not exist, and return the source to read them from.

    Content identifies a file, so its copy elsewhere will do: in the checkout of the library, for example. A
    table or a database is not copied: its location pins it.

    Raises:
        InputError: The first file whose bytes are gone or changed, expected and found.
    """
    data = Data.parse(dict(pinned.data), "data") if pinned.data else None
    if data and data.format in PINNED:
        found = list_source(pinned.source, data, Access(hosts=data.hosts)).content_digest
        if found != pinned.version:
            raise _changed(pinned.source, pinned.version, found)
        return pinned.source
    access = Access(hosts=data.hosts) if data else Access()
    _, listing = _located(pinned, access)
    for name, entry in listing.by_name:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(entry, target, access)
        except ObjectChanged as error:
            raise InputError(f"the bytes changed meanwhile: {error.what}", where=entry.uri) from None
    if len(listing.files) == 1:
        return str(folder / listing.by_name[0][0])
    return str(folder)


def locate(pinned: PinnedSource) -> tuple[str, str]:
    """Return the prefix of a source's paths, and the folder in its place, where all its bytes are.

    Both are empty if they are where they were, or in a commit of a repository. Other files do not matter.
    """
    return ("", "") if parse_commit(pinned.source) else _located(pinned, Access())[0]


def _moves(pinned: PinnedSource) -> Iterator[tuple[str, str]]:
    """Yield prefixes of the paths with folders that may stand in their place; first the place itself."""
    yield "", ""
    if local_path(pinned.source) is not None:
        parts = pinned.source.split("/")
        for root in pinned.roots:
            for end in range(2, len(parts)):
                yield "/".join(parts[:end]), root


def _located(pinned: PinnedSource, access: Access) -> tuple[tuple[str, str], Listing]:
    """Return the first place that has all bytes; else raise the error of the recorded place."""
    problem: TrainwrightError | None = None
    for old, new in _moves(pinned):
        try:
            moved = _moved(pinned, old, new)
            return (old, new), _require_same(moved, access) if moved.files else _listed(moved, access)
        except (InputError, ObjectChanged) as error:
            problem = problem or error
    assert problem is not None  # noqa: S101 - the first place is always tried
    raise InputError(problem.what, where=problem.where or pinned.source, hint=_HINT)


def _moved(pinned: PinnedSource, old: str, new: str) -> PinnedSource:
    def move(path: str) -> str:
        return new + path.removeprefix(old) if old and path.startswith(f"{old}/") else path

    files = tuple(replace(entry, uri=move(entry.uri)) for entry in pinned.files)
    return replace(pinned, source=move(pinned.source), files=files)


def _require_same(pinned: PinnedSource, access: Access) -> Listing:
    """Check each listed file where it is pinned: local ones by their bytes, others by their store."""
    for entry in pinned.files:
        if not entry.version and not exists(entry.uri, access):
            raise InputError(f"this file is gone: expected {entry.checksum}", where=entry.uri, hint=_HINT)
    local = [head(entry.uri) for entry in pinned.files if local_path(entry.uri) is not None]
    now = {entry.uri: entry for entry in digest_files(local)}
    for entry in pinned.files:
        found = now.get(entry.uri) or head(entry.uri, entry.version, access)
        checksum = found.checksum or entry.checksum  # a web server has none: the copy is compared
        if (found.size, checksum) != (entry.size, entry.checksum):
            raise _changed(entry.uri, entry.checksum, checksum)
    return Listing(source=pinned.source, files=pinned.files)


def _listed(pinned: PinnedSource, access: Access) -> Listing:
    """List a source whose files are not recorded; later files of a folder that only grows do not count."""
    if pinned.versions:
        files = tuple(head(uri, version, access) for uri, version in sorted(pinned.versions.items()))
        now = Listing(source=pinned.source, files=files)
    else:
        now = take_listing(pinned.source, access)
    until = pinned.written_until[:19]
    for files in (now.files, tuple(entry for entry in now.files if entry.written[:19] <= until)):
        listing = replace(now, files=files)
        if listing.content_digest == pinned.version:
            return listing
    raise _changed(pinned.source, pinned.version, now.content_digest)


def _changed(where: str, expected: str, found: str) -> InputError:
    return InputError(
        f"the bytes are not those of the run: expected {expected}, found {found}", where=where, hint=_HINT
    )
