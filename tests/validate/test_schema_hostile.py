"""Schemas in protobuf's text form: each is read or rejected with a typed error, whatever comes."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.limits.offenders import SHORT, any_text
from trainwright.errors import InputError
from trainwright.validate.schema import parse_schema

GOOD = 'feature { name: "x" type: INT int_domain { min: 1 max: 5 } }'
PARTS = (
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    ":",
    ",",
    "feature",
    "name",
    "type",
    "INT",
    "min",
    "<",
    ">",
    "#",
    "\\",
    "/",
)
NESTED = "feature { struct_domain { "
OFFENDERS = (
    "",
    "\0",
    "\ud800",
    'feature { name: "\ud800" type: INT }',
    'feature { name: "\\377" type: INT }',
    'feature { name: "\\x',
    NESTED * 500 + "} } " * 500,
    NESTED * 100_000,
    "[" * 100_000,
    "feature { int_domain { min: " + "1" * 5000 + " } }",
    "feature { presence { min_fraction: " + "1" * 401 + " } }",
    "feature { presence { min_fraction: 1e400 } }",
    "feature { type: " + "9" * 5000 + " }",
    "feature { [type.googleapis.com/x] { } }",
    "feature { [tensorflow.metadata.v0.x]: 1 }",
    "feature { name: 'a' name: 'b' }",
    "feature: [{}, {}",
    "x" * 1_000_000,
)


@SHORT
@given(any_text(60) | st.lists(st.sampled_from(PARTS) | any_text(3), max_size=30).map(" ".join))
def test_schema_of_any_text_is_read_or_rejected(text: str) -> None:
    for candidate in (text, GOOD + text, GOOD[: len(text)] + text):
        with contextlib.suppress(InputError):
            parse_schema(candidate, "schema.pbtxt")


@pytest.mark.parametrize("text", OFFENDERS, ids=range(len(OFFENDERS)))
def test_historic_offender_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as rejected:
        parse_schema(text, "schema.pbtxt")
    assert len(str(rejected.value)) < 5000


@example(b"\xff\xfe")
@SHORT
@given(st.binary(max_size=50))
def test_bytes_in_a_name_are_read_or_rejected(content: bytes) -> None:
    escaped = "".join(f"\\{byte:03o}" for byte in content)
    with contextlib.suppress(InputError):
        parse_schema(f'feature {{ name: "{escaped}" type: INT }}', "schema.pbtxt")
