"""The promotion policy that applies, and the approvals that it asks for.

It is a protected file, or the section of the request where there is none.
"""

import base64
import binascii
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.experiment import Promotion, Registry, Section
from trainwright.experiment.section import Name
from trainwright.storage import open_file, redacted
from trainwright.storage.local import naming_path

POLICY_FILE = "policy.json"
REQUESTED = "the request"
"""Source of a policy that is not protected."""


class Approval(Section):
    """Approvers, and the issuer of the tokens that prove who they are.

    The keys of the issuer are ``jwks.json`` beside the policy.
    """

    issuer: Name = Field(description="Issuer of the tokens, as in their claim `iss`.")
    claim: Name = Field("sub", description="Claim that names the person.")
    approvers: tuple[Name, ...] = Field(min_length=1, description="Values of the claim that may approve.")


class PolicyFile(Section):
    """Content of ``policy.json`` in the folder ``registry.trust``."""

    promotion: Promotion = Field(description="Policy of every model that `models` does not name.")
    models: dict[Name, Promotion] = Field({}, description="Policies of single models.")
    approval: Approval | None = Field(None, description="Approvers; absent: a typed name is enough.")


@dataclass(frozen=True)
class PromotionPolicy:
    """A promotion policy and its source.

    Attributes:
        source: File of the policy, or :data:`REQUESTED`.
        approval: Whose tokens prove an approval; None if a typed name is enough.
        keys: File of the issuer's keys.
    """

    promotion: Promotion
    source: str = REQUESTED
    approval: Approval | None = None
    keys: Path = Path()


def protect(registry: Registry, folder: str) -> Registry:
    """Return the section with the folder that the cluster mounts as ``trust``, where there is that folder."""
    return registry.model_copy(update={"trust": folder}) if folder and Path(folder).is_dir() else registry


def read_policy(registry: Registry, requested: Promotion) -> PromotionPolicy:
    """Return the policy in ``registry.trust``, which replaces the requested one.

    Raises:
        InputError: The folder has no policy, or it is invalid.
    """
    if not registry.trust:
        return PromotionPolicy(requested)
    place = Path(registry.trust) / POLICY_FILE
    if not place.is_file():
        raise InputError(
            "expected the promotion policy, found no such file",
            where=str(place),
            hint="Create the ConfigMap that deploy/trust.yaml describes, or write the file.",
        )
    with naming_path(place):
        content = PolicyFile.parse(place.read_text(), str(place))
    promotion = content.models.get(registry.model, content.promotion)
    return PromotionPolicy(promotion, str(place), content.approval, place.with_name("jwks.json"))


_LOOKALIKES = str.maketrans("аеорсухіјѕԁһԛԝвкмтнαορυνικτ", "aeopcyxijsdhqwbkmthaopyvikt")
"""Cyrillic and Greek letters that look like Latin ones, which Unicode normalization leaves apart."""

MAX_TOKEN_BYTES = 16_384
_CLOCK_SKEW_S = 60


def same_person(one: str, other: str) -> bool:
    """Return whether two names read alike: NFKC, case, spaces, invisible characters and lookalikes aside."""
    return _skeleton(one) == _skeleton(other)


def _skeleton(name: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    visible = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
    return " ".join(visible.translate(_LOOKALIKES).split())


def audience(to: str, model_digest: str) -> str:
    """Return the audience of a token that approves one model for one stage, and nothing else."""
    return f"trainwright:{to}:{model_digest}"


def verify_approval(approval: Approval, keys: Path, token: str, to: str, model_digest: str) -> str:
    """Verify an approver's token, a JWT; return who approves.

    Args:
        approval: Issuer, claim and approvers.
        keys: File of the issuer's keys, a JWKS.
        token: File or URI of the token.
        to: Stage that it must approve.
        model_digest: Model that it must approve.

    Raises:
        InputError: The token is missing, forged, expired, for another model, or of somebody else.
    """
    from google.auth import exceptions, jwt

    where = f"request.approval: {redacted(token)}"
    try:
        with open_file(token) as stream:
            text = stream.read(MAX_TOKEN_BYTES).strip()
        claims = jwt.decode(text, certs=_public_keys(keys), clock_skew_in_seconds=_CLOCK_SKEW_S)  # type: ignore[no-untyped-call]
    except (exceptions.GoogleAuthError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # An error quotes the claims at most, never the signature.
        raise InputError(f"the approval is no valid token: {str(error)[:200]}", where=where) from None
    found = claims.get("aud")
    wanted = audience(to, model_digest)
    if wanted not in (found if isinstance(found, list) else [found]):
        raise InputError(
            f"the approval is for audience {str(found)[:120]!r}; expected {wanted!r}",
            where=where,
            hint="A token approves one model for one stage: request one with this audience.",
        )
    if claims.get("iss") != approval.issuer:
        raise InputError(
            f"the approval is by issuer {claims.get('iss')!r:.120}, expected {approval.issuer!r}", where=where
        )
    person = claims.get(approval.claim)
    if not isinstance(person, str) or person not in approval.approvers:
        raise InputError(f"{person!r:.120} is not among the approvers of the policy", where=where)
    return person


def _public_keys(place: Path) -> dict[str, bytes]:
    """Return the keys of a JWKS as PEM by their id: RSA, and EC on P-256."""
    with naming_path(place):
        keys = read_json(place)
    try:
        return {str(key["kid"]): _pem(key) for key in keys["keys"] if key.get("kty") in ("RSA", "EC")}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"expected a JWKS with kid, n and e: {error!r:.120}", where=str(place)) from None


def _pem(key: Mapping[str, Any]) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
    if key["kty"] == "RSA":
        public = rsa.RSAPublicNumbers(_integer(key["e"]), _integer(key["n"])).public_key()
    else:
        point = _integer(key["x"]), _integer(key["y"])
        public = ec.EllipticCurvePublicNumbers(*point, ec.SECP256R1()).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _integer(text: str) -> int:
    try:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
