"""The command ``serve``: an API and pages of runs, models and lineage."""

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwright.authoring.submission.commands import CaFile, Config, Namespace, TokenFile
from trainwright.authoring.terminal import reported
from trainwright.cli.step_commands import run_verb

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
