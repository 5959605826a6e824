"""Compare the interfaces of components and pipelines between versions.

``compiled/index.json`` holds the interfaces of a version with the SHA-256 of each compiled YAML. The
differences of two indexes determine which part of the version must rise by semantic versioning (semver.org,
2.0.0). ``compiled/released/`` keeps the index of each released version, such as ``0.1.0.json``; ``make
release`` adds it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from trainwright.errors import InputError

FILE, RELEASED = "index.json", "released"
KINDS = ("components", "pipelines")
LEVELS = ("none", "patch", "minor", "major")
Level = Literal["none", "patch", "minor", "major"]
Interface = Mapping[str, Any]
PARTS = 3


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference: its level, subject and description."""

    level: Level
    name: str
    what: str


def digest(text: str) -> str:
    """Return the SHA-256 of compiled YAML, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def of(text: str) -> dict[str, Any]:
    """Return the interface of compiled YAML: inputs and outputs with type and default."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root = next(yaml.load_all(text, loader))["root"]
    return {
        "inputs": dict(_ports(root.get("inputDefinitions", {}))),
        "outputs": dict(_ports(root.get("outputDefinitions", {}))),
    }


def _ports(definitions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in sorted(definitions.get("parameters", {}).items()):
        port = {"type": entry["parameterType"], "required": not entry.get("isOptional", False)}
        yield name, port | ({"default": entry["defaultValue"]} if "defaultValue" in entry else {})
    for name, entry in sorted(definitions.get("artifacts", {}).items()):
        kind = entry.get("artifactType", {})
        listed = "list of " if entry.get("isArtifactList") else ""
        title = kind.get("schemaTitle") or kind.get("instanceSchema", "artifact")
        yield name, {"type": f"{listed}{title}", "required": not entry.get("isOptional", False)}


def index(version: str, texts: Mapping[str, str], about: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the index of compiled YAML.

    Args:
        version: Version of the library.
        texts: The YAML by path, such as ``components/ingest.yaml``.
        about: Further facts about a component, by name.
    """
    content: dict[str, Any] = {"schema_version": 1, "version": version} | {kind: {} for kind in KINDS}
    for place, text in sorted(texts.items()):
        kind, name = Path(place).parent.name, Path(place).stem
        more = about.get(name, {}) if kind == KINDS[0] else {}
        content[kind][name] = {"sha256": digest(text), **more, **of(text)}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def read(path: Path) -> dict[str, Any]:
    """Read an index from a file or folder; without an index, read every YAML in the folder.

    Raises:
        InputError: There is none, or it is not such an index.
    """
    file = path / FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        texts = {str(found.relative_to(path)): found.read_text() for found in path.glob("*/*.yaml")}
        if texts:
            return dict(json.loads(index("", texts, {})))
    try:
        content = json.loads(file.read_text())
        ours = content["schema_version"] == 1 and all(isinstance(content[kind], dict) for kind in KINDS)
    except OSError as error:
        raise InputError(f"there is no index: {error.strerror}", where=str(file)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not an index of compiled YAML: {error!r}", where=str(file)) from None
    if not ours:
        raise InputError("not an index of compiled YAML that this version reads", where=str(file))
    return dict(content)


def released(folder: Path) -> Path | None:
    """Return the index of the last released version; None before the first.

    Raises:
        InputError: A file is not named after its version.
    """
    kept = {_parts(path.stem): path for path in (folder / RELEASED).glob("*.json")}
    for path in kept.values():
        if (version := read(path)["version"]) != path.stem:
            raise InputError(f"this is the index of version {version!r}", where=str(path))
    return kept[max(kept)] if kept else None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return every difference between two indexes, breaking ones first."""
    found = [change for kind in KINDS for change in _of_kind(old[kind], new[kind], kind.removesuffix("s"))]
    return sorted(found, key=lambda change: (-LEVELS.index(change.level), change.name, change.what))


def _of_kind(old: Interface, new: Interface, kind: str) -> Iterator[Change]:
    for name in sorted(old.keys() - new.keys()):
        yield Change(level="major", name=name, what=f"the {kind} is gone")
    for name in sorted(new.keys() - old.keys()):
        yield Change(level="minor", name=name, what=f"the {kind} is new")
    for name in sorted(old.keys() & new.keys()):
        found = [*_inputs(old[name], new[name], name), *_outputs(old[name], new[name], name)]
        if not found and old[name]["sha256"] != new[name]["sha256"]:
            found = [Change(level="patch", name=name, what="other content behind the same interface")]
        yield from found


def _inputs(old: Interface, new: Interface, name: str) -> Iterator[Change]:
    before, after = old["inputs"], new["inputs"]
    for port in sorted(before.keys() - after.keys()):
        yield Change(level="major", name=name, what=f"input {port} is gone")
    for port in sorted(after.keys() - before.keys()):
        needed = after[port]["required"]
        what = f"input {port} is new" + (", and must be given" if needed else "")
        yield Change(level="major" if needed else "minor", name=name, what=what)
    for port in sorted(before.keys() & after.keys()):
        was, now = before[port], after[port]
        if was["type"] != now["type"]:
            what = f"input {port} is {now['type']}, it was {was['type']}"
            yield Change(level="major", name=name, what=what)
        if now["required"] and not was["required"]:
            yield Change(level="major", name=name, what=f"input {port} must be given now")
        elif was["required"] and not now["required"]:
            yield Change(level="minor", name=name, what=f"input {port} may be left out now")
        elif was.get("default") != now.get("default"):
            what = f"input {port} defaults to {now.get('default')!r}, it was {was.get('default')!r}"
            yield Change(level="minor", name=name, what=what)


def _outputs(old: Interface, new: Interface, name: str) -> Iterator[Change]:
    before, after = old["outputs"], new["outputs"]
    for port in sorted(before.keys() - after.keys()):
        yield Change(level="major", name=name, what=f"output {port} is gone")
    for port in sorted(after.keys() - before.keys()):
        yield Change(level="minor", name=name, what=f"output {port} is new")
    for port in sorted(before.keys() & after.keys()):
        if before[port]["type"] != after[port]["type"]:
            what = f"output {port} is {after[port]['type']}, it was {before[port]['type']}"
            yield Change(level="major", name=name, what=what)


def level(found: list[Change]) -> Level:
    """Return the highest level among changes."""
    return max((change.level for change in found), key=LEVELS.index, default="none")


def smallest(version: str, needed: Level) -> str:
    """Return the smallest next version for changes of a level.

    Before 1.0.0, a breaking change raises the second part, any other the third.

    Raises:
        InputError: The version is not three numbers.
    """
    parts = _parts(version)
    if needed == "none":
        return version
    step = PARTS - LEVELS.index(needed)
    if parts[0] == 0:
        step = 1 if needed == "major" else PARTS - 1
    raised = [*parts[:step], parts[step] + 1, *([0] * (PARTS - 1 - step))]
    return ".".join(map(str, raised))


def require_version(old: Mapping[str, Any], new: Mapping[str, Any], found: list[Change]) -> None:
    """Reject a version that has risen too little for its changes.

    Raises:
        InputError: It has.
    """
    if not (old["version"] and new["version"]):
        return
    least = smallest(old["version"], level(found))
    if _parts(new["version"]) < _parts(least):
        raise InputError(
            f"version {new['version']} has {level(found)} changes since {old['version']}: it must be {least} "
            "at least",
            where="trainwright/__init__.py",
            hint="Raise __version__, run make compile, and say in CHANGELOG.md what breaks.",
        )


def _parts(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if len(parts) != PARTS or not all(part.isdigit() for part in parts):
        raise InputError(f"{version!r} is no version of three numbers", where="version")
    return tuple(map(int, parts))
