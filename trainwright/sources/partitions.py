"""Columns from the names of folders, as Hive writes them: ``day=2013-01-01/carrier=UA/part-0.parquet``."""

import re
from collections.abc import Callable, Sequence
from datetime import date
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.storage import local_path

_PAIR = re.compile(r"([^=/]+)=([^/]*)")
_WILD = re.compile(r"[*?\[]")
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")

Values = dict[str, dict[str, int | str | date | None]]
"""Values of the columns by file."""


def partitions_of(source: str, uris: Sequence[str]) -> tuple[pa.Schema, Values]:
    """Find the columns that the folders of a source name.

    Folders count from the source's own on, and in a glob from the first wildcard on, so that a single
    partition is read as any other folder.

    Args:
        source: What was listed.
        uris: Its files.

    Returns:
        The columns, each ``int64``, ``date32`` or ``string``: the narrowest that takes all values, where a
        number with leading zeros is text; and the values by file.

    Raises:
        InputError: Files differ in the columns that their folders name.
    """
    texts = {uri: _pairs(uri, source) for uri in uris}
    first = uris[0]
    names = list(texts[first])
    for uri in uris:
        if list(texts[uri]) != names:
            raise InputError(
                f"the folders of this source name different columns: {list(texts[uri])}, not {names}",
                where=f"{uri}, against {first}",
                hint="Name only files that are partitioned alike.",
            )
    kinds = {name: _kind_of([texts[uri][name] for uri in uris]) for name in names}
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in kinds.items()])
    values: Values = {
        uri: {name: None if text is None else kinds[name][1](text) for name, text in pairs.items()}
        for uri, pairs in texts.items()
    }
    return schema, values


def _pairs(uri: str, source: str) -> dict[str, str | None]:
    """Return the names and texts of one file's folders, outermost first; no value is None."""
    root = _root(source)
    inside = uri.removeprefix(root) if uri.startswith(f"{root}/") else ""
    found: dict[str, str | None] = {}
    for folder in inside.split("/")[:-1]:
        if pair := _PAIR.fullmatch(folder):
            name, text = (unquote(part) for part in pair.groups())
            if name in found:
                raise InputError(f"two folders of its path name the column {name!r}", where=uri)
            found[name] = None if text in {_NOTHING, ""} else text
    return found


def _root(source: str) -> str:
    """Return the folder from which on folders count, as the URIs of a listing begin with it."""
    wild = _WILD.search(source)
    root = source[: wild.start()].rpartition("/")[0] if wild else source
    path = local_path(root or ("/" if source.startswith("/") else "."))
    return (str(path) if path else root).rstrip("/")


def _kind_of(texts: Sequence[str | None]) -> tuple[pa.DataType, Callable[[str], int | str | date]]:
    present = {text for text in texts if text is not None}
    if present and all(_WHOLE.fullmatch(text) for text in present):
        return pa.int64(), int
    if present and all(_is_date(text) for text in present):
        return pa.date32(), date.fromisoformat
    return pa.string(), str


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
