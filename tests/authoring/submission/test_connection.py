"""Who asks, and whom: a token is kept, an address is looked at, and the role is what the calls need."""

from pathlib import Path

import pytest

from tests.authoring.api.client import QUICK, command
from tests.authoring.api.server import Api, serving
from trainwright.authoring.submission import connection, runs
from trainwright.authoring.submission.connection import Connection, Endpoint
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.retries import RetryPolicy


def test_the_token_is_read_again_at_every_call_and_never_shown(server: Api, tmp_path: Path) -> None:
    file, tokens = tmp_path / "token", ["first-PLANTED", "second-PLANTED"]
    file.write_text(tokens[0] + "\n")
    api = connection.connect(Endpoint(host=server.url, token_file=file), QUICK)
    for token in tokens:
        file.write_text(token)
        server.token = token
        runs.experiment(api, token[:3])
    server.token = "".join(tokens)
    with pytest.raises(PermissionRefused, match="answered with 401") as refused:
        runs.experiment(api, "three")
    assert "PLANTED" not in f"{refused.value!r}{refused.value}"


@pytest.mark.covers("B69")
def test_a_token_does_not_travel_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("PLANTED")
    with pytest.raises(InputError, match="the token would travel unencrypted"):
        connection.connect(Endpoint(host="http://kubeflow.example", token_file=tmp_path / "token"))
    connection.connect(Endpoint(host="http://ml-pipeline.kubeflow.svc:8888", token_file=tmp_path / "token"))
    with pytest.raises(InputError, match="there is no token"):
        connection.connect(Endpoint(host="https://kubeflow.example", token_file=tmp_path / "none"))


@pytest.mark.parametrize(
    "host",
    [
        "kubeflow.example",
        "ftp://a.example",
        "https://me:secret@a.example",
        "https://",
        "https://[::1",
        "https://a.example:secret",
        "https://a.example/#secret",
        "https://a.example/\nsecret",
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_it(host: str) -> None:
    with pytest.raises(InputError, match="--host is no address of an API") as refused:
        connection.connect(Endpoint(host=host))
    assert "secret" not in str(refused.value)


def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(server: Api, tmp_path: Path) -> None:
    """The HTTP library says of such a one: Invalid header value, and what it is."""
    for text in ("PLANTED\nPLANTED", "PLANTED\u20ac", ""):
        (tmp_path / "token").write_text(text)
        with pytest.raises(InputError, match="there is no token in this file") as refused:
            connection.connect(Endpoint(host=server.url, token_file=tmp_path / "token"))
        assert "PLANTED" not in f"{refused.value!r}{refused.value}"


def test_a_token_file_that_is_just_being_written_anew_ends_nothing(server: Api, tmp_path: Path) -> None:
    server.token = str(tmp_path)
    (tmp_path / "token").write_text(server.token)
    api = connection.connect(Endpoint(host=server.url, token_file=tmp_path / "token"), QUICK)
    (tmp_path / "token").write_text("")
    runs.experiment(api, "nightly")


@pytest.mark.covers("A8")
def test_a_token_is_not_sent_to_where_an_answer_points(server: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("PLANTED")
    api = connection.connect(Endpoint(host=server.url, token_file=tmp_path / "token"), QUICK)
    with serving() as other:
        for method, path in (("GET", "/healthz"), ("POST", "/experiments")):
            for status in (301, 302, 307, 308):
                server.fail(method, path, status=status, headers={"Location": f"{other.url}{path}"})
                with pytest.raises(PermissionRefused, match="was sent elsewhere"):
                    api.check() if method == "GET" else runs.experiment(api, f"e{status}")
        assert other.calls == []


def test_a_list_without_an_end_is_no_list(
    server: Api, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"experiments": [], "next_page_token": "again"}
    monkeypatch.setattr(server.store, "listed", lambda *_, **__: page)
    with pytest.raises(DependencyError, match="the list has no end"):
        runs.experiment(api, "nightly")


@pytest.mark.covers("B72")
def test_a_page_to_log_in_is_not_taken_for_the_api(server: Api, api: Connection) -> None:
    server.fail("GET", "/healthz", status=302, headers={"Location": "https://dex.example/auth"})
    with pytest.raises(PermissionRefused, match="sent elsewhere"):
        api.check()
    server.fail("GET", "/healthz", meanwhile=lambda: setattr(server.store, "multi_user", None))
    with pytest.raises(PermissionRefused, match="a page to log in"):
        api.check()


@pytest.mark.parametrize("body", ["<html>no such page</html>", '{"detail": "Not Found"}'])
def test_the_address_of_another_server_is_said_with_what_to_do(
    server: Api, api: Connection, body: str
) -> None:
    server.fail("GET", "/healthz", status=404, body=body)
    with pytest.raises(InputError, match="answered with 404") as refused:
        api.check()
    assert "another server" in refused.value.hint


def test_an_outage_is_said_in_plain_words(server: Api) -> None:
    cases = {
        server.url: "the connection was cut",
        "http://127.0.0.1:1": "no server takes the connection",
        "http://nowhere.invalid": "there is no host of that name",
        f"https://127.0.0.1:{server.url.rpartition(':')[2]}": "it speaks no TLS",
    }
    server.fail("GET", "/healthz", drop=True)
    for host, words in cases.items():
        with pytest.raises(DependencyError) as refused:
            connection.connect(Endpoint(host=host), RetryPolicy(outage_s=0.0)).check()
        assert words in refused.value.what
        assert "Error" not in refused.value.what


def test_a_namespace_without_profiles_is_said_to_have_no_effect(server: Api, tmp_path: Path) -> None:
    assert connection.connect(Endpoint(host=server.url), QUICK).check() == ()
    (note,) = connection.connect(Endpoint(host=server.url, namespace="nope"), QUICK).check()
    assert "no profiles: --namespace nope has no effect" in note
    words = ("schedules", "plan", "schedules.yaml", "--host", server.url, "--namespace", "nope")
    (tmp_path / "schedules.yaml").write_text('{"schema_version": 1, "owner": "a", "schedules": {}}')
    said = command(tmp_path, *words)
    assert "note: this installation has no profiles" in said.communicate()[1]
    assert said.returncode == 0
    server.store.multi_user = True
    assert connection.connect(Endpoint(host=server.url, namespace="team-a"), QUICK).check() == ()


def test_an_installation_with_profiles_needs_a_namespace(server: Api, api: Connection) -> None:
    api.check()
    server.store.multi_user = True
    with pytest.raises(InputError, match="no namespace is named"):
        api.check()
    runs.experiment(connection.connect(Endpoint(host=server.url, namespace="team-a"), QUICK), "nightly")
    assert server.store.experiments[0].namespace == "team-a"
