"""The ``resolve`` component: which bytes a source holds now."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.INGEST, install_kfp_package=False)
def resolve(
    source: str,
    listing: dsl.Output[dsl.Artifact],
    data: str = "",
    date: str = "",
    scheduled: str = "",
) -> NamedTuple("Resolved", [("version", str), ("source", str), ("newest_since", str)]):  # type: ignore[valid-type]
    """List a source and digest its content, so that everything after it can be cached on the digest.

    Never cache this step itself: the cache key of Kubeflow knows nothing of content.

    Args:
        source: A file, a folder, a glob, a table or a database; a path or a URI. ``{date}`` is filled in.
        listing: Every file with its size, checksum and version.
        data: JSON: how the source is read, how fresh it must be (the section ``data``); '' for files.
        date: The run's date, as 2026-01-31; '' for the day for which the run was scheduled, in UTC.
        scheduled: When that was: ``dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER``. '' for now.

    Returns:
        version: The content digest, which any changed byte or file name changes, and nothing else; '' if
        there is no source. source: With its date filled in, and pinned to what was seen where a pin exists.
        newest_since: The time that the newest row must reach (ISO 8601), if ``data.quality``
        asks for fresh rows; else ''.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.resolve.source import resolve as look

    with reported("resolve"):
        found = look(source, Path(listing.path), data, date, scheduled)
    return (found.version, found.source, found.newest_since)
