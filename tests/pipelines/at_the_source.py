"""Changes of the files of a source, each of one thing."""

import csv
import gzip
import os
import shutil
from pathlib import Path

from tests.pipelines.bench import MONTHS, Bench, edit, rows_of, write, write_file


def touched(bench: Bench) -> None:
    for path in bench.source.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))


def other_mode(bench: Bench) -> None:
    (bench.source / "2013-01.csv").chmod(0o400)


def written_in_another_order(bench: Bench) -> None:
    shutil.rmtree(bench.source)
    write(bench.source, MONTHS[::-1])


def a_link_to_the_same(bench: Bench) -> None:
    (bench.source / ".kept").mkdir()
    (bench.source / "2013-02.csv").rename(bench.source / ".kept" / "february")
    (bench.source / "2013-02.csv").symlink_to(Path(".kept") / "february")


def what_is_no_table(bench: Bench) -> None:
    for name in (".2013-04.csv", "_SUCCESS", "notes.txt", "_temporary/2013-05.csv"):
        (bench.source / name).parent.mkdir(exist_ok=True)
        (bench.source / name).write_text("id\n1\n")


def a_byte_and_nothing_that_tells(bench: Bench) -> None:
    path = bench.source / "2013-02.csv"
    before = path.stat()
    with path.open("r+") as stream:
        text = stream.read()
        place = text.index(",0,62\n")
        stream.seek(place)
        stream.write(",0,64\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )


def remembered_and_a_byte(bench: Bench) -> None:
    bench.data["remember"] = "remembered"
    bench.run()
    a_byte_and_nothing_that_tells(bench)
    edit(bench.source / "2013-03.csv", ",0,", ",1,")


def contents_exchanged(bench: Bench) -> None:
    write_file(bench.source / "2013-02.csv", rows_of("03"))
    write_file(bench.source / "2013-03.csv", rows_of("02"))


def renamed_in_place(bench: Bench) -> None:
    (bench.source / "2013-02.csv").rename(bench.source / "2013-02b.csv")


def renamed_to_the_end(bench: Bench) -> None:
    (bench.source / "2013-01.csv").rename(bench.source / "2013-09.csv")


def into_a_folder(bench: Bench) -> None:
    (bench.source / "2013").mkdir()
    (bench.source / "2013-03.csv").rename(bench.source / "2013" / "2013-03.csv")


def a_file_more(bench: Bench) -> None:
    rows = [row | {"id": str(9000 + number)} for number, row in enumerate(rows_of("03"))]
    write_file(bench.source / "2013-04.csv", rows)


def a_file_less(bench: Bench) -> None:
    (bench.source / "2013-02.csv").unlink()


def only_partition_renamed(bench: Bench) -> None:
    """The name of a folder is the value of a column, also where all files share it."""
    write(bench.folder / "elsewhere" / "day=1")
    bench.data["source"] = "elsewhere"
    bench.run()
    (bench.folder / "elsewhere" / "day=1").rename(bench.folder / "elsewhere" / "day=2")


def compressed(bench: Bench) -> None:
    path = bench.source / "2013-02.csv"
    with gzip.open(bench.source / "2013-02.csv.gz", "wb") as stream:
        stream.write(path.read_bytes())
    path.unlink()


def quoted(bench: Bench) -> None:
    write_file(bench.source / "2013-02.csv", rows_of("02"), quoting=csv.QUOTE_ALL, lineterminator="\r\n")


def copied(bench: Bench) -> None:
    write(bench.folder / "elsewhere")
    bench.data["source"] = "elsewhere"


def through_a_link_by_a_glob(bench: Bench) -> None:
    (bench.folder / "link").symlink_to(bench.source)
    bench.data["source"] = "link/*.csv"
