"""Errors of the API: one JSON shape, and the status of each exit code."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trainwright.errors import TrainwrightError, as_ours, as_record

STATUSES = {10: 400, 11: 409, 12: 409, 20: 503, 21: 503, 30: 409, 31: 409, 40: 503, 41: 503, 50: 403, 70: 500}
"""The HTTP status of each exit code."""


class NotFound(Exception):
    """What a path names does not exist; the error says what."""

    def __init__(self, error: TrainwrightError) -> None:
        self.error = error
        super().__init__(str(error))


def problem(status: int, error: Exception, **more: Any) -> JSONResponse:
    """Return an error as the response of the API."""
    return JSONResponse({**as_record(error, "service"), **more}, status_code=status)


def install(app: FastAPI) -> None:
    """Answer every error of an application in this shape."""

    @app.exception_handler(NotFound)
    def missing(_: Request, error: NotFound) -> JSONResponse:
        return problem(404, error.error)

    @app.exception_handler(TrainwrightError)
    @app.exception_handler(OSError)
    def known(_: Request, error: Exception) -> JSONResponse:
        ours = as_ours(error) or error
        return problem(STATUSES[as_record(ours, "service")["code"]], ours)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        from trainwright.errors import InputError

        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return problem(422, InputError("\n".join(lines), where="request", hint="See /openapi.json."))

    @app.exception_handler(HTTPException)
    def refused(_: Request, error: HTTPException) -> JSONResponse:
        from trainwright.errors import InputError

        return problem(error.status_code, InputError(str(error.detail)))
