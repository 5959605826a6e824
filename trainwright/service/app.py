"""The application: middleware, routes and errors."""

from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

import trainwright
from trainwright.service import pages, problems, routes
from trainwright.service.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the application for some settings; ``app.state.settings`` has them."""
    app = FastAPI(title="trainwright", version=trainwright.__version__, docs_url=None, redoc_url=None)
    app.state.settings = settings
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(settings.allowed_hosts))
    problems.install(app)

    @app.get("/healthz", tags=["service"])
    def healthz() -> dict[str, str]:
        """Answer that the service runs."""
        return {"status": "ok"}

    app.include_router(routes.router)
    app.include_router(pages.router)
    return app
