"""Documents of an earlier version stay readable. Those of `join` and others are in their tests."""

from pathlib import Path

import pytest

from tests.contracts.frozen import DOCUMENTS, check
from trainwright.artifacts.model import Model, Trial
from trainwright.artifacts.record import Record
from trainwright.artifacts.snapshot import Listing, Snapshot
from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.registry.audit import AuditEntry, RegistrationNote, verify_chain
from trainwright.registry.register import Registration
from trainwright.verdicts import Verdict

KINDS: dict[str, type[Document]] = {
    "audit-1": AuditEntry,
    "audit-2": AuditEntry,
    "data-verdict": Verdict,
    "listing": Listing,
    "model": Model,
    "model-verdict": Verdict,
    "predictions": Snapshot,
    "quarantine": Snapshot,
    "record": Record,
    "registration": Registration,
    "registration-note": RegistrationNote,
    "snapshot": Snapshot,
    "training-set": Snapshot,
    "trial": Trial,
}


@pytest.mark.parametrize("name", KINDS)
def test_document_of_an_earlier_version_keeps_its_digest_and_fields(name: str, tmp_path: Path) -> None:
    check(KINDS[name], name, tmp_path)


def test_audit_of_an_earlier_version_is_a_valid_chain() -> None:
    verify_chain([AuditEntry.read(DOCUMENTS / f"audit-{number}.json") for number in (1, 2)], "flight-delay")


@pytest.mark.parametrize(("kind", "name"), [(Verdict, "model-verdict-1"), (Trial, "trial-1")])
def test_evidence_whose_outcome_was_written_and_not_computed_is_rejected(
    kind: type[Document], name: str
) -> None:
    with pytest.raises(InputError, match="has schema_version 1; this library reads 2") as caught:
        kind.read(DOCUMENTS / f"{name}.json")
    assert caught.value.hint.startswith("An earlier release wrote it: run the step that makes it again")


@pytest.mark.parametrize("name", ["data-verdict", "model-verdict"])
def test_verdict_of_an_earlier_version_recomputes_to_its_decision(name: str) -> None:
    verdict = Verdict.read(DOCUMENTS / f"{name}.json")
    assert verdict.recomputed() == verdict.decision
