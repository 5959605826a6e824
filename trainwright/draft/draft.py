"""Draft an experiment from the rows of a source: its file, and a snapshot to infer the schema from."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.draft.documents import Draft, DraftRequest
from trainwright.draft.profiles import ColumnProfile, profile_columns
from trainwright.draft.roles import (
    SHARES,
    RoleChoice,
    SplitChoice,
    choose_key,
    choose_label,
    choose_splits,
    choose_text,
    choose_time,
    is_key_name,
    utc_ticks,
)
from trainwright.draft.sample import TableSample, access_to, read_sample
from trainwright.draft.target import LabelMeaning, find_leaks, infer_target
from trainwright.errors import InputError
from trainwright.experiment import Data, Query
from trainwright.experiment.data import ROW, is_reserved
from trainwright.ingest.ingest import ingest
from trainwright.sources import list_source
from trainwright.storage import Access
from trainwright.tables import require_columns

_PLAIN = re.compile(r"[A-Za-z_](?:[\w./ -]*[\w./])?|[./]+[\w./-]*\w", re.ASCII)
_URI = re.compile(r"[a-z]+://[\w./*-]+", re.ASCII)
_MISREAD = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_COMMENT_AT = 32


@dataclass(frozen=True)
class Commented:
    """A value with a comment behind it."""

    value: Any
    comment: str


def render(title: str, sections: Mapping[str, Any]) -> str:
    """Return the text of an experiment file.

    Args:
        title: Its first comment.
        sections: Values by key; a mapping of the second level has one line for each key, a deeper one is
            written in one line.
    """
    lines = [f"# {title}"]
    for name, value in sections.items():
        lines += _lines(name, value, 0)
    return "\n".join(lines) + "\n"


def _lines(name: str, value: Any, depth: int) -> list[str]:
    comment = ""
    if isinstance(value, Commented):
        value, comment = value.value, value.comment
    block = isinstance(value, Mapping) and (depth == 0 or name == "splits") and name != "network"
    head = f"{'  ' * depth}{name}:" + ("" if block else f" {scalar(value)}")
    lines = [f"{head:<{_COMMENT_AT}} # {comment}" if comment else head]
    if block:
        for key, entry in value.items():
            lines += _lines(key, entry, depth + 1)
    return lines


def scalar(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {scalar(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, datetime):
        return f"{value.replace(tzinfo=None).isoformat()}Z"
    if isinstance(value, str):
        plain = (_PLAIN.fullmatch(value) and value.lower() not in _MISREAD) or _URI.fullmatch(value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


_SLICES = 2
_MOST_VALUES = 10
_SHOWN = 8
_ALIKE = 0.95
_JUDGED = 30
"""Fewest rows of a class of which `evaluate` gives an interval."""

_SMALL = {"context": 128, "width": 128, "layers": 2, "heads": 4}
"""Sizes of a language model that a laptop trains in minutes."""

_DATABASES = ("sqlite://", "postgresql://")


@dataclass(kw_only=True)
class TableRoles:
    """The role of each column."""

    key: RoleChoice
    time: RoleChoice
    label: RoleChoice | None
    text: RoleChoice | None
    meaning: LabelMeaning | None
    splits: SplitChoice
    excluded: dict[str, list[str]] = field(default_factory=dict)
    slices: list[str] = field(default_factory=list)
    like_time: list[str] = field(default_factory=list)
    not_in_schema: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)


def write_draft(request: DraftRequest, folder: Path) -> Draft:
    """Infer an experiment, and write its draft and a snapshot of the rows that it was inferred from.

    Args:
        request: The source and the options.
        folder: Empty folder for ``draft.json`` and ``snapshot``.

    Raises:
        InputError: The source cannot be read, an option names no column, or a choice is ambiguous.
        DataRefused: The rows contradict an option, or nothing can be learned from them.
    """
    source = _source_section(request)
    reading = Data.check(source | {"splits": {"all": {"fraction": 1}}}, "command line")
    scratch = folder / "scratch"
    scratch.mkdir()
    sample = read_sample(reading, scratch)
    by_name = not request.key and "key" in source
    if by_name:
        request = replace(request, key=source["key"])
    named = {"key": request.key, "time": request.time, "label": request.label}
    named |= {"group": request.group, "text": request.text}
    require_columns(sample.rows, [name for name in named.values() if name], where=request.source)
    profiles = profile_columns(sample.rows)
    roles = _choose_roles(profiles, request)
    if sample.complete and roles.label and roles.meaning and roles.meaning.kind != "regression":
        label = next(one for one in profiles if one.name == roles.label.column)
        roles.warnings[:0] = _few_rows(label)
    if sample.unclear:
        roles.warnings.append(
            f"{sample.unclear} holds dates such as 01/02/2024, read as text: "
            "set data.csv.dates to DMY or MDY to read them as times"
        )
    if by_name:
        roles.key = replace(roles.key, reason="unique, and named like a key")
    data = source | {"source": _relative(request.source, request.folder)} | _data_section(roles)
    if keys := sample.csv.model_dump(exclude_defaults=True):
        data["csv"] = keys
    if sample.missing:
        data["missing"] = [*reading.missing, *sample.missing]
    text = render(_title(request, roles), _sections(data, roles, request))
    draft = Draft(experiment=text, findings=tuple(_findings(sample, roles, request)))
    draft.write(folder)
    _write_snapshot(sample, data, folder)
    return draft


def _source_section(request: DraftRequest) -> dict[str, Any]:
    if request.query:
        return _database_section(request)
    if request.source.startswith(_DATABASES):
        raise InputError(
            "a database needs a query", where=request.source, hint='Add --query "SELECT … FROM …".'
        )
    if request.source.startswith("https://"):
        return {"source": request.source, "hosts": list(access_to(request.source).hosts)}
    path = storage.local_path(request.source)
    delta = path is not None and (path / "_delta_log").is_dir()
    return {"source": request.source} | ({"format": "delta"} if delta else {})


def _database_section(request: DraftRequest) -> dict[str, Any]:
    """Return the keys of a database; its rows have no order without a key."""
    from trainwright.sources.database import parse_database
    from trainwright.sources.sql import query_columns
    from trainwright.sources.sql_statement import POSTGRES, SQLITE, tables_of

    dialect = SQLITE if parse_database(request.source).kind == "sqlite" else POSTGRES
    query = {"select": request.query, "tables": tables_of(request.query, dialect, "--query")}
    access = access_to(request.source)
    columns = query_columns(request.source, Query.check(query, "--query"), access)
    key = request.key or next((name for name in columns if is_key_name(name)), "")
    if not key:
        raise InputError(
            "the rows of a database have no order, and no column is named like a key",
            where=request.source,
            hint=f"Name the column that identifies a row: --key COLUMN. Columns: {', '.join(columns)}.",
        )
    hosts = {"hosts": list(access.hosts)} if access.hosts else {}
    return {"source": request.source, "format": "sql", "sql": query, "key": key} | hosts


def _relative(source: str, folder: str) -> str:
    """Return a local source relative to the folder of the experiment file, which paths in it refer to."""
    if source.startswith("sqlite:///"):
        return f"sqlite:///{os.path.relpath(source.removeprefix('sqlite:///'), folder)}"
    path = None if "://" in source else storage.local_path(source)
    return source if path is None else os.path.relpath(path, folder)


def _choose_roles(profiles: Sequence[ColumnProfile], request: DraftRequest) -> TableRoles:
    source = request.source
    by_name = {one.name: one for one in profiles}
    requested = [request.label, request.time, request.group, request.text]
    free = [one for one in profiles if one.name not in requested]
    key = choose_key(profiles if request.key else free, request.key, source)
    rest = [one for one in free if one.name != key.column]
    time = choose_time(profiles if request.time else rest, request.time, source)
    taken = [key.column, time.column, request.group]
    label = text = meaning = None
    if request.kind == "text":
        text = choose_text(profiles if request.text else rest, request.text, source)
    else:
        label = choose_label(profiles, request.label, taken, source)
        if is_reserved(label.column):
            raise InputError(
                f"label {label.column!r} has the name of the model's scores",
                where=source,
                hint="Rename the column at its source, or name another one with --label.",
            )
        meaning = infer_target(by_name[label.column], request.kind, source)
    if not key.column and ROW in by_name:
        raise InputError(
            f"no column is the key, so a column {ROW!r} would be added with the number of each row, "
            "and the table has one of that name",
            where=source,
            hint=f"Name the key with --key, such as --key {ROW} if its values are unique, or rename {ROW}.",
        )
    splits = choose_splits(by_name.get(time.column), request.group, key)
    found = TableRoles(key=key, time=time, label=label, text=text, meaning=meaning, splits=splits)
    if label and meaning:
        _choose_features(found, by_name[label.column], meaning, by_name, request)
    return found


def _choose_features(
    roles: TableRoles,
    label: ColumnProfile,
    meaning: LabelMeaning,
    columns: dict[str, ColumnProfile],
    request: DraftRequest,
) -> None:
    """Fill in the columns that are not features, the slices, and the warnings."""
    taken = {roles.key.column, roles.time.column, label.name}
    others = [one for one in columns.values() if one.name not in taken]
    roles.not_in_schema.update(one.name for one in others if not one.is_in_schema)
    for one in others:
        if reason := _reason_to_exclude(one, request.group):
            roles.excluded.setdefault(reason, []).append(one.name)
    excluded = {name for names in roles.excluded.values() for name in names}
    features = [one for one in others if one.name not in excluded]
    if not features:
        raise InputError(
            f"no column is left to predict {label.name!r} from: {_unused(roles) or 'it is the only one'}",
            where=request.source,
            hint="Add columns with the features: numbers, or text with few different values.",
        )
    few = [one for one in features if 2 <= one.distinct <= _MOST_VALUES]  # noqa: PLR2004
    few = [one for kind in ("text", "boolean") for one in few if one.kind == kind]
    roles.slices.extend(one.name for one in few[:_SLICES])
    time = columns.get(roles.time.column)
    if time and roles.splits.has_windows:
        roles.like_time.extend(one.name for one in features if _follows(one, time))
    for name in find_leaks(label, meaning, features):
        roles.warnings.append(
            f"{name} alone predicts {label.name} in every row: "
            "if it is known only afterwards, add it to features.known_after"
        )


def _few_rows(label: ColumnProfile) -> Iterator[str]:
    """Warn of classes with too few rows in the split that the model is judged on."""
    share = SHARES["evaluate"]
    few = {value: count * share for value, count in label.counts.items() if count * share < _JUDGED}
    if not few:
        return
    rarest = min(few, key=lambda value: few[value])
    needed = math.ceil(_JUDGED / label.counts[rarest] * label.rows / share)
    shown = ", ".join(f"{value} (about {rows:.0f})" for value, rows in list(few.items())[:_SHOWN])
    more = f" and {len(few) - _SHOWN:,} more" if len(few) > _SHOWN else ""
    yield (
        f"evaluate has fewer than {_JUDGED} rows of {label.name} = {shown}{more}, too few to judge a model: "
        f"bring about {needed:,} rows in all, or make the split larger in data.splits"
    )


def _unused(roles: TableRoles) -> str:
    """Return the columns that are no features, with the reasons."""
    found = [
        f"{role.column} ({word})" for word, role in (("key", roles.key), ("time", roles.time)) if role.column
    ]
    found += [f"{', '.join(names[:_SHOWN])} ({why})" for why, names in roles.excluded.items()]
    return "; ".join(found)


def _reason_to_exclude(one: ColumnProfile, group: str) -> str:
    """Return why a column is no feature; empty if it can be one."""
    constant = "one value in every row" if one.present else "no value in any row"
    reasons = (
        (one.name == group, "the group"),
        (is_reserved(one.name), "the name of the model's scores; rename it to use it"),
        (one.kind in {"nested", "binary"}, "lists, objects or bytes"),
        (one.kind == "clock", "times of the day or durations"),
        (one.is_constant, constant),
        (one.is_free_text, "text that differs from row to row"),
        (one.is_unique and is_key_name(one.name), "a second key"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def _follows(one: ColumnProfile, time: ColumnProfile) -> bool:
    """Return whether the values of a column follow the time, so that any two windows differ in them."""
    if one.kind not in {"integer", "float", "time"} or one.distinct < 2 or one.values.null_count:  # noqa: PLR2004
        return False
    values = utc_ticks(one) if one.kind == "time" else one.values
    ranks = [_ranks(column.to_numpy()) for column in (values, utc_ticks(time))]
    return bool(abs(np.corrcoef(*ranks)[0, 1]) >= _ALIKE)


def _ranks(values: Any) -> Any:
    return np.unique(values, return_inverse=True)[1]


def _data_section(roles: TableRoles) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if roles.key.column:
        found["key"] = roles.key.column
    if roles.time.column:
        found["time"] = roles.time.column
    if roles.label and roles.meaning:
        found["label"] = roles.label.column
        if roles.meaning.classes:
            found["classes"] = list(roles.meaning.classes)
        elif roles.meaning.kind != "binary":
            found["label_kind"] = roles.meaning.kind
    if roles.splits.split_by:
        found["split_by"] = roles.splits.split_by
    return found | {"splits": roles.splits.splits}


def _sections(data: dict[str, Any], roles: TableRoles, request: DraftRequest) -> dict[str, Any]:
    """Return the sections of the experiment file, with comments."""
    data = dict(data)
    if len(data.get("classes", ())) == 2:  # noqa: PLR2004
        data["classes"] = Commented(data["classes"], "the second is label 1")
    if "missing" in data:
        data["missing"] = Commented(data["missing"], "texts that mean no value, in every column")
    if roles.splits.has_windows:
        data["splits"] = Commented(data["splits"], "UTC; 70, 15 and 15 % of the rows seen")
    validation: dict[str, Any] = {
        "on_missing_baseline": Commented(
            "bootstrap", "until you set baseline: see trainwright baseline accept"
        )
    }
    excluded = [name for names in roles.excluded.values() for name in names]
    if ignored := [name for name in (*excluded, *roles.like_time) if name not in roles.not_in_schema]:
        also = f"; {', '.join(roles.like_time)}: later values by nature" if roles.like_time else ""
        validation["ignore"] = Commented(ignored, f"no drift check: not features{also}")
    found: dict[str, Any] = {
        "schema_version": 1,
        "data": data,
        "schema_file": Commented("schema.pbtxt", "inferred from the split train; review it"),
        "validation": validation,
    }
    if excluded:
        found["features"] = {"exclude": Commented(excluded, "; ".join(roles.excluded))}
    if roles.text:
        found["features"] = {"request": [roles.text.column]}
    found["network"] = _network(roles)
    evaluation: dict[str, Any] = {"slices": list(roles.slices)} if roles.slices else {}
    if request.group:
        evaluation["cluster"] = Commented(request.group, "its rows depend on each other")
    evaluation["missing_baseline"] = Commented(
        "bootstrap", "until a model is in production; then remove this line"
    )
    found["evaluation"] = evaluation
    found["registry"] = {"model": _model_name(request), "tracking_uri": "sqlite:///runs/mlflow.db"}
    return found


def _network(roles: TableRoles) -> Commented:
    if roles.text:
        text = {"kind": "lm", "text": roles.text.column}
        return Commented(text | _SMALL, "learns bytes; small, for a laptop")
    return Commented({"kind": "auto"}, "trees and a network; the better one is kept")


def _model_name(request: DraftRequest) -> str:
    """Return the name of the file or folder, or of the table of a query, in lower case with hyphens."""
    if request.query:
        name = re.split(r"\bfrom\s+", request.query, flags=re.IGNORECASE)[-1].split()[0]
    else:
        parts = [part for part in request.source.split("/") if part and not re.search(r"[*?\[]", part)]
        name = parts[-1].partition(".")[0]
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"


def _title(request: DraftRequest, roles: TableRoles) -> str:
    name = _model_name(request)
    task = f"Predict {roles.label.column}" if roles.label else "Learn text"
    return f"{task}: {name}. Written by trainwright init; docs/experiment.md lists all keys."


def _findings(sample: TableSample, roles: TableRoles, request: DraftRequest) -> list[str]:
    def line(word: str, text: str) -> str:
        return f"  {word:<9}{text}"

    def chosen(choice: RoleChoice) -> str:
        return f"{choice.column}: {choice.reason}" if choice.column else f"none: {choice.reason}"

    count = f"{sample.rows.num_rows:,} rows"
    count = count if sample.complete else f"a sample of {count}"
    found = [f"{request.source}: {count}, {sample.rows.num_columns:,} columns"]
    for text, column in sample.missing.items():
        found.append(line("missing", f"{text!r}, as in {column}, which holds numbers else"))
    found += [line("key", chosen(roles.key)), line("time", chosen(roles.time))]
    if roles.label and roles.meaning:
        found += [line("label", chosen(roles.label)), line("", roles.meaning.reason)]
    if roles.text:
        found.append(line("text", chosen(roles.text)))
    found.append(line("splits", roles.splits.reason))
    for reason, names in roles.excluded.items():
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        found.append(line("exclude", f"{', '.join(names[:_SHOWN])}{more}: {reason}"))
    if roles.like_time:
        found.append(line("ignore", f"{', '.join(roles.like_time)}: follow the time, so drift is no news"))
    if roles.slices:
        found.append(
            line("slices", f"{', '.join(roles.slices)}: few values, to compare the model between them")
        )
    return found + [line("warning", text) for text in roles.warnings]


def _write_snapshot(sample: TableSample, data: dict[str, Any], folder: Path) -> None:
    """Ingest the rows as a run does: the schema is inferred from what `validate` will see."""
    rows = folder / "rows.parquet"
    pq.write_table(sample.rows, rows)
    others = {name: value for name, value in data.items() if name not in {"format", "sql"}}
    section = Data.check(others | {"source": str(rows)}, "the draft of the experiment file")
    listing = list_source(str(rows), section, Access())
    ingest(str(rows), listing.content_digest, section, folder / "snapshot", folder / "summary.md")
