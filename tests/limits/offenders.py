"""Inputs that made some reader fail with an untyped error, and strategies for more of their kind."""

import json
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SHORT = settings(
    derandomize=True,
    max_examples=60,
    deadline=timedelta(seconds=5),
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
"""A few seconds, and the same inputs in every run."""

JSON = (
    "",
    "\0",
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 170 + "]" * 170,
    "1" * 5000,
    "-" + "1" * 5000,
    "1" * 401,
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    '"\\ud800"',
    '{"\\udfff": 1}',
    '{"a": 1, "a": 2}',
    "\ufeff{}",
    '"\x1f"',
    "{} {}",
    "[1,]",
    "'a'",
    "0x10",
)
YAML = (
    "x: !!bool x",
    "x: !!timestamp x",
    "x: !!int x",
    "x: !!int ''",
    "x: !!float x",
    "x: !!binary é",
    "x: !!set [a]",
    "x: !!omap {a: 1}",
    "x: !!null y",
    "x: !!python/object:os.system id",
    "x: 2013-13-41",
    "x: 0b",
    "x: 0x_",
    "x: 1:99:99:99:99",
    "x: " + "1" * 5000,
    "x: " + "1" * 401,
    "x: .inf",
    'x: "\\ud800"',
    'x: "\\0"',
    "x: \0",
    "x: \x1b[31m",
    "[" * 20_000,
    "{a: " * 20_000,
    "- " * 20_000,
    "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "a: &a {x: 1}\nb: {<<: *a}",
    "? [a]\n: b",
    "? {a: b}\n: c",
    "a: 1\na: 2",
    "%YAML 9.9\n--- a",
    "--- a\n--- b",
    "&a [*a]",
    "<<: x",
    "=: x",
    "\t- a",
    "x: !<tag:yaml.org,2002:bool> maybe",
    "\ufeffx: 1",
)
BYTES = (b"\xff\xfe\x00", b"\xe4", b"\x80abc", b"\xed\xa0\x80", b"a\0b", b"\xef\xbb\xbf{}", b"\xff" * 1000)


def any_text(size: int) -> st.SearchStrategy[str]:
    """Text of any characters, also halves of surrogate pairs."""
    return st.text(st.characters(codec=None), max_size=size)


JUNK = ('"', "\\", "{", "]", "\0", "!!bool ", "&a ", "*a", "<<")
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**500)
    | st.floats()
    | any_text(20)
    | st.dates().map(str)
    | st.datetimes().map(str)
)
plain = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text(8), inner, max_size=4),
    max_leaves=12,
)
"""Plain data, also such as no document can hold."""

json_texts = plain.map(json.dumps)
broken_texts = st.builds(
    lambda text, at, junk: text[: at % (len(text) + 1)] + junk + text[at % (len(text) + 1) :],
    json_texts,
    st.integers(0, 10_000),
    any_text(6) | st.sampled_from(JUNK),
)
"""JSON with something in it that does not belong there; most of it is YAML, too."""

texts = json_texts | broken_texts | any_text(60)
