"""A registry with models in it, as register leaves them, copied anew for each test."""

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from tests.registry.steps import Run
from trainwright.experiment import Canary, Promotion, PromotionRequest, Registry
from trainwright.registry.audit import AuditEvent, AuditLog, AuditState
from trainwright.registry.evidence import VersionEvidence, read_evidence
from trainwright.registry.promote import PromotionResult, promote, rollback
from trainwright.registry.register import register
from trainwright.registry.signing import Keyring
from trainwright.tracking.server import open_client

MODEL = "flight_late"
CANARY = Canary(share=0.05, guards={"error_rate": 0.01})
DIRECT = Promotion(path=("production",), four_eyes=False, lease_s=600)
"""For what is not about stages: straight into production.

Signs of life are far apart, so that on the slowest machine none arrives between two lines of a test.
"""


def stock(folder: Path, tracking_uri: str, count: int = 3, **more: Any) -> list[Run]:
    """Register some models, version 1 first; all were compared with a registry without production."""
    section = Registry(model=MODEL, tracking_uri=tracking_uri, author="anna", **more)
    runs = []
    for number in range(1, count + 1):
        run = Run(folder / f"run{number}" / "run", weights=f"weights {number}")
        out = folder / f"out{number}"
        made = register(*run.folders, section, "abc", out / "r", out / "s.md")
        assert made.version == str(number)
        runs.append(run)
    return runs


@dataclass
class Shelf:
    """One test's registry: a copy of the stocked database, and an audit of its own."""

    folder: Path
    registry: Registry

    @classmethod
    def copy(cls, template: Path, folder: Path) -> "Shelf":
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(template, folder / "mlflow.db")
        noted = Path("audit") / MODEL / "registered"
        shutil.copytree(template.parent / noted, folder / noted)
        shutil.copy(template.parent / "audit.key", folder / "audit.key")
        uri = f"sqlite:///{folder}/mlflow.db"
        return cls(folder, Registry(model=MODEL, tracking_uri=uri, retry_s=20))

    def again(self, folder: Path) -> "Shelf":
        """Copy it with its audit."""
        copy = Shelf.copy(self.folder / "mlflow.db", folder)
        for path in self.audit.rglob("*.json"):
            place = copy.audit / path.relative_to(self.audit)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
        return copy

    @property
    def client(self) -> MlflowClient:
        return open_client(self.registry.tracking_uri)

    def evidence(self, version: int) -> VersionEvidence:
        keys = Keyring.of(self.registry)
        return read_evidence(self.client, str(self.folder / "audit"), MODEL, str(version), keys)

    @property
    def audit(self) -> Path:
        return self.folder / "audit" / MODEL

    def state(self) -> AuditState:
        return AuditLog(str(self.folder / "audit"), MODEL).read()

    def aliases(self) -> dict[str, str]:
        found = self.client.get_registered_model(MODEL).aliases
        return {alias: str(version) for alias, version in found.items() if alias != "candidate"}

    def stage(self, version: int) -> str:
        return str(self.client.get_model_version(MODEL, str(version)).tags["trainwright.stage"])

    def ask(
        self, to: str, version: int | str = "", policy: Promotion = DIRECT, **more: Any
    ) -> PromotionResult:
        wanted = {"by": "anna", "reason": "it is better", "version": str(version), "to": to} | more
        request = PromotionRequest.check(wanted, "request")
        out = self.folder / f"out-{to}-{version}"
        return promote(self.registry, policy, request, out, out / "summary.md")

    def back(self, **more: Any) -> AuditEvent:
        return rollback(self.registry, "ben", "it errs", **more)


def template(folder: Path) -> Path:
    """Make the stocked database, once: making one takes MLflow seconds."""
    stock(folder, f"sqlite:///{folder}/mlflow.db")
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return folder / "mlflow.db"
