"""Errors of the API: one JSON shape, and the status of each exit code."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trainwright.errors import InputError, TrainwrightError, as_ours, as_record

STATUSES = {10: 400, 11: 409, 12: 409, 20: 503, 21: 503, 50: 403}
"""The HTTP status of each exit code that a request can end with; 500 for every other."""


class PathNotFound(InputError):
    """The run, model, version or file that a path names does not exist."""


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error of this library."""
    if isinstance(error, PathNotFound):
        return HTTPStatus.NOT_FOUND
    return STATUSES.get(as_record(error, "")["code"], HTTPStatus.INTERNAL_SERVER_ERROR)


def problem(status: int, error: Exception, headers: Any = None, **more: Any) -> JSONResponse:
    """Return an error as the response of the API, with the fields of :func:`as_record`."""
    return JSONResponse(as_record(error, "service") | more, status, headers)


def install(app: FastAPI) -> None:
    """Answer every error of an application in this shape."""

    @app.exception_handler(TrainwrightError)
    @app.exception_handler(OSError)
    def known(_: Request, error: Exception) -> JSONResponse:
        ours = as_ours(error) or error
        return problem(status_of(ours), ours)

    @app.exception_handler(Exception)
    def bug(_: Request, error: Exception) -> JSONResponse:  # the server logs its traceback
        return problem(500, error)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return problem(422, InputError("\n".join(lines), where="request", hint="See /openapi.json."))

    @app.exception_handler(HTTPException)
    def rejected(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, InputError(str(error.detail)), error.headers)
