"""Commands that need a verb's own logic: each runs under the environment of the verb's image."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from trainwright.authoring.ending import reported

schema = typer.Typer(no_args_is_help=True, help="Make and review the schema of a snapshot.")
baseline = typer.Typer(no_args_is_help=True, help="Accept the data that later data is compared with.")
features = typer.Typer(no_args_is_help=True, help="Bring feature definitions into their registry, reviewed.")

SnapshotFolder = Annotated[Path, typer.Argument(help="Folder of the snapshot, with manifest.json.")]
SplitName = Annotated[str, typer.Option(help="Rows to learn the schema from.")]
SchemaFile = Annotated[Path, typer.Option("--schema", help="The reviewed schema.pbtxt.")]


@schema.command("infer")
def schema_infer(snapshot: SnapshotFolder, split: SplitName = "train") -> None:
    """Write a first schema to standard output, for a person to review."""
    raise typer.Exit(_verb("validate", "tfdv", "infer", str(snapshot), "--split", split))


@schema.command("diff")
def schema_diff(snapshot: SnapshotFolder, schema: SchemaFile, split: SplitName = "train") -> None:
    """Write what the rows would have a reviewed schema changed to, as a patch with the reasons."""
    named = (str(snapshot), "--schema", str(schema), "--split", split)
    raise typer.Exit(_verb("validate", "tfdv", "diff", *named))


@schema.command("accept")
def schema_accept(
    snapshot: SnapshotFolder,
    schema: SchemaFile,
    split: SplitName = "train",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show that patch, ask, and write it into the schema."""
    named = (str(snapshot), "--schema", str(schema), "--split", split, *(["--yes"] if yes else []))
    raise typer.Exit(_verb("validate", "tfdv", "accept", *named))


@baseline.command("accept")
def baseline_accept(
    run: Annotated[Path, typer.Argument(help="Folder of the run, or of its data verdict.")],
    to: Annotated[str, typer.Option(help="Where it is used from: a .json file or URI.")],
    model_promoted: Annotated[Path | None, typer.Option(help="Record of the promotion.")] = None,
    reason: Annotated[str, typer.Option(help="Why, if there is no such record.")] = "",
) -> None:
    """Make the data of a run the baseline, once the model that learned from it is in production."""
    promoted = ["--model-promoted", str(model_promoted)] if model_promoted else []
    named = (str(run), "--to", to, *promoted, *(["--reason", reason] if reason else []))
    raise typer.Exit(_verb("validate", "tfdv", "baseline", *named))


@features.command("plan")
def features_plan(
    repository: Annotated[Path, typer.Argument(help="Folder with feature_store.yaml.")],
    output: Annotated[Path, typer.Option(help="File for the plan, to be reviewed.")] = Path("plan.json"),
) -> None:
    """Say what applying the definitions would change in the registry, and write it down."""
    raise typer.Exit(_verb("materialize", "feast", "plan", str(repository), "--output", str(output)))


@features.command("apply")
def features_apply(
    repository: Annotated[Path, typer.Argument(help="Folder with feature_store.yaml.")],
    plan: Annotated[Path, typer.Option(help="The plan that was reviewed.")] = Path("plan.json"),
) -> None:
    """Apply a reviewed plan; refused when anything else would change by now."""
    raise typer.Exit(_verb("materialize", "feast", "apply", str(repository), "--plan", str(plan)))


def curves(
    run: Annotated[Path, typer.Argument(help="Folder of the run, of its train step, or of a model.")],
    to: Annotated[str, typer.Option(help="MLflow's address: https://…, http://… or sqlite:///FILE.")],
) -> None:
    """Bring the curves of a training to MLflow, whatever of them was sent before."""
    raise typer.Exit(_verb("tracking", "mlflow", "replay", str(run), to))


def _verb(verb: str, toolchain: str, *arguments: str) -> int:
    """Run a command of a verb under the environment of its image, and return its exit code."""
    with reported():
        from trainwright.authoring.environments import python

        interpreter = python(toolchain)
    command = [str(interpreter), "-m", f"trainwright.{verb}", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own interpreter
