"""What the containers of a run see, are started from and may do; no engine is needed for these."""

import gc
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
import requests
import urllib3
from typer.testing import CliRunner

from trainwright import tracking
from trainwright.authoring import arguments, environments, images, pipeline_spec
from trainwright.authoring.catalog import pipeline
from trainwright.authoring.pipeline_spec import image_of
from trainwright.cli import app
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Data, Materialize, Registry, Validation
from trainwright.local import container_reaper, containers
from trainwright.local.processes import Processes

ROOT = Path(__file__).resolve().parents[2]


def test_paths_among_the_arguments_are_seen_where_they_stand_and_can_only_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.csv").touch()
    given = {
        "source": f"{tmp_path}/in/*.csv",
        "data": json.dumps({"sql": {"password_file": f"{tmp_path}/in/rows.csv"}}),
        "schema": "feature { name: '/etc/passwd' }",
        "features": f"file://{tmp_path}/in",
    }
    seen = containers.mounts_of(given, tmp_path / "run")
    assert seen == {tmp_path / "run": True, tmp_path / "in": False, tmp_path / "in" / "rows.csv": False}


@pytest.mark.parametrize("name", sorted(containers.KEPT))
def test_folder_that_steps_keep_things_in_can_be_written_to_and_is_made_by_its_owner(
    name: str, tmp_path: Path
) -> None:
    seen = containers.mounts_of({"section": json.dumps({name: f"{tmp_path}/kept"})}, tmp_path / "run")
    # The key of an audit lies beside it.
    assert seen[tmp_path if name == "audit" else tmp_path / "kept"] is True
    assert name == "audit" or (tmp_path / "kept").stat().st_uid == tmp_path.stat().st_uid


def test_folder_of_an_embedded_database_can_be_written_to(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/registry/mlflow.db"
    assert containers.mounts_of({"registry": json.dumps({"tracking_uri": uri})}, tmp_path / "run")[
        tmp_path / "registry"
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("/", "/etc", "/nothing-of-that-name/at/all", "gs://bucket/rows", "relative"),
        *("/usr/lib", "/usr/local/lib", "/var/run", "/var/run/*.sock", "/proc/self", "/dev/fd", "/*.csv"),
        *("/etc/ssl/no-such", "/data/" + "long" * 100, "/* a comment */ SELECT 1 FROM rows"),
    ],
)
def test_what_is_no_data_of_this_machine_is_not_mounted(text: str, tmp_path: Path) -> None:
    assert containers.mounts_of({"source": text}, tmp_path) == {tmp_path: True}


def test_home_folder_is_not_seen_by_itself_and_what_lies_in_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows").mkdir()
    run = tmp_path.parent / "elsewhere"
    seen = containers.mounts_of({"source": f"{tmp_path}/*.csv", "features": f"{tmp_path}/rows"}, run)
    assert seen == {run: True, tmp_path / "rows": False}
    assert containers.requested_mounts([], tmp_path / "experiment.yaml") == {}
    assert containers.requested_mounts([str(tmp_path)], None) == {tmp_path: False}, "unless it is asked for"


def test_socket_is_not_seen_for_it_may_be_the_engines(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert containers.mounts_of({"source": f"{tmp_path}/s"}, tmp_path / "run") == {tmp_path / "run": True}


@pytest.mark.parametrize("value", ["/var", "/usr/lib", "sqlite:////opt/mlflow.db"])
def test_what_would_be_kept_where_an_image_has_its_own_is_rejected(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot keep anything here") as caught:
        containers.mounts_of({"data": json.dumps({"store": value})}, tmp_path)
    assert "store" in caught.value.where


def test_path_with_a_colon_is_rejected_for_an_engine_would_split_it(tmp_path: Path) -> None:
    (tmp_path / "at 12:00").mkdir()
    for read in (
        lambda: containers.mounts_of({"source": f"{tmp_path}/at 12:00"}, tmp_path / "run"),
        lambda: containers.requested_mounts([f"{tmp_path}/at 12:00:rw"], None),
    ):
        with pytest.raises(InputError, match="colon"):
            read()


def test_variable_is_passed_by_its_name_and_its_value_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    found = containers.variables(["TOKEN"])
    assert found == {"TOKEN": "hidden"}
    assert "hidden" not in repr(containers.Engine(variables=found))
    with pytest.raises(InputError, match="no such variable") as caught:
        containers.variables(["TOKEN", "NOT_SET_ANYWHERE"])
    assert caught.value.where == "--env NOT_SET_ANYWHERE"


@pytest.mark.parametrize(
    ("status", "said", "gone"),
    [
        (404, "no such container", True),
        (500, "container 1 does not exist in database: no such container", True),
        (409, "removal of container 1 is already in progress", True),
        (500, "no space left on device", False),
    ],
)
def test_container_that_is_gone_is_told_from_an_engine_in_trouble(status: int, said: str, gone: bool) -> None:
    kind = docker.errors.NotFound if status == 404 else docker.errors.APIError
    assert container_reaper.unknown(kind("refused", explanation=said)) is gone


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (docker.errors.APIError("500", explanation="no space left"), "says: no space left"),
        (requests.ConnectionError("reset by peer"), "does not answer any more: reset by peer"),
        (urllib3.exceptions.ProtocolError("broken off"), "does not answer any more: broken off"),
        (docker.errors.APIError("500", explanation="exec /bin/sh: exec format error"), "another processor"),
    ],
)
def test_engine_that_fails_while_a_step_runs_is_no_bug_of_ours(error: Exception, said: str) -> None:
    with pytest.raises(DependencyError, match=said) as caught, containers.answering("train"):
        raise error
    assert caught.value.where == "train"


@pytest.mark.parametrize(
    ("security", "parts", "options"),
    [
        ([], [], {"user": f"{os.getuid()}:{os.getgid()}"}),
        (["name=rootless"], [{"Name": "Engine"}], {"user": "0:0"}),
        (
            ["name=rootless"],
            [{"Name": "Podman Engine"}],
            {"user": f"{os.getuid()}:{os.getgid()}", "userns_mode": "keep-id"},
        ),
    ],
)
def test_what_a_step_writes_is_its_callers_whatever_the_engine_makes_of_users(
    security: list[str], parts: list[dict[str, str]], options: dict[str, str]
) -> None:
    engine = SimpleNamespace(
        info=lambda: {"SecurityOptions": security}, version=lambda: {"Components": parts}
    )
    assert containers.restrictions(engine) == options


def test_every_field_in_which_an_experiment_names_a_folder_to_keep_things_in_is_known() -> None:
    fields = {
        name: field
        for model in (Data, Validation, Materialize, Registry)
        for name, field in model.model_fields.items()
    }
    assert fields.keys() >= containers.KEPT


def test_flights_are_read_only_and_nothing_else_of_the_repository_is_seen(tmp_path: Path) -> None:
    given = arguments.read(ROOT / "examples" / "flights" / "flights.yaml")
    seen = containers.mounts_of(given, tmp_path)
    assert all(path.is_relative_to(ROOT / "examples" / "flights") for path, kept in seen.items() if not kept)
    assert ROOT not in seen


def test_step_that_submits_a_job_runs_in_the_image_of_the_job() -> None:
    steps = {step.name: step for step in pipeline_spec.read(pipeline("train_and_register")).steps}
    assert image_of(steps["train"], steps["train"].constants).startswith("trainwright/torch:")
    assert image_of(steps["ingest"], {"source": "/data"}).startswith("trainwright/ingest:")


def test_every_container_is_started_as_strictly_as_a_restricted_namespace_would() -> None:
    options: dict[str, Any] = dict(containers.OPTIONS)
    assert options["read_only"] is True
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges"]


def test_network_without_containers_is_rejected() -> None:
    done = CliRunner().invoke(app.app, ["run", "train_and_register", "--network", "host"])
    assert done.exit_code == 10
    assert "--network, --mount and --env are for containers" in done.stderr


def test_folder_of_the_experiment_is_read_only_and_what_is_asked_for_is_as_asked(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    seen = containers.requested_mounts([f"{tmp_path}/store:rw", "/usr"], tmp_path / "flights.yaml")
    assert seen == {tmp_path: False, tmp_path / "store": True, Path("/usr"): False}


def test_mount_that_is_not_there_is_rejected_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there") as caught:
        containers.requested_mounts([f"{tmp_path}/nothing:rw"], None)
    assert caught.value.where == f"--mount {tmp_path}/nothing:rw"


FRESH = {
    "trainwright.lock-sha256": environments.lock_digest("tabular"),
    "trainwright.library-sha256": tracking.library_digest(),
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trainwright.lock-sha256": "0"}, "its lock"),
        ({"trainwright.library-sha256": "0"}, "the library"),
        ({"trainwright.lock-sha256": "", "trainwright.library-sha256": ""}, "its lock and the library"),
    ],
)
def test_image_that_was_built_from_something_else_is_not_used(change: dict[str, str], reason: str) -> None:
    containers.require_fresh(images.TABULAR, FRESH)
    with pytest.raises(DependencyError, match=f"not built from {reason} as it is now") as caught:
        containers.require_fresh(images.TABULAR, FRESH | change)
    assert caught.value.hint == "Build it again: make images NAME=tabular"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # docker's own open socket
def test_engine_that_does_not_answer_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(DependencyError, match="no container engine answers") as caught:
        containers.client()
    assert "nobody.sock" in caught.value.where
    assert "podman system service" in caught.value.hint
    del caught
    gc.collect()


class Answering(BaseHTTPRequestHandler):
    """Answers as an engine does that has no image."""

    name = "Engine"

    def do_GET(self) -> None:
        """Answer a question."""
        version = {"ApiVersion": "1.41", "Components": [{"Name": self.name, "Version": "1"}]}
        answers = {"version": (200, version), "images/json": (200, [])}
        path = re.sub(r"^/(v[0-9.]+/)?", "", self.path.partition("?")[0])
        code, found = answers.get(path, (404, {"message": "no such image"}))
        body = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine without images, with the name that the test gives."""
    handler = type("Named", (Answering,), {"name": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answering", "name", "build"),
    [
        ("Podman Engine", "podman", "make images NAME=tabular ENGINE=podman"),
        ("Engine", "docker", "make images NAME=tabular"),
    ],
    indirect=["answering"],
)
def test_hint_for_missing_image_names_the_engine_that_answers(answering: None, name: str, build: str) -> None:
    by_digest = f"registry.example/trainwright/tabular@sha256:{'1' * 64}"
    for image, hint in (
        (by_digest, f"Pull it: {name} pull {by_digest}"),
        (images.TABULAR, f"Build it: {build}"),
    ):
        with pytest.raises(DependencyError, match=f"{name} does not have this image") as caught:
            containers.identity(image)
        assert caught.value.hint == hint


def test_command_that_continues_a_run_mounts_the_folder_of_the_experiment_file(tmp_path: Path) -> None:
    config, other = tmp_path / "its own" / "flights.yaml", tmp_path / "online"
    for path in (config, other / "store.db"):
        path.parent.mkdir()
        path.touch()
    seen = containers.requested_mounts([f"{other}:rw"], config)
    engine = containers.Engine("host", seen, {"TOKEN": "hidden"})
    words = app._run_command("train_and_register", Path("runs"), engine)
    assert words[:6] == ["trainwright", "run", "train_and_register", "--containers", "--network", "host"]
    mounted = [words[place + 1] for place, word in enumerate(words) if word == "--mount"]
    assert containers.requested_mounts(mounted, None) == seen
    assert words[-2:] == ["--env", "TOKEN"]
    assert "hidden" not in words


def test_container_gets_only_the_mounts_variables_and_restrictions_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: dict[str, Any] = {}

    def create(image: str, command: list[str], **options: Any) -> Any:
        created.update(options, image=image, command=command)
        state = {"State": {"ExitCode": 0}}
        return SimpleNamespace(
            id="1",
            attrs=state,
            start=lambda: None,
            logs=lambda **_: [b"its last words\n"],
            wait=lambda: None,
            reload=lambda: None,
            remove=lambda **_: created.update(removed=True),
        )

    engine = SimpleNamespace(
        containers=SimpleNamespace(create=create, list=lambda **_: []),
        info=lambda: {"SecurityOptions": ["name=selinux"]},
        close=lambda: None,
    )
    monkeypatch.setattr(containers, "client", lambda: engine)
    (tmp_path / "rows").mkdir()
    (tmp_path / "run").mkdir()
    scratch = tmp_path / "scratch"
    own = containers.Engine("host", {}, {"TOKEN": "hidden"}, {images.TABULAR: "sha256:1"})
    call = SimpleNamespace(
        step=SimpleNamespace(image=images.TABULAR, timeout_s=0.0, closing=False),
        name="score",
        parameters={},
        command=("sh", "-ec", "true"),
        variables={"COLOUR": "red"},
        log=tmp_path / "log.txt",
    )
    with own.started(tmp_path / "run", {"source": f"{tmp_path}/rows"}, Processes(1.0)) as started:
        ended = started.run(call, str(scratch))  # type: ignore[arg-type]
    assert (ended.code, call.log.read_bytes(), created["removed"]) == (0, b"its last words\n", True)
    assert (created["image"], created["command"], created["network"]) == (
        "sha256:1",
        ["sh", "-ec", "true"],
        "host",
    )
    modes = {bind: volume["mode"] for bind, volume in created["volumes"].items()}
    assert modes == {str(scratch): "rw,z", f"{tmp_path}/run": "rw,z", f"{tmp_path}/rows": "ro,z"}
    variables = {"TOKEN": "hidden", "COLOUR": "red", "TMPDIR": str(scratch), "HOME": str(scratch)}
    assert created["environment"] == variables
    assert created.items() >= containers.OPTIONS.items()
    assert created["user"] == f"{os.getuid()}:{os.getgid()}"
