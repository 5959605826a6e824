"""Check that a document which an earlier version wrote is still read, with the digest it had.

The files in `documents/` come from runs of the flights example on 22 and 23 November 2026. Other documents
refer to them by digest, so a reader that changes one breaks every reference in an object store or an audit.
"""

import json
from pathlib import Path

import pytest

from trainwright.documents import Document
from trainwright.errors import InputError

DOCUMENTS = Path(__file__).with_name("documents")


def check(kind: type[Document], name: str, folder: Path) -> None:
    """Read `documents/NAME.json`, compare its digest, write it again to `folder` and compare every field."""
    path = DOCUMENTS / f"{name}.json"
    document = kind.read(path)
    assert document.digest == json.loads((DOCUMENTS / "digests.json").read_text())[name]

    before = json.loads(path.read_text())
    after = json.loads(document.write(folder / path.name).read_text())
    assert {key: after.get(key, "missing") for key in before} == before

    with pytest.raises(InputError, match="no_such_field"):
        kind.from_json(before | {"no_such_field": 1})
