"""Draws the picture of a real run for the README: ``.venv/bin/python docs/images/terminal.py``.

Runs the demo in a terminal of its own and writes what it printed, colours included, as an SVG.
"""

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["trainwright", "run", "train_and_register", "--config", "examples/flights/flights.yaml"]
WIDTH = 128


def recorded(command: list[str]) -> str:
    """Run a command in a terminal and return all that it wrote."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        written.extend(data)
        return data

    os.environ["COLUMNS"] = str(WIDTH)
    code = pty.spawn([str(ROOT / ".venv" / "bin" / command[0]), *command[1:]], read)
    if code:
        sys.exit(f"the run ended with {os.waitstatus_to_exitcode(code)}; no picture was drawn")
    return written.decode()


def lasting(text: str) -> str:
    """Keep of each line only what was there in the end: progress is drawn over itself."""
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).replace(str(ROOT) + "/", "")


if __name__ == "__main__":
    os.chdir(ROOT)
    said = lasting(recorded(COMMAND))
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("$ " + " ".join(COMMAND), style="bold"))
        console.print(Text.from_ansi(said))
        drawing = console.export_svg(title="trainwright")
    # rich names a font of a CDN; the picture takes what the reader has.
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    (ROOT / "docs" / "images" / "run.svg").write_text(drawing)
