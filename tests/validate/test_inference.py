"""A schema inferred from the rows: what it holds, and how a later run is held to it."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.artifacts.snapshot import SnapshotTarget
from trainwright.errors import InputError
from trainwright.experiment import Validation
from trainwright.tables import write_snapshot
from trainwright.validate.inference import infer_schema
from trainwright.validate.schema import kind, parse_schema
from trainwright.validate.validate import ValidationContext, ValidationOutputs, validate_snapshot
from trainwright.verdicts import Verdict

KINDS = SnapshotTarget(kind="multiclass", classes=("basic", "team", "free"))


def table(rows: int, seed: int, **columns: Any) -> pa.Table:
    """Rows with a number, a string, a text, a flag and a label of three classes; the key is the row."""
    draw = np.random.default_rng(seed)
    drawn: dict[str, Any] = {
        "row": pa.array(range(seed * 10_000, seed * 10_000 + rows)),
        "size": pa.array(draw.normal(10, 2, rows)),
        "town": pa.array(draw.choice(["Bonn", "Kiel", "Ulm"], rows)),
        "note": pa.array([f"{'a long remark ' * 20}{number % 7}" for number in range(rows)]),
        "member": pa.array(draw.random(rows) < 0.5),
        "plan": pa.array(draw.integers(0, 3, rows)),
    }
    return pa.table({name: column for name, column in (drawn | columns).items() if column is not None})


Run = Callable[..., tuple[Verdict, Path]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Validate two splits; return the verdict and the folder of all outputs."""
    numbers: Iterator[int] = count()

    def validate(
        splits: dict[str, pa.Table],
        target: SnapshotTarget = KINDS,
        roles: dict[str, str] | None = None,
        place: str = "",
        text: str = "",
        **section: Any,
    ) -> tuple[Verdict, Path]:
        out = tmp_path / f"run-{next(numbers)}"
        tables = {name: [rows] for name, rows in splits.items()}
        roles = {"key": "row", "label": "plan"} if roles is None else roles
        made = write_snapshot(out / "snapshot", tables, parents={}, roles=roles, target=target)
        names = ("verdict", "quarantine", "report.html", "summary.md")
        validate_snapshot(
            out / "snapshot",
            made.digest,
            Validation.check({"on_missing_baseline": "skip", **section}, "test"),
            ValidationContext(text, schema_place=place),
            ValidationOutputs(*(out / name for name in names)),
        )
        verdict = Verdict.read(out / "verdict")
        assert verdict.recomputed() == verdict.decision
        return verdict, out

    return validate


def clean(rows: int = 600) -> dict[str, pa.Table]:
    return {"train": table(rows, 1), "evaluate": table(rows // 4, 2)}


def test_without_a_schema_one_is_inferred_and_holds_the_data(run: Run) -> None:
    verdict, out = run(clean())
    assert verdict.decision == "HOLD"
    broken = [rule.name for rule in verdict.rules if not rule.passed]
    assert broken == ["schema", "schema/SCHEMA_INFERRED"]
    schema = (out / "verdict" / "schema.pbtxt").read_text()
    assert schema.startswith("# Inferred from 600 rows of train and 150 rows of evaluate, data ")
    assert "# Label plan: 0 basic, 1 team, 2 free\n" in schema
    page = (out / "report.html").read_text()
    assert "Inferred schema" in page
    assert "0 basic, 1 team, 2 free" in page
    assert "schema_file" in (out / "summary.md").read_text()


def test_the_inferred_schema_passes_when_it_is_used(run: Run) -> None:
    _, out = run(clean())
    verdict, _ = run(clean(), text=(out / "verdict" / "schema.pbtxt").read_text())
    assert verdict.decision == "PASS", [rule for rule in verdict.rules if not rule.passed]


@pytest.mark.parametrize(
    "section",
    [
        {"severity": [{"kind": "*", "severity": "WARN"}]},
        {"suppressions": [{"kind": "SCHEMA_*", "reason": "all is well", "until": "2999-01-01"}]},
    ],
)
def test_a_wildcard_neither_lowers_nor_suppresses_an_inferred_schema(run: Run, section: Any) -> None:
    assert run(clean(), **section)[0].decision == "HOLD"


@pytest.mark.parametrize(
    "section",
    [
        {"severity": [{"kind": "SCHEMA_INFERRED", "severity": "WARN"}]},
        {"suppressions": [{"kind": "SCHEMA_INFERRED", "reason": "no", "until": "2999-01-01"}]},
    ],
)
def test_a_rule_that_lowers_an_inferred_schema_is_rejected(section: Any) -> None:
    with pytest.raises(InputError, match="ends with a review"):
        Validation.check(section, "test")


def test_bootstrap_writes_the_schema_and_holds_the_next_run_to_it(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "new" / "schema.pbtxt"
    first, out = run(clean(), place=str(place), on_missing_schema="bootstrap")
    assert first.decision == "PASS"
    assert "SCHEMA_INFERRED" in [rule.name.rpartition("/")[2] for rule in first.rules]
    text = place.read_text()
    assert text == (out / "verdict" / "schema.pbtxt").read_text()

    def kinds(splits: dict[str, pa.Table]) -> list[str]:
        verdict, _ = run(splits, text=text, place=str(place), on_missing_schema="bootstrap")
        parts = [rule.name.split("/") for rule in verdict.rules if rule.name.startswith("schema/")]
        names = dict.fromkeys("/".join(part[-2:]) for part in parts)
        return [f"{verdict.decision} {name}" for name in names]

    assert kinds(clean()) == []
    wider = {name: rows.append_column("gate", rows["size"]) for name, rows in clean().items()}
    assert kinds(wider) == ["PASS gate/SCHEMA_NEW_COLUMN"]
    retyped = {
        name: rows.set_column(1, "size", rows["size"].cast(pa.string())) for name, rows in clean().items()
    }
    assert kinds(retyped) == ["FAIL size/UNEXPECTED_DATA_TYPE"]
    towns = pa.array(["Rome"] * 75 + ["Bonn"] * 75)
    assert kinds(clean() | {"evaluate": table(150, 2, town=towns)}) == [
        "HOLD town/ENUM_TYPE_UNEXPECTED_STRING_VALUES"
    ]
    assert place.read_text() == text


def test_a_second_attempt_of_a_bootstrap_finds_its_own_schema(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "schema.pbtxt")
    for _ in range(2):
        assert run(clean(), place=place, on_missing_schema="bootstrap")[0].decision == "PASS"


def test_a_schema_of_another_run_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "schema.pbtxt"
    place.write_text("# another run's\n")
    with pytest.raises(InputError, match="another run wrote a different schema"):
        run(clean(), place=str(place), on_missing_schema="bootstrap")
    assert place.read_text() == "# another run's\n"


def test_data_that_fails_bootstraps_no_schema(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "schema.pbtxt"
    constant = {name: table(n, 1, plan=pa.array([0] * n)) for name, n in (("train", 600), ("evaluate", 150))}
    assert run(constant, place=str(place), on_missing_schema="bootstrap")[0].decision == "FAIL"
    assert not place.exists()


def test_a_schema_that_is_absent_without_bootstrap_is_an_error(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no schema") as error:
        run(clean(), place=str(tmp_path / "schema.pbtxt"))
    assert error.value.where == str(tmp_path / "schema.pbtxt")


def test_missing_values_in_another_split_relax_the_schema(run: Run) -> None:
    sizes = pa.array([None, *np.random.default_rng(2).normal(10, 2, 149)])
    splits = clean() | {"evaluate": table(150, 2, size=sizes)}
    _, out = run(splits)
    assert run(splits, text=(out / "verdict" / "schema.pbtxt").read_text())[0].decision == "PASS"


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (SnapshotTarget(), pa.array([0, 1] * 300)),
        (SnapshotTarget(kind="regression"), pa.array(np.random.default_rng(5).normal(size=600))),
        (KINDS, pa.array([0, 1, 2] * 200)),
    ],
    ids=["binary", "regression", "multiclass"],
)
def test_every_kind_of_label_passes_its_own_inferred_schema(
    run: Run, target: SnapshotTarget, label: Any
) -> None:
    splits = {"train": table(600, 1, plan=label), "evaluate": table(150, 2, plan=label[:150])}
    _, out = run(splits, target=target)
    text = (out / "verdict" / "schema.pbtxt").read_text()
    verdict, _ = run(splits, target=target, text=text)
    assert verdict.decision == "PASS", verdict.rules
    (feature,) = [entry for entry in parse_schema(text, "here").feature if entry.name == "plan"]
    assert kind(feature) == ("numbers" if target.kind == "regression" else "categories")


def test_text_is_neither_listed_nor_compared_and_does_not_hold(run: Run) -> None:
    prose = [f"{'word ' * 2_000}{number}" for number in range(400)]
    splits = {
        name: pa.table({"row": range(start, end), "text": prose[start:end]})
        for name, start, end in (("train", 0, 300), ("evaluate", 300, 400))
    }
    options = {"target": SnapshotTarget(kind="text"), "roles": {"key": "row"}}
    _, out = run(splits, **options)
    text = (out / "verdict" / "schema.pbtxt").read_text()
    assert "word" not in text
    assert (out / "verdict" / "statistics-train.pb").stat().st_size < 10_000
    verdict, out = run(splits, text=text, **options)
    assert verdict.decision == "PASS"
    assert [(entry.name, entry.decision) for entry in verdict.not_judged] == [("drift/text", "")]
    assert "word word" not in (out / "report.html").read_text()


def test_identifiers_and_few_long_values_are_text(tmp_path: Path) -> None:
    rows = table(600, 1, town=pa.array([f"customer {number}" for number in range(600)]))
    write_snapshot(tmp_path, {"train": [rows]}, parents={}, roles={"key": "row"}, target=KINDS)
    schema = parse_schema(infer_schema(tmp_path, "train"), "here")
    kinds = {feature.name: kind(feature) for feature in schema.feature}
    assert (kinds["town"], kinds["note"], kinds["member"]) == ("text", "text", "categories")
    assert not schema.string_domain


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    made = {"train": [table(5, 1).slice(0, 0)], "evaluate": [table(5, 2)]}
    write_snapshot(tmp_path, made, parents={}, roles={"key": "row"}, target=KINDS)
    assert Snapshot.read(tmp_path).splits["evaluate"] == 5
    with pytest.raises(InputError, match="split 'train' has no rows to infer a schema from"):
        infer_schema(tmp_path, "train")


def test_classes_have_their_names_on_the_page_and_in_findings(run: Run) -> None:
    labels = pa.array([0] * 100 + [2] * 50)
    verdict, out = run(clean() | {"evaluate": table(150, 2, plan=labels)}, min_label_share=0.4)
    assert verdict.decision == "HOLD"
    page = (out / "report.html").read_text()
    assert "The largest change is at team: 0.0% of rows" in page
    assert "the label plan is free in 33.33% of the labelled rows of evaluate" in page


def test_few_rows_with_one_class_are_too_few_to_tell(run: Run) -> None:
    """With 3 % of class 1, 22 rows have none in half of all draws: 0.97 ** 22 = 0.51."""
    rare = pa.array([1] * 18 + [0] * 582)
    splits = {"train": table(600, 1, plan=rare), "evaluate": table(22, 2, plan=pa.array([0] * 22))}
    verdict, _ = run(splits, target=SnapshotTarget(), on_missing_schema="bootstrap", place="")
    entries = {entry.name: entry for entry in verdict.not_judged}
    assert entries["label/evaluate/values"].reason == (
        "too few rows to tell: the label plan is 0 in all 22 labelled rows of evaluate, and in 97.0% of "
        "those of train"
    )
    assert entries["label/evaluate/values"].needed == 152
    assert verdict.decision == "PASS"
    splits["evaluate"] = table(200, 2, plan=pa.array([0] * 200))
    assert run(splits, target=SnapshotTarget(), on_missing_schema="bootstrap")[0].decision == "FAIL"


def test_a_distance_within_chance_is_too_few_rows_to_tell_and_severity_can_hold_it(run: Run) -> None:
    splits = {"train": table(105, 1), "evaluate": table(22, 2)}
    options = {"on_missing_schema": "bootstrap", "categorical_threshold": 0.01}
    verdict, out = run(splits, **options)
    (entry,) = [entry for entry in verdict.not_judged if entry.name == "drift/town"]
    assert (entry.reason, entry.decision) == ("too few rows to tell: 22 against 105", "")
    assert entry.needed > 10_000
    assert "drift/town" not in [rule.name for rule in verdict.rules]
    assert verdict.decision == "PASS"
    assert "too few rows to tell" in (out / "summary.md").read_text()
    held, _ = run(splits, severity=[{"kind": "TOO_FEW_ROWS", "severity": "HOLD"}], **options)
    assert held.decision == "HOLD"


def test_an_inferred_schema_has_a_line_for_each_column(tmp_path: Path) -> None:
    splits = {name: [rows] for name, rows in clean().items()}
    write_snapshot(tmp_path, splits, parents={}, roles={"key": "row", "label": "plan"}, target=KINDS)
    lines = infer_schema(tmp_path, "train").splitlines()
    assert [line.split()[3] for line in lines if line.startswith("feature")] == [
        f'"{name}"' for name in ("row", "size", "town", "note", "member", "plan")
    ]
