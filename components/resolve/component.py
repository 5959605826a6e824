"""The ``resolve`` component: which bytes a source holds now."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.INGEST, install_kfp_package=False)
def resolve(
    source: str,
    listing: dsl.Output[dsl.Artifact],
    data: dict = {},  # noqa: B006 - the default of a component's input
    columns: dict = {},  # noqa: B006
    date: str = "",
    scheduled: str = "",
    feature_source: str = "",
    baseline: str = "",
    serving: str = "",
    schema: str = "",
    bootstrap_schema: bool = False,
) -> NamedTuple(  # type: ignore[valid-type]
    "Resolved",
    [
        ("version", str),
        ("source", str),
        ("newest_since", str),
        ("features_version", str),
        ("baseline", str),
        ("baseline_version", str),
        ("schema", str),
        ("schema_version", str),
        ("references", dict),
    ],
):
    """List a source and digest its content, so that everything after it can be cached on the digest.

    Never cache this step itself: the cache key of Kubeflow knows nothing of content.

    Args:
        source: A file, a folder, a glob, a table or a database; a path or a URI. ``{date}`` is filled in.
        listing: Every file with its size, checksum and version; of each of the sources.
        data: Format, limits of size and age: the section ``data``; empty for plain files.
        columns: Columns that the source has to have, by the keys that name them; checked before it is read.
        date: The run's date, as 2026-01-31; '' for the day for which the run was scheduled, in UTC.
        scheduled: When that was: ``dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER``. '' for now.
        feature_source: The offline files behind the features; '' for none.
        baseline: The accepted ``baseline.json`` of the model in production; '' for none.
        serving: The log of served rows; '' for none.
        schema: The reviewed TFDV schema; '' for none.
        bootstrap_schema: Whether ``schema`` may be absent: then ``validate`` writes it.

    Returns:
        version: The content digest, which any changed byte or file name changes, and nothing else; '' if
        there is no source. source: With its date filled in, and pinned to what was seen where a pin exists.
        newest_since: The time that the newest row must reach (ISO 8601), if ``data.quality``
        asks for fresh rows; else ''. features_version: Content digest of ``feature_source``.
        baseline: The baseline with its date filled in. baseline_version: Its content digest. schema: The
        schema with its date filled in. schema_version: Its content digest; '' if there is no schema yet.
        references: Baseline and serving log once more, for ``join``.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.resolve.resolve import resolve as look

    with reported("resolve"):
        beside = {"features": feature_source, "baseline": baseline, "serving": serving, "schema": schema}
        found = look(
            source,
            Path(listing.path),
            data,
            date,
            scheduled,
            columns=columns,
            beside=beside,
            may_be_absent=["schema"] if bootstrap_schema else [],
        )
        describe("resolve", listing)
    features, used, served, reviewed = (found.beside[name] for name in beside)
    versions = (features.version, used.source, used.version, reviewed.source, reviewed.version)
    references = {
        "baseline": used.source,
        "baseline_version": used.version,
        "serving": served.source,
        "serving_version": served.version,
    }
    return (found.version, found.source, found.newest_since, *versions, references)
