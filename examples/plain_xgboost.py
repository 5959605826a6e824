"""Fit XGBoost with its defaults on the training set of a run: ``plain_xgboost.py runs/ID``.

It prints the figure that the examples' pages compare with: AUC, accuracy or RMSE of the same evaluation rows.
Run it with the environment of training: .environments/torch/bin/python.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost
from numpy.typing import NDArray

from trainwright import tables
from trainwright.artifacts import Snapshot


def matrix(table: pa.Table, vocabulary: dict[str, list[str]]) -> NDArray[np.float64]:
    """Return the features as numbers: text as its place among the values of the training rows."""
    columns = []
    for name in table.column_names:
        if name in vocabulary:
            places = {value: place for place, value in enumerate(vocabulary[name])}
            codes = [places.get(value, np.nan) for value in table[name].to_pylist()]
            columns.append(np.array(codes, dtype=np.float64))
        else:
            columns.append(table[name].cast(pa.float64()).to_numpy())
    return np.column_stack(columns)


def auc(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the area under the ROC curve, ties counted half."""
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    positive = labels == 1
    many = positive.sum()
    return float((middle[ranks][positive].sum() - many * (many + 1) / 2) / (many * (~positive).sum()))


def main() -> None:
    """Print the figure."""
    folder = Path(sys.argv[1]) / "join" / "training_set"
    snapshot = Snapshot.read(folder)
    label, kind = snapshot.roles["label"], snapshot.target.kind
    splits = {split: tables.read_split(folder, snapshot, split) for split in ("train", "evaluate")}
    parts = {split: table.filter(table[label].is_valid()) for split, table in splits.items()}
    names = [name for name in parts["train"].column_names if name not in snapshot.roles.values()]
    texts = [name for name in names if pa.types.is_string(parts["train"][name].type)]
    vocabulary = {name: sorted(set(parts["train"][name].drop_null().to_pylist())) for name in texts}
    types = ["c" if name in vocabulary else "q" for name in names]
    rows = {
        split: xgboost.DMatrix(
            matrix(part.select(names), vocabulary),
            part[label].to_numpy(),
            feature_types=types,
            enable_categorical=True,
        )
        for split, part in parts.items()
    }
    goals = {"binary": "binary:logistic", "multiclass": "multi:softmax", "regression": "reg:squarederror"}
    classes = {"num_class": len(snapshot.target.classes)} if kind == "multiclass" else {}
    trees = xgboost.train(
        {"objective": goals[kind], "seed": 0, **classes}, rows["train"], num_boost_round=100
    )
    labels, scores = parts["evaluate"][label].to_numpy(), trees.predict(rows["evaluate"])
    match kind:
        case "binary":
            print(f"AUC {auc(labels, scores):.4f}")
        case "multiclass":
            print(f"accuracy {(scores == labels).mean():.4f}")
        case _:
            print(f"RMSE {np.sqrt(((scores - labels) ** 2).mean()):.4f}")


if __name__ == "__main__":
    main()
