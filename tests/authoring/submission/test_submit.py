"""A submission makes one pipeline, one version, one experiment and one run, whatever happens to answers."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.api import packages
from tests.authoring.api.client import QUICK, Clock
from tests.authoring.api.server import Api
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.submission import connection, order, provenance, runs
from trainwright.authoring.submission.connection import Connection, Endpoint
from trainwright.authoring.submission.runs import SubmittedRun
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError

Submit = Callable[..., SubmittedRun]


@pytest.fixture
def submit(api: Connection, tmp_path: Path) -> Submit:
    def call(params: tuple[str, ...] = ("source=gs://rows/a",), text: str = "", **more: Any) -> SubmittedRun:
        return runs.submit(api, ordered(api.place, tmp_path, params, text, **more), print)

    return call


def ordered(
    place: Endpoint,
    folder: Path,
    params: tuple[str, ...] = ("source=gs://rows/a",),
    text: str = "",
    **more: Any,
) -> order.Order:
    given: dict[str, Any] = {
        "registry": "", "labels": (), "key": "", "data_version": "", "experiment": "nightly",
        "service_account": "",
    }  # fmt: skip
    compiled = packages.gated(folder, text)
    return order.prepared(str(compiled), None, params, "", place=place, **(given | more))


def test_what_is_submitted_is_the_package_the_arguments_and_where_they_come_from(
    server: Api, submit: Submit, tmp_path: Path
) -> None:
    begun = submit(("source=gs://rows/a", "rows=7"), labels=("team=ranking",), service_account="trainer")
    (run,), (version,) = server.store.runs, server.store.pipeline_versions
    assert (begun.run_id, begun.fresh, begun.uploaded) == (run.run_id, True, True)
    assert begun.link == f"{server.url}/#/runs/details/{run.run_id}"
    assert run.runtime_config.parameters == {"source": "gs://rows/a", "rows": 7}
    assert run.service_account == "trainer"
    assert run.pipeline_version_reference.pipeline_version_id == version.pipeline_version_id
    assert server.store.pipelines[0].name == "gated"
    assert version.name == hashlib.sha256((tmp_path / "gated.yaml").read_bytes()).hexdigest()
    assert version.tags["team"] == "ranking"
    told = provenance.read(run.description)
    assert told["key"] == begun.key
    assert told["team"] == "ranking"
    assert server.store.experiments[0].display_name == "nightly"


def test_experiment_without_features_and_schema_submits_no_null_and_only_known_parameters(
    server: Api, api: Connection, tmp_path: Path
) -> None:
    """The API server rejects null inside of a parameter, and a parameter that the pipeline does not have."""
    config = tmp_path / "experiment.yaml"
    config.write_text(
        "data: {source: gs://rows/a.csv, label: bought, splits: {train: {fraction: 0.7}, "
        "evaluate: {fraction: 0.3}}}\n"
        "registry: {model: shop, tracking_uri: https://mlflow}\n"
    )
    options: dict[str, Any] = dict.fromkeys(("key", "data_version", "service_account"), "")
    options |= {"registry": "registry.example/team", "labels": (), "experiment": "nightly"}
    package = order.prepared("train_and_register", config, (), "", place=api.place, **options)
    runs.submit(api, package, print)
    found = server.store.runs[0].runtime_config.parameters
    assert found["features"] == {}
    assert found["schema"] == ""
    assert "null" not in json.dumps(found)
    pipeline = pipeline_spec.read(catalog.pipeline("train_and_register"))
    assert found.keys() <= pipeline.parameters.keys()


def test_a_run_is_named_after_its_model_the_time_and_its_key(server: Api, submit: Submit) -> None:
    with_model = submit(("source=gs://rows/a", 'registry={"model": "flight-delay"}'))
    without = submit()
    names = [run.display_name for run in server.store.runs]
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.fullmatch(f"flight-delay {when} {with_model.key[:6]}", names[0])
    assert re.fullmatch(f"gated {when} {without.key[:6]}", names[1])


def test_a_name_that_is_chosen_wins_and_the_run_is_found_by_its_key_all_the_same(
    server: Api, submit: Submit
) -> None:
    first = submit(name="the one for Anna")
    assert server.store.runs[0].display_name == "the one for Anna"
    assert submit(name="another name").run_id == first.run_id
    for wrong in (" a", "a\nb", "x" * 129):
        with pytest.raises(InputError, match="cannot be a run's name"):
            submit(name=wrong)


def test_a_description_begins_with_a_sentence_and_keeps_its_labels(server: Api, submit: Submit) -> None:
    begun = submit(("source=gs://rows/a", 'registry={"model": "flight-delay"}'), labels=("team=ranking",))
    text = server.store.runs[0].description
    assert text.splitlines()[0] == "A gated pipeline for flight-delay on gs://rows/a."
    assert provenance.read(text) == {"key": begun.key, "team": "ranking"}
    submit((f"source=gs://rows/{'a' * 60}",), labels=tuple(f"label-{letter}={'x' * 50}" for letter in "ab"))
    assert len(server.store.runs[1].description) == 255
    assert "…\ntrainwright/key=" in server.store.runs[1].description


def test_a_pipeline_is_called_and_described_as_its_author_wrote_and_a_version_by_its_digest(
    server: Api, submit: Submit
) -> None:
    submit(text="Train if the\n data pass.")
    (pipeline,), (version,) = server.store.pipelines, server.store.pipeline_versions
    assert (pipeline.name, pipeline.display_name) == ("gated", "A gated pipeline")
    assert pipeline.description == "Train if the data pass."
    assert re.fullmatch(rf"{version.name[:12]} \d{{4}}-\d\d-\d\d", version.display_name)
    submit(text="changed", labels=("commit=0123456789abcdef",), beside=True)
    assert (
        f"{server.store.pipeline_versions[1].name[:12]} 0123456 "
        in server.store.pipeline_versions[1].display_name
    )


def test_the_same_submission_again_finds_its_run_and_makes_nothing(server: Api, submit: Submit) -> None:
    first, again = submit(), submit()
    assert (again.run_id, again.fresh, again.uploaded) == (first.run_id, False, False)
    assert count(server) == (1, 1, 1, 1)
    assert server.made("POST", "") == 4


def test_other_content_is_another_version_of_the_same_pipeline(server: Api, submit: Submit) -> None:
    submit()
    submit(text="changed", beside=True)
    assert count(server) == (1, 1, 2, 2)
    assert len({version.name for version in server.store.pipeline_versions}) == 2


def test_other_arguments_are_another_run_unless_a_key_is_named(server: Api, submit: Submit) -> None:
    assert submit().run_id != submit(("source=gs://rows/b",)).run_id
    one = submit(("source=gs://rows/c",), key="build-7")
    assert submit(("source=gs://rows/d",), key="build-7").run_id == one.run_id
    assert len(server.store.runs) == 3


POSTS = ["/experiments", "/pipelines$", "/upload_version", "/runs$"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "how",
    [
        {"after": True, "drop": True},
        {"after": True, "status": 502},
        {"status": 429, "headers": {"Retry-After": "0"}},
        {"status": 503, "times": 3},
        {"after": True, "drop": True, "times": 3},
    ],
    ids=str,
)
def test_a_lost_answer_or_a_passing_failure_never_makes_anything_twice(
    server: Api, submit: Submit, path: str, how: dict[str, Any]
) -> None:
    server.fail("POST", path, **how)
    assert submit().fresh
    assert count(server) == (1, 1, 1, 1)


@pytest.mark.parametrize("path", ["/experiments", "/pipelines/names", "/versions", "/runs"])
def test_a_look_whose_answer_is_lost_is_repeated(server: Api, submit: Submit, path: str) -> None:
    server.fail("GET", path, drop=True, times=2)
    submit()
    assert count(server) == (1, 1, 1, 1)


@pytest.mark.parametrize("path", POSTS[:3])
def test_what_somebody_else_makes_at_the_same_moment_is_shared(
    server: Api, submit: Submit, api: Connection, tmp_path: Path, path: str
) -> None:
    other = ordered(api.place, tmp_path, ("source=gs://rows/other",))
    server.fail("POST", path, meanwhile=lambda: runs.submit(api, other, print) and None)
    submit()
    assert count(server) == (1, 1, 1, 2)


def test_of_two_runs_submitted_at_the_same_moment_the_older_one_stays(
    server: Api, submit: Submit, api: Connection, tmp_path: Path
) -> None:
    same = ordered(api.place, tmp_path)
    server.fail("POST", "/runs$", meanwhile=lambda: runs.submit(api, same, print) and None)
    begun = submit()
    older, younger = server.store.runs
    assert (begun.run_id, begun.fresh) == (older.run_id, False)
    assert (older.state, younger.state) == ("PENDING", "CANCELING")
    assert submit().run_id == older.run_id


def test_an_outage_longer_than_the_budget_ends_with_21_and_a_later_try_goes_on(
    server: Api, tmp_path: Path, clock: Clock
) -> None:
    api = connection.connect(Endpoint(host=server.url))
    outage = server.fail("GET", "", drop=True, times=10_000)
    with pytest.raises(DependencyError, match="got no answer") as refused:
        runs.submit(api, ordered(api.place, tmp_path), print)
    assert (refused.value.code, refused.value.where) == (21, server.url)
    assert 20 < clock.now <= 60.01
    outage.times = 0
    runs.submit(api, ordered(api.place, tmp_path), print)
    assert count(server) == (1, 1, 1, 1)


def test_the_server_says_how_long_it_is_to_be_left_alone(server: Api, tmp_path: Path, clock: Clock) -> None:
    api = connection.connect(Endpoint(host=server.url), QUICK)
    server.fail("GET", "/experiments", status=429, headers={"Retry-After": "7"})
    runs.submit(api, ordered(api.place, tmp_path), print)
    assert clock.waits == [pytest.approx(7.0, abs=0.02)]


def test_a_refusal_is_not_repeated_and_says_what_the_identity_needs(server: Api, submit: Submit) -> None:
    server.forbidden = True
    with pytest.raises(PermissionRefused, match="answered with 403: User 'ci' is not authorized") as refused:
        submit()
    assert "docs/submitting.md" in refused.value.hint
    assert len(server.calls) == 1


def test_a_request_that_the_api_does_not_take_is_not_repeated(server: Api, submit: Submit) -> None:
    server.fail("POST", "/runs$", status=400)
    with pytest.raises(InputError, match="submitting the run was answered with 400: made to fail"):
        submit()
    assert server.made("POST", "/runs$") == 1


def test_an_archived_experiment_is_refused(server: Api, submit: Submit) -> None:
    submit()
    server.store.experiments[0].storage_state = "ARCHIVED"
    with pytest.raises(InputError, match="'nightly' is archived"):
        submit(("source=gs://rows/b",))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ((), "  missing: source"),
        (("source=a", "sauce=b"), "  unknown: sauce"),
        (("source=s3://AKIA:hunter2@rows/a",), "source: this contains a password in an address"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_api_is_asked(
    server: Api, submit: Submit, params: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        submit(params)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert server.calls == []


@pytest.mark.parametrize(
    "label", ["team", "Team=a", "key=a", "team=", "team=a\nb", "team=grün", "team=" + "a" * 64]
)
def test_a_label_that_cannot_be_kept_is_refused(submit: Submit, label: str) -> None:
    with pytest.raises(InputError, match="--label"):
        submit(labels=(label,))


@pytest.mark.parametrize("more", [{"registry": "https://h.io/t"}, {"data_version": "a\ntrainwright/key=b"}])
def test_a_registry_or_a_digest_that_is_none_is_refused(
    server: Api, submit: Submit, more: dict[str, str]
) -> None:
    with pytest.raises(InputError):
        submit(**more)
    assert server.calls == []


def test_more_labels_than_a_run_has_room_for_are_refused(server: Api, submit: Submit) -> None:
    with pytest.raises(InputError, match="a run has room for 255"):
        submit(labels=tuple(f"label-{letter}={'x' * 60}" for letter in "abcd"))
    assert server.store.runs == []


def test_paths_of_this_machine_and_images_without_a_registry_are_doubted(
    api: Connection, tmp_path: Path
) -> None:
    section = json.dumps({"store": str(tmp_path), "uri": "gs://rows/a"})
    doubts = ordered(api.place, tmp_path, (f"source={section}",)).warnings
    assert doubts == (
        "source.store is a path of this machine: a step sees it only where its pod mounts the same",
    )
    assert "bytes" in ordered(api.place, tmp_path, ("source=" + "a " * 300_000,)).warnings[0]
    text = (tmp_path / "gated.yaml").read_text().replace("registry.example/team/trainwright", "trainwright")
    (tmp_path / "bare.yaml").write_text(text)
    given = {"labels": (), "key": "", "data_version": "", "experiment": "e", "service_account": ""}
    bare = order.prepared(
        str(tmp_path / "bare.yaml"), None, ["source=a"], "", registry="", place=api.place, **given
    )
    assert "name no registry" in bare.warnings[0]
    named = order.prepared(
        str(tmp_path / "bare.yaml"), None, ["source=a"], "", registry="h.io/t", place=api.place, **given
    )
    assert named.warnings == ()
    assert "image: h.io/t/trainwright/tfdv:0.1.0" in named.package.text


def test_an_answer_that_is_none_of_the_api_is_no_empty_list(server: Api, submit: Submit) -> None:
    """A page to log in, with status 200: taken for "there is no such run", it would make a second one."""
    first = submit()
    for path in ("/experiments", "/pipelines/names", "/versions", "/runs$"):
        server.fail("GET", path, status=200, body="<html>log in, run_id, state, error</html>")
        server.fail("GET", path, status=200, body="log in")
    assert submit().run_id == first.run_id
    assert count(server) == (1, 1, 1, 1)


def test_each_namespace_has_its_own_pipeline_of_a_name(server: Api, tmp_path: Path) -> None:
    server.store.multi_user = True
    for team in ("a", "b"):
        api = connection.connect(Endpoint(host=server.url, namespace=f"team-{team}"), QUICK)
        runs.submit(api, ordered(api.place, tmp_path), print)
        assert not runs.submit(api, ordered(api.place, tmp_path), print).fresh
    assert {one.namespace for one in server.store.pipelines} == {"team-a", "team-b"}
    assert count(server) == (2, 2, 2, 2)


SAME = ("source=gs://rows/a", "date=2026-01-31")


def test_a_run_of_another_key_for_the_same_date_is_refused_while_it_goes_on(
    server: Api, submit: Submit
) -> None:
    first = submit(SAME, key="a")
    with pytest.raises(TransientError, match=f"run {first.run_id} does the same for 2026-01-31") as refused:
        submit(SAME, text="another version", key="b")
    assert "another key" in str(refused.value)
    assert "--beside" in refused.value.hint
    assert submit(SAME, key="a").run_id == first.run_id, "its own key finds it all the same"
    others = [("source=gs://rows/a", "date=2026-02-01"), ("source=gs://rows/b", "date=2026-01-31")]
    assert all(submit(other).fresh for other in others)
    assert submit(SAME, key="c", beside=True).fresh
    for run in server.store.runs:
        run.state = "FAILED"
    assert submit(SAME, key="b").fresh


def test_the_run_of_a_schedule_is_seen_too_and_its_date_is_the_day_it_is_scheduled_for(
    server: Api, submit: Submit, api: Connection
) -> None:
    submit(SAME)
    store = server.store
    reference = store.runs[0].pipeline_version_reference.to_dict()
    body = {"display_name": "nightly", "experiment_id": store.experiments[0].experiment_id, "mode": "ENABLE",
            "max_concurrency": "1", "pipeline_version_reference": reference,
            "trigger": {"cron_schedule": {"cron": "0 0 1 * * *"}},
            "runtime_config": {"parameters": {"source": "gs://rows/a", "date": ""}}}  # fmt: skip
    scheduled = store.fire(store.make_recurring(body).recurring_run_id)
    with pytest.raises(TransientError, match=f"{scheduled.run_id} .* a schedule started it"):
        submit()
    scheduled.scheduled_at -= timedelta(days=1)
    assert submit().fresh


def test_of_two_keys_at_the_same_moment_the_younger_run_gives_way(
    server: Api, submit: Submit, api: Connection, tmp_path: Path
) -> None:
    other = ordered(api.place, tmp_path, SAME, key="b")
    server.fail("POST", "/runs$", meanwhile=lambda: runs.submit(api, other, print) and None)
    with pytest.raises(TransientError, match=r"for 2026-01-31"):
        submit(SAME, key="a")
    assert [run.state for run in server.store.runs] == ["PENDING", "CANCELING"]


def count(server: Api) -> tuple[int, int, int, int]:
    """Experiments, pipelines, versions and runs that were made."""
    store = server.store
    return len(store.experiments), len(store.pipelines), len(store.pipeline_versions), len(store.runs)
