"""Who may read and change: token, cookie, gateway; foreign pages and hosts are rejected."""

import json
from pathlib import Path

import pytest
import requests

from tests.service.conftest import Site
from tests.service.server import Service, serving

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

STAGE = "models/flight_late/versions/99/stage"
BODY = {"to": "production", "reason": "it is better"}


def signed_in(service: Service) -> requests.Session:
    session = requests.Session()
    answer = session.get(f"{service.root}/sign-in?token={service.token}", allow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    flags = answer.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    return session


@pytest.mark.parametrize("path", ["runs", "runs/000001", "runs/000001/files/run.json", "models", "session"])
def test_caller_without_the_token_reads_nothing(site: Site, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"kubeflow-userid": "ann"}, {"Cookie": "x=y"}):
        answer = requests.get(f"{site.service.root}/api/v1/{path}", headers=headers, timeout=60)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["what"].startswith("no valid identity")


def test_token_in_the_printed_address_becomes_a_cookie_that_reads(site: Site) -> None:
    session = signed_in(site.service)
    assert session.get(f"{site.service.root}/api/v1/runs").status_code == 200
    assert requests.get(f"{site.service.root}/sign-in?token=wrong", timeout=60).status_code == 401


def test_cookie_changes_something_only_with_the_token_of_its_session(site: Site) -> None:
    session, url = signed_in(site.service), f"{site.service.root}/api/v1/{STAGE}"
    for headers in ({}, {"x-csrf-token": "0" * 64}):
        answer = session.put(url, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, 50)
    found = session.get(f"{site.service.root}/api/v1/session").json()
    answer = session.put(url, json=BODY, headers={"x-csrf-token": found["csrf"]})
    assert answer.status_code == 404
    assert "has no version '99'" in answer.json()["what"]


def test_form_of_a_foreign_page_is_rejected_by_its_type(site: Site) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = site.service.call("PUT", STAGE, data=json.dumps(BODY), headers={"Content-Type": kind})
        assert answer.status_code in {415, 422}


def test_foreign_host_is_rejected_before_anything_is_read(site: Site) -> None:
    answer = site.service.call("GET", "runs", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert site.service.call("GET", "/healthz").json() == {"status": "ok"}


def test_pages_of_the_service_may_be_framed_and_scripted_by_nobody_else(site: Site) -> None:
    headers = site.service.call("GET", "runs").headers
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b'{"to": "production", "to": "staging", "reason": "x"}', 400),
        (b'{"to": "production", "reason": "\\ud800"}', 400),
        (b'{"to": "production", "reason": NaN}', 400),
        (b"[" * 5000, 400),
        (b'{"reason": "' + b"x" * 1_000_001 + b'"}', 413),
    ],
)
def test_body_that_is_no_sound_json_is_the_fault_of_the_caller(site: Site, body: bytes, status: int) -> None:
    answer = site.service.call("PUT", STAGE, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json().keys() >= {"error", "code", "what", "where", "hint"}


def test_gateway_names_the_caller_and_no_token_is_needed(tmp_path: Path) -> None:
    words = ("--runs", tmp_path, "--auth", "gateway", "--allowed-host", "kubeflow.example")
    words += ("--root-path", "/trainwright")  # which the gateway cuts off
    with serving(*words, folder=tmp_path) as service:
        assert not service.token
        assert service.call("GET", "session").status_code == 401
        service.headers = {"kubeflow-userid": "ann@example.com", "Host": "kubeflow.example"}
        found = service.get("session")
        assert found["user"] == "ann@example.com"
        path = "pipelines/promote_model/runs"
        assert service.call("POST", path, json={}).status_code == 403
        proof = {"x-csrf-token": found["csrf"]}
        answer = service.call("POST", path, json={}, headers=proof)
        assert (answer.status_code, answer.json()["code"]) == (403, 50)
        assert "in another's name" in answer.json()["what"]
        other = {"kubeflow-userid": "ben@example.com", **proof}
        assert "of another session" in service.call("POST", path, json={}, headers=other).json()["what"]


def test_short_token_and_a_port_in_use_end_with_10(tmp_path: Path, site: Site) -> None:
    (tmp_path / "token").write_text("short")
    port = site.service.root.rpartition(":")[2]
    for words, said in (
        (("--access-token-file", tmp_path / "token"), "at least 16 ASCII characters"),
        (("--port", port), "Address already in use"),
    ):
        with pytest.raises(AssertionError, match=said), serving(*words, folder=tmp_path):
            pass
