"""Check the trees of a model folder, and score rows with them. Needs xgboost, neither torch nor a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.errors import InputError, ModelRefused
from trainwright.serving import Predictor
from trainwright.transforms import Raw, TimeOf, Transforms, encoding

TREES_FILE = "model.ubj"
"""The trees in a model's folder: XGBoost's own format, universal binary JSON."""

MEAN, DEVIATION = "trainwright.mean", "trainwright.deviation"
"""Attributes of the trees of a regression, which predict ``(label - mean) / deviation``."""

_CYCLES = (", sine of the day", ", cosine of the day", ", sine of the week", ", cosine of the week")

_TYPES = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_CONSTANTS = {"T": True, "F": False, "Z": None}
_MAX_DEPTH = 16
_MAX_CATEGORY = 1 << 24
"""XGBoost holds categories as a bit each, up to the largest."""


@dataclass(frozen=True)
class MatrixLayout:
    """Columns of the matrix, and the encoded feature of each.

    A network has a feature of its own for a missing number; a tree learns a direction for it instead.
    So the number becomes NaN, and that feature is left out.

    Attributes:
        names: Name of each column.
        inputs: The input column that each is made from.
        types: Type of each column as XGBoost writes it: ``q`` a number, ``c`` a category.
        kept: Numeric features that become columns, in order; shape (numeric columns,).
        indicator: The feature that says that it is missing, or -1; shape (numeric columns,).
        starts: First code of each category column in the shared vocabulary; shape (categories,).
    """

    names: tuple[str, ...]
    inputs: tuple[str, ...]
    types: tuple[str, ...]
    kept: NDArray[np.int64]
    indicator: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, transforms: Transforms) -> "MatrixLayout":
        """Return the layout of some fitted transforms."""
        names: list[str] = []
        inputs: list[str] = []
        kept: list[int] = []
        indicator: list[int] = []
        place = 0
        for column in (*transforms.scaled, *transforms.times):
            features = _CYCLES if isinstance(column, TimeOf) else ("",)
            names += [column.name + feature for feature in features]
            inputs += [column.name] * len(features)
            kept += range(place, place + len(features))
            place += len(features)
            indicator += [place if column.indicator else -1] * len(features)
            place += column.indicator
        sizes = [category.size for category in transforms.categories]
        categories = [category.name for category in transforms.categories]
        return cls(
            names=(*names, *categories),
            inputs=(*inputs, *categories),
            types=("q",) * len(names) + ("c",) * len(sizes),
            kept=np.array(kept, dtype=np.int64),
            indicator=np.array(indicator, dtype=np.int64),
            starts=np.cumsum([0, *sizes])[: len(sizes)].astype(np.int64),
        )

    def matrix(self, numeric: NDArray[np.float32], categories: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the matrix of encoded rows: shape (rows, columns), float32, NaN where a value is missing."""
        columns = len(self.kept)
        matrix = np.empty((len(numeric), columns + len(self.starts)), dtype=np.float32)
        matrix[:, :columns] = numeric[:, self.kept]
        for place in np.flatnonzero(self.indicator >= 0):
            matrix[numeric[:, self.indicator[place]] > 0, place] = np.nan
        codes = categories - self.starts
        matrix[:, columns:] = np.where(codes == encoding.MISSING, np.nan, codes)
        return matrix


class Forest:
    """Trees that score encoded rows."""

    def __init__(self, booster: xgboost.Booster, layout: MatrixLayout) -> None:
        self._booster, self._layout = booster, layout

    def score(
        self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return the probability of label 1 or the predicted number, shape (rows,), or (rows, classes)."""
        scores: NDArray[np.float64] = self._booster.predict(self._matrix(numeric, categories)).astype(
            np.float64
        )
        mean, deviation = self._booster.attr(MEAN), self._booster.attr(DEVIATION)
        return scores if mean is None or deviation is None else scores * float(deviation) + float(mean)

    def margins(
        self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return log-odds or standardised predictions, shape (rows,), or logits (rows, classes)."""
        rows = self._matrix(numeric, categories)
        margins: NDArray[np.float64] = self._booster.predict(rows, output_margin=True).astype(np.float64)
        return margins

    def _matrix(self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]) -> xgboost.DMatrix:
        rows = self._layout.matrix(numeric, categories)
        return xgboost.DMatrix(rows, feature_types=list(self._layout.types), enable_categorical=True)


def load_trees(folder: Path) -> Predictor:
    """Load a model of trees, whose files are verified.

    Raises:
        InputError: XGBoost cannot read it.
        ModelRefused: A tree is malformed (:func:`check_trees`).
    """
    model, transforms = Model.read(folder), Transforms.read(folder)
    layout = MatrixLayout.of(transforms)
    check_trees(folder / TREES_FILE, len(layout.names))
    try:
        booster = xgboost.Booster(model_file=folder / TREES_FILE)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"XGBoost cannot read the trees: {error}", where=str(folder / TREES_FILE)) from error
    forest = Forest(booster, layout)

    def score(raw: Raw) -> NDArray[np.float64]:
        encoded = transforms.encode_raw(raw)
        return forest.score(encoded.numeric, encoded.categories)

    return Predictor(model, transforms, score)


class _Reader:
    """A reader of universal binary JSON that takes no more than the file has."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read(self, depth: int = 0) -> Any:
        """Return the next value: a dict, a list, an array of numbers, a text or a number."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"values lie more than {_MAX_DEPTH} deep")
        kind = chr(self._take(1)[0])
        if kind in _TYPES:
            return self._numbers(kind, 1)[0]
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind == "S":
            return self._text()
        if kind == "{":
            found: dict[str, Any] = {}
            while not self._skip("}"):
                name = self._text()
                found[name] = self.read(depth + 1)
            return found
        if kind != "[":
            raise ValueError(f"there is no type {kind!r}")
        return self._array(depth)

    def _array(self, depth: int) -> Any:
        kind = chr(self._take(1)[0]) if self._skip("$") else ""
        if self._skip("#"):
            count = self._length()
            if kind:
                return self._numbers(kind, count)
            if count > len(self._data) - self._at:
                raise ValueError(f"an array claims {count:,} values; the file has not as many bytes")
            return [self.read(depth + 1) for _ in range(count)]
        found = []
        while not self._skip("]"):
            found.append(self.read(depth + 1))
        return found

    def _length(self) -> int:
        kind = chr(self._take(1)[0])
        if kind not in "iUIlL":
            raise ValueError(f"a length has type {kind!r}")
        return int(self._numbers(kind, 1)[0])

    def _numbers(self, kind: str, count: int) -> NDArray[Any]:
        dtype = np.dtype(_TYPES[kind])
        return np.frombuffer(self._take(dtype.itemsize * count), dtype)

    def _text(self) -> str:
        return self._take(self._length()).decode()

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError(
                f"{count:,} bytes should follow byte {self._at:,}; the file has {len(self._data):,}"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def _skip(self, mark: str) -> bool:
        found = self._data[self._at : self._at + 1] == mark.encode()
        self._at += found
        return found


def check_trees(path: Path, columns: int) -> None:
    """Check every length and index in a file of trees that read this many columns, and that each tree ends.

    XGBoost's universal binary JSON holds no code. XGBoost believes its lengths and indices: a long array
    takes any memory, a wrong index reads outside its array, and a child that is its own parent is followed
    for ever.

    Raises:
        InputError: XGBoost did not write this file.
        ModelRefused: A tree has an index outside its arrays, or no end.
    """
    try:
        learner = _Reader(path.read_bytes()).read()["learner"]
        problem = _find_problem(learner, columns)
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise InputError(f"these are no trees of XGBoost: {error}", where=str(path)) from None
    if problem:
        raise ModelRefused(
            problem, where=str(path), hint="Train the model again; do not load this file elsewhere."
        )


def _find_problem(learner: Mapping[str, Any], columns: int) -> str:
    booster, parameters = learner["gradient_booster"], learner["learner_model_param"]
    if booster["name"] != "gbtree" or int(parameters["num_target"]) != 1:
        return (
            f"the model is a {booster['name']!r} of {parameters['num_target']} targets, not a gbtree of one"
        )
    if int(parameters["num_feature"]) != columns:
        return f"the trees read {parameters['num_feature']} columns, the transforms give {columns}"
    model = booster["model"]
    trees, groups = model["trees"], np.asarray(model["tree_info"])
    ends = np.asarray(model["iteration_indptr"])
    if len({len(trees), len(groups), int(model["gbtree_model_param"]["num_trees"])}) > 1:
        return f"the model says {model['gbtree_model_param']['num_trees']} trees, and has {len(trees)}"
    if not _within(groups, max(1, int(parameters["num_class"]))) or not _within(ends, len(trees) + 1):
        return "the trees belong to classes or rounds that the model does not have"
    for place, tree in enumerate(trees):
        if problem := _find_problem_of(tree, columns):
            return f"tree {place:,} {problem}"
    return ""


def _find_problem_of(tree: Mapping[str, Any], columns: int) -> str:
    nodes = int(tree["tree_param"]["num_nodes"])
    arrays = (
        *("left_children", "right_children", "parents", "split_indices", "split_conditions"),
        *("split_type", "default_left", "base_weights", "loss_changes", "sum_hessian"),
    )
    if wrong := [name for name in arrays if len(tree[name]) != nodes] or nodes < 1:
        return f"has {nodes} nodes, and others in {wrong}"
    if int(tree["tree_param"]["num_feature"]) != columns or int(tree["tree_param"]["size_leaf_vector"]) > 1:
        return f"reads {tree['tree_param']['num_feature']} columns, not {columns}"
    left, right = (np.asarray(tree[name]).astype(np.int64) for name in ("left_children", "right_children"))
    inner = np.flatnonzero(left != -1)
    children = np.concatenate([left[inner], right[inner]])
    if (children <= np.concatenate([inner, inner])).any() or (children >= nodes).any():
        return "has a child before its parent or outside the tree: it need not end"
    if (right[left == -1] != -1).any():
        return "has a leaf with a child"
    if not _within(np.asarray(tree["split_indices"]), columns):
        return "splits by a column that there is not"
    return _check_categories(tree, nodes)


def _check_categories(tree: Mapping[str, Any], nodes: int) -> str:
    starts, sizes = (
        np.asarray(tree[f"categories_{name}"]).astype(np.int64) for name in ("segments", "sizes")
    )
    at, values = np.asarray(tree["categories_nodes"]), np.asarray(tree["categories"])
    if not len(starts) == len(sizes) == len(at) or not _within(at, nodes):
        return "has categories of nodes that there are not"
    if not _within(starts, len(values) + 1) or not _within(sizes, len(values) + 1):
        return "has categories outside its list"
    if (starts + sizes > len(values)).any() or not _within(values, _MAX_CATEGORY):
        return "has categories outside its list"
    if set(np.flatnonzero(np.asarray(tree["split_type"]) == 1).tolist()) - set(at.tolist()):
        return "splits by categories that it does not list"
    return ""


def _within(values: NDArray[Any], end: int) -> bool:
    """Return whether all values lie in [0, end)."""
    return not len(values) or bool(values.min() >= 0 and values.max() < end)
