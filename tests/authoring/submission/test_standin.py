"""The stand-in is near enough to the API: kfp's client works with it, what is not described is refused."""

import re
from pathlib import Path

import kfp_server_api
import pytest

from tests.authoring.api import packages
from tests.authoring.api.schema import ENUMS, Refused, parsed
from tests.authoring.api.server import Api


def test_the_client_of_kfp_itself_finds_what_it_needs(
    server: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kfp

    monkeypatch.setattr(kfp.Client, "_LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    with pytest.warns(FutureWarning, match="only works with"):
        client = kfp.Client(host=server.url)
    experiment = client.create_experiment("nightly")
    assert client.create_experiment("nightly").experiment_id == experiment.experiment_id
    pipeline = server.store.make_pipeline({"name": "gated", "display_name": "gated"})
    package = str(packages.gated(tmp_path))
    version = client.upload_pipeline_version(package, "one", pipeline_id=pipeline.pipeline_id)
    with pytest.raises(kfp_server_api.ApiException, match="409"):
        client.upload_pipeline_version(package, "one", pipeline_id=pipeline.pipeline_id)
    made = client.run_pipeline(
        experiment.experiment_id,
        "a run",
        params={"source": "a"},
        pipeline_id=pipeline.pipeline_id,
        version_id=version.pipeline_version_id,
    )
    assert client.get_run(made.run_id).state == "RUNNING"
    client.terminate_run(made.run_id)
    assert client.list_runs(experiment_id=experiment.experiment_id).runs[0].state == "CANCELING"
    schedule = client.create_recurring_run(
        experiment.experiment_id,
        "nightly",
        cron_expression="0 30 2 * * *",
        pipeline_id=pipeline.pipeline_id,
        version_id=version.pipeline_version_id,
    )
    assert (schedule.no_catchup, schedule.max_concurrency) == (None, "1")
    client.disable_recurring_run(schedule.recurring_run_id)
    assert client.list_recurring_runs().recurring_runs[0].status == "DISABLED"


@pytest.mark.parametrize(
    ("body", "model", "message"),
    [
        ({"display_name": "a", "labels": {}}, "V2beta1Run", 'unknown field "labels"'),
        ({"display_name": 1.5}, "V2beta1Run", "1.5 is no str"),
        ({"mode": "ON"}, "V2beta1RecurringRun", "'ON' is no RecurringRunMode"),
        ({"runtime_config": "x"}, "V2beta1Run", "'x' is no V2beta1RuntimeConfig"),
        ({"trigger": {"cron_schedule": {"crontab": ""}}}, "V2beta1RecurringRun", 'unknown field "crontab"'),
    ],
)
def test_a_body_that_is_not_in_the_description_is_refused(body: object, model: str, message: str) -> None:
    with pytest.raises(Refused, match="body") as refused:
        parsed(body, model)
    assert message in refused.value.message


def test_lists_have_pages_and_filters_only_what_the_server_can(server: Api) -> None:
    for number in range(205):
        server.store.make_experiment({"display_name": f"e{number}"})
    first = server.store.listed("experiments", {"page_size": "500"})
    assert len(first["experiments"]) == 200
    rest = server.store.listed("experiments", {"page_size": "500", "page_token": first["next_page_token"]})
    assert (len(rest["experiments"]), rest["next_page_token"]) == (5, "")
    by_owner = '{"predicates": [{"operation": "EQUALS", "key": "owner", "string_value": "me"}]}'
    with pytest.raises(Refused, match="unrecognized field"):
        server.store.listed("experiments", {"filter": by_owner})


def test_the_states_of_a_run_are_those_of_the_description() -> None:
    assert "CANCELED" in ENUMS["V2beta1RuntimeState"]
    assert "ENABLE" in ENUMS["RecurringRunMode"]


def test_every_route_is_one_of_the_description(server: Api) -> None:
    """The generated client names each path and its method."""
    described: set[tuple[str, str]] = set()
    for module in Path(kfp_server_api.__file__).parent.glob("api/*.py"):
        found = re.findall(r"call_api\(\s*'/apis/v2beta1([^']*)', '([A-Z]+)'", module.read_text())
        described |= {(method, re.sub(r"\{[^}]*\}", "*", path)) for path, method in found}
    routes = server._routes({}, {}, b"")
    assert len(described) > len(routes) > 15
    assert {(method, re.sub(r"\(\[[^)]*\)", "*", path)) for method, path, _ in routes} <= described
