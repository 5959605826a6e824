"""Keys, times, labels and splits are chosen by names and values, and an ambiguous choice is an error."""

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest

from trainwright.draft.profiles import ColumnProfile, profile_columns, words_of
from trainwright.draft.roles import (
    RoleChoice,
    choose_key,
    choose_label,
    choose_splits,
    choose_text,
    choose_time,
)
from trainwright.draft.target import find_leaks, infer_target
from trainwright.errors import DataRefused, InputError

ROWS = 100
NUMBERS = list(range(ROWS))
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=n) for n in NUMBERS]


def profiles(**columns: Any) -> list[ColumnProfile]:
    return profile_columns(pa.table(columns))


def profile(values: Any) -> ColumnProfile:
    return profiles(column=values)[0]


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ({"age": [n % 7 for n in NUMBERS], "customer_id": NUMBERS}, "customer_id"),
        ({"orderId": NUMBERS, "id": NUMBERS[::-1]}, "id"),
        ({"passenger": [f"p{n}" for n in NUMBERS], "age": NUMBERS}, "passenger"),
        ({"number": [n + 5 for n in NUMBERS], "x": [0.5] * ROWS}, "number"),
        ({"area": [n * 3 for n in NUMBERS], "x": [0.5] * ROWS}, ""),  # unique by chance: a feature
        ({"score": [n / 7 for n in NUMBERS], "x": [0.5] * ROWS}, ""),
        ({"id": [1] * ROWS, "x": [0.5] * ROWS}, ""),
        ({"review": [f"{n} {'word ' * 20}" for n in NUMBERS], "x": [1] * ROWS}, ""),
    ],
)
def test_key_is_a_unique_column_that_is_named_or_placed_like_one(columns: dict[str, Any], key: str) -> None:
    assert choose_key(profiles(**columns), "", "t.csv").column == key


def test_requested_key_that_repeats_is_rejected_with_value_and_rows() -> None:
    with pytest.raises(DataRefused, match="key 'k' has 'b' in 2 rows, such as 2 and 4"):
        choose_key(profiles(k=["a", "b", "c", "b"]), "k", "t.csv")


def test_requested_key_with_a_missing_value_is_rejected_with_its_row() -> None:
    with pytest.raises(DataRefused, match="no value in 1 rows; the first is row 3"):
        choose_key(profiles(k=["a", "b", None]), "k", "t.csv")


@pytest.mark.parametrize(
    ("columns", "time"),
    [
        ({"x": NUMBERS, "departure": DAYS}, "departure"),
        ({"seen": DAYS, "createdAt": DAYS}, "createdAt"),
        ({"seen": DAYS, "left": DAYS}, ""),
        ({"x": NUMBERS}, ""),
        ({"date_of_birth": DAYS}, ""),
        ({"closed": [None, *DAYS[1:]]}, ""),
        ({"valid_to": [dt.date(9999, 12, 31), *DAYS[1:]]}, ""),
    ],
)
def test_time_is_the_only_complete_column_of_times_or_the_one_named_so(
    columns: dict[str, Any], time: str
) -> None:
    assert choose_time(profiles(**columns), "", "t.csv").column == time


def test_two_times_without_a_telling_name_are_reported_with_the_option() -> None:
    found = choose_time(profiles(seen=DAYS, left=DAYS), "", "t.csv")
    assert found.reason == "seen, left could all be it: name one with --time to split by time"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["soon"] * ROWS, "holds string, not times: 'soon'"),
        ([None, *DAYS[1:]], "has no value in 1 rows; the first is row 1"),
        ([DAYS[0]] * ROWS, "holds only 1 different times"),
    ],
)
def test_requested_time_without_times_is_rejected_with_the_reason(values: list[Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        choose_time(profiles(at=values), "at", "t.csv")


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"label": [0, 1], "x": [1, 1]}, "label"),
        ({"x": [1, 1], "is_class": ["a", "b"], "z": [1, 2]}, "is_class"),
        ({"x": [1, 1, 1], "species": ["a", "b", "a"]}, "species"),
        ({"x": [1, 1], "price": [1.5, 2.5]}, "price"),
    ],
)
def test_label_is_named_like_one_or_the_last_column(columns: dict[str, Any], label: str) -> None:
    assert choose_label(profiles(**columns), "", [], "t.csv").column == label


def test_several_columns_named_like_a_label_are_an_error_that_names_them() -> None:
    with pytest.raises(InputError, match="several columns are named like a label: y, target"):
        choose_label(profiles(y=[0, 1], target=[1, 0]), "", [], "t.csv")


def test_last_column_that_cannot_be_a_label_is_an_error_that_lists_the_columns() -> None:
    with pytest.raises(InputError) as error:
        choose_label(profiles(x=[1, 2], empty=pa.array([None, None], pa.string())), "", [], "t.csv")
    assert error.value.what.endswith("the last, 'empty', cannot be one: it holds no value")
    assert error.value.hint == "Name the column to predict: --label COLUMN. Columns: x, empty."


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        ([0, 1, 1], "binary", ()),
        ([0.0, 1.0, None], "binary", ()),
        ([True, False, None], "binary", ()),
        (["no", "yes", "yes"], "binary", ("no", "yes")),
        (["bad", "good", "good"], "binary", ("good", "bad")),  # the rarer is second
        ([1, 2, 2, 2], "binary", ("2", "1")),
        ([2, 1, 0], "multiclass", ()),
        ([3, 1, 2], "multiclass", ("1", "2", "3")),
        ([10, 9, 8], "multiclass", ("8", "9", "10")),  # in the order of numbers
        (["b", "a", "c"], "multiclass", ("a", "b", "c")),
        ([1.5, 2.5], "regression", ()),
        (list(range(21)), "regression", ()),
    ],
)
def test_target_kind_and_classes_follow_the_values(
    values: list[Any], kind: str, classes: tuple[str, ...]
) -> None:
    found = infer_target(profile(values), "", "t.csv")
    assert (found.kind, found.classes) == (kind, classes)


def test_rows_without_a_label_are_counted() -> None:
    assert infer_target(profile(["no", "yes", None]), "", "t.csv").reason == (
        "no (50%), yes (50%): binary; 1 of 3 rows have none"
    )
    assert infer_target(profile([1.5, None, 2.5]), "", "t.csv").reason.endswith("; 1 of 3 rows have none")


def test_letters_beyond_ascii_belong_to_a_word() -> None:
    assert words_of("Größe_y") == ["größe", "y"]
    assert words_of("ÿy") == ["ÿy"], "not y, which is named like a label"


def test_requested_regression_replaces_the_classes_of_few_whole_numbers() -> None:
    assert infer_target(profile([3, 1, 2]), "regression", "t.csv").kind == "regression"


@pytest.mark.parametrize(
    ("values", "kind", "error", "problem"),
    [
        ([1, 1], "", DataRefused, "holds only 1 in 2 rows"),
        (pa.array([None, None], pa.float64()), "", DataRefused, "holds no value in 2 rows"),
        ([f"v{n}" for n in range(21)], "", InputError, "holds 21 different texts, more than 20 classes"),
        ([[1], [2]], "", InputError, "holds list"),
        (["a", "b"], "regression", InputError, "holds string, not numbers"),
        ([1.5, 2.0], "multiclass", InputError, "holds fractions such as 1.5"),
        ([1, 2, 3], "binary", InputError, "has 3 values, and --kind is binary"),
    ],
)
def test_label_that_nothing_can_learn_is_rejected_with_its_values(
    values: Any, kind: str, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        infer_target(profile(values), kind, "t.csv")


def test_windows_of_a_time_hold_70_15_and_15_percent_and_begin_at_midnight() -> None:
    splits = choose_splits(profile(DAYS), "", RoleChoice(reason="")).splits
    ends = [(window["start"], window["end"]) for window in splits.values()]
    at = [dt.datetime.combine(DAYS[n], dt.time(), dt.UTC) for n in (0, 70, 85)]
    at.append(dt.datetime(2024, 4, 10, tzinfo=dt.UTC))
    assert ends == list(itertools.pairwise(at))


def test_time_with_most_rows_at_one_moment_gives_shares_and_the_reason() -> None:
    days = [DAYS[0]] * 90 + DAYS[90:]
    found = choose_splits(profiles(at=days)[0], "", RoleChoice(reason=""))
    assert found.splits["train"] == {"fraction": 0.7}
    assert found.reason.endswith("too many have the same at")


def test_group_is_split_by_its_values_also_beside_a_time() -> None:
    found = choose_splits(profile(DAYS), "customer", RoleChoice(reason=""))
    assert (found.split_by, found.splits["holdout"]) == ("customer", {"fraction": 0.15})


def test_columns_that_alone_predict_the_label_are_found() -> None:
    label, *columns = profiles(
        label=[n % 2 for n in NUMBERS],
        code=["x" if n % 2 else "z" for n in NUMBERS],
        amount=[(n % 2) * 100.0 + n / 10 for n in NUMBERS],
        noise=NUMBERS,
        name=[f"{n}" for n in NUMBERS],
    )
    assert find_leaks(label, infer_target(label, "", ""), columns) == ["code", "amount"]
    number, *columns = profiles(
        price=[n * 1.5 for n in NUMBERS], tax=[n * 0.3 for n in NUMBERS], n=[n % 9 for n in NUMBERS]
    )
    assert find_leaks(number, infer_target(number, "", ""), columns) == ["tax"]


def test_text_to_learn_is_the_longest_column_of_text() -> None:
    found = choose_text(profiles(id=["a", "b"], body=["some words", "more"], n=[1, 2]), "", "t.csv")
    assert found.column == "body"
    with pytest.raises(InputError, match=r"expected a column of text, found n \(int64\)"):
        choose_text(profiles(n=[1, 2]), "", "t.csv")
