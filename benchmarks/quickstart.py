"""From a CSV file that was never seen to predictions: three commands, against a plain script.

The rows are those of examples/quickstart, 15,000 flights. The peer does what a person writes in a minute:
read with pyarrow, encode text as codes, fit XGBoost on 70 % of the rows, and print the AUC of the others.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import publish

from trainwright.authoring.environments import python

ROOT = Path(__file__).resolve().parents[1]
FLIGHTS = ROOT / "examples" / "flights" / "data" / "flights.parquet"
ROWS, LIMIT_S = 15_000, 60

PLAIN = """
import sys
import numpy as np, pyarrow as pa, pyarrow.csv as csv, xgboost
rows = csv.read_csv(sys.argv[1])
label = np.array([word == "yes" for word in rows["late"].to_pylist()], dtype=float)
names = [name for name in rows.column_names if name not in ("id", "late")]
columns = [rows[name].combine_chunks() for name in names]
texts = [pa.types.is_string(column.type) for column in columns]
pairs = zip(columns, texts)
codes = [column.dictionary_encode().indices if text else column for column, text in pairs]
matrix = np.column_stack([column.to_numpy(zero_copy_only=False).astype(float) for column in codes])
train = np.random.default_rng(0).random(len(label)) < 0.7
types = ["c" if text else "q" for text in texts]
data = [xgboost.DMatrix(matrix[part], label[part], feature_types=types, enable_categorical=True)
        for part in (train, ~train)]
goal = {"objective": "binary:logistic", "eval_metric": "auc"}
trees = xgboost.train(goal, data[0], 100)
print(float(trees.eval(data[1]).split(":")[1]))
"""


def timed(command: list[str | Path], folder: Path) -> tuple[float, str]:
    """Run a command to its end; return its wall time and its output."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started, done.stdout


def main() -> int:
    """Measure the three commands and the script."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        draw = [python("tabular"), ROOT / "examples" / "draw_tables.py", FLIGHTS, folder, str(ROWS)]
        timed(draw, folder)
        (folder / "quickstart" / "rows.csv").rename(folder / "rows.csv")
        command = Path(sys.executable).with_name("trainwright")
        config = ["--config", "experiment.yaml"]
        init_s, _ = timed([command, "init", "rows.csv", "--label", "late"], folder)
        run_s, said = timed([command, "run", "train_and_register", *config], folder)
        predict_s, _ = timed([command, "predict", "rows@candidate", "rows.csv", *config], folder)
        plain_s, auc = timed([python("torch"), "-c", PLAIN, "rows.csv"], folder)
    all_s = init_s + run_s + predict_s
    evaluated = next(line for line in said.splitlines() if line.startswith("  evaluate "))
    rows: list[list[object]] = [
        ["init", f"{init_s:.1f}", ""],
        ["run", f"{run_s:.1f}", evaluated.split(" s ", 1)[1].strip()],
        ["predict", f"{predict_s:.1f}", ""],
        ["all three", f"{all_s:.1f}", ""],
        ["plain script", f"{plain_s:.1f}", f"AUC {float(auc):.4f}"],
    ]
    line = (
        f"quickstart: {ROWS:,} rows to predictions in {all_s:.0f} s, {all_s / plain_s:.0f} times a plain "
        f"script that validates, reports and registers nothing (goal {LIMIT_S} s)"
    )
    return publish("quickstart", ("command", "s", "result"), rows, line, all_s <= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
