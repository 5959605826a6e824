"""A process that is killed before each of its operations on files in turn, and what readers find then."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.taking import data, flights, put, take, version_of, whole
from tests.storage.stores import Bucket
from tests.tables.kills import kill_everywhere
from trainwright import storage
from trainwright.artifacts import Snapshot
from trainwright.ingest.ingest import ingest

BEFORE = """
import shutil
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
import trainwright.sources.files

def run(folder, source, version, section):
    data = Data.parse(section, "test")
    if data.store:
        data = data.model_copy(update={"store": str(folder / "store")})
    ingest(source, version, data, folder / "snapshot", folder / "summary.md")

def before(folder):
    made = Path(ROOT).with_name("before")
    if ARGUMENTS[4:] and not made.exists():
        run(made, *ARGUMENTS[4:6], ARGUMENTS[2])
    if ARGUMENTS[4:]:
        shutil.copytree(made, folder, dirs_exist_ok=True)

def act(folder):
    run(folder, *ARGUMENTS[:3])
"""

SPLITS = {"all": {"fraction": 1}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two shards of 200 rows."""
    return put(tmp_path / "new" / "in.parquet", flights(), row_group_size=100)


def test_readers_of_the_folder_find_the_old_snapshot_or_the_new_one_at_every_moment(
    tmp_path: Path, source: Path
) -> None:
    """One shard: that some of two are there is tested with a store, where a later run uses them again."""
    old_source = put(tmp_path / "old" / "in.parquet", flights(300), row_group_size=100)
    section = data(splits=SPLITS, shard_rows=400, runner={"workers": 1})
    old, new = take(old_source, tmp_path / "1", section), take(source, tmp_path / "2", section)
    arguments = (str(source), version_of(source), section.to_json(), "")
    runs = kill_everywhere(BEFORE, tmp_path / "runs", *arguments, str(old_source), version_of(old_source))
    states = [whole(folder / "snapshot").digest for folder in runs]
    assert set(states) == {old.digest, new.digest}
    assert states == sorted(states, key=[old.digest, new.digest].index), "once new, never old again"
    for folder in runs:
        again = ingest(str(source), version_of(source), section, folder / "snapshot", folder / "summary.md")
        assert again.digest == new.digest == whole(folder / "snapshot").digest
        there = {str(path.relative_to(folder / "snapshot")) for path in (folder / "snapshot").rglob("*.*")}
        assert there == {entry.uri for entry in again.files} | {
            "manifest.json",
            "listing.json",
            "record.json",
        }


@pytest.mark.covers("F38")
def test_readers_of_a_store_find_no_manifest_or_a_whole_one_and_the_next_run_goes_on(
    tmp_path: Path, source: Path
) -> None:
    section = data(splits=SPLITS, shard_rows=200, runner={"workers": 1}, store=str(tmp_path / "store"))
    expected = take(source, tmp_path / "whole", section)
    arguments = (str(source), version_of(source), section.to_json(), "")
    states, reused = [], []
    for folder in kill_everywhere(BEFORE, tmp_path / "runs", *arguments):
        store = folder / "store"
        manifests = list(store.glob("*/manifest.json"))
        states.append(len(manifests))
        for path in manifests:
            there = Snapshot.from_json(json.loads(path.read_text()))
            assert there.digest == expected.digest
            assert all(Path(entry.uri).stat().st_size == entry.size for entry in there.files)
        kept = {path: path.stat().st_ino for path in store.glob("*/shards/*.json")}
        reused.append(len(kept))
        own = section.model_copy(update={"store": str(store)})
        again = ingest(str(source), version_of(source), own, folder / "snapshot", folder / "summary.md")
        assert again.digest == expected.digest == whole(folder / "snapshot").digest
        assert {path: path.stat().st_ino for path in kept} == kept, "what was committed is used again"
        names = {str(path) for path in store.rglob("*.parquet")}
        assert names == {entry.uri for entry in again.files}, "and what was not is cleaned up"
    assert set(states) == {0, 1}
    assert set(reused) == {0, 1, 2}


REQUESTS = """
import os, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
import trainwright.sources.files, trainwright.storage.gs

root, store, source, version, section = sys.argv[1:]


def kill_at(limit):
    calls = 0

    def count(event, arguments):
        nonlocal calls
        if event == "http.client.send" and bytes(arguments[1][:6]).split(b" ")[0].isupper():
            calls += 1
            if calls == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


for limit in range(1, 500):
    child = os.fork()
    if child == 0:
        kill_at(limit)
        data = Data.parse(section, "test").model_copy(update={"store": f"{store}/{limit:03d}"})
        ingest(source, version, data, Path(root) / f"{limit:03d}", Path(root) / f"{limit:03d}.md")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    if code == 0:
        break
"""


@pytest.mark.covers("F38")
def test_a_kill_before_any_request_to_a_bucket_leaves_no_manifest_or_a_whole_one(
    tmp_path: Path, source: Path, gs: Bucket
) -> None:
    section = data(splits=SPLITS, shard_rows=400, runner={"workers": 1})
    expected = take(source, tmp_path / "whole", section)
    (tmp_path / "runs").mkdir()
    arguments = [tmp_path / "runs", f"{gs.uri}/store", source, version_of(source), section.to_json()]
    command = [sys.executable, "-c", REQUESTS, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    *killed, last = map(int, done.stdout.split())
    assert (set(killed), last) == ({-signal.SIGKILL}, 0), done.stderr
    assert len(killed) > 10
    states = []
    for limit in range(1, len(killed) + 2):
        store = f"{gs.uri}/store/{limit:03d}"
        states.append(len(manifests := list(storage.find(store, "manifest.json"))))
        for uri in manifests:
            there = Snapshot.from_json(json.loads(storage.read_bytes(uri)))
            assert there.digest == expected.digest
            assert all(storage.head(entry.uri, entry.version).size == entry.size for entry in there.files)
        own = section.model_copy(update={"store": store})
        again = ingest(str(source), version_of(source), own, tmp_path / "again", tmp_path / "summary.md")
        assert again.digest == expected.digest
        left = {file.uri for file in storage.list_files(store) if file.uri.endswith(".parquet")}
        assert left == {entry.uri for entry in again.files}
    assert set(states) == {0, 1}
    assert states == sorted(states)
