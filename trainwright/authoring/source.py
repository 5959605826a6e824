"""The uncommitted changes of an experiment, stored so that a run can be reproduced."""

import os
import subprocess
from pathlib import Path

from trainwright.artifacts.record import SOURCE_PATCH
from trainwright.redaction import redacted

MAX_BYTES = 1_000_000
"""Longest patch that is stored."""

_MAX_NAMES = 100


def store_changes(folder: Path, run: Path) -> None:
    """Write what differs from the commit of a git work tree into a run's folder; nothing if nothing does.

    The file is a patch for ``git apply``, after comments: the commit, untracked files, and why it may not
    apply. It replaces that of an earlier start, whose results no longer count where the source has changed.
    """
    place = run / SOURCE_PATCH
    place.unlink(missing_ok=True)
    commit = _git(folder, "rev-parse", "HEAD").decode().strip()
    if not commit:
        return
    root = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    found = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    others = _git(root, "ls-files", "--others", "--exclude-standard").decode(errors="replace").splitlines()
    if not (found or others):
        return
    text = found[:MAX_BYTES].decode(errors="replace")
    patch = redacted(text)
    notes = [f"# Changes since commit {commit}"]
    notes += [f"# untracked, not included: {redacted(name)}" for name in others[:_MAX_NAMES]]
    notes += [f"# and {len(others) - _MAX_NAMES:,} more"] if len(others) > _MAX_NAMES else []
    notes += [f"# cut after {MAX_BYTES:,} bytes: it does not apply"] if len(found) > MAX_BYTES else []
    notes += ["# secrets are replaced by ***: it may not apply"] if patch != text else []
    place.write_text("\n".join([*notes, patch]))


def _git(folder: Path, *words: str) -> bytes:
    """Return what git prints, one byte more than the limit at most; empty if it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            assert process.stdout  # noqa: S101 - it is a pipe
            text = process.stdout.read(MAX_BYTES + 1)
            process.kill()
    except OSError:
        return b""
    return text
