"""The form of every document that crosses from one step to the next: versioned JSON with an identity."""

import builtins
import dataclasses
import functools
import hashlib
import json
import secrets
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from trainwright.errors import InputError


def canonical(value: Any) -> str:
    """Write plain JSON data in its one canonical form: sorted keys, no spaces, finite numbers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_text(text: str) -> str:
    """Return the SHA-256 of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A JSON document with a version and an identity. Its subclasses are what steps exchange."""

    SCHEMA_VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "document.json"

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical form: equal digests mean equal content.

        It is taken of the document as a reader gets it, so 1 in a field of floats counts as 1.0.
        """
        read = self.from_json(json.loads(canonical(self.to_json())))
        return digest_text(canonical(read.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain JSON data, its version included."""
        return {"schema_version": self.SCHEMA_VERSION} | dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: object, where: str = "") -> Self:
        """Read plain JSON data.

        Raises:
            InputError: The version is newer than this library, or a field is unknown, missing or of the
                wrong type.
        """
        if not isinstance(data, dict):
            raise InputError(f"{cls.__name__} is not a JSON object but {type(data).__name__}", where=where)
        version = data.get("schema_version")
        if version != cls.SCHEMA_VERSION:
            raise InputError(
                f"{cls.__name__} has schema_version {version!r}; this library reads {cls.SCHEMA_VERSION}",
                where=where,
                hint="Upgrade trainwright in the environment of this step.",
            )
        body = {key: value for key, value in data.items() if key != "schema_version"}
        return typing.cast(Self, _read(cls, body, where or cls.__name__))

    def write(self, path: Path) -> Path:
        """Write the document whole, or not at all. ``path`` is a file, or a folder that gets ``FILE``."""
        if path.is_dir():
            path = path / self.FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by the process id: on a shared volume, the pods of a job have the same ones.
        attempt = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            attempt.write_text(
                json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            )
            attempt.replace(path)
        except BaseException:
            attempt.unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the document from a file, or from ``FILE`` in a folder.

        Raises:
            InputError: There is no such file, it is not JSON, or it is not this document.
        """
        if path.is_dir():
            path = path / cls.FILE
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            raise InputError(
                f"no {cls.__name__} here: the file is missing",
                where=str(path),
                hint="The step that writes it did not finish, or its output is gone: run that step again.",
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{cls.__name__} is not JSON: {error}", where=str(path)) from None
        return cls.from_json(data, where=str(path))


def _read(kind: Any, value: Any, where: str) -> Any:
    """Read plain JSON data as ``kind``, one of the types that documents are made of."""
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast(type, kind), value, where)
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case builtins.tuple:
            entries = _expect(list, value, where)
            return tuple(
                _read(arguments[0], entry, f"{where}[{index}]") for index, entry in enumerate(entries)
            )
        case builtins.dict:
            entries = _expect(dict, value, where)
            return {key: _read(arguments[1], entry, f"{where}.{key}") for key, entry in entries.items()}
    if kind is float and type(value) is int:
        return float(value)
    return value if kind is Any else _expect(kind, value, where)


def _expect(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"expected {kind.__name__}, got {value!r:.80}", where=where)
    return value


_hints = functools.cache(typing.get_type_hints)
"""An audit is thousands of documents of one kind."""


def _read_dataclass(kind: type, value: Any, where: str) -> Any:
    _expect(dict, value, where)
    hints = _hints(kind)
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    required = {
        name
        for name, entry in fields.items()
        if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    }
    if unknown := sorted(value.keys() - fields.keys()):
        raise InputError(f"unknown fields {unknown}; known are {sorted(fields)}", where=where)
    if missing := sorted(required - value.keys()):
        raise InputError(f"missing fields {missing}", where=where)
    return kind(**{name: _read(hints[name], entry, f"{where}.{name}") for name, entry in value.items()})
