"""The application: middleware, routes and errors."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

import trainwright
from trainwright.errors import InputError
from trainwright.service import pages, problems, routes
from trainwright.service.access import COOKIE, MAX_BODY, AccessControl
from trainwright.service.settings import Settings

CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""Content-Security-Policy of the pages: everything comes from the service itself.

Only pages of the same origin may frame them: behind the gateway, Kubeflow's dashboard.
"""

SIGN_IN = "/sign-in"


def create_app(settings: Settings) -> FastAPI:
    """Return the application for some settings.

    ``app.state.settings`` has them, ``app.state.access`` the secrets of this start.

    Raises:
        InputError: The file of the token is missing.
    """
    app = FastAPI(title="trainwright", version=trainwright.__version__, docs_url=None, redoc_url=None)
    app.state.settings, app.state.access = settings, AccessControl.of(settings)
    app.middleware("http")(_protect)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(settings.allowed_hosts))
    problems.install(app)
    app.get("/healthz")(healthz)
    app.get(SIGN_IN, include_in_schema=False)(sign_in)
    app.include_router(routes.router)
    app.include_router(pages.router)
    return app


async def _protect(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Reject a large body before it is read, and add the headers that protect a browser."""
    if request.method in {"POST", "PUT", "PATCH"}:
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            text = f"expected a body with a Content-Length of at most {MAX_BODY:,}; found {length or 'none'}"
            return problems.problem(413 if length else 411, InputError(text))
    response = await call_next(request)
    response.headers.setdefault("Content-Security-Policy", CSP)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def healthz() -> dict[str, str]:
    """Answer that the service runs."""
    return {"status": "ok"}


def sign_in(request: Request, token: str = "") -> Response:
    """Exchange the token of the printed address for a cookie, and go to the first page."""
    if not request.app.state.access.is_token(token):
        raise HTTPException(401, "this is not the token of this start of trainwright serve")
    response = RedirectResponse(f"{request.scope['root_path']}/", status_code=303)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
    return response
