"""A Feast repository on disk: its folder, its settings, and Feast's own store behind them."""

from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.featurestore.definitions import apply_apart
from trainwright.storage import local_path

SETTINGS = "feature_store.yaml"
OFFLINE_STORE = "duckdb"
"""The offline store that is joined from here: Feast's default, dask, drops rows that match nothing."""
ENGINE_STORE = "spark"
"""The one that joins on its own engine, past one machine. Ray's cannot leave out what was created later."""


def open_folder(repository: str) -> Path:
    """Return the folder of a repository.

    Raises:
        InputError: It is not a local folder, or has no settings.
    """
    folder = local_path(repository)
    if folder is None:
        raise InputError(
            "this works on a folder of this machine",
            where=repository,
            hint="Check the repository out, and name that folder.",
        )
    if not (folder / SETTINGS).is_file():
        raise InputError(
            f"no Feast repository here: no {SETTINGS}",
            where=str(folder),
            hint="Name the folder that holds it.",
        )
    return folder


def open_settings(folder: Path) -> Any:
    """Read a repository's settings.

    Raises:
        InputError: Feast cannot read them.
    """
    from feast.repo_config import load_repo_config

    try:
        settings = load_repo_config(folder, folder / SETTINGS)
        _ = (settings.offline_store.type, settings.batch_engine)  # these are read when first asked for
    except Exception as error:
        raise InputError(f"Feast cannot read its settings: {error}", where=str(folder / SETTINGS)) from error
    return settings


def open_store(folder: Path, settings: Any, *, fetched: bool = False) -> Any:
    """Open Feast's store; nothing outside of ``folder`` is written.

    Args:
        folder: The repository's folder.
        settings: Its settings.
        fetched: Whether that is a copy of a remote repository. If its registry is a file that is not among
            what was fetched, the definitions are applied to a registry file beside them.

    Raises:
        InputError: The repository was never applied.
    """
    from feast import FeatureStore

    registry = settings.registry.path
    if settings.registry.registry_type == "file" and "://" not in registry:
        path = folder / registry
        if not path.is_file() and fetched:
            settings.registry.path = str(apply_apart(folder, folder / SETTINGS))
        elif not path.is_file():
            raise InputError(f"not applied: no registry {path}", where=str(folder), hint=apply_hint(folder))
    return FeatureStore(repo_path=str(folder), config=settings)


def close_store(store: Any) -> None:
    """Close the connections that Feast's online store and SQL registry keep, and never close themselves."""
    for name in ("read_engine", "write_engine"):
        if hasattr(store.registry, name):
            getattr(store.registry, name).dispose()
    connection = getattr(store.provider.online_store, "_conn", None)
    if connection is not None:
        connection.close()
        store.provider.online_store._conn = None


def apply_hint(folder: Path) -> str:
    """Say how the definitions get into the registry."""
    return f"After a change of the definitions: feast --chdir {folder} apply."
