"""Evidence that was changed in MLflow after the registration promotes nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registry.shelf import Shelf
from tests.registry.steps import Run
from tests.registry.test_by_whom import enter, files_of
from tests.registry.test_promotion import LONG, canary_verdict, rules
from trainwright.errors import InputError
from trainwright.verdicts import AT_LEAST, AT_MOST, Rule

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.covers("A13")
def test_version_whose_files_in_mlflow_were_changed_or_removed_is_not_promoted(
    shelf: Shelf, tmp_path: Path
) -> None:
    version = enter(shelf, Run(tmp_path / "own" / "run", weights="own")).version
    files = files_of(shelf, version)
    signature, verdict = files / "model" / "signature.json", files / "evidence" / "model" / "verdict.json"
    [record] = (files / "evidence").glob("*-smoke_test.json")
    attacks = [
        (
            signature,
            lambda: edit(signature, lambda x: x.pop("target")),
            r"signature\.json of run .* expected",
        ),
        (
            verdict,
            lambda: edit(verdict, lambda x: x.update(schema_version=1)),
            "Verdict has schema_version 1",
        ),
        (record, record.unlink, r"record \(record\.json\) of smoke_test that made trial .* there is none"),
    ]
    for path, attack, said in attacks:
        kept = path.read_bytes()
        attack()
        with pytest.raises(InputError, match=said) as caught:
            shelf.ask("production", version)
        assert caught.value.code == 10
        path.write_bytes(kept)
    assert shelf.aliases() == {}
    assert shelf.ask("production", version).decision == "PASS"


@pytest.mark.covers("A14")
def test_guard_of_a_canary_counts_only_as_an_upper_limit_that_holds_without_an_excuse(shelf: Shelf) -> None:
    shelf.ask("staging", 1, LONG)
    shelf.ask("canary", 1, LONG)
    for forged in (
        Rule(name="error_rate", value=0.9, limit=0.01, test=AT_LEAST),
        Rule(name="error_rate", value=0.9, limit=0.01, test=AT_MOST, broken="PASS"),
        Rule(name="error_rate", value=0.005, limit=0.01, test="up to", interval=(0.0, 0.9), unsure="PASS"),
    ):
        proof = canary_verdict(shelf, 1, rules=(forged,))
        made = shelf.ask("production", 1, LONG, approver="carl", canary_verdict=proof)
        found = rules(shelf, "production", 1)["canary verdict"]
        assert (made.decision, found.detail) == (
            "HOLD",
            "it has no rule for guard error_rate 0.01, it has none",
        )
    assert shelf.aliases() == {"canary": "1"}
