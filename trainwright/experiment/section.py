"""Base class of all sections of the experiment file: frozen and validated; all errors are reported together."""

import difflib
import json
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

from trainwright.errors import InputError

LARGEST = 2**53 - 1
"""Largest whole number that Kubeflow passes on exactly: its JSON parameters hold every number as a double."""

NEVER = "never"
"""What stands for ``null`` where a limit that has a default is switched off."""

TAG = "kind"
"""The key by which one of several models is chosen for a section; its default is another one in each."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, pattern=r"^\S(.*\S)?$")]


def _moment(value: object) -> datetime:
    """Read a time as it is written out, in UTC if no zone is; pydantic takes 2013 for seconds since 1970."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("a time is written as 2013-01-31 or 2013-01-31T05:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


Time = Annotated[datetime, BeforeValidator(_moment)]


class Section(BaseModel):
    """A part of the experiment file: unknown keys are refused, values are never changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: object, about: ValidationInfo) -> object:
        """Reject ``yes``, ``on`` and ``true`` where a number is expected: pydantic reads them as 1."""
        if isinstance(value, bool) and _is_number(cls.model_fields[str(about.field_name)].annotation):
            raise ValueError("a number is wanted")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _never_is_null(cls, value: object, about: ValidationInfo) -> object:
        """Read :data:`NEVER` where a limit can be switched off."""
        field = cls.model_fields[str(about.field_name)]
        off = value == NEVER and isinstance(field.default, float)
        return None if off and type(None) in _kinds(field.annotation) else value

    @field_validator("*", mode="before")
    @classmethod
    def _exact_on_kubeflow(cls, value: object, about: ValidationInfo) -> object:
        """Reject a whole number that Kubeflow would round on its way to a step."""
        kinds = set(_kinds(cls.model_fields[str(about.field_name)].annotation))
        if Any in kinds and _holds_null(value):
            raise ValueError("null cannot be passed to a step; leave the key out")
        if kinds & {int, Any} and (found := _rounded(value)) is not None:
            raise ValueError(
                f"{found} has too many digits: Kubeflow passes whole numbers up to {LARGEST} on exactly"
            )
        return value

    @classmethod
    def parse(cls, given: str | Mapping[str, Any], where: str) -> Self:
        """Read a section from a component's parameter: a JSON object, or the text of one.

        A whole number may arrive as a float, such as 100.0, for Kubeflow holds every number as a double.

        Raises:
            InputError: The text is not JSON, or has any wrong key or value; all are named.
        """
        if not isinstance(given, str):
            return cls.check(given, where)
        try:
            data = json.loads(given)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error}", where=where) from None
        return cls.check(data, where)

    @classmethod
    def check(cls, data: object, where: str) -> Self:
        """Validate plain data, and name everything that is wrong with it in one error.

        Raises:
            InputError: Any key is unknown or missing, or any value is not allowed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problems = list(_problems(cls, error))
            count = "1 thing is" if len(problems) == 1 else f"{len(problems)} things are"
            raise InputError(
                f"{count} wrong\n" + "\n".join(f"  {line}" for line in problems), where=where
            ) from None

    def to_json(self) -> str:
        """Return the section as one canonical JSON string."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def to_parameter(self, *, as_written: bool = False) -> dict[str, Any]:
        """Return the section as a JSON object without ``null``: the form in which components take it.

        A key that has its default is left out: KFP copies a parameter into a dozen places of a run. kfp's own
        runner rejects ``null`` inside of a parameter; where a limit is switched off, :data:`NEVER` says so.

        Args:
            as_written: Write the keys that were set, also to their defaults.
        """
        data = self.model_dump(
            mode="json", exclude_none=True, exclude_unset=as_written, exclude_defaults=not as_written
        )
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section) and name in data:
                data[name] = value.to_parameter(as_written=as_written)
            elif value is None and isinstance(field.default, float):
                data[name] = NEVER
            elif name == TAG:
                data[name] = value
        return data


def _problems(model: type[BaseModel], error: ValidationError) -> Iterator[str]:
    """One line for each problem: the key's full path, what was got, what is allowed."""
    for problem in error.errors():
        place = problem["loc"]
        path = ".".join(str(part) for part in place if not _names_a_kind(part)) or "(the whole file)"
        if problem["type"] == "extra_forbidden":
            known = _keys_at(model, place[:-1])
            close = difflib.get_close_matches(str(place[-1]), known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            yield f"{path}: unknown key; {advice}"
        elif problem["type"] == "missing":
            yield f"{path}: missing"
        elif problem["type"] in {"model_type", "model_attributes_type"}:
            yield f"{path}: keys with values are wanted; got {problem['input']!r:.80}"
        else:
            yield f"{path}: {problem['msg'].removeprefix('Value error, ')}; got {problem['input']!r:.80}"


def _is_number(annotation: Any) -> bool:
    """Say whether a key holds a number, or none, and no switch."""
    several = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    parts = typing.get_args(annotation) if several else (annotation,)
    kinds = [typing.get_args(part)[0] if typing.get_origin(part) is Annotated else part for part in parts]
    return bool not in kinds and (int in kinds or float in kinds)


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types of the values that a key may hold, also inside of lists and mappings."""
    if annotation is JsonValue:
        yield Any
    elif typing.get_origin(annotation) is Annotated:
        yield from _kinds(typing.get_args(annotation)[0])
    elif parts := typing.get_args(annotation):
        for part in parts:
            yield from _kinds(part)
    else:
        yield annotation


def _holds_null(value: object) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(map(_holds_null, value)) if isinstance(value, list | tuple) else value is None


def _rounded(value: object) -> int | float | None:
    """Return the first whole number in a value that a double does not hold exactly; sections are left out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for entry in value if (found := _rounded(entry)) is not None), None)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    return value if whole and abs(value) > LARGEST else None  # type: ignore[arg-type, return-value]


def kind_of(name: str) -> str:
    """Return the tag of one kind among several that a key may hold; pydantic puts it into the path."""
    return f"({name})"


def _names_a_kind(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith("(") and part.endswith(")")


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at a place of the file."""
    found: Any = model
    for part in place:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = field.annotation if field else None
        elif _names_a_kind(part):
            found = next((kind for kind in _models_in(found) if kind_of(kind.__name__) == part), None)
        else:  # an entry of a mapping or of a list
            found = typing.get_args(found)[-1] if typing.get_args(found) else None
    return [key for kind in _models_in(found) for key in kind.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a key may hold: one, several, or none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]
