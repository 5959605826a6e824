"""The ``resolve`` component: which bytes a source holds now."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def resolve(source: str, listing: dsl.Output[dsl.Artifact]) -> str:
    """List a source and digest its content, so that everything after it can be cached on the digest.

    Never cache this step itself: the cache key of Kubeflow knows nothing of content.

    Args:
        source: A Parquet or CSV file, a folder of them, or a glob; a path or a URI.
        listing: Every file with its size and checksum.

    Returns:
        The content digest: any changed byte or file name changes it, and nothing else does.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.resolve.source import resolve as look

    with reported("resolve"):
        found = look(source, Path(listing.path))
    return found.content_digest
