"""Sizes, written for people."""

_KILO = 1000


def readable_size(size: float) -> str:
    """Write a number of bytes for people, in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if round(size, 1) < _KILO:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:,.1f} TB"
