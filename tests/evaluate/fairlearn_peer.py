"""What Fairlearn's MetricFrame says of a table; runs where Fairlearn is, apart from everything here.

``python fairlearn_peer.py TABLE.npz`` writes JSON. The table has ``label``, ``chosen``, ``score``, ``weight``
and columns that begin with ``group_``. ``--boot N SEED LOW HIGH`` times ``n_boot``, and
writes two quantiles by group.
"""

import json
import sys
import time
from functools import partial

import numpy as np
import pandas as pd
from fairlearn.metrics import MetricFrame, equalized_odds_difference, false_positive_rate, selection_rate
from fairlearn.metrics import true_positive_rate as recall
from sklearn.metrics import accuracy_score, precision_score

WAYS = ("between_groups", "to_overall")


def bias(label, score, sample_weight=None):
    return float(np.average(score - label, weights=sample_weight))


def compare(table, names, weighted):
    metrics = {"selection": selection_rate, "recall": recall, "false": false_positive_rate}
    groups = pd.DataFrame({name: table[name] for name in names})
    weights = {name: {"sample_weight": table["weight"]} for name in metrics} if weighted else None
    frame = MetricFrame(
        metrics=metrics, y_true=table["label"], y_pred=table["chosen"], sensitive_features=groups,
        sample_params=weights,
    )  # fmt: skip
    weight = {"sample_weight": table["weight"]} if weighted else None
    biased = MetricFrame(
        metrics=bias, y_true=table["label"], y_pred=table["score"], sensitive_features=groups,
        sample_params=weight,
    )  # fmt: skip
    found = {}
    for way in WAYS:
        apart, share = frame.difference(method=way), frame.ratio(method=way)
        odds = equalized_odds_difference(
            table["label"], table["chosen"], sensitive_features=groups, method=way,
            sample_weight=table["weight"] if weighted else None,
        )  # fmt: skip
        found[way] = {
            "selection_rate_difference": apart["selection"],
            "selection_rate_ratio": share["selection"],
            "equal_opportunity": apart["recall"],
            "equalized_odds": odds,
            "calibration_gap": biased.difference(method=way),
        }
    found["minimum"] = frame.group_min().to_dict()
    return found


def boot(table, resamples, seed, quantiles):
    metrics = {
        "selection_rate": selection_rate, "recall": recall, "false_positive_rate": false_positive_rate,
        "accuracy": accuracy_score, "precision": partial(precision_score, zero_division=0.0),
    }  # fmt: skip
    started = time.perf_counter()
    frame = MetricFrame(
        metrics=metrics, y_true=table["label"], y_pred=table["chosen"],
        sensitive_features=pd.Series(table["group_a"], name="group_a"),
        n_boot=resamples, ci_quantiles=quantiles, random_state=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    low, high = frame.by_group_ci
    return {"seconds": seconds, "low": low.to_dict(), "high": high.to_dict()}


def main():
    table, drawn = dict(np.load(sys.argv[1], allow_pickle=False)), None
    if "--boot" in sys.argv:
        at = sys.argv.index("--boot")
        quantiles = [float(x) for x in sys.argv[at + 3 : at + 5]]
        drawn = boot(table, *map(int, sys.argv[at + 1 : at + 3]), quantiles)
    if drawn and "--also" not in sys.argv:
        json.dump(drawn, sys.stdout)
        return
    names = [name for name in table if name.startswith("group_")]
    found = {
        f"{'+'.join(columns)}/{weighted}": compare(table, columns, weighted)
        for columns in [[name] for name in names] + [names]
        for weighted in (False, True)
    }
    json.dump(found | ({"boot": drawn} if drawn else {}), sys.stdout)


main()
