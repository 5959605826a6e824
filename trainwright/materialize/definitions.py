"""Application of definitions to the registry, in two steps: a plan that a person reviews, and its apply.

A run of data never applies anything: Feast has reset watermarks that way, and two writers of a registry on an
object store lose each other's changes.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.documents import Document, canonical, read_json
from trainwright.errors import DependencyError, InputError, TransientError
from trainwright.featurestore import SETTINGS, inside, open_folder, open_settings, read_definitions
from trainwright.retries import GaveUp, retry
from trainwright.storage import read_bytes
from trainwright.storage.lease import hold_lease

WAIT_S = 60
"""How long an apply waits for another one of the same registry."""

_BUCKETS = ("gs://", "s3://")
"""Registry files that our own storage reads and leases; others are Feast's alone."""

_LEASE_S = 60

_MARKS = {"CREATE": "+", "UPDATE": "~", "DELETE": "-"}


@dataclass(frozen=True, kw_only=True)
class DefinitionChange(Document):
    """Change of one object in the registry: CREATE, UPDATE or DELETE.

    The definitions before (in the registry) and after (in the files) are canonical JSON; empty without one.
    """

    kind: str
    name: str
    action: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class ApplyPlan(Document):
    """All changes of an apply, sorted. A person approves its digest."""

    FILE = "plan.json"

    project: str
    changes: tuple[DefinitionChange, ...]


def make_plan(repository: str) -> ApplyPlan:
    """Compare the definitions in a repository's files with its registry, without writing anything."""
    folder = open_folder(repository)
    with inside(folder), _untouched(folder) as settings:
        _, _, plan = _compare(folder, settings)
    return plan


def apply_plan(repository: str, approved: ApplyPlan, *, wait_s: float = WAIT_S) -> None:
    """Write the definitions into the registry, and make the online store's tables."""
    folder = open_folder(repository)
    settings = open_settings(folder)
    from feast import repo_operations

    with inside(folder), _lock_registry(folder, settings, wait_s):
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


def _compare(folder: Path, settings: Any) -> tuple[Any, Any, ApplyPlan]:
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
    return store, repo, ApplyPlan(project=store.project, changes=tuple(changes))


@contextlib.contextmanager
def _lock_registry(folder: Path, settings: Any, wait_s: float) -> Iterator[None]:
    """Be the only one who applies to a registry: Feast reads it, changes it and writes it back.

    On one machine a lock on the repository's settings does it, and leaves no file behind. A registry in a
    bucket has a lease beside it as well, because other machines may write it. A SQL registry changes by the
    row, so the lock is enough.
    """
    with (folder / SETTINGS).open() as file:
        try:
            retry(
                lambda: fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB),
                lambda error: isinstance(error, BlockingIOError),
                f"locking {folder}",
                wait_s,
            )
        except GaveUp:
            raise TransientError(
                f"another apply held the lock for the {wait_s:.0f} s of waiting",
                where=str(folder),
                hint="Run it again when the other has ended; if it changed anything, make a new plan.",
            ) from None
        except OSError:
            pass  # a file system without locks, or without locks on files that are opened for reading
        registry = settings.registry
        if registry.registry_type == "file" and registry.path.startswith(_BUCKETS):
            with hold_lease(f"{registry.path}.lease", lease_s=_LEASE_S, wait_s=wait_s):
                yield
        else:
            yield


@contextlib.contextmanager
def _untouched(folder: Path) -> Iterator[Any]:
    """Yield settings with a copy of the registry: Feast creates files for what it only reads."""
    settings = open_settings(folder)
    store, registry = settings.online_store, settings.registry
    made = folder / store.path if store is not None and store.type == "sqlite" else None
    made = None if made is not None and made.exists() else made
    with tempfile.TemporaryDirectory(prefix="trainwright-plan-") as scratch:
        in_bucket = registry.path.startswith(_BUCKETS)
        # A file that our own storage can read; others are Feast's alone.
        if registry.registry_type == "file" and (in_bucket or "://" not in registry.path):
            copy = Path(scratch) / "registry.db"
            with contextlib.suppress(InputError):  # there is none yet
                path = registry.path if in_bucket else os.path.abspath(folder / registry.path)
                copy.write_bytes(read_bytes(path))
            registry.path = str(copy)
        try:
            yield settings
        finally:
            if made is not None and made.is_file() and not made.stat().st_size:
                made.unlink()


def _change(entry: Any) -> DefinitionChange | None:
    before, after = _definition(entry.current_feast_object), _definition(entry.new_feast_object)
    if before == after:
        return None
    kind = str(entry.feast_object_type.value)
    action = "UPDATE" if before and after else "CREATE" if after else "DELETE"
    return DefinitionChange(kind=kind, name=entry.name, action=action, before=before, after=after)


def _definition(thing: Any) -> str:
    """Return an object's definition as canonical JSON, without when it was applied."""
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    if thing is None:
        return ""
    proto = thing.to_proto()
    return canonical(_timeless(MessageToDict(proto.spec if hasattr(proto, "spec") else proto)))


def _timeless(data: Any) -> Any:
    """Leave out creation times, at any depth: Feast takes them for part of a definition."""
    if isinstance(data, dict):
        return {name: _timeless(value) for name, value in data.items() if name != "meta"}
    return [_timeless(value) for value in data] if isinstance(data, list) else data


def format_plan(plan: ApplyPlan) -> list[str]:
    """Return a plan as lines: one an object, and under it the properties that change."""
    if not plan.changes:
        return [f"{plan.project}: the registry has these definitions already."]
    lines = []
    for change in plan.changes:
        lines.append(f"{_MARKS[change.action]} {change.kind} {change.name}")
        if change.action == "UPDATE":
            before, after = read_json(change.before), read_json(change.after)
            for name in sorted(before.keys() | after.keys()):
                if before.get(name) != after.get(name):
                    old, new = canonical(before.get(name)), canonical(after.get(name))
                    lines.append(f"    {name}: {old} -> {new}")
        elif change.action == "DELETE" and change.kind == "feature view":
            lines.append("    its rows in the online store are deleted")
    return lines
