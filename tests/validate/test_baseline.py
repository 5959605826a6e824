"""From a calculated baseline to the one in use: what is written, who may accept it, and what is compared."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.contracts.frozen import check
from trainwright.artifacts import Record
from trainwright.documents import digest_file
from trainwright.drift.baseline import Baseline, FeatureStatistics, read_features
from trainwright.errors import DataRefused, InputError
from trainwright.storage import take_listing
from trainwright.tracking import environment
from trainwright.validate.baseline import accept, read_baseline
from trainwright.verdicts import Verdict

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]
WHY = "the first model went live"


@pytest.fixture
def clean(rows: Table) -> dict[str, pa.Table]:
    return {"train": rows(4_000, 1), "evaluate": rows(1_000, 2)}


@pytest.fixture
def used(judge: Judge, clean: dict[str, pa.Table], tmp_path: Path) -> dict[str, str]:
    """An accepted baseline, as validate is given it."""
    place = str(tmp_path / "baselines" / "late.json")
    accept(judge(clean).folder / "verdict", place, reason=WHY)
    return {"baseline": place, "baseline_version": take_listing(place).content_digest}


def record(step: str, parents: tuple[Record, ...] = (), to: str = "", **outputs: str) -> Record:
    return Record(
        step=step, headline=f"{step} said so", started="2026-01-01T00:00:00+00:00", seconds=1.0,
        environment=environment(), outputs=outputs, parents=parents,
        decision="PASS" if to else "", config={"request": {"to": to}} if to else {},
    )  # fmt: skip


def test_every_validation_calculates_the_baseline_of_what_the_model_learns_from(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    judged = judge(clean)
    folder = judged.folder / "verdict"
    baseline = Baseline.read(folder)
    assert (baseline.split, baseline.rows, baseline.accepted) == ("train", 4_000, {})
    assert baseline.data_version == judged.verdict.judged["data"]
    assert baseline.statistics_sha256 == digest_file(folder / baseline.statistics)
    assert judged.verdict.judged["baseline.json"] == baseline.digest == judged.record.outputs["baseline.json"]
    assert baseline.values == dict.fromkeys(("id", "at", "hour", "delay", "plan", "late"), 4000)
    for name in ("hour", "delay"):
        places = np.searchsorted(baseline.cuts[name], clean["train"][name].to_numpy(), side="left")
        assert np.bincount(places, minlength=len(baseline.counts[name])).tolist() == list(
            baseline.counts[name]
        )


def test_the_baseline_is_of_the_split_that_is_learned_from_where_that_is_not_the_previous_span(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    judged = judge(clean | {"all": rows(3_000, 3)}, trained_on="all")
    baseline = Baseline.read(judged.folder / "verdict")
    assert (baseline.split, baseline.rows, sum(baseline.counts["hour"])) == ("all", 3_000, 3_000)


@pytest.mark.covers("B41")
def test_a_missing_baseline_holds_unless_something_else_is_asked_for(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    decisions = {how: judge(clean, on_missing_baseline=how) for how in ("hold", "fail", "bootstrap", "skip")}
    assert [entry.verdict.decision for entry in decisions.values()] == ["HOLD", "FAIL", "PASS", "PASS"]
    rules = {
        how: [rule.passed for rule in entry.verdict.rules if rule.name == "baseline"]
        for how, entry in decisions.items()
    }
    assert rules == {"hold": [False], "fail": [False], "bootstrap": [True], "skip": []}
    assert "bootstrap" in decisions["bootstrap"].summary
    assert "none yet" in decisions["hold"].page


def test_the_data_is_compared_with_the_accepted_baseline_and_the_verdict_names_it(
    judge: Judge, clean: dict[str, pa.Table], used: dict[str, str]
) -> None:
    judged = judge(clean, given=used, on_missing_baseline="hold")
    assert judged.verdict.decision == "PASS"
    rules = {rule.name: rule for rule in judged.verdict.rules}
    for name in ("drift/hour", "missing/delay", "new/plan", "drift/late"):
        assert rules[f"baseline/{name}"].value == pytest.approx(rules[name].value)
    assert rules["volume/min"].value == 1.0
    assert rules["baseline"].passed
    assert judged.verdict.judged["baseline"] == Baseline.read(Path(used["baseline"])).digest
    assert "baseline/drift/hour" in judged.outcome.metrics()
    assert "4,000 rows of data" in judged.page


def test_what_moved_since_the_model_was_trained_holds_although_the_previous_span_moved_with_it(
    judge: Judge, used: dict[str, str], rows: Table
) -> None:
    late = {
        n: pa.array(np.random.default_rng(n).integers(16, 24, size)) for n, size in ((5, 4_000), (6, 1_000))
    }
    judged = judge(
        {"train": rows(4_000, 5, hour=late[5]), "evaluate": rows(1_000, 6, hour=late[6])}, given=used
    )
    assert judged.verdict.decision == "HOLD"
    assert judged.headline.startswith("HOLD: 1 of 4 columns moved: hour against baseline 0.")
    assert "Against what the model in production learned from" in judged.page


@pytest.mark.parametrize(("size", "told"), [(1_000, "0.25 times the 4,000"), (20_000, "5 times the 4,000")])
def test_many_more_or_fewer_rows_than_the_baseline_had_hold(
    judge: Judge, clean: dict[str, pa.Table], used: dict[str, str], rows: Table, size: int, told: str
) -> None:
    judged = judge(clean | {"train": rows(size, 7)}, given=used)
    assert judged.verdict.decision == "HOLD"
    assert told in judged.headline


def test_a_baseline_that_changed_since_it_was_looked_at_is_refused(
    judge: Judge, clean: dict[str, pa.Table], used: dict[str, str]
) -> None:
    with pytest.raises(InputError, match="changed after `resolve`"):
        judge(clean, given=used | {"baseline_version": "0" * 64})


def test_statistics_that_are_not_those_of_the_baseline_are_refused(used: dict[str, str]) -> None:
    place = Path(used["baseline"])
    statistics = place.parent / Baseline.read(place).statistics
    statistics.write_bytes(statistics.read_bytes()[:-1])
    with pytest.raises(InputError, match="the statistics of the baseline are"):
        read_baseline(used["baseline"], used["baseline_version"])


def test_a_baseline_that_nobody_accepted_is_not_compared_with(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    place = str(judge(clean).folder / "verdict" / "baseline.json")
    with pytest.raises(InputError, match="nobody has accepted it"):
        read_baseline(place, take_listing(place).content_digest)


def test_a_baseline_that_names_a_file_outside_its_folder_is_refused(used: dict[str, str]) -> None:
    place = Path(used["baseline"])
    content = json.loads(place.read_text())
    place.write_text(json.dumps(content | {"statistics": "../../etc/passwd"}))
    with pytest.raises(InputError, match="outside its folder"):
        read_baseline(str(place), take_listing(str(place)).content_digest)


def test_without_proof_that_a_model_was_promoted_a_reason_is_needed(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="nothing shows that a model"):
        accept(judge(clean).folder / "verdict", str(tmp_path / "b.json"))
    assert not (tmp_path / "b.json").exists()


def test_the_record_of_a_promotion_that_leads_back_to_the_verdict_is_proof(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    folder = judge(clean).folder / "verdict"
    proof = tmp_path / "proof"
    proof.mkdir()
    record("promote", (Record.read(folder),), "production").write(proof)
    done = accept(folder, str(tmp_path / "b.json"), promoted=proof)
    assert done.baseline.accepted["evidence"].endswith(": promote said so")
    for other in (
        record("promote", (record("validate", verdict="0" * 64),), "production"),
        record("register", (Record.read(folder),)),
    ):
        other.write(proof)
        with pytest.raises(InputError, match="does not show that a model which came from verdict"):
            accept(folder, str(tmp_path / "b.json"), promoted=proof)


def test_in_the_folder_of_a_run_verdict_and_proof_are_found(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "validate").mkdir(parents=True)
    (judge(clean).folder / "verdict").rename(run / "validate" / "verdict")
    parent = Record.read(run / "validate" / "verdict")
    for step, to in (("register", ""), ("promote", "staging")):
        (run / step / "entry").mkdir(parents=True)
        record(step, (parent,), to).write(run / step / "entry")
    with pytest.raises(InputError, match=r"nothing shows that a model .* is in production"):
        accept(run, str(tmp_path / "a.json"))
    record("promote", (parent,), "production").write(run / "promote" / "entry")
    done = accept(run, str(tmp_path / "b.json"))
    assert done.baseline.accepted["evidence"].startswith("promote ")
    assert done.baseline.accepted["verdict"] == Verdict.read(run / "validate" / "verdict").digest


def test_the_joined_features_of_the_run_become_part_of_its_baseline(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    run, place = tmp_path / "run", str(tmp_path / "b.json")
    (run / "validate").mkdir(parents=True)
    (judge(clean).folder / "verdict").rename(run / "validate" / "verdict")
    verdict = Verdict.read(run / "validate" / "verdict")
    shutil.copytree(run / "validate" / "verdict", run / "join" / "verdict")
    record("join", (Record.read(run / "validate" / "verdict"),)).write(run / "join" / "verdict")
    found = FeatureStatistics(
        training_set="1" * 64, data_version=verdict.judged["data"], split="train", rows=2,
        types={"price": "double"}, cuts={"price": (0.0, 1.0)}, counts={"price": (0, 1, 1)},
        absent={"price": 0}, by_value={}, reasons={},
    )  # fmt: skip
    found.write(run / "join" / "verdict")
    judged = verdict.judged | {"features/features.json": found.digest}
    replace(verdict, judged=judged).write(run / "join" / "verdict")
    accept(run, place, reason=WHY)
    used = take_listing(place).content_digest
    assert read_features(place, used) == found
    assert read_baseline(place, used) is not None
    replace(found, rows=3).write(run / "join" / "verdict")  # not what was judged
    accept(run, place, reason=WHY)
    assert read_features(place, take_listing(place).content_digest) is None


def test_refused_data_never_becomes_a_baseline(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    refused = judge({name: table.drop(["plan"]) for name, table in clean.items()})
    with pytest.raises(DataRefused, match="it is no baseline"):
        accept(refused.folder / "verdict", str(tmp_path / "b.json"), reason=WHY)


def test_a_baseline_that_was_changed_by_hand_is_not_accepted(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    folder = judge(clean).folder / "verdict"
    path = folder / "baseline.json"
    path.write_text(path.read_text().replace('"rows": 4000', '"rows": 4001'))
    with pytest.raises(InputError, match="is not the one that the verdict names"):
        accept(folder, str(tmp_path / "b.json"), reason=WHY)


def test_the_one_before_is_kept_and_named_and_nothing_of_the_history_is_ever_written_over(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, tmp_path: Path
) -> None:
    place = tmp_path / "b.json"
    first = accept(judge(clean).folder / "verdict", str(place), reason=WHY)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "b.history").iterdir()}
    other = judge(clean | {"train": rows(5_000, 9)})
    second = accept(other.folder / "verdict", str(place), reason="retrained")
    assert second.before == first.baseline
    assert second.baseline.accepted["previous"] == first.baseline.digest
    assert Baseline.read(place) == second.baseline
    now = {path.name: path.read_bytes() for path in (tmp_path / "b.history").iterdir()}
    assert kept.items() <= now.items()
    assert sorted(name for name in now if name.endswith(".json")) == ["000001.json", "000002.json"]
    old = tmp_path / "b.history" / "000001.json"
    again = read_baseline(str(old), take_listing(str(old)).content_digest)
    assert again is not None
    same = {"accepted": {}, "statistics": ""}
    assert replace(again.document, **same) == replace(first.baseline, **same)


def test_a_number_of_the_history_that_is_taken_is_stepped_over(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Another accepted a baseline and died before its last step."""
    folder, place = judge(clean).folder / "verdict", tmp_path / "b.json"
    accept(folder, str(place), reason=WHY)
    place.unlink()
    assert accept(folder, str(place), reason=WHY).history.endswith("000002.json")


def test_baseline_of_an_earlier_version_keeps_its_digest_and_fields(tmp_path: Path) -> None:
    check(Baseline, "baseline", tmp_path)
