"""The files of a registered version, brought here and checked."""

from pathlib import Path

from trainwright.artifacts import Model
from trainwright.experiment import Registry
from trainwright.serving import verified
from trainwright.tracking.server import persist

_HINT = (
    "These are the files of the version in production. Look at the server that hands them out; when it "
    "answers, run this step again: the candidate is kept."
)


def bring(source: str, digest: str, registry: Registry, folder: Path) -> tuple[Path, Model]:
    """Download a version's files, and check that they are what was registered.

    Args:
        source: Where they are, as the registry has it.
        digest: Digest of the model's manifest.
        registry: MLflow's address, which may hand them out, and how long it is waited for.
        folder: Where they are put.

    Returns:
        Their folder, and the model's manifest.

    Raises:
        DependencyError: They could not be had for ``registry.retry_s``.
        InputError: They are gone, are another model, or were changed.
        PermissionRefused: The store refuses this identity.
    """
    uri = registry.tracking_uri
    place = Path(persist(lambda: _download(source, uri, folder), uri, registry.retry_s, hint=_HINT))
    return place, verified(place, digest)


def _download(source: str, uri: str, folder: Path) -> str:
    from mlflow.artifacts import download_artifacts

    return str(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=uri))
