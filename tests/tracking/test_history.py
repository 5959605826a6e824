"""The file of a training's curves: complete, whatever happens to who writes it."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.tracking.history import HISTORY_FILE, HistoryWriter, TrainingHistory

WRITER = """
import sys
from pathlib import Path
from trainwright.tracking.history import HistoryWriter
spool = HistoryWriter(Path(sys.argv[1]))
for step in range(1, 10**9):
    spool.add(step, {"loss": 1 / step, "pad": 0.1234567890123456})
"""


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    spool = HistoryWriter(tmp_path / HISTORY_FILE)
    spool.mark("began", 0, total=30)
    for step in (10, 20, 30):
        spool.add(step, {"loss": 1 / step, "rate": 0.1})
    spool.mark("ended", 30, how="done")
    spool.close()
    history = TrainingHistory.read(tmp_path / HISTORY_FILE)
    assert history.curve("loss") == ([10, 20, 30], [0.1, 0.05, 1 / 30])
    assert history.names == ["loss", "rate"]
    assert [event["event"] for event in history.events] == ["began", "ended"]


def test_values_that_are_not_finite_are_kept_and_the_file_stays_json(tmp_path: Path) -> None:
    spool = HistoryWriter(tmp_path / HISTORY_FILE)
    spool.add(1, {"loss": math.nan, "norm": math.inf})
    spool.close()
    line = (tmp_path / HISTORY_FILE).read_text()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    _, (loss,) = TrainingHistory.read(tmp_path / HISTORY_FILE).curve("loss")
    assert math.isnan(loss)


def test_steps_that_were_done_again_after_a_resume_count_once_and_the_later_one_counts(
    tmp_path: Path,
) -> None:
    for first, value in ((1, 5.0), (3, 7.0)):
        spool = HistoryWriter(tmp_path / HISTORY_FILE)
        spool.mark("began", first - 1)
        for step in range(first, first + 4):
            spool.add(step, {"loss": value})
        spool.close()
    assert TrainingHistory.read(tmp_path / HISTORY_FILE).curve("loss") == (
        [1, 2, 3, 4, 5, 6],
        [5.0, 5.0, 7.0, 7.0, 7.0, 7.0],
    )


@pytest.mark.parametrize("trial", range(3))
def test_a_writer_that_is_killed_leaves_whole_points_in_order_and_the_next_goes_on(
    tmp_path: Path, trial: int
) -> None:
    path = tmp_path / HISTORY_FILE
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    while not path.exists() or path.stat().st_size < 20_000 * (trial + 1):
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    with path.open("ab") as stream:
        stream.write(b'{"time_ms":1,"step":7,"val')  # what a kill in the middle of a write leaves
    before = [point.step for point in TrainingHistory.read(path).points]
    assert before == list(range(1, len(before) + 1))
    spool = HistoryWriter(path)
    spool.add(10**9, {"loss": 0.5})
    spool.close()
    assert [point.step for point in TrainingHistory.read(path).points] == [*before, 10**9]


def test_a_disk_that_is_full_is_told_once_and_stops_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    spool = HistoryWriter(Path("/dev/full"))
    for step in range(100):
        spool.add(step, {"loss": 1.0})
    spool.close()
    assert capfd.readouterr().err.count("the curves of this training have gaps: ") == 1


def test_a_history_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert TrainingHistory.read(tmp_path / HISTORY_FILE).points == []
