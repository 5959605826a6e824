"""Contradictory sections ``data`` and ``validation`` are rejected with both values."""

from typing import Any

import pytest

from trainwright.errors import InputError
from trainwright.experiment import Data, Validation

SHARES = {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}}
WINDOW = {"start": "2013-01-01", "end": "2013-02-01"}
SQL = {"select": "select id from flights", "tables": ["flights"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quality": {"min_volume": 0.5}}, "quality.previous, which is absent"),
        (
            {"quality": {"previous": "p", "min_volume": 2, "max_volume": 1}},
            "min_volume 2.0 is above max_volume 1",
        ),
        (
            {"quality": {"max_missing": {"delay": 1.01}}},
            "quality.max_missing.delay: must be less than",
        ),
        (
            {"quality": {"max_missing": {"delay": -0.01}}},
            "quality.max_missing.delay: must be greater",
        ),
        (
            {"runner": {"engine": "beam", "options": "--a=b"}},
            "runner.options: must be a valid tuple; found '--a=b'",
        ),
        (
            {"runner": {"engine": "beam", "options": None}},
            "runner.options: must be a valid tuple; found None",
        ),
        ({"engine": {"options": ["--a=b"]}}, "options ['--a=b'] need a Beam runner; name is local"),
        ({"engine": {"workers": 0}}, "engine.workers: must be greater than or equal to 1; found 0"),
        ({"engine": {"name": "flink"}}, "engine.name: must"),
        ({"engine": {"name": "FlinkRunner", "options": ["--runner=SparkRunner"]}}, "write it as engine.name"),
        ({"splits": {**SHARES, "evaluate": WINDOW}}, "splits ['train'] are fractions and the others windows"),
        ({"splits": {"train": {"fraction": 0.9}, "evaluate": {"fraction": 0.2}}}, "sum to 1.1, more than 1"),
        ({"splits": {}}, "splits: must have at least 1 item"),
        (
            {"splits": {"train": WINDOW}, "split_by": "user"},
            "split_by user is for splits by fraction, but these are windows",
        ),
        ({"sql": SQL}, "format is auto, but sql is present"),
        ({"format": "sql"}, "format is sql, but sql is absent"),
        ({"version": "3"}, "version 3 needs format delta or iceberg; format is auto"),
        ({"mode": "reference"}, "mode reference cannot split the rows of a file by hash"),
        ({"label": "id"}, "key id, time at, label id must be different columns"),
        (
            {"key": None, "format": "sql", "sql": SQL},
            "format sql needs data.key: the rows of a database have no",
        ),
        ({"classes": ["a"]}, "classes ['a'] must be two or more different values"),
        ({"classes": [1, 1]}, "classes ['1', '1'] must be two or more different values"),
        ({"classes": [1.5, 2.5]}, "classes.0: must be a valid string"),
        (
            {"classes": ["a", "b"], "label_kind": "multiclass"},
            "label_kind is multiclass, and there are 2 classes",
        ),
        ({"label": None, "label_kind": "binary"}, "describe the label, and data.label is absent"),
    ],
)
def test_contradictory_data_section_is_rejected(changes: dict[str, Any], said: str) -> None:
    section = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": SHARES}
    Data.check(section, "data")
    with pytest.raises(InputError) as caught:
        Data.check(section | changes, "data")
    assert said in caught.value.what


def test_classes_that_yaml_reads_as_numbers_and_truth_values_are_text() -> None:
    section = {"source": "x", "label": "late", "splits": SHARES}
    assert Data.check(section | {"classes": [1, 2, 10]}, "data").classes == ("1", "2", "10")
    assert Data.check(section | {"classes": [False, True]}, "data").classes == ("false", "true")


@pytest.mark.covers("B40")
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"numeric_threshold": 1.5}, "numeric_threshold: must be less than or equal to 1; found 1.5"),
        (
            {"categorical_threshold": -0.1},
            "categorical_threshold: must be greater than or equal to 0",
        ),
        (
            {"drift": {"a": {"comparator": "infinity_norm", "threshold": 2}}},
            "drift.a.threshold: must be",
        ),
        (
            {"drift": {"a": {"comparator": "l2", "threshold": 0.1}}},
            "'jensen_shannon_divergence' or 'infinity_norm'",
        ),
        ({"volume": {"min_ratio": 3}}, "min_ratio 3 is above max_ratio 2"),
        ({"false_alarm_rate": 0}, "false_alarm_rate: must be greater than 0"),
        ({"quarantine": {"max_share": 2}}, "quarantine.max_share: must be less than or equal to 1"),
        ({"severity": [{"kind": "*", "severity": "MILD"}]}, "severity.0.severity: must be 'WARN'"),
    ],
)
def test_limit_outside_its_range_is_rejected(section: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Validation.check(section, "validation")
    assert said in caught.value.what
