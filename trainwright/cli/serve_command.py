"""The command ``serve``: the API and pages of runs and models."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainwright.authoring.submission.commands import CaFile, Config, Namespace, TokenFile
from trainwright.authoring.terminal import reported
from trainwright.cli.step_commands import run_verb

COMMAND = (sys.executable, "-P", "-c", "from trainwright.cli.app import main; main()")
"""The command line, for a process that the service starts."""


def serve(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    config: Config = None,
    tracking_uri: Annotated[str, typer.Option(help="MLflow's address, in place of the file's.")] = "",
    kfp_host: Annotated[str, typer.Option(help="API of Kubeflow Pipelines: https://HOST/PATH.")] = "",
    namespace: Namespace = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    auth: Annotated[str, typer.Option(help="token, or gateway: trust the header kubeflow-userid.")] = "token",
    access_token_file: Annotated[
        Path | None, typer.Option(help="File of the token for callers; absent: a new one, printed.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8080,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Another name of this service in browsers; again for more.")
    ] = None,
) -> None:
    """Serve an API and pages of runs, models and lineage. Ctrl-C ends it; runs continue."""
    with reported():
        from trainwright.authoring import arguments

        registry = arguments.read_registry("any", config, "", tracking_uri) if config or tracking_uri else ""
        promotion = arguments.read_promotion(config) if config else ""
        settings = {
            "schema_version": 1,
            "runs": str(runs.resolve()),
            "registry": json.loads(registry or "{}"),
            "promotion": json.loads(promotion or "{}"),
            "kfp_host": kfp_host,
            "namespace": namespace,
            "token_file": str(token_file or ""),
            "ca_file": str(ca_file or ""),
            "command": COMMAND,
            "auth": auth,
            "access_token_file": str(access_token_file.resolve() if access_token_file else ""),
            "allowed_hosts": ["127.0.0.1", "localhost", *(allowed_host or [])],
            "address": host,
            "port": port,
        }
    raise typer.Exit(run_verb("service", "service", json.dumps(settings)))
