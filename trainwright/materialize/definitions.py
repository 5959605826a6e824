"""Definitions into the registry in two steps: a plan that a person reviews, and an apply of just that.

No run of data applies anything: Feast has reset watermarks that way, and two writers of a registry on an
object store lose each other's changes.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.documents import Document, canonical
from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import inside, open_folder, open_settings, read_definitions
from trainwright.materialize.alone import BUCKETS, alone
from trainwright.storage import read_bytes

WAIT_S = 60
"""How long an apply waits for another one of the same registry."""

_MARKS = {"CREATE": "+", "UPDATE": "~", "DELETE": "-"}


@dataclass(frozen=True, kw_only=True)
class Change(Document):
    """What becomes of one object.

    Attributes:
        kind: ``feature view``, ``entity``, ``data source`` and so on.
        name: Its name.
        action: ``CREATE``, ``UPDATE`` or ``DELETE``.
        before: Its definition in the registry, as canonical JSON; empty if it is new.
        after: Its definition in the files; empty if it goes.
    """

    kind: str
    name: str
    action: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Plan(Document):
    """All that an apply would change. Its digest is what is approved.

    Attributes:
        project: Feast's project.
        changes: One entry an object, sorted; none if the registry has these definitions already.
    """

    FILE = "plan.json"

    project: str
    changes: tuple[Change, ...]


def make_plan(repository: str) -> Plan:
    """Compare the definitions in a repository's files with its registry. Nothing is written.

    Raises:
        InputError: There is no such repository, or its definitions cannot be read.
        DependencyError: The registry cannot be read.
    """
    folder = open_folder(repository)
    with inside(folder), _untouched(folder) as settings:
        _, _, plan = _compare(folder, settings)
    return plan


def apply_plan(repository: str, approved: Plan, *, wait_s: float = WAIT_S) -> None:
    """Write the definitions into the registry, and make the online store's tables.

    Args:
        repository: Folder with ``feature_store.yaml``.
        approved: The plan that was reviewed.
        wait_s: How long to wait for others that apply to this registry.

    Raises:
        InputError: What would change now is not what was approved.
        TransientError: Others were applying all this time.
        DependencyError: The registry or the online store failed.
    """
    from feast import repo_operations

    folder = open_folder(repository)
    settings = open_settings(folder)
    with inside(folder), alone(folder, settings, wait_s):
        store, repo, plan = _compare(folder, settings)
        if plan.digest != approved.digest:
            raise InputError(
                f"the plan is {plan.digest[:12]} now, and {approved.digest[:12]} was approved: "
                "the definitions or the registry changed since",
                where=repository,
                hint="Make a new plan and review it.",
            )
        try:
            parts: Any = repo_operations.extract_objects_for_apply_delete
            apply, delete, _, _ = parts(store.project, store.registry, repo)
            store.apply(apply, objects_to_delete=delete, partial=False)
        except Exception as error:
            what = f"Feast could not apply: {type(error).__name__}: {error}"
            hint = "Make a new plan: some of it may be done."
            raise DependencyError(what, where=repository, hint=hint) from error


def _compare(folder: Path, settings: Any) -> tuple[Any, Any, Plan]:
    """Return Feast's store, the definitions of the files, and the plan between them."""
    from feast import FeatureStore

    repo = read_definitions(folder, settings)
    try:
        store = FeatureStore(repo_path=str(folder), config=settings)
        objects, _, _ = store.plan(repo)
    except Exception as error:
        what = f"Feast could not plan: {type(error).__name__}: {error}"
        raise DependencyError(what, where=str(folder)) from error
    found = [_change(entry) for entry in objects.feast_object_diffs]
    changes = sorted((change for change in found if change), key=lambda change: (change.kind, change.name))
    return store, repo, Plan(project=store.project, changes=tuple(changes))


@contextlib.contextmanager
def _untouched(folder: Path) -> Iterator[Any]:
    """Give settings with a copy of the registry: Feast makes files for what it only looks at."""
    settings = open_settings(folder)
    store = settings.online_store
    made = folder / store.path if store is not None and store.type == "sqlite" else None
    made = None if made is not None and made.exists() else made
    registry = settings.registry
    with tempfile.TemporaryDirectory(prefix="trainwright-plan-") as scratch:
        if registry.registry_type == "file" and (own := _readable(registry.path, folder)):
            copy = Path(scratch) / "registry.db"
            with contextlib.suppress(InputError):  # none is there yet
                copy.write_bytes(read_bytes(own))
            registry.path = str(copy)
        try:
            yield settings
        finally:
            if made is not None and made.is_file() and not made.stat().st_size:
                made.unlink()


def _readable(registry: str, folder: Path) -> str:
    """Return where a registry file is, as our own storage reads it; empty if only Feast can."""
    if registry.startswith(BUCKETS):
        return registry
    return "" if "://" in registry else os.path.abspath(folder / registry)


def _change(entry: Any) -> Change | None:
    before, after = _definition(entry.current_feast_object), _definition(entry.new_feast_object)
    if before == after:
        return None
    kind = str(entry.feast_object_type.value)
    return Change(kind=kind, name=entry.name, action=_action(before, after), before=before, after=after)


def _action(before: str, after: str) -> str:
    return "UPDATE" if before and after else "CREATE" if after else "DELETE"


def _definition(thing: Any) -> str:
    """Write an object as it is defined, without when it was applied."""
    if thing is None:
        return ""
    proto = thing.to_proto()
    return _message(proto.spec if hasattr(proto, "spec") else proto)


def _message(proto: Any) -> str:
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    return canonical(_timeless(MessageToDict(proto)))


def _timeless(data: Any) -> Any:
    """Leave out when objects were made, at any depth: Feast takes that for part of a definition."""
    if isinstance(data, dict):
        return {name: _timeless(value) for name, value in data.items() if name != "meta"}
    return [_timeless(value) for value in data] if isinstance(data, list) else data


def lines_of(plan: Plan) -> list[str]:
    """Write a plan for people: one line an object, and under it the properties that change."""
    if not plan.changes:
        return [f"{plan.project}: the registry has these definitions already."]
    lines = []
    for change in plan.changes:
        lines.append(f"{_MARKS[change.action]} {change.kind} {change.name}")
        if change.action == "UPDATE":
            lines += [f"    {line}" for line in _properties(change)]
        elif change.action == "DELETE" and change.kind == "feature view":
            lines.append("    its rows in the online store are deleted")
    return lines


def _properties(change: Change) -> list[str]:
    before, after = (json.loads(text) if text else {} for text in (change.before, change.after))
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{name}: {canonical(before.get(name))} -> {canonical(after.get(name))}" for name in names]
