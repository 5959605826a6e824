import pyarrow as pa
import pytest

from trainwright.tables.columns import named_type

KINDS = [
    *(pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.null()),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.duration("us"), pa.binary(7)),
    *(pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="Asia/Kolkata")),
    *(pa.decimal128(10, 3), pa.decimal128(9, -2), pa.decimal256(70, 0)),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_flat_type_is_known_by_what_arrow_calls_it(kind: pa.DataType) -> None:
    assert named_type(str(kind)) == kind


def test_a_type_that_holds_others_is_not_known_by_name() -> None:
    assert named_type("list<item: int8>") is None
    assert named_type("struct<a: int8>") is None
