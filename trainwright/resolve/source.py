"""What a source holds now: which files, rows or version, how large, how old, and what is in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainwright.artifacts import Listing
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.placeholders import filled
from trainwright.resolve.dates import fill_in, run_date
from trainwright.resolve.freshness import newest_since, require_limits
from trainwright.resolve.sizes import readable_size
from trainwright.sources import list_source, note_place
from trainwright.storage import Access, take_listing
from trainwright.tracking import Stopwatch


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Plain files that a run reads beside its rows: offline features, a baseline or a schema.

    Attributes:
        source: With its date filled in; empty if there is none.
        version: Its content digest; empty if there is none.
    """

    source: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What ``resolve`` found.

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
    beside: Mapping[str, str] = MappingProxyType({}),
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
        beside: Plain files that the run reads beside its rows, by name; ``{date}`` as in the source, empty
            for none.
        access: What may be reached; the hosts of ``data`` if absent.
        now: The present, for the age of objects; the clock's if absent.

    Raises:
        InputError: Nothing is there, ``data`` is not as it should be, or a placeholder is left over.
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
    folder.mkdir(parents=True, exist_ok=True)
    listing.write(folder)
    others = {
        name: _beside(fill_in(place, day), folder / name, access) if place else Beside()
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


def _beside(source: str, folder: Path, access: Access | None) -> Beside:
    listing = take_listing(source, access or Access())
    folder.mkdir(exist_ok=True)
    listing.write(folder)
    return Beside(source=listing.source, version=listing.content_digest)


def _look(
    source: str, data: Data | None, day: date, access: Access | None, now: datetime
) -> tuple[Listing, str]:
    """List a source and check its limits, before anything of it is read wherever that is possible."""
    if not source:
        return Listing(source="", files=()), ""
    if data is None:
        return take_listing(source, access or Access()), ""
    allowed = access or Access(hosts=data.hosts)
    limited = data.quality.max_bytes is not None or data.quality.fresh_within_s is not None
    if limited:
        _refuse_limits_of_database(data)
    require = partial(require_limits, quality=data.quality, source=source, now=now) if limited else None
    return list_source(source, data, allowed, require), newest_since(data.quality, day)


def _refuse_limits_of_database(data: Data) -> None:
    limits = data.quality.model_dump(include={"max_bytes", "fresh_within_s"}, exclude_none=True)
    if data.format == "sql":
        raise InputError(
            f"{', '.join(limits)}: a database says neither size nor age before it is read",
            where="data.quality",
            hint="Limit the rows in data.sql.select; fresh_rows_within_s looks at the newest row.",
        )


def headline(listing: Listing, version: str) -> str:
    """Say how much there is: ``1 file, 5.4 MB, source 3f9a1c…``."""
    if not version:
        return "no source"
    count, size = len(listing.files), sum(entry.size for entry in listing.files)
    if listing.source.startswith(("postgresql://", "sqlite://")):
        return f"1 query, source {version[:6]}…"
    return f"{count:,} {'file' if count == 1 else 'files'}, {readable_size(size)}, source {version[:6]}…"
