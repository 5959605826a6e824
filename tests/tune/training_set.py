"""Write a small training set: ``python -m tests.tune.training_set FOLDER``, in the environment torch."""

import sys
from pathlib import Path

from tests.train.problems import flights, write

if __name__ == "__main__":
    write(Path(sys.argv[1]), {"train": flights(600, 1), "evaluate": flights(100, 2)})
