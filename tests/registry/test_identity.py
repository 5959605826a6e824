"""Tokens of approvers and the names of persons, without a registry."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.registry.test_policy import ISSUER, Issuer
from trainwright.errors import InputError
from trainwright.registry.policy import Approval, audience, same_person, verify_approval

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

MODEL = "m" * 64
POLICY = Approval(issuer=ISSUER, claim="email", approvers=("carl@acme.example", "anna"))


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def approver(issuer: Issuer, token: str, to: str = "production", model: str = MODEL) -> str:
    return verify_approval(POLICY, issuer.token.with_name("jwks.json"), token, to, model)


def test_a_token_of_an_approver_names_the_person(issuer: Issuer) -> None:
    assert approver(issuer, issuer.sign(MODEL)) == "carl@acme.example"
    assert approver(issuer, issuer.sign(MODEL, "anna", aud=audience("production", MODEL))) == "anna"
    many = issuer.sign(MODEL, aud=["other", audience("canary", MODEL)])
    assert approver(issuer, many, "canary") == "carl@acme.example"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": audience("canary", MODEL)}, "is for audience"),
        ({"aud": audience("production", "n" * 64)}, "is for audience"),
        ({"aud": None}, "is for audience"),
        ({"aud": []}, "is for audience"),
        ({"iss": "https://elsewhere.example"}, "is by issuer 'https://elsewhere.example'"),
        ({"iss": None}, "is by issuer None"),
        ({"email": "mallory@acme.example"}, "'mallory@acme.example' is not among the approvers"),
        ({"email": ["anna"]}, "is not among the approvers"),
        ({"email": None}, "None is not among the approvers"),
        ({"exp": 1_000_000_000, "iat": 999_999_000}, "Token expired"),
    ],
)
def test_a_token_for_something_else_is_rejected(issuer: Issuer, claims: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        approver(issuer, issuer.sign(MODEL, **claims))


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


NO_ALGORITHM, OTHER_BODY = b'{"alg": "none"}', b'{"aud": "x"}'
LISTED_KEY, NESTED, LIST, NUMBER = b'{"alg": "RS256", "kid": []}', b"[" * 10_000, b"[]", b"1"
FORGED: dict[str, Callable[[list[str]], str]] = {
    "no algorithm": lambda parts: f"{part(NO_ALGORITHM)}.{parts[1]}.",
    "another body": lambda parts: f"{parts[0]}.{part(OTHER_BODY)}.{parts[2]}",
    "nested body": lambda parts: f"{parts[0]}.{part(NESTED)}.{parts[2]}",
    "nested header": lambda parts: f"{part(NESTED)}.{parts[1]}.{parts[2]}",
    "a header that is a list": lambda parts: f"{part(LIST)}.{parts[1]}.{parts[2]}",
    "a header that is a number": lambda parts: f"{part(NUMBER)}.{parts[1]}.{parts[2]}",
    "a key that is a list": lambda parts: f"{part(LISTED_KEY)}.{parts[1]}.{parts[2]}",
    "a body that is a number": lambda parts: f"{parts[0]}.{part(NUMBER)}.{parts[2]}",
    "no token": lambda _: "no token",
    "nothing": lambda _: "",
}


@pytest.mark.covers("A16")
@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_token_is_bad_input(issuer: Issuer, forgery: str) -> None:
    parts = Path(issuer.sign(MODEL)).read_text().split(".")
    issuer.token.write_text(FORGED[forgery](parts))
    with pytest.raises(InputError, match="the approval is no valid token"):
        approver(issuer, str(issuer.token))


@pytest.mark.parametrize(
    "text",
    [
        '{"keys": [{"kty": "RSA"}]}',
        "{}",
        "[]",
        '{"keys": [1]}',
        '{"keys": [{"kty": "RSA", "kid": "k", "n": "a", "e": "?"}]}',
    ],
)
def test_keys_of_an_issuer_that_are_none_are_bad_input(issuer: Issuer, text: str) -> None:
    token = issuer.sign(MODEL)
    issuer.token.with_name("jwks.json").write_text(text)
    with pytest.raises(InputError):
        approver(issuer, token)


def test_keys_of_other_kinds_are_passed_over(issuer: Issuer) -> None:
    token, place = issuer.sign(MODEL), issuer.token.with_name("jwks.json")
    keys = json.loads(place.read_text())["keys"]
    place.write_text(json.dumps({"keys": [{"kty": "oct", "k": "x"}, *keys]}))
    assert approver(issuer, token) == "carl@acme.example"
    place.unlink()
    with pytest.raises(InputError, match="no such file"):
        approver(issuer, token)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ada", "Ada", True),
        (" ada  lovelace ", "ada lovelace", True),
        ("ada", "аda", True),  # noqa: RUF001 - with a Cyrillic letter
        ("ada", "a\u200bda", True),
        ("ａda", "ada", True),  # noqa: RUF001 - with a wide letter
        ("straße", "STRASSE", True),
        ("ada", "adam", False),
        ("ada", "", False),
    ],
)
def test_persons_are_compared_as_their_names_read(one: str, other: str, same: bool) -> None:
    assert same_person(one, other) == same_person(other, one) == same
