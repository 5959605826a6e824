"""The listing of a source: which files, how large, and what is in them."""

from pathlib import Path

from trainwright.artifacts import Listing
from trainwright.storage import take_listing
from trainwright.tracking import Stopwatch

_KILO = 1000


def resolve(source: str, folder: Path, data: str = "", date: str = "") -> Listing:  # noqa: ARG001
    """List a source and digest its content.

    Args:
        source: A Parquet or CSV file, a folder of them, or a glob; a path or a URI.
        data: Section ``data``, as JSON; empty for plain files.
        date: The run's date.
        folder: Where ``listing.json`` and the step's record are written.

    Returns:
        The listing. Its ``content_digest`` changes with any byte and any name of the files, and with
        nothing else.

    Raises:
        InputError: Nothing is there, or a link leads nowhere.
        PermissionRefused: A folder or a file may not be read.
        DependencyError: The driver of the URI's scheme is not installed.
    """
    watch = Stopwatch()
    listing = take_listing(source)
    folder.mkdir(parents=True, exist_ok=True)
    listing.write(folder)
    watch.record(
        folder,
        "resolve",
        headline(listing),
        config={"source": source},
        outputs={"source": listing.content_digest, "listing": listing.digest},
    )
    return listing


def headline(listing: Listing) -> str:
    """Say how much there is: ``1 file, 5.4 MB, source 3f9a1c…``."""
    count = len(listing.files)
    size = readable_size(sum(entry.size for entry in listing.files))
    return f"{count:,} {'file' if count == 1 else 'files'}, {size}, source {listing.content_digest[:6]}…"


def readable_size(size: float) -> str:
    """Write a number of bytes for people, in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if round(size, 1) < _KILO:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:,.1f} TB"
