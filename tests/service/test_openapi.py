"""Requests made from the OpenAPI: none of them makes the service fail."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.registry.shelf import MODEL
from tests.service.conftest import Site
from tests.service.server import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

SCHEMATHESIS = ROOT / ".venv" / "bin" / "schemathesis"
VALUES = {"name": MODEL, "version": "1", "run": "000001", "other": "000002"}
NAMES = "[parameters]\n" + "\n".join(f'"path.{name}" = "{value}"' for name, value in VALUES.items())


def generated(site: Site, folder: Path, config: str, *words: str) -> str:
    """Send generated requests; return what schemathesis says of those that were answered without a 5xx."""
    (folder / "schemathesis.toml").write_text(config)
    command = [SCHEMATHESIS, "--config-file", folder / "schemathesis.toml", "run"]
    command += [f"{site.service.root}/openapi.json", "-H", f"Authorization: Bearer {site.service.token}"]
    command += ["--checks", "not_a_server_error", "--generation-deterministic", "--continue-on-failure"]
    command += ["--request-timeout", "120", "--warnings", "off", "--suppress-health-check", "all", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def test_requests_at_the_limits_of_each_parameter_end_without_a_server_error(
    site: Site, tmp_path: Path
) -> None:
    found = generated(site, tmp_path, "", "--phases", "coverage")
    assert re.search(r"15 passed", found), found
    number = re.search(r"(\d+) generated, \1 passed", found)
    assert number, found
    assert int(number[1]) > 300


def test_random_requests_about_a_real_run_and_model_end_without_a_server_error(
    site: Site, tmp_path: Path
) -> None:
    found = generated(site, tmp_path, NAMES, "--phases", "fuzzing", "--max-examples", "4")
    assert re.search(r"(\d+) generated, \1 passed", found), found


def test_description_says_who_may_call(site: Site) -> None:
    described = site.service.call("GET", "/openapi.json").json()
    assert {"HTTPBearer", "APIKeyCookie", "APIKeyHeader"} <= described["components"]["securitySchemes"].keys()
    for path, methods in described["paths"].items():
        assert path == "/healthz" or all(operation["security"] for operation in methods.values()), path
