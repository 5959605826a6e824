"""Base class of the sections of the experiment file: frozen and validated, all errors reported together."""

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from trainwright.documents import canonical, read_json
from trainwright.errors import InputError

LARGEST = 2**53 - 1
"""Largest integer that Kubeflow passes exactly: its JSON parameters hold every number as a double."""

NEVER = "never"
"""Replacement of ``null`` where a limit that has a default is switched off."""

TAG = "kind"
"""Key that selects one of several models for a section; its default differs between them."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, pattern=r"^\S(.*\S)?$")]


def _parse_time(value: object) -> datetime:
    """Read an ISO 8601 time, in UTC if it has no zone; pydantic would read 2013 as seconds since 1970."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("must be a time such as 2013-01-31 or 2013-01-31T05:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


Time = Annotated[datetime, BeforeValidator(_parse_time)]


class Section(BaseModel):
    """A part of the experiment file: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_on_kubeflow(cls, value: object, info: ValidationInfo) -> object:
        """Reject what pydantic would read as a number, and what Kubeflow rounds or does not pass.

        That is ``yes``, ``on`` and ``true`` for a number, long integers, and ``null``, which :data:`NEVER`
        replaces where a limit with a default can be switched off.
        """
        field = cls.model_fields[str(info.field_name)]
        kinds = set(_value_types(field.annotation))
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("must be a number")
        if value == NEVER and isinstance(field.default, float | Section) and types.NoneType in kinds:
            return None
        if Any in kinds and _holds_null(value):
            raise ValueError("null cannot be passed to a step; leave the key out")
        if kinds & {int, Any} and (found := _inexact_integer(value)) is not None:
            raise ValueError(f"{found} has too many digits: Kubeflow passes integers up to {LARGEST} exactly")
        return value

    @classmethod
    def parse(cls, value: str | Mapping[str, Any], where: str) -> Self:
        """Read a section from a component's parameter: a JSON object, or its text.

        Kubeflow passes integers as doubles: 100.0 is read as 100.

        Raises:
            InputError: The text is not JSON, or a key or value is invalid; all of them are reported.
        """
        try:
            data = read_json(value) if isinstance(value, str) else value
        except InputError as error:
            what = f"expected a JSON object, found text that is {error.what}"
            raise InputError(what, where=where, hint="Pass the section as a JSON object.") from None
        return cls.check(data, where)

    @classmethod
    def check(cls, data: object, where: str) -> Self:
        """Validate plain data, and report everything that is invalid in one error.

        Raises:
            InputError: A key is unknown or missing, or a value is not allowed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problems = list(_problems(cls, error))
            count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
            raise InputError(
                f"found {count}\n" + "\n".join(f"  {line}" for line in problems),
                where=where,
                hint="Add missing keys and correct the others; docs/experiment.md lists the keys of an experiment file.",
            ) from None

    def to_json(self) -> str:
        """Return the section as one canonical JSON string."""
        return canonical(self.model_dump(mode="json"))

    def to_parameter(self, *, as_written: bool = False) -> dict[str, Any]:
        """Return the section as a JSON object without ``null``: the form in which components take it.

        Keys with their default are left out, because KFP copies a parameter into a dozen places of a run.
        kfp's own runner rejects ``null`` inside of a parameter: a limit that is switched off is :data:`NEVER`.

        Args:
            as_written: Include the keys that were set to their defaults.
        """
        data = self.model_dump(
            mode="json", exclude_none=True, exclude_unset=as_written, exclude_defaults=not as_written
        )
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section) and name in data:
                data[name] = value.to_parameter(as_written=as_written)
            elif value is None and isinstance(field.default, float | Section):
                data[name] = NEVER
            elif name == TAG:
                data[name] = value
        return data


def _problems(model: type[BaseModel], error: ValidationError) -> Iterator[str]:
    """Yield one line for each problem: the key's full path, the allowed values, the value found."""
    for problem in error.errors():
        place, kind = problem["loc"], problem["type"]
        path = ".".join(str(part) for part in place if not _is_tag(part)) or "(the whole file)"
        if kind == "extra_forbidden":
            known = _keys_at(model, place[:-1])
            close = difflib.get_close_matches(str(place[-1]), known, n=1)
            yield f"{path}: unknown key; " + (
                f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            )
        elif kind == "missing":
            yield f"{path}: missing"
        else:
            text = re.sub(
                r"^Value error, |^(?:Input|String|List|Tuple|Dictionary) should ", "", problem["msg"]
            )
            if kind in {"model_type", "model_attributes_type"}:
                text = "must be a mapping of keys to values"
            elif kind != "value_error" and text != problem["msg"]:
                text = f"must {text}"
            # A rule on several keys names their values itself.
            whole = kind == "value_error" and isinstance(problem["input"], Mapping | BaseModel)
            yield f"{path}: {text}" + ("" if whole else f"; found {problem['input']!r:.80}")


def _value_types(annotation: Any) -> Iterator[Any]:
    """Yield the types of a key's values, also inside of lists and mappings."""
    if annotation is JsonValue:
        yield Any
    elif typing.get_origin(annotation) is Annotated:
        yield from _value_types(typing.get_args(annotation)[0])
    elif parts := typing.get_args(annotation):
        for part in parts:
            yield from _value_types(part)
    else:
        yield annotation


def _holds_null(value: object) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(map(_holds_null, value)) if isinstance(value, list | tuple) else value is None


def _inexact_integer(value: object) -> int | float | None:
    """Return the first integer in a value that a double does not hold exactly; skip sections."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for entry in value if (found := _inexact_integer(entry)) is not None), None)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    return value if whole and abs(value) > LARGEST else None  # type: ignore[arg-type, return-value]


def kind_of(name: str) -> str:
    """Return the tag of one of several models that a key may hold; pydantic puts it into the path."""
    return f"({name})"


def _is_tag(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith("(") and part.endswith(")")


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at a place of the file."""
    found: Any = model
    for part in place:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = field.annotation if field else None
        elif _is_tag(part):
            found = next((kind for kind in models_in(found) if kind_of(kind.__name__) == part), None)
        else:  # an entry of a mapping or of a list
            found = typing.get_args(found)[-1] if typing.get_args(found) else None
    return [key for kind in models_in(found) for key in kind.model_fields]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections in the type of a key: none, one, or alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in models_in(part)]
