"""Times as Kubernetes writes them: whole seconds, or microseconds in events, always UTC."""

from datetime import datetime


def seconds(text: object) -> float | None:
    """Return a time such as ``2026-11-20T08:44:27Z`` in seconds since 1970, or None where there is none."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None
