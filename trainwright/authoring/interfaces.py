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

from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.yaml_reader import read_yaml_documents

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


def _ports(definitions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name, type and default of inputs or outputs."""
    for name, entry in sorted(definitions.get("parameters", {}).items()):
        port = {"type": entry["parameterType"], "required": not entry.get("isOptional", False)}
        yield name, port | ({"default": entry["defaultValue"]} if "defaultValue" in entry else {})
    for name, entry in sorted(definitions.get("artifacts", {}).items()):
        kind = entry.get("artifactType", {})
        listed = "list of " if entry.get("isArtifactList") else ""
        title = kind.get("schemaTitle") or kind.get("instanceSchema", "artifact")
        yield name, {"type": f"{listed}{title}", "required": not entry.get("isOptional", False)}


def index(version: str, texts: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the index of compiled YAML."""
    content: dict[str, Any] = {"schema_version": 1, "version": version} | {kind: {} for kind in KINDS}
    for place, text in sorted(texts.items()):
        kind, name = Path(place).parent.name, Path(place).stem
        root = read_yaml_documents(text, where=place)[0]["root"]
        content[kind][name] = {
            "sha256": digest(text),
            **(facts.get(name, {}) if kind == KINDS[0] else {}),
            "inputs": dict(_ports(root.get("inputDefinitions", {}))),
            "outputs": dict(_ports(root.get("outputDefinitions", {}))),
        }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def read(path: Path) -> dict[str, Any]:
    """Read an index from a file or folder; without an index, read every YAML in the folder."""
    file = path / FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        texts = {str(found.relative_to(path)): found.read_text() for found in path.glob("*/*.yaml")}
        if texts:
            return dict(read_json(index("", texts, {})))
    try:
        content = read_json(file)
        ours = content["schema_version"] == 1 and all(isinstance(content[kind], dict) for kind in KINDS)
    except OSError as error:
        raise InputError(f"there is no index: {error.strerror}", where=str(file)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not an index of compiled YAML: {error!r}", where=str(file)) from None
    if not ours:
        raise InputError("not an index of compiled YAML that this version reads", where=str(file))
    return dict(content)


def released(folder: Path) -> Path | None:
    """Return the index of the last released version; None before the first."""
    found = {_parts(path.stem): path for path in (folder / RELEASED).glob("*.json")}
    for path in found.values():
        if (version := read(path)["version"]) != path.stem:
            raise InputError(f"this is the index of version {version!r}", where=str(path))
    return found[max(found)] if found else None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return every difference between two indexes, breaking ones first."""
    found: list[Change] = []
    for kind in KINDS:
        before, after, thing = old[kind], new[kind], kind.removesuffix("s")
        for name in sorted(before.keys() | after.keys()):
            found += [
                Change(level=level, name=name, what=what)
                for level, what in _changes_of(before.get(name), after.get(name), thing)
            ]
    return sorted(found, key=lambda change: (-LEVELS.index(change.level), change.name, change.what))


def _changes_of(old: Interface | None, new: Interface | None, kind: str) -> list[tuple[Level, str]]:
    """Return the differences of one component or pipeline; None where it does not exist."""
    if old is None or new is None:
        return [("minor", f"the {kind} is new")] if old is None else [("major", f"the {kind} is gone")]
    found: list[tuple[Level, str]] = []
    for side in ("input", "output"):
        before, after = old[f"{side}s"], new[f"{side}s"]
        for port in sorted(before.keys() | after.keys()):
            found += _changes_of_port(f"{side} {port}", before.get(port), after.get(port))
    if not found and old["sha256"] != new["sha256"]:
        return [("patch", "other content behind the same interface")]
    return found


def _changes_of_port(port: str, was: Interface | None, now: Interface | None) -> Iterator[tuple[Level, str]]:
    """Yield the differences of an input or output; None where it does not exist."""
    if now is None:
        yield "major", f"{port} is gone"
    elif was is None:
        needed = port.startswith("input") and now["required"]
        yield ("major", f"{port} is new, and must be given") if needed else ("minor", f"{port} is new")
    else:
        if was["type"] != now["type"]:
            yield "major", f"{port} is {now['type']}, it was {was['type']}"
        if port.startswith("output"):
            return
        if now["required"] and not was["required"]:
            yield "major", f"{port} must be given now"
        elif was["required"] and not now["required"]:
            yield "minor", f"{port} may be left out now"
        elif was.get("default") != now.get("default"):
            yield "minor", f"{port} defaults to {now.get('default')!r}, it was {was.get('default')!r}"


def level(found: list[Change]) -> Level:
    """Return the highest level among changes."""
    return max((change.level for change in found), key=LEVELS.index, default="none")


def smallest(version: str, needed: Level) -> str:
    """Return the smallest next version for changes of a level.

    Before 1.0.0, a breaking change raises the second part, any other the third.
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
    """Reject a version that has risen too little for its changes."""
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
