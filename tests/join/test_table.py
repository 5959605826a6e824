"""A training set without a feature service: the columns of the table are the features."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright import tables
from trainwright.artifacts import Record, Snapshot, SnapshotTarget
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features
from trainwright.join.join import make_training_set

Made = tuple[Snapshot, pa.Table, str]
ROWS = 200
LABEL = np.arange(ROWS) % 2
TABLE = pa.table(
    {
        "row": pa.array(range(ROWS)),
        "income": np.random.default_rng(0).normal(size=ROWS),
        "city": ["Bern", "Oslo", "Rome", "Lima"] * (ROWS // 4),
        "name": [f"person {number}" for number in range(ROWS)],
        "history": pa.array([[1, 2]] * ROWS),
        "fax": pa.nulls(ROWS, pa.string()),
        "left_on": pa.array([0 if label else None for label in LABEL], pa.date32()),
        "left": LABEL,
    }
)
ROLES = {"key": "row", "label": "left"}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Made]:
    """Make a training set of a table; gives the manifest, the rows and the summary."""

    def made(table: pa.Table = TABLE, **section: Any) -> Made:
        options = {name: section.pop(name) for name in ("target", "roles", "quarantine") if name in section}
        folder, out, quarantine = tmp_path / "rows", tmp_path / "set", options.pop("quarantine", None)
        options = {"roles": ROLES, "parents": {}} | options
        snapshot = tables.write_snapshot(folder, {"train": [table]}, **options)
        places: dict[str, Any] = {}
        if quarantine is not None:
            rows = {"train": [pa.table({snapshot.roles["key"]: quarantine})]}
            parents, roles = {"snapshot": snapshot.digest}, {"key": snapshot.roles["key"]}
            removed = tables.write_snapshot(tmp_path / "out", rows, parents=parents, roles=roles)
            places = {"quarantine": tmp_path / "out", "quarantine_version": removed.digest}
        features = Features.check(section, "features")
        summary = tmp_path / "summary.md"
        found = make_training_set(folder, snapshot.digest, features, "", out, summary, **places)
        return found, tables.read_split(out, found, "train"), summary.read_text()

    return made


def test_all_columns_that_a_model_reads_are_carried_but_those_known_afterwards(
    make: Callable[..., Made], tmp_path: Path
) -> None:
    found, rows, summary = make(known_after=["left_on"])
    assert rows.column_names == ["row", "left", "income", "city", "name"]
    assert found.roles == ROLES
    assert rows["row"].to_pylist() == list(range(ROWS))
    assert list(found.parents) == ["entities"]
    assert Record.read(tmp_path / "set").headline == "200 rows, 3 columns, no feature service"
    assert "Left behind: history, fax, left\\_on." in summary
    assert "no model reads the type of history (list&lt;item: int64>)" in summary
    assert "no row has a value of fax" in summary
    assert "| city | (the row) | 0.00% |" in summary


def test_text_with_a_value_of_its_own_in_each_row_is_warned_of(make: Callable[..., Made]) -> None:
    _, _, summary = make(known_after=["left_on"])
    assert "**Warning**: name: almost every row has another value." in summary
    _, rows, summary = make(known_after=["left_on"], exclude=["name"])
    assert "name" not in rows.column_names
    assert "Warning" not in summary


def test_requested_columns_are_the_only_ones(make: Callable[..., Made]) -> None:
    _, rows, _ = make(request=["city", "income"])
    assert rows.column_names == ["row", "left", "city", "income"]


def test_column_that_gives_the_label_away_is_rejected(make: Callable[..., Made]) -> None:
    with pytest.raises(
        DataRefused, match=r"left_on: alone orders the labels of train with AUC 1\.0000 > 0\.99"
    ):
        make()


def test_number_that_copies_the_label_is_rejected(make: Callable[..., Made]) -> None:
    price = np.random.default_rng(2).lognormal(size=ROWS)
    table = pa.table({"row": range(ROWS), "price": price, "dollars": price * 1.1, "rooms": price.round()})
    options = {"roles": {"key": "row", "label": "price"}, "target": SnapshotTarget(kind="regression")}
    with pytest.raises(DataRefused, match=r"dollars: .* with rank correlation 1\.0000 > 0\.98"):
        make(table, **options)
    found, _, summary = make(table, exclude=["dollars"], **options)
    assert found.target.kind == "regression"
    assert "The rank correlation (Spearman, without its sign)" in summary
    assert "| rooms | (the row) | 0.00% | 0.9" in summary


def test_classes_pass_on_with_their_names(make: Callable[..., Made]) -> None:
    target = SnapshotTarget(kind="multiclass", classes=("low", "middle", "high"))
    table = pa.table({"row": range(ROWS), "x": np.ones(ROWS), "kind": np.arange(ROWS) % 3})
    found, _, summary = make(table, target=target, roles={"key": "row", "label": "kind"})
    assert found.target == target
    assert "the class that it separates worst" in summary


def test_language_model_gets_its_one_column_of_text(make: Callable[..., Made]) -> None:
    table = pa.table({"row": range(3), "text": ["a b", "c", "d"], "length": [3, 1, 1]})
    options = {"roles": {"key": "row"}, "target": SnapshotTarget(kind="text")}
    found, rows, summary = make(table, **options)
    assert rows.column_names == ["row", "text"]
    assert found.target.kind == "text"
    assert "A language model has no label, so scoring columns against it is not applicable." in summary
    two = table.append_column("title", pa.array(["x", "y", "z"]))
    with pytest.raises(InputError, match=r"expected one column of text .* found 2 .* text \(string\)"):
        make(two, **options)
    assert make(two, request=["title"], **options)[1].column_names == ["row", "title"]


def test_rows_in_quarantine_are_left_out_of_a_table(make: Callable[..., Made]) -> None:
    found, rows, summary = make(known_after=["left_on"], quarantine=[3, 5])
    assert rows["row"].to_pylist()[:5] == [0, 1, 2, 4, 6]
    assert "2 rows are in quarantine and were left out: 2 of train." in summary
    assert "quarantine" in found.parents


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"request": ["incom"]}, r"features.request: no column 'incom'; did you mean income\?"),
        ({"exclude": ["nam"]}, r"features.exclude: no column 'nam'; did you mean name\?"),
        ({"request": ["fax"]}, r"features.request: 'fax' has no value in any row"),
        ({"request": ["history"]}, r"'history' is list<item: int64>, which this kind of model cannot read"),
        ({"cutoff": "2020-01-01"}, "the rows have no time column, and features.cutoff needs one"),
        ({"limits": {"max_missing": {"cit": 0.1}}}, r"max_missing: no column 'cit'; did you mean city\?"),
        (
            {"exclude": ["income", "city", "name", "left_on"]},
            r"no column is left .* without a value: \['fax'\], .* \['history \(list<item: int64>\)'\]",
        ),
        ({"request": ["city"], "exclude": ["name"]}, "request .* already says which columns are used"),
        ({"limits": {"max_age_s": {"weather": 5}}}, "limits of feature views, and there is no service"),
    ],
)
def test_columns_that_cannot_be_used_are_named(
    make: Callable[..., Made], section: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make(**section)


def test_limit_on_missing_values_holds_for_a_column_of_the_table(make: Callable[..., Made]) -> None:
    with pytest.raises(DataRefused, match=r"left_on: no value in 50\.00% of the rows > max_missing 10\.00%"):
        make(request=["left_on"], limits={"max_missing": {"left_on": 0.1}, "max_single_feature_auc": 1})


def test_training_set_without_a_service_imports_no_feast(tmp_path: Path) -> None:
    rows = tables.write_snapshot(tmp_path / "rows", {"train": [TABLE]}, parents={}, roles=ROLES)
    code = (
        "import sys; from pathlib import Path\n"
        "from trainwright.experiment import Features\n"
        "from trainwright.join.join import make_training_set\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "section = Features.check({'known_after': ['left_on']}, 'features')\n"
        f"make_training_set(folder / 'rows', {rows.digest!r}, section, '', folder / 'set', folder / 's.md')\n"
        "assert 'feast' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_column_named_like_the_predictions_is_rejected_before_the_training(make: Callable[..., Made]) -> None:
    table = TABLE.append_column("score_1", TABLE.column(0))
    with pytest.raises(InputError, match="'score_1' is the name of a column of the predictions"):
        make(table)
    _, rows, _ = make(table, exclude=["score_1"], known_after=["left_on"])
    assert "score_1" not in rows.column_names
