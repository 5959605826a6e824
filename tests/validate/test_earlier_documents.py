"""A baseline of drift that an earlier version wrote stays readable."""

from pathlib import Path

from tests.contracts.frozen import check
from trainwright.validate.baseline import Baseline


def test_baseline_of_an_earlier_version_keeps_its_digest_and_fields(tmp_path: Path) -> None:
    check(Baseline, "baseline", tmp_path)
