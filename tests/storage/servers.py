"""Starts the servers that stand for the clouds, each on a free port, in the emulators' environment."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
EMULATORS = HERE.parents[1] / ".environments" / "emulators" / "bin" / "python"
_UNTIL_ALONE = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""Runs a program until the process that started it is gone, however it went."""


@contextmanager
def gcs() -> Iterator[str]:
    """Serve ``gs://``; gives its ``host:port``."""
    with _serving([str(HERE / "gcs.py")]) as address:
        yield address


@contextmanager
def s3() -> Iterator[str]:
    """Serve ``s3://``; gives its ``host:port``."""
    with _serving([str(HERE / "moto_s3.py")]) as address:
        yield address


@contextmanager
def _serving(arguments: list[str]) -> Iterator[str]:
    if not EMULATORS.exists():
        raise FileNotFoundError(f"no environment of emulators at {EMULATORS}: run make test, which makes it")
    process = subprocess.Popen(
        [str(EMULATORS), "-c", _UNTIL_ALONE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of this machine; returns it and its key."""
    subprocess.run([str(EMULATORS), str(HERE / "certificate.py"), str(folder)], check=True)
    return folder / "certificate.pem", folder / "key.pem"
