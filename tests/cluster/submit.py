"""A launcher in a process of its own, to be told to stop or killed: ``submit.py PLACE.json NAME STEPS``."""

import json
import sys
from pathlib import Path

from tests.cluster.places import Place
from trainwright.errors import reported

if __name__ == "__main__":
    with reported("train"):
        place = Place(**json.loads(Path(sys.argv[1]).read_text()))
        place.launcher().run(place.job(sys.argv[2], "counts", nodes=1, steps=int(sys.argv[3])))
