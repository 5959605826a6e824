"""What cannot be joined, or would leak, is refused by name before anything is written."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, at, make_repository
from tests.join.sales import Join, sale
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError


def test_a_feature_that_is_known_only_afterwards_is_refused(join: Join, tmp_path: Path) -> None:
    refunds = replace(
        PRICES, features={"refund": pa.float64(), "returned": pa.float64(), "pieces": pa.float64()}
    )
    repository = make_repository(tmp_path / "repo", [refunds])
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]})
    assert (
        "'refund' of view 'prices' has the name of a column that is known only afterwards"
        in raised.value.what
    )
    assert "'returned' of view 'prices' has the name of the rows' label column" in raised.value.what
    assert "'pieces' of view 'prices' has the name of a request column" in raised.value.what
    assert not (tmp_path / "set" / Snapshot.FILE).exists()


def test_all_wrong_column_names_are_reported_at_once(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    wrong = {"request": ["shopp", "pieces"], "known_after": ["refunds"]}
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]}, **wrong)
    assert "features.request: no column 'shopp'; did you mean shop?" in raised.value.what
    assert "features.known_after: no column 'refunds'; did you mean refund?" in raised.value.what


def test_a_column_that_a_later_step_needs_is_missed_before_the_join(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    made, _, _, _ = join(repository, {"train": [sale("a", 1)]}, needed=["shop", "currency", "returned"])
    assert made.rows == 1
    with pytest.raises(InputError, match="no column 'curency'; did you mean currency"):
        join(repository, {"train": [sale("a", 1)]}, needed=["curency"])


def test_a_view_that_joins_by_what_is_known_only_afterwards_is_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="joins by 'product', which is known only afterwards"):
        join(repository, {"train": [sale("a", 1)]}, known_after=["product"])


def test_a_view_whose_key_the_rows_do_not_have_is_refused(join: Join, tmp_path: Path) -> None:
    view = ViewSpec("weather", {"shops": pa.string()}, {"rain": pa.float64()}, [])
    with pytest.raises(InputError, match="view 'weather' joins by: no column 'shops'; did you mean shop"):
        join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1)]})


def test_a_key_of_another_type_is_refused_with_both_types(join: Join, tmp_path: Path) -> None:
    view = ViewSpec("codes", {"product": pa.string()}, {"rain": pa.float64()}, [])
    with pytest.raises(InputError, match="joins by 'product', int64 in the rows but string in its files"):
        join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1)]})


def test_a_time_that_is_no_timestamp_is_refused_with_its_type(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    roles = {"key": "sale", "time": "pieces", "label": "returned"}
    with pytest.raises(InputError, match="'pieces' is int64, not a timestamp"):
        join(repository, {"train": [sale("a", 1)]}, roles=roles, request=["shop"])


def test_rows_without_a_time_role_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="the rows have no time column"):
        join(repository, {"train": [sale("a", 1)]}, roles={"key": "sale"})


def test_a_row_without_a_time_is_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="1 rows have no 'sold'"):
        join(repository, {"train": [sale("a", 1), {**sale("b", 1), "sold": None}]})


KEYLESS = {"1 rows repeat another's": ["a", "b", "a"], "1 rows have none": ["a", "b", None]}


@pytest.mark.parametrize("problem", KEYLESS)
def test_rows_that_cannot_be_told_apart_are_refused(problem: str, join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    first, second, third = (sale(name, 1) for name in KEYLESS[problem])
    with pytest.raises(InputError, match=f"'sale' is no key: {problem}"):
        join(repository, {"train": [first, second], "evaluate": [third]})


def test_rows_from_the_cutoff_on_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = {"train": [sale("a", 1), sale("b", 2)]}
    assert join(repository, sales, cutoff=at(2.001).isoformat())[0].rows == 2
    with pytest.raises(InputError, match=r"1 rows are not before 2024-03-01T02:00:00\+00:00, such as .*'b'"):
        join(repository, sales, cutoff=at(2).isoformat())


def test_a_view_that_fans_out_is_refused(join: Join, tmp_path: Path) -> None:
    twin = {**PRICES.rows[0], "price": 10.01}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, twin])])
    with pytest.raises(InputError, match=r"view 'prices' fans out: 1 pairs of its rows .* such as product=1"):
        join(repository, {"train": [sale("a", 1)]})


def test_a_view_without_creation_times_needs_a_reason(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, has_created=False)])
    sales = {"train": [sale("a", 25)]}
    with pytest.raises(InputError, match=r"views \['prices'\] have no created timestamp"):
        join(repository, sales)
    _, rows, headline, summary = join(repository, sales, allow_backfill_leak="prices are printed in advance")
    assert rows["price"].to_pylist() == [11.0]
    assert headline == "1 rows, 2 features, 0 leaks, not proven for prices"
    assert "Not proven for prices" in summary


def test_a_row_of_a_view_without_its_time_is_refused_with_the_column_and_their_number(
    join: Join, tmp_path: Path
) -> None:
    odd = replace(PRICES, rows=[*PRICES.rows, PRICES.rows[0] | {"event": None}], renamed={"when": "event"})
    with pytest.raises(InputError, match="event timestamp column 'when' of view 'prices' has 1 nulls"):
        join(make_repository(tmp_path / "repo", [odd]), {"train": [sale("a", 1)]})
