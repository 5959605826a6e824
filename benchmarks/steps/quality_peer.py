"""The peer's side of the benchmark ``quality``, under an environment with scikit-learn.

``quality_peer.py tables FOLDER`` writes scikit-learn's tables as CSV files. ``quality_peer.py judge TABLE.csv
LABEL KIND OURS.json`` fits HistGradientBoosting with its defaults on the rows that ours did not score, and
prints both metrics on the rows that it did, with the interval of their difference, as JSON.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score

DRAWS = 2000


def write_tables(folder: Path) -> None:
    """Write four tables that scikit-learn ships: columns, and the label as the last one."""
    for name in ("breast_cancer", "wine", "diabetes", "digits"):
        found = getattr(datasets, f"load_{name}")()
        names = [str(column).replace(" ", "_").replace("/", "_") for column in found.feature_names]
        label = found.target
        if name == "wine":
            label = found.target_names[label]
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow([*names, "label"])
            writer.writerows([*row, value] for row, value in zip(found.data.tolist(), label, strict=True))


def matrix(columns: dict[str, list[str]]) -> tuple[NDArray[np.float64], list[bool]]:
    """Return the columns as numbers, text by the alphabet, and which of them are text."""
    found, text = [], []
    for values in columns.values():
        try:
            found.append(np.array([float(value) if value else np.nan for value in values]))
            text.append(False)
        except ValueError:
            found.append(np.unique(values, return_inverse=True)[1].astype(float))
            text.append(True)
    return np.column_stack(found), text


def metric(kind: str, label: NDArray[Any], score: NDArray[np.float64]) -> float:
    """Return the AUC, the accuracy or the root mean squared error."""
    if kind == "binary":
        return float(roc_auc_score(label, score))
    if kind == "multiclass":
        return float(np.mean(score.argmax(axis=1) == label))
    return float(np.sqrt(np.mean((label - score) ** 2)))


def judge(table: Path, label_name: str, kind: str, ours: dict[str, Any]) -> dict[str, float]:
    """Fit the peer, and compare on the rows that ours scored."""
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    names = columns.pop(label_name)
    if kind == "regression":
        label = np.array([float(value) for value in names])
    else:
        label = np.unique(names, return_inverse=True)[1]
        if len(set(names)) == len({float(name) for name in names if name.isdigit()}):
            label = np.array([int(name) for name in names])
    inputs, text = matrix(columns)
    scored = np.array(ours["rows"])
    train = np.setdiff1d(np.arange(len(label)), scored)
    if kind == "regression":
        model = HistGradientBoostingRegressor(random_state=0, categorical_features=text)
        theirs = model.fit(inputs[train], label[train]).predict(inputs[scored])
    else:
        model = HistGradientBoostingClassifier(random_state=0, categorical_features=text)
        theirs = model.fit(inputs[train], label[train]).predict_proba(inputs[scored])
        theirs = theirs[:, 1] if kind == "binary" else theirs
    score, truth = np.array(ours["scores"]), label[scored]
    sign = -1.0 if kind == "regression" else 1.0
    draw, gains = np.random.default_rng(0), []
    while len(gains) < DRAWS:
        at = draw.integers(0, len(truth), len(truth))
        if kind != "binary" or 0 < truth[at].mean() < 1:
            gains.append(sign * (metric(kind, truth[at], score[at]) - metric(kind, truth[at], theirs[at])))
    low, high = np.quantile(gains, [0.025, 0.975])
    return {
        "ours": metric(kind, truth, score),
        "theirs": metric(kind, truth, theirs),
        "low": float(low),
        "high": float(high),
    }


if __name__ == "__main__":
    if sys.argv[1] == "tables":
        write_tables(Path(sys.argv[2]))
    else:
        found = judge(Path(sys.argv[2]), *sys.argv[3:5], json.loads(Path(sys.argv[5]).read_text()))
        print(json.dumps(found))
