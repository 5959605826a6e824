"""Read rows of a source to infer from: all of a small one, rows from all over a large one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import CsvFormat, Data
from trainwright.sources import SourcePart, Sources, list_source, open_source
from trainwright.sources.csv import infer_date_order, infer_format
from trainwright.sources.formats import file_of
from trainwright.sources.inference import TypeInference
from trainwright.storage import Access

MOST_ROWS = 100_000
"""A sample has fewer than twice as many rows."""

_MOST_CELLS = 20_000_000
_LEAST_ROWS = 1_000
_MOST_BYTES = 64 << 20
_BLOCKS = 16
_MOST_PARTS = 32
_PART_ROWS = 100_000
_FEWEST = 20
_RETRY_S = 20.0
_PACKED = (".gz", ".bz2", ".zst")
_FORMATS = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".jsonl": "JSONL", ".ndjson": "JSONL"}


@dataclass(frozen=True, kw_only=True)
class TableSample:
    """Rows of a source, in its order.

    Attributes:
        rows: The rows.
        complete: Whether they are all of the source.
        csv: Separators of CSV files.
        missing: Texts that mean no value beside those of ``data.missing``, with a column that has each.
        unclear: A column of dates such as 01/02/2024, of which the order is unclear; empty for none.
    """

    rows: pa.Table
    complete: bool
    csv: CsvFormat = field(default_factory=CsvFormat)
    missing: Mapping[str, str] = field(default_factory=dict)
    unclear: str = ""


def access_to(source: str) -> Access:
    """Return the access to a source: the host that a person typed, without long retries."""
    scheme, _, _ = source.partition("://")
    parts = urlsplit(source)
    hosts = {"https": (parts.netloc,), "postgresql": (str(parts.hostname),)}.get(scheme, ())
    return Access(hosts=hosts, retry_s=_RETRY_S)


def read_sample(data: Data, scratch: Path) -> TableSample:
    """Read rows of a source.

    Of local text files above 64 MiB it reads evenly spaced blocks, of Parquet files with more than 3 million
    rows evenly spaced row groups; all other rows stream through, and every n-th one stays.

    Args:
        data: A section ``data`` with the source and its format.
        scratch: Empty folder for temporary files.

    Raises:
        InputError: Nothing is there, or a file cannot be read.
        DataRefused: There are fewer than 20 rows.
    """
    access = access_to(data.source)
    if data.sql or data.format == "delta":
        found = _read(open_source(list_source(data.source, data, access), data, access))
    else:
        found = _read_files(data, scratch, access)
    if found.rows.num_rows < _FEWEST:
        count = f"{found.rows.num_rows:,} row{'' if found.rows.num_rows == 1 else 's'}"
        raise DataRefused(
            f"expected at least {_FEWEST} rows, to train, evaluate and hold out; found {count}",
            where=data.source,
            hint="Add rows.",
        )
    return found


def _read_files(data: Data, scratch: Path, access: Access) -> TableSample:
    files = storage.list_files(data.source, storage.TABLE_SUFFIXES, access)
    _require_one_format(files, data.source)
    data = data.model_copy(update={"shard_rows": _PART_ROWS})
    if _format(files[0]) != "CSV":
        return _read_listed(files, data, scratch / "files", access)
    form = infer_format(file_of(files[0], data, access))
    found = _read_listed(files, data.model_copy(update={"csv": form}), scratch / "files", access)
    missing = missing_texts(found.rows)
    order, unclear = infer_date_order(found.rows)
    if missing or order != form.dates:
        form = form.model_copy(update={"dates": order})
        data = data.model_copy(update={"csv": form, "missing": (*data.missing, *missing)})
        found = _read_listed(files, data, scratch / "again", access)
    return replace(found, csv=form, missing=missing, unclear=unclear)


_MISSING = {"n/a", "#n/a", "<na>", "nan", "none", "nil", "missing", "unknown", "?", "-", "--", "."}


def missing_texts(rows: pa.Table) -> dict[str, str]:
    """Return the texts such as ``N/A`` that alone keep a column from being numbers, each with the column."""
    found: dict[str, str] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        values = pc.unique(column.drop_null())
        absent = pc.is_in(pc.utf8_lower(values), pa.array(sorted(_MISSING)))
        numbers = TypeInference()
        numbers.add(values.filter(pc.invert(absent)))
        if numbers.kind in {pa.int64(), pa.float64()}:
            found |= dict.fromkeys(values.filter(absent).to_pylist(), name)
    return found


def _read_listed(files: list[SourceFile], data: Data, scratch: Path, access: Access) -> TableSample:
    total = sum(file.size for file in files)
    local = all(storage.local_path(file.uri) for file in files)
    if _is_text(files[0]) and local and total > _MOST_BYTES:
        try:
            excerpts = [_write_excerpt(file, _MOST_BYTES / total, scratch) for file in files]
            listing = Listing(source=f"{scratch}{data.source}", files=tuple(excerpts))
            return TableSample(rows=_read(open_source(listing, data, access)).rows, complete=False)
        except InputError:  # reading the files themselves names the file and the line
            pass
    return _read(open_source(Listing(source=data.source, files=tuple(files)), data, access))


def _format(file: SourceFile) -> str:
    name = file.uri.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return next((kind for suffix, kind in _FORMATS.items() if name.endswith(suffix)), "")


def _is_text(file: SourceFile) -> bool:
    return _format(file) in {"CSV", "JSONL"} and not file.uri.lower().endswith(_PACKED)


def _require_one_format(files: list[SourceFile], source: str) -> None:
    kinds = [_format(file) for file in files]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    if not all(kinds):
        raise InputError(
            "expected a Parquet, CSV or JSONL file, by its name",
            where=files[kinds.index("")].uri,
            hint="Convert it, and name it .parquet, .csv or .jsonl.",
        )
    if len(counts) > 1:
        found = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        raise InputError(
            f"expected files of one format, found {found}",
            where=source,
            hint="Name those that belong together with a glob in quotes, such as 'folder/*.csv'.",
        )


def _write_excerpt(file: SourceFile, fraction: float, scratch: Path) -> SourceFile:
    """Copy the header and evenly spaced blocks of whole lines; folders of the path may name columns."""
    path = Path(file.uri)
    target = scratch / path.relative_to(path.anchor)
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as source, target.open("xb") as sink:
        if _format(file) == "CSV":
            sink.write(source.readline())
        start = source.tell()
        size = int((file.size - start) * fraction) // _BLOCKS
        for place in np.linspace(start, file.size - size, _BLOCKS).astype(int):
            source.seek(place)
            if place > start:
                source.readline()  # the rest of a line
            sink.write(source.read(size))
            sink.write(source.readline().rstrip(b"\n") + b"\n")
    return SourceFile(uri=str(target), size=target.stat().st_size, checksum="")


def _read(sources: Sources) -> TableSample:
    parts = sources.parts()
    chosen = parts if len(parts) <= _MOST_PARTS else parts[:: -(-len(parts) // _MOST_PARTS)]
    most = max(_LEAST_ROWS, min(MOST_ROWS, _MOST_CELLS // max(len(sources.schema), 1)))
    rows, seen = _thin(_batches(sources, chosen), sources.schema, most)
    return TableSample(rows=rows, complete=rows.num_rows == seen and len(chosen) == len(parts))


def _batches(sources: Sources, parts: list[SourcePart]) -> Iterator[pa.Table]:
    for part in parts:
        for _, _, rows in sources.batches(part):
            yield rows


def _thin(batches: Iterator[pa.Table], schema: pa.Schema, most: int) -> tuple[pa.Table, int]:
    """Return every n-th row, for the smallest power of two n that leaves fewer than twice ``most``."""
    kept, step, seen = schema.empty_table(), 1, 0
    for rows in batches:
        kept = pa.concat_tables([kept, rows.take(pa.array(np.arange(-seen % step, rows.num_rows, step)))])
        seen += rows.num_rows
        while kept.num_rows >= 2 * most:
            kept, step = kept.take(pa.array(np.arange(0, kept.num_rows, 2))), step * 2
    return kept, seen
