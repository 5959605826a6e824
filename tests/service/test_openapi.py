"""Requests made from the OpenAPI: none of them makes the service fail."""

import subprocess

import pytest

from tests.service.conftest import Site
from tests.service.server import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

SCHEMATHESIS = ROOT / ".venv" / "bin" / "schemathesis"


def test_no_generated_request_ends_with_a_server_error(site: Site) -> None:
    command = [SCHEMATHESIS, "run", f"{site.service.root}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {site.service.token}", "--checks", "not_a_server_error"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--generation-deterministic"]
    command += ["--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all"]
    done = subprocess.run(command, cwd=site.runs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "13 passed" in done.stdout or "passed" in done.stdout


def test_description_says_who_may_call(site: Site) -> None:
    described = site.service.call("GET", "/openapi.json").json()
    assert {"HTTPBearer", "APIKeyCookie", "APIKeyHeader"} <= described["components"]["securitySchemes"].keys()
    for path, methods in described["paths"].items():
        assert path == "/healthz" or all(operation["security"] for operation in methods.values()), path
