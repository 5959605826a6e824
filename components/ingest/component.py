"""The ``ingest`` component: a source becomes an immutable snapshot, split by time."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def ingest(
    source: str,
    source_version: str,
    data: str,
    snapshot: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Read a source, check it, split it by time and write it as a snapshot.

    Args:
        source: A Parquet or CSV file, a folder of them, or a glob; a path or a URI.
        source_version: The content digest that ``resolve`` found; other content is refused.
        data: JSON: roles of columns, windows of the splits, least rows a split (the section ``data``).
        snapshot: Parquet by split, and the manifest that names every file.
        summary: Rows by split and values missing by column.

    Returns:
        The data version: the digest of the manifest.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.experiment import Data
    from trainwright.ingest.snapshot import ingest as take

    with reported("ingest"):
        section = Data.parse(data, "parameter data")
        made = take(source, source_version, section, Path(snapshot.path), Path(summary.path))
    return made.digest
