"""Sign the documents of an audit with Ed25519, and verify them with the public keys that a registry trusts.

The private key is a file: ``registry.signing_key``, or a local key beside the audit's folder, made on first
use. The public keys are ``promote.pem`` and ``register.pem`` in the folder ``registry.trust``; without one,
the key's own public part. The public parts of all local keys are beside the audit too (``AUDIT.pem``), so
that what a lost key has signed can still be verified.
"""

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.documents import Document, canonical
from trainwright.errors import InputError, PermissionRefused
from trainwright.experiment import Registry
from trainwright.registry.names import audit_location
from trainwright.storage import AlreadyExists, local_path
from trainwright.storage.local import create_file, naming_path

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ENTRY, NOTE = "promote", "register"
"""Kinds of signed documents, named after the step that signs them: entries, and notes of registrations."""

_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class ForgedError(InputError):
    """A document of an audit without a signature by a trusted key."""


@dataclass(frozen=True, kw_only=True)
class Signed(Document):
    """A document and its signature.

    Attributes:
        body: The document as JSON.
        key: Fingerprint of the public key: SHA-256, 64 hexadecimal digits.
        signature: Ed25519 signature of kind and canonical body, in base64.
    """

    FILE: ClassVar[str] = "signed.json"
    body: dict[str, Any]
    key: str
    signature: str


@dataclass(frozen=True)
class Keyring:
    """Keys of one audit. The private key is read when it is first needed.

    Attributes:
        audit: Folder or URI of the audit.
        signing_key: File of the private key; empty for the local key.
        trust: Folder of the public keys; empty to trust the private key's own.
    """

    audit: str
    signing_key: str = ""
    trust: str = ""
    _read: "dict[str, Mapping[str, Ed25519PublicKey]]" = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, registry: Registry) -> "Keyring":
        """Return the keys of a registry's audit."""
        audit = audit_location(registry.audit, registry.tracking_uri)
        return cls(audit, registry.signing_key or "", registry.trust or "")

    @property
    def key_file(self) -> str:
        """The file of the private key; empty for an audit in a bucket without ``registry.signing_key``."""
        folder = local_path(self.audit) if self.audit else None
        if self.signing_key or folder is None:
            return self.signing_key
        # Beside the audit, not in it: whoever may write only the audit can neither read nor replace the key.
        return f"{os.path.abspath(folder)}.key"

    @property
    def public_file(self) -> Path | None:
        """The file of the public parts of all local keys so far; None if the key is not a local one."""
        local = self.key_file and not self.signing_key
        return Path(self.key_file).with_suffix(".pem") if local else None

    def sign(self, kind: str, document: Document) -> Signed:
        """Sign a document; make the local key if there never was one.

        Raises:
            InputError: There is no private key, it was lost, or its file is not one.
            PermissionRefused: Others can read or replace the local key, or it cannot be read.
        """
        if public := self.public_file:
            if not os.path.lexists(self.key_file) and not os.path.lexists(public):
                _make_key(Path(self.key_file))
            if self.fingerprint not in _read_local_public(public):
                _add_public(public, self._private.public_key())
        body = document.to_json()
        signature = self._private.sign(_message(kind, body))
        return Signed(body=body, key=self.fingerprint, signature=base64.b64encode(signature).decode())

    def verify(self, kind: str, signed: Signed, where: str) -> None:
        """Raise ForgedError unless a key that is trusted for this kind signed exactly this body."""
        from cryptography.exceptions import InvalidSignature

        if kind not in self._read:
            self._read[kind] = self._trusted(kind)
        key = self._read[kind].get(signed.key)
        if key is None:
            local = not self.trust and self.public_file
            raise ForgedError(
                f"it is signed by key {signed.key[:12]!r}, which is not trusted",
                where=where,
                hint="If the key was rotated, add its public part to "
                + (f"{local}." if local else f"{kind}.pem of registry.trust."),
            )
        try:
            key.verify(base64.b64decode(signed.signature, validate=True), _message(kind, signed.body))
        except (InvalidSignature, binascii.Error, ValueError):
            raise ForgedError(
                "its signature is not of this content",
                where=where,
                hint="Somebody changed it. Promote nothing; compare it with a backup or its object versions.",
            ) from None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the private key's public part."""
        return _fingerprint(self._private.public_key())

    @cached_property
    def _private(self) -> "Ed25519PrivateKey":
        if not self.key_file:
            raise InputError(
                "registry.signing_key is not set, and an audit outside of this machine has no local key",
                where="registry.signing_key",
                hint="Name the file of the Ed25519 key that the Secret holds; deploy/trust.yaml makes one.",
            )
        return _read_private(Path(self.key_file), local=not self.signing_key)

    def _trusted(self, kind: str) -> "Mapping[str, Ed25519PublicKey]":
        if not self.trust:
            own = self._private.public_key()
            earlier = _read_local_public(self.public_file) if self.public_file else {}
            return {**earlier, _fingerprint(own): own}
        place = Path(self.trust) / f"{kind}.pem"
        with naming_path(place):
            content = place.read_bytes()
        if not (keys := _parse_all(content, place)):
            raise InputError("expected public keys in PEM, found none", where=str(place))
        return keys


def _message(kind: str, body: Mapping[str, Any]) -> bytes:
    return f"trainwright {kind}\n{canonical(body)}".encode()


def _fingerprint(key: "Ed25519PublicKey") -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _make_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with suppress(AlreadyExists), create_file(path) as stream:  # another process may have made one
        os.fchmod(stream.fileno(), 0o600)
        stream.write(content)


def _add_public(path: Path, key: "Ed25519PublicKey") -> None:
    """Add the public part of a local key; without the right to, only a loss of the key would show it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    content = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with suppress(PermissionError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "ab") as stream:
            stream.write(content)


def _read_local_public(path: Path) -> "Mapping[str, Ed25519PublicKey]":
    try:
        with path.open("rb") as stream:
            _require_own(path, os.fstat(stream.fileno()), others=0o022)
            return _parse_all(stream.read(), path)
    except FileNotFoundError:
        return {}


def _require_own(path: Path, state: os.stat_result, *, others: int) -> None:
    """Reject a file of a local key that another user owns, or of which others have these rights."""
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & others:
        raise PermissionRefused(
            f"user {state.st_uid} owns the local key, its mode is {stat.S_IMODE(state.st_mode):o}; "
            f"expected user {os.geteuid()} and 600",
            where=f"registry.signing_key: {path}",
            hint="Several accounts need keys of their own: registry.signing_key and registry.trust.",
        )


def _read_private(path: Path, *, local: bool) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    where = f"registry.signing_key: {path}"
    try:
        with path.open("rb") as stream:
            state, content = os.fstat(stream.fileno()), stream.read(10_000)
    except FileNotFoundError:
        raise InputError(
            "no such file, so no entry of the audit can be signed or verified",
            where=where,
            hint=(
                "Restore it from a backup. If it is lost, make a new one (openssl genpkey -algorithm ed25519 "
                f"-out {path} && chmod 600 {path}): {path.with_suffix('.pem')} verifies the entries so far."
            )
            if local
            else "Mount the Secret there, restore the file from a backup, or name the folder of the public "
            "keys (registry.trust).",
        ) from None
    except OSError as error:
        raise PermissionRefused(f"the key cannot be read: {error.strerror}", where=where) from None
    if local:
        _require_own(path, state, others=0o077)
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise InputError(f"no private key in PEM: {type(error).__name__}", where=where) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"expected an Ed25519 key, found {type(key).__name__}", where=where)
    return key


def _parse_all(content: bytes, place: Path) -> "Mapping[str, Ed25519PublicKey]":
    keys = [_parse_public(part, place) for part in _PEM.findall(content)]
    return {_fingerprint(key): key for key in keys}


def _parse_public(content: bytes, place: Path) -> "Ed25519PublicKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError("a public key is not valid PEM", where=str(place)) from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"expected Ed25519 keys, found {type(key).__name__}", where=str(place))
    return key
