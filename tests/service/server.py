"""`trainwright serve`, started as a user starts it, and asked over HTTP."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
START = "from trainwright.cli.app import main; main()"
POLICY = {"path": ["production"], "four_eyes": True, "lease_s": 600}


@dataclass
class Service:
    """A running service, and how the owner of its token calls it."""

    root: str
    token: str
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers |= {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        """Call the API."""
        headers = self.headers | more.pop("headers", {})
        url = f"{self.root}{path if path.startswith('/') else f'/api/v1/{path}'}"
        return requests.request(method, url, headers=headers, timeout=300, allow_redirects=False, **more)

    def get(self, path: str, **query: Any) -> Any:
        """Read a path of the API, which must succeed."""
        answer = self.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def serving(*words: str | Path, folder: Path) -> Iterator[Service]:
    """Start ``trainwright serve`` in a folder, on a free port."""
    command = [PYTHON, "-c", START, "serve", "--port", "0", *words]
    with (folder / "serve.err").open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "serve.err").read_text()
        root, _, token = address.partition("/sign-in?token=")
        yield Service(root.rstrip("/"), token)
    finally:
        process.terminate()
        process.communicate()
        log = (folder / "serve.err").read_text()
        assert "Traceback" not in log, log


def experiment(folder: Path, registry: dict[str, Any]) -> Path:
    """Write an experiment file with the registry, and a promotion policy straight into production."""
    content = yaml.safe_load((ROOT / "examples" / "quickstart" / "experiment.yaml").read_text())
    content |= {"registry": registry, "promotion": POLICY}
    (folder / "schema.pbtxt").write_text("")
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
