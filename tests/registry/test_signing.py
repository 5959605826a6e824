"""Keys of an audit: which files are keys, who may read them, and whose signature counts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from trainwright.errors import InputError, PermissionRefused
from trainwright.registry.signing import ENTRY, NOTE, ForgedError, Keyring
from trainwright.verdicts import Verdict

DOCUMENT = Verdict(decision="PASS", rules=(), judged={"model": "ab"})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(str(tmp_path / "audit"))


def pem(keys: Keyring) -> bytes:
    private = serialization.load_pem_private_key(Path(keys.key_file).read_bytes(), None)
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_a_signature_is_of_one_body_and_one_kind(keys: Keyring, tmp_path: Path) -> None:
    signed = keys.sign(ENTRY, DOCUMENT)
    keys.verify(ENTRY, signed, "here")
    Keyring(str(tmp_path / "audit")).verify(ENTRY, signed, "here")
    for kind, changed in (
        (NOTE, signed),
        (ENTRY, replace(signed, body={**signed.body, "decision": "FAIL"})),
        (ENTRY, replace(signed, signature="")),
        (ENTRY, replace(signed, signature="no base64!")),
    ):
        with pytest.raises(ForgedError, match="its signature is not of this content"):
            keys.verify(kind, changed, "here")


def test_a_local_key_is_made_once_for_its_owner_only(keys: Keyring, tmp_path: Path) -> None:
    first = keys.sign(ENTRY, DOCUMENT)
    assert keys.public_file is not None
    assert Path(keys.key_file).stat().st_mode & 0o777 == 0o600
    assert keys.public_file.read_bytes() == pem(keys)
    again = Keyring(str(tmp_path / "audit"))
    assert again.sign(ENTRY, DOCUMENT) == first
    assert keys.public_file.read_bytes() == pem(keys), "its public part is noted once"
    assert json.dumps(first.body) == json.dumps(DOCUMENT.to_json()).replace("()", "[]")


def test_a_new_local_key_still_trusts_what_the_earlier_one_signed(keys: Keyring, tmp_path: Path) -> None:
    first = keys.sign(ENTRY, DOCUMENT)
    Keyring(str(tmp_path / "other")).sign(ENTRY, DOCUMENT)
    (tmp_path / "other.key").replace(keys.key_file)
    renewed = Keyring(str(tmp_path / "audit"))
    second = renewed.sign(ENTRY, DOCUMENT)
    assert second.key != first.key
    for signed in (first, second):
        renewed.verify(ENTRY, signed, "here")


def test_a_key_that_is_not_trusted_signs_nothing(keys: Keyring, tmp_path: Path) -> None:
    other = Keyring(str(tmp_path / "other"))
    signed = other.sign(ENTRY, DOCUMENT)
    keys.sign(ENTRY, DOCUMENT)
    with pytest.raises(
        ForgedError, match=f"signed by key '{signed.key[:12]}', which is not trusted"
    ) as caught:
        keys.verify(ENTRY, signed, "here")
    assert f"add its public part to {keys.public_file}." in caught.value.hint
    trust = tmp_path / "trust"
    trust.mkdir()
    (trust / f"{ENTRY}.pem").write_bytes(pem(other))
    trusted = replace(keys, trust=str(trust))
    trusted.verify(ENTRY, signed, "here")
    with pytest.raises(ForgedError, match="which is not trusted") as caught:
        trusted.verify(ENTRY, keys.sign(ENTRY, DOCUMENT), "here")
    assert f"{ENTRY}.pem of registry.trust" in caught.value.hint
    with pytest.raises(InputError, match="no such file"):
        trusted.verify(NOTE, signed, "here")
    (trust / f"{NOTE}.pem").write_text("")
    with pytest.raises(InputError, match="expected public keys in PEM, found none"):
        trusted.verify(NOTE, signed, "here")


def private_pem(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey, password: bytes = b"") -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


NO_KEYS = {
    "nothing": b"",
    "a text": b"no key",
    "an RSA key": private_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    "an encrypted key": private_pem(ed25519.Ed25519PrivateKey.generate(), b"secret"),
}


@pytest.mark.parametrize("content", NO_KEYS)
def test_a_file_that_is_no_ed25519_key_is_bad_input(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_bytes(NO_KEYS[content])
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(InputError) as caught:
        Keyring(str(tmp_path / "audit"), signing_key=str(tmp_path / "key")).sign(ENTRY, DOCUMENT)
    assert str(tmp_path / "key") in caught.value.where


def test_a_key_that_cannot_be_read_or_is_gone_is_named(keys: Keyring, tmp_path: Path) -> None:
    with pytest.raises(PermissionRefused, match="the key cannot be read: Is a directory"):
        Keyring(str(tmp_path / "audit"), signing_key=str(tmp_path)).sign(ENTRY, DOCUMENT)
    with pytest.raises(InputError, match="no such file") as caught:
        Keyring(str(tmp_path / "audit"), signing_key=str(tmp_path / "gone")).sign(ENTRY, DOCUMENT)
    assert "Mount the Secret there" in caught.value.hint
    keys.sign(ENTRY, DOCUMENT)
    Path(keys.key_file).unlink()
    with pytest.raises(InputError, match="no such file") as caught:
        Keyring(str(tmp_path / "audit")).sign(ENTRY, DOCUMENT)
    assert "Restore it from a backup" in caught.value.hint
    with pytest.raises(InputError, match=r"registry\.signing_key is not set"):
        Keyring("s3://bucket/audit").sign(ENTRY, DOCUMENT)


@pytest.mark.parametrize(
    ("name", "mode"), [("audit.key", 0o640), ("audit.key", 0o604), ("audit.pem", 0o620), ("audit.pem", 0o602)]
)
def test_keys_that_others_can_read_or_public_parts_that_they_can_write_are_rejected(
    keys: Keyring, tmp_path: Path, name: str, mode: int
) -> None:
    signed = keys.sign(ENTRY, DOCUMENT)
    (tmp_path / name).chmod(mode)
    with pytest.raises(PermissionRefused, match=f"its mode is {mode:o}"):
        Keyring(str(tmp_path / "audit")).verify(ENTRY, signed, "here")
    (tmp_path / "audit.key").chmod(0o600)
    (tmp_path / "audit.pem").chmod(0o644)
    Keyring(str(tmp_path / "audit")).verify(ENTRY, signed, "here")
