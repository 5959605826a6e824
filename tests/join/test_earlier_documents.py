"""A leakage audit that an earlier version wrote stays readable."""

from pathlib import Path

from tests.contracts.frozen import check
from trainwright.join.audit import Audit


def test_audit_of_an_earlier_version_keeps_its_digest_and_fields(tmp_path: Path) -> None:
    check(Audit, "leakage-audit", tmp_path)
