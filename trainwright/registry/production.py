"""The version that is in production."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.errors import InputError
from trainwright.registry.names import PRODUCTION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

DIGEST = "trainwright.model_digest"
"""Tag of a version: digest of its model's manifest."""


@dataclass(frozen=True)
class Production:
    """A version that an alias points at.

    Attributes:
        version: Its number in the registry.
        model: Digest of its model's manifest.
        source: Where its files are.
    """

    version: str
    model: str
    source: str


def find(client: "MlflowClient", name: str) -> Production | None:
    """Return the version in production; None where there is none, or no such model yet.

    Raises:
        InputError: A version without the digest of its model is in production: it was not registered here.
    """
    found = _pointed_at(client, name)
    if found is None:
        return None
    if not found.tags.get(DIGEST):
        raise InputError(
            f"version {found.version} of {name} is in production and has no tag {DIGEST}",
            where=f"alias {PRODUCTION}",
            hint="Promote a version that the register step made.",
        )
    return Production(str(found.version), found.tags[DIGEST], str(found.source))


def _pointed_at(client: "MlflowClient", name: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, PRODUCTION)
    except MlflowException as error:
        # A missing model is RESOURCE_DOES_NOT_EXIST, a missing alias INVALID_PARAMETER_VALUE. The word alone
        # says nothing: it is in the request's address, and so in the message of a server that is away.
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        if error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error).lower():
            return None
        raise
