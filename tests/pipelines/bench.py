"""A source of three files, an experiment that reads it, and runs of the real steps that share one cache."""

import csv
import gzip
import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kfp import dsl

from components.ingest.component import ingest
from components.resolve.component import resolve
from trainwright.authoring import arguments, images
from trainwright.configure.configuration import ELSEWHERE
from trainwright.experiment import Data
from trainwright.local import runner
from trainwright.local.execution import Environments

FLIGHTS = Path(__file__).resolve().parents[2] / "examples" / "flights"
MONTHS = ("01", "02", "03")
ROWS = 40


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def answer(snapshot: dsl.Input[dsl.Dataset], data_version: str) -> str:
    """Digest every split's rows in order."""
    import hashlib
    import json
    from pathlib import Path

    from trainwright.artifacts import Snapshot
    from trainwright.tables import read_split

    folder = Path(snapshot.path)
    manifest = Snapshot.open(folder, data_version)
    found = {}
    for split in manifest.splits:
        rows = read_split(folder, manifest, split, ["id", "x"]).to_pylist()
        text = "\n".join(f"{row['id']},{row['x']}" for row in rows)
        found[split] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(found, sort_keys=True)


@dsl.pipeline(name="reuse")
def pipeline(source: str, data: dict, date: str = "") -> None:
    now = resolve(source=source, data=data, date=date).set_caching_options(False)
    taken = ingest(source=now.outputs["source"], source_version=now.outputs["version"], data=data)
    answer(snapshot=taken.outputs["snapshot"], data_version=taken.outputs["Output"])


class Machine(Environments):
    """The real environments, with locks that a row can change, and a library that nobody edits meanwhile."""

    def __init__(self) -> None:
        self.other: dict[str, str] = {}

    def library_digest(self) -> str:
        return "as it is"

    def lock_digest(self, toolchain: str) -> str:
        return self.other.get(toolchain) or super().lock_digest(toolchain)


@dataclass
class Bench:
    """A source of three files, an experiment that reads it, and one cache for all runs."""

    folder: Path
    compiled: Path
    machine: Machine
    experiment: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def data(self) -> dict[str, Any]:
        section: dict[str, Any] = self.experiment["data"]
        return section

    def restore(self) -> None:
        """Put everything back as it was at first, in new files."""
        for place in ("source", "elsewhere", "link", "pinned"):
            path = self.folder / place
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        write(self.source)
        self.machine.other, self.given = {}, {}
        self.experiment = yaml.safe_load((FLIGHTS / "flights.yaml").read_text())
        self.experiment["data"] = {
            "source": "source",
            "key": "id",
            "time": "at",
            "label": "late",
            "splits": {
                "train": {"start": "2013-01-01", "end": "2013-03-01"},
                "evaluate": {"start": "2013-03-01", "end": "2013-04-01"},
            },
        }
        for name in ("feature_repo", "schema.pbtxt"):
            if not (self.folder / name).exists():
                (self.folder / name).symlink_to(FLIGHTS / name)

    def run(self) -> runner.Outcome:
        path = self.folder / "experiment.yaml"
        path.write_text(yaml.safe_dump(self.experiment, sort_keys=False))
        given = arguments.read(path) | self.given
        section = Data.check(given["data"], "data")
        given |= {"source": section.source, "data": section.to_parameter() | {"source": ELSEWHERE}}
        wanted = {name: value for name, value in given.items() if name in {"source", "data", "date"}}
        return runner.run(self.compiled, wanted, runs_folder=self.folder / "runs", machine=self.machine)


def rows_of(month: str) -> list[dict[str, str]]:
    first = int(month) * 1000
    return [
        {
            "id": str(first + number),
            "at": f"2013-{month}-{1 + number % 28:02d}T12:00:00",
            "late": str(number % 2),
            "x": str((first + number) * 7 % 101),
        }
        for number in range(ROWS)
    ]


def write(folder: Path, months: tuple[str, ...] = MONTHS) -> None:
    folder.mkdir(parents=True)
    for month in months:
        write_file(folder / f"2013-{month}.csv", rows_of(month))


def write_file(path: Path, rows: list[dict[str, str]], **how: Any) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows_of("01")[0]), **{"lineterminator": "\n"} | how)
        writer.writeheader()
        writer.writerows(rows)


def truth(source: Path) -> dict[str, str]:
    """What the files say now: each split's rows in the order of the files' names."""
    splits: dict[str, list[str]] = {"train": [], "evaluate": []}
    for path in sorted(
        path for path in source.rglob("2013-*.csv*") if "_" not in str(path.relative_to(source))
    ):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for row in csv.DictReader(content.decode().splitlines()):
            split = "evaluate" if row["at"] >= "2013-03-01" else "train"
            splits[split].append(f"{row['id']},{row['x']}")
    return {name: hashlib.sha256("\n".join(rows).encode()).hexdigest() for name, rows in splits.items()}


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
