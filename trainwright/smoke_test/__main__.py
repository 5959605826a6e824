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
from trainwright.errors import InputError, reported

_TOLERANCE = 1e-6
"""Of the sum of the probabilities of a row."""


def main(folder: Path, digest: str) -> dict[str, Any]:
    """Load a model, score its input example twice, and return a summary and the SHA-256 of the scores.

    Raises:
        InputError: It is not that model, or its scores do not match its signature.
    """
    serving.verified(folder, digest)
    model = serving._load_pyfunc(str(folder))
    example = json.loads((folder / "input_example.json").read_text())
    if isinstance(model, serving.TokenPredictor):
        tokens = np.asarray(example["data"][0], dtype=np.int64)
        scores, again = model.predict(tokens), model.predict(tokens)
        said = f"log-probabilities of {scores.shape[-1]:,} tokens at {tokens.shape[-1]} places"
    else:
        rows = dict(zip(example["columns"], map(list, zip(*example["data"], strict=True)), strict=True))
        scores, again = model.predict(rows), model.predict(rows)
        _check_signature(scores, len(example["data"]), json.loads((folder / "signature.json").read_text()))
        said = f"{len(example['data'])} rows scored, the first {next(iter(np.ravel(scores)), np.nan):.6g}"
    _check_scores(scores, again)
    return {"said": said, "scores": hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest()}


def _check_signature(scores: NDArray[np.float64], rows: int, signature: dict[str, Any]) -> None:
    outputs = len(signature["outputs"])
    expected = (rows,) if outputs == 1 else (rows, outputs)
    if scores.shape != expected:
        raise InputError(f"the model answered with shape {scores.shape}, its signature says {expected}")
    if signature["target"]["kind"] == "regression":
        return
    within = bool(((scores >= 0) & (scores <= 1)).all())
    if not within or (scores.ndim > 1 and not np.allclose(scores.sum(axis=1), 1, atol=_TOLERANCE)):
        raise InputError(f"the model's scores are no probabilities: {np.ravel(scores)[:5].tolist()}")


def _check_scores(scores: NDArray[np.float64], again: NDArray[np.float64]) -> None:
    if not scores.size:
        raise InputError("the model gave no scores: its input example is empty")
    if not np.isfinite(scores).all():
        raise InputError(f"{int((~np.isfinite(scores)).sum())} of the model's scores are no numbers")
    if scores.tobytes() != again.tobytes():
        raise InputError("the model gave other scores for the same rows at a second call")


if __name__ == "__main__":
    with reported("smoke_test"):
        sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])) + "\n")
