"""``trainwright cache explain`` tells why a step was reused or done again, and which files changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.conftest import Venvs
from tests.authoring.steps import bring, count, tell
from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError
from trainwright.local.cache import differences, lines, listing_changes
from trainwright.local.runner import Outcome

Run = Callable[..., Outcome]


def pipeline(source: str, letter: str, marks: str) -> None:
    brought = bring(source=source).set_caching_options(False)
    counted = count(snapshot=brought.outputs["snapshot"], letter=letter, marks=marks)
    tell(number=counted.outputs["Output"])


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "source").write_text("banana")
    return {"source": str(tmp_path / "source"), "letter": "a", "marks": str(tmp_path / "marks")}


def told(outcome: Outcome, step: str) -> str:
    return "\n".join(lines(outcome.folder.parent, outcome.id, step))


def test_first_run_and_a_reused_result_say_so(run: Run, arguments: dict[str, Any]) -> None:
    first, second = run(pipeline, arguments), run(pipeline, arguments)
    assert told(first, "count") == f"count in run {first.id}: done\n  no earlier run here has done it"
    assert told(second, "count") == (
        f"count in run {second.id}: reused; nothing it is made from has changed since run {first.id}"
    )
    assert "it looks outside" in told(second, "bring")


def test_miss_names_what_changed_from_what_to_what(
    run: Run, arguments: dict[str, Any], machine: Venvs
) -> None:
    first = run(pipeline, arguments)
    Path(arguments["source"]).write_text("ananas")
    machine.locks["red"] = "another lock"
    second = run(pipeline, arguments | {"letter": "n"})
    said = told(second, "count")
    assert f"since run {first.id} these have changed" in said
    assert "parameter letter     a  to  n" in said
    assert "lock of red          lock of red  to  another lock" in said
    [content] = [line for line in said.splitlines() if "content of snapshot" in line]
    old, new = content.split("snapshot")[1].split("  to  ")
    assert old.strip() != new.strip()
    assert len(said.splitlines()) == 5


def test_result_that_is_gone_and_a_step_done_on_request_are_told_apart(
    run: Run, arguments: dict[str, Any]
) -> None:
    first = run(pipeline, arguments)
    asked = run(pipeline, arguments, again_from="count")
    assert "because --from or --no-cache asked for it" in told(asked, "count")
    shutil.rmtree(first.folder.parent / ".cache")
    gone = run(pipeline, arguments)
    assert told(gone, "count").endswith(f"run {asked.id} made it from the same, but its result is gone")


def test_section_given_as_json_is_compared_key_by_key() -> None:
    before, after = ({"parameters": {"training": json.dumps({"epochs": n, "seed": 0})}} for n in (3, 4))
    assert list(differences(before, after)) == [("parameter training.epochs", "3", "4")]


def test_unknown_run_or_step_names_the_known_ones(run: Run, arguments: dict[str, Any]) -> None:
    outcome = run(pipeline, arguments)
    with pytest.raises(InputError, match="there is no run 'nope'") as refused:
        list(lines(outcome.folder.parent, "nope", "count"))
    assert outcome.id in str(refused.value)
    with pytest.raises(InputError, match="has not reached a step 'cuont'") as refused:
        list(lines(outcome.folder.parent, outcome.id, "cuont"))
    assert "bring, count, tell" in str(refused.value)


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
