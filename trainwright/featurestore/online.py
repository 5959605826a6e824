"""The applied feature views that an online store serves."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, PermissionRefused
from trainwright.featurestore.repository import (
    SETTINGS,
    apply_hint,
    close_store,
    open_folder,
    open_settings,
    open_store,
    read_registry,
    require_known,
)
from trainwright.featurestore.service import in_files
from trainwright.retries import OUTAGE_S

EMBEDDED = "sqlite"
"""Feast's name of the online store that is a file of this machine."""


@dataclass(frozen=True, kw_only=True)
class OnlineView:
    """One served feature view.

    ``keys`` and ``features`` have Feast's type of each column by name, such as ``INT64``; ``columns`` has the
    files' column for each of them and each time. A ``ttl`` of zero is any age; without a creation time,
    ``created`` is empty.
    """

    name: str
    keys: Mapping[str, str]
    features: Mapping[str, str]
    columns: Mapping[str, str]
    ttl: timedelta
    source: str
    time: str
    created: str
    feast: Any = field(compare=False, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the definition, without the rows and their location."""
        features, ttl_us = list(self.features.items()), self.ttl // timedelta(microseconds=1)
        definition = {"name": self.name, "keys": dict(self.keys), "features": features, "ttl_us": ttl_us}
        places = {"columns": dict(self.columns), "time": self.time, "created": self.created}
        return digest_text(canonical(definition | places))


@dataclass(frozen=True, kw_only=True)
class Online:
    """The served views of an applied repository, and Feast's own store behind them."""

    folder: Path
    views: tuple[OnlineView, ...]
    feast: Any = field(compare=False, repr=False)

    @property
    def project(self) -> str:
        """Feast's name for all of it; keys of one project never meet those of another."""
        return str(self.feast.project)

    def close(self) -> None:
        """Close Feast's connections."""
        close_store(self.feast)

    @property
    def store(self) -> str:
        """Feast's name of the kind of online store, such as ``redis``."""
        return str(self.feast.config.online_store.type)

    @property
    def address(self) -> str:
        """The store's address, without credentials: stores with equal ones hold the same rows."""
        settings = self.feast.config.online_store
        parts = [self.store]
        for name in ("path", "host", "port", "database", "db_schema"):
            parts.append(str(getattr(settings, name, None) or ""))
        if getattr(settings, "redis_type", "") == "redis_sentinel":
            parts.append(str(settings.sentinel_master))
        hosts = str(getattr(settings, "connection_string", "")).split(",")
        parts += [part for part in hosts if "=" not in part or part.startswith("db=")]
        return " ".join(part for part in parts if part)

    @property
    def engine(self) -> str:
        """Feast's name of the engine that materializes; ``local`` is this process."""
        engine = self.feast.config.batch_engine
        return str(engine if isinstance(engine, str) else getattr(engine, "type", "local"))


def open_online(
    repository: str, names: Sequence[str] = (), *, fetched: bool = False, retry_s: float = OUTAGE_S
) -> Online:
    """Open some or all served views of an applied repository, without writing or reading features.

    ``fetched`` as in :func:`open_store`; ``retry_s`` is how long the registry may be away.

    Raises:
        InputError: There is no such folder, registry or view; the online store is in the temporary copy; a
            view is not served, has no key, is transformed, or is not in files; or there is no online store.
        DependencyError: The registry is there but cannot be read.
    """
    folder = open_folder(repository)
    settings = open_settings(folder)
    if settings.online_store is None:
        raise InputError(
            "this repository has no online store",
            where=str(folder),
            hint="Set online_store in feature_store.yaml: sqlite, redis or postgres.",
        )
    _require_lasting(settings.online_store, folder, fetched=fetched)
    store = open_store(folder, settings, fetched=fetched)
    known = read_registry(store.list_all_feature_views, folder, retry_s)
    for name in names:
        require_known("feature view", name, known, folder)
    chosen = names or [name for name, view in known.items() if view.online and getattr(view, "enabled", True)]
    if not chosen:
        raise InputError(
            "no view is online", where=str(folder), hint=f"Set online=True. {apply_hint(folder)}"
        )
    return Online(folder=folder, views=tuple(_view(known[name], folder) for name in chosen), feast=store)


def _require_lasting(online: Any, folder: Path, *, fetched: bool) -> None:
    """Reject an embedded online store in a temporary copy, or that cannot be written."""
    if online.type != EMBEDDED:
        return
    path = Path(os.path.abspath(folder / online.path))
    serve = "Set online_store to a server that outlives the step: redis, postgres, or another of Feast's."
    if fetched and not os.path.isabs(online.path):
        raise InputError(
            f"the online store is {online.type!r}, a file in the temporary copy of this repository: "
            "it would be gone with the step",
            where=f"{SETTINGS}: online_store.path {online.path!r}",
            hint=serve,
        )
    try:
        if path.exists():
            path.open("r+b").close()
        # SQLite makes its journal beside the file.
        tempfile.TemporaryFile(dir=next(parent for parent in path.parents if parent.exists())).close()
    except OSError as error:
        raise PermissionRefused(
            f"the online store is {online.type!r}, a file that cannot be written: {error.strerror}: {path}",
            where=f"{SETTINGS}: online_store.path {online.path!r}",
            hint=f"{serve} Or mount a volume with write access (--containers: --mount {path.parent}:rw).",
        ) from None


def _view(feast: Any, folder: Path) -> OnlineView:
    """Read one view as data."""
    _require_served(feast, folder)
    source = feast.batch_source
    back = {new: old for old, new in (source.field_mapping or {}).items()}
    features = {feature.name: feature.dtype.to_value_type().name for feature in feast.features}
    keys = {column.name: column.dtype.to_value_type().name for column in feast.entity_columns}
    created = source.created_timestamp_column or ""
    names = [*keys, *features, source.timestamp_field, *([created] if created else [])]
    return OnlineView(
        name=feast.name,
        keys=keys,
        features=features,
        columns={name: back.get(name, name) for name in names},
        ttl=feast.ttl or timedelta(0),
        source=source.path if "://" in source.path else str(folder / source.path),
        time=source.timestamp_field,
        created=created,
        feast=feast,
    )


def _require_served(feast: Any, folder: Path) -> None:
    """Reject a view whose values are not rows of files with a key."""
    from feast import FeatureView

    problem = ""
    if type(feast) is not FeatureView:
        problem = f"is a {type(feast).__name__}; only plain feature views are materialized"
    elif not feast.online:
        problem = "is not online"
    elif not feast.entity_columns or feast.entities == ["__dummy"]:
        problem = "has no entity, so no key to be served under"
    elif getattr(feast, "feature_transformation", None) is not None:
        problem = "is transformed when it is materialized; only stored values are"
    elif not in_files(feast.batch_source):
        problem = f"reads from {type(feast.batch_source).__name__}; only Parquet files are read"
    if problem:
        raise InputError(f"view {feast.name!r} {problem}", where=str(folder))
