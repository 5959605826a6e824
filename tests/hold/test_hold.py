from pathlib import Path

import pytest

from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.hold.hold import explain
from trainwright.tracking import Stopwatch
from trainwright.verdicts import AT_LEAST, AT_MOST, NotJudged, Rule, Verdict


def verdict(folder: Path, decision: str, **more: object) -> Path:
    rules = (
        Rule(name="auc", value=0.711, limit=0.9, test=AT_LEAST, detail="[0.702, 0.719]"),
        Rule(name="recall gap", value=0.1, limit=0.4, test=AT_MOST),
    )
    folder.mkdir()
    made = Verdict(decision=decision, rules=rules, judged={"predictions": "a" * 64}, **more)  # type: ignore[arg-type]
    made.write(folder)
    return folder


def test_a_held_run_names_the_gate_and_only_the_rules_that_did_not_pass(tmp_path: Path) -> None:
    folder = verdict(
        tmp_path / "verdict",
        "FAIL",
        not_judged=(NotJudged(name="slice origin/LGA", reason="3 positives", decision="INCONCLUSIVE"),),
    )
    earlier = Stopwatch().record(tmp_path, "train", "trained")
    Stopwatch().record(folder, "evaluate", "AUC 0.711 <= 0.900", decision="FAIL", parents=[earlier])
    reason = explain(folder, "evaluate", tmp_path / "record", tmp_path / "summary.md")
    assert reason == "evaluate decided FAIL: AUC 0.711 <= 0.900"
    text = (tmp_path / "summary.md").read_text()
    assert "0.711" in text
    assert "[0.702, 0.719]" in text
    assert "3 positives" in text
    assert "recall gap" not in text
    mine = Record.read(tmp_path / "record")
    assert mine.decision == "", "the gate decided, not this step"
    assert [parent.step for parent in mine.parents] == ["evaluate"]
    assert [parent.step for parent in mine.parents[0].parents] == ["train"]


def test_decision_in_front_of_the_reason_is_not_repeated(tmp_path: Path) -> None:
    folder = verdict(tmp_path / "verdict", "INCONCLUSIVE")
    Stopwatch().record(folder, "evaluate", "INCONCLUSIVE: too few rows", decision="INCONCLUSIVE")
    reason = explain(folder, "evaluate", tmp_path / "record", tmp_path / "summary.md")
    assert reason == "evaluate decided INCONCLUSIVE: too few rows"


def test_a_verdict_without_a_record_is_explained_by_its_rules(tmp_path: Path) -> None:
    folder = verdict(tmp_path / "verdict", "FAIL")
    reason = explain(folder, "validate", tmp_path / "record", tmp_path / "summary.md")
    assert reason == "validate decided FAIL: auc"


def test_a_passing_verdict_is_rejected(tmp_path: Path) -> None:
    folder = verdict(tmp_path / "verdict", "PASS")
    with pytest.raises(InputError, match="evaluate decided PASS"):
        explain(folder, "evaluate", tmp_path / "record", tmp_path / "summary.md")
