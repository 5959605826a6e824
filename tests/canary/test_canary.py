"""A canary is judged by its served answers, and gets the share of the traffic that follows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.canary.kserve import KServe, kserve
from tests.canary.logs import NEW, OLD, flights, write
from trainwright.artifacts import Record
from trainwright.canary.canary import LEVEL, SERVICE_FILE, ServedVersion, judge_canary
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.experiment import Canary, Serving
from trainwright.verdicts import Verdict

CANDIDATE = ServedVersion(NEW, "c" * 64, "s3://models/4")
PRODUCTION = ServedVersion(OLD, "p" * 64, "s3://models/3")
SERVICE = {"name": "flights", "namespace": "team-a", "model_format": "trainwright"}


def judged(
    folder: Path,
    log: Path,
    guards: dict[str, float],
    *,
    canary: dict[str, Any] | None = None,
    candidate: ServedVersion = CANDIDATE,
    production: ServedVersion = PRODUCTION,
    server: KServe | None = None,
    **serving: Any,
) -> Verdict:
    section = Serving.check({"log": str(log), **serving}, "serving")
    policy = Canary.check({"share": 0.05, "guards": guards, **(canary or {})}, "promotion.canary")
    out = folder / "verdict"
    return judge_canary(
        section, policy, candidate, production, out, folder / "summary.md", server.api if server else None
    )


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verdict" / SERVICE_FILE).read_text())
    return found


def share(folder: Path) -> int:
    found: int = manifest(folder)["spec"]["predictor"]["canaryTrafficPercent"]
    return found


def test_equal_model_passes_in_shadow_and_its_verdict_names_what_was_compared(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 1500)
    made = judged(tmp_path, log, {"brier": 0.01, "score": 0.05}, shadow=True)
    assert made.decision == made.recomputed() == "PASS"
    assert made == Verdict.read(tmp_path / "verdict")
    assert [(rule.name, rule.limit) for rule in made.rules] == [("brier", 0.01), ("score", 0.05)]
    assert (made.judged["model"], made.judged["production"]) == ("c" * 64, "p" * 64)
    assert made.baseline_version == OLD
    record = Record.read(tmp_path / "verdict")
    assert (record.step, record.decision) == ("canary", "PASS")
    assert "1,500 comparisons" in record.headline


def test_noisier_model_fails_on_its_share_of_the_traffic(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 12_000, worse=0.6, share=0.2)
    made = judged(tmp_path, log, {"brier": 0.02}, service=SERVICE)
    (rule,) = made.rules
    assert made.decision == "FAIL"
    assert rule.interval[0] > rule.limit
    assert share(tmp_path) == 0
    assert "FAIL" in (tmp_path / "summary.md").read_text()


def test_few_answers_are_inconclusive_and_say_how_many_would_pass(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 400, worse=0.05, share=0.3)
    made = judged(tmp_path, log, {"brier": 0.05}, service=SERVICE)
    assert made.decision == made.recomputed() == "INCONCLUSIVE"
    (left,) = made.not_judged
    assert left.needed > 100
    assert f"about {left.needed:,} would pass" in left.reason
    assert share(tmp_path) == 5


def test_shift_of_the_scores_fails_in_either_direction(tmp_path: Path) -> None:
    scores = np.full(1200, 0.5)
    for shift in (0.2, -0.2):
        both = {"request": [f"r{index}" for index in range(1200)] * 2, "score": [*scores, *(scores + shift)]}
        log = write(tmp_path / "log.parquet", [OLD] * 1200 + [NEW] * 1200, **both)
        (rule,) = judged(tmp_path, log, {"score": 0.1}, shadow=True).rules
        assert (rule.outcome(), round(rule.value, 6)) == ("FAIL", 0.2)


def test_share_grows_with_the_answers_of_the_canary_while_nothing_is_broken(tmp_path: Path) -> None:
    steps = {"steps": [{"after": 5000, "share": 0.5}, {"after": 100, "share": 0.25}]}
    log = flights(tmp_path / "log.parquet", 2000, share=0.2)
    judged(tmp_path, log, {"brier": 0.001}, canary=steps, service=SERVICE)
    assert share(tmp_path) == 25


def test_answers_before_the_start_of_the_canary_do_not_count(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 3600, share=0.5)
    made = judged(tmp_path, log, {"brier": 0.1}, canary={"start": "2026-11-01T00:59:50Z"})
    assert "comparisons" in made.rules[0].detail
    assert int(made.rules[0].detail.split(" comparisons")[0].rsplit(" ", 1)[1]) < 10


def test_any_of_several_guards_fails_with_its_part_of_the_level(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 300, worse=0.3)
    one = judged(tmp_path, log, {"brier": 0.01}, shadow=True).rules[0]
    two = judged(tmp_path, log, {"brier": 0.01, "score": 0.2}, shadow=True).rules[0]
    assert two.interval[0] < one.interval[0]
    assert two.interval[1] == one.interval[1], "all guards have to pass, each at the whole level"


def test_without_a_canary_all_traffic_goes_to_production(tmp_path: Path) -> None:
    made = judged(tmp_path, tmp_path / "none", {"brier": 1}, candidate=ServedVersion(), service=SERVICE)
    assert (made.decision, made.not_judged[0].reason) == ("INCONCLUSIVE", "no version is the canary")
    predictor = manifest(tmp_path)["spec"]["predictor"]
    assert (predictor["canaryTrafficPercent"], predictor["model"]["storageUri"]) == (100, "s3://models/3")


def test_without_production_there_is_nothing_to_compare_with_or_to_serve(tmp_path: Path) -> None:
    made = judged(tmp_path, tmp_path / "none", {"brier": 1}, production=ServedVersion(), service=SERVICE)
    assert made.decision == made.recomputed() == "INCONCLUSIVE"
    assert not (tmp_path / "verdict" / SERVICE_FILE).exists()


@pytest.mark.parametrize(
    ("guards", "text"),
    [
        ({"p99": 0.1, "mae": 1}, "p99 is not one of error_rate, .*; mae needs serving.bounds"),
        ({"slow_rate": 0.1}, "slow_rate needs serving.slow_ms"),
    ],
)
def test_guards_that_cannot_be_compared_are_rejected_together(
    guards: dict[str, float], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=text):
        judged(tmp_path, tmp_path / "none", guards)


def test_rollback_leaves_the_rest_of_the_service_as_it_is(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 4000, worse=0.6)
    with kserve(503) as server:
        made = judged(
            tmp_path, log, {"brier": 0.02}, shadow=True, server=server, service=SERVICE | {"apply": True}
        )
    assert made.decision == "FAIL"
    predictor = server.service["spec"]["predictor"]
    assert predictor["canaryTrafficPercent"] == 0
    assert predictor["minReplicas"] == 2
    assert predictor["model"]["resources"] == {"limits": {"memory": "2Gi"}}
    assert predictor["model"]["storageUri"] == "s3://models/4"
    assert len(server.queries) == 2, "the first try got 503"
    assert server.queries[0]["fieldManager"] == ["trainwright"]


def test_what_kserve_cannot_read_or_the_account_may_not_do_ends_the_step(tmp_path: Path) -> None:
    log = flights(tmp_path / "log.parquet", 10)
    applied = SERVICE | {"apply": True}
    local = ServedVersion(NEW, "c" * 64, "mlflow-artifacts:/1/model")
    with kserve(token="another") as server:  # noqa: S106
        for candidate, error, text in (
            (CANDIDATE, PermissionRefused, "cannot patch"),
            (local, InputError, "found mlflow-artifacts:/1/model"),
        ):
            with pytest.raises(error, match=text):
                judged(
                    tmp_path,
                    log,
                    {"brier": 1},
                    shadow=True,
                    server=server,
                    candidate=candidate,
                    service=applied,
                )
    other = applied | {"name": "weather"}
    with kserve() as server, pytest.raises(InputError, match="answers HTTP 404"):
        judged(tmp_path, log, {"brier": 1}, shadow=True, server=server, service=other)
    with pytest.raises(DependencyError, match="no access to a cluster"):
        judged(tmp_path, log, {"brier": 1}, shadow=True, service=applied)


def test_manifest_has_the_fields_of_kserves_v1beta1_and_no_others(tmp_path: Path) -> None:
    """KServe 0.17's CRD rejects any other field, with fieldValidation Strict; percent is an integer."""
    log = flights(tmp_path / "log.parquet", 10)
    judged(tmp_path, log, {"brier": 1}, shadow=True, service=SERVICE | {"runtime": "trees"})
    assert manifest(tmp_path) == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "flights", "namespace": "team-a"},
        "spec": {
            "predictor": {
                "canaryTrafficPercent": 5,
                "model": {
                    "modelFormat": {"name": "trainwright"},
                    "runtime": "trees",
                    "storageUri": "s3://models/4",
                },
            }
        },
    }


def test_level_is_the_one_of_the_page() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "canary.md"
    assert f"{LEVEL:.0%}".replace("%", " %") in page.read_text()
