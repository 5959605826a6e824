"""Which files of a source differ between two runs."""

from trainwright.artifacts import Listing, SourceFile
from trainwright.local.cache_explanation import listing_changes

A, B = "md5:" + "a" * 32, "md5:" + "b" * 32


def listing(files: dict[str, tuple[int, str]], folder: str = "/data") -> Listing:
    return Listing(
        source=folder,
        files=tuple(
            SourceFile(uri=f"{folder}/{name}", size=size, checksum=checksum)
            for name, (size, checksum) in sorted(files.items())
        ),
    )


def test_every_kind_of_change_is_named_with_sizes_and_checksums() -> None:
    before = listing({"a": (1, A), "b": (2, A), "c": (3, A), "d": (4, A)})
    after = listing({"a": (1, A), "b": (2, B), "e": (4, A), "f": (1_234, B)}, "gs://bucket/rows")
    assert list(listing_changes(before, after)) == [
        "changed  b  2 bytes, md5 aaaaaaaaaaaa…  to  2 bytes, md5 bbbbbbbbbbbb…",
        "renamed  d  to  e  4 bytes, md5 aaaaaaaaaaaa…",
        "added    f  1,234 bytes, md5 bbbbbbbbbbbb…",
        "removed  c  3 bytes, md5 aaaaaaaaaaaa…",
        "the same are 1 of 4 files",
    ]


def test_two_equal_files_that_were_renamed_are_paired_one_to_one() -> None:
    before = listing({"a": (1, A), "b": (1, A), "z": (9, B)})
    after = listing({"c": (1, A), "z": (9, B)})
    assert [line.split("  ")[0] for line in listing_changes(before, after)] == [
        "renamed",
        "removed",
        "the same are 1 of 2 files",
    ]


def test_many_changes_are_counted_rather_than_shown() -> None:
    before = listing({"kept": (1, A)} | {f"{number:05d}": (1, A) for number in range(5_000)})
    after = listing({"kept": (1, A)} | {f"{number:05d}": (1, B) for number in range(5_000)})
    said = list(listing_changes(before, after))
    assert len(said) == 22
    assert said[-2:] == ["and 4,980 more", "the same are 1 of 5,001 files"]
