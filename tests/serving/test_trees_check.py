"""A file of trees that would take all memory, read outside its arrays or never end is rejected unread."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xgboost

from trainwright.errors import InputError, ModelRefused
from trainwright.serving.trees import check_trees

COLUMNS = 4


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    random = np.random.default_rng(0)
    matrix = random.random((400, COLUMNS)).astype(np.float32)
    matrix[:, 3] = random.integers(0, 20, 400)
    types = ["q", "q", "q", "c"]
    rows = xgboost.DMatrix(
        matrix, matrix[:, 0] + matrix[:, 3] > 9, feature_types=types, enable_categorical=True
    )
    settings = {"objective": "binary:logistic", "max_depth": 4, "max_cat_to_onehot": 1}
    path = tmp_path_factory.mktemp("trees") / "model.ubj"
    xgboost.train(settings, rows, 5).save_model(path)
    return path.read_bytes()


def with_number(name: str, place: int, value: int) -> Callable[[bytes], bytes]:
    """Replace one number of the first array of a name."""

    def change(data: bytes) -> bytes:
        at = data.index(name.encode() + b"[$") + len(name) + 2
        kind, size = data[at : at + 1], {b"l": 4, b"L": 8}[data[at : at + 1]]
        first = at + 3 + 8 + size * place  # behind the type, "#L" and the length
        return data[:first] + struct.pack(">i" if kind == b"l" else ">q", value) + data[first + size :]

    return change


def with_length(data: bytes) -> bytes:
    at = data.index(b"base_weights[$d#L") + len(b"base_weights[$d#L")
    return data[:at] + struct.pack(">q", 1 << 40) + data[at + 8 :]


ATTACKS = {
    "a child that is its parent": (with_number("left_children", 0, 0), "need not end"),
    "a leaf with a child": (with_number("right_children", 1, 0), "a leaf with a child"),
    "a child outside the tree": (with_number("right_children", 0, 1 << 20), "outside the tree"),
    "a column that there is not": (with_number("split_indices", 0, 1 << 20), "splits by a column"),
    "a column before the first": (with_number("split_indices", 0, -5), "splits by a column"),
    "a category of many bytes": (with_number("categories", 0, (1 << 31) - 1), "categories outside its list"),
    "categories outside the list": (with_number("categories_segments", 0, 1 << 20), "outside its list"),
    "categories of no node": (with_number("categories_nodes", 0, 1 << 20), "nodes that there are not"),
}


@pytest.mark.covers("A2")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_tree_with_a_wrong_index_is_refused(trees: bytes, tmp_path: Path, attack: str) -> None:
    change, message = ATTACKS[attack]
    (tmp_path / "model.ubj").write_bytes(change(trees))
    with pytest.raises(ModelRefused, match=message) as found:
        check_trees(tmp_path / "model.ubj", COLUMNS)
    assert found.value.code == 12


def test_trees_of_other_columns_are_refused(trees: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.ubj").write_bytes(trees)
    check_trees(tmp_path / "model.ubj", COLUMNS)
    with pytest.raises(ModelRefused, match="the trees read 4 columns, the transforms give 5"):
        check_trees(tmp_path / "model.ubj", 5)


@pytest.mark.parametrize("place", [0, 1, 50, -1])
def test_a_file_that_is_cut_or_claims_more_than_it_has_is_no_file_of_trees(
    trees: bytes, tmp_path: Path, place: int
) -> None:
    (tmp_path / "model.ubj").write_bytes(trees[:place])
    with pytest.raises(InputError, match="these are no trees of XGBoost"):
        check_trees(tmp_path / "model.ubj", COLUMNS)
    for content in (with_length(trees), b"[" * 100_000, b"[#L" + struct.pack(">q", 1 << 40)):
        (tmp_path / "model.ubj").write_bytes(content)
        with pytest.raises(InputError, match="these are no trees of XGBoost"):
            check_trees(tmp_path / "model.ubj", COLUMNS)
