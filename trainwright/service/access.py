"""Identity of a caller: a token on this machine, the header of Kubeflow's gateway on a cluster.

A browser sends the cookie of the token, or passes the gateway, also for a form on a foreign page. So a change
needs, beside the identity, a header that only our own pages can know; a token in ``Authorization`` will do.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from trainwright.documents import read_json
from trainwright.errors import InputError, PermissionRefused
from trainwright.service.settings import Settings

COOKIE = "trainwright-token"
CSRF = "x-csrf-token"
GATEWAY = "kubeflow-userid"
MAX_BODY, MAX_DEPTH = 1_000_000, 40
_LONGEST_NAME = 256

_BEARER = HTTPBearer(auto_error=False, description="The token that `trainwright serve` prints.")
_COOKIE = APIKeyCookie(name=COOKIE, auto_error=False, description="The same token, set by /sign-in.")
_GATEWAY = APIKeyHeader(name=GATEWAY, auto_error=False, description="Set by Kubeflow's gateway.")
_CSRF = APIKeyHeader(name=CSRF, auto_error=False, description="`csrf` of /api/v1/session, for changes.")


@dataclass(frozen=True, kw_only=True)
class AccessControl:
    """The secrets of one start of the service.

    Attributes:
        token: The caller's token; empty behind a gateway.
        user: Name of the caller who has the token.
        key: Key of the tokens against forged requests.
    """

    token: str
    user: str
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @classmethod
    def of(cls, settings: Settings) -> "AccessControl":
        """Return the secrets for some settings; a token that no file holds is new.

        Raises:
            InputError: The token's file is missing, or holds less than 16 characters.
        """
        if settings.auth == "gateway":
            return cls(token="", user="")
        if not settings.access_token_file:
            return cls(token=secrets.token_urlsafe(32), user=settings.user)
        path = Path(settings.access_token_file)
        token = path.read_text().strip() if path.is_file() else ""
        if len(token) < 16 or not token.isascii():  # noqa: PLR2004 - 16 letters of base 64 are 96 bits
            raise InputError(
                "expected a token of at least 16 ASCII characters in a file",
                where=str(path),
                hint="python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE",
            )
        return cls(token=token, user=settings.user)

    def is_token(self, text: str) -> bool:
        """Tell whether a text is the token, in a time that does not depend on the text."""
        return bool(self.token) and hmac.compare_digest(text.encode(), self.token.encode())

    def csrf(self, identity: str) -> str:
        """Return what a page of this caller sends with a change."""
        return hmac.new(self.key, identity.encode(), hashlib.sha256).hexdigest()


def access_of(request: Request) -> AccessControl:
    """Return the secrets of the application that serves a request."""
    access: AccessControl = request.app.state.access
    return access


def identify(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    cookie: Annotated[str | None, Depends(_COOKIE)],
    gateway: Annotated[str | None, Depends(_GATEWAY)],
) -> str:
    """Return the name of the caller; 401 without an identity."""
    access = access_of(request)
    if access.token:
        if access.is_token(bearer.credentials if bearer else cookie or ""):
            return access.user
        hint = "open the address that trainwright serve printed, or send its token: Authorization: Bearer"
    else:
        if gateway and gateway.isprintable() and gateway == gateway.strip() and len(gateway) < _LONGEST_NAME:
            return gateway
        hint = "sign in at Kubeflow; its gateway passes the identity on"
    raise HTTPException(401, f"no valid identity: {hint}", headers={"WWW-Authenticate": "Bearer"})


Reader = Annotated[str, Depends(identify)]
"""The caller of a request that reads."""


async def authorize(
    request: Request,
    identity: Reader,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    csrf: Annotated[str | None, Depends(_CSRF)],
) -> str:
    """Return the name of a caller who changes something.

    Raises:
        PermissionRefused: The request may come from a foreign page.
        InputError: The body is no JSON that this library reads.
    """
    access = access_of(request)
    by_token = bearer is not None and access.is_token(bearer.credentials)
    if not by_token and not hmac.compare_digest((csrf or "").encode(), access.csrf(identity).encode()):
        raise PermissionRefused(
            f"the header {CSRF} is missing or of another session",
            hint="Send csrf of /api/v1/session with it; reload a page that was open.",
        )
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected a body of the type application/json")
    read_json(await request.body(), where="body", max_bytes=MAX_BODY, max_depth=MAX_DEPTH)
    return identity


Writer = Annotated[str, Depends(authorize)]
"""The caller of a request that changes something."""
