"""Fitted transforms that an earlier version wrote stay readable."""

from pathlib import Path

from tests.contracts.frozen import check
from trainwright.transforms.encoding import Transforms


def test_transforms_of_an_earlier_version_keep_their_digest_and_fields(tmp_path: Path) -> None:
    check(Transforms, "transforms", tmp_path)
