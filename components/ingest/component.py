"""The ``ingest`` component: a source becomes an immutable snapshot, divided into splits."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.INGEST, install_kfp_package=False)
def ingest(
    source: str,
    source_version: str,
    data: dict,
    snapshot: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Read a source, check it, divide it into splits and write it, or pin it, as a snapshot.

    Args:
        source: What ``resolve`` found: a file, a folder, a glob, a table or a database; a path or a URI.
        source_version: The content digest that ``resolve`` found; other content is refused.
        data: Roles of the columns, splits, limits, store of the shards: the section ``data``.
        snapshot: The manifest that names every file; and the Parquet files, unless they lie in a store.
        summary: Rows by split, and what the columns hold.

    Returns:
        The data version: the digest of the manifest.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Data
    from trainwright.ingest.ingest import ingest as take

    with reported("ingest"):
        section = Data.parse(data, "parameter data")
        made = take(source, source_version, section, Path(snapshot.path), Path(summary.path))
        describe("ingest", snapshot, summary)
    return made.digest
