"""The promotion policy that applies: a protected file, or the section of the request where there is none."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from trainwright.errors import InputError
from trainwright.experiment import Promotion, Registry, Section
from trainwright.experiment.section import Name
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
