"""Where the audit of a registry lies."""

from pathlib import Path

from trainwright.tracking.server import SQLITE, database


def audit_at(audit: str | None, tracking_uri: str) -> str:
    """Return where the audit lies: as it is said, or beside an SQLite file; empty where nothing says.

    Args:
        audit: ``registry.audit``; None or empty where it is not set.
        tracking_uri: MLflow's address.
    """
    if audit:
        return audit
    if tracking_uri.startswith(SQLITE):
        return str(Path(database(tracking_uri)).parent / "audit")
    return ""
