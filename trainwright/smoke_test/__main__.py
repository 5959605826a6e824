"""Load a model and score its example in a clean process: ``python -I -m trainwright.smoke_test FOLDER SHA``.

The process knows the folder and nothing of the training. It loads the model as MLflow loads a registered one,
and prints its answer as one line of JSON.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright import serving
from trainwright.artifacts.model import target_kind
from trainwright.documents import read_json
from trainwright.errors import reported


def main(folder: Path, digest: str) -> dict[str, Any]:
    """Load a model, score its input example twice; return a summary, the scores' SHA-256 and their numbers.

    Raises:
        InputError: It is not that model.
    """
    serving.verified(folder, digest)
    model = serving._load_pyfunc(str(folder))
    example = read_json(folder / "input_example.json")
    if isinstance(model, serving.TokenPredictor):
        tokens = np.asarray(example["data"][0], dtype=np.int64)
        scores, again = model.predict(tokens), model.predict(tokens)
        measured = measure(scores, again)
        said = f"log-probabilities of {scores.shape[-1]:,} tokens at {tokens.shape[-1]} places"
    else:
        rows = dict(zip(example["columns"], map(list, zip(*example["data"], strict=True)), strict=True))
        scores, again = model.predict(rows), model.predict(rows)
        signature = read_json(folder / "signature.json")
        measured = measure(scores, again) | measure_table(scores, len(example["data"]), signature)
        said = f"{len(example['data'])} rows scored, the first {next(iter(np.ravel(scores)), np.nan):.6g}"
    sha256 = hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest()
    return {"said": said, "scores": sha256, "measured": measured}


def measure(scores: NDArray[np.float64], again: NDArray[np.float64]) -> dict[str, float]:
    """Return the numbers of :data:`~trainwright.artifacts.model.TRIAL_BOUNDS` that every model has."""
    differ = np.count_nonzero(scores != again) if scores.shape == again.shape else scores.size + again.size
    return {
        "scores": float(scores.size),
        "scores that are no numbers": float(np.count_nonzero(~np.isfinite(scores))),
        "scores that differ at a second call": float(differ),
    }


def measure_table(scores: NDArray[np.float64], rows: int, signature: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a model of rows: its answer beside its signature, and its probabilities."""
    outputs = len(signature["outputs"])
    expected = (rows,) if outputs == 1 else (rows, outputs)
    beside = abs(scores.size - rows * outputs) or float(scores.shape != expected)
    found = {"rows or outputs beside the signature": float(beside)}
    if target_kind(signature) == "regression":
        return found
    found["scores outside 0 to 1"] = float(np.count_nonzero(~((scores >= 0) & (scores <= 1))))
    if scores.ndim > 1:
        worst = np.nan_to_num(np.abs(scores.sum(axis=1) - 1), nan=1.0, posinf=1.0).max(initial=0.0)
        found["error of a sum of probabilities"] = float(worst)
    return found


if __name__ == "__main__":
    with reported("smoke_test"):
        sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])) + "\n")
