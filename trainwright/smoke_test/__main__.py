"""Load a model and score its example in a clean process: ``python -I -m trainwright.smoke_test FOLDER SHA``.

It knows the folder and nothing else: no training, no settings, no working folder. It loads by what MLflow is
told to load a registered model with. What it found is one line of JSON on standard output.
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

_CLOSE = 1e-6


def main(folder: Path, digest: str) -> dict[str, Any]:
    """Load a model, score its input example twice, and check the answers.

    Returns:
        ``said``, and ``scores``: the SHA-256 of the answers.

    Raises:
        InputError: It is not that model, or does not answer with what its signature says.
    """
    serving.verified(folder, digest)
    model = serving._load_pyfunc(str(folder))
    example = json.loads((folder / "input_example.json").read_text())
    signature = json.loads((folder / "signature.json").read_text())
    if isinstance(model, serving.TokenPredictor):
        tokens = np.asarray(example["data"][0], dtype=np.int64)
        scores, again = model.predict(tokens), model.predict(tokens)
        said = f"log-probabilities of {scores.shape[-1]:,} tokens at {tokens.shape[-1]} places"
    else:
        rows = dict(zip(example["columns"], map(list, zip(*example["data"], strict=True)), strict=True))
        scores, again = model.predict(rows), model.predict(rows)
        _require_fitting(scores, len(example["data"]), len(signature["outputs"]))
        if signature["target"]["kind"] != "regression":
            _require_probabilities(scores)
        said = f"{len(example['data'])} rows scored, the first {next(iter(np.ravel(scores)), np.nan):.6g}"
    _require_sound(scores, again)
    return {"said": said, "scores": hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest()}


def _require_fitting(scores: NDArray[np.float64], rows: int, outputs: int) -> None:
    wanted = (rows,) if outputs == 1 else (rows, outputs)
    if scores.shape != wanted:
        raise InputError(f"the model answered with shape {scores.shape}, its signature says {wanted}")


def _require_probabilities(scores: NDArray[np.float64]) -> None:
    within = bool(((scores >= 0) & (scores <= 1)).all())
    whole = scores.ndim == 1 or bool(np.allclose(scores.sum(axis=1), 1, atol=_CLOSE))
    if not (within and whole):
        raise InputError(f"the model's scores are no probabilities: {np.ravel(scores)[:5].tolist()}")


def _require_sound(scores: NDArray[np.float64], again: NDArray[np.float64]) -> None:
    if not scores.size:
        raise InputError("the model gave no scores: its input example is empty")
    if not np.isfinite(scores).all():
        raise InputError(f"{int((~np.isfinite(scores)).sum())} of the model's scores are no numbers")
    if scores.tobytes() != again.tobytes():
        raise InputError("the model gave other scores when it was asked the same again")


if __name__ == "__main__":
    with reported("smoke_test"):
        sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])) + "\n")
