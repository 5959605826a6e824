"""Arrow types as people write them: ``int64``, ``timestamp[us, tz=UTC]``, ``decimal128(12, 2)``."""

import difflib
import re
from collections.abc import Mapping

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError

_NAMES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date32": pa.date32(),
    "date32[day]": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)")
_MOST_DIGITS = 38


def declared_types(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Read the types of ``data.types``.

    Raises:
        InputError: Any is not known; all of them are named.
    """
    found, wrong = {}, []
    for column, text in types.items():
        decimal = _DECIMAL.fullmatch(text)
        if text in _NAMES:
            found[column] = _NAMES[text]
        elif decimal and 1 <= int(decimal[1]) <= _MOST_DIGITS and int(decimal[2]) <= int(decimal[1]):
            found[column] = pa.decimal128(int(decimal[1]), int(decimal[2]))
        else:
            close = difflib.get_close_matches(text, _NAMES, n=1)
            wrong.append(f"{column}: {text!r:.80}" + (f", did you mean {close[0]}?" if close else ""))
    if wrong:
        raise InputError(
            f"no such type: {'; '.join(wrong)}",
            where="data.types",
            hint=f"Known are {', '.join(_NAMES)}, and decimal128(digits, decimals).",
        )
    return found
