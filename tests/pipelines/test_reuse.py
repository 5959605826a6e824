"""What is done again after a change, and what is not: every row of a table, on the real steps.

Each row changes one thing about a source or a run, or several that must change nothing, and says from first
principles what must follow: a step whose input could make a difference is done, any other is reused. That
nothing stale was given is seen by the last step's answer, which is compared with what the files say when they
are read by another method. What every step depends on is in tests/authoring/test_cache.py.
"""

import json
from collections.abc import Callable

import pytest
from kfp import compiler

from tests.pipelines import at_the_source, in_the_run
from tests.pipelines.bench import Bench, Machine, edit, pipeline, truth
from trainwright.local import cache, runner

DONE, REUSED = "done", "cached"
SAME = (REUSED, REUSED)
OTHER = (DONE, DONE)
READ_AGAIN = (DONE, REUSED)
"""The source is read again, and gives the same rows: nothing after it is repeated."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("reuse")
    compiled = folder / "reuse.yaml"
    compiler.Compiler().compile(pipeline, str(compiled))
    bench = Bench(folder, compiled, Machine())
    bench.restore()
    outcome = bench.run()
    assert states(outcome) == (DONE, DONE, DONE), [task.error for task in outcome.tasks]
    return bench


def states(outcome: runner.Outcome) -> tuple[str, ...]:
    found = {task.step: task.state for task in outcome.tasks}
    return found["resolve"], found["ingest"], found["answer"]


def all_of(*changes: Callable[[Bench], None]) -> Callable[[Bench], None]:
    def make(bench: Bench) -> None:
        for change in changes:
            change(bench)

    return make


TABLE: dict[str, tuple[Callable[[Bench], None], tuple[str, str]]] = {
    # the same bytes under the same names
    "files written again in another order, touched, one with another mode": (
        all_of(at_the_source.written_in_another_order, at_the_source.touched, at_the_source.other_mode),
        SAME,
    ),
    "a file becomes a link to the same bytes, beside files that are no tables": (
        all_of(at_the_source.a_link_to_the_same, at_the_source.what_is_no_table),
        SAME,
    ),
    "changed and changed back": (in_the_run.changed_and_changed_back, SAME),
    # other bytes or names
    "a byte, with its size, time and inode kept": (at_the_source.a_byte_and_nothing_that_tells, OTHER),
    "the same, with checksums remembered": (
        at_the_source.remembered_and_a_byte,
        OTHER,
    ),
    "a file renamed to the end": (at_the_source.renamed_to_the_end, OTHER),
    "a file more": (at_the_source.a_file_more, OTHER),
    "a file less": (at_the_source.a_file_less, OTHER),
    "the only partition renamed": (at_the_source.only_partition_renamed, OTHER),
    # other bytes or names that say the same
    "a file renamed in its place and one moved into a folder": (
        all_of(at_the_source.renamed_in_place, at_the_source.into_a_folder),
        READ_AGAIN,
    ),
    "two files exchange their contents": (
        at_the_source.contents_exchanged,
        READ_AGAIN,
    ),
    "every value quoted, with other line ends, and compressed": (
        all_of(at_the_source.quoted, at_the_source.compressed),
        READ_AGAIN,
    ),
    # the same bytes, asked for otherwise
    "copied elsewhere": (at_the_source.copied, READ_AGAIN),
    "reached through a link by a glob": (at_the_source.through_a_link_by_a_glob, READ_AGAIN),
    "a date with the same rows": (in_the_run.a_date_with_the_same_rows, READ_AGAIN),
    "a date with other rows": (in_the_run.a_date_with_other_rows, OTHER),
    # the experiment
    "keys in another order, a default written out, a date and a lock that nothing asks for": (
        all_of(
            in_the_run.data(min_rows=1),
            in_the_run.keys_in_another_order,
            in_the_run.a_date_it_does_not_ask_for,
            in_the_run.lock("torch"),
        ),
        SAME,
    ),
    "a limit that still holds, and another number of workers": (
        all_of(in_the_run.data(min_rows=2), in_the_run.engine(workers=1)),
        READ_AGAIN,
    ),
    "another seed": (in_the_run.another_seed, OTHER),
    "other splits": (in_the_run.other_splits, OTHER),
    # where the shards lie
    "a store, and the source copied elsewhere": (in_the_run.store_kept_and_source_copied, SAME),
    "the same, and a limit that makes it look there": (
        in_the_run.store_kept_and_source_copied_and_read_again,
        READ_AGAIN,
    ),
    "the store moved": (in_the_run.store_moved, READ_AGAIN),
    "the store emptied": (in_the_run.store_emptied, READ_AGAIN),
    # pinned where it lies
    "pinned objects touched": (in_the_run.pinned_again, SAME),
    "pinned objects moved elsewhere": (in_the_run.pinned_and_copied, READ_AGAIN),
    "pinned objects replaced": (in_the_run.pinned_and_changed, OTHER),
    # asked of a database
    "a table that is not read, and the database packed": (
        in_the_run.asked("insert into other values (1); delete from flights where id < 0; vacuum"),
        SAME,
    ),
    "a row of the database": (in_the_run.asked("update flights set x = x + 1 where id = 1000"), OTHER),
    # what works on it
    "the lock of ingest": (in_the_run.lock("ingest"), READ_AGAIN),
}
"""What is changed, how, and what must happen to ``ingest`` and to the step after it."""


@pytest.mark.parametrize("change", TABLE)
def test_a_step_is_done_again_when_and_only_when_it_could_give_another_result(
    change: str, bench: Bench
) -> None:
    make, expected = TABLE[change]
    bench.restore()
    make(bench)
    outcome = bench.run()
    assert states(outcome) == ("done", *expected), [task.error for task in outcome.tasks]
    given = json.loads(outcome.tasks[-1].parameters["Output"])
    windows = "start" in bench.data["splits"]["train"] and change != "other splits"
    of_text = bench.data["source"].split("/")[0] in {"source", "elsewhere", "link"}
    if windows and of_text and bench.data.get("mode") != "reference":
        place = bench.data["source"].replace("{date}", bench.given.get("date", "")).removesuffix("/*.csv")
        assert {name: given[name] for name in ("train", "evaluate")} == truth(bench.folder / place)


def test_explain_names_the_file_behind_a_changed_digest(bench: Bench) -> None:
    bench.restore()
    first = bench.run()
    row = "999,2013-01-31T12:00:00,1,5\n"
    edit(bench.source / "2013-01.csv", "\n", f"\n{row}")
    (bench.source / "2013-03.csv").rename(bench.source / "2013-04.csv")
    second = bench.run()
    said = list(cache.lines(bench.folder / "runs", second.id, "ingest"))
    assert said[:2] == [
        f"ingest in run {second.id}: done",
        f"  since run {first.id} these have changed",
    ]
    assert said[2].startswith("    parameter source_version  ")
    assert said[3] == "  files behind source_version"
    size = (bench.source / "2013-01.csv").stat().st_size
    before, after = said[4].split("  to  ")
    assert before.startswith(f"    changed  2013-01.csv  {size - len(row):,} bytes, md5 ")
    assert after.startswith(f"{size:,} bytes, md5 ")
    assert said[5].startswith("    renamed  2013-03.csv  to  2013-04.csv  ")
    assert said[6:] == ["    the same are 1 of 3 files"]
