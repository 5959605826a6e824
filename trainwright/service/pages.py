"""The pages, rendered by the server."""

from fastapi import APIRouter

router = APIRouter(include_in_schema=False)
