"""Which columns the rows bring, which the features add, and why some may not."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import Service


@dataclass(frozen=True)
class Plan:
    """The columns of a training set.

    Attributes:
        key: Column that identifies a row.
        time: Column with the time at which its features are wanted.
        label: Column to predict; empty if the rows have none.
        carried: Columns of the rows that go into the training set, in order.
        joined: Columns that the features add, in order.
        read: Columns of the rows that are needed at all.
        left: Columns of the rows that do not go on, those that only serve as keys among them.
    """

    key: str
    time: str
    label: str
    carried: tuple[str, ...]
    joined: tuple[str, ...]
    read: tuple[str, ...]
    left: tuple[str, ...]


def plan_columns(snapshot: Snapshot, service: Service, features: Features) -> Plan:
    """Decide which columns are read, carried on and joined.

    Raises:
        InputError: A column is missing, would leak or would be there twice; all such columns are named.
    """
    if problems := list(_problems(snapshot, service, features)):
        lines = "\n".join(f"  {line}" for line in problems)
        raise InputError(
            f"these columns cannot be joined\n{lines}", where=f"feature service {service.name!r}"
        )
    roles = snapshot.roles
    identity = [roles[role] for role in ("key", "time", "label") if role in roles]
    carried = tuple(dict.fromkeys([*identity, *features.request]))
    entities = [column for view in service.views for column in view.keys.values()]
    read = tuple(dict.fromkeys([*carried, *entities]))
    return Plan(
        key=roles["key"],
        time=roles["time"],
        label=roles.get("label", ""),
        carried=carried,
        joined=tuple(service.features),
        read=read,
        left=tuple(column.name for column in snapshot.columns if column.name not in carried),
    )


def _problems(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    known = [column.name for column in snapshot.columns]
    yield from (f"the rows have no {role} column" for role in ("key", "time") if role not in snapshot.roles)
    yield from _missing("features.request", features.request, known)
    yield from _missing("features.known_after", features.known_after, known)
    names = [view.name for view in service.views]
    yield from _missing("features.limits.max_missing", features.limits.max_missing, service.features)
    yield from _unknown_views("features.limits.max_expired", features.limits.max_expired, names)
    yield from _unknown_views("features.limits.max_age_s", features.limits.max_age_s, names)
    there = [*snapshot.roles.values(), *features.request, *service.features]
    yield from _missing("needed later, by evaluation.slices or features.needed", features.needed, there)
    label = snapshot.roles.get("label", "")
    if label in features.request:
        yield f"features.request holds the label {label!r}"
    for view in service.views:
        yield from _missing(f"view {view.name!r} joins by", view.keys.values(), known)
        for column in view.keys.values():
            if column in (*features.known_after, label):
                yield f"view {view.name!r} joins by {column!r}, which is known only afterwards"
    yield from _misplaced(snapshot, service, features)


def _missing(what: str, names: Iterable[str], known: list[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            yield f"{what}: no column {name!r}; {advice}"


def _unknown_views(what: str, names: Iterable[str], known: list[str]) -> Iterator[str]:
    yield from (
        f"{what}: no view {name!r}; the service has {', '.join(known)}" for name in names if name not in known
    )


def _misplaced(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    """Features that must not be, or that would take the place of another column."""
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
