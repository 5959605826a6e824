"""Who asks, and whom: a token is kept, an address is looked at, and the role is what the calls need."""

from pathlib import Path

import pytest

from tests.authoring.api.asking import QUICK
from tests.authoring.api.server import Api, serving
from trainwright.authoring.submission import connection, runs
from trainwright.authoring.submission.connection import Connection, Place
from trainwright.errors import DependencyError, InputError, PermissionRefused


def test_the_token_is_read_again_at_every_call_and_never_shown(server: Api, tmp_path: Path) -> None:
    file, tokens = tmp_path / "token", ["first-PLANTED", "second-PLANTED"]
    file.write_text(tokens[0] + "\n")
    api = connection.connect(Place(host=server.url, token_file=file), QUICK)
    for token in tokens:
        file.write_text(token)
        server.token = token
        runs.experiment(api, token[:3])
    server.token = "".join(tokens)
    with pytest.raises(PermissionRefused, match="answered with 401") as refused:
        runs.experiment(api, "three")
    assert "PLANTED" not in f"{refused.value!r}{refused.value}"


def test_a_token_does_not_travel_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("PLANTED")
    with pytest.raises(InputError, match="the token would travel unencrypted"):
        connection.connect(Place(host="http://kubeflow.example", token_file=tmp_path / "token"))
    connection.connect(Place(host="http://ml-pipeline.kubeflow.svc:8888", token_file=tmp_path / "token"))
    with pytest.raises(InputError, match="there is no token"):
        connection.connect(Place(host="https://kubeflow.example", token_file=tmp_path / "none"))


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
        connection.connect(Place(host=host))
    assert "secret" not in str(refused.value)


def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(server: Api, tmp_path: Path) -> None:
    """The HTTP library says of such a one: Invalid header value, and what it is."""
    for text in ("PLANTED\nPLANTED", "PLANTED\u20ac", ""):
        (tmp_path / "token").write_text(text)
        with pytest.raises(InputError, match="there is no token in this file") as refused:
            connection.connect(Place(host=server.url, token_file=tmp_path / "token"))
        assert "PLANTED" not in f"{refused.value!r}{refused.value}"


def test_a_token_file_that_is_just_being_written_anew_ends_nothing(server: Api, tmp_path: Path) -> None:
    server.token = str(tmp_path)
    (tmp_path / "token").write_text(server.token)
    api = connection.connect(Place(host=server.url, token_file=tmp_path / "token"), QUICK)
    (tmp_path / "token").write_text("")
    runs.experiment(api, "nightly")


def test_a_token_is_not_sent_to_where_an_answer_points(server: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("PLANTED")
    api = connection.connect(Place(host=server.url, token_file=tmp_path / "token"), QUICK)
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


def test_a_page_to_log_in_is_not_taken_for_the_api(server: Api, api: Connection) -> None:
    server.fail("GET", "/healthz", status=302, headers={"Location": "https://dex.example/auth"})
    with pytest.raises(PermissionRefused, match="sent elsewhere"):
        api.check()
    server.fail("GET", "/healthz", meanwhile=lambda: setattr(server.store, "multi_user", None))
    with pytest.raises(PermissionRefused, match="a page to log in"):
        api.check()


def test_an_installation_with_profiles_needs_a_namespace(server: Api, api: Connection) -> None:
    api.check()
    server.store.multi_user = True
    with pytest.raises(InputError, match="no namespace is named"):
        api.check()
    runs.experiment(connection.connect(Place(host=server.url, namespace="team-a"), QUICK), "nightly")
    assert server.store.experiments[0].namespace == "team-a"
