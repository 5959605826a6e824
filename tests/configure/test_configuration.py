"""The configuration of a run: overrides, one report of all errors, and the keys that each step gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.configure.configuration import FILE, SECTIONS, Configuration, Overrides, configure
from trainwright.errors import InputError
from trainwright.experiment import Data, Features, Registry

SPLITS = {
    "train": {"start": "2013-01-01", "end": "2013-10-01"},
    "evaluate": {"start": "2013-10-01", "end": "2013-11-01"},
}
GOOD: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS} | {
    "data": {"source": "s3://b/rows", "key": "id", "time": "at", "label": "late", "splits": SPLITS},
    "features": {"repository": "s3://b/repo", "source": "s3://b/repo/**", "service": "v1"},
    "registry": {"model": "m", "tracking_uri": "https://mlflow", "author": "anna"},
}
SCHEMA = "s3://b/schema.pbtxt"


def made(folder: Path, changed: dict[str, dict[str, Any]] | None = None, **overrides: Any) -> Configuration:
    sections = GOOD | {name: GOOD[name] | keys for name, keys in (changed or {}).items()}
    return configure(sections, Overrides(**{"schema": SCHEMA, **overrides}), folder)


def refusal(folder: Path, changed: dict[str, dict[str, Any]] | None = None, **overrides: Any) -> str:
    with pytest.raises(InputError) as refused:
        made(folder, changed, **overrides)
    assert not (folder / FILE).exists()
    return str(refused.value)


@pytest.mark.covers("B2")
def test_empty_sections_are_rejected_with_the_list_of_all_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        configure({name: {} for name in SECTIONS}, Overrides(), tmp_path)
    lines = refused.value.what.splitlines()
    assert lines[0] == "found 4 errors"
    assert {line.strip() for line in lines[1:]} == {
        *(f"data.{key}: missing" for key in ("source", "splits")),
        *(f"registry.{key}: missing" for key in ("model", "tracking_uri")),
    }


def test_run_without_a_schema_and_a_feature_service_passes_empty_texts_and_no_null(tmp_path: Path) -> None:
    """kfp's own runner rejects null in a parameter."""
    found = configure(GOOD | {"features": {}}, Overrides(), tmp_path)
    assert (found.schema, found.feature_source, found.baseline) == ("", "", "")
    assert found.features == {}
    assert "null" not in json.dumps(found)


@pytest.mark.parametrize(
    ("data", "features", "message"),
    [
        ({"time": None}, GOOD["features"], "features.service joins features as of each row's time"),
        ({"time": None}, {"cutoff": "2013-05-01"}, "features.cutoff .* is compared with each row's time"),
        ({"label": None}, GOOD["features"], "features.service has no use for a language model"),
    ],
)
def test_features_that_do_not_fit_the_data_are_rejected(
    tmp_path: Path, data: dict[str, Any], features: dict[str, Any], message: str
) -> None:
    changed = GOOD["data"] | data | {"splits": {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}}}
    with pytest.raises(InputError, match=message):
        configure(GOOD | {"data": changed, "features": features}, Overrides(), tmp_path)


def test_language_model_requests_the_column_that_it_learns(tmp_path: Path) -> None:
    splits = {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}}
    data = {"source": "s3://b/lines.jsonl", "splits": splits}
    sections = GOOD | {"data": data, "features": {}, "network": {"kind": "lm", "text": "line"}}
    found = configure(sections, Overrides(), tmp_path)
    assert found.features == {"request": ["line"]}
    assert found.columns == {"network.text": ["line"]}
    with pytest.raises(InputError, match="the language model learns line"):
        configure(sections | {"features": {"request": ["title"]}}, Overrides(), tmp_path / "other")


def test_overrides_replace_their_keys_and_nothing_else(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain")
    other = made(
        tmp_path / "other",
        source="s3://b/more",
        schema="s3://b/new.pbtxt",
        model_name="other",
        learning_rate=0.25,
        epochs=7,
        min_auc=0.7,
        claim="team-volume",
    )
    assert other.source == "s3://b/more"
    assert other.schema == "s3://b/new.pbtxt"
    assert other.training == plain.training | {"learning_rate": 0.25, "epochs": 7}
    assert other.evaluation == plain.evaluation | {"min_auc": 0.7}
    assert other.registry == plain.registry | {"model": "other"}
    assert other.resources == plain.resources | {"claim": "team-volume"}
    assert (other.data, other.features, other.network) == (plain.data, plain.features, plain.network)
    effective = json.loads((tmp_path / "other" / FILE).read_text())
    assert effective["training"]["epochs"] == 7
    assert effective["data"]["source"] == "s3://b/more"


def test_an_unset_override_leaves_the_value_of_the_section(tmp_path: Path) -> None:
    training = {"learning_rate": 0.5, "epochs": 9}
    found = made(tmp_path, {"training": training, "evaluation": {"min_auc": 0.6}})
    assert found.training.items() >= training.items()
    assert found.evaluation["min_auc"] == 0.6
    assert (found.source, found.registry["model"]) == ("s3://b/rows", "m")


def test_the_learning_rate_of_trees_is_that_of_their_network(tmp_path: Path) -> None:
    found = made(tmp_path, {"network": {"kind": "trees"}}, learning_rate=0.3)
    assert found.network["learning_rate"] == 0.3
    assert "learning_rate" not in found.training


@pytest.mark.parametrize(
    ("changed", "overrides", "message"),
    [
        ({"network": {"kind": "trees"}}, {"epochs": 2}, "epochs: 2 does not apply to trees"),
        ({"training": {"steps": 10.0}}, {"epochs": 2}, "epochs: 2 does not apply: training.steps 10 ends"),
        (
            {"resources": {"claim": "a"}},
            {"claim": "b"},
            "resources.claim: 'a' is not the parameter claim, 'b'",
        ),
        ({}, {"epochs": -1}, "training.epochs: must be greater than or equal to 1; found -1"),
        ({}, {"min_auc": 1.5}, "evaluation.min_auc: must be less than or equal to 1; found 1.5"),
        ({"evaluation": {"split": "nope"}}, {}, "evaluation.split names split 'nope'"),
        ({"training": {"epohcs": 2}}, {}, "training.epohcs: unknown key; did you mean epochs?"),
        ({"training": {"epochs": 2.5}}, {}, "training.epochs: must be a valid integer"),
    ],
)
def test_what_does_not_fit_is_rejected_with_its_value(
    tmp_path: Path, changed: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    assert message in refusal(tmp_path, changed, **overrides)


def test_errors_of_sections_and_of_overrides_are_reported_together(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"network": {"kind": "trees"}, "data": {"lable": "x"}}, epochs=2)
    assert "found 2 errors" in message
    assert "data.lable: unknown key; did you mean label?" in message
    assert "epochs: 2 does not apply to trees" in message


CHANGED: dict[str, tuple[dict[str, dict[str, Any]], set[str]]] = {
    "a limit of the gate": ({"evaluation": {"max_slices": 40}}, {"evaluation"}),
    "the first limit that not every kind of label has": (
        {"evaluation": {"min_auc": 0.9}},
        {"evaluation", "validation"},
    ),
    "who answers for the model": ({"registry": {"author": "bob"}}, {"registry"}),
    "the accepted baseline": ({"validation": {"baseline": "s3://b/baseline.json"}}, {"baseline"}),
    "the location of the rows": ({"data": {"source": "s3://c/rows"}}, {"source"}),
    "a slice": ({"evaluation": {"slices": ["origin"]}}, {"evaluation", "features"}),
    "the server": ({"registry": {"tracking_uri": "https://other"}}, {"registry", "server"}),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_reaches_only_the_steps_that_read_the_key(tmp_path: Path, what: str) -> None:
    changed, reached = CHANGED[what]
    before, after = made(tmp_path / "a")._asdict(), made(tmp_path / "b", changed)._asdict()
    assert {name for name in before if before[name] != after[name]} == reached


def test_each_part_is_a_section_that_its_step_reads(tmp_path: Path) -> None:
    found = made(tmp_path, {"evaluation": {"slices": ["origin"]}, "features": {"needed": ["carrier"]}})
    assert Features.parse(found.features, "features").needed == ("carrier", "origin")
    assert Data.parse(found.data, "data").key == "id"
    assert Registry.parse(found.server, "registry").model == "m"
    assert found.split == "evaluate"


def test_columns_of_all_sections_go_to_resolve_by_the_key_that_names_them(tmp_path: Path) -> None:
    changed = {
        "data": {"disjoint": ["user"], "quality": {"max_missing": {"fare": 0.1}}},
        "validation": {
            "ignore": ["id"],
            "drift": {"late": {"comparator": "infinity_norm", "threshold": 0.1}},
        },
        "features": {"request": ["carrier"], "known_after": ["delay"]},
        "evaluation": {"slices": ["origin"], "crosses": [["origin", "hour"]], "cluster": "user"},
    }
    joined = made(tmp_path / "feast", changed).columns
    assert joined == {
        "data.key": ["id"],
        "data.time": ["at"],
        "data.label": ["late"],
        "data.disjoint": ["user"],
        "data.quality.max_missing": ["fare"],
        "validation.drift": ["late"],
        "validation.ignore": ["id"],
        "features.request": ["carrier"],
        "features.known_after": ["delay"],
    }
    sections = GOOD | {name: GOOD[name] | keys for name, keys in changed.items()}
    sections["features"] = changed["features"]
    alone = configure(sections, Overrides(schema=SCHEMA), tmp_path / "table").columns
    assert alone == joined | {
        "evaluation.slices": ["origin"],
        "evaluation.crosses": ["origin", "hour"],
        "evaluation.cluster": ["user"],
    }


def test_kinds_of_label_that_have_all_metrics_are_passed_to_validate_where_the_values_decide(
    tmp_path: Path,
) -> None:
    assert made(tmp_path, {"evaluation": {"min_auc": 0.7}}).validation["kinds"] == ["binary"]
    assert "kinds" not in made(tmp_path / "other").validation
    known = {"data": {"label_kind": "binary"}, "evaluation": {"min_auc": 0.7}}
    assert "kinds" not in made(tmp_path / "third", known).validation


@pytest.mark.parametrize("changed", [{"data": {"label": "score"}}, {"features": {"request": ["score_2"]}}])
def test_column_with_the_name_of_a_score_is_rejected(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert "is the name of a column of the predictions" in refusal(tmp_path, changed)
