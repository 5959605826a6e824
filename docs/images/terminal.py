"""Draws the picture of a real run for the README: ``.venv/bin/python docs/images/terminal.py [RUN]``.

Runs the demo in a terminal of its own and writes what it printed, colours included, as an SVG; or, with the
id of a run below ``runs/``, writes once more what that one printed.
"""

import io
import os
import pty
import re
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from trainwright.local import run_folder
from trainwright.local.console import Screen
from trainwright.local.runner import Outcome, Plan

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["trainwright", "run", "train_and_register", "--config", "examples/flights/flights.yaml"]
WIDTH = 142


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


def told_again(run: str) -> str:
    """Return what a run that succeeded has written, from what it left in its folder."""
    folder, said = ROOT / "runs" / run, io.StringIO()
    request, found = run_folder.Request.read(folder), run_folder.Tasks.read(folder)
    if found.state != "done":
        sys.exit(f"run {run} is {found.state}; no picture was drawn")
    began = datetime.fromisoformat(request.created).timestamp()
    seconds = (folder / run_folder.Tasks.FILE).stat().st_mtime - began
    screen = Screen(said, said, again="")
    steps = {task.step: task.environment for task in found.tasks}
    screen.started(Plan(id=run, folder=folder, pipeline=request.pipeline, steps=steps))
    for task in found.tasks:
        screen.task_ended(task)
    screen.ended(
        Outcome(
            id=run,
            folder=folder,
            pipeline=request.pipeline,
            state=found.state,
            exit_code=0,
            tasks=found.tasks,
            seconds=seconds,
            held_by="",
            error={},
        )
    )
    return said.getvalue()


def lasting(text: str) -> str:
    """Keep of each line only what was there in the end: progress is drawn over itself."""
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).replace(str(ROOT) + "/", "")


if __name__ == "__main__":
    os.chdir(ROOT)
    said = lasting(told_again(sys.argv[1]) if sys.argv[1:] else recorded(COMMAND))
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("$ " + " ".join(COMMAND), style="bold"))
        console.print(Text.from_ansi(said))
        drawing = console.export_svg(title="trainwright")
    # rich names a font of a CDN; the picture takes what the reader has.
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    (ROOT / "docs" / "images" / "run.svg").write_text(drawing)
