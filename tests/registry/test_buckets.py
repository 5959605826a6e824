"""The audit in a bucket, as on a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.registry.test_chain import move, race
from tests.storage.stores import Bucket
from trainwright.registry.audit import (
    AuditLog,
    BrokenAuditError,
    RegistrationNote,
    read_note,
    registration_key,
    write_note,
)
from trainwright.storage import AlreadyExists, create, list_files, remove
from trainwright.storage.lease import hold_lease


def test_an_audit_in_a_bucket_is_written_once_read_back_and_found_out(bucket: Bucket) -> None:
    chain = AuditLog(f"{bucket.uri}/audit", "m")
    assert chain.read().entries == ()
    move(chain, "1")
    move(chain, "2", "1")
    again = AuditLog(f"{bucket.uri}/audit", "m")
    assert again.read().succession == ["1", "2"]
    with pytest.raises(AlreadyExists):
        create(f"{chain.place}/00000003.json", b"{}")
    remove([f"{chain.place}/00000002.json"])
    with pytest.raises(BrokenAuditError, match="entry 2 is missing"):
        AuditLog(f"{bucket.uri}/audit", "m").read()


def test_of_many_that_write_the_same_number_into_a_bucket_one_does(bucket: Bucket) -> None:
    won, lost = race(f"{bucket.uri}/audit", 4)
    assert (len(won), len(lost)) == (1, 3)


def test_a_registration_is_noted_in_a_bucket_once_and_the_first_note_stands(bucket: Bucket) -> None:
    audit, key = f"{bucket.uri}/audit", registration_key("m", "model", "verdict", "data")
    assert read_note(audit, "m", key) is None
    first = RegistrationNote(
        model="m", key=key, model_digest="model", model_verdict="verdict", data_verdict="data", trial="t"
    )
    write_note(audit, first)
    write_note(audit, replace(first, author="somebody else"))
    assert read_note(audit, "m", key) == first


def test_the_lease_lies_beside_the_entries_and_is_none(bucket: Bucket, tmp_path: Path) -> None:
    chain = AuditLog(f"{bucket.uri}/audit", "m")
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
