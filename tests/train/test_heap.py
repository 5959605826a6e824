"""Memory that a training frees and needs again, as the kernel counts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_FAULTS = """
import json, resource, sys
from contextlib import nullcontext
from trainwright.train.heap import freed_memory_kept

BLOCK, TIMES = 64 << 20, 6

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

with freed_memory_kept() if sys.argv[1] == "kept" else nullcontext():
    bytes([7]) * BLOCK
    before = faults()
    for _ in range(TIMES):
        bytes([7]) * BLOCK
    found, during = faults() - before, resident()
print(json.dumps({"faults": found, "during": during, "after": resident()}))
"""


def pages(how: str) -> dict[str, int]:
    command = [sys.executable, "-c", _FAULTS, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's settings")
def test_memory_that_was_freed_is_not_fetched_from_the_kernel_again() -> None:
    kept, usual = pages("kept"), pages("usual")
    # A page is 2 MiB at most: 6 blocks of 64 MiB are 192 of them at least.
    assert usual["faults"] >= 192
    assert kept["faults"] < 96


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's settings")
def test_what_is_free_at_the_end_goes_back() -> None:
    kept = pages("kept")
    assert kept["during"] - kept["after"] > 48 << 20
