"""Policy and approver do not come from whoever requests a promotion."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from tests.registry.shelf import DIRECT, Shelf
from tests.registry.test_forged_audit import overridden
from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.experiment import Promotion
from trainwright.registry.audit import BrokenAuditError
from trainwright.registry.policy import audience, protect, same_person
from trainwright.registry.signing import ENTRY, NOTE, Keyring
from trainwright.verdicts import Verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

ISSUER = "https://issuer.example"
TOKENS = {"issuer": ISSUER, "claim": "email", "approvers": ["carl@acme.example", "anna"]}
FOUR_EYES = {"promotion": {"path": ["production"], "four_eyes": True}}


def public_pem(key_file: str) -> bytes:
    private = serialization.load_pem_private_key(Path(key_file).read_bytes(), None)
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def trust(shelf: Shelf, policy: dict[str, Any]) -> Path:
    """Write the folder that a cluster mounts, and let the registry's section name it."""
    folder = shelf.folder / "trust"
    folder.mkdir(exist_ok=True)
    for kind in (ENTRY, NOTE):
        (folder / f"{kind}.pem").write_bytes(public_pem(str(shelf.folder / "audit.key")))
    (folder / "policy.json").write_text(json.dumps(policy))
    shelf.registry = shelf.registry.model_copy(update={"trust": str(folder)})
    return folder


def verdict(shelf: Shelf, version: int = 1) -> Verdict:
    return Verdict.read(shelf.folder / f"out-production-{version}")


@pytest.mark.covers("A16")
def test_policy_that_the_request_weakens_is_the_protected_one(shelf: Shelf) -> None:
    folder = trust(shelf, {"promotion": {"path": ["staging", "production"]}})
    assert shelf.ask("production", 1, DIRECT).decision == "FAIL"
    found = {rule.name: rule for rule in verdict(shelf).rules}
    assert found["stage"].detail == "it is candidate; production comes after staging"
    assert found["approved by another person"].outcome() == "HOLD"
    record = Record.read(shelf.folder / "out-production-1")
    assert record.config["policy"] == f"policy from {folder}/policy.json"
    assert record.config["promotion"]["four_eyes"] is True
    assert shelf.aliases() == {}


def test_policy_of_one_model_replaces_that_of_all(shelf: Shelf) -> None:
    trust(shelf, FOUR_EYES | {"models": {"flight_late": {"path": ["production"], "four_eyes": False}}})
    assert shelf.ask("production", 1).decision == "PASS"


def test_policy_from_the_request_is_recorded_as_such(shelf: Shelf) -> None:
    assert shelf.ask("production", 1).decision == "PASS"
    said = {entry.name: entry.reason for entry in verdict(shelf).not_judged}
    assert said["policy"] == "policy from the request, not from a protected file"
    assert shelf.state().events[-1].intent.facts["policy"] == "policy from the request"
    assert (
        shelf.ask("staging", 2, Promotion(path=("staging", "production")), approver="carl").decision == "PASS"
    )
    assert shelf.state().events[-1].intent.facts["approval"] == "typed in the request"


def test_trusted_folder_without_a_policy_stops_the_promotion(shelf: Shelf) -> None:
    folder = trust(shelf, FOUR_EYES)
    (folder / "policy.json").unlink()
    with pytest.raises(InputError, match="expected the promotion policy"):
        shelf.ask("production", 1)


def test_mounted_folder_replaces_the_one_that_the_request_names(shelf: Shelf, tmp_path: Path) -> None:
    requested = shelf.registry.model_copy(update={"trust": "/elsewhere"})
    assert protect(requested, str(tmp_path)).trust == str(tmp_path)
    assert protect(requested, str(tmp_path / "absent")).trust == "/elsewhere"


def test_key_of_registrations_signs_no_entry(shelf: Shelf, tmp_path: Path) -> None:
    other = Keyring(str(tmp_path / "other"))
    folder = trust(shelf, {"promotion": DIRECT.model_dump(mode="json")})
    assert shelf.ask("production", 1).decision == "PASS"
    last = shelf.state().entries[-1]
    other.sign(NOTE, last)
    (folder / "register.pem").write_bytes(public_pem(other.key_file))
    with pytest.raises(InputError, match="which is not trusted"):
        shelf.ask("production", 2, expected="1")
    (folder / "promote.pem").write_bytes(public_pem(other.key_file))
    with pytest.raises(BrokenAuditError, match="which is not trusted"):
        shelf.back()


def test_key_that_is_not_trusted_writes_no_entry(shelf: Shelf, tmp_path: Path) -> None:
    folder = trust(shelf, {"promotion": DIRECT.model_dump(mode="json")})
    other = Keyring(str(tmp_path / "other"))
    other.sign(NOTE, Verdict(decision="PASS", rules=(), judged={}))  # its first use makes the key
    (folder / "promote.pem").write_bytes(public_pem(other.key_file))
    with pytest.raises(InputError, match="which is not trusted"):
        shelf.ask("production", 1)
    assert shelf.aliases() == {}
    assert list(shelf.audit.glob("0*.json")) == []


class Issuer:
    """An issuer of tokens, whose keys lie beside the policy."""

    def __init__(self, folder: Path) -> None:
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        numbers = self.private.public_key().public_numbers()
        self.token = folder / "token"
        key = {"kty": "RSA", "kid": "k1", "n": _url(numbers.n), "e": _url(numbers.e)}
        (folder / "jwks.json").write_text(json.dumps({"keys": [key]}))

    def sign(self, model: str, person: str = "carl@acme.example", **claims: Any) -> str:
        now = int(datetime.now(UTC).timestamp())
        body = {"iss": ISSUER, "aud": [audience("production", model)], "email": person}
        body |= {"iat": now, "exp": now + 600} | claims
        pem = self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        self.token.write_bytes(jwt.encode(crypt.RSASigner.from_string(pem, "k1"), body))
        return str(self.token)


def _url(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).rstrip(b"=").decode()


@pytest.fixture
def issuer(shelf: Shelf) -> Issuer:
    return Issuer(trust(shelf, FOUR_EYES | {"approval": TOKENS}))


@pytest.mark.covers("A16")
def test_approver_typed_where_a_token_is_required_does_not_count(shelf: Shelf, issuer: Issuer) -> None:
    assert shelf.ask("production", 1, approver="carl@acme.example").decision == "HOLD"
    [rule] = [rule for rule in verdict(shelf).rules if rule.name == "approved by another person"]
    assert "a typed name does not count" in rule.detail


def test_token_of_an_approver_for_this_model_promotes_it(shelf: Shelf, issuer: Issuer) -> None:
    token = issuer.sign(shelf.evidence(1).model_digest)
    assert shelf.ask("production", 1, approval=token, approver="somebody typed").decision == "PASS"
    intent = shelf.state().events[-1].intent
    assert (intent.who["approver"], intent.facts["approval"]) == ("carl@acme.example", f"token by {ISSUER}")


@pytest.mark.covers("A16")
def test_author_or_requester_who_approves_by_token_is_held(shelf: Shelf, issuer: Issuer) -> None:
    model = shelf.evidence(1).model_digest
    assert shelf.ask("production", 1, approval=issuer.sign(model, "anna"), by="ben").decision == "HOLD"
    token = issuer.sign(model)
    assert shelf.ask("production", 1, approval=token, by="CARL@ACME.example").decision == "HOLD"
    assert shelf.aliases() == {}


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "trainwright:staging"}, "is for audience"),
        ({"iss": "https://elsewhere.example"}, "is by issuer"),
        ({"email": "mallory@acme.example"}, "not among the approvers"),
        ({"exp": 1_000_000_000, "iat": 999_999_000}, "Token expired"),
    ],
)
def test_token_for_something_else_is_rejected(
    shelf: Shelf, issuer: Issuer, claims: dict[str, Any], said: str
) -> None:
    token = issuer.sign(shelf.evidence(1).model_digest, **claims)
    with pytest.raises(InputError, match=said):
        shelf.ask("production", 1, approval=token)


def test_token_for_another_model_is_rejected(shelf: Shelf, issuer: Issuer) -> None:
    with pytest.raises(InputError, match="is for audience"):
        shelf.ask("production", 1, approval=issuer.sign(shelf.evidence(2).model_digest))


@pytest.mark.covers("A16")
def test_token_with_a_forged_signature_is_rejected(shelf: Shelf, issuer: Issuer) -> None:
    model = shelf.evidence(1).model_digest
    issuer.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    unsigned = issuer.sign(model)
    with pytest.raises(InputError, match="Could not verify token signature"):
        shelf.ask("production", 1, approval=unsigned)
    header = base64.urlsafe_b64encode(b'{"alg": "none", "typ": "JWT"}').decode()
    body = issuer.token.read_text().split(".")[1]
    deep = base64.urlsafe_b64encode(b"[" * 10_000).decode()
    for forged in (f"{header}.{body}.", f"{header}.{deep}.", f"{deep}.{body}.", "no token", "a.b.c", ""):
        issuer.token.write_text(forged)
        with pytest.raises(InputError, match="the approval is no valid token"):
            shelf.ask("production", 1, approval=str(issuer.token))


@pytest.mark.parametrize(
    "approver",
    ["ＡＮＮＡ", "  Anna ", "аnna", "an\u200bna", "ann\u0430", "\uff41nna"],  # noqa: RUF001
)
def test_approver_whose_name_reads_like_the_authors_is_the_author(shelf: Shelf, approver: str) -> None:
    """Full-width letters, spaces, Cyrillic lookalikes, invisible characters."""
    four_eyes = DIRECT.model_copy(update={"four_eyes": True})
    assert same_person("anna", approver)
    assert shelf.ask("production", 1, four_eyes, by="ben", approver=approver.strip()).decision == "HOLD"


def test_requester_who_approves_is_held(shelf: Shelf) -> None:
    four_eyes = DIRECT.model_copy(update={"four_eyes": True})
    assert shelf.ask("production", 1, four_eyes, by="ben", approver="BEN").decision == "HOLD"
    assert shelf.ask("production", 1, four_eyes, by="ben", approver="carl").decision == "PASS"
    assert not same_person("anna", "hanna")


def test_override_that_the_author_approves_does_not_count(shelf: Shelf, tmp_path: Path) -> None:
    version, _ = overridden(shelf, tmp_path / "held", approver="Ａnna")  # noqa: RUF001
    four_eyes = DIRECT.model_copy(update={"four_eyes": True})
    assert shelf.ask("production", version, four_eyes, by="ben", approver="carl").decision == "FAIL"
    rules = {rule.name: rule for rule in verdict(shelf, int(version)).rules}
    assert ", who is the author" in rules["model verdict"].detail


def test_override_needs_a_token_at_every_stage_where_the_policy_names_approvers(
    shelf: Shelf, tmp_path: Path
) -> None:
    version, _ = overridden(shelf, tmp_path / "held")
    path = {"promotion": {"path": ["staging", "production"]}}
    issuer = Issuer(trust(shelf, path | {"approval": TOKENS}))
    assert shelf.ask("staging", version).decision == "HOLD"
    model = shelf.evidence(int(version)).model_digest
    token = issuer.sign(model, aud=audience("staging", model))
    assert shelf.ask("staging", version, by="ben", approval=token).decision == "PASS"


def test_override_ends_within_days() -> None:
    with pytest.raises(InputError, match="max_override_days"):
        DIRECT.check(DIRECT.model_dump() | {"max_override_days": 365}, "promotion")
    assert timedelta(days=DIRECT.max_override_days) == timedelta(days=30)
