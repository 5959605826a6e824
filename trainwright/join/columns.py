"""The columns of a training set: those read, carried on, joined from features, and left behind."""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainwright.artifacts import Column, Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.experiment.data import is_reserved
from trainwright.featurestore import Service

_ROLES = ("key", "time", "label")
_TEXT = re.compile(r"(large_)?string|(large_)?list<.*: u?int(8|16|32|64)>")
"""Types that a language model reads: text, and lists of token ids."""


@dataclass(frozen=True)
class ColumnPlan:
    """The columns of a training set: those read, carried into it, joined from features, and left out.

    ``time`` and ``label`` are empty where the rows have none. ``inputs`` are the carried columns that a model
    learns from. ``unreadable`` (with their types) and ``empty`` were left out without being asked for by
    name: no model reads the type, or no row has a value. Both are in ``left``, too.
    """

    key: str
    time: str
    label: str
    carried: tuple[str, ...]
    joined: tuple[str, ...]
    read: tuple[str, ...]
    left: tuple[str, ...]
    unreadable: tuple[Column, ...] = ()
    empty: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The carried columns that a model learns from."""
        return tuple(name for name in self.carried if name not in (self.key, self.time, self.label))


def plan_columns(snapshot: Snapshot, service: Service | None, features: Features) -> ColumnPlan:
    """Decide which columns are read, carried and joined.

    With a feature service, only the columns in ``features.request`` are carried beside key, time and label.
    Without, and without ``features.request``, all are that a model can read.
    """
    chosen = features.request
    unreadable: tuple[Column, ...] = ()
    empty: tuple[str, ...] = ()
    if not service and not chosen:
        free = _free_columns(snapshot, features)
        if snapshot.target.kind == "text":
            chosen = (_text_column(free),)
        else:
            unreadable = tuple(column for column in free if not column.kind)
            empty = tuple(column.name for column in free if _is_empty(snapshot, column))
            unused = {*empty, *(column.name for column in unreadable)}
            chosen = tuple(column.name for column in free if column.name not in unused)
    problems = list(_problems(snapshot, service, features, chosen))
    if not service and not chosen and not problems:
        problems.append(
            f"no column is left to learn from; without a value: {list(empty)}, of a type no model reads: "
            f"{[f'{column.name} ({column.type})' for column in unreadable]}"
        )
    if problems:
        what = "these columns cannot be joined" if service else "these columns cannot be used"
        raise InputError(
            what + "".join(f"\n  {line}" for line in problems),
            where=f"feature service {service.name!r}" if service else "section features",
            hint=f"The rows have {', '.join(column.name for column in snapshot.columns)}.",
        )
    roles = snapshot.roles
    carried = tuple(dict.fromkeys([*(roles[role] for role in _ROLES if role in roles), *chosen]))
    entities = [column for view in service.views for column in view.keys.values()] if service else []
    return ColumnPlan(
        key=roles["key"],
        time=roles.get("time", ""),
        label=roles.get("label", ""),
        carried=carried,
        joined=tuple(service.features) if service else (),
        read=tuple(dict.fromkeys([*carried, *entities])),
        left=tuple(column.name for column in snapshot.columns if column.name not in carried),
        unreadable=unreadable,
        empty=empty,
    )


def _free_columns(snapshot: Snapshot, features: Features) -> list[Column]:
    """Return the columns that have no role and that no key of the section leaves out."""
    out = {*snapshot.roles.values(), *features.known_after, *features.exclude}
    return [column for column in snapshot.columns if column.name not in out]


def _text_column(free: list[Column]) -> str:
    """Return the one column that a language model can learn."""
    found = [column.name for column in free if _TEXT.fullmatch(column.type)]
    if len(found) != 1:
        shown = ", ".join(f"{column.name} ({column.type})" for column in free) or "none"
        raise InputError(
            f"expected one column of text or of token ids for a language model, found {len(found)} among "
            f"the columns that are not key and time: {shown}",
            where="section features",
            hint="Name the column to learn: features: {request: [COLUMN]}.",
        )
    return found[0]


def _is_empty(snapshot: Snapshot, column: Column) -> bool:
    """Tell whether no row has a value; `ingest` counts the nulls of every column."""
    return column.type == "null" or 0 < snapshot.rows == snapshot.quality.get(f"nulls.{column.name}")


def _problems(
    snapshot: Snapshot, service: Service | None, features: Features, chosen: tuple[str, ...]
) -> Iterator[str]:
    known, limits = [column.name for column in snapshot.columns], features.limits
    if "key" not in snapshot.roles:
        yield "the rows have no key column"
    if "time" not in snapshot.roles and (service or features.cutoff):
        yield f"the rows have no time column, and {'the service' if service else 'features.cutoff'} needs one"
    yield from _missing("features.request", features.request, known)
    yield from _missing("features.known_after", features.known_after, known)
    yield from _missing("features.exclude", features.exclude, known)
    joined = service.features if service else []
    yield from _missing("features.limits.max_missing", limits.max_missing, [*joined, *chosen])
    there = [*snapshot.roles.values(), *chosen, *joined]
    yield from _missing("needed later, by evaluation.slices or features.needed", features.needed, there)
    for name in dict.fromkeys(there):
        if is_reserved(name, text=snapshot.target.kind == "text"):
            yield (
                f"{name!r} is the name of a column of the predictions: rename it at its source, or leave it "
                "out with features.exclude"
            )
    label = snapshot.roles.get("label", "")
    if label in features.request:
        yield f"features.request holds the label {label!r}"
    if not service:
        yield from _unusable(snapshot, features)
        return
    names = [view.name for view in service.views]
    yield from _missing("features.limits.max_expired", limits.max_expired, names, "view")
    yield from _missing("features.limits.max_age_s", limits.max_age_s, names, "view")
    for view in service.views:
        yield from _missing(f"view {view.name!r} joins by", view.keys.values(), known)
        for column in view.keys.values():
            if column in (*features.known_after, label):
                yield f"view {view.name!r} joins by {column!r}, which is known only afterwards"
    yield from _misplaced(snapshot, service, features)


def _unusable(snapshot: Snapshot, features: Features) -> Iterator[str]:
    """Yield columns that were requested by name and that a model cannot learn from."""
    text = snapshot.target.kind == "text"
    if text and len(features.request) > 1:
        yield f"features.request holds {list(features.request)}, and a language model learns one column"
    for column in snapshot.columns:
        if column.name not in features.request or column.name in snapshot.roles.values():
            continue
        if _is_empty(snapshot, column):
            yield f"features.request: {column.name!r} has no value in any row"
        elif not (_TEXT.fullmatch(column.type) if text else column.kind):
            yield f"features.request: {column.name!r} is {column.type}, which this kind of model cannot read"


def _missing(what: str, names: Iterable[str], known: list[str], kind: str = "column") -> Iterator[str]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            yield f"{what}: no {kind} {name!r}; {advice}"


def _misplaced(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    """Yield features with forbidden names, or that would replace another column."""
    roles = {name: role for role, name in snapshot.roles.items()}
    seen: dict[str, str] = {}
    for view in service.views:
        for name in view.features:
            owner = f"feature {name!r} of view {view.name!r}"
            if name in features.known_after:
                yield f"{owner} has the name of a column that is known only afterwards"
            elif name in roles:
                yield f"{owner} has the name of the rows' {roles[name]} column"
            elif name in features.request:
                yield f"{owner} has the name of a request column"
            elif name in seen:
                yield f"{owner} has the name of a feature of view {seen[name]!r}"
            seen[name] = view.name
