"""The rows of a serving log, under the names of the features that they are compared with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.drift.counting import kind_of
from trainwright.drift.findings import Kind
from trainwright.errors import InputError
from trainwright.experiment import Data, ServingLog, Share
from trainwright.sources import Sources, open_source
from trainwright.storage import Access, take_listing


@dataclass(frozen=True)
class ServedRows:
    """The rows of a serving log.

    Attributes:
        columns: Column of the log by feature, of those that it has in a type that can be compared.
        unlike: Arrow type of the other features that it has.
    """

    sources: Sources
    columns: Mapping[str, str]
    unlike: Mapping[str, str]

    @classmethod
    def open(cls, log: ServingLog, source: str, version: str, kinds: Mapping[str, Kind]) -> "ServedRows":
        """Open the log, and check that it is the one that was listed when the run began.

        Args:
            log: Its format, and its columns where their names differ.
            source: File, folder or glob, with its date filled in.
            version: Its content digest, as `resolve` found it.
            kinds: How each feature is compared.
        """
        listing = take_listing(source, Access())
        if listing.content_digest != version:
            raise InputError(
                f"expected the serving log {version[:12] or '(no version)'}, found "
                f"{listing.content_digest[:12]}: it changed after `resolve` listed it",
                where=source,
                hint="Run again: `resolve` lists it first.",
            )
        data = Data(source=source, format=log.format, splits={"serving": Share(fraction=1)})
        sources = open_source(listing, data, Access())
        types = {field.name: field.type for field in sources.schema}
        unknown = [f"{name}: {column}" for name, column in log.columns.items() if name not in kinds]
        unknown += [f"{name}: {column}" for name, column in log.columns.items() if column not in types]
        if unknown:
            raise InputError(
                f"validation.serving_log.columns names no feature, or no column of the log: {unknown}",
                where=source,
                hint=f"Features: {', '.join(kinds)}. Columns of the log: {', '.join(types)}.",
            )
        columns = {name: log.columns.get(name, name) for name in kinds}
        there = {name: column for name, column in columns.items() if column in types}
        unlike = {
            name: str(types[column])
            for name, column in there.items()
            if kind_of(types[column]) != kinds[name] and not pa.types.is_null(types[column])
        }
        return cls(sources, {name: there[name] for name in there.keys() - unlike.keys()}, unlike)

    @property
    def untimed(self) -> frozenset[str]:
        """Features of the log that are no times: a baseline counts those in a unit of its own."""
        types = {field.name: field.type for field in self.sources.schema}
        return frozenset(
            name for name, column in self.columns.items() if not pa.types.is_temporal(types[column])
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, under the names of the features."""
        for part in self.sources.parts():
            for _, _, rows in self.sources.batches(part):
                chosen = rows.select(list(self.columns.values())).rename_columns(list(self.columns))
                yield from chosen.to_batches()
