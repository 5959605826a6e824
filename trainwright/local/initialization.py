"""Write the first experiment file and schema of a table: ``trainwright init``.

Each part runs in the environment whose packages it needs: the rows are read in that of ``ingest``, the schema
is inferred in that of ``validate``.
"""

import difflib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainwright import credentials
from trainwright.authoring import arguments
from trainwright.authoring.environments import python
from trainwright.command import run_package
from trainwright.draft.documents import Draft, DraftRequest
from trainwright.errors import InputError

KINDS = ("binary", "multiclass", "regression", "text")
EXPERIMENT, SCHEMA = "experiment.yaml", "schema.pbtxt"


@dataclass(frozen=True)
class Initialized:
    """The files that ``trainwright init`` wrote, and what it inferred, with reasons."""

    experiment: Path
    schema: Path
    findings: tuple[str, ...]

    @property
    def command(self) -> str:
        """The next command."""
        return f"trainwright run train_and_register --config {os.path.relpath(self.experiment)}"


def initialize(
    data: str,
    *,
    query: str = "",
    label: str = "",
    key: str = "",
    time: str = "",
    group: str = "",
    kind: str = "",
    text: str = "",
    output: Path = Path(),
) -> Initialized:
    """Infer an experiment from the rows of a source, and write its file and its schema.

    Args:
        data: Parquet, CSV or JSONL file, folder or glob of these, a URI, or the URL of a database.
        query: SELECT for a database.
        label: Column to predict.
        key: Column that identifies a row.
        time: Column with the time of the prediction.
        group: Column of rows that belong to the same split.
        kind: ``binary``, ``multiclass`` or ``regression``; ``text`` for a language model.
        text: Column that a language model learns.
        output: Folder for the two files; nothing in it is overwritten.

    Raises:
        InputError: A file is there already, the source cannot be read, or a choice is ambiguous.
        DataRefused: The rows contradict an option, or nothing can be learned from them.
        DependencyError: The environments have not been made.
    """
    credentials.require_none({"data": data, "query": query}, where="command line", plain=True)
    kind = kind or ("text" if text else "")
    _require_kind(kind, label, text)
    folder = output.resolve()
    done = Initialized(folder / EXPERIMENT, folder / SCHEMA, ())
    for path in (done.experiment, done.schema):
        if path.exists():
            raise InputError(
                "the file exists", where=str(path), hint="Remove it, or name another folder: --output."
            )
    request = DraftRequest(
        source=_absolute(data), folder=str(folder), query=query, label=label, key=key,
        time=time, group=group, kind=kind, text=text,
    )  # fmt: skip
    reader, inferrer = python("ingest"), python("tfdv")
    with tempfile.TemporaryDirectory(prefix="trainwright-init-") as scratch:
        run_package(reader, "draft", json.dumps(request.to_json()), scratch)
        draft = Draft.parse(Path(scratch) / Draft.FILE)
        schema = run_package(inferrer, "validate", "infer", str(Path(scratch) / "snapshot"))
        first = Path(scratch) / EXPERIMENT
        first.write_text(draft.experiment)
        arguments.load(first)
    folder.mkdir(parents=True, exist_ok=True)
    done.schema.write_text(schema)
    done.experiment.write_text(draft.experiment)
    return Initialized(done.experiment, done.schema, draft.findings)


def _require_kind(kind: str, label: str, text: str) -> None:
    if kind and kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"Did you mean {close[0]}?" if close else "Leave it out to infer it from the values."
        raise InputError(f"expected {', '.join(KINDS)}; found {kind!r}", where="--kind", hint=hint)
    if (kind == "text" and label) or (kind != "text" and text):
        raise InputError(
            f"found --kind {kind}, --label {label or 'absent'} and --text {text or 'absent'}: "
            "a language model learns --text, every other kind a --label",
            where="command line",
            hint="Leave one of them out.",
        )


def _absolute(data: str) -> str:
    """Return a local source as an absolute path; a URI as it is, but the path of an SQLite file."""
    if data.startswith(arguments.SQLITE):
        return arguments.SQLITE + os.path.abspath(data.removeprefix(arguments.SQLITE))
    return data if "://" in data else os.path.abspath(data)
