"""Commands that use a step's own package; each runs in the environment of the step's image."""

import getpass
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwright.authoring.submission.commands import CaFile, Config, Namespace, TokenFile
from trainwright.authoring.terminal import UNCHANGED, reported, short_path
from trainwright.command import stopped_together
from trainwright.errors import Preempted, PreemptedUnsaved

schema = typer.Typer(no_args_is_help=True, help="Make and review the schema of a snapshot.")
baseline = typer.Typer(no_args_is_help=True, help="Accept the data that later data is compared with.")
model = typer.Typer(no_args_is_help=True, help="Versions, their stages, and why.")
features = typer.Typer(no_args_is_help=True, help="Bring reviewed feature definitions into their registry.")

RUNS = Path("runs")
MAY_BE_DONE = "It may be done already: look before you repeat it."
AUDITED = "Whether it was done, trainwright model history says."
SnapshotFolder = Annotated[Path, typer.Argument(help="Folder of the snapshot, with manifest.json.")]
SplitName = Annotated[str, typer.Option(help="Rows to learn the schema from.")]
SchemaFile = Annotated[Path, typer.Option("--schema", help="The reviewed schema.pbtxt.")]


def init(
    data: Annotated[
        str,
        typer.Argument(
            help="Parquet, CSV or JSONL: a file, a folder or a glob in quotes; or sqlite:///FILE, postgresql://…"
        ),
    ],
    label: Annotated[str, typer.Option(help="Column to predict.")] = "",
    key: Annotated[str, typer.Option(help="Column that identifies a row.")] = "",
    time: Annotated[str, typer.Option(help="Column with the time of the prediction.")] = "",
    group: Annotated[
        str, typer.Option(help="Column of rows that stay in one split, such as a customer.")
    ] = "",
    kind: Annotated[
        str, typer.Option(help="binary, multiclass or regression; text for a language model.")
    ] = "",
    text: Annotated[str, typer.Option(help="With --kind text: column to learn.")] = "",
    query: Annotated[str, typer.Option(help="SELECT, for a database.")] = "",
    output: Annotated[Path, typer.Option(help="Folder for experiment.yaml and schema.pbtxt.")] = Path(),
) -> None:
    """Write an experiment file and a schema for a table. Print each choice. Overwrite no file."""
    with reported():
        from trainwright.local.initialization import initialize

        done = initialize(
            data, query=query, label=label, key=key, time=time, group=group, kind=kind, text=text,
            output=output,
        )  # fmt: skip
        for line in done.findings:
            typer.echo(line)
        typer.echo(f"Wrote {short_path(done.experiment)} and {short_path(done.schema)}: look at both.")
        typer.echo(f"Next  {done.command}")


@schema.command("infer")
def schema_infer(snapshot: SnapshotFolder, split: SplitName = "train") -> None:
    """Print a first schema for review."""
    raise typer.Exit(run_verb("validate", "tfdv", "infer", str(snapshot), "--split", split))


@schema.command("diff")
def schema_diff(snapshot: SnapshotFolder, schema: SchemaFile, split: SplitName = "train") -> None:
    """Print the changes that the rows require of a schema. Each comes with its reason."""
    named = (str(snapshot), "--schema", str(schema), "--split", split)
    raise typer.Exit(run_verb("validate", "tfdv", "diff", *named))


@schema.command("accept")
def schema_accept(
    snapshot: SnapshotFolder,
    schema: SchemaFile,
    split: SplitName = "train",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show these changes, ask, and write them to the schema."""
    named = (str(snapshot), "--schema", str(schema), "--split", split, *(["--yes"] if yes else []))
    raise typer.Exit(run_verb("validate", "tfdv", "accept", *named, stopped=MAY_BE_DONE))


@baseline.command("accept")
def baseline_accept(
    run: Annotated[Path, typer.Argument(help="Folder of the run, or of its data verdict.")],
    to: Annotated[str, typer.Option(help="Where it is used from: a .json file or URI.")],
    model_promoted: Annotated[Path | None, typer.Option(help="Record of the promotion.")] = None,
    reason: Annotated[str, typer.Option(help="Why, if there is no such record.")] = "",
) -> None:
    """Make the data of a run the baseline. Its model must be in production by then."""
    promoted = ["--model-promoted", str(model_promoted)] if model_promoted else []
    named = (str(run), "--to", to, *promoted, *(["--reason", reason] if reason else []))
    raise typer.Exit(run_verb("validate", "tfdv", "baseline", *named, stopped=MAY_BE_DONE))


@features.command("plan")
def features_plan(
    repository: Annotated[Path, typer.Argument(help="Folder with feature_store.yaml.")],
    output: Annotated[Path, typer.Option(help="File for the plan, to be reviewed.")] = Path("plan.json"),
) -> None:
    """Write what applying the definitions would change. The plan is for review."""
    raise typer.Exit(run_verb("materialize", "feast", "plan", str(repository), "--output", str(output)))


@features.command("apply")
def features_apply(
    repository: Annotated[Path, typer.Argument(help="Folder with feature_store.yaml.")],
    plan: Annotated[Path, typer.Option(help="The plan that was reviewed.")] = Path("plan.json"),
) -> None:
    """Apply a reviewed plan. Fail if applying would now change anything else."""
    named = (str(repository), "--plan", str(plan))
    raise typer.Exit(run_verb("materialize", "feast", "apply", *named, stopped=MAY_BE_DONE))


def curves(
    run: Annotated[Path, typer.Argument(help="Folder of the run, of its train step, or of a model.")],
    to: Annotated[str, typer.Option(help="MLflow's address: https://…, http://… or sqlite:///FILE.")],
) -> None:
    """Send the curves of a training to MLflow. Repeating the command is safe."""
    sent = "Part of them may be there: the same command sends the rest."
    raise typer.Exit(run_verb("tracking", "mlflow", "replay", str(run), to, stopped=sent))


def upload(
    place: Annotated[
        str, typer.Argument(help="Folder of runs or of one run; or the URI of an mlflow-log.json.")
    ] = str(RUNS),
) -> None:
    """Send runs to MLflow that it did not take at their end. Repeating the command is safe."""
    from trainwright.retries import OUTAGE_S

    sent = "Part of them may be there: the same command sends the rest."
    raise typer.Exit(run_verb("summarize", "mlflow", str(OUTAGE_S), place, stopped=sent))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs below runs/, or folders.")],
    metric: Annotated[list[str] | None, typer.Option(help="Figure to compare; again for more.")] = None,
    level: Annotated[float, typer.Option(help="What p-values are held to, after Holm.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="File for a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Compare runs, paired by seed. State what so few runs can show."""
    named = [str(run if run.exists() or not (RUNS / run).is_dir() else RUNS / run) for run in runs]
    chosen = [part for name in metric or [] for part in ("--metric", name)]
    page = ["--report", str(report)] if report else []
    form = ["--json"] if as_json else []
    raise typer.Exit(
        run_verb("evaluate", "tabular", "compare", *named, *chosen, "--level", str(level), *page, *form)
    )


def predict(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@ALIAS, NAME/VERSION, or the folder of a model.")
    ],
    rows: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines, by its suffix.")],
    output: Annotated[
        Path | None, typer.Option(help="File for the predictions. Default: beside ROWS.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Experiment file with the registry and the form of CSV files."),
    ] = None,
    uri: Annotated[
        str, typer.Option("--tracking-uri", help="MLflow's address, in place of the file's.")
    ] = "",
) -> None:
    """Score rows with a registered model. Missing columns are an error, before anything is written."""
    with reported():
        from trainwright import api

        typer.echo(api.predict(name, rows, output, config=config, tracking_uri=uri))


Named = Annotated[str, typer.Argument(metavar="NAME", help="Name of the registered model.")]
FromFile = Annotated[
    Path | None, typer.Option("--config", help="Experiment file with the section registry, and promotion.")
]
Audit = Annotated[str, typer.Option(help="Folder or URI of the audit, in place of the file's.")]
Tracking = Annotated[str, typer.Option("--uri", help="MLflow's address, in place of the file's.")]
Offline = Annotated[bool, typer.Option("--offline", help="Answer from the audit alone; do not ask MLflow.")]
By = Annotated[str, typer.Option(help="Who asks for it.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Reason = Annotated[str, typer.Option(help="Why; it goes into the audit.")]


@model.command("list")
def model_list(name: Named, config: FromFile = None, uri: Tracking = "", as_json: AsJson = False) -> None:
    """List the versions of a model. Each has its stage, aliases, decision and data."""
    raise typer.Exit(_promote("list", name, config, "", uri, *(["--json"] if as_json else [])))


@model.command("show")
def model_show(
    name: Named,
    which: Annotated[str, typer.Argument(metavar="VERSION", help="Its number, or an alias.")],
    config: FromFile = None,
    uri: Tracking = "",
    as_json: AsJson = False,
) -> None:
    """Show a version of a model. Print its tags, metrics and parameters."""
    raise typer.Exit(_promote("show", name, config, "", uri, which, *(["--json"] if as_json else [])))


@model.command("history")
def model_history(
    name: Named,
    config: FromFile = None,
    audit: Audit = "",
    uri: Tracking = "",
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """List every change of stages and aliases. Verify the audit and compare MLflow with it."""
    flags = [*(["--json"] if as_json else []), *(["--offline"] if offline else [])]
    raise typer.Exit(_promote("history", name, config, audit, uri, *flags))


@model.command("at")
def model_at(
    name: Named,
    time: Annotated[str, typer.Argument(help="Such as 2026-01-31T10:00:00Z.")],
    config: FromFile = None,
    audit: Audit = "",
    uri: Tracking = "",
    offline: Offline = False,
) -> None:
    """Show which version was in production at a time. Also who promoted it, and on what evidence."""
    flags = ["--offline"] if offline else []
    raise typer.Exit(_promote("at", name, config, audit, uri, time, *flags))


@model.command("promote")
def model_promote(
    name: Named,
    to: Annotated[str, typer.Argument(help="staging, canary, production or archived.")],
    by: By,
    reason: Reason,
    config: Annotated[Path, typer.Option(help="Experiment file: registry and promotion.")],
    version: Annotated[str, typer.Option(help="Absent: the one in the stage before.")] = "",
    approver: Annotated[str, typer.Option(help="Who approved it.")] = "",
    expected: Annotated[
        str, typer.Option(help="Version that must still be in production; '' for none.")
    ] = "evaluated",
    approval: Annotated[str, typer.Option(help="File or URI of the approver's token.")] = "",
    canary_verdict: Annotated[str, typer.Option(help="File or artifact of the verdict on the canary.")] = "",
    data_verdict: Annotated[
        str, typer.Option(help="Digest of the data verdict that is accepted though it is not PASS.")
    ] = "",
) -> None:
    """Promote a version to the next stage. It must meet the requirements of the stage."""
    request = {"to": to, "by": by, "reason": reason, "version": version, "approver": approver}
    request |= {
        "approval": approval,
        "expected": expected,
        "canary_verdict": canary_verdict,
        "data_verdict": data_verdict,
    }
    with reported():
        from trainwright.authoring import arguments

        policy = arguments.read_promotion(config)
    named = (policy, json.dumps(request))
    raise typer.Exit(_promote("promote", name, config, "", "", *named, stopped=AUDITED))


@model.command("rollback")
def model_rollback(
    name: Named,
    by: By,
    reason: Reason,
    config: FromFile = None,
    audit: Audit = "",
    uri: Tracking = "",
    out: Annotated[str, typer.Option(help="The version to be taken out, if it is still there.")] = "",
) -> None:
    """Move production back to the previous version. There are no further requirements."""
    named = ["--by", by, "--reason", reason, *(["--out", out] if out else [])]
    raise typer.Exit(_promote("rollback", name, config, audit, uri, *named, stopped=AUDITED))


@model.command("restore")
def model_restore(
    name: Named,
    by: By,
    reason: Reason,
    config: FromFile = None,
    audit: Audit = "",
    uri: Tracking = "",
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Accept entries without a signature, or unknown to MLflow.")
    ] = False,
) -> None:
    """Set MLflow's aliases as the audit says. Somebody has changed one by hand."""
    named = ("--by", by, "--reason", reason, *(["--adopt"] if adopt else []))
    raise typer.Exit(_promote("restore", name, config, audit, uri, *named, stopped=AUDITED))


@model.command("mirror")
def model_mirror(
    name: Named,
    config: Annotated[Path, typer.Option(help="Experiment file with registry.hub.")],
) -> None:
    """Make Kubeflow Hub equal to MLflow for a model. Every change does so, unless the Hub is away."""
    raise typer.Exit(_promote("mirror", name, config, "", ""))


def _promote(
    command: str, name: str, config: Path | None, audit: str, uri: str, *more: str, stopped: str = UNCHANGED
) -> int:
    with reported():
        from trainwright.authoring import arguments

        registry = arguments.read_registry(name, config, audit, uri)
    return run_verb("registry", "mlflow", command, registry, *more, stopped=stopped)


def run_verb(verb: str, toolchain: str, *arguments: str, stopped: str = UNCHANGED) -> int:
    """Run a command of a step's package in the environment of its image, and return its exit code."""
    with reported():
        from trainwright import credentials
        from trainwright.authoring.environments import python

        credentials.require_none(arguments, where="command line", plain=True)
        interpreter = python(toolchain)
    command = [str(interpreter), "-m", "trainwright.command", verb, *arguments]
    with reported(stopped=stopped), subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter
        with stopped_together(process) as received:
            code = process.wait()
        if received and (code < 0 or code == Preempted.code):
            raise KeyboardInterrupt
        if code < 0:
            raise PreemptedUnsaved(f"trainwright.{verb} was killed by {signal.Signals(-code).name}")
        return code


COMMAND = (sys.executable, "-P", "-c", "from trainwright.cli.app import main; main()")
"""This command line, for the runs that the service starts."""

STOPPED = "Runs that were started continue."


def serve(  # noqa: PLR0913 - one argument an option
    *,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    config: Config = None,
    tracking_uri: Annotated[str, typer.Option(help="MLflow's address, in place of the file's.")] = "",
    kfp_host: Annotated[str, typer.Option(help="API of Kubeflow Pipelines: https://HOST/PATH.")] = "",
    namespace: Namespace = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    registry: Annotated[str, typer.Option(help="HOST/TEAM put in front of the images of a run there.")] = "",
    auth: Annotated[
        Literal["token", "gateway"], typer.Option(help="gateway: trust the header kubeflow-userid.")
    ] = "token",
    access_token_file: Annotated[
        Path | None, typer.Option(help="File of the token that callers send; absent: a new one, printed.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: any free one.")] = 8080,
    root_path: Annotated[str, typer.Option(help="Path below which a gateway serves it: /trainwright.")] = "",
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name of the service in an address; again for more.")
    ] = None,
) -> None:
    """Serve an API and pages of runs, models and lineage. Ctrl-C ends it; runs continue."""
    with reported():
        from trainwright.authoring import arguments
        from trainwright.service.settings import Settings

        known = config is not None or bool(tracking_uri)
        settings = Settings(
            runs=str(runs.resolve()),
            registry=json.loads(arguments.read_registry("any", config, "", tracking_uri)) if known else {},
            promotion=json.loads(arguments.read_promotion(config)) if config else {},
            kfp_host=kfp_host,
            namespace=namespace,
            token_file=_absolute(token_file),
            ca_file=_absolute(ca_file),
            images=registry,
            command=COMMAND,
            auth=auth,
            access_token_file=_absolute(access_token_file),
            user=getpass.getuser(),
            allowed_hosts=("127.0.0.1", "localhost", *(allowed_host or [])),
            address=host,
            port=port,
            root_path=root_path.rstrip("/"),
        )
        text = json.dumps(settings.to_json())
    raise typer.Exit(run_verb("service", "service", text, stopped=STOPPED))


def _absolute(path: Path | None) -> str:
    return str(path.resolve()) if path else ""
