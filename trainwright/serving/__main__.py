"""``python -m trainwright.serving MODEL ROWS OUTPUT``: score a file with the model in a folder."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.command import Parser
from trainwright.errors import reported
from trainwright.serving.prediction_file import predict_file


def main(arguments: Sequence[str]) -> None:
    """Run the command, and print the result as one line of JSON."""
    parser = Parser(prog="trainwright", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("rows", type=Path, help=".parquet, .csv or .jsonl")
    parser.add_argument("output", type=Path, help=".parquet, .csv or .jsonl")
    parser.add_argument("--digest", help="expected digest of the model's manifest")
    parser.add_argument("--form", default="{}", help="keys csv and missing of section data, as JSON")
    with reported("predict"):
        options = parser.parse_args(arguments)
        form = json.loads(options.form)
        made = predict_file(options.model, options.rows, options.output, options.digest, form)
        sys.stdout.write(json.dumps(vars(made)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
