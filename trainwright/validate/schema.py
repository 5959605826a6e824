"""Read and check the reviewed schema, and look up the columns in it.

A schema is a TFDV ``schema.pbtxt`` that a person has reviewed and keeps in git.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from trainwright.drift.findings import Kind
from trainwright.errors import InputError
from trainwright.storage import open_file, require_listing
from trainwright.validate.tfdv import schema_pb2, text_format

TRAINING, SERVING = "TRAINING", "SERVING"
"""The two environments of a schema: what is known when a model learns, and when it predicts."""

SCHEMA_FILE = "schema.pbtxt"
"""Name of an inferred schema in the folder of the verdict."""

_WIDTH = 110
MAX_BYTES = 10_000_000
"""Of a schema's text: tens of thousands of columns."""

_UNCHECKED_STAGES = frozenset(
    schema_pb2.LifecycleStage.Value(name) for name in ("PLANNED", "ALPHA", "DEPRECATED", "DISABLED")
)


def read_schema(uri: str, version: str) -> str:
    """Return the text of a schema, and check that it is the one that was listed when the run began.

    Args:
        uri: The schema: a file or a URI.
        version: Its content digest, as ``resolve`` found it.

    Raises:
        InputError: It is missing or changed, too large, or not text.
    """
    found = require_listing("the schema", uri, version)
    size = sum(file.size for file in found.files)
    if len(found.files) != 1 or size > MAX_BYTES:
        raise InputError(
            f"expected one file of at most {MAX_BYTES:,} bytes, found {len(found.files):,} of {size:,} bytes",
            where=uri,
            hint="Name the reviewed schema.pbtxt itself.",
        )
    with open_file(uri) as stream:
        try:
            return stream.read().decode()
        except UnicodeDecodeError as error:
            raise InputError(f"not a TFDV schema: {error}", where=uri) from None


def parse_schema(text: str, where: str) -> Any:
    """Read a schema from its text form."""
    try:
        schema = text_format.Parse(text, schema_pb2.Schema())
        schema.SerializeToString()  # fails for half of a surrogate pair
    except (text_format.ParseError, ValueError, RecursionError) as error:
        number = error.GetLine() if isinstance(error, text_format.ParseError) else None
        line = f"line {number}: " if number else ""
        deep = "nested too deeply" if isinstance(error, RecursionError) else ""
        raise InputError(
            f"not a TFDV schema: {line}{deep or str(error).rpartition(' : ')[2]:.300}",
            where=where,
            hint="The form is that of examples/flights/schema.pbtxt; "
            "`trainwright schema infer` writes a first one.",
        ) from None
    reject_faults(_faults(schema), where)
    return schema


def reject_faults(faults: Iterable[str], where: str) -> None:
    """Report all faults together, if there are any."""
    if lines := [f"  {fault}" for fault in faults]:
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise InputError("\n".join([f"found {count}", *lines]), where=where)


def _faults(schema: Any) -> Iterator[str]:
    if not schema.feature:
        yield "no feature: a schema without columns would accept anything"
    names = Counter(feature.name for feature in schema.feature)
    yield from (f"{name}: declared {times} times" for name, times in names.items() if times > 1 and name)
    domains = {domain.name for domain in (*schema.string_domain, *schema.int_domain, *schema.float_domain)}
    for feature in schema.feature:
        if not feature.name:
            yield "a feature has no name"
        if feature.type == schema_pb2.TYPE_UNKNOWN:
            yield f"{feature.name}: no type; one of BYTES, INT, FLOAT"
        if feature.HasField("domain") and feature.domain not in domains:
            yield f"{feature.name}: domain {feature.domain!r} is not declared; known are {sorted(domains)}"
        if feature.HasField("drift_comparator"):
            yield f"{feature.name}: has a drift_comparator; limits belong to validation.drift"
        if feature.HasField("skew_comparator"):
            yield f"{feature.name}: has a skew_comparator; limits belong to validation.drift"


def kind(feature: Any) -> Kind:
    """Return the kind of a column, which decides how two splits of it are compared."""
    if feature.type == schema_pb2.STRUCT:
        return "nested"
    if feature.type == schema_pb2.BYTES:
        counted = feature.string_domain.is_categorical != schema_pb2.StringDomain.CATEGORICAL_NO
        return "categories" if counted else "text"
    declared = feature.HasField("bool_domain") or (
        feature.int_domain.is_categorical or feature.float_domain.is_categorical
    )
    return "categories" if declared else "numbers"


def environment(schema: Any, name: str = TRAINING) -> str | None:
    """Return the environment to check rows under; None if the schema does not know it."""
    return name if name in schema.default_environment else None


def expected(schema: Any, name: str = TRAINING) -> dict[str, Any]:
    """Return the columns that rows of an environment should have, by name."""
    known = environment(schema, name) is not None
    return {
        feature.name: feature
        for feature in schema.feature
        if feature.lifecycle_stage not in _UNCHECKED_STAGES
        and not (known and name in feature.not_in_environment)
    }


def optional(feature: Any) -> bool:
    """Return whether the schema says explicitly that a column may be absent."""
    presence = feature.presence
    return bool(feature.HasField("presence") and not presence.min_fraction and not presence.min_count)


def format_message(kind: str, message: Any) -> str:
    """Write a message of a schema in its text form, on one line if it fits."""
    line = text_format.MessageToString(message, as_one_line=True)
    if len(kind) + len(line) + len(" {  }") <= _WIDTH:
        return f"{kind} {{ {line} }}"
    return f"{kind} {{\n{text_format.MessageToString(message, indent=2)}}}"
