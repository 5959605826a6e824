"""The oldest pyarrow that any image has, TFDV's, reads and writes like this one."""

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from tests.run import ENVIRONMENTS, START, interpreter
from trainwright import tables

HERE = Path(__file__).parent
NAMES = ("companions", "files", "fingerprint", "reading", "snapshot")


@pytest.mark.skipif(pa.__version__.startswith("10."), reason="this is the oldest")
def test_the_same_facts_hold_for_the_oldest_pyarrow() -> None:
    """What takes long there and cannot differ, such as the spread of fingerprints, is left out."""
    chosen = "not collide and not flips_each_bit and not long_values and not kill_at_any"
    tests = [str(HERE / f"test_{name}.py") for name in NAMES]
    done = subprocess.run(
        [str(interpreter("tfdv")), "-c", START, str(ENVIRONMENTS / "pytest"), "-q", "-k", chosen, *tests],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


READ = """
import sys
from pathlib import Path
from trainwright import tables
from trainwright.artifacts import Snapshot
folder = Path(sys.argv[1])
table = tables.read_split(folder, Snapshot.read(folder), "train")
print([str(kind) for kind in table.schema.types], table["at"].cast("int64").to_pylist())
print(table.drop(["at"]).to_pylist())
"""


def test_a_snapshot_of_this_pyarrow_is_read_by_the_oldest(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, None, 3], pa.int32()),
            "word": pa.array(["é", None, "a"]),
            "tags": pa.array([["x"], [], None]),
            "at": pa.array([0, None, 2], pa.timestamp("us", tz="UTC")),
        }
    )
    tables.write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={})
    command = [str(interpreter("tfdv")), "-c", READ, str(tmp_path)]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    types = ["int32", "string", "list<item: string>", "timestamp[us, tz=UTC]"]
    said = f"{types} [0, None, 2]\n{table.drop(['at']).to_pylist()}\n"
    assert (done.stdout, done.stderr) == (said, "")
