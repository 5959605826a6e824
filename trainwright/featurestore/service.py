"""A feature service: the views that it joins, checked before any join."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.featurestore.repository import (
    ENGINE_STORE,
    OFFLINE_STORE,
    SETTINGS,
    open_folder,
    open_settings,
    open_store,
    read_registry,
    require_known,
)
from trainwright.retries import OUTAGE_S
from trainwright.storage import TABLE_SUFFIXES, list_files, open_file, take_listing


@dataclass(frozen=True, kw_only=True)
class View:
    """One feature view of a service.

    Attributes:
        name: Its name, or its alias in the service.
        features: Name and Feast type of each feature, in the service's order.
        keys: Column of the rows by key column of the view.
        ttl: How old a value may be, relative to the row; zero is any age.
        source: Absolute path or URI of its Parquet files; ``content`` is their digest.
        time: Column with the event time; ``created`` has the creation time, empty if there is none.
        renamed: Name of a feature, key or time by its column of the files, where they differ.
    """

    name: str
    features: Mapping[str, str]
    keys: Mapping[str, str]
    ttl: timedelta
    source: str
    content: str
    time: str
    created: str
    renamed: Mapping[str, str]
    feast: Any = field(compare=False, repr=False)

    def column(self, name: str) -> str:
        """Return the column of the files that holds a feature, a key or a time."""
        return next((old for old, new in self.renamed.items() if new == name), name)

    @property
    def definition(self) -> dict[str, Any]:
        """The definition as JSON data, without locations and descriptions."""
        return {
            "name": self.name,
            "features": list(self.features.items()),
            "keys": dict(self.keys),
            "ttl_us": self.ttl // timedelta(microseconds=1),
            "content": self.content,
            "time": self.time,
            "created": self.created,
            "renamed": dict(self.renamed),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the definition and the content of its files."""
        return digest_text(canonical(self.definition))


def in_files(source: Any) -> bool:
    """Tell whether a source is Parquet files: Feast's FileSource, or a SparkSource that names a path."""
    kind = getattr(source, "file_format", None)
    name = kind if isinstance(kind, str) else type(kind).__name__.removesuffix("Format").lower()
    return bool(getattr(source, "path", "")) and name in {"parquet", "nonetype"}


def offline_files(view: View) -> list[str]:
    """List the files of a view."""
    return [entry.uri for entry in list_files(view.source, TABLE_SUFFIXES)]


@contextmanager
def offline_file(view: View, uri: str) -> Iterator[BinaryIO]:
    """Open a file of a view; raise InputError if it is gone, incomplete, or not Parquet."""
    with open_file(uri) as stream, broken_offline_file(view.name, uri):
        yield stream


@contextmanager
def broken_offline_file(view: str, uri: str) -> Iterator[None]:
    """Translate Arrow's errors into one that names the view and its file."""
    import pyarrow as pa  # type: ignore[import-untyped]

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        what = f"the offline file of view {view!r} is not Parquet, or broken: {error}"
        raise InputError(what, where=uri) from None


_SOURCES = {OFFLINE_STORE: "FileSource", ENGINE_STORE: "SparkSource"}
_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A feature service: the views it joins, in order, and Feast's own store behind them."""

    name: str
    views: tuple[View, ...]
    feast: Any = field(compare=False, repr=False)

    @property
    def store(self) -> str:
        """Feast's name of the offline store."""
        return str(self.feast.config.offline_store.type)

    @property
    def on_engine(self) -> bool:
        """True if Feast's offline store joins on an engine of its own."""
        return self.store == ENGINE_STORE

    @property
    def features(self) -> list[str]:
        """Names of all features, in the order in which they are joined."""
        return [name for view in self.views for name in view.features]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the service, its views and the content of their files, without locations."""
        return digest_text(canonical({"name": self.name, "views": [view.definition for view in self.views]}))


def open_service(
    repository: str, name: str, *, fetched: bool = False, digests: bool = True, retry_s: float = OUTAGE_S
) -> Service:
    """Open one feature service of an applied Feast repository.

    Nothing is written, and nothing outside the repository and its offline files is asked. ``fetched`` as in
    :func:`open_store`; ``retry_s`` is how long the registry may be away. Without ``digests``, the rows of the
    offline files are not read, and their digests are empty.

    Raises:
        InputError: There is no such folder, registry, service or offline file; or it needs something that
            cannot be joined without a leak or a loss.
        DependencyError: The registry is there but cannot be read.
    """
    folder = open_folder(repository)
    store = _store(folder, fetched=fetched)
    known = read_registry(store.list_feature_services, folder, retry_s)
    require_known("feature service", name, known, folder)
    views = tuple(_view(store, folder, use, digests=digests) for use in known[name].feature_view_projections)
    return Service(name=name, views=views, feast=store)


def _store(folder: Path, *, fetched: bool) -> Any:
    """Open Feast's store, and reject settings that would give a wrong training set."""
    settings = open_settings(folder)
    offline = settings.offline_store.type
    if offline not in {OFFLINE_STORE, ENGINE_STORE}:
        raise InputError(
            f"offline store {offline!r} is not joined from",
            where=str(folder / SETTINGS),
            hint=f"Set offline_store: {{type: {OFFLINE_STORE}}}, or {ENGINE_STORE} past one machine. Dask, "
            "Feast's default, drops rows without a match; Ray lets in values that were created later.",
        )
    zone = (getattr(settings.offline_store, "spark_conf", None) or {}).get(_ZONE, "")
    if offline == ENGINE_STORE and zone != "UTC":
        raise InputError(
            f"Spark's zone is {zone or 'not set'}: Feast compares times in UTC with times in that zone",
            where=str(folder / SETTINGS),
            hint=f"Set offline_store: {{type: spark, spark_conf: {{{_ZONE}: UTC}}}}.",
        )
    return open_store(folder, settings, fetched=fetched)


def _view(store: Any, folder: Path, use: Any, *, digests: bool) -> View:
    """Return one view of a service as data, with the absolute location of its files."""
    feast = _joinable(store, folder, use)
    source, kind = feast.batch_source, _SOURCES[store.config.offline_store.type]
    if type(source).__name__ != kind or not in_files(source):
        raise InputError(
            f"view {use.name!r} reads from {type(source).__name__}; only a {kind} of Parquet files is joined",
            where=str(folder),
            hint="A table or a query has no content that can be named: a change of it would go unseen.",
        )
    uri = source.path if "://" in source.path else str(folder / source.path)
    try:
        content = take_listing(uri).content_digest if digests else ""
        list_files(uri, TABLE_SUFFIXES)
    except InputError as error:
        what = f"the offline file of view {use.name!r} is not there: {error.what}"
        raise InputError(what, where=uri, hint=error.hint) from None
    view = View(
        name=use.name_to_use(),
        features={feature.name: str(feature.dtype) for feature in use.features},
        # A service may rename some of the keys only.
        keys={column.name: use.join_key_map.get(column.name, column.name) for column in feast.entity_columns},
        ttl=feast.ttl or timedelta(0),
        source=uri,
        content=content,
        time=source.timestamp_field,
        created=source.created_timestamp_column or "",
        renamed=dict(source.field_mapping),
        feast=feast,
    )
    _require_columns(view, nanoseconds=store.config.offline_store.type == ENGINE_STORE)
    return view


def _joinable(store: Any, folder: Path, use: Any) -> Any:
    """Return Feast's own view, if its values can be joined by key and time."""
    from feast import FeatureView

    if use.version_tag is None:
        feast = store.registry.get_any_feature_view(use.name, store.project)
    else:  # the service holds on to it as it was then
        feast = store.registry.get_feature_view_by_version(use.name, store.project, use.version_tag)
    if type(feast) is not FeatureView:
        problem = f"is a {type(feast).__name__}; only plain feature views are joined"
    elif not feast.entity_columns or feast.entities == ["__dummy"]:
        problem = "has no entity, so no key to join by"
    elif not feast.enabled:
        problem = "is disabled"
    elif (
        store.config.offline_store.type == OFFLINE_STORE
        and feast.ttl
        and feast.ttl.days
        and feast.ttl != timedelta(feast.ttl.days)
    ):
        problem = f"has a TTL of {feast.ttl}: Feast's DuckDB store takes whole days or less than one day"
    else:
        return feast.with_projection(use)
    raise InputError(f"view {use.name!r} {problem}", where=str(folder))


def _require_columns(view: View, *, nanoseconds: bool) -> None:
    """Check that every file has the view's columns, in the same, supported types."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    from trainwright import tables

    times = [view.column(name) for name in (view.time, view.created) if name]
    wanted = dict.fromkeys([*(view.column(name) for name in (*view.keys, *view.features)), *times])
    first = pa.schema([])
    for uri in offline_files(view):
        with offline_file(view, uri) as stream:
            found = pq.read_schema(stream)
        tables.require_columns(found, wanted, where=f"offline file of view {view.name!r}: {uri}")
        schema = pa.schema([found.field(name) for name in wanted])
        first = first if len(first) else schema
        if schema != first:
            difference = tables.schema_difference(first, schema)
            raise InputError(
                f"the offline files of view {view.name!r} differ: {difference}",
                where=uri,
                hint="Write all of them with the same columns and types.",
            )
    for name in times:
        kind = first.field(name).type
        if not pa.types.is_timestamp(kind) or (kind.unit == "ns" and not nanoseconds):
            raise InputError(
                f"column {name!r} of view {view.name!r} is {kind}, not a timestamp in microseconds",
                where=view.source,
                hint="Write it as timestamp[us, tz=UTC]; DuckDB cannot compare nanoseconds with a zone.",
            )
