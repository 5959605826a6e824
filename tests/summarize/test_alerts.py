"""Alerts at the end of a run, taken by real servers: HTTPS and SMTP with TLS."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.storage import servers
from tests.summarize.receivers import SILENT, MailServer, mail_server, webhook
from tests.summarize.test_cluster import RUN, api, completed, look, recorded
from tests.summarize.test_page import chain, put, tasks
from trainwright.errors import InputError
from trainwright.experiment import RunSettings
from trainwright.summarize import delivery
from trainwright.summarize.run import FinalStatus
from trainwright.summarize.summarize import summarize

FAILED = FinalStatus("FAILED", "train-and-register-0192f3", "exit-handler-1", 1, "train failed")
DONE = FinalStatus("SUCCEEDED", "train-and-register-0192f3", "exit-handler-1")
ERROR = {
    "error": "Diverged",
    "what": "a loss is not finite at step 12",
    "where": "epoch 2",
    "hint": "Lower training.learning_rate.",
}
SMTP = {
    "host": "127.0.0.1",
    "sender": "tw@example.com",
    "user": "robot",
    "password_file": "password",
}


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return servers.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(identity: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("SSL_CERT_FILE", str(identity[0]))
    return identity


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a run whose training failed."""
    return failed_run(tmp_path / "0192f3")


def request(root: Path, arguments: Mapping[str, Any] = MappingProxyType({})) -> None:
    """What the local runner writes when it creates a run."""
    created = {"schema_version": 1, "created": "2026-11-20T09:59:00+00:00", "continues": ""}
    content = created | {"run": "0192f3", "pipeline": "train_and_register", "arguments": {**arguments}}
    (root / "run.json").write_text(json.dumps(content))


def failed_run(root: Path, error: dict[str, str] = ERROR, started: str = "2026-11-27T10:00:00+00:00") -> Path:
    records = chain()
    put(root, records, "ingest", "validate", "join")
    states = {"ingest": "done", "validate": "done", "join": "done", "train": ("failed", error)}
    tasks(root, records, **states)
    request(root)
    listed = json.loads((root / "tasks.json").read_text())
    for task in listed["tasks"]:
        task["started"] = started
    (root / "tasks.json").write_text(json.dumps(listed))
    return root


def done_run(root: Path) -> Path:
    records = chain()
    put(root, records)
    tasks(root, records, **dict.fromkeys(records, "done"))
    return root


def held_run(root: Path) -> Path:
    records = chain()
    put(root, records, "ingest", "validate")
    tasks(root, records, ingest="done", validate="done", train="skipped")
    return root


def end(root: Path, ending: FinalStatus = FAILED, **settings: Any) -> str:
    """End a run, and return its summary as a reader sees it."""
    out = root.parent / "out"
    places = out / "page.html", out / "summary.md", out / "run"
    summarize(str(root), ending, *places, section=settings, scheduled="2026-11-27T09:00:00Z")
    return (out / "summary.md").read_text().replace("\\", "")


def hook_file(folder: Path, url: str, path: str = "/services/T0/s3cretpath") -> str:
    (folder / "hook").write_text(f"{url}{path}\n")
    return str(folder / "hook")


def test_failed_run_posts_step_error_and_next_step_to_the_url_of_the_file(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with webhook(trusted) as hook:
        text = end(root, owner="team a", alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert "not sent" not in text
    [document] = hook.documents
    assert len(document.pop("id")) == 64
    assert document == {
        "schema_version": 1,
        "pipeline": "train_and_register",
        "run": "0192f3",
        "outcome": "failed",
        "headline": "Failed in train: a loss is not finite at step 12",
        "owner": "team a",
        "step": "train",
        "error": {name: ERROR[name] for name in ("what", "where", "hint")},
        "decision": "HOLD",
        "registered": "",
        "metrics": {},
        "link": str(tmp_path / "out" / "page.html"),
        "cost": "",
        "over_budget": [],
    }
    assert hook.paths == ["/services/T0/s3cretpath"]
    assert hook.headers[0]["Content-Type"] == "application/json"


def test_repeated_exit_handler_sends_nothing_and_the_end_of_a_resumed_run_sends_again(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with webhook(trusted) as hook:
        rule = {"webhook_file": hook_file(tmp_path, hook.url)}
        end(root, alerts=[rule])
        end(root, alerts=[rule])
        assert len(hook.documents) == 1
        failed_run(root, started="2026-11-27T11:00:00+00:00")
        end(root, alerts=[rule])
    ids = [document["id"] for document in hook.documents]
    assert len(ids) == len({*ids}) == 2


def test_rule_sends_for_its_outcomes_and_its_owner_only(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    ends = {
        "done": (done_run(tmp_path / "done"), DONE),
        "held": (held_run(tmp_path / "held"), DONE),
        "failed": (failed_run(tmp_path / "failed"), FAILED),
    }
    with webhook(trusted) as hook:
        file = hook_file(tmp_path, hook.url)
        for run, ending in ends.values():
            end(run, ending, owner="a", alerts=[{"webhook_file": file}, {"webhook_file": file, "owner": "b"}])
        assert [one["outcome"] for one in hook.documents] == ["held", "failed"]
        end(*ends["done"], owner="b", alerts=[{"webhook_file": file, "owner": "b", "outcomes": ["done"]}])
    done, held = hook.documents[-1], hook.documents[0]
    assert (done["outcome"], done["registered"]) == ("done", "register found <what> it | looked for")
    assert (held["step"], held["decision"]) == ("validate", "HOLD")


def test_cancelled_run_is_told_from_a_failed_one(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    records = chain()
    root = put(tmp_path / "0192f3", records, "ingest")
    tasks(root, records, ingest="done", validate="stopped")
    listed = json.loads((root / "tasks.json").read_text())
    (root / "tasks.json").write_text(json.dumps(listed | {"state": "cancelled"}))
    with webhook(trusted) as hook:
        end(root, alerts=[{"outcomes": ["cancelled"], "webhook_file": hook_file(tmp_path, hook.url)}])
    assert [(one["outcome"], one["headline"]) for one in hook.documents] == [
        ("cancelled", "Cancelled in validate")
    ]


def test_slack_text_escapes_markup_and_mentions_nobody(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    error = {"what": "column '<!channel> & @here' is \x1b[31mred\x1b[0m\nat 5", "hint": "Ask <@U1>."}
    root = failed_run(tmp_path / "0192f3", error)
    with webhook(trusted) as hook:
        rule = {"webhook_file": hook_file(tmp_path, hook.url), "format": "slack"}
        end(root, owner="team & co", alerts=[rule])
    assert hook.documents[0] == {
        "text": "\n".join(
            [
                "*train_and_register 0192f3 failed*",
                "Failed in train: column '&lt;!channel&gt; &amp; @\u200bhere' is red at 5",
                "next: Ask &lt;@U1&gt;.",
                "owner: team &amp; co",
                f"link: {tmp_path}/out/page.html",
            ]
        )
    }


def test_text_has_the_metrics_of_the_whole_and_not_those_of_slices(
    tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    root = done_run(tmp_path / "0192f3")
    measures = [{"name": "auc", "value": 0.9}, {"name": "slice/origin/EWR/auc", "value": 0.8}]
    (root / "evaluate" / "verdict").mkdir()
    (root / "evaluate" / "verdict" / "measured.json").write_text(json.dumps({"measures": measures}))
    with webhook(trusted) as hook:
        file = hook_file(tmp_path, hook.url)
        rules = [{"webhook_file": file, "format": name, "outcomes": ["done"]} for name in ("json", "slack")]
        end(root, DONE, alerts=rules)
    sent, text = sorted(hook.documents, key=lambda document: "text" in document)
    assert sent["metrics"] == {"auc": 0.9, "slice/origin/EWR/auc": 0.8}
    assert "metrics: auc 0.9\n" in text["text"]


def test_secret_in_an_error_is_not_sent(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    what = "cannot open postgresql://anna:hunter2@db/flights with password=hunter2"
    root = failed_run(tmp_path / "0192f3", {"what": what})
    with webhook(trusted) as hook:
        end(root, alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert "hunter2" not in json.dumps(hook.documents)
    assert "***@db/flights" in hook.documents[0]["error"]["what"]


def test_server_that_fails_once_gets_the_alert_at_the_second_try(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with webhook(trusted, [(500, {}), (429, {}), (200, {})]) as hook:
        text = end(root, alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert "not sent" not in text
    assert len(hook.documents) == 3
    assert len({document["id"] for document in hook.documents}) == 1


def test_server_that_never_answers_delays_the_end_by_no_more_than_the_limit(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LIMIT_S", 1.5)
    with webhook(trusted, [(SILENT, {})]) as silent, webhook(trusted) as other:
        (tmp_path / "other").write_text(other.url)
        rules = [{"webhook_file": hook_file(tmp_path, silent.url)}, {"webhook_file": str(tmp_path / "other")}]
        started = time.monotonic()
        text = end(root, alerts=rules)
        assert time.monotonic() - started < 6
    assert f"- not sent: alert 1 to {tmp_path}/hook: no answer within 1.5 s" in text
    assert len(other.documents) == 1


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([(302, {"Location": "https://elsewhere.example/x"})], "HTTP 302 leads to elsewhere.example"),
        ([(307, {"Location": "http://127.0.0.1:9/x"})], "HTTP 307 leads to 127.0.0.1"),
        ([(404, {})], "HTTP 404 no &lt;such> hook"),
        ([(403, {})], "HTTP 403"),
    ],
    ids=["redirect", "redirect to plain http", "gone", "forbidden"],
)
def test_rejected_alert_is_noted_with_its_reason_and_without_the_url(
    root: Path,
    tmp_path: Path,
    trusted: tuple[Path, Path],
    answers: Sequence[tuple[int, dict[str, str]]],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with webhook(trusted, answers) as hook:
        text = end(root, alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    [line] = [line for line in text.splitlines() if "not sent" in line]
    assert reason in line
    assert "s3cretpath" not in text + capsys.readouterr().out
    assert len(hook.paths) == 1


def test_server_with_an_untrusted_certificate_gets_nothing(
    root: Path, tmp_path: Path, identity: tuple[Path, Path]
) -> None:
    with webhook(identity) as hook:
        text = end(root, alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert "CERTIFICATE" in text
    assert hook.documents == []


@pytest.mark.parametrize("content", ["http://127.0.0.1:9/x", "https://u:p@127.0.0.1/x", "https://", "a b"])
def test_file_without_an_https_url_is_rejected_without_its_content(
    root: Path, tmp_path: Path, content: str
) -> None:
    text = end(root, alerts=[{"webhook_file": hook_file(tmp_path, content, "")}])
    assert "expected an https:// URL without user and spaces. run.alerts.webhook_file" in text
    assert content not in text.replace("an https:// URL", "")


def test_missing_secret_is_noted_with_the_path(root: Path, tmp_path: Path) -> None:
    text = end(root, alerts=[{"webhook_file": str(tmp_path / "absent")}])
    assert f"no such file. run.alerts.webhook_file: {tmp_path}/absent. Mount the secret there" in text


def test_run_that_cannot_be_read_sends_what_kubeflow_says(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    with webhook(trusted) as hook:
        end(tmp_path / "gone", alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert [(one["outcome"], one["headline"]) for one in hook.documents] == [
        ("failed", "Failed: train failed")
    ]


def test_run_on_a_cluster_links_to_kubeflow_and_is_in_its_namespace(
    tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    look(tmp_path, "failed")
    document = completed(recorded("training-diverged-exit-30"), tmp_path)
    for node in document["status"]["nodes"].values():
        if node["name"].endswith(".train"):  # the recording lacks it
            node["finishedAt"] = "2026-11-22T14:39:00Z"
    ending = FinalStatus("FAILED", document["metadata"]["name"], "exit-handler-1")
    with webhook(trusted) as hook, api([(200, document)]) as (cluster, _):
        section = {
            "page": "https://kubeflow.example/pipeline/",
            "alerts": [{"webhook_file": hook_file(tmp_path, hook.url)}],
            "openlineage": str(tmp_path / "events.jsonl"),
        }
        out = tmp_path / "out"
        places = out / "page.html", out / "summary.md", out / "run"
        for _ in range(2):  # as a retry of the exit handler's pod
            summarize(str(tmp_path / RUN), ending, *places, cluster, section=section)
    [sent] = hook.documents
    assert (sent["outcome"], sent["step"], sent["run"]) == ("failed", "train", RUN)
    assert sent["link"] == f"https://kubeflow.example/pipeline/#/runs/details/{RUN}"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    failed = [event for event in events if event["eventType"] == "FAIL"]
    assert {event["job"]["namespace"] for event in events} == {"team-a"}
    step, *_, run = failed
    assert step["job"]["name"] == f"{run['job']['name']}.train"
    assert step["eventTime"] == "2026-11-22T14:39:00.000+00:00"


def mail_settings(folder: Path, server: MailServer, **smtp: Any) -> dict[str, Any]:
    (folder / "password").write_text("s3cret pass\n")
    section = SMTP | {"port": server.port, "password_file": str(folder / "password")} | smtp
    rule = {"email": ["anna@example.com", "ops@example.com"]}
    return {"smtp": section, "alerts": [rule]}


def test_mail_is_encrypted_and_has_the_facts_of_the_run(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer()) as server:
        text = end(root, owner="équipe\n données", **mail_settings(tmp_path, server))
    assert "not sent" not in text
    assert [word.split(" ")[0] for word in server.words] == ["ehlo", "STARTTLS"]
    assert server.logins == [("robot", "s3cret pass")]
    [(recipients, letter)] = server.letters
    assert recipients == ["anna@example.com", "ops@example.com"]
    assert letter["Subject"] == "trainwright: train_and_register 0192f3 failed"
    assert (letter["From"], letter["Auto-Submitted"]) == ("tw@example.com", "auto-generated")
    lines = letter.get_content().splitlines()
    assert lines[2:6] == [
        "Failed in train: a loss is not finite at step 12",
        "at: epoch 2",
        "next: Lower training.learning_rate.",
        "owner: équipe données",
    ]


def test_name_with_line_breaks_adds_no_header(tmp_path: Path, trusted: tuple[Path, Path]) -> None:
    root = failed_run(tmp_path / "0192f3")
    created = json.loads((root / "run.json").read_text())
    hostile = {"pipeline": "evil\r\nBcc: spy@example.com\r\n\r\n.\r\nMAIL FROM:<x@y>"}
    (root / "run.json").write_text(json.dumps(created | hostile))
    with mail_server(trusted, MailServer()) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "not sent" not in text
    [(recipients, letter)] = server.letters
    assert recipients == ["anna@example.com", "ops@example.com"]
    assert letter["Bcc"] is None
    assert letter["Subject"].strip().startswith("trainwright: evil Bcc: spy@example.com")


def test_mail_server_without_starttls_gets_no_password(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer(offers=False)) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "STARTTLS extension not supported by server" in text
    assert "set run.smtp.security" in text
    assert (server.logins, server.letters) == ([], [])


def test_mail_server_with_an_untrusted_certificate_gets_no_password(
    root: Path, tmp_path: Path, identity: tuple[Path, Path]
) -> None:
    with mail_server(identity, MailServer()) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "CERTIFICATE" in text
    assert (server.logins, server.letters) == ([], [])


@pytest.mark.parametrize("security", ["tls", "none"])
def test_mail_with_tls_from_the_start_or_without_any(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path], security: str
) -> None:
    login = {} if security == "tls" else {"user": "", "password_file": None}
    with mail_server(trusted, MailServer(implicit=security == "tls", offers=False)) as server:
        settings = mail_settings(tmp_path, server, security=security, **login)
        settings["smtp"] = {name: value for name, value in settings["smtp"].items() if value is not None}
        assert "not sent" not in end(root, **settings)
    assert len(server.letters) == 1
    assert server.logins == ([("robot", "s3cret pass")] if security == "tls" else [])


def test_busy_mail_server_gets_the_letter_at_the_next_try(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer(replies=["451 later", "451 later", "250 ok"])) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "not sent" not in text
    assert len(server.letters) == 1


def test_mail_server_that_ends_badly_gets_the_letter_once(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer(farewell="421 too busy to say goodbye")) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "not sent" not in text
    assert len(server.letters) == 1


def test_rejected_recipient_is_noted_and_the_others_get_the_letter(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer(replies=["250 ok", "550 unknown"])) as server:
        text = end(root, **mail_settings(tmp_path, server))
    assert "rejects ops@example.com" in text
    assert [recipients for recipients, _ in server.letters] == [["anna@example.com"]]


def test_rejected_login_is_noted_and_not_repeated(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    with mail_server(trusted, MailServer()) as server:
        settings = mail_settings(tmp_path, server)
        (tmp_path / "password").write_text("wr0ng")
        text = end(root, **settings)
    assert "535" in text
    assert "wr0ng" not in text
    assert server.logins == [("robot", "wr0ng")]


def test_mail_server_that_greets_for_ever_is_left_at_the_limit(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LIMIT_S", 1.0)
    with mail_server(trusted, MailServer(trickle=True)) as server:
        assert "no answer within 1 s" in end(root, **mail_settings(tmp_path, server))


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"alerts": [{}]}, "alerts.0: expected webhook_file or email, found neither"),
        ({"alerts": [{"webhook_file": "a", "email": ["a@b"]}]}, "found both"),
        ({"alerts": [{"email": ["a@b.c"]}]}, "smtp is absent"),
        ({"alerts": [{"email": ["a@b.c\nBcc: d@e.f"]}]}, "alerts.0.email.0"),
        ({"alerts": [{"webhook_file": "a", "outcomes": ["lost"]}]}, "alerts.0.outcomes.0"),
        ({"smtp": SMTP | {"security": "none"}}, "the password would be readable"),
        ({"smtp": {"host": "h", "sender": "a@b", "user": "u"}}, "user and password_file belong together"),
        ({"openlineage": "http://marquez/api/v1/lineage"}, "openlineage"),
    ],
)
def test_rule_that_cannot_work_is_rejected_before_the_run(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        RunSettings.check(section, "run")


def test_receipt_of_an_unwritable_folder_is_noted_after_the_alert_was_sent(
    root: Path, tmp_path: Path, trusted: tuple[Path, Path]
) -> None:
    (root / "alerts").write_text("a file where the receipts go")
    with webhook(trusted) as hook:
        text = end(root, alerts=[{"webhook_file": hook_file(tmp_path, hook.url)}])
    assert len(hook.documents) == 1
    assert "alerts" in text.partition("not sent")[2]
    shutil.rmtree(root)
