"""What a model and an alias may be called."""

from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.audit import INTENT, AuditEntry, AuditLog
from trainwright.registry.names import folder_of, require_name


@pytest.mark.covers("B67")
@pytest.mark.parametrize(
    "name", ["", " ", "a/b", "a:b", "../up", ".hidden", "_own", "a\nb", "x" * 251, "a'b\"c"]
)
def test_a_name_that_mlflow_or_a_path_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name"):
        require_name(name)


@pytest.mark.parametrize("name", ["a/b", "a:b", ".hidden", "_own", ""])
def test_the_section_refuses_it_before_anything_runs(name: str) -> None:
    with pytest.raises(InputError, match="model: must match pattern"):
        Registry.check({"model": name, "tracking_uri": "sqlite:///x"}, "registry")


@pytest.mark.parametrize(
    "name", ["flight_late", "late [eu] * ?", "späte Flüge", "50%", "a..b", "航" * 250, "x" * 250]
)
def test_every_other_name_has_an_audit_of_its_own(tmp_path: Path, name: str) -> None:
    chain = AuditLog(str(tmp_path), name)
    made = AuditEntry(
        seq=0, previous="", time="2026-11-20T10:00:00+00:00", token=1, model=name, kind=INTENT, change="c"
    )
    chain.append(made)
    assert [entry.model for entry in AuditLog(str(tmp_path), name).read().entries] == [name]
    assert (tmp_path / folder_of(name) / "00000001.json").is_file()


def test_long_names_that_begin_alike_have_folders_of_their_own_that_a_disk_takes() -> None:
    names = ["ü" * 249 + end for end in ("", "a", "b", "ü")]
    names.append(folder_of(names[0]))
    folders = {folder_of(name) for name in names}
    assert len(folders) == len(names)
    assert max(map(len, folders)) <= 250
