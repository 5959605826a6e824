"""Values of a column, shown in an error."""

import itertools
from typing import Any


def example_values(column: Any, count: int = 3) -> str:
    """Show a few different values of a column, for an error.

    Args:
        column: An array or a chunked array of Arrow.
        count: Most values to show.
    """
    values = column.drop_null().slice(0, 1000).to_pylist()
    shown = dict.fromkeys(repr(value) if isinstance(value, str) else str(value) for value in values)
    return ", ".join(itertools.islice(shown, count)) or "no value"
