import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.forbidden import FORBID, obey_permissions
from tests.ingest.taking import data, flights, put, take, version_of, whole
from trainwright.artifacts import Listing, Record, Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest, request_digest

SPLITS = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four shards of 100 rows."""
    return put(tmp_path / "in" / "a.parquet", flights(), row_group_size=50)


def section(tmp_path: Path, **changes: object) -> Data:
    base = {"store": str(tmp_path / "store"), "shard_rows": 100, "splits": SPLITS, "runner": {"workers": 1}}
    return data(**(base | changes))


def files_of(store: Path) -> list[str]:
    """Name what lies in a store, without the names of requests and attempts."""
    found = (path.relative_to(store).parts[1:] for path in store.rglob("*") if path.is_file())
    return sorted("/".join(part for part in parts if not part.startswith("attempt-")) for parts in found)


def test_a_store_gets_the_files_and_the_artifact_names_them(tmp_path: Path, source: Path) -> None:
    snapshot = take(source, tmp_path / "out", section(tmp_path))
    folder, store = tmp_path / "out" / "snapshot", tmp_path / "store"
    assert sorted(path.name for path in folder.iterdir()) == ["listing.json", "manifest.json", "record.json"]
    assert all(entry.uri.startswith(f"{store}/") for entry in snapshot.files)
    committed = next(store.glob("*/manifest.json"))
    assert Snapshot.from_json(json.loads(committed.read_text())) == whole(folder) == snapshot
    names = [name.split("-")[0] for name in files_of(store)]
    expected = ["evaluate/part"] * 4 + ["manifest.json"] + [f"shards/{n:05d}.json" for n in range(4)]
    assert names == [*expected, *["train/part"] * 4]
    own = take(source, tmp_path / "own", section(tmp_path, store=None))
    assert own.digest == snapshot.digest


def test_a_committed_request_is_taken_as_it_is_by_the_next_run(tmp_path: Path, source: Path) -> None:
    first = take(source, tmp_path / "1", section(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    second = take(source, tmp_path / "2", section(tmp_path, runner={"workers": 2}))
    assert second == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    assert (tmp_path / "1" / "summary.md").read_text().splitlines()[4:] == (
        (tmp_path / "2" / "summary.md").read_text().splitlines()[4:]
    )
    assert Record.read(tmp_path / "2" / "snapshot").outputs == {"data": first.digest}


def test_a_copied_source_hits_and_another_request_does_not(tmp_path: Path, source: Path) -> None:
    first = take(source, tmp_path / "1", section(tmp_path))
    copy = put(tmp_path / "elsewhere" / "a.parquet", flights(), row_group_size=50)
    assert take(copy, tmp_path / "2", section(tmp_path)) == first
    take(source, tmp_path / "3", section(tmp_path, split_seed=1))
    take(source, tmp_path / "4", section(tmp_path, min_rows=2))
    put(source, flights(401), row_group_size=50)
    take(source, tmp_path / "5", section(tmp_path))
    assert len(list((tmp_path / "store").iterdir())) == 4


def test_the_digest_of_a_request_leaves_out_where_it_is_made_and_goes() -> None:
    def digest(place: str = "a", **changes: object) -> str:
        return request_digest(place, "v", data(**changes))

    same = [
        digest(),
        digest(runner={"workers": 9}),
        digest(store="/s"),
        digest(remember="/r"),
        digest("b", source="y"),
    ]
    assert len(set(same)) == 1
    reference = {"mode": "reference"}
    others = [
        digest(split_seed=1),
        digest(key="ident"),
        digest(shard_rows=7),
        digest(**reference),
        digest("b", **reference),
    ]
    assert len({*same, *others}) == 6


@pytest.mark.parametrize("how", ["gone", "flipped", "shorter"])
def test_a_committed_file_that_is_not_what_it_was_is_made_anew(
    tmp_path: Path, source: Path, how: str
) -> None:
    first = take(source, tmp_path / "1", section(tmp_path))
    victim = Path(first.files[1].uri)
    content = victim.read_bytes()
    victim.unlink()
    if how != "gone":
        changed = content[:-1] if how == "shorter" else content[:50] + bytes([content[50] ^ 1]) + content[51:]
        victim.write_bytes(changed)
    second = take(source, tmp_path / "2", section(tmp_path))
    assert second.digest == first.digest
    whole(tmp_path / "2" / "snapshot")


def test_a_refused_request_leaves_nothing_in_the_store(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DataRefused):
        take(source, tmp_path / "1", section(tmp_path, min_rows=399))
    put(source, flights(id=[None] * 400), row_group_size=50)
    with pytest.raises(InputError):
        take(source, tmp_path / "2", section(tmp_path))
    assert files_of(tmp_path / "store") == []


def test_a_reference_keeps_only_its_manifest_and_reports_in_the_store(tmp_path: Path) -> None:
    table = flights(24)
    table = table.set_column(2, "late", table["late"].cast("int64"))
    source = put(tmp_path / "in" / "a.parquet", table)
    windows = {"train": {"start": "2013-01-01", "end": "2013-01-02"}}
    pinned = section(tmp_path, mode="reference", splits=windows)
    first, second = take(source, tmp_path / "1", pinned), take(source, tmp_path / "2", pinned)
    assert first == second == whole(tmp_path / "2" / "snapshot")
    assert files_of(tmp_path / "store") == ["manifest.json", "shards/00000.json"]
    moved = put(tmp_path / "other" / "a.parquet", table)
    third = take(moved, tmp_path / "3", pinned)
    assert third.digest == first.digest
    assert third.files[0].uri == str(moved)


TWO = """
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from trainwright.artifacts import Snapshot
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
import trainwright.sources.files

root, source, version, section = sys.argv[1:]
EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"}


def stop_at(limit, below):
    calls = 0

    def count(event, arguments):
        nonlocal calls
        if event in EVENTS or (event == "open" and str(arguments[0]).startswith(below)):
            calls += 1
            if calls == limit:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(count)


def start(folder, name, limit=0):
    child = os.fork()
    if child == 0:
        if limit:
            stop_at(limit, str(folder))
        data = Data.parse(section, "test").model_copy(update={"store": str(folder / "store")})
        ingest(source, version, data, folder / name, folder / f"{name}.md")
        os._exit(0)
    return child


for limit in range(1, 1000, 6):
    folder = Path(root) / f"{limit:03d}"
    folder.mkdir()
    first = start(folder, "a", limit)
    _, status = os.waitpid(first, os.WUNTRACED)
    stopped = os.WIFSTOPPED(status)
    assert stopped or status == 0, status
    second = start(folder, "b")
    assert os.waitpid(second, 0)[1] == 0
    if stopped:
        os.kill(first, signal.SIGCONT)
        assert os.waitpid(first, 0)[1] == 0
    print(int(stopped), flush=True)
    if not stopped:
        break
"""


def test_two_attempts_at_once_end_with_one_manifest_wherever_the_first_is_held_up(
    tmp_path: Path, source: Path
) -> None:
    """The first is stopped before one of its operations on files; the second runs; the first goes on."""
    asked = section(tmp_path, shard_rows=200)
    expected = take(source, tmp_path / "alone", asked)
    root = tmp_path / "runs"
    root.mkdir()
    command = [sys.executable, "-c", TWO, root, source, version_of(source), asked.to_json()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 8
    for folder in sorted(root.iterdir()):
        first, second = whole(folder / "a"), whole(folder / "b")
        assert first == second
        assert first.digest == expected.digest
        names = {str(path) for path in (folder / "store").rglob("*.parquet")}
        assert names == {entry.uri for entry in first.files}
        assert not list((folder / "store").rglob("*.fingerprints"))


def test_the_artifact_has_its_listing_and_record_whatever_the_road(tmp_path: Path, source: Path) -> None:
    for name in ("made", "adopted"):
        take(source, tmp_path / name, section(tmp_path))
        folder = tmp_path / name / "snapshot"
        assert Listing.read(folder).content_digest == version_of(source)
        assert Record.read(folder).inputs["source"] == version_of(source)


def test_an_unreachable_store_leaves_the_artifact_as_it_was(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    asked = section(tmp_path, store=str(tmp_path / "file" / "store"))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the disk says
        ingest(str(source), version_of(source), asked, tmp_path / "out", tmp_path / "summary.md")
    assert not (tmp_path / "out").exists()


FORK = multiprocessing.get_context("fork")
TOGETHER = FORK.Barrier(2)


def attempt(source: Path, folder: Path, seed: int) -> str:
    """Take the source several times, together with another process; return what became of the attempts."""
    outcomes = []
    for number in range(4):
        TOGETHER.wait(120)
        try:
            take(source, folder, data(split_seed=seed * 10 + number, splits=SPLITS, runner={"workers": 1}))
        except Exception as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("whole")
    return " ".join(outcomes)


def test_ingests_at_once_in_one_folder_leave_a_whole_snapshot_and_typed_errors(
    tmp_path: Path, source: Path
) -> None:
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        jobs = [pool.submit(attempt, source, tmp_path, seed) for seed in range(2)]
        outcomes = " ".join(job.result() for job in jobs).split()
    assert set(outcomes) == {"whole", "TransientError"}
    whole(tmp_path / "snapshot")
    assert not list((tmp_path / "snapshot").glob(".*"))


STEP = """
import sys
from pathlib import Path
from tests.ingest.taking import take
from trainwright.errors import reported
with reported("ingest"):
    take(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.covers("B12")
@pytest.mark.parametrize("forbid", FORBID)
def test_step_that_may_not_write_ends_with_50(
    tmp_path: Path, source: Path, forbid: Callable[[Path], list[str]]
) -> None:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    command = [*forbid(folder), sys.executable, "-c", STEP, str(source), str(folder)]
    done = subprocess.run(command, preexec_fn=obey_permissions, capture_output=True, text=True, check=False)
    assert done.returncode == 50, done.stderr
    assert f"at    {folder}" in done.stderr
