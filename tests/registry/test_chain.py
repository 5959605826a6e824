"""An audit is only ever added to, and whoever changes it otherwise is found out."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from trainwright.errors import InputError, TransientError
from trainwright.registry.audit import (
    ABORT,
    COMMIT,
    INTENT,
    PROMOTE,
    ROLLBACK,
    AuditEntry,
    AuditLog,
    AuditState,
    BrokenAuditError,
    verify_chain,
)
from trainwright.registry.signing import ENTRY, Keyring, Signed
from trainwright.storage import AlreadyExists


def entry(kind: str, change: str, second: int = 0, **more: object) -> AuditEntry:
    time = f"2026-11-20T10:00:{second:02d}.000000+00:00"
    return AuditEntry(  # type: ignore[arg-type]
        seq=0, previous="", time=time, token=1, model="m", kind=kind, change=change, **more
    )


def move(chain: AuditLog, version: str, before: str = "", action: str = PROMOTE, second: int = 0) -> None:
    aliases = {"production": version}
    was = {"production": before} if before else {}
    stages = {version: "production"} | ({before: "archived"} if before else {})
    intent = entry(
        INTENT, version, second, action=action, version=version, before=was, after=aliases, stages=stages
    )
    chain.append(intent)
    chain.append(entry(COMMIT, version, second))


@pytest.fixture
def chain(tmp_path: Path) -> AuditLog:
    made = AuditLog(str(tmp_path), "m")
    move(made, "1")
    move(made, "2", "1")
    return made


def files(chain: AuditLog) -> list[Path]:
    return sorted(Path(chain.place).glob("*.json"))


def test_entries_are_numbered_linked_and_read_back(chain: AuditLog) -> None:
    state = AuditLog(str(Path(chain.place).parent), "m").read()
    assert [found.seq for found in state.entries] == [1, 2, 3, 4]
    assert [found.previous for found in state.entries[1:]] == [found.digest for found in state.entries[:-1]]
    assert state.entries[0].previous == "0" * 64
    assert state.aliases == {"production": "2"}
    assert (state.stage("1"), state.stage("2"), state.stage("3")) == ("archived", "production", None)
    assert state.open is None


@pytest.mark.covers("A15")
@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (1, "reason", "another"),
        (2, "time", "2026-11-20T09:00:00+00:00"),
        (3, "version", "7"),
        (4, "token", 0),
    ],
)
def test_a_changed_entry_breaks_the_chain_where_it_is_or_right_after(
    chain: AuditLog, number: int, field: str, value: object
) -> None:
    place = files(chain)[number - 1]
    whole = json.loads(place.read_text())
    whole["body"][field] = value
    place.write_text(json.dumps(whole))
    with pytest.raises(
        BrokenAuditError, match=rf"entry {number} .* signature is not of this content"
    ) as found:
        AuditLog(str(Path(chain.place).parent), "m").read()
    assert "Promote nothing" in found.value.hint


def test_a_missing_entry_in_the_middle_and_one_of_another_model_are_named(
    chain: AuditLog, tmp_path: Path
) -> None:
    files(chain)[1].unlink()
    with pytest.raises(BrokenAuditError, match=r"broken at entry 3: entry 2 is missing"):
        AuditLog(str(tmp_path), "m").read()
    other = AuditLog(str(tmp_path), "n")
    Path(other.place).mkdir()
    shutil.copy(files(chain)[0], Path(other.place) / "00000001.json")
    with pytest.raises(BrokenAuditError, match="it is about 'm'"):
        other.read()


def test_an_entry_that_was_rewritten_with_its_digests_does_not_fit_what_follows(chain: AuditLog) -> None:
    """Whoever has the key and rewrites one entry would have to rewrite all after it."""
    place = files(chain)[1]
    entry = AuditEntry.from_json(Signed.read(place).body)
    Keyring(str(place.parents[1])).sign(ENTRY, replace(entry, who={"account": "else"})).write(place)
    with pytest.raises(BrokenAuditError, match="at entry 3: it does not follow from the one before"):
        AuditLog(str(Path(chain.place).parent), "m").read()


def race(keys: Keyring, count: int) -> tuple[list[str], list[int]]:
    """Let so many write the first entry at once; return the changes that were written, and who was not."""
    won, lost = [], []
    barrier = threading.Barrier(count)

    def work(number: int) -> None:
        chain = AuditLog(keys.audit, "m", keys)
        chain.read()
        barrier.wait()
        try:
            won.append(chain.append(entry(INTENT, str(number))).change)
        except AlreadyExists:
            lost.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won, lost


def test_of_many_that_write_the_same_number_one_does(tmp_path: Path) -> None:
    won, lost = race(Keyring(str(tmp_path)), 6)
    assert (len(won), len(lost)) == (1, 5)
    assert AuditLog(str(tmp_path), "m").read().entries[0].change == won[0]


def test_an_intent_without_an_end_is_open_and_an_aborted_one_changed_nothing(chain: AuditLog) -> None:
    chain.append(entry(INTENT, "3", after={"production": "3"}, before={"production": "2"}))
    opened = AuditLog(str(Path(chain.place).parent), "m").read()
    assert opened.open is not None
    assert opened.aliases == {"production": "2"}
    chain.append(entry(ABORT, "3", reason="no such version"))
    closed = chain.read()
    assert (closed.open, closed.aliases) == (None, {"production": "2"})


def test_an_end_without_its_intent_is_not_written(chain: AuditLog) -> None:
    with pytest.raises(BrokenAuditError, match="do not belong together"):
        chain.append(entry(COMMIT, "9"))
    chain.append(entry(INTENT, "9"))
    with pytest.raises(BrokenAuditError, match="do not belong together"):
        chain.append(entry(COMMIT, "8"))
    with pytest.raises(BrokenAuditError, match="do not belong together"):
        chain.append(entry(INTENT, "8"))


def test_the_time_of_an_entry_never_goes_backwards(chain: AuditLog) -> None:
    move(chain, "3", "2", second=30)
    move(chain, "4", "3", second=10)
    times = [found.time for found in chain.read().entries]
    assert times == sorted(times)


def test_versions_that_were_rolled_back_are_left_out_of_the_succession(chain: AuditLog) -> None:
    move(chain, "3", "2")
    assert chain.read().succession == ["1", "2", "3"]
    move(chain, "2", "3", ROLLBACK)
    assert chain.read().succession == ["1", "2"]
    move(chain, "4", "2")
    assert chain.read().succession == ["1", "2", "4"]


def test_what_was_in_production_before_the_audit_began_is_the_first_of_the_succession(tmp_path: Path) -> None:
    chain = AuditLog(str(tmp_path), "m")
    move(chain, "5", "4")
    assert chain.read().succession == ["4", "5"]
    assert AuditState.of(()).succession == []


@pytest.mark.parametrize(
    "content", ["{", "null", "[" * 100_000, '{"schema_version": 1, "reason": "\\ud800"}', '{"seq": "5"}']
)
def test_a_file_that_is_no_entry_is_named(chain: AuditLog, content: str) -> None:
    (Path(chain.place) / "00000005.json").write_text(content)
    with pytest.raises(InputError) as caught:
        chain.read()
    assert "00000005.json" in str(caught.value.where)


@pytest.mark.parametrize("name", ["1.json", "0000001x.json", "00000001 (copy).json", "000000001.json"])
def test_a_file_that_is_called_almost_like_an_entry_is_named(chain: AuditLog, name: str) -> None:
    shutil.copy(files(chain)[0], Path(chain.place) / name)
    with pytest.raises(InputError, match="no entry of an audit") as caught:
        AuditLog(str(Path(chain.place).parent), "m").read()
    assert str(caught.value.where).endswith(name)


def test_an_entry_that_says_something_twice_is_none(chain: AuditLog) -> None:
    """A program would read the last, as it was written; a person reads the first."""
    place = files(chain)[0]
    place.write_text(place.read_text().replace('"body": {', '"body": {"reason": "another",', 1))
    with pytest.raises(InputError, match="no entry of an audit"):
        AuditLog(str(Path(chain.place).parent), "m").read()


def test_an_entry_that_is_being_written_is_read_later(chain: AuditLog) -> None:
    """A file system without links claims the name of a file before it fills it."""
    files(chain)[-1].write_text("")
    with pytest.raises(TransientError, match="an entry is being written"):
        AuditLog(str(Path(chain.place).parent), "m").read()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"time": 1}', "\udcff"])
def test_an_entry_that_cannot_be_read_is_named(chain: AuditLog, text: str) -> None:
    files(chain)[-1].write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match="this is no entry of an audit") as caught:
        AuditLog(str(Path(chain.place).parent), "m").read()
    assert caught.value.where.endswith("00000004.json")


def unsigned(chain: AuditLog, count: int) -> AuditLog:
    """Take the signatures off the first entries, as releases before signatures wrote them."""
    for place in files(chain)[:count]:
        place.write_text(json.dumps(Signed.read(place).body))
    return AuditLog(str(Path(chain.place).parent), "m")


def test_entries_without_a_signature_are_adopted_once_by_a_person(chain: AuditLog) -> None:
    found = unsigned(chain, 4)
    with pytest.raises(BrokenAuditError, match="4 entries of the audit of 'm' have no signature"):
        found.read()
    found.adopt = True
    last = found.read().entries[-1]
    assert found.unadopted
    made = found.append(entry(INTENT, "5", action=PROMOTE))
    assert made.facts == {"adopted": f"4 entries without a signature; the last has digest {last.digest}"}
    assert not found.unadopted
    assert found.append(entry(ABORT, "5")).facts == {}
    again = AuditLog(str(Path(chain.place).parent), "m")
    assert len(again.read().entries) == 6
    assert not again.unadopted


def test_an_entry_without_a_signature_after_a_signed_one_is_no_entry(chain: AuditLog) -> None:
    place = files(chain)[2]
    place.write_text(json.dumps(Signed.read(place).body))
    found = AuditLog(str(Path(chain.place).parent), "m")
    found.adopt = True
    with pytest.raises(BrokenAuditError, match="entry 3 of the audit of 'm' has no signature, earlier ones"):
        found.read()
    assert not AuditLog(str(Path(chain.place).parent), "n").unadopted


def test_a_change_that_leaves_production_as_it_is_adds_nothing_to_the_succession(chain: AuditLog) -> None:
    move(chain, "2", "2")
    assert chain.read().succession == ["1", "2"]


@pytest.mark.parametrize("change", [{"time": "2026-11-20T09:59:59+00:00"}, {"token": 0}])
def test_neither_time_nor_token_of_an_entry_goes_back(chain: AuditLog, change: dict[str, object]) -> None:
    *before, last = chain.read().entries
    verify_chain([*before, last], "m")
    with pytest.raises(BrokenAuditError, match="at entry 4"):
        verify_chain([*before, replace(last, **change)], "m")  # type: ignore[arg-type]
