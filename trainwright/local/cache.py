"""A content-addressed cache of step results, and why a run reused or repeated a step.

kfp.local's own cache is not used: its key contains the path of an input, so a file that changes in place
gives a stale result. This key contains the content of every input, the component's source, the environment's
lock and the library's source. One rename commits an entry, and its files are read-only. Before an entry is
used, its key, paths and bytes are compared with what it states; another one is discarded with a note.
"""

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import Listing, Record, Snapshot, SourceFile
from trainwright.documents import Document, canonical, digest_file, digest_text, read_json
from trainwright.errors import InputError
from trainwright.local.run_folder import OWN, Request, require_run

FORM = 3
"""Version of the key format. Raise it when the meaning of a key or the form of an entry changes."""

HERE = "{run}"
"""Replaces the run's folder in keys and entries, so that they are equal for all runs."""

READ_ONLY = 0o444

LEFT_S = 86_400
"""Age in seconds after which the temporary folders of a killed run are removed."""


class Digests:
    """Digests of files; each file is read again only if it changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def file(self, path: Path) -> str:
        """Return the SHA-256 of a file's bytes."""
        state = path.stat()
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._known:
            self._known[key] = digest_file(path)
        return self._known[key]

    def artifact(self, path: Path) -> str:
        """Return the SHA-256 of an artifact's content: a file, or all files of a folder with their names.

        The digest leaves out the record, which contains times, and the listing of a source, which contains
        locations. A snapshot's manifest counts by its data version, which covers every file by its checksum;
        the snapshot's own files count by their bytes and their position in the manifest, not by name.
        """
        if path.is_file():
            return self.file(path)
        if not path.is_dir():
            raise FileNotFoundError(path)
        files = {str(entry.relative_to(path)): entry for entry in path.rglob("*") if entry.is_file()}
        if Record.FILE in files:
            with contextlib.suppress(InputError):
                Record.read(files[Record.FILE])
                del files[Record.FILE]
        rows: list[list[str]] = []
        if snapshot := _snapshot_in(path):
            del files[Snapshot.FILE]
            files.pop(Listing.FILE, None)
            rows.append(["snapshot", snapshot.digest])
            for number, shard in enumerate(snapshot.files):
                if own := files.pop(shard.uri, None):
                    rows.append(["shard", f"{number:06d}", self.file(own)])
        rows += [["file", name, self.file(entry)] for name, entry in files.items()]
        return digest_text(canonical(sorted(rows)))


def _snapshot_in(folder: Path) -> Snapshot | None:
    """Return the snapshot whose manifest is directly in a folder, or None."""
    with contextlib.suppress(InputError):
        return Snapshot.read(folder)
    return None


def _gone_from(folder: Path) -> str:
    """Return the first local file of a snapshot below ``folder`` that is missing or resized, else ''.

    A snapshot may refer to files outside its folder. Only sizes are compared here, since every reader
    compares checksums. Object stores are not queried.
    """
    for manifest in folder.rglob(Snapshot.FILE):
        snapshot = _snapshot_in(manifest.parent)
        for entry in snapshot.files if snapshot else ():
            path = Path(entry.uri)
            if path.is_absolute() and not (path.is_file() and path.stat().st_size == entry.size):
                return entry.uri
    return ""


class Broken(Exception):
    """An entry of the cache is corrupt; the message says why."""


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of an entry; ``path`` is relative to the step's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Entry(Document):
    """The manifest of a cached result. It is written last: a folder without it is not an entry.

    Attributes:
        key: The key it is stored under.
        step: Name of the step.
        made: Run that stored it.
        files: Every file of the step's folder.
        folders: Empty folders.
        output: The executor output that kfp reads, with ``{run}`` for the run's folder.
    """

    FILE: ClassVar[str] = "entry.json"
    key: str
    step: str
    made: str
    files: tuple[StoredFile, ...]
    folders: tuple[str, ...]
    output: dict[str, Any]


def _contained(name: str) -> str:
    """Return a path of an entry; reject one that could lead out of the folder it is joined to."""
    if name in {"", "."} or name.startswith("/") or ".." in name.split("/") or str(Path(name)) != name:
        raise Broken(f"its path {name!r:.200} leads out of it")
    return name


def _file_in(place: Path, name: str) -> Path:
    """Return a regular file of an entry whose real path is ``place``; reject links, pipes and devices."""
    path = place / name
    if os.path.realpath(path) != str(path) or not path.is_file():
        raise Broken(f"{name} is missing, a link or no file")
    return path


def key_of(made_from: Mapping[str, Any]) -> str:
    """Return the cache key: the SHA-256 of everything that decides the result."""
    return digest_text(canonical({"form": FORM, "of": made_from}))


def moved(value: Any, here: str, there: str) -> Any:
    """Replace one path by another in every string of JSON data."""
    if isinstance(value, Mapping):
        return {key: moved(entry, here, there) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [moved(entry, here, there) for entry in value]
    return value.replace(here, there) if isinstance(value, str) else value


class Cache:
    """A folder of results that several runs may share, and that may be deleted at any time."""

    def __init__(self, root: Path, digests: Digests, *, link: bool | None = None) -> None:
        self._root = root
        self._digests = digests
        self._link = os.geteuid() != 0 if link is None else link
        for left in (*root.glob("attempt-*"), *root.glob("gone-*")):
            with contextlib.suppress(OSError):  # of a run that was killed, unless another removes it too
                if time.time() - left.stat().st_mtime > LEFT_S:
                    shutil.rmtree(left, ignore_errors=True)

    def restore(self, key: str, folder: Path, run: Path) -> dict[str, Any] | None:
        """Copy the result of a key into a step's folder, which must not exist.

        Returns:
            The executor output with the paths of this run; None if there is no entry.

        Raises:
            Broken: The entry was corrupt and has been removed.
        """
        place = self._place(key)
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not os.path.lexists(place):
                raise
            self._remove(place)
            what = f"cache entry {key[:12]} was removed: {error.strerror}"
            raise Broken(what) from None
        attempt = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
        try:
            entry = self._copy(key, attempt)
            attempt.replace(folder)
        except (OSError, Broken, InputError, ValueError) as error:
            shutil.rmtree(attempt, ignore_errors=True)
            # Another run may just have replaced the entry: its inode is not reused while this one is open.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), place.stat()):
                    self._remove(place)
                    what = f"cache entry {key[:12]} is not whole and was removed: {error}"
                    raise Broken(what) from None
            return self.restore(key, folder, run)
        finally:
            os.close(descriptor)
        result: dict[str, Any] = moved(entry.output, HERE, str(run))
        return result

    def _copy(self, key: str, target: Path) -> Entry:
        """Copy the files of an entry, and check each."""
        place = Path(os.path.realpath(self._root)) / key[:2] / key
        body = read_json(_file_in(place, Entry.FILE))
        if not isinstance(body, dict) or body.keys() != {"sha256", "entry"}:
            raise Broken("its manifest is none")
        entry = Entry.from_json(body["entry"], where=str(place))
        if entry.digest != body["sha256"]:
            raise Broken("its manifest was changed")
        if entry.key != key:
            raise Broken(f"it was stored under the key {entry.key[:12]!r}")
        target.mkdir(parents=True)
        for name in entry.folders:
            (target / _contained(name)).mkdir(parents=True)
        for file in entry.files:
            source = _file_in(place, f"files/{_contained(file.path)}")
            if source.stat().st_size != file.size:
                raise Broken(f"{file.path} was changed")
            self._share(source, target / file.path)
            if self._digests.file(target / file.path) != file.sha256:
                raise Broken(f"{file.path} was changed")
        if gone := _gone_from(target):
            raise Broken(f"{gone}, a file of its snapshot, is missing or has changed")
        return entry

    def store(self, key: str, folder: Path, run: Path, output: Mapping[str, Any]) -> None:
        """Store a step's folder as the result of a key, replacing an existing entry."""
        attempt = self._root / f"attempt-{uuid.uuid4().hex}"
        try:
            (attempt / "files").mkdir(parents=True)
            entry = Entry(
                key=key,
                step=folder.name,
                made=run.name,
                files=tuple(self._store_files(folder, attempt / "files")),
                folders=tuple(
                    str(path.relative_to(folder))
                    for path in folder.rglob("*")
                    if path.is_dir() and not any(path.iterdir())
                ),
                output=moved(output, str(run), HERE),
            )
            body = {"sha256": entry.digest, "entry": entry.to_json()}
            (attempt / Entry.FILE).write_text(json.dumps(body, indent=1))
            place = self._place(key)
            place.parent.mkdir(exist_ok=True)
            self._remove(place)
            attempt.rename(place)
        except OSError as error:
            shutil.rmtree(attempt, ignore_errors=True)
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:  # else another run was faster
                raise

    def _place(self, key: str) -> Path:
        return self._root / key[:2] / key

    def _store_files(self, folder: Path, target: Path) -> Iterator[StoredFile]:
        """Share every file of a step's folder with an entry, and make it read-only."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = str(path.relative_to(folder))
                self._share(path, target / name)
                (target / name).chmod(READ_ONLY)
                yield StoredFile(path=name, size=path.stat().st_size, sha256=self._digests.file(path))

    def _share(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link and not source.is_symlink():
            with contextlib.suppress(OSError):  # another disk, or too many links
                os.link(source, target)
                return
        shutil.copyfile(source, target)

    def _remove(self, place: Path) -> None:
        """Remove an entry by one rename, so that no reader finds half of it."""
        gone = self._root / f"gone-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            place.rename(gone)
            if gone.is_dir() and not gone.is_symlink():
                shutil.rmtree(gone, ignore_errors=True)
            else:
                gone.unlink()


SHOWN = 40
"""Longest value in characters that is printed in full."""

FILES_SHOWN = 20
"""Files that are listed; the rest is counted."""

DIGITS = 12
"""Digits of a digest that are printed."""

NAMES = {
    "library": "code of trainwright",
    "container": "code of the component",
    "outputs": "outputs of the component",
    "locks": "lock of",
    "parameters": "parameter",
    "artifacts": "content of",
}
"""Names of the parts of a cache key."""

REASONS = {
    "reused": "reused",
    "no result": "done",
    "asked": "done again, because --from or --no-cache asked for it",
    "broken": "done again, because its kept result, or a shard that it names, was gone or damaged",
    "never cached": "done: it looks outside, and is never reused by another run",
}


@dataclass(frozen=True, kw_only=True)
class MadeFrom(Document):
    """The inputs of a step's cache key, stored in the run's folder.

    Attributes:
        step: Name of the step's call.
        key: The cache key.
        reason: Why the result was reused or computed: a key of :data:`REASONS`.
        made_from: The data of which the key is the digest, with ``{run}`` for the run's folder.
    """

    FILE: ClassVar[str] = "made_from.json"
    step: str
    key: str
    reason: str
    made_from: dict[str, Any]

    def __post_init__(self) -> None:
        """Reject what no run writes: the folder of runs may be shared."""
        parts = (self.made_from.get(part, {}) for part in ("locks", "parameters", "artifacts"))
        if self.reason not in REASONS or not all(isinstance(part, dict) for part in parts):
            raise InputError(f"no run writes the inputs of {self.step!r:.80} so", where=self.FILE)

    def keep(self, folder: Path) -> None:
        """Write it into a run's folder."""
        self.write(folder / OWN / "made_from" / f"{self.step}.json")


def lines(runs: Path, run_id: str, step: str) -> Iterator[str]:
    """Explain one step of one run.

    Raises:
        InputError: The run does not exist, or has not reached the step.
    """
    own = _read(runs, run_id, step)
    earlier = list(_earlier(runs, run_id, step))
    same = next((name for name, other in earlier if other.key == own.key), "")
    if own.reason == "reused":
        yield f"{step} in run {run_id}: reused; nothing it is made from has changed" + (
            f" since run {same}" if same else ""
        )
        return
    if own.reason == "no result" and same:
        yield f"{step} in run {run_id}: done again; run {same} made it from the same, but its result is gone"
        return
    yield f"{step} in run {run_id}: {REASONS[own.reason]}"
    if not earlier:
        yield "  no earlier run here has done it"
        return
    name, before = earlier[0]
    changes = list(differences(before.made_from, own.made_from))
    yield f"  since run {name} {'nothing has' if not changes else 'these have'} changed"
    width = max((len(what) for what, _, _ in changes), default=0)
    yield from (f"    {what:<{width}}  {old}  to  {new}" for what, old, new in changes)
    yield from _files(before, runs / name, own, runs / run_id)


def _files(before: MadeFrom, before_in: Path, own: MadeFrom, own_in: Path) -> Iterator[str]:
    """Yield, for each parameter that is the content digest of a source, which of its files changed."""
    known: dict[str, Listing] = {}
    for path in sorted([*before_in.glob(f"*/*/{Listing.FILE}"), *own_in.glob(f"*/*/{Listing.FILE}")]):
        with contextlib.suppress(InputError):
            listing = Listing.read(path)
            known.setdefault(listing.content_digest, listing)
    old, new = (each.made_from.get("parameters", {}) for each in (before, own))
    for parameter in sorted(new):
        first, second = str(old.get(parameter, "")), str(new[parameter])
        if first and first != second and second in known:
            yield f"  files behind {parameter}"
            if first in known:
                yield from (f"    {line}" for line in listing_changes(known[first], known[second]))
            else:
                yield f"    the listing of run {before_in.name} is gone, so they cannot be compared"


def _read(runs: Path, run_id: str, step: str) -> MadeFrom:
    folder = require_run(runs, run_id)
    made_from = folder / OWN / "made_from"
    reached = sorted(path.stem for path in made_from.glob("*.json"))
    if step not in reached:
        raise InputError(
            f"run {run_id} has not reached a step {step!r} that could be reused",
            where=str(folder),
            hint=f"It has reached {', '.join(reached) or 'none'}.",
        )
    return MadeFrom.read(made_from / f"{step}.json")


def _earlier(runs: Path, run_id: str, step: str) -> Iterator[tuple[str, MadeFrom]]:
    """Yield the inputs of the same step in earlier runs of the pipeline, latest first."""
    pipeline = Request.read(runs / run_id).pipeline
    for request in sorted(runs.glob(f"*/{Request.FILE}"), reverse=True):
        name = request.parent.name
        path = request.parent / OWN / "made_from" / f"{step}.json"
        with contextlib.suppress(InputError):  # of another version, or damaged
            if name < run_id and path.is_file() and Request.read(request).pipeline == pipeline:
                yield name, MadeFrom.read(path)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, old value and new value of each input that differs, shortened to fit on a line."""
    for part in sorted(before.keys() | after.keys()):
        old, new, label = before.get(part), after.get(part), NAMES.get(part, part)
        if part not in {"locks", "parameters", "artifacts"}:
            if old != new:
                yield label, _shown(old), _shown(new)
            continue
        for name in sorted((old or {}).keys() | (new or {}).keys()):
            yield from _values(f"{label} {name}", (old or {}).get(name), (new or {}).get(name))


def _values(name: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Compare two values, key by key where both are JSON objects."""
    if old == new:
        return
    first, second = _object(old), _object(new)
    if first is None or second is None:
        yield name, _shown(old), _shown(new)
        return
    for key in sorted(first.keys() | second.keys()):
        yield from _values(f"{name}.{key}", first.get(key), second.get(key))


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):
            value = read_json(value)
    return value if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0][-1]  # an artifact: its type, its metadata, the digest of its content
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else canonical(value)
    if len(text) == 64 and not text.strip("0123456789abcdef"):  # noqa: PLR2004 - a SHA-256
        return f"{text[:DIGITS]}…"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def listing_changes(before: Listing, after: Listing) -> Iterator[str]:
    """Yield one line per changed, renamed, added or removed file, and the number of unchanged ones.

    A removed file and a new one with the same size and checksum are one renamed file.
    """
    old, new = dict(before.by_name), dict(after.by_name)
    both = sorted(old.keys() & new.keys())
    changed = [name for name in both if _content(old[name]) != _content(new[name])]
    found = [f"changed  {name}  {_what(old[name])}  to  {_what(new[name])}" for name in changed]
    gone = {name: old[name] for name in sorted(old.keys() - new.keys())}
    for name in sorted(new.keys() - old.keys()):
        same = next((other for other, file in gone.items() if _content(file) == _content(new[name])), None)
        if same is None:
            found.append(f"added    {name}  {_what(new[name])}")
        else:
            del gone[same]
            found.append(f"renamed  {same}  to  {name}  {_what(new[name])}")
    found += [f"removed  {name}  {_what(file)}" for name, file in gone.items()]
    yield from found[:FILES_SHOWN]
    if len(found) > FILES_SHOWN:
        yield f"and {len(found) - FILES_SHOWN:,} more"
    yield f"the same are {len(both) - len(changed):,} of {len(new):,} files"


def _content(file: SourceFile) -> tuple[int, str]:
    return file.size, file.checksum


def _what(file: SourceFile) -> str:
    kind, _, digits = file.checksum.partition(":")
    shown = f"{digits[:DIGITS]}…" if len(digits) > DIGITS else digits
    return f"{file.size:,} bytes, {kind} {shown}"
