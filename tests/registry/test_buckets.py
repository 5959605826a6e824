"""The audit in a bucket, as on a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.registry.test_chain import move, race
from tests.storage.stores import Bucket
from trainwright.registry.audit import (
    AuditEntry,
    AuditLog,
    BrokenAuditError,
    RegistrationNote,
    read_note,
    registration_key,
    write_note,
)
from trainwright.registry.signing import ENTRY, Keyring
from trainwright.storage import AlreadyExists, create, list_files, remove
from trainwright.storage.lease import hold_lease


@pytest.fixture
def keys(bucket: Bucket, tmp_path: Path) -> Keyring:
    made = Keyring(str(tmp_path / "local"))
    made.sign(ENTRY, AuditEntry(seq=1, previous="", time="", token=1, model="m", kind="", change=""))
    return Keyring(f"{bucket.uri}/audit", signing_key=made.key_file)


def test_an_audit_in_a_bucket_is_written_once_read_back_and_found_out(bucket: Bucket, keys: Keyring) -> None:
    chain = AuditLog(keys.audit, "m", keys)
    assert chain.read().entries == ()
    move(chain, "1")
    move(chain, "2", "1")
    again = AuditLog(keys.audit, "m", keys)
    assert again.read().succession == ["1", "2"]
    with pytest.raises(AlreadyExists):
        create(f"{chain.place}/00000003.json", b"{}")
    remove([f"{chain.place}/00000002.json"])
    with pytest.raises(BrokenAuditError, match="entry 2 is missing"):
        AuditLog(keys.audit, "m", keys).read()


def test_of_many_that_write_the_same_number_into_a_bucket_one_does(keys: Keyring) -> None:
    won, lost = race(keys, 4)
    assert (len(won), len(lost)) == (1, 3)


def test_a_registration_is_noted_in_a_bucket_once_and_the_first_note_stands(keys: Keyring) -> None:
    audit, key = keys.audit, registration_key("m", "model", "verdict", "data")
    assert read_note(audit, "m", key, keys) is None
    first = RegistrationNote(
        model="m", key=key, model_digest="model", model_verdict="verdict", data_verdict="data", trial="t"
    )
    write_note(audit, first, keys)
    write_note(audit, replace(first, author="somebody else"), keys)
    assert read_note(audit, "m", key, keys) == first


def test_the_lease_lies_beside_the_entries_and_is_none(keys: Keyring) -> None:
    chain = AuditLog(keys.audit, "m", keys)
    with hold_lease(chain.leases, lease_s=30, wait_s=0) as lease:
        move(chain, "1")
        assert lease.number == 1
    assert len(chain.read().entries) == 2
    names = {file.uri.removeprefix(f"{chain.place}/") for file in list_files(chain.place)}
    assert names == {
        "00000001.json",
        "00000002.json",
        "lease/lease.00000001.json",
        "lease/lease.00000001.done.json",
    }
