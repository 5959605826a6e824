"""Numbers in order, whatever they are: compared with numpy's own sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trainwright.validate.columns import ascending

KINDS = [np.dtype(name) for name in ("int8", "int16", "int64", "uint8", "uint64", "float32", "float64")]


def same(got: np.ndarray, values: np.ndarray) -> bool:
    is_real = values.dtype.kind == "f"
    return got.dtype == values.dtype and np.array_equal(got, np.sort(values), equal_nan=is_real)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 60))))
def test_the_order_is_that_of_numpy(values: np.ndarray) -> None:
    assert same(ascending(values), values)


DRAW = np.random.default_rng(0)
LARGE = {
    "a bell": DRAW.normal(0, 1, 70_000),
    "a long tail": DRAW.exponential(9, 70_000) ** 5,
    "one far outlier": np.append(DRAW.normal(0, 1, 70_000), 1e300),
    "pairs that share a key": np.repeat(DRAW.random(35_000), 2) + np.tile([1e-13, 0], 35_000),
    "infinities and NaN": np.append(DRAW.random(70_000), [np.inf, -np.inf, np.nan]),
    "whole numbers of every size": DRAW.integers(-(2**63), 2**63 - 1, 70_000),
    "beyond signed": DRAW.integers(2**63, 2**64 - 1, 70_000, dtype=np.uint64),
    "few whole numbers": DRAW.integers(-3, 3, 70_000),
    "one value": np.full(70_000, 2.5),
    "the smallest numbers": DRAW.integers(0, 5, 70_000) * 5e-324,
}


@pytest.mark.parametrize("case", LARGE)
def test_many_numbers_are_in_order(case: str) -> None:
    before = LARGE[case].copy()
    assert same(ascending(LARGE[case]), LARGE[case])
    assert np.array_equal(before, LARGE[case], equal_nan=before.dtype.kind == "f")
