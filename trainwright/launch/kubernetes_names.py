"""Validate names, labels, quantities and image references of Kubernetes.

Sources: the pages "Object Names and IDs", "Labels and Selectors" and "Quantity" of Kubernetes; the reference
grammar of the container distribution project for images.
"""

import re

RESERVED = re.compile(
    r"(PET_|TORCHELASTIC_)\w*|RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE"
    r"|GROUP_WORLD_SIZE|ROLE_WORLD_SIZE|ROLE_NAME|MASTER_ADDR|MASTER_PORT|PYTHONUNBUFFERED"
    r"|TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
)
"""Variables that the operator, torchrun or this library sets: which of two values wins is undefined."""

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAME = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_HOST = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"(?:{_HOST}(?:\.{_HOST})*(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?")
_UNITS = {
    "m": 1e-3,
    **{unit: 1000.0**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate(("K", "M", "G", "T", "P", "E"), start=1)},
}
_LONGEST_LABEL, _LONGEST_NAME = 63, 253


def is_label(text: str) -> bool:
    """Tell whether a text can be the value of a label."""
    return text == "" or bool(len(text) <= _LONGEST_LABEL and re.fullmatch(_LABEL, text))


def is_subdomain(text: str) -> bool:
    """Tell whether a text can name most objects: DNS labels with dots between them, RFC 1123."""
    return len(text) <= _LONGEST_NAME and bool(re.fullmatch(rf"{_NAME}(\.{_NAME})*", text))


def is_image(text: str) -> bool:
    """Tell whether a text is a reference to an image, by tag or by digest."""
    return len(text) <= _LONGEST_NAME and bool(re.fullmatch(_IMAGE, text))


def is_variable(text: str) -> bool:
    """Tell whether a text can name an environment variable, in every shell too."""
    return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text))


def amount_of(quantity: str) -> float:
    """Return the number that a quantity such as ``500m`` or ``1.5Gi`` stands for.

    Raises:
        ValueError: The text is no such quantity, or is negative.
    """
    found = _QUANTITY.fullmatch(quantity)
    if not found:
        raise ValueError(f"{quantity!r} is not an amount such as 500m or 1.5Gi")
    number, unit = found.groups()
    return float(number) * _UNITS[unit] if unit in _UNITS else float(quantity)
