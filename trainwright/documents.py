"""Versioned JSON documents that steps exchange, and the one reader of JSON from outside this process."""

import functools
import hashlib
import json
import math
import re
import secrets
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from trainwright.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_BYTES = 256 * 1024 * 1024
"""Largest JSON that is read unless the caller sets another limit; a snapshot of a million files fits."""

MAX_DEPTH = 160
"""Deepest nesting that is read; the parser of pydantic stops at 200."""

_SHOWN = 5
_LONG_NUMBER = re.compile(r"\d{300}")


class InvalidJson(InputError, ValueError):
    """The text is not JSON that this library reads; also a ``ValueError``, as of :mod:`json`."""


def read_json(
    source: Path | str | bytes, *, where: str = "", max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """Read JSON that may come from outside, within limits: a file, or the JSON itself as text or as UTF-8.

    ``where`` names the source in errors; by default it is the file. The size of a text counts in characters.

    Raises:
        InvalidJson: The source is larger or deeper than allowed, is not JSON, has NaN, a number beyond a
            double, a key twice in one object, or half of a surrogate pair.
        OSError: The file cannot be read.
    """
    if isinstance(source, Path):
        where = where or str(source)
        with source.open("rb") as stream:
            content: str | bytes = stream.read(max_bytes + 1)
    else:
        content = source
    if len(content) > max_bytes:
        raise InvalidJson(f"the JSON has more than the {max_bytes:,} bytes allowed", where=where)
    try:
        text = content if isinstance(content, str) else content.decode()
        # As an integer it would be read, and fail where it meets a float.
        parse_int = _parse_integer if _LONG_NUMBER.search(text) else None
        data = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_reject_constant, parse_int=parse_int
        )
        if text.count("[") + text.count("{") > max_depth:
            _check_depth(data, max_depth)
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # fails for 1e999 and "\\ud800"
    except (ValueError, RecursionError) as error:
        problem = f"nested deeper than {max_depth}" if isinstance(error, RecursionError) else str(error)
        raise InvalidJson(f"not JSON: {problem}", where=where) from None
    return data


def _parse_integer(digits: str) -> int:
    if math.isinf(float(digits)):
        raise ValueError(f"a number of {len(digits):,} digits: {digits:.20}…")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A person reads the first of two values, a program the last: a reviewed file would not say what it does.
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(data: Any, limit: int) -> None:
    level = [data]
    for _ in range(limit):
        parts = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [value for part in parts for value in part if isinstance(value, dict | list)]
        if not level:
            return
    raise RecursionError


def canonical(value: Any) -> str:
    """Write plain JSON data in its one canonical form: sorted keys, no spaces, finite numbers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data as one level of dotted keys."""
    found: dict[str, Any] = {}
    for key, entry in value.items():
        name = f"{prefix}{key}"
        found |= flatten(entry, f"{name}.") if isinstance(entry, Mapping) else {name: entry}
    return found


def digest_text(text: str) -> str:
    """Return the SHA-256 of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A JSON document with a version and an identity. Its subclasses are what steps exchange.

    A subclass is a frozen dataclass; pydantic validates what is read: strictly, unknown fields rejected.
    """

    SCHEMA_VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "document.json"
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
    }

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical form: equal digests mean equal content.

        It is computed from the document as a reader gets it, so 1 in a field of floats counts as 1.0.
        """
        return digest_text(canonical(self.from_json(self.to_json()).to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain JSON data, its version included."""
        return {"schema_version": self.SCHEMA_VERSION} | asdict(self)

    @classmethod
    def from_json(cls, data: object, where: str = "") -> Self:
        """Validate plain JSON data.

        Raises:
            InputError: The version is not the one of this library, or a field is unknown, missing or of the
                wrong type.
        """
        from pydantic import ValidationError

        if not isinstance(data, dict):
            raise InputError(
                f"{cls.__name__} is a JSON object; found {type(data).__name__} {data!r:.80}", where=where
            )
        body = dict(data)
        version = body.pop("schema_version", None)
        if version != cls.SCHEMA_VERSION:
            earlier = isinstance(version, int) and version < cls.SCHEMA_VERSION
            raise InputError(
                f"{cls.__name__} has schema_version {version!r}; this library reads {cls.SCHEMA_VERSION}",
                where=where,
                hint="An earlier release wrote it: run the step that makes it again, without caching."
                if earlier
                else "Upgrade the library in the environment of this step.",
            )
        try:
            # In strict mode, pydantic reads a list as a tuple only from JSON text, not from Python data.
            text = json.dumps(body, ensure_ascii=False)
            document: Self = _validator(cast("Hashable", cls)).validate_json(text)
        except ValidationError as error:
            raise InputError(
                f"this is no valid {cls.__name__}\n" + "\n".join(f"  {line}" for line in _problems(error)),
                where=where,
            ) from None
        return document

    @classmethod
    def parse(cls, source: Path | str | bytes, where: str = "") -> Self:
        """Read the document from a file, or from its text.

        Raises:
            InputError: It is not JSON, or is not this document.
            OSError: The file cannot be read.
        """
        return cls.from_json(read_json(source, where=where), where)

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
            InputError: The file is missing, is not JSON, or is not this document.
        """
        if path.is_dir():
            path = path / cls.FILE
        try:
            return cls.parse(path, where=str(path))
        except FileNotFoundError:
            raise InputError(
                f"no {cls.__name__} here: the file is missing",
                where=str(path),
                hint="The step that writes it did not finish, or its output is gone: run that step again.",
            ) from None


@functools.cache
def _validator(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # a command that reads no document starts without it

    return TypeAdapter(kind)


def _problems(error: "ValidationError") -> Iterator[str]:
    """Describe the errors, one line per field."""
    found = error.errors(include_url=False, include_context=False)
    texts = {"unexpected_keyword_argument": "unknown field", "missing": "missing"}
    for problem in found[:_SHOWN]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
        text = texts.get(problem["type"], f"{problem['msg']}; got {problem['input']!r:.80}")
        yield f"{path.removeprefix('.')}: {text}"
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more"
