"""Runs, files, versions and lineage over the API."""

import json
from pathlib import Path

import pytest

from tests.registry.shelf import MODEL
from tests.service.conftest import Site
from trainwright.documents import digest_file
from trainwright.local.run_index import RunSummary, read_run

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def names(site: Site, **query: object) -> list[str]:
    return [one["run"] for one in site.service.get("runs", **query)["runs"]]


def test_runs_are_listed_newest_first_and_pages_hold_each_once(site: Site) -> None:
    found, after = [], ""
    while True:
        page = site.service.get("runs", limit=3, after=after)
        found += [one["run"] for one in page["runs"]]
        after = page["next"]
        if not after:
            break
    assert found == ["00000b", *(f"00000{number}" for number in range(7, 0, -1))]


def test_conditions_narrow_the_list(site: Site) -> None:
    assert names(site, where="training.learning_rate=0.07") == ["000007"]
    assert names(site, where=["training.learning_rate=0.07", "run.owner=other"]) == []
    assert len(names(site, owner="ranking")) == 8
    assert names(site, owner="nobody") == []
    model = read_run(site.runs / "000002").version("model")
    assert names(site, version=model[:12]) == ["000002"]
    assert len(names(site, version=read_run(site.runs / "000002").version("data")[:12])) == 8
    assert names(site, state="failed") == []
    answer = site.service.call("GET", "runs", params={"where": "epochs"})
    assert (answer.status_code, answer.json()["what"]) == (400, "'epochs' is not KEY=VALUE")


def test_run_has_its_arguments_and_steps(site: Site) -> None:
    found = site.service.get("runs/000003")
    stored = json.loads((site.runs / "000003" / RunSummary.FILE).read_text())
    assert {"schema_version": 1} | found["summary"] == stored
    assert found["arguments"]["run"] == {"owner": "ranking"}
    assert [task["step"] for task in found["tasks"]] == ["ingest", "join", "train", "evaluate", "smoke-test"]


def test_run_that_changes_is_read_again(site: Site) -> None:
    one = read_run(site.runs / "000001")
    changed = type(one).from_json(one.to_json() | {"headline": "changed by hand"})
    changed.write(site.runs / "000001")
    found = [entry for entry in site.service.get("runs")["runs"] if entry["run"] == "000001"]
    assert found[0]["headline"] == "changed by hand"
    one.write(site.runs / "000001")


def test_two_runs_differ_in_their_arguments_and_models(site: Site) -> None:
    found = site.service.get("runs/000005/diff/000007")
    assert found["arguments"] == [{"key": "training.learning_rate", "first": 0.01, "second": 0.07}]
    assert [entry["key"] for entry in found["versions"]] == ["model"]


def test_lineage_goes_both_ways(site: Site) -> None:
    up = site.service.get("lineage/000004")
    assert up["version"]["name"] == "model"
    assert [entry["node"]["name"] for entry in up["made_from"]] == ["training_set", "data", "source"]
    source = up["made_from"][-1]["node"]["digest"]
    down = site.service.get(f"lineage/{source[:16]}")
    models = [entry for entry in down["made_into"] if entry["node"]["name"] == "model"]
    assert len(models) == 8


def test_registered_version_is_traced_by_its_name(site: Site) -> None:
    """Its run is not here: MLflow knows the digest of its training set, which the runs here read, too."""
    found = site.service.get(f"lineage/{MODEL}/1")
    assert found["version"]["name"] == "training_set"


@pytest.mark.parametrize(
    "path",
    [
        "../000002/run.json",
        "..%2F000002%2Frun.json",
        "%2e%2e/%2e%2e/shelf/audit.key",
        "/etc/passwd",
        "link",
        "folder/../../000002/run.json",
        ".kfp/lock",
        "evidence",
        "no\x00thing",
        "x" * 5000,
    ],
)
def test_file_outside_of_the_run_is_not_found(site: Site, path: str) -> None:
    link = site.runs / "000001" / "link"
    if not link.is_symlink():
        link.symlink_to(site.runs / "000002" / "run.json")
        (site.runs / "000001" / ".kfp").mkdir()
        (site.runs / "000001" / ".kfp" / "lock").write_text("1")
    answer = site.service.call("GET", f"runs/000001/files/{path}")
    assert answer.status_code in {404, 401}, answer.text  # requests itself resolves some of them
    assert "learning_rate" not in answer.text


def test_report_is_shown_in_a_sandbox_and_weights_are_downloaded(site: Site) -> None:
    (site.runs / "000001" / "page.html").write_text("<script>alert(1)</script>")
    answer = site.service.call("GET", "runs/000001/files/page.html")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "allow-scripts" not in policy
    weights = site.service.call("GET", "runs/000001/files/evidence/model/weights.safetensors")
    assert weights.headers["content-disposition"].startswith("attachment")
    stored = site.runs / "000001" / "evidence" / "model" / "weights.safetensors"
    assert len(weights.content) == stored.stat().st_size
    assert digest_file(stored)


def test_models_and_versions_are_those_of_mlflow(site: Site) -> None:
    [model] = [one for one in site.service.get("models") if one["name"] == MODEL]
    assert model["aliases"]["candidate"]
    versions = site.service.get(f"models/{MODEL}")
    assert {"1", "2", "3"} <= {one["version"] for one in versions}
    one = site.service.get(f"models/{MODEL}/versions/1")
    assert one["params"]["network.dropout"] == "0.1"
    assert one["tags"]["author"] == "anna"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("runs/zzzzzz", 404),
        ("runs/..", 404),
        ("runs/000001/diff/zzzzzz", 404),
        ("lineage/ffffffff", 404),
        ("models/nobody", 404),
        (f"models/{MODEL}/versions/77", 404),
        (f"models/{MODEL}/versions/99999999999999999999", 422),
        (f"models/{MODEL}/versions/0", 422),
        ("models/nobody/history", 404),
        ("nothing", 404),
    ],
)
def test_what_does_not_exist_is_not_found(site: Site, path: str, status: int) -> None:
    answer = site.service.call("GET", path)
    assert answer.status_code == status
    assert answer.json().keys() >= {"error", "code", "what", "where", "hint"}


def test_service_without_a_registry_says_how_to_name_one(tmp_path: Path) -> None:
    from tests.service.server import serving

    with serving("--runs", tmp_path / "absent", folder=tmp_path) as service:
        assert service.get("runs") == {"runs": [], "next": "", "owners": {}}
        answer = service.call("GET", "models")
        assert (answer.status_code, answer.json()["what"]) == (404, "no registry is configured")
