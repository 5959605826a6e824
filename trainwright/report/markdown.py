"""Short Markdown summaries, as Kubeflow shows them beside a step."""

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\`*_{}|#~]|\](?=[(\[:])|^>|^[+-](?= )|(?<=^\d)[.)](?= ))")
"""What would become markup: a character anywhere, the end of a link's text, the start of a list or quote."""


def escape(text: object) -> str:
    """Write a value so that Markdown shows it as it is, on one line and without becoming markup."""
    line = " ".join(str(text).split())
    return _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """Write a table; every cell is escaped, the columns in ``numeric`` are set to the right."""
    rule = ["---:" if index in numeric else "---" for index in range(len(header))]
    body = [[escape(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ([escape(name) for name in header], rule, *body))
