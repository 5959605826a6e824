"""Labels as they are read: numbers or nothing."""

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError


def known(column: pa.Array, *, classes: bool) -> pa.Array:
    """Return labels as numbers, whole ones if they are classes; NaN counts as missing.

    Raises:
        InputError: One that should be whole is not.
    """
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        numbers = pc.cast(column, pa.float64())
        column = pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)
    elif not classes:
        return pc.cast(column, pa.float64(), safe=False)
    try:
        return pc.cast(column, pa.int64()) if classes else column
    except pa.ArrowInvalid as error:
        raise InputError(
            f"the labels are classes, so they are whole numbers: {error}", where="training.objective.kind"
        ) from None
