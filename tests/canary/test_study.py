"""A thousand canaries exactly at their limit, judged after every batch: few fail, and few pass."""

from dataclasses import replace
from pathlib import Path

from tests.canary.study import AT_LIMIT, AWAY, PAGE, run
from trainwright.canary.canary import LEVEL


def test_of_a_thousand_canaries_at_their_limit_no_more_than_the_stated_share_ever_fails() -> None:
    made = run(replace(AT_LIMIT[3], requests=1500, looks=3))
    assert len(made) == 1000
    assert sum(one.decision == "FAIL" for one in made) <= LEVEL * len(made)
    assert sum(one.decision == "PASS" for one in made) <= LEVEL * len(made)
    assert sum(one.z_failed for one in made) > LEVEL * len(made), "peeking with a z-test fails too many"


def test_canary_twice_as_far_as_its_limit_fails_and_an_equal_one_passes() -> None:
    for case, decision in ((AWAY[0], "PASS"), (AWAY[1], "FAIL")):
        made = run(replace(case, draws=40, looks=4))
        assert sum(one.decision == decision for one in made) >= 38


def test_page_has_every_case_at_the_stated_level() -> None:
    text = Path(PAGE).read_text()
    for case in (*AT_LIMIT, *AWAY):
        [line] = [line for line in text.splitlines() if line.startswith(f"| {case.name} |")]
        if case in AT_LIMIT:
            failed, passed = (float(cell.strip(" %")) / 100 for cell in line.split("|")[5:7])
            assert max(failed, passed) <= LEVEL
